"""What the autotuner found on this machine: a JSON file in the user's cache folder, read by any command.

A finding is looked up by machine (device kind and count, cores), by versions, by what is computed (environment and
options, algorithm and networks, but not its rates, which do not change the speed) and by its sizes. Settings that
change no learning are also taken from findings for other sizes of the same work.
"""

import dataclasses
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax

from jaxrl_fast.commands.run_config import Run, flat_settings, make_algorithm
from jaxrl_fast.core import __version__
from jaxrl_fast.learning.run_graph import Overlap
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.settings import machine
from jaxrl_fast.settings.machine import cache_root
from jaxrl_fast.settings.schema import resume_rule
from jaxrl_fast.system import replace_file
from jaxrl_fast.training.callbacks import Tell, to_stderr

SIZES = ("num_envs", "algo.rollout_length", "algo.updates_per_tick", "algo.batch_size", "algo.num_minibatches")
"""Settings that say how much is computed at once."""
FREE = {"placement", "devices", "pool.workers"}
"""Settings of a finding that change no learning."""


class Device(NamedTuple):
    """A kind of device: ``platform`` (cpu, gpu, tpu); ``kind`` as JAX calls it, or the name of a CPU; ``number`` of
    devices, or of a CPU's cores."""

    platform: str
    kind: str
    number: int


class Finding(NamedTuple):
    """The fastest settings, by key of the command line: ``learning`` settings, found for one size of the work, and
    ``free`` ones, which change no learning.

    ``effect``: what they change in learning, in a sentence; ``found``: when, in a few words; ``quick``: whether only a
    few widths were tried.
    """

    learning: dict[str, Any]
    free: dict[str, Any]
    effect: str
    found: str
    quick: bool


class FindingKey(NamedTuple):
    """What a finding is looked up by; each part is JSON. ``machine``: device, cores and versions; ``work``: what is
    computed; ``sizes``: how much of it at once."""

    machine: str
    work: str
    sizes: str


def make_key(asked: Run, device: Device, objective: str = "training") -> FindingKey:
    """The key of a run as it was configured, before ``auto`` settings are resolved."""
    settings = flat_settings(asked)
    rates = set(make_algorithm(asked).hyper._fields)
    computed = [
        k for k in settings if resume_rule(k) == "fixed" and k != "seed" and k.removeprefix("algo.") not in rates
    ]
    work = {k: settings[k] for k in (*computed, "placement", "devices")} | {"objective": objective}
    sizes = {k: work.pop(k, settings.get(k)) for k in SIZES}
    here = {**device._asdict(), "cores": machine.cpu_cores(), "jax": jax.__version__, "jaxrl_fast": __version__}
    return FindingKey(*(json.dumps(part, sort_keys=True, default=str) for part in (here, work, sizes)))


def cpu_device() -> Device:
    """This machine's CPU, without starting JAX."""
    return Device("cpu", machine.processor(), machine.cpu_cores())


def device_of(facts: dict[str, Any]) -> Device:
    """The device that a trial has reported."""
    if facts["platform"] == "cpu":
        return cpu_device()
    return Device(facts["platform"], facts["device_kind"], facts["available"])


def this_device() -> Device:
    """The device on which JAX would compute. JAX must not start yet in this process, so where there may be an
    accelerator another process looks."""
    plugins = entry_points(group="jax_plugins") or find_spec("jax_plugins") or find_spec("libtpu")
    if not plugins or os.environ.get("JAX_PLATFORMS") == "cpu":
        return cpu_device()
    code = "import jax; d = jax.devices(); print(d[0].platform, len(d), d[0].device_kind)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    platform, count, kind = (done.stdout.strip() or "cpu 1 cpu").splitlines()[-1].split(maxsplit=2)
    return cpu_device() if platform == "cpu" else Device(platform, kind, int(count))


def sizes_of(run: Run) -> dict[str, Any]:
    """The settings of a run that say how much is computed at once."""
    settings = flat_settings(run)
    return {key: settings[key] for key in SIZES if key in settings}


