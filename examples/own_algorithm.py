"""Write an algorithm in one file: ``python examples/own_algorithm.py``. Advantage-weighted
regression (Peng et al., arXiv 1910.00177): the policy imitates its own actions, weighted by
``exp(advantage / temperature)``. This version uses the newest rollout; the paper also uses older
ones. Critic and targets are PPO's: only the policy's loss is new.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import jaxrl_fast as jf
from jaxrl_fast.algorithms.ppo import PpoHyper, critic_part, targets
from jaxrl_fast.learning.acting import policy_of, sample_action
from jaxrl_fast.learning.algorithm import GradientResult, OnPolicy, Part, gradients_of, over_rollout
from jaxrl_fast.networks.network import make_network
from jaxrl_fast.numerics import distributions, losses, optimizers


@dataclass(frozen=True, kw_only=True, eq=False)
class Awr(PpoHyper):
    """Advantage-weighted regression, for discrete and continuous actions."""

    learning_rate: jf.Rate0 = 1e-3
    temperature: jf.Rate0 = 0.5
    """Advantage by which the weight of an action grows e-fold."""
    max_weight: jf.Rate0 = 20.0
    """Largest weight of an action."""
    rollout_length: int = 64
    """Steps of each environment in a tick."""
    num_epochs: int = 8
    """Passes over a rollout."""
    num_minibatches: int = 8
    """Minibatches in an epoch."""

    def build(self, spec: jf.EnvSpec, num_envs: int) -> jf.Agent:
        size = distributions.num_outputs(spec.action)
        policy = make_network(spec.obs, size, hidden=(64, 64), out_scale=0.01)
        value = make_network(spec.obs, 1, hidden=(64, 64))

        def gradients(learned, peers, batch, key, hyper) -> GradientResult:
            advantage = jax.nn.standardize(batch.targets["advantage"], axis=None)
            weight = jnp.minimum(jnp.exp(advantage / hyper.temperature), hyper.max_weight)

            def loss_fn(params: dict) -> tuple[jax.Array, dict[str, jax.Array]]:
                outputs, _ = over_rollout(policy, params, batch, "actor")
                distribution = policy_of(spec.action, outputs, batch.obs)
                log_prob = distributions.log_prob(distribution, batch.extras["raw_action"])
                loss = -jnp.mean(weight * log_prob)
                return loss, {"policy_loss": loss, "weight_mean": weight.mean()}

            grads, metrics = gradients_of(loss_fn, learned.params["policy"])
            return GradientResult({"policy": grads}, metrics)

        return jf.Agent(
            parts={
                "critic": critic_part(value, losses.squared_error, "adam"),
                "actor": Part(
                    {"policy": policy}, gradients, {"policy": optimizers.make_optimizer("adam")}
                ),
            },
            data=OnPolicy(
                self.num_epochs,
                self.num_minibatches,
                critic="critic",
                network="value",
                targets=targets,
            ),
            acts={"actor": "policy"},
            decide=sample_action(spec.action, remember=True),
            rollout_length=self.rollout_length,
        )


def main(total_steps: int = 200_000, num_envs: int = 32) -> None:
    env = jf.make_env("cartpole", num_envs=num_envs)
    result = jf.learn(env, Awr(), total_steps=total_steps, num_seeds=3)
    for row in (row for row in result.history if row["kind"] == "eval"):
        returns = [round(r) for r in row["eval_return_seeds"]]
        print(f"{row['env_steps']:7,} steps, greedy return of each seed:", returns)


if __name__ == "__main__":
    main()
