"""The autotuner's findings on this machine: a JSON file in the user's cache folder, read by all
commands.

The key of a finding is the machine (device kind and count, cores), the versions, the work
(environment and options, algorithm and networks, without hyper-parameters, which do not change the
speed) and its sizes. Settings that do not change training results are also taken from findings for
other sizes of the same work.
"""

import dataclasses
import json
import os
import subprocess
import sys
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax

from jaxrl_fast.commands.run_config import make_algorithm
from jaxrl_fast.core import __version__
from jaxrl_fast.learning.run_graph import Overlap
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.settings import machine
from jaxrl_fast.settings.machine import cache_root
from jaxrl_fast.settings.run import Run, flat_settings
from jaxrl_fast.settings.schema import resume_rule
from jaxrl_fast.system import replace_file
from jaxrl_fast.training.callbacks import Tell, to_stderr

SIZES = (
    "num_envs",
    "algo.rollout_length",
    "algo.updates_per_tick",
    "algo.batch_size",
    "algo.num_minibatches",
)
"""Settings that determine how much is computed at once."""
FREE = {"placement", "devices", "pool.workers", "at_once"}
"""Settings of a finding that do not change training results."""


class Device(NamedTuple):
    """A kind of device.

    Attributes:
        platform: cpu, gpu or tpu.
        kind: JAX's device kind, or the name of a CPU.
        number: Number of devices, or of a CPU's cores.
    """

    platform: str
    kind: str
    number: int


class Finding(NamedTuple):
    """The fastest settings, by key of the command line.

    Attributes:
        learning: Settings that change training results, for one size of the work.
        free: Settings that do not change training results.
        effect: Description of the changed training results.
        found: Time of the measurement.
        quick: Whether only a few widths were tried.
    """

    learning: dict[str, Any]
    free: dict[str, Any]
    effect: str
    found: str
    quick: bool


class FindingKey(NamedTuple):
    """Key of a finding; each part is JSON.

    Attributes:
        machine: Device, cores and versions.
        work: Environment, algorithm and options.
        sizes: Values of `SIZES`.
    """

    machine: str
    work: str
    sizes: str


def make_key(run: Run, device: Device, objective: str = "training") -> FindingKey:
    """Return the key of a run, before ``auto`` settings are resolved.

    Args:
        run: Settings of the run.
        device: Device of the run.
        objective: Quantity that the autotuner maximizes.

    Returns:
        The key.
    """
    settings = flat_settings(run)
    rates = set(make_algorithm(run).hyper._fields)
    computed = [
        k
        for k in settings
        if resume_rule(k) == "fixed" and k != "seed" and k.removeprefix("algo.") not in rates
    ]
    work = {k: settings[k] for k in (*computed, "placement", "devices")} | {"objective": objective}
    sizes = {k: work.pop(k, settings.get(k)) for k in SIZES}
    here = {
        **device._asdict(),
        "cores": machine.cpu_cores(),
        "jax": jax.__version__,
        "jaxrl_fast": __version__,
    }
    dump = partial(json.dumps, sort_keys=True, default=str)
    return FindingKey(machine=dump(here), work=dump(work), sizes=dump(sizes))


def cpu_device() -> Device:
    """Return this machine's CPU, without starting JAX.

    Returns:
        The device.
    """
    return Device("cpu", machine.processor(), machine.cpu_cores())


def device_of(facts: dict[str, Any]) -> Device:
    """Return the device that a trial reported.

    Args:
        facts: Report of the trial.

    Returns:
        The device.
    """
    if facts["platform"] == "cpu":
        return cpu_device()
    return Device(facts["platform"], facts["device_kind"], facts["available"])


def this_device() -> Device:
    """Return JAX's default device without starting JAX in this process.

    If there may be an accelerator, a subprocess checks.

    Returns:
        The device.
    """
    plugins = entry_points(group="jax_plugins") or find_spec("jax_plugins") or find_spec("libtpu")
    if not plugins or os.environ.get("JAX_PLATFORMS") == "cpu":
        return cpu_device()
    code = "import jax; d = jax.devices(); print(d[0].platform, len(d), d[0].device_kind)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    platform, count, kind = (done.stdout.strip() or "cpu 1 cpu").splitlines()[-1].split(maxsplit=2)
    return cpu_device() if platform == "cpu" else Device(platform, kind, int(count))


def sizes_of(run: Run) -> dict[str, Any]:
    """Return the settings of a run in `SIZES`.

    Args:
        run: Settings of the run.

    Returns:
        Values by key.
    """
    settings = flat_settings(run)
    return {key: settings[key] for key in SIZES if key in settings}


