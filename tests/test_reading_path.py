"""The amount of code that one run of PPO on CartPole executes: the code to read to follow it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_packaging import ROOT, code_lines

MOST = {"pure": (20, 1_150), "learn": (34, 1_900), "folder": (45, 2_900)}
"""Files, and lines of code in the executed functions: of one tick of `make_train_step`, of `learn`,
and of `learn` with a run folder.
"""
TRACED = """
import sys, threading, jax, jaxrl_fast as jf
seen, root = set(), sys.argv[2]
def profile(frame, event, arg):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and code.co_name != "<module>":
        seen.add((code.co_filename, code.co_firstlineno))
env = jf.make_env("cartpole", num_envs=4)
threading.setprofile(profile), sys.setprofile(profile)
algo = jf.ppo(rollout_length=8, num_minibatches=2, num_epochs=1)
if sys.argv[1] == "pure":
    init, step = jf.make_train_step(env, algo)
    jax.block_until_ready(jax.jit(step)(init(jax.random.key(0))))
elif sys.argv[1] == "learn":
    jf.learn(env, algo, total_steps=64)
else:
    jf.learn(env, algo, total_steps=64, run_dir="run", on_metrics=lambda row: None)
sys.setprofile(None), threading.setprofile(None)
for file, line in sorted(seen):
    print(file, line, sep=":")
"""


def entered(way: str, folder: Path) -> dict[Path, set[int]]:
    """Return the functions of the package that a run executes, by file, as the numbers of their
    first lines.
    """
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "JAXRL_FAST_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", TRACED, way, str(ROOT / "jaxrl_fast") + os.sep]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    functions: dict[Path, set[int]] = {}
    for place in done.stdout.splitlines():
        if place.startswith(str(ROOT)):
            file, _, line = place.rpartition(":")
            functions.setdefault(Path(file), set()).add(int(line))
    return functions


def lines_in(file: Path, first_lines: set[int]) -> int:
    """Return the lines of code in the functions of a file that begin at ``first_lines``, each
    counted once.
    """
    inside: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            begins = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if begins in first_lines:
                inside.update(range(node.lineno, node.end_lineno + 1))
    return len(inside & code_lines(file))


@pytest.mark.parametrize("way", MOST)
def test_a_run_goes_through_little_code(way: str, tmp_path: Path):
    functions = entered(way, tmp_path)
    names = sorted(str(file.relative_to(ROOT)) for file in functions)
    files, lines = len(functions), sum(lines_in(file, first) for file, first in functions.items())
    assert files <= MOST[way][0] and lines <= MOST[way][1], (files, lines, names)
    assert lines > 1_000  # else it counts nothing
