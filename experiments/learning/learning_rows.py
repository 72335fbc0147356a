"""The rows of the learning table: the command, the number of seeds, and the goal."""

from typing import NamedTuple


class Row(NamedTuple):
    """One row.

    - ``words``: of the train command, without seeds and folder.
    - ``must_reach``: the greedy return, averaged over the seeds; None where another row decides.
    - ``num_seeds``: from seed 0 on, in one program; with ``apart`` each in a separate process, one
      after another.
    - ``rival``: another row and a factor: the return must be at least this factor times the rival's
      (after the same steps).
    - ``unsolved``: the return must stay *below* ``must_reach``: a control without a feature that
      the task requires.
    - ``success``: the share of successful episodes, such as won battles, counts in place of
      returns.
    """

    words: tuple[str, ...]
    must_reach: float | None = None
    num_seeds: int = 5
    apart: bool = False
    rival: tuple[str, float] | None = None
    unsolved: bool = False
    success: bool = False


class Peer(NamedTuple):
    """A row of another library: the environment that `make bench` or `make bench-host` makes for it
    ("": the current Python), and a worker of ``experiments/bench`` with its words.

    ``success``: as in `Row`.
    """

    environment: str
    words: tuple[str, ...]
    success: bool = False


def _row(words: str, must_reach: float | None = None, **more: object) -> Row:
    return Row(tuple(words.split()), must_reach, **more)  # type: ignore[arg-type]


HIDDEN = (
    "env=custom env.make=experiments.learning.environments.pendulum_without_velocity algo=sac num_envs=4 "
    "total_steps=30_000 algo.updates_per_tick=2 algo.learning_rate=linear:1e-3:0 algo.temperature_learning_rate=1e-3 "
    "algo.buffer_size=30_000 algo.warmup_steps=1000 algo.warmup_actions=policy algo.policy_hidden=[64] "
    "algo.critic_hidden=[128]"
)
"""Pendulum without the velocity; these settings were selected here."""
MEMORY = "algo.recurrent_size=64 algo.batch_size=32"
"""Batches of 32 sequences of 8 steps; without memory they have the same number of steps."""
TO_THE_END = "algo.learning_rate=linear:1e-3:1e-4"
"""A learning rate that decays until the last step."""
SMALL_FAST_TD3 = (
    "num_envs=16 algo.batch_size=512 algo.policy_hidden=[64,64] algo.critic_hidden=[128,128]"
)
"""Its defaults, larger batches and networks, are for a GPU."""
SMALL_REPPO = (
    "num_envs=16 algo.policy_hidden=[64,64] algo.critic_hidden=[128,128] algo.learning_rate=linear:1e-3:0 "
    "algo.discount=0.95"
)
"""Selected here; with its defaults, networks of 64 units were at -332 to -704 after 500,000 steps.
"""
SHORT = "total_steps=4_000_000"
"""For MinAtar, since 10 million steps take too long."""
BREAKOUT, INVADERS = 28.0, 131.0
"""PPO of gymnax-blines after 10 million steps."""
UPRIGHT = 950.0
"""Gymnasium's ``reward_threshold`` of InvertedPendulum: 1 for each step, of 1,000 at most, in both
implementations.
"""
REACHED = -3.75
"""Gymnasium's ``reward_threshold`` of Reacher.

Arm, motors, reward and 50 steps are equal here; brax's targets are a bit closer to the middle.
"""
REACHER = "env=reacher env.episode_length=50 eval.episodes=4_096 eval.beside=false"
"""Returns depend on the positions of the targets: the 95 % interval of the mean is ±0.4 for 32
episodes and ±0.04 for 4,096.
"""
SMALL_PONG = "env=atari env.id=Pong +env.screen_size=64"
"""Not 84 x 84 pixels, which take too long: about half the computation."""
ON_ONE_CORE = "eval.episodes=10 eval.beside=false pool.workers=0 pool.num_groups=1"
BRAX_STEPS, BRAX_EVALUATIONS = "150_000", "13"
"""Evaluations of brax's SAC: the first is before any training."""
ITERATION = "algo.rollout_length=128 algo.num_epochs=4 algo.num_minibatches=4"
SPREAD_IPPO_STEPS, SPREAD_MAPPO_STEPS, SMAX_MAPPO_STEPS, SMAX_PQN_STEPS = (
    "1_000_000",
    "200_000",
    "300_000",
    "600_000",
)
"""Not the 10 million of JaxMARL, nor 3 million on SMAX, which take too long; equal for ours and the
bare loop.
"""
SPREAD_IPPO = f"env=spread algo=ippo num_envs=16 {ITERATION} algo.learning_rate=linear:2.5e-4:0"
RECURRENT = (
    "algo.recurrent_size=128 algo.policy_hidden=[128] algo.value_hidden=[128] algo.activation=relu"
)
SPREAD_MAPPO = (
    f"env=spread algo=mappo num_envs=16 {ITERATION} {RECURRENT} algo.learning_rate=linear:2e-3:0 algo.discount=0.9 "
    "algo.normalize_rewards=true"
)
"""Discount and scale differ from the bare loop, for which the 26 steps of an episode are all; here
the end is a time limit, after which rewards continue.
"""
SMAX_MAPPO = (
    f"env=smax_3m algo=mappo num_envs=128 {ITERATION} {RECURRENT} algo.learning_rate=linear:2e-3:0 "
    "algo.entropy_coef=0 algo.max_grad_norm=0.25"
)
"""The settings and sizes of JaxMARL's baselines, as in `bench/bare_setup`; a memory without a layer
before it.
"""
SMAX_PQN = (
    "env=smax_3m algo=pqn_vdn num_envs=128 algo.rollout_length=32 algo.num_epochs=4 algo.num_minibatches=16 "
    "algo.q_hidden=[256,256] algo.learning_rate=linear:5e-4:0 algo.epsilon=linear:1:0.01:0.1 algo.q_lambda=0.85 "
    "algo.max_grad_norm=1 algo.reward_scale=10"
)
"""purejaxql's settings, but smaller networks without a memory and shorter rollouts."""
LARGE_STEPS, LARGE_FLASH_SAC_STEPS = "600_000", "300_000"
"""Half of FlashSAC's updates, which already take 25 minutes of one core."""
BRAX = [(env, algo) for env in ("halfcheetah", "walker2d", "ant") for algo in ("sac", "flash_sac")]
BRAX += [("halfcheetah", "td3")]
GYMNASIUM = [
    (env, algo) for env in ("HalfCheetah", "Walker2d", "Ant") for algo in ("sac", "flash_sac")
]
GYMNASIUM += [("HalfCheetah", "td3"), ("Humanoid", "sac"), ("Humanoid", "flash_sac")]


