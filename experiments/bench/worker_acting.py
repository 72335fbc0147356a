"""PPO in host environments: ours with workers that act and with central inference,
Stable-Baselines3 and SBX, in turn.

``BENCH_PEERS=<python with stable_baselines3 and sbx> python experiments/bench/worker_acting.py [CartPole-v1 ...]``;
``share HalfCheetah-v5 16`` compares our rollouts, actions included, with processes that only step
the environments with the same actions, since some are easier to simulate than others;
``share HalfCheetah-v5 16 given`` the same with random actions, drawn beforehand on both sides;
``Pong`` compares DQN on ALE's Pong; ``updates`` takes it apart: seconds of an update, and of 32
steps without updates, from runs with 8 updates and with 1.

PPO trains with 16 environments x 2048 steps, 10 epochs, minibatches of 64 and networks of 64 x 64
units, DQN with 8 environments x 4 steps, then 8 updates of 32, and the network of Mnih et al.
(2015). A rate is of a rollout and its updates, for Pong of `PONG_STEPS` steps with theirs, after
two that warm up. Every contender is a new process. Results are added to
experiments/results/bench/worker_acting.json; run it on an otherwise idle machine.
"""

import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
RESULT = HERE.parent / "results" / "bench" / "worker_acting.json"
PAGE = RESULT.with_suffix(".md")
SHARES = RESULT.with_name("worker_acting_shares.json")
UPDATES = RESULT.with_name("worker_acting_updates.json")
SHARE_STEPS = 500
PEERS = os.environ.get(
    "BENCH_PEERS", str(HERE.parent.parent / ".venv-peers-host" / "bin" / "python")
)
NUM_ENVS, LENGTH, EPOCHS, MINIBATCH = 16, 2048, 10, 64
STEPS = NUM_ENVS * LENGTH
WARM, REPEATS = 2, 3
PONG, PONG_STEPS, PONG_ENVS = "Pong", 1_024, 8
SIDES = {
    "ours, workers act": "worker",
    "ours, central": "host",
    "SBX": "sbx",
    "Stable-Baselines3": "sb3",
}


def ours(bridge: str, id: str, num_updates: str = "8") -> float:
    """Return the seconds of a rollout and its updates."""
    import jaxrl_fast as jf

    jf.setup(cpu_devices=1)
    steps = steps_of(id)
    if id == PONG:
        env = jf.make_env("atari", id=id, num_envs=PONG_ENVS, sticky=False, pool={"bridge": bridge})
        sizes = dict(
            rollout_length=4, updates_per_tick=int(num_updates), batch_size=32, buffer_size=10_000
        )
        algorithm = jf.dqn(
            learning_rate=1e-4,
            cnn="nature",
            q_hidden=(512,),
            double=False,
            warmup_steps=512,
            **sizes,
        )
    else:
        env = jf.make_env("gymnasium", id=id, num_envs=NUM_ENVS, pool={"bridge": bridge})
        sizes = dict(rollout_length=LENGTH, num_epochs=EPOCHS, num_minibatches=STEPS // MINIBATCH)
        algorithm = jf.ppo(policy_hidden=(64, 64), value_hidden=(64, 64), **sizes)
    ends: dict[str, list[float]] = {"train": [], "eval": []}

    def note(row: dict[str, Any]) -> None:
        ends.setdefault(row["kind"], []).append(time.perf_counter())

    total = (WARM + 1) * steps
    how: dict[str, Any] = dict(eval_every=steps, eval_episodes=1, eval_beside=False)
    jf.learn(env, algorithm, total_steps=total, on_metrics=note, **how)
    env.close()
    return ends["train"][-1] - ends["eval"][-2]


def peer(library: str, id: str, num_updates: str = "8") -> float:
    """Return the same of a rival."""
    from importlib import import_module

    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack

    module, steps = import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[library]), steps_of(id)
    if id == PONG:
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        env = VecFrameStack(
            make_atari_env("PongNoFrameskip-v4", n_envs=PONG_ENVS, seed=0), n_stack=4
        )
        sizes = dict(
            train_freq=4, gradient_steps=int(num_updates), batch_size=32, buffer_size=10_000
        )
        model = module.DQN(
            "CnnPolicy", env, learning_rate=1e-4, learning_starts=512, seed=0, verbose=0, **sizes
        )
    else:
        sizes = dict(n_steps=LENGTH, n_epochs=EPOCHS, batch_size=MINIBATCH)
        model = module.PPO(
            "MlpPolicy", make_vec_env(id, n_envs=NUM_ENVS, seed=0), seed=0, verbose=0, **sizes
        )
    model.learn(steps)
    began = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return time.perf_counter() - began


def steps_of(id: str) -> int:
    """Return the environment steps of a measurement."""
    return PONG_STEPS if id == PONG else STEPS


def rollouts_s(id: str, num_envs: int, path: str, given: str = "") -> float:
    """Return the seconds of `SHARE_STEPS` steps of each environment in our second rollout, without
    updates; write the actions of both, ``[2 T, E, ...]``.
    """
    import numpy as np
    import ray_rollouts

    import jaxrl_fast as jf

    jf.setup(cpu_devices=1)
    env = jf.make_env(
        "gymnasium", id=id, num_envs=num_envs, pool={"bridge": "worker", "workers": 2}
    )
    rollout = ray_rollouts.sampling(env, SHARE_STEPS, bool(given))
    first = rollout(0).action
    began = time.perf_counter()
    second = rollout(1).action
    seconds = time.perf_counter() - began
    env.close()
    np.save(path, np.concatenate([first, second]).clip(-1, 1))
    return seconds


