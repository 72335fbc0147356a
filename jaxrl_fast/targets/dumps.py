"""What XLA puts down beside a program that it compiles, in the folder of ``--xla_dump_to``."""

from pathlib import Path

AFTER, BEFORE, METADATA = "thunk_sequence_after_thunk_passes.txt", "thunk_sequence.txt", "thunk_metadata.txt"


def find_dump(folder: Path, program: str) -> tuple[str, str] | None:
    """The thunks (steps of the host) and their metadata, of the newest program whose module has this name, such as
    ``jit_learn``; None where there are none, as for a TPU."""
    found = sorted(folder.glob(f"module_*.{program}.{METADATA}"))
    if not found:
        return None
    stem = str(found[-1]).removesuffix(METADATA)
    after, before = Path(stem + AFTER), Path(stem + BEFORE)  # the first is left out where the passes changed nothing
    return (after if after.exists() else before).read_text(), found[-1].read_text()


def module_name(hlo: str) -> str:
    """The name of a program's module, from its text."""
    return hlo.partition("HloModule ")[2].partition(",")[0].strip()
