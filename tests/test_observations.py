"""Every algorithm with every kind of observation: it solves an environment of that kind, or reports
why it is unsupported.

`test_probes` tests vectors and action masks.
"""

from functools import partial

import jax
import jax.numpy as jnp
import pixel_envs
import pytest

import jaxrl_fast as jf
from jaxrl_fast.core import Box, Discrete, EnvSpec, Timestep
from jaxrl_fast.envs import probes
from jaxrl_fast.envs.env import Env
from jaxrl_fast.numerics.optimizers import Linear

UNIT = Box(-jnp.ones(1), jnp.ones(1))
STEPS = 3
"""Steps of an episode in which a cue must be remembered."""


def paid(action: jax.Array, side: jax.Array, *, discrete: bool) -> jax.Array:
    """Pay 1 for action 1 where the side is +1 and for action 0 where it is -1, else 0; or -(a -
    side / 2)².
    """
    return (
        (action == (side > 0)).astype(jnp.float32)
        if discrete
        else -jnp.square(action[0] - 0.5 * side)
    )


def shown(observe, obs, *, discrete: bool) -> Env:
    """Build a single decision about the side ±1 that ``observe(key, side)`` shows."""

    def reset(key, params):
        side_key, obs_key = jax.random.split(key)
        side = jax.random.rademacher(side_key, (), jnp.float32)
        seen = observe(obs_key, side)
        return (side, seen), seen

    def step(state, action, key):
        side, seen = state
        over = jnp.ones((), bool)
        return state, Timestep(seen, seen, paid(action, side, discrete=discrete), over, ~over)

    return Env(EnvSpec("shown", obs, Discrete(2) if discrete else UNIT, 1), reset, step)


def dictionary(*, discrete: bool) -> Env:
    obs = {
        "cue": jax.ShapeDtypeStruct((1,), jnp.float32),
        "noise": jax.ShapeDtypeStruct((2,), jnp.float32),
    }
    return shown(
        lambda key, side: {"cue": side[None], "noise": jax.random.normal(key, (2,))},
        obs,
        discrete=discrete,
    )


def image_in_dictionary(*, discrete: bool) -> Env:
    """`pixel_envs.motion` with a sign: at +1 the action must name the motion, at -1 the answer is
    action 1; or the best action is a quarter of both.

    Neither image nor sign is sufficient alone.
    """
    inner = pixel_envs.motion(discrete=discrete)
    obs = {"image": inner.spec.obs, "sign": jax.ShapeDtypeStruct((1,), jnp.float32)}

    def reset(key, params):
        sign_key, inner_key = jax.random.split(key)
        sign = jax.random.rademacher(sign_key, (), jnp.float32)
        state, image = inner.reset(inner_key, params)
        return (state, sign), {"image": image, "sign": sign[None]}

    def step(state, action, key):
        (*rest, direction, t), sign = state
        inner_state, timestep = inner.step((*rest, direction, t), action, key)
        asked = jnp.where(sign > 0, direction, 1) if discrete else 0.5 * (direction + sign)
        reward = jnp.where(t == 1, paid(action, asked, discrete=discrete), 0.0)
        seen = {"image": timestep.next_obs, "sign": sign[None]}
        return (inner_state, sign), timestep._replace(obs=seen, next_obs=seen, reward=reward)

    return Env(
        inner.spec._replace(name="image in dictionary", obs=obs), reset, step, shortest_episode=2
    )


def memory(*, discrete: bool) -> Env:
    """The first observation shows the side; the last action must name it."""

    def observe(side, t):
        return jnp.stack([jnp.where(t == 0, side, 0.0), (t == STEPS - 1).astype(jnp.float32)])

    def reset(key, params):
        side, t = jax.random.rademacher(key, (), jnp.float32), jnp.zeros((), jnp.int32)
        return (side, t), observe(side, t)

    def step(state, action, key):
        side, t = state
        last = t == STEPS - 1
        reward = jnp.where(last, paid(action, side, discrete=discrete), 0.0)
        seen = observe(side, t + 1)
        return (side, t + 1), Timestep(seen, seen, reward, last, jnp.zeros((), bool))

    obs = jax.ShapeDtypeStruct((2,), jnp.float32)
    return Env(
        EnvSpec("memory", obs, Discrete(2) if discrete else UNIT, STEPS),
        reset,
        step,
        shortest_episode=STEPS,
    )


ENVS = {
    "dictionary": dictionary,
    "image stack": pixel_envs.motion,
    "dictionary with an image": image_in_dictionary,
    "memory": memory,
}
FALLING = Linear(3e-3, 0.0)


def ppo(**options) -> jf.Algorithm:
    return jf.ppo(
        learning_rate=FALLING,
        discount=0.8,
        rollout_length=18,
        num_minibatches=4,
        entropy_coef=0.001,
        policy_hidden=(32,),
        value_hidden=(32,),
        **options,
    )


def sac(**options) -> jf.Algorithm:
    return jf.sac(
        learning_rate=2e-3,
        temperature_learning_rate=1e-2,
        initial_temperature=0.1,
        discount=0.8,
        tau=0.05,
        target_entropy_per_action=-2.0,
        rollout_length=STEPS,
        updates_per_tick=24,
        batch_size=64,
        buffer_size=6_000,
        warmup_steps=256,
        policy_hidden=(32,),
        critic_hidden=(32,),
        sequence_length=STEPS,
        burn_in=2,
        **options,
    )


def flash_sac(**options) -> jf.Algorithm:
    return jf.flash_sac(
        learning_rate=FALLING,
        temperature_learning_rate=1e-2,
        initial_temperature=0.1,
        discount=0.8,
        tau=0.05,
        target_entropy_per_action=-2.0,
        rollout_length=STEPS,
        updates_per_tick=24,
        batch_size=64,
        buffer_size=6_000,
        warmup_steps=256,
        policy_hidden=(16,),
        critic_hidden=(32,),
        num_atoms=41,
        **options,
    )


