"""What the caller of a run hands in to be called while it goes on."""

from typing import Any, Protocol

from jaxrl_fast.policy.policies import Policy

Row = dict[str, Any]
"""A row of a run's history, by column: ``kind`` is "train" (a chunk) or "eval" (an evaluation)."""


class OnMetrics(Protocol):
    """Gets each row of a run's history when it is made."""

    def __call__(self, row: Row, /) -> None:
        """``row``: the columns of ``metrics.csv`` or of an evaluation; not to be changed."""


class OnNewPolicy(Protocol):
    """Called when the newest evaluated policy lies in the run's folder, in ``policy/``."""

    def __call__(self) -> None:
        """Training waits for it, so it must be quick."""


class OnLastPolicy(Protocol):
    """Called with the policy that a run ends with."""

    def __call__(self, policy: Policy, /) -> None:
        """``policy``: that of the result, written to ``policy/``."""


class Tell(Protocol):
    """Shows a person what happens, for instance by printing it."""

    def __call__(self, line: str, /) -> None:
        """``line``: a sentence without a line break at its end."""


class ShouldStop(Protocol):
    """Asked again and again whether to end early, so it must be quick."""

    def __call__(self) -> bool:
        """Returns True once the end is wanted, and from then on."""
