"""What this process does at Ctrl-C before a command has imported its modules, and what it lacks after
a fork.
"""

import os
import signal
import sys
from itertools import pairwise

_forked_after_jax: list[bool] = []


def watch_forks() -> None:
    """Note in each forked process whether JAX had started before."""

    def note() -> None:
        started = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
        _forked_after_jax.append(started is not None and started())

    os.register_at_fork(after_in_child=note)


def forked_after_jax() -> bool:
    """Return whether this process was forked from one in which JAX had started.

    Returns:
        True if JAX cannot run here, since its threads are missing.
    """
    return any(_forked_after_jax)


def leave_silently(number: int, frame: object) -> None:
    """End a command that has only imported modules, at Ctrl-C.

    An exception in the middle of an import prints a traceback, and aborts if it reaches C++.

    Args:
        number: Number of the signal.
        frame: Unused.
    """
    os._exit(128 + number)


def leave_silently_until_imported() -> None:
    """Handle Ctrl-C by `leave_silently` if this process runs ``python -m jaxrl_fast....``."""
    package = __name__.partition(".")[0]
    is_command = sys.argv[:1] == ["-m"] and any(
        option == "-m" and module.partition(".")[0] == package
        for option, module in pairwise(sys.orig_argv)
    )
    if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_silently)


def raise_at_ctrl_c() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again, when a command has imported its modules."""
    if signal.getsignal(signal.SIGINT) is leave_silently:
        signal.signal(signal.SIGINT, signal.default_int_handler)