def sac_discrete(**options) -> jf.Algorithm:
    return jf.sac_discrete(
        learning_rate=FALLING,
        temperature_learning_rate=1e-2,
        initial_temperature=0.1,
        target_entropy_ratio=0.02,
        discount=0.8,
        tau=0.05,
        rollout_length=STEPS,
        updates_per_tick=24,
        batch_size=64,
        buffer_size=6_000,
        warmup_steps=256,
        policy_hidden=(32,),
        critic_hidden=(32,),
        sequence_length=STEPS,
        burn_in=2,
        **options,
    )


def dqn(**options) -> jf.Algorithm:
    return jf.dqn(
        learning_rate=FALLING,
        discount=0.8,
        epsilon=0.3,
        tau=0.05,
        rollout_length=STEPS,
        updates_per_tick=24,
        batch_size=64,
        buffer_size=6_000,
        warmup_steps=256,
        q_hidden=(32,),
        sequence_length=STEPS,
        burn_in=2,
        **options,
    )


def td3(**options) -> jf.Algorithm:
    return jf.td3(
        learning_rate=FALLING,
        discount=0.8,
        tau=0.05,
        exploration_noise=0.5,
        target_noise=0.05,
        rollout_length=STEPS,
        updates_per_tick=24,
        batch_size=64,
        buffer_size=6_000,
        warmup_steps=256,
        # after uniform ones two of three seeds ended at a bound of the actions
        warmup_actions="policy",
        policy_hidden=(32,),
        critic_hidden=(32,),
        sequence_length=STEPS,
        burn_in=2,
        **options,
    )


def pqn(**options) -> jf.Algorithm:
    return jf.pqn(
        learning_rate=Linear(1e-2, 0.0),
        discount=0.8,
        epsilon=0.3,
        rollout_length=18,
        num_epochs=4,
        num_minibatches=4,
        q_hidden=(32,),
        **options,
    )


def impala(**options) -> jf.Algorithm:
    return jf.impala(
        learning_rate=Linear(1e-2, 0.0),
        discount=0.8,
        trace_lambda=0.9,
        entropy_coef=0.001,
        rollout_length=18,
        num_minibatches=4,
        hidden=(32,),
        optimizer="adam",
        **options,
    )


ALGORITHMS = {
    "ppo": (ppo, True, 16_000),
    "sac": (sac, False, 3_200),
    "dqn": (dqn, True, 4_800),
    "td3": (td3, False, 3_200),
    "flash_sac": (flash_sac, False, 3_200),
    "sac_discrete": (sac_discrete, True, 3_200),
    "pqn": (pqn, True, 16_000),
    "impala": (impala, True, 32_000),
}
"""Factory, whether it is tried with discrete actions, and environment steps."""


def score(single: Env, algorithm: jf.Algorithm, total_steps: int) -> float:
    """Return the mean return of the greedy policy."""
    env = jf.vectorize(single, num_envs=16)
    result = jf.learn(
        env, algorithm, total_steps=total_steps, seed=1, eval_every=total_steps, eval_episodes=128
    )
    return result.summary["eval_return_mean"]


CASES = [
    (name, kind)
    for name in ALGORITHMS
    for kind in ENVS
    if kind == "dictionary" or name == "ppo" or (name == "sac" and kind != "image stack")
]
"""Observations reach networks by one path from a rollout and by one from replay: every algorithm
tries a dictionary, and one of each path the other kinds.
"""


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_an_algorithm_learns_from_every_kind_of_observation(
    name: str, kind: str, request: pytest.FixtureRequest
):
    if "image" in kind:  # convolutions are worth optimized compilation; vectors are not
        request.getfixturevalue("optimized")
    make, discrete, total_steps = ALGORITHMS[name]
    algorithm = make(recurrent_size=16) if kind == "memory" else make()
    single = ENVS[kind](discrete=discrete)
    assert score(single, algorithm, total_steps) == pytest.approx(float(discrete), abs=0.03)


def test_a_memory_is_not_for_batch_norms_over_steps_and_their_successors():
    with pytest.raises(TypeError, match="recurrent_size"):
        flash_sac(recurrent_size=16)


@pytest.mark.parametrize(
    ("name", "instead"), [("sac", "sac_discrete"), ("td3", "dqn"), ("flash_sac", "dqn")]
)
def test_actions_that_a_mask_forbids_are_discrete_and_not_for_these(name: str, instead: str):
    message = rf"algo={name} does not work with the discrete actions .*: write algo={instead}"
    with pytest.raises(ValueError, match=message):
        score(probes.mask(), ALGORITHMS[name][0](), 16)


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_without_a_memory_the_side_is_not_known(name: str):
    make, discrete, total_steps = ALGORITHMS[name]
    best_guess = 0.5 if discrete else -0.25
    assert score(memory(discrete=discrete), make(), total_steps // 2) < best_guess + 0.15


ONE_KEY = dict.fromkeys(
    ("ppo", "sac", "sac_discrete", "td3", "flash_sac"), ("policy_keys", "critic_keys")
)
ONE_KEY |= {"dqn": ("q_keys",), "pqn": ("q_keys",), "impala": ("keys",)}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_key_that_is_not_there_is_refused(name: str):
    make, discrete, _ = ALGORITHMS[name]
    for option in ONE_KEY[name]:
        with pytest.raises(ValueError, match="no key 'speed': write some of cue, noise"):
            score(dictionary(discrete=discrete), partial(make, **{option: ("speed",)})(), 16)