def file() -> Path | None:
    """Where findings are saved; None with ``JAXRL_FAST_CACHE=off``."""
    root = cache_root()
    return None if root is None else root / "autotune.json"


def look_up(key: FindingKey, tell: Tell = lambda line: None) -> Finding | None:
    """The finding for exactly this work and these sizes."""
    return read(tell).get(key)


def look_up_free(key: FindingKey, tell: Tell = lambda line: None) -> Finding | None:
    """The finding for this work, else the last one for other sizes of it; use only its ``free`` settings."""
    findings = read(tell)
    others = [known for known in findings if known[:2] == key[:2]]
    return findings.get(key) or (findings[others[-1]] if others else None)


def read(tell: Tell = to_stderr) -> dict[FindingKey, Finding]:
    """All findings, the oldest first. A damaged file counts as empty: ``tell`` gets a line."""
    path = file()
    if path is None or not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text())["findings"]
        return {FindingKey(**entry["key"]): _checked(Finding(**entry["finding"])) for entry in entries}
    except (OSError, ValueError, TypeError, KeyError) as error:
        tell(f"{path} cannot be read ({type(error).__name__}) and is taken to be empty; autotune clear removes it")
        return {}


def remember(key: FindingKey, finding: Finding, tell: Tell = to_stderr) -> Path | None:
    """Save a finding in place of an older one; a quick one does not replace a thorough one. Returns the file."""
    path = file()
    if path is None:
        return None
    findings = read(tell)
    if finding.quick and key in findings and not findings[key].quick:
        return path
    findings.pop(key, None)
    findings[key] = finding
    try:
        write(path, findings)
    except OSError as error:
        tell(f"cannot write {path} ({error.strerror}): nothing is remembered")
        return None
    return path


def write(path: Path, findings: dict[FindingKey, Finding]) -> None:
    """Replace the file in one step, so that a killed process leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [{"key": key._asdict(), "finding": finding._asdict()} for key, finding in findings.items()]
    replace_file(path, json.dumps({"findings": entries}, indent=1) + "\n")


def apply(run: Run, settings: dict[str, Any]) -> Run:
    """The run with ``settings`` by key of the command line."""
    own = {key: value for key, value in settings.items() if "." not in key}
    algo, pool = (
        {k.removeprefix(f"{g}."): v for k, v in settings.items() if k.startswith(f"{g}.")} for g in ("algo", "pool")
    )
    return dataclasses.replace(
        run, **own, algo_options={**run.algo_options, **algo}, pool={**run.pool, **pool} if pool else run.pool
    )


def describe(key: FindingKey, finding: Finding) -> list[str]:
    """A finding as columns of a table: what was asked for, what was found, and where."""
    here, work, sizes = (json.loads(part) for part in key)
    found = {k: v for k, v in finding.learning.items() if v != sizes.get(k)} | finding.free
    env = work.get("env.id") or work["env"]
    return [
        f"{env}, {work['algo']}",
        work["objective"],
        f"num_envs={sizes['num_envs']}",
        " ".join(f"{k}={v}" for k, v in found.items()) or "the same",
        f"{here['number']} × {here['kind']}, jax {here['jax']}",
        finding.found,
    ]


def clear() -> int:
    """Remove all findings; returns how many there were."""
    path, count = file(), len(read(lambda line: None))
    if path is not None:
        path.unlink(missing_ok=True)
    return count


def _checked(finding: Finding) -> Finding:
    """The finding, if its values are possible; else raises ValueError."""
    settings = finding.learning | finding.free
    words = {"placement": [machine.AUTO, *PLACEMENTS], "overlap": get_args(Overlap)}
    known = set(finding.learning) <= {*SIZES, "overlap"} and set(finding.free) <= FREE
    possible = [v in words[k] if k in words else type(v) is int and v >= 0 for k, v in settings.items()]
    if not known or not all(possible):
        raise ValueError(finding)
    return finding
