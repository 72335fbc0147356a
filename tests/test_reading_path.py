"""The amount of code that one run of PPO on CartPole executes: the code to read to follow it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_packaging import ROOT

STATEMENTS = {"pure": 1090, "learn": 1900, "folder": 2730}
"""Statements of the executed functions, docstrings not counted: of one tick of `make_train_step`,
of `learn`, and of `learn` with a run folder; in a new environment's cache. Change a number where a
run needs more.
"""
PLAY = 0.1
"""Share by which a run may execute more statements."""
OTHER_ROOMS = (
    "envs/pool/",
    "jaxrl_fast/commands/",
    "jaxrl_fast/hosts/",
    "jaxrl_fast/learning/averaging.py",
    "jaxrl_fast/learning/frame_stack.py",
    "jaxrl_fast/learning/transforms.py",
    "jaxrl_fast/offline/",
    "jaxrl_fast/policy/teacher.py",
    "jaxrl_fast/population/",
    "jaxrl_fast/replay/",
    "jaxrl_fast/suites/",
    "jaxrl_fast/targets/",
    "jaxrl_fast/tuning/",
)
"""Rooms that no run of PPO on a compiled environment enters."""
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


def statements_in(file: Path, first_lines: set[int]) -> int:
    """Return the statements of the functions of a file that begin at ``first_lines``, each counted
    once, without docstrings.
    """
    inside: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            begins = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if begins in first_lines:
                inside |= {
                    child.lineno
                    for child in ast.walk(node)
                    if isinstance(child, ast.stmt)
                    and not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant))
                }
    return len(inside)


@pytest.mark.parametrize("way", STATEMENTS)
def test_a_run_goes_through_little_code_and_enters_no_other_room(way: str, tmp_path: Path):
    functions = entered(way, tmp_path)
    names = sorted(str(file.resolve().relative_to(ROOT)) for file in functions)
    assert not [name for name in names if name.startswith(OTHER_ROOMS)]
    assert way == "folder" or not [name for name in names if "/views/" in name]
    count = sum(statements_in(file, first) for file, first in functions.items())
    assert STATEMENTS[way] / 2 < count <= STATEMENTS[way] * (1 + PLAY), (count, len(names), names)
