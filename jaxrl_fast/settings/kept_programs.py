"""The programs of a run in the user's cache folder, under a name that says all that they depend on."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl_fast.settings.identity import digest
from jaxrl_fast.settings.kept_files import KeptFiles
from jaxrl_fast.settings.kept_worlds import Keeper

WITHOUT_EFFECT = ("seed", "name", "log", "tuned")
"""Settings that no program depends on: a seed is an argument."""
SECTIONS_WITHOUT = ("eval.", "checkpoint.")


class ProgramFiles(NamedTuple):
    """A `jaxrl_fast.graph.kept.Store` of the programs of one run, in ``files``; ``key`` says what they depend on."""

    files: KeptFiles
    key: str

    def read(self, name: str) -> dict[str, Any] | None:
        """The program of a name, None where there is none."""
        return self.files.read(f"program-{self.key}-{name}")

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Keep it."""
        self.files.write(f"program-{self.key}-{name}", content)

    def refuse(self, name: str, why: str) -> None:
        """Say that a program cannot be used, or kept, and why."""
        self.files.tell(f"program '{name}' is not kept for a second start ({' '.join(why.split())})")


def store_of(keeper: Keeper, settings: Mapping[str, Any], program: Any) -> ProgramFiles:
    """Where the programs of a run with ``settings`` are kept; ``program``: what else they depend on."""
    telling = {
        key: value
        for key, value in settings.items()
        if key not in WITHOUT_EFFECT and not key.startswith(SECTIONS_WITHOUT)
    }
    return ProgramFiles(keeper.files, digest(keeper.identity, telling, repr(program)))
