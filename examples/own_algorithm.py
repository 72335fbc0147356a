"""Write an algorithm in one file: ``python examples/own_algorithm.py``. Advantage-weighted
regression (Peng et al., arXiv 1910.00177): the policy imitates its own actions, weighted by
``exp(advantage / temperature)``. This version uses the newest rollout; the paper also uses older
ones. Critic and targets are PPO's: only the policy's loss is new.
"""

from collections import namedtuple

import jax
import jax.numpy as jnp

import jaxrl_fast as jf
from jaxrl_fast.algorithms.ppo import critic_part, targets
from jaxrl_fast.learning.acting import policy_of, sample_action
from jaxrl_fast.learning.algorithm import (
    GradientResult,
    OnPolicy,
    OnPolicyBatch,
    Part,
    gradients_of,
    over_rollout,
)
from jaxrl_fast.networks.network import make_network
from jaxrl_fast.numerics import distributions, losses, optimizers

RATES = dict(learning_rate=1e-3, critic_learning_rate_ratio=1.0, discount=0.99, gae_lambda=0.95)
RATES |= dict(temperature=0.5, max_weight=20.0, max_grad_norm=0.5, reward_scale=1.0)
AwrHyper = namedtuple("AwrHyper", RATES, defaults=RATES.values())  # numbers or schedules


def awr(
    rollout_length: int = 64, num_epochs: int = 8, num_minibatches: int = 8, **rates: float
) -> jf.Algorithm:
    """Advantage-weighted regression, for discrete and continuous actions."""

    def build(spec: jf.EnvSpec, num_envs: int) -> jf.Agent:
        policy = make_network(
            spec.obs, distributions.num_outputs(spec.action), hidden=(64, 64), out_scale=0.01
        )

        def gradients(
            own, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: AwrHyper
        ) -> GradientResult:
            advantage = jax.nn.standardize(batch.targets["advantage"], axis=None)
            weight = jnp.minimum(jnp.exp(advantage / hyper.temperature), hyper.max_weight)

            def loss_fn(params: dict) -> tuple[jax.Array, dict[str, jax.Array]]:
                dist = policy_of(
                    spec.action, over_rollout(policy, params, batch, "actor")[0], batch.obs
                )
                loss = -jnp.mean(weight * distributions.log_prob(dist, batch.extras["raw_action"]))
                return loss, {"policy_loss": loss, "weight_mean": weight.mean()}

            grads, metrics = gradients_of(loss_fn, own.params["policy"])
            return GradientResult({"policy": grads}, metrics)

        critic = critic_part(
            make_network(spec.obs, 1, hidden=(64, 64)), losses.squared_error, "adam"
        )
        actor = Part({"policy": policy}, gradients, {"policy": optimizers.make_optimizer("adam")})
        data = OnPolicy(
            num_epochs, num_minibatches, critic="critic", network="value", targets=targets
        )
        acts, decide = {"actor": "policy"}, sample_action(spec.action, remember=True)
        return jf.Agent({"critic": critic, "actor": actor}, data, acts, decide, rollout_length)

    return jf.Algorithm("awr", AwrHyper(**rates), {}, build)


def main(total_steps: int = 200_000, num_envs: int = 32) -> None:
    env = jf.make_env("cartpole", num_envs=num_envs)
    result = jf.learn(env, awr(), total_steps=total_steps, num_seeds=3)
    for row in (row for row in result.history if row["kind"] == "eval"):
        print(
            f"{row['env_steps']:7,} steps, greedy return of each seed:",
            [round(r) for r in row["eval_return_seeds"]],
        )


if __name__ == "__main__":
    main()
