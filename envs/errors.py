"""Errors of users' environments."""


class RuleBroken(ValueError):
    """A user's environment breaks a rule, as `jaxrl_fast.check_env` reports it."""


class EnvFailed(RuntimeError):
    """A user's environment on the host raised an error. The first line describes it, the others are
    its traceback.
    """
