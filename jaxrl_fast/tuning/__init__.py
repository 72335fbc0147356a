"""The autotuner, whose command is `jaxrl_fast.autotune`.

``search`` selects the next measurement, ``candidates`` lists what may be varied with its effect on
learning, ``measuring`` starts a subprocess for each candidate, which runs ``trial``, ``ceiling``
builds the parts that bound training, ``sweep`` and ``running`` run a whole sweep, and
``sweep_report`` shows its results. `jaxrl_fast.commands.tuning_cache` saves them.
"""