def alone_s(id: str, num_envs: int, path: str, given: str = "") -> float:
    """Return the seconds of as many steps with these actions in two processes that do nothing else."""
    import multiprocessing

    import numpy as np

    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(2), context.Queue()
    halves = np.split(np.load(path), 2, axis=1)
    players = [context.Process(target=play, args=(id, half, ready, results)) for half in halves]
    for player in players:
        player.start()
    seconds = max(results.get() for _ in players)
    for player in players:
        player.join()
    return seconds


def play(id: str, actions: Any, ready: Any, results: Any) -> None:
    """Step some environments with their actions ``[2 T, E, ...]``; report the seconds of the second
    half.
    """
    import gymnasium

    envs = [gymnasium.make(id, disable_env_checker=True) for _ in actions[0]]
    for i, env in enumerate(envs):
        env.reset(seed=i)
    for half in (actions[:SHARE_STEPS], actions[SHARE_STEPS:]):
        ready.wait()
        began = time.perf_counter()
        for now in half:
            for env, action in zip(envs, now, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
    results.put(time.perf_counter() - began)


def share(id: str, num_envs: str, *given: str) -> None:
    """Compare rollouts with the environments alone, in turn, and store the seconds."""
    from describe import machine
    from run import once

    row: dict[str, list[float]] = {"rollouts": [], "alone": []}
    with tempfile.TemporaryDirectory() as place:
        for _, (name, seconds) in itertools.product(range(5), row.items()):
            path = str(Path(place) / "actions.npy")
            seconds.append(
                once(sys.executable, "worker_acting.py", name, id, num_envs, path, *given)[
                    "seconds"
                ]
            )
    document = json.loads(SHARES.read_text()) if SHARES.exists() else {}
    ratios = sorted(a / b for a, b in zip(row["alone"], row["rollouts"], strict=True))
    title = " ".join((id, num_envs, *given))
    document[title] = {"seconds": row, "share": ratios[2], "range": ratios[:: len(ratios) - 1]}
    SHARES.write_text(json.dumps(document | {"machine": machine()}, indent=1) + "\n")
    print(title, f"{ratios[2]:.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]", flush=True)


def updates() -> None:
    """Take DQN's seconds on Pong apart, in five turns, and store the seconds of an update and of 32
    steps.
    """
    from describe import machine, versions
    from run import once

    row: dict[str, dict[str, list[float]]] = {}
    for _, (name, how) in itertools.product(range(5), SIDES.items()):
        if how in ("host", "sb3"):
            python = sys.executable if how == "host" else PEERS
            many, one = (
                once(python, "worker_acting.py", how, PONG, n)["seconds"] for n in ("8", "1")
            )
            ticks = PONG_STEPS / (4 * PONG_ENVS)
            found = row.setdefault(name, {"update_s": [], "steps_s": []})
            found["update_s"].append((many - one) / ticks / 7)
            found["steps_s"].append(one / ticks - found["update_s"][-1])
            print(
                name,
                {key: f"{1e3 * values[-1]:.1f} ms" for key, values in found.items()},
                flush=True,
            )
    UPDATES.write_text(
        json.dumps({**row, "machine": machine(), "versions": versions()}, indent=1) + "\n"
    )


def measure(id: str) -> None:
    """Run all sides in turn, and store the seconds."""
    from describe import commit, machine, versions
    from run import once

    document = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    runs: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(REPEATS):
        for name, how in SIDES.items():
            python = sys.executable if name.startswith("ours") else PEERS
            runs[name].append(once(python, "worker_acting.py", how, id)["seconds"])
            print(id, name, f"{steps_of(id) / runs[name][-1]:.0f} steps/s", flush=True)
    document[id] = {
        "seconds": runs,
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n")
    write_page(document)


def write_page(document: dict[str, Any]) -> None:
    """Write the table: steps/s, and ratios to the rivals within a turn."""
    import statistics

    lines = [
        "| environment | side | steps/s | by Stable-Baselines3 | by SBX |",
        "|---|---|---|---|---|",
    ]
    for id, row in document.items():
        for name, seconds in row["seconds"].items():
            rates = [steps_of(id) / s for s in seconds]
            cells = [
                id,
                name,
                f"{statistics.median(rates):,.0f} [{min(rates):,.0f}, {max(rates):,.0f}]",
            ]
            for rival in ("Stable-Baselines3", "SBX"):
                ratios = [
                    theirs / mine
                    for mine, theirs in zip(seconds, row["seconds"][rival], strict=True)
                ]
                cells.append(
                    f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
                )
            lines.append(f"| {' | '.join(cells)} |")
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["CartPole-v1", "HalfCheetah-v5"]
    if what in ("worker", "host", "sbx", "sb3"):
        from worker import say

        say({"seconds": ours(what, *rest) if what in ("worker", "host") else peer(what, *rest)})
    elif what in ("rollouts", "alone"):
        from worker import say

        say(
            {
                "seconds": (rollouts_s if what == "rollouts" else alone_s)(
                    rest[0], int(rest[1]), *rest[2:]
                )
            }
        )
    elif what == "share":
        share(*rest)
    elif what == "updates":
        updates()
    else:
        for id in (what, *rest):
            measure(id)