def _brax(env: str, algo: str) -> Row:
    """Above brax's SAC after as many steps; with few evaluations, which have more steps than
    training.
    """
    rival = (f"{env}_brax_training", 1.0)
    if (env, algo) == ("halfcheetah", "sac"):  # the first command of a new user
        return _row("env=halfcheetah algo=sac", num_seeds=5, apart=True, rival=rival)
    budget = f"total_steps={BRAX_STEPS} eval.every=30_000 eval.beside=false"
    return _row(f"env={env} algo={algo} {budget}", num_seeds=3, apart=True, rival=rival)


def _gymnasium(env: str, algo: str) -> Row:
    """SAC not below SBX's; the recipe for few interactions 1.3 times our SAC, on Humanoid 5 times."""
    own = f"gymnasium_{env.lower()}_sac"
    factor = 5.0 if env == "Humanoid" else 1.3
    rival = (f"gymnasium_{env.lower()}_sbx", 1.0) if algo == "sac" else (own, factor)
    none = algo == "td3" or (env, algo) == ("Humanoid", "sac")
    words = f"env=gymnasium env.id={env}-v5 algo={algo} total_steps=100_000 eval.every=10_000 {ON_ONE_CORE}"
    count = 1 if env == "Humanoid" else 3
    return _row(words, num_seeds=count, apart=algo == "flash_sac", rival=None if none else rival)


def _agents(words: str, steps: str, **more: object) -> Row:
    """For several agents, three seeds one after another; ten evaluations."""
    budget = (
        f"total_steps={steps} eval.every={int(steps) // 10} eval.episodes=128 eval.beside=false"
    )
    return _row(f"{words} {budget}", num_seeds=3, apart=True, **more)


def _large(algo: str, steps: str) -> str:
    """Many environments, large batches, few updates (FastTD3, arXiv 2505.22642)."""
    return f"env=halfcheetah algo={algo} num_envs=1024 total_steps={steps} algo.updates_per_tick=16 algo.batch_size=8192"


def _bare(name: str, steps: str) -> Peer:
    success = name.startswith("smax")
    return Peer("", ("bare_agents.py", "solve", name, steps, "3", "10"), success=success)


