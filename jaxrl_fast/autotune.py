"""``python -m jaxrl_fast.autotune env=halfcheetah``: find this machine's throughput ceiling, keep it and draw it."""

import dataclasses
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import envs
from jaxrl_fast import cli, config, findings
from jaxrl_fast.findings import Finding
from jaxrl_fast.grammar import command_line, read_word
from jaxrl_fast.run_settings import Run, env_name, make_algorithm
from jaxrl_fast.schema import ConfigError, Key, nearest, read_value
from jaxrl_fast.tables import new_console, new_table
from jaxrl_fast.tuning import candidates, comparing, report
from jaxrl_fast.tuning.child import Stopped
from jaxrl_fast.tuning.measuring import Row, Settings
from jaxrl_fast.tuning.picture import draw
from jaxrl_fast.tuning.sweep import Objective, Record, SweepPlan, left_open, run_knobs

KEYS = {
    "objective": Key(Objective, "training", text="what is to be fast: training, or sampling alone"),
    "knobs": Key(tuple[str, ...], (), text=f"what to vary, of {', '.join(candidates.KNOBS)}; what is open"),
    "repeats": Key(int, 5, 1, "measurements of a candidate that is not clearly behind", 1000),
    "repeat_s": Key(float, 1.0, 0, "seconds that each takes at least", 3600),
    "max_num_envs": Key(int | None, None, 1, "no more environments than this"),
    "memory_cap_gb": Key(float | None, None, 0, "memory for a candidate; 80 % of what is free"),
    "out": Key(str, "sweeps", text="folder of <env>_<algo>.json, .csv and .png"),
}
"""The keys that this command has beside those of training."""


class SweepStop:
    """Ctrl-C and SIGTERM: the first ends the sweep, the second the process."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.ignore()

    def ignore(self) -> None:
        """From here on a signal ends the process as always."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def __call__(self) -> bool:
        return self.number != 0


HELP = """python -m jaxrl_fast.autotune [key=value ...]     find the fastest settings for a run on this machine
python -m jaxrl_fast.autotune show | clear        what was found here; forget it
python -m jaxrl_fast.autotune compare A.json B.json
Trains nothing that is kept; says of every candidate what it does to learning. num_envs=auto takes what was
found, and so does placement=auto. Keys, beside every key of train:"""


def help_text() -> str:
    """The screen of ``--help``."""
    return "\n".join([HELP, *(f"  {name:<14} {key.text}" for name, key in KEYS.items())])


def tune(words: list[str]) -> int:
    """Do what the words of the command line say; the exit status.

    Raises:
        ConfigError: one line that says what was wrong and what to write instead.
    """
    if words and words[0] in ("show", "clear", "compare"):
        return {"show": show, "clear": clear, "compare": compare}[words[0]](words[1:])
    options, others = take_own(words)
    plan = make_plan(config.compose(others), options)
    cap = options["memory_cap_gb"]
    with results_folder(Path(options["out"])) as out, tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        print(f"{envs.describe(plan.asked.env, plan.asked.env_options)}; {plan.asked.algo}, objective {plan.objective}")
        settings = Settings(Path(folder), cap and cap * 1e9, options["repeats"], options["repeat_s"])
        suffix = "" if plan.objective == "training" else f"_{plan.objective}"
        return run_sweep(plan, settings, out / f"{env_name(plan.asked)}_{plan.asked.algo}{suffix}", words)


def run_sweep(plan: SweepPlan, settings: Settings, stem: Path, argv: Sequence[str]) -> int:
    """Sweep, print and write; what was measured before a signal is kept, and the exit status says so."""

    def keep(record: Record, row: Row) -> None:
        print(report.line(row, row is record.best), flush=True)
        report.write(report.document(plan, record, settings, argv, interrupted=True), stem)

    record, stop = Record(keep), SweepStop()
    try:
        run_knobs(plan, record, settings._replace(stopped=stop))
    except Stopped:
        print("\nstopped; what was measured is kept", file=sys.stderr)
    stop.ignore()
    doc = report.document(plan, record, settings, argv, interrupted=stop())
    report.write(doc, stem)
    draw(doc, stem.with_suffix(".png"))
    console = new_console()
    console.print(report.table(doc))
    print("\n".join(["", *report.closing(doc)]))
    print(f"written: {', '.join(str(stem.with_suffix(end)) for end in ('.json', '.csv', '.png'))}")
    if stop():
        return 128 + stop.number
    if record.best is None:
        raise ConfigError(f"no candidate ran; the last one: {record.rows[-1].status}: {record.rows[-1].why}")
    print_use(plan, record, remember(plan, record), argv)
    return 0


