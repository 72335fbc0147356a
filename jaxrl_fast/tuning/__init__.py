"""The autotuner, whose command is `jaxrl_fast.autotune`.

``search`` decides what is measured next, ``candidates`` says what may be varied and what that does to learning,
``trial`` measures one candidate in a process of its own, ``child`` starts and asks that process, ``report`` and
``picture`` show the results. `jaxrl_fast.commands.tuning_cache` saves them.
"""
