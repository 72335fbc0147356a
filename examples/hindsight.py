"""Hindsight replay (Andrychowicz et al., arXiv 1707.01495) in one file, for DQN and SAC:
``python -m
jaxrl_fast.train env=custom env.make=examples.hindsight.bits algo=custom
algo.make=examples.hindsight.dqn``.

Rewards are rare where a goal must be met exactly. Every episode reaches something: when a batch is
drawn, most of its steps get a goal that a later step of the same episode reached. `bits` and `arm`
are environments with goals.
"""

import jax
import jax.numpy as jnp

import jaxrl_fast as jf
from jaxrl_fast.core import Transition

NEAR = 0.05


def with_hindsight(algorithm: jf.Algorithm, share: float) -> jf.Algorithm:
    """Let an off-policy algorithm learn with goals that were reached, in ``share`` of the drawn
    windows.
    """

    def build(spec: jf.EnvSpec, num_envs: int) -> jf.Agent:
        if spec.goal_reward is None:
            raise ValueError(f"{spec.name} has no goals: set EnvSpec.goal_reward")
        reward_of = jax.vmap(spec.goal_reward, (0, None))

        def relabel(steps: Transition, later: Transition, key: jax.Array) -> Transition:
            reached = later.next_obs["achieved_goal"]
            goal = jnp.where(
                jax.random.bernoulli(key, share), reached, steps.obs["desired_goal"][0]
            )
            goals = jnp.broadcast_to(goal, steps.obs["desired_goal"].shape)
            reward = reward_of(steps.next_obs["achieved_goal"], goal)
            seen, following = (
                {**obs, "desired_goal": goals} for obs in (steps.obs, steps.next_obs)
            )
            return steps._replace(
                obs=seen, next_obs=following, reward=reward, terminated=reward >= 0.0
            )

        agent = algorithm.build(spec, num_envs)
        return agent._replace(data=agent.data._replace(relabel=relabel if share else None))

    return algorithm._replace(name=f"{algorithm.name}_her", build=build)


def dqn(
    share: float = 0.8,
    learning_rate: float = 1e-3,
    buffer_size: int = 200_000,
    warmup_steps: int = 1000,
):
    """DQN with hindsight.

    Args:
        share: Share of the windows with a goal that was reached; 0 for none.
        learning_rate: Learning rate.
        buffer_size: Stored steps.
        warmup_steps: Stored steps before the first update.
    """
    rates = dict(learning_rate=learning_rate, discount=0.98, epsilon=jf.Linear(1.0, 0.05))
    sizes = dict(buffer_size=buffer_size, warmup_steps=warmup_steps, q_hidden=(256,))
    return with_hindsight(jf.dqn(**sizes, **rates, normalize_observations=False), share)


def sac(
    share: float = 0.8,
    learning_rate: float = 1e-3,
    buffer_size: int = 200_000,
    warmup_steps: int = 1000,
):
    """SAC with hindsight; arguments as of `dqn`."""
    sizes = dict(buffer_size=buffer_size, warmup_steps=warmup_steps, batch_size=256)
    networks = dict(policy_hidden=(64, 64), critic_hidden=(64, 64))
    return with_hindsight(
        jf.sac(learning_rate=learning_rate, discount=0.98, **sizes, **networks), share
    )


def bits(size: int = 15) -> jf.Env:
    """Flip bits until they equal a goal; a step costs 1, the last one nothing."""

    def seen(state: dict) -> dict:
        return {"achieved_goal": state["bits"], "desired_goal": state["goal"]}

    def reset(key: jax.Array, params: tuple) -> tuple[dict, dict]:
        now, goal = jax.random.bernoulli(key, 0.5, (2, size)).astype(jnp.float32)
        return (state := {"bits": now, "goal": goal}), seen(state)

    def step(state: dict, action: jax.Array, key: jax.Array) -> tuple[dict, jf.Timestep]:
        state = {**state, "bits": jnp.abs(state["bits"] - jax.nn.one_hot(action, size))}
        reward = reward_of(state["bits"], state["goal"])
        return state, jf.Timestep(
            seen(state), seen(state), reward, reward >= 0.0, jnp.zeros((), bool)
        )

    def reward_of(achieved: jax.Array, desired: jax.Array) -> jax.Array:
        return jnp.where(jnp.all(achieved == desired), 0.0, -1.0)

    shape = jax.ShapeDtypeStruct((size,), jnp.float32)
    obs = {"achieved_goal": shape, "desired_goal": shape}
    spec = jf.EnvSpec(
        f"bits{size}", obs, jf.Discrete(size), max_episode_steps=size, goal_reward=reward_of
    )
    return jf.Env(spec, reset, step, success=lambda state: jnp.all(state["bits"] == state["goal"]))


def arm(num_joints: int = 3) -> jf.Env:
    """Bring the tip of an arm to a goal; joints turn by up to 0.3 rad a step, and the arm must stay
    for success.

    Its observation has the entries of Gymnasium-Robotics' environments with goals.
    """
    length, turn = 1.0 / num_joints, 0.3

    def tip(angles: jax.Array) -> jax.Array:
        total = jnp.cumsum(angles)
        return length * jnp.stack([jnp.cos(total).sum(), jnp.sin(total).sum()])

    def seen(state: dict) -> dict:
        angles = state["angles"]
        own = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])
        return {"observation": own, "achieved_goal": tip(angles), "desired_goal": state["goal"]}

    def reset(key: jax.Array, params: tuple) -> tuple[dict, dict]:
        angles, goal = jax.random.uniform(key, (2, num_joints), jnp.float32, -jnp.pi, jnp.pi)
        return (state := {"angles": angles, "goal": tip(goal)}), seen(state)

    def step(state: dict, action: jax.Array, key: jax.Array) -> tuple[dict, jf.Timestep]:
        state = {**state, "angles": state["angles"] + turn * action}
        reward = reward_of(tip(state["angles"]), state["goal"])
        return state, jf.Timestep(
            seen(state), seen(state), reward, reward >= 0.0, jnp.zeros((), bool)
        )

    def reward_of(achieved: jax.Array, desired: jax.Array) -> jax.Array:
        return jnp.where(jnp.sum((achieved - desired) ** 2) < NEAR**2, 0.0, -1.0)

    def of(size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size,), jnp.float32)

    ones = jnp.ones(num_joints)
    obs = {"observation": of(2 * num_joints), "achieved_goal": of(2), "desired_goal": of(2)}
    spec = jf.EnvSpec("arm", obs, jf.Box(-ones, ones), max_episode_steps=50, goal_reward=reward_of)
    return jf.Env(
        spec,
        reset,
        step,
        success=lambda state: reward_of(tip(state["angles"]), state["goal"]) >= 0.0,
    )
