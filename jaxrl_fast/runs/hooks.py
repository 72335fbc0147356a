"""What the caller of a run hands in to be called while it goes on."""

import sys
from collections.abc import Callable
from typing import Any

from jaxrl_fast.policy.policies import Policy

Row = dict[str, Any]
"""A row of a run's history, by column: ``kind`` is "train" (a chunk) or "eval" (an evaluation)."""


OnMetrics = Callable[[Row], None]
"""Called with each row of a run's history when it is made: the columns of ``metrics.csv`` or of an evaluation; not to
be changed."""


OnNewPolicy = Callable[[], None]
"""Called when the newest evaluated policy lies in the run's folder, in ``policy/``. Training waits for it, so it must
be quick."""


OnLastPolicy = Callable[[Policy], None]
"""Called with the policy that a run ends with, that of the result, written to ``policy/``."""


Tell = Callable[[str], None]
"""Shows a person what happens, for instance by printing it: a sentence without a line break at its end."""


def to_stderr(line: str) -> None:
    """The `Tell` of commands."""
    print(line, file=sys.stderr)


ShouldStop = Callable[[], bool]
"""Asked again and again whether to end early, so it must be quick. Returns True once the end is wanted, and from
then on."""
