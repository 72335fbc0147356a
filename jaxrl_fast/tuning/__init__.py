"""The parts of the autotuner: ``search`` decides what is measured next, ``candidates`` says what may be varied and what
that does to learning, ``trial`` measures one candidate in a process of its own, ``child`` is the parent's end of that,
``report`` and ``picture`` show. What was found is kept by
`jaxrl_fast.settings.findings`. The command is `jaxrl_fast.autotune`.
"""
