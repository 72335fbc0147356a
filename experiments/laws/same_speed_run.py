"""One row of `same_speed`, with the code that PYTHONPATH names:
``python -P same_speed_run.py WORD ...``.

The code of two commits runs it, so it uses only their public API, and the functions that read a
command's words.
"""

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import jaxrl_fast as jf

PACKAGE = Path(jf.__file__).parent


def load(*names: str) -> ModuleType:
    """Import the first of these modules of ``jaxrl_fast`` that the tree has, the newest layout
    first.

    By file: an editable install adds its modules to a tree that lacks them.
    """
    name = next(name for name in names if (PACKAGE / f"{name.replace('.', '/')}.py").exists())
    return import_module(f"jaxrl_fast.{name}")


def main(words: list[str]) -> None:
    """Train with these words of a command; after each chunk print its seconds, and wait for a line."""
    config = load("commands.run_config", "settings.config", "config")
    run_config = load("commands.run_config", "settings.run_settings", "config")
    run = config.compose([*words, "total_steps=1_000_000_000"])
    jf.setup(cpu_devices=1, cache=True)
    env, began = run_config.make_envs(run), [0.0]

    def after_chunk(row: dict[str, Any]) -> None:
        if row["kind"] != "train":
            return
        print(
            json.dumps({"seconds": time.perf_counter() - began[0], "env_steps": row["env_steps"]}),
            flush=True,
        )
        if not sys.stdin.readline():
            os._exit(0)
        began[0] = time.perf_counter()

    jf.learn(
        env,
        run_config.make_algorithm(run),
        total_steps=run.total_steps,
        eval_every=run.total_steps,
        on_metrics=after_chunk,
        tell=lambda line: None,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