def remember(plan: SweepPlan, record: Record) -> Path | None:
    """Keep what a whole sweep has found for runs to come; returns the file."""
    if record.width is None or record.best is None or not record.complete:
        return None
    run, free = record.best.run, dict[str, Any]()
    if "placement" in plan.knobs:
        free |= {"placement": run.placement, "devices": run.devices}
    if "pool" in plan.knobs and run.pool["workers"] is not None:
        free |= {"pool.workers": run.pool["workers"]}
    learning, when = findings.sizes_of(record.width.run), time.strftime("on %Y-%m-%d")
    key = findings.make_key(plan.asked, findings.device_of(record.best.facts), plan.objective)
    return findings.remember(key, Finding(learning, free, record.width.effect, when, False))


def print_use(plan: SweepPlan, record: Record, path: Path | None, argv: Sequence[str]) -> None:
    """How to train with what was found."""
    if path is not None:
        print(f"remembered in {path}{': num_envs=auto takes it' if plan.objective == 'training' else ''}")
    elif not record.complete:
        print("not remembered: num_envs was not among the knobs")
    if plan.objective == "training" and record.best is not None:
        found = candidates.words(plan.asked, record.best.run)
        replaced = {*KEYS, *(word.partition("=")[0] for word in found)}
        told = [word for word in argv if word.partition("=")[0] not in replaced]
        print(f"train: {command_line([*told, *found])}")


def take_own(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """This command's own keys, typed, and the other words.

    Raises:
        ConfigError: a value is wrong, a knob is unknown, or a run is to be resumed.
    """
    values = {name: key.default for name, key in KEYS.items()}
    others = []
    for word in words:
        name, _, text = word.partition("=")
        if name == "knobs" and text.strip():
            values[name] = tuple(part.strip() for part in text.strip("[] ").split(","))
        elif name == "resume":
            raise ConfigError(f"{word}: autotune goes on with no run: write config=<its folder>/config.yaml instead")
        elif name in KEYS:
            values[name] = read_value(name, read_word(word)[1], KEYS[name])
        else:
            others.append(word)
    for knob in values["knobs"]:
        if knob not in candidates.KNOBS:
            raise ConfigError(f"knobs={knob}: {nearest(knob, candidates.KNOBS)}")
    return values, others


def make_plan(run: Run, options: dict[str, Any]) -> SweepPlan:
    """What to vary, and in which run.

    Raises:
        ValueError: an option of the environment or the algorithm is wrong.
    """
    make_algorithm(run)
    envs.resolve(run.env, dict(run.env_options))
    asked = dataclasses.replace(run, auto_width=False, distributed="off", processes=None)
    knobs = left_open(asked, options["knobs"])
    return SweepPlan(asked, options["objective"], knobs, options["knobs"], options["max_num_envs"])


@contextmanager
def results_folder(path: Path) -> Iterator[Path]:
    """A folder that can be written to; it is not left behind empty.

    Raises:
        ConfigError: it cannot be written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write to out={path} ({error.strerror}): write another folder") from None
    try:
        yield path
    finally:
        with suppress(OSError):
            path.rmdir()


def show(words: Sequence[str]) -> int:
    """Print what is remembered.

    Raises:
        ConfigError: words were given.
    """
    refuse(words, "show")
    known = findings.read()
    console = new_console()
    columns = ("objective", "asked for", "found", "device, versions", "when")
    table = new_table("environment, algorithm", *columns)
    for key, finding in known.items():
        table.add_row(*findings.describe(key, finding))
    if known:
        console.print(table)
    print(f"{len(known)} findings in {findings.file() or 'no file: JAXRL_FAST_CACHE=off keeps none'}")
    return 0


def clear(words: Sequence[str]) -> int:
    """Forget what is remembered.

    Raises:
        ConfigError: words were given.
    """
    refuse(words, "clear")
    print(f"{findings.clear()} findings forgotten")
    return 0


def compare(words: Sequence[str]) -> int:
    """Print two sweeps side by side.

    Raises:
        ConfigError: these are not two files of sweeps.
    """
    if len(words) != 2:
        raise ConfigError("compare needs two files: write compare A.json B.json")
    a, b = map(comparing.read, words)
    new_console().print(comparing.side_by_side(a, b))
    print("\n".join(comparing.verdict(a, b)))
    return 0


def refuse(words: Sequence[str], command: str) -> None:
    """Raises ConfigError where there are words behind a command that takes none."""
    if words:
        raise ConfigError(
            f"{command} {words[0]}: write python -m jaxrl_fast.autotune {command}, with nothing behind it"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return cli.main("autotune", tune, argv, help_text)


if __name__ == "__main__":
    sys.exit(main())
