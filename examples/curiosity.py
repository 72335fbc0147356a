"""Random network distillation (Burda et al., arXiv 1810.12894) with PPO in one file:
``python -m
jaxrl_fast.train env=custom env.make=examples.curiosity.deep_sea algo=custom
algo.make=examples.curiosity.ppo``.

A network learns to predict the output of another one that is random and fixed. Its error is large
where it has not been yet: that is the bonus. A second value head learns the bonus's returns, which
go on where episodes end.
"""

from collections import namedtuple

import jax
import jax.numpy as jnp

import jaxrl_fast as jf
from jaxrl_fast.algorithms.ppo import part_of
from jaxrl_fast.core import Transition
from jaxrl_fast.learning.algorithm import (
    GradientResult,
    OnPolicyBatch,
    Part,
    Transform,
    Values,
    gradients_of,
)
from jaxrl_fast.networks.network import make_network
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.normalization import init_stats, normalize, update_stats
from jaxrl_fast.numerics.optimizers import make_optimizer

FEATURES, CLIP, UPDATE_EVERY = 32, 5.0, 320


def ppo(
    bonus_weight: float = 3.0, bonus_discount: float = 0.99, bonus_hidden: int = 128, **rates: float
):
    """PPO with a bonus for new observations.

    Args:
        bonus_weight: Weight of the bonus's advantages; 0 for plain PPO.
        bonus_discount: Discount of the bonus's returns.
        bonus_hidden: Size of the hidden layer of both networks.
    """
    plain = jf.ppo(**{"learning_rate": 1e-3, **rates})
    Hyper = namedtuple("Hyper", (*plain.hyper._fields, "bonus_weight", "bonus_discount"))

    def build(spec: jf.EnvSpec, num_envs: int) -> jf.Agent:
        agent = plain.build(spec, num_envs)
        two = make_network(spec.obs, 2, hidden=(64, 64), activation="tanh")
        critic = part_of("critic", "value", two, value_loss, make_optimizer("adam:1e-5"))
        names = ("predictor", "random")
        networks = {
            name: make_network(spec.obs, FEATURES, hidden=(bonus_hidden,)) for name in names
        }
        data = agent.data._replace(value=lambda outputs, obs, action: outputs, targets=targets)
        parts = {**agent.parts, "critic": critic, "novelty": novelty_part(networks)}
        return agent._replace(parts=parts, data=data, transform=bonus(spec, networks, num_envs))

    return plain._replace(
        name="ppo_rnd", hyper=Hyper(*plain.hyper, bonus_weight, bonus_discount), build=build
    )


def bonus(spec: jf.EnvSpec, networks: dict, num_envs: int) -> Transform:
    """Add the prediction's error at ``next_obs``, divided by the running deviation of its
    discounted sums, and what the predictor learns from."""

    def init() -> tuple:
        return (
            init_stats(spec.obs),
            init_stats(jax.ShapeDtypeStruct((), jnp.float32)),
            jnp.zeros(num_envs),
        )

    def apply(
        rollout: Transition, learned: dict, state: tuple, hyper: tuple, key: jax.Array
    ) -> tuple:
        seen, returns, total = state
        seen = update_stats(seen, rollout.next_obs, 2)
        new = jax.tree.map(lambda x: jnp.clip(x, -CLIP, CLIP), normalize(seen, rollout.next_obs))
        none = jnp.zeros(rollout.reward.shape, bool)
        params = learned["novelty"].params
        found, wanted = (
            networks[name].apply(params[name], (), new, none)[0] for name in ("predictor", "random")
        )
        error = jnp.mean((found - wanted) ** 2, axis=-1)
        total, totals = jax.lax.scan(
            lambda sum, x: (sum * hyper.bonus_discount + x,) * 2, total, error
        )
        returns = update_stats(returns, totals, 2)
        extras = {"bonus": error / jnp.sqrt(returns.variance + 1e-8), "new": new, "wanted": wanted}
        decision = {**rollout.extras.decision, **extras}
        return rollout._replace(extras=rollout.extras._replace(decision=decision)), (
            seen,
            returns,
            total,
        )

    return Transform(init, apply, reads=("novelty",))


def novelty_part(networks: dict) -> Part:
    """Train the predictor; the random network has no gradient, so that it never changes."""

    def gradients(
        learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: tuple
    ) -> GradientResult:
        def loss_fn(params: dict) -> tuple[jax.Array, dict[str, jax.Array]]:
            found = networks["predictor"].apply(params, (), batch.extras["new"], batch.first)[0]
            loss = jnp.mean((found - batch.extras["wanted"]) ** 2)
            return loss, {"novelty_loss": loss, "bonus_mean": jnp.mean(batch.extras["bonus"])}

        grads, metrics = gradients_of(loss_fn, learned.params["predictor"])
        nothing = jax.tree.map(jnp.zeros_like, learned.params["random"])
        return GradientResult({"predictor": grads, "random": nothing}, metrics)

    return Part(
        networks, gradients, {name: make_optimizer("adam") for name in networks}, every=UPDATE_EVERY
    )


def targets(values: Values, rollout: Transition, hyper: tuple) -> dict[str, jax.Array]:
    """Return PPO's targets of both values ``[T, E, 2]``, and the advantage of their weighted sum
    ``[T, E]``.
    """
    gae = jax.vmap(losses.gae, in_axes=(1, 1, 1, 1, 1, None), out_axes=1)
    done = rollout.terminated | rollout.truncated
    now, following, rewards = (
        values.now,
        values.next,
        (rollout.reward, rollout.extras.decision["bonus"]),
    )
    discounts = (
        hyper.discount * (1.0 - rollout.terminated),
        jnp.full_like(rollout.reward, hyper.bonus_discount),
    )
    ends = done, jnp.zeros_like(done)
    both = [
        gae(rewards[i], discounts[i], now[..., i], following[..., i], ends[i], hyper.gae_lambda)
        for i in (0, 1)
    ]
    advantage = both[0] + hyper.bonus_weight * both[1]
    return {"advantage": advantage, "value_target": jnp.stack(both, axis=-1) + now}


def value_loss(
    outputs: jax.Array, batch: OnPolicyBatch, key: jax.Array, hyper: tuple
) -> tuple[jax.Array, dict]:
    """Return half the squared error of both values."""
    loss = 0.5 * jnp.mean((outputs - batch.targets["value_target"]) ** 2)
    return loss, {"value_loss": loss}


def deep_sea(size: int = 20) -> jf.Env:
    """Dive ``size`` steps; only ``size`` times right, each at a cost, gives 1 (Osband et al., arXiv
    1908.03568).
    """

    def seen(state: jax.Array) -> jax.Array:
        return jax.nn.one_hot(state, size).reshape(-1)

    def reset(key: jax.Array, params: tuple) -> tuple[jax.Array, jax.Array]:
        return (state := jnp.zeros(2, jnp.int32)), seen(state)

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, jf.Timestep]:
        row, column = state
        found = (row == size - 1) & (column == size - 1) & (action == 1)
        reward = found - 0.01 / size * action
        state = jnp.stack([row + 1, jnp.clip(column + 2 * action - 1, 0, size - 1)])
        return state, jf.Timestep(
            seen(state), seen(state), reward, state[0] == size, jnp.zeros((), bool)
        )

    obs = jax.ShapeDtypeStruct((2 * size,), jnp.float32)
    return jf.Env(jf.EnvSpec(f"deep_sea{size}", obs, jf.Discrete(2)), reset, step)