def file() -> Path | None:
    """Return the path of the findings.

    Returns:
        The path; None with ``JAXRL_FAST_CACHE=off``.
    """
    root = cache_root()
    return None if root is None else root / "autotune.json"


def look_up(key: FindingKey, tell: Tell = lambda line: None) -> Finding | None:
    """Look up the finding for exactly this work and these sizes.

    Args:
        key: Key of the finding.
        tell: Gets a line if the file is damaged.

    Returns:
        The finding, or None.
    """
    return read(tell).get(key)


def look_up_free(key: FindingKey, tell: Tell = lambda line: None) -> Finding | None:
    """Look up the finding for this work, else the last one for other sizes; use only its ``free``
    settings.

    Args:
        key: Key of the finding.
        tell: Gets a line if the file is damaged.

    Returns:
        The finding, or None.
    """
    findings = read(tell)
    others = [other for other in findings if other[:2] == key[:2]]
    return findings.get(key) or (findings[others[-1]] if others else None)


def read(tell: Tell = to_stderr) -> dict[FindingKey, Finding]:
    """Read all findings, oldest first. A damaged file counts as empty.

    Args:
        tell: Gets a line if the file is damaged.

    Returns:
        Findings by key.
    """
    path = file()
    if path is None or not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["findings"]
        return {
            FindingKey(**entry["key"]): _checked(Finding(**entry["finding"])) for entry in entries
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        tell(
            f"{path} cannot be read ({type(error).__name__}) and counts as empty; autotune clear removes it"
        )
        return {}


def remember(key: FindingKey, finding: Finding, tell: Tell = to_stderr) -> Path | None:
    """Store a finding in place of an older one. A quick one does not replace a thorough one.

    Args:
        key: Key of the finding.
        finding: Finding.
        tell: Gets a line if the file is damaged or not writable.

    Returns:
        Path of the file, or None if nothing was stored.
    """
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
        tell(f"cannot write {path} ({error.strerror}): nothing is stored")
        return None
    return path


def write(path: Path, findings: dict[FindingKey, Finding]) -> None:
    """Replace the file atomically, so that a killed process leaves the old one.

    Args:
        path: Path of the file.
        findings: Findings by key.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [
        {"key": key._asdict(), "finding": finding._asdict()} for key, finding in findings.items()
    ]
    replace_file(path, json.dumps({"findings": entries}, indent=1) + "\n")


def apply(run: Run, settings: dict[str, Any]) -> Run:
    """Replace settings of a run.

    Args:
        run: Settings of the run.
        settings: Values by key of the command line.

    Returns:
        The settings.
    """
    fields = {key: value for key, value in settings.items() if "." not in key}
    algo, pool = (
        {k.removeprefix(f"{g}."): v for k, v in settings.items() if k.startswith(f"{g}.")}
        for g in ("algo", "pool")
    )
    return dataclasses.replace(
        run,
        **fields,
        algo_options={**run.algo_options, **algo},
        pool={**run.pool, **pool} if pool else run.pool,
    )


def describe(key: FindingKey, finding: Finding) -> list[str]:
    """Format a finding as columns of a table.

    Args:
        key: Key of the finding.
        finding: Finding.

    Returns:
        Environment and algorithm, objective, width, settings, device and time.
    """
    here, work, sizes = (json.loads(part) for part in key)
    changed = {k: v for k, v in finding.learning.items() if v != sizes.get(k)} | finding.free
    env = work.get("env.id") or work["env"]
    return [
        f"{env}, {work['algo']}",
        work["objective"],
        f"num_envs={sizes['num_envs']}",
        " ".join(f"{k}={v}" for k, v in changed.items()) or "unchanged",
        f"{here['number']} × {here['kind']}, jax {here['jax']}",
        finding.found,
    ]


def clear() -> int:
    """Remove all findings.

    Returns:
        Number of removed findings.
    """
    path, count = file(), len(read(lambda line: None))
    if path is not None:
        path.unlink(missing_ok=True)
    return count


def _checked(finding: Finding) -> Finding:
    """Return the finding if its values are possible, else raise ValueError."""
    settings = finding.learning | finding.free
    choices = {"placement": [machine.AUTO, *PLACEMENTS], "overlap": get_args(Overlap)}
    keys_known = set(finding.learning) <= {*SIZES, "overlap"} and set(finding.free) <= FREE
    possible = [
        v in choices[k] if k in choices else type(v) is int and v >= 0 for k, v in settings.items()
    ]
    if not keys_known or not all(possible):
        raise ValueError(finding)
    return finding
