"""The rows of the learning table: what is trained, over how many seeds, and what it must reach."""

from typing import NamedTuple


class Row(NamedTuple):
    """One row.

    - ``words``: of the train command, but for seeds and folder.
    - ``must_reach``: the greedy return, averaged over the seeds; None where another row decides.
    - ``num_seeds``: from seed 0 on, in one program; with ``apart`` each in a process of its own, one after another.
    - ``rival``: another row and a factor: the return must be at least so many times the rival's (after the same steps).
    - ``unsolved``: the return must stay *below* ``must_reach``: a control that lacks what the task needs.
    """

    words: tuple[str, ...]
    must_reach: float | None = None
    num_seeds: int = 5
    apart: bool = False
    rival: tuple[str, float] | None = None
    unsolved: bool = False


def _row(words: str, must_reach: float | None = None, **more: object) -> Row:
    return Row(tuple(words.split()), must_reach, **more)  # type: ignore[arg-type]


HIDDEN = "env=custom env.make=experiments.environments.pendulum_without_velocity"
"""Pendulum that shows no velocity."""
LARGE = "num_envs=1024 total_steps=2_000_000 algo.updates_per_tick=16 algo.batch_size=8192"
"""Many environments, large batches, few updates (FastTD3, arXiv 2505.22642)."""
ROWS = {
    "cartpole_ppo": _row("env=cartpole algo=ppo", 475.0),
    "cartpole_dqn": _row("env=cartpole algo=dqn", 475.0),
    "cartpole_pqn": _row("env=cartpole algo=pqn", 475.0),
    "cartpole_a2c": _row("env=cartpole algo=impala", 475.0),
    "cartpole_impala": _row("env=cartpole algo=impala overlap=sampling", 475.0),
    "cartpole_sac_discrete": _row("env=cartpole algo=sac_discrete", 475.0),
    "pendulum_sac": _row("env=pendulum algo=sac", -170.0),
    "pendulum_td3": _row("env=pendulum algo=td3", -170.0),
    "pendulum_ppo": _row("env=pendulum algo=ppo", -170.0),
    "memory_chain_ppo": _row("env=memory_chain algo=ppo algo.recurrent_size=64", 0.9),
    "memory_chain_ppo_without": _row("env=memory_chain algo=ppo", 0.9, unsolved=True),
    "memory_chain_pqn": _row("env=memory_chain algo=pqn algo.recurrent_size=64", 0.9),
    "memory_chain_pqn_without": _row("env=memory_chain algo=pqn", 0.9, unsolved=True),
    "hidden_velocity_sac": _row(f"{HIDDEN} algo=sac algo.recurrent_size=64", -250.0, num_seeds=3),
    "hidden_velocity_sac_without": _row(f"{HIDDEN} algo=sac", -250.0, num_seeds=3, unsolved=True),
    "inverted_pendulum_ppo": _row("env=inverted_pendulum algo=ppo", 950.0, num_seeds=3),
    "inverted_pendulum_sac": _row("env=inverted_pendulum algo=sac", 950.0, num_seeds=3),
    "reacher_ppo": _row("env=reacher algo=ppo", -6.0, num_seeds=3),
    "reacher_sac": _row("env=reacher algo=sac", -6.0, num_seeds=3),
    "breakout_ppo": _row("env=breakout algo=ppo total_steps=10_000_000", 28.0, num_seeds=3, apart=True),
    "breakout_pqn": _row("env=breakout algo=pqn total_steps=10_000_000", 28.0, num_seeds=3, apart=True),
    "breakout_dqn": _row("env=breakout algo=dqn", 10.0, num_seeds=1),
    "space_invaders_ppo": _row("env=space_invaders algo=ppo total_steps=10_000_000", 131.0, num_seeds=3, apart=True),
    "space_invaders_pqn": _row("env=space_invaders algo=pqn total_steps=10_000_000", 131.0, num_seeds=3, apart=True),
    "halfcheetah_ppo": _row("env=halfcheetah algo=ppo total_steps=819_200", 1000.0, num_seeds=3),
    "halfcheetah_sac": _row("env=halfcheetah algo=sac total_steps=150_400", 2000.0, num_seeds=3),
    "halfcheetah_td3": _row("env=halfcheetah algo=td3 total_steps=150_400", num_seeds=3, apart=True),
    "halfcheetah_flash_sac": _row("env=halfcheetah algo=flash_sac total_steps=150_400", num_seeds=3, apart=True),
    "halfcheetah_sac_large": _row(f"env=halfcheetah algo=sac {LARGE}", 1500.0, num_seeds=1),
    "halfcheetah_td3_large": _row(f"env=halfcheetah algo=td3 {LARGE}", 1500.0, num_seeds=1),
}
