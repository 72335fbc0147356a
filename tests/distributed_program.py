"""One process of a distributed run, started by a user:
``distributed_program.py ADDRESS PROCESS_ID FOLDER JOB ...``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxrl_fast as jf
from jaxrl_fast import VecEnv
from jaxrl_fast.learning.algorithm import Algorithm
from jaxrl_fast.runtime import hosts
from jaxrl_fast.training.checkpoints import Checkpoints


def jobs() -> dict[str, tuple[VecEnv, Algorithm, dict[str, Any]]]:
    """Training jobs by name: a few ticks on four environments. The commands also train PPO."""
    from tiny import line

    sac = jf.sac(
        batch_size=8,
        buffer_size=64,
        warmup_steps=8,
        updates_per_tick=2,
        critic_hidden=(8,),
        policy_hidden=(8,),
        normalize_observations=True,
    )
    ppo = jf.ppo(
        rollout_length=4, num_epochs=1, num_minibatches=2, policy_hidden=(8,), value_hidden=(8,)
    )
    learner = {"total_steps": 60, "placement": "sampler_learner", "overlap": "sampling"}
    divided = {"total_steps": 60, "placement": "sharded_sampling", "overlap": "all", "devices": 4}
    server = {"total_steps": 64, "placement": "parameter_server", "learners": 2}
    return {
        "sac": (line(discrete=False), sac, {"total_steps": 60}),
        "sac_learner_apart": (line(discrete=False), sac, learner),
        "ppo_with_server": (line(discrete=True), ppo, server),
        # Uses both devices of both processes: two all-reduces at once would deadlock.
        "sac_sampling_divided": (line(discrete=False), sac, divided),
    }


def train(name: str, folder: Path, **arguments: Any) -> jf.Result:
    """Train one of the jobs, on two devices by default, and leave its files in ``folder``."""
    env, algorithm, told = jobs()[name]
    return jf.learn(
        env,
        algorithm,
        eval_episodes=4,
        run_dir=folder / name,
        tell=lambda line: None,
        checkpoints=Checkpoints(every=told["total_steps"] // 2),
        **{"placement": "data_parallel", "devices": 2, **told, **arguments},
    )


def population(folder: Path | None, **options: Any) -> list[Any]:
    """Train members that are divided over both processes; return their lineage, scores and status."""
    env, algorithm, _ = jobs()["ppo_with_server"]
    rates = {"learning_rate": "log:1e-4:1e-1"}
    told = dict(
        placement="data_parallel", devices=2, finalists=1, final_episodes=4, tell=lambda line: None
    )
    result = jf.train_population(
        env, algorithm, rates=rates, total_steps=160, run_dir=folder, **told, **options
    )
    trials = [[t.number, t.status, t.scores, t.parent] for t in result.book.trials.values()]
    return [trials, [list(row) for row in result.book.lineage]]


POPULATIONS: dict[str, dict[str, Any]] = {
    "pbt": dict(size=4, every=32),
    "halving": dict(trials=4, at_once=2, halving=2, score="evaluation"),
    "turns": dict(size=4, at_once=2, every=32),
}


def refused(**arguments: Any) -> str:
    """Collect the error messages for arguments that several processes cannot share."""
    try:
        train("sac", Path("nowhere"), **arguments)
    except ValueError as error:
        return str(error)
    return "not refused"


def spread_and_read() -> bool:
    """Check that numbers and keys, sharded over both processes by seed, are read back whole."""
    mesh = Mesh(np.array(hosts.devices(2)), ("seed",))
    keys, numbers = (
        jax.random.split(jax.random.key(0), 2),
        np.arange(8.0, dtype=np.float32).reshape(2, 4),
    )
    placed = hosts.put((keys, numbers), NamedSharding(mesh, PartitionSpec("seed")))
    read = hosts.to_host((jax.random.key_data(placed[0]), placed[1]))
    assert not placed[1].is_fully_addressable
    return bool((read[0] == jax.random.key_data(keys)).all() and (read[1] == numbers).all())


def main(address: str, process_id: int, folder: Path, *names: str) -> None:
    """Run the jobs ``names``, and the cases that must be refused."""
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_disable_most_optimizations", True)
    jax.distributed.initialize(address, 2, process_id, cluster_detection_method="deactivate")
    print("spread and read:", spread_and_read())
    print(refused(seed=process_id))
    print(refused(placement="fused"))
    print(refused(debug=True))
    for name in [name for name in names if name in POPULATIONS]:
        found = population(folder / name, **POPULATIONS[name])
        (folder / f"{name}-{process_id}.json").write_text(json.dumps(found))
    for name in [name for name in names if name not in POPULATIONS]:
        result = train(name, folder, on_metrics=lambda row: print(row["kind"]))
        print(name, result.summary["eval_return_mean"], len(result.history), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
