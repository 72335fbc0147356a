"""Runs every Python block and every command line of README and docs, long ones with short settings.

``python docs/site/docs_run.py`` runs lines that changed since their last run, ``--all`` everything,
``--count=20`` that many. The record is written to ``experiments/results/docs_run.json``;
``tests/test_docs.py`` refuses a line that is not in it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docs_text import ROOT, Block, command_lines, pages, python_blocks

RECORD = ROOT / "experiments" / "results" / "docs_run.json"
LIMIT_S = 280
NOT_RUN = {
    r"\.\.\.$": "`...` is a placeholder",
    r"srun|SLURM|mpirun|OMPI|JOB_COMPLETION|node01": "needs a cluster",
    r"^make \w+ EXTRA=|^make gpu|target=(h100|this|tpu)|gpu\.py": "needs a GPU or a TPU",
    r"^make (test|costs|check|bench|sweep|targets|fmt|lint|types|docs)": "a development command, run in full",
    r"^make (setup|train)|^pip install|^python3?(\.\d+)? -m venv": "installs packages",
    r"autotune env=|num_envs=auto": "needs an idle machine for minutes",
    r"runs/latest/best": "reads what a population has written; tests/test_sweep.py makes one",
    r"http\.server": "does not end; docs/site/docs_other.py runs it",
    r"env\.make=pendulums\.make": "needs PyTorch; tests/test_mjcf.py runs it where it is installed",
    r"env=buoys|jaxrl_fast winds": "needs the package of its page; tests/test_plugins.py installs it",
    r"jaxrl_fast\.dashboard": "does not end; tests/test_dashboard.py runs it",
    r"experiments/|docs/site/": "takes long; its results are committed",
}
"""Lines that are not run here, and the reason."""
SHORTER = (
    (r"total_steps=([\d_]+)", lambda found: f"total_steps={max(64, int(found[1]) // 1000)}"),
    (r"num_envs=\d+", "num_envs=4"),
    (r"num_seeds=\d+", "num_seeds=2"),
    (r"episodes=\d+", "episodes=2"),
    (r"\"halfcheetah\"", '"pendulum"'),
    (r"\bid=\"HalfCheetah-v5\"", 'id="Pendulum-v1"'),
    (r"logspace\((.*?), \d+\)", r"logspace(\1, 2)"),
    (r"split\((.*?), \d+\)", r"split(\1, 2)"),
    (r"ticks=\d+", "ticks=2"),
    (r"n_trials=\d+", "n_trials=2"),
    (r"jf\.sac\(\)", "jf.sac(policy_hidden=(8,), critic_hidden=(8,))"),
)
"""Replacements that make a Python block short."""
OPTIONAL = ("optuna", "torch")
"""Packages that a block may import and that are not installed by `make setup`. Without them, the
block is left out.
"""
TRAINED = [
    *(
        "env=pendulum",
        "algo=sac",
        "tuned=false",
        "num_envs=4",
        "total_steps=64",
        "eval.episodes=2",
        "eval.every=32",
    ),
    *("checkpoint.every=16", "algo.warmup_steps=16", "eval.beside=false"),
]
"""The words of a run that commands and blocks use as ``runs/latest``."""


def shortened(code: str) -> str:
    """Return a block with short settings."""
    for pattern, short in SHORTER:
        code = re.sub(pattern, short, code)
    return code


def lacks_a_package(block: Block) -> bool:
    """Return whether a block imports one of `OPTIONAL` that is not installed."""
    return any(
        re.search(rf"^import {name}\b", block.code, re.M) and not find_spec(name)
        for name in OPTIONAL
    )


def run_page(blocks: list[Block], folder: Path) -> None:
    """Run the blocks of a page in one namespace, in ``folder``, which contains their input files."""
    names: dict[str, Any] = {"__name__": "docs"}
    sys.path.insert(0, str(folder))
    try:
        for number, block in enumerate(blocks):
            if lacks_a_package(block):
                continue
            named = re.match(r"# (\w+\.py)\n", block.code)
            if named:
                (folder / named[1]).write_text(block.code)
            code = compile(
                shortened(f"{block.first}\n{block.code}"),
                f"{block.page}, block {number + 1}",
                "exec",
            )
            exec(code, names)
    finally:
        sys.path.remove(str(folder))


def reason_not_run(line: str) -> str | None:
    """Return why a command line is not run here, None if it is."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, line)), None)


