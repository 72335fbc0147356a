"""Runs the pairs of ``docs/coming_from.md``: the same training in another library and here, one
after the other.

``python experiments/coming_from/run.py [sb3 rejax brax purejaxrl cleanrl stoix mava]``. Other
libraries run in the environments that ``make bench`` and ``make bench-host`` set up. For CleanRL,
PureJaxRL, Stoix and Mava, give a copy of the repository, ``STOIX=<folder>``, and a Python with its
dependencies, ``STOIX_PYTHON=<python>``. Results are written to
``experiments/results/coming_from.json``; seconds count everything, from the first import to the
last line.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
sys.path.insert(0, str(FOLDER.parent))
RESULTS = FOLDER.parent / "results" / "coming_from.json"
LIMIT_S = 1_800
RETURN = r"(?:return|episodic_return=)[^\d\n=-]*\[?(-?[\d,]+\.?\d*)"


class Pair(NamedTuple):
    """One program in both libraries: ``theirs`` and ``ours``, the words after a Python; ``python``:
    theirs, relative to the repository; ``path``: the variable that names the folder of their
    script, in a ``subfolder`` of it; ``score``: the pattern of a return in their output.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    python: str
    path: str = ""
    subfolder: str = ""
    score: str = RETURN


def programs(name: str, python: str, path: str = "", subfolder: str = "") -> Pair:
    """Build a pair from files of this folder."""
    files = (f"experiments/coming_from/{side}_{name}.py" for side in ("theirs", "ours"))
    return Pair(*((file,) for file in files), python, path, subfolder)


PPO = "--learning-rate 1e-3 --num-envs 8 --num-steps 128 --num-minibatches 4 --update-epochs 8"
SAME = "algo.learning_rate=linear:1e-3:0 num_envs=8 algo.rollout_length=128 algo.num_minibatches=4 algo.num_epochs=8"
STOIX = (
    "env=gymnax/cartpole arch.total_num_envs=32 arch.total_timesteps=196608 arch.num_evaluation=4 "
    "arch.num_eval_episodes=32 arch.evaluation_greedy=True arch.absolute_metric=False system.rollout_length=64 "
    "system.epochs=8 system.num_minibatches=8 system.actor_lr=1e-3 system.critic_lr=1e-3"
)
LIKE_STOIX = (
    "env=cartpole algo=ppo tuned=false num_envs=32 total_steps=196608 eval.every=49152 algo.rollout_length=64 "
    "algo.num_epochs=8 algo.num_minibatches=8 algo.learning_rate=linear:1e-3:0 algo.policy_hidden=[256,256] "
    "algo.value_hidden=[256,256] algo.activation=relu"
)
MAVA = (
    "env=lbf env/scenario=8x8-2p-2f-coop arch.num_envs=128 system.update_batch_size=1 system.total_timesteps=983040 "
    "arch.num_evaluation=4 arch.num_eval_episodes=32 arch.evaluation_greedy=True arch.absolute_metric=False "
    "system.rollout_length=32 system.ppo_epochs=4 system.num_minibatches=4 system.actor_lr=1e-3 system.critic_lr=1e-3 "
    "system.decay_learning_rates=True"
)
LIKE_MAVA = (
    "env=lbf algo=ippo tuned=false num_envs=128 total_steps=983040 eval.every=245760 algo.rollout_length=32 "
    "algo.num_epochs=4 algo.num_minibatches=4 algo.learning_rate=linear:1e-3:0 algo.policy_hidden=[128,128] "
    "algo.value_hidden=[128,128] algo.activation=relu algo.entropy_coef=0.01 algo.discount=0.99"
)
EVALUATED = r"EVALUATOR - .*?Episode return mean: (-?[\d.]+)"
PAIRS = {
    "sb3": programs("sb3", ".venv-peers-host"),
    "rejax": programs("rejax", ".venv-peers"),
    "purejaxrl": programs("purejaxrl", ".venv-peers", "PUREJAXRL", "purejaxrl"),
    "brax": programs("brax", ".venv-peers"),
    "cleanrl": Pair(
        ("cleanrl/ppo.py", "--env-id", "CartPole-v1", "--total-timesteps", "100000", *PPO.split()),
        (
            "-m",
            "jaxrl_fast.train",
            "env=gymnasium",
            "env.id=CartPole-v1",
            "algo=ppo",
            "total_steps=100000",
            *SAME.split(),
        ),
        ".venv-peers-host",
        "CLEANRL",
    ),
    "stoix": Pair(
        ("stoix/systems/ppo/anakin/ff_ppo.py", *STOIX.split()),
        ("-m", "jaxrl_fast.train", *LIKE_STOIX.split()),
        ".venv-peers",
        "STOIX",
        score=EVALUATED,
    ),
    "mava": Pair(
        ("mava/systems/ppo/anakin/ff_ippo.py", *MAVA.split()),
        ("-m", "jaxrl_fast.train", *LIKE_MAVA.split()),
        ".venv-peers",
        "MAVA",
        score=EVALUATED,
    ),
}


def run(command: list[str], folder: Path, score: str = RETURN, **variables: str) -> dict[str, Any]:
    """Run a program; return the last return that it printed, and its seconds."""
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    found = re.findall(score, done.stdout + (done.stderr if score == EVALUATED else ""))
    return {"return": float(found[-1].replace(",", "")) if found else None, "seconds": seconds}


def measure(pair: Pair) -> dict[str, Any]:
    """Run both programs, each with an empty folder of compiled programs."""
    from describe import machine

    theirs = Path(os.environ.get(pair.path, "")) if pair.path else ROOT
    folder = ROOT if pair.theirs[0].startswith("experiments") else theirs
    python = os.environ.get(f"{pair.path}_PYTHON") or str(ROOT / pair.python / "bin" / "python")
    more = os.pathsep.join([str(theirs / pair.subfolder), os.environ.get("STAND_INS", "")])
    return {
        "theirs": run([python, *pair.theirs], folder, pair.score, PYTHONPATH=more),
        "ours": run(
            [sys.executable, *pair.ours], ROOT, PYTHONPATH=str(ROOT), JAXRL_FAST_CACHE="off"
        ),
        "machine": machine(),
    }


def main(names: list[str]) -> None:
    """Measure the named pairs, all by default."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names or PAIRS:
        results[name] = measure(PAIRS[name])
        print(name, results[name], flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