PEERS = {
    "spread_ippo_bare": _bare("spread_ippo", SPREAD_IPPO_STEPS),
    "spread_mappo_bare": _bare("spread_mappo", SPREAD_MAPPO_STEPS),
    "smax_3m_mappo_bare": _bare("smax_3m_mappo", SMAX_MAPPO_STEPS),
    **{
        f"{env}_brax_training": Peer(
            ".venv-peers", ("peer_brax.py", "solve", env, BRAX_STEPS, "0", BRAX_EVALUATIONS)
        )
        for env in ("halfcheetah", "walker2d", "ant")
    },
    **{
        f"gymnasium_{env.lower()}_sbx": Peer(
            ".venv-peers-host",
            ("peer_sb3.py", "sbx", "solve", "0", "100_000", "10_000", f"{env}-v5", "1_000"),
        )
        for env in ("HalfCheetah", "Walker2d", "Ant")
    },
}
ROWS = {
    "cartpole_ppo": _row("env=cartpole algo=ppo", 475.0),
    "cartpole_dqn": _row("env=cartpole algo=dqn", 475.0),
    "cartpole_pqn": _row("env=cartpole algo=pqn", 475.0),
    "cartpole_a2c": _row("env=cartpole algo=impala", 475.0),
    "cartpole_impala": _row("env=cartpole algo=impala overlap=sampling", 475.0),
    "cartpole_sac_discrete": _row("env=cartpole algo=sac_discrete", 475.0),
    "pendulum_sac": _row("env=pendulum algo=sac", -170.0),
    "pendulum_td3": _row("env=pendulum algo=td3", -170.0),
    "pendulum_fast_td3": _row(
        f"env=pendulum algo=fast_td3 {SMALL_FAST_TD3} total_steps=50_000", -170.0, num_seeds=3
    ),
    "pendulum_reppo": _row(f"env=pendulum algo=reppo {SMALL_REPPO} total_steps=300_000", -170.0),
    "pendulum_ppo": _row("env=pendulum algo=ppo", -170.0),
    "memory_chain_ppo": _row("env=memory_chain algo=ppo algo.recurrent_size=64", 0.9),
    "memory_chain_ppo_without": _row("env=memory_chain algo=ppo", 0.9, unsolved=True),
    "memory_chain_pqn": _row("env=memory_chain algo=pqn algo.recurrent_size=64", 0.9),
    "memory_chain_pqn_without": _row("env=memory_chain algo=pqn", 0.9, unsolved=True),
    "hidden_velocity_sac": _row(f"{HIDDEN} {MEMORY}", -250.0, num_seeds=3),
    "hidden_velocity_sac_without": _row(
        f"{HIDDEN} algo.batch_size=256", -250.0, num_seeds=3, unsolved=True
    ),
    "inverted_pendulum_ppo": _row("env=inverted_pendulum algo=ppo", UPRIGHT, num_seeds=3),
    "inverted_pendulum_sac": _row("env=inverted_pendulum algo=sac", UPRIGHT, num_seeds=3),
    "reacher_ppo": _row(f"{REACHER} algo=ppo", REACHED, num_seeds=3),
    "reacher_sac": _row(f"{REACHER} algo=sac", REACHED, num_seeds=3),
    "breakout_ppo": _row(
        "env=breakout algo=ppo total_steps=10_000_000", BREAKOUT, num_seeds=3, apart=True
    ),
    "breakout_pqn": _row(f"env=breakout algo=pqn {SHORT}", BREAKOUT, num_seeds=3, apart=True),
    "breakout_dqn": _row("env=breakout algo=dqn", BREAKOUT, num_seeds=3, apart=True),
    "space_invaders_ppo": _row(
        f"env=space_invaders algo=ppo {SHORT}", INVADERS, num_seeds=3, apart=True
    ),
    "space_invaders_pqn": _row(
        f"env=space_invaders algo=pqn {SHORT}", INVADERS, num_seeds=3, apart=True
    ),
    "halfcheetah_ppo": _row("env=halfcheetah algo=ppo total_steps=819_200", 1000.0, num_seeds=3),
    **{f"{env}_{algo}": _brax(env, algo) for env, algo in BRAX},
    **{f"gymnasium_{env.lower()}_{algo}": _gymnasium(env, algo) for env, algo in GYMNASIUM},
    "pong_pqn": _row(f"{SMALL_PONG} algo=pqn eval.every=200_000 {ON_ONE_CORE}", -10.0, num_seeds=1),
    "spread_ippo": _agents(SPREAD_IPPO, SPREAD_IPPO_STEPS, rival=("spread_ippo_bare", 1.0)),
    "spread_mappo": _agents(SPREAD_MAPPO, SPREAD_MAPPO_STEPS, rival=("spread_mappo_bare", 1.0)),
    "smax_3m_mappo": _agents(
        SMAX_MAPPO, SMAX_MAPPO_STEPS, rival=("smax_3m_mappo_bare", 1.0), success=True
    ),
    "smax_3m_pqn_vdn": _agents(SMAX_PQN, SMAX_PQN_STEPS, must_reach=0.8, success=True),
    "halfcheetah_sac_large": _row(
        f"{_large('sac', LARGE_STEPS)} {TO_THE_END}", 1500.0, num_seeds=1
    ),
    "lbf_ippo": _row("env=lbf algo=ippo", 0.8, num_seeds=3, apart=True),
    "rware_ippo": _row(
        "env=rware algo=ippo num_envs=128 total_steps=1_000_000 algo.rollout_length=64", num_seeds=1
    ),
    "halfcheetah_flash_sac_large": _row(
        _large("flash_sac", LARGE_FLASH_SAC_STEPS), 1500.0, num_seeds=1
    ),
    "halfcheetah_td3_large": _row(_large("td3", LARGE_STEPS), 1500.0, num_seeds=1),
}
