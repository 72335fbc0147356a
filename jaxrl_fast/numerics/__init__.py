"""Pure functions of arrays: distributions, losses, returns, running statistics, schedules,
optimizers.
"""
