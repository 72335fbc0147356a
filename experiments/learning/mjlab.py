"""mjlab's cartpole, a simulator in PyTorch and Warp (https://github.com/mujocolab/mjlab), trained
by PPO or SAC.

mjlab pins another MuJoCo and brings 4 GB, so it needs a separate environment:
``python -m venv .venv-mjlab``,
``.venv-mjlab/bin/pip install mjlab==1.6.0 jax flax optax orbax-checkpoint``, then
``PYTHONPATH=. .venv-mjlab/bin/python experiments/learning/mjlab.py sac 300_000``. It writes
``experiments/results/mjlab.json``.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# this file has mjlab's name
sys.path = [
    str(HERE.parent),
    *(path for path in sys.path if path != str(HERE)),
]

RESULT = HERE.parent / "results" / "mjlab.json"
TASK, NUM_ENVS = "Mjlab-Cartpole-Balance", 64


def make(num_envs: int) -> Any:
    """Make the simulator, on a GPU if PyTorch has one."""
    import mjlab.tasks  # noqa: F401 (registers them)
    import torch
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.tasks.registry import load_env_cfg

    cfg = load_env_cfg(TASK)
    cfg.scene.num_envs = num_envs
    return ManagerBasedRlEnv(cfg, device="cuda:0" if torch.cuda.is_available() else "cpu")


def main(algo: str, steps: int) -> None:
    """Train, and write the result."""
    from describe import commit, machine

    import jaxrl_fast as jf

    env = jf.make_env("custom", make=make, num_envs=NUM_ENVS)
    began = time.time()
    algorithm = getattr(jf, algo)(**jf.defaults(algo, env, total_steps=steps))
    curve: list[tuple[int, float]] = []
    result = jf.learn(env, algorithm, total_steps=steps, eval_every=steps // 5, eval_episodes=16)
    curve = [
        (row["env_steps"], row["eval_return_mean"])
        for row in result.history
        if row["kind"] == "eval"
    ]
    row = {
        "task": TASK,
        "algo": algo,
        "curve": curve,
        "seconds": time.time() - began,
        "machine": machine(),
    }
    done = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(done | {algo: row | {"commit": commit()}}, indent=1) + "\n")
    print(row, env.events())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
