"""The arrays of a checkpoint written and read by Orbax, as an ``.npz`` file, and as their bytes.

``python experiments/bench/checkpoint_files.py [repeats]`` writes and reads the state of PPO on
CartPole and of SAC on HalfCheetah with a replay buffer of a million steps, in turn, each
with digests of its files as `training.checkpoints` writes and verifies them. It also measures CPU
seconds of the imports, in new processes. The result is written to
experiments/results/checkpoint_files.json.
"""

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import commit, machine, versions

import jaxrl_fast as jf
from jaxrl_fast.training.checkpoints import snapshot

RESULT = Path(__file__).resolve().parent.parent / "results" / "checkpoint_files.json"
Arrays = dict[str, np.ndarray]


def orbax_alone() -> Any:
    """Return Orbax's writer as checkpoints until 0.2.0 used it: one process, no compression."""
    import orbax.checkpoint as ocp

    alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
    handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def write_orbax(path: Path, arrays: Arrays) -> None:
    import orbax.checkpoint as ocp

    with orbax_alone() as orbax:
        present = {name: array for name, array in arrays.items() if array.size}
        orbax.save(path.absolute(), args=ocp.args.PyTreeSave(present))


def read_orbax(path: Path, described: Arrays) -> Arrays:
    import orbax.checkpoint as ocp

    names = [name for name, array in described.items() if array.size]
    how = dict.fromkeys(names, ocp.RestoreArgs(restore_type=np.ndarray))
    with orbax_alone() as orbax:
        return orbax.restore(path.absolute(), args=ocp.args.PyTreeRestore(restore_args=how))


def write_npz(path: Path, arrays: Arrays) -> None:
    path.mkdir()
    with (path / "arrays.npz").open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())


def read_npz(path: Path, described: Arrays) -> Arrays:
    with np.load(path / "arrays.npz", allow_pickle=False) as file:
        return {name: file[name] for name in described}


def write_bytes(path: Path, arrays: Arrays) -> None:
    path.mkdir()
    with (path / "arrays.bin").open("wb") as file:
        for name in sorted(arrays):
            arrays[name].tofile(file)
        os.fsync(file.fileno())


def read_bytes(path: Path, described: Arrays) -> Arrays:
    with (path / "arrays.bin").open("rb") as file:
        return {
            name: np.fromfile(file, array.dtype, array.size).reshape(array.shape)
            for name, array in sorted(described.items())
        }


def digests(path: Path) -> dict[str, str]:
    found = {}
    for file in sorted(path.rglob("*")):
        if file.is_file():
            with file.open("rb") as stream:
                found[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


Way = tuple[Callable[[Path, Arrays], None], Callable[[Path, Arrays], Arrays]]
WAYS: dict[str, Way] = {
    "Orbax": (write_orbax, read_orbax),
    "npz": (write_npz, read_npz),
    "bytes": (write_bytes, read_bytes),
}


def states() -> dict[str, Arrays]:
    """Return the arrays of the two states; a replay buffer's are random, as recorded steps are."""
    made = {
        "PPO, CartPole": (jf.make_env("cartpole", num_envs=64), jf.ppo()),
        "SAC, HalfCheetah, 1 M steps": (
            jf.make_env("halfcheetah", num_envs=64),
            jf.sac(buffer_size=1_000_000),
        ),
    }
    found = {}
    for name, (env, algorithm) in made.items():
        init, _ = jf.make_train_step(env, algorithm)
        arrays = snapshot(jax.jit(init)(jax.random.key(0)), ())
        rng = np.random.default_rng(0)
        for key, array in arrays.items():
            if array.nbytes > 1e6 and array.dtype == np.float32:
                arrays[key] = rng.standard_normal(array.shape, np.float32)
        found[name] = arrays
    return found


def measure(arrays: Arrays, folder: Path, repeats: int) -> dict[str, Any]:
    """Return wall and CPU seconds of each way; the first round warms up."""
    seconds: dict[str, dict[str, list[float]]] = {
        way: {"write": [], "write, CPU": [], "read": [], "read, CPU": []} for way in WAYS
    }
    files = {}
    for number in range(repeats + 1):
        for way in list(WAYS)[:: 1 if number % 2 else -1]:
            write, read = WAYS[way]
            path = folder / "part"
            shutil.rmtree(path, ignore_errors=True)
            at = time.perf_counter(), time.process_time()
            write(path, arrays)
            before = digests(path)
            there = time.perf_counter(), time.process_time()
            files[way] = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
            begin = time.perf_counter(), time.process_time()
            assert digests(path) == before
            found = read(path, arrays)
            end = time.perf_counter(), time.process_time()
            assert all((array == arrays[name]).all() for name, array in found.items())
            if number:
                took = *np.subtract(there, at), *np.subtract(end, begin)
                for title, value in zip(seconds[way], took, strict=True):
                    seconds[way][title].append(float(value))
    return {
        way: {"bytes": sum(files[way]), "files": len(files[way])}
        | {title: spread(values) for title, values in by_title.items()}
        for way, by_title in seconds.items()
    }


def spread(values: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {
        "median": round(median, 4),
        "lower quartile": round(low, 4),
        "upper quartile": round(high, 4),
    }


def imports(repeats: int) -> dict[str, float]:
    """Return CPU seconds of importing Orbax after this package, and the number of modules."""
    code = (
        "import jaxrl_fast as jf, sys, time; jf.learn; jf.ppo; import jaxrl_fast.training.loop; "
        "n = len(sys.modules); at = time.process_time(); import orbax.checkpoint; "
        "print(time.process_time() - at, len(sys.modules) - n)"
    )
    lines = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(repeats)
    ]
    return {**spread([float(line[0]) for line in lines]), "modules": int(lines[0][1])}


def main(repeats: int = 10) -> None:
    """Measure, and write the result."""
    cases = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, arrays in states().items():
            cases[name] = {
                "arrays": len(arrays),
                "bytes": sum(array.nbytes for array in arrays.values()),
                **measure(arrays, Path(folder), repeats),
            }
            print(name, json.dumps(cases[name], indent=1), flush=True)
    imported = imports(repeats)
    print(imported)
    RESULT.write_text(
        json.dumps(
            {
                "command": f"python experiments/bench/checkpoint_files.py {repeats}",
                "commit": commit(),
                "machine": machine(),
                "versions": versions()["ours"],
                "repeats": repeats,
                "states": cases,
                "import of orbax.checkpoint": imported,
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