def short_words(line: str) -> list[str]:
    """Return the words of a command with short settings: few steps, few environments, small
    evaluations.
    """
    words = shlex.split(line, comments=True)
    if "jaxrl_fast.train" not in words:
        return [
            re.sub(r"^episodes=\d+", "episodes=2", re.sub(r"^seconds=\d+", "seconds=1", word))
            for word in words
        ]
    resumes = any(word.startswith(("resume=runs", "config=")) for word in words)
    shorter_words = (
        (r"^num_envs=\d+$", "num_envs=8"),
        (r"^total_steps=.*", "total_steps=96"),
        ("=/", "="),
    )
    for pattern, shorter in (*shorter_words, (r"^online_steps=.*", "online_steps=1")):
        words = [re.sub(pattern, shorter, word) for word in words if word != "..."]
    words = [word for word in words if resumes or not word.startswith("total_steps=")]
    fresh = [] if resumes else ["total_steps=1", "eval.beside=false"]
    keeps = resumes or any(word.startswith("resume=") for word in words)
    short = ["eval.episodes=2", *fresh, *([] if keeps else ["checkpoint.keep=0"])]
    known = {word.partition("=")[0] for word in words}
    return words + [word for word in short if word.partition("=")[0] not in known]


def run_command(line: str, folder: Path) -> None:
    """Run a command line with short settings.

    Raises:
        SystemExit: It failed; the message is its output.
    """
    settings = {
        word.partition("=")[0]: word.partition("=")[2]
        for word in shlex.split(line)
        if re.match(r"[A-Z_]+=", word)
    }
    words = [word for word in short_words(line) if not re.match(r"[A-Z_]+=", word)]
    words = [sys.executable if word.endswith("python") else word for word in words]
    words = [str(ROOT / word) if word.startswith("examples/") else word for word in words]
    steps = [
        int(path.name) for path in folder.glob("runs/latest/checkpoints/*") if path.name.isdigit()
    ]
    words = [
        re.sub(r"checkpoints/\d+$", f"checkpoints/{min(steps, default=0)}", word) for word in words
    ]
    if "jaxrl_fast.collect" in line:
        shutil.rmtree(folder / "data")
    variables = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        **settings,
    }
    done = subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        raise SystemExit(
            f"{line}\nran as: {shlex.join(words)}\n{done.stdout[-500:]}{done.stderr[-1500:]}"
        )


def prepare(folder: Path) -> None:
    """Make a folder with the input files of the commands of the docs: a run, two names for it, and
    user environments.
    """
    for block in [
        b
        for path in pages()
        for language in ("python", "xml")
        for b in python_blocks(path, language)
    ]:
        named = re.match(r"(?:#|<!--) (\w+\.(?:py|xml))(?: -->)?\n", block.code)
        if named and not (folder / named[1]).exists():
            (folder / named[1]).write_text(f"{block.first}\n{block.code}")
    words = [sys.executable, "-m", "jaxrl_fast.train", *TRAINED]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    collect = [
        sys.executable,
        "-m",
        "jaxrl_fast.collect",
        "runs/latest",
        "out=data/pendulum_sac",
        "episodes=2",
    ]
    for line in (words, collect):
        subprocess.run(line, cwd=folder, env=variables, check=True, capture_output=True)
    for name in ("a", "b"):
        shutil.copytree((folder / "runs" / "latest").resolve(), folder / "runs" / name)


def record() -> dict[str, float]:
    """Return the lines that were run, with the seconds of each."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def main(words: list[str]) -> int:
    """Run the lines that are not in the record, or everything; return the number of failed lines."""
    count = next(
        (int(word.partition("=")[2]) for word in words if word.startswith("--count=")), 10_000
    )
    lines = list(
        dict.fromkeys(
            line for path in pages() for line in command_lines(path) if not reason_not_run(line)
        )
    )
    known = (
        {}
        if "--all" in words
        else {line: seconds for line, seconds in record().items() if line in lines}
    )
    todo, failed = [line for line in lines if line not in known][:count], 0
    with tempfile.TemporaryDirectory() as name:
        if todo:
            prepare(Path(name))
        for line in todo:
            begin = time.perf_counter()
            try:
                # a command may leave another runs/latest behind
                with tempfile.TemporaryDirectory() as copy:
                    run_command(
                        line, Path(shutil.copytree(name, copy, symlinks=True, dirs_exist_ok=True))
                    )
                known[line] = round(time.perf_counter() - begin, 1)
            except (SystemExit, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"failed: {error}", flush=True)
            RECORD.write_text(
                json.dumps(known, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
            )
    print(f"{len(known)} of {len(lines)} lines are in the record, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
