"""Worker: all agents of traffic junctions act, each with a separate network, with jaxrl_fast.

``python junction_ours.py host|workers|compiled|alone <agents> <junctions>x<steps> ...`` prints, for
each number of junctions, the seconds of this many environment steps. ``host``: ma-gym's environment
in our pool, through the interface for parallel environments; ``workers``: the same in whole
rollouts, for which its processes draw the actions; ``compiled``: our compiled junction, in one
program; ``alone``: ma-gym's environment with the actions of ``host``, computed beforehand, so no
network runs.
"""

import random
import sys
import time
from functools import partial
from itertools import islice
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import junction
import numpy as np
from worker import say

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind, sampler
from jaxrl_fast.core import OUT, EnvSpec
from jaxrl_fast.envs import traffic_junction
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import Learned
from jaxrl_fast.learning.run_graph import init_params, init_statistics
from jaxrl_fast.policy.policies import Policy, PolicyParams, make_policy, params_template
from jaxrl_fast.training.episodes import act_by_step, steps_on_host

WARM = 20
ROLLOUT = 1_280
"""Environment steps of a rollout of ``workers``."""


class Junction:
    """ma-gym's junction, with the interface of PettingZoo's parallel environments; every car acts
    until all are done.
    """

    def __init__(self, num_agents: int) -> None:
        self.world = junction.world(num_agents)
        self.possible_agents = list(range(num_agents))
        self.agents: list[int] = []
        self.steps = 0
        self.seen = gymnasium.spaces.Box(0.0, 1.0, (junction.num_seen(num_agents),), np.float32)

    def observation_space(self, agent: int) -> gymnasium.spaces.Box:
        return self.seen

    def action_space(self, agent: int) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(junction.ACTIONS)

    def reset(self, seed: Any = None, options: Any = None) -> tuple[dict, dict]:
        self.agents, self.steps = self.possible_agents, 0
        return self._all(self.world.reset()), {}

    def step(self, actions: dict[int, int]) -> tuple[dict, dict, dict, dict, dict]:
        obs, rewards, done, _ = self.world.step(list(actions.values()))
        self.steps += 1
        cut = self.steps >= junction.MAX_STEPS
        if all(done):
            self.agents = []
        over = not self.agents
        flags = [
            dict.fromkeys(self.possible_agents, flag) for flag in (over and not cut, over and cut)
        ]
        return self._all(obs), dict(enumerate(rewards)), *flags, {}

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def _all(self, obs: list[list[float]]) -> dict[int, np.ndarray]:
        # the same list for every car
        return dict.fromkeys(self.possible_agents, np.array(obs[0], np.float32))


def agent_of(spec: EnvSpec, num_envs: int, **sizes: int) -> BoundAgent:
    """Build separate networks for all agents."""
    hidden: dict[str, Any] = dict(
        policy_hidden=(junction.HIDDEN,), value_hidden=(junction.HIDDEN,), activation="relu"
    )
    return bind(
        jf.ippo(**hidden, **sizes, share_parameters=False, normalize_observations=False),
        spec,
        num_envs,
    )


def policy_of(spec: EnvSpec, num_agents: int) -> Policy:
    """Build them in the form of a trained policy, with the weights that all programs have."""
    agent = agent_of(spec, 8)
    template = params_template(spec, agent.parts, agent.acting, False)
    known = {weights.shape: weights for weights in junction.networks(num_agents)}
    params = PolicyParams(
        jax.tree.map(lambda leaf: jnp.asarray(known[leaf.shape]), template.parts), None
    )
    return make_policy(spec, agent.acting, params, {})


def host(num_agents: int, steps: int, count: int) -> dict[str, Any]:
    """Measure in the pool, which measures and selects its number of workers."""
    env = jf.make_env(
        "custom", make=partial(Junction, num_agents), num_envs=count, pool={"num_groups": 1}
    )
    policy = policy_of(env.spec, num_agents)
    act = act_by_step(policy)
    others = env.another(count)  # ma-gym's waiting cars still show the route of their last episode
    for _ in islice(steps_on_host(act, policy.initial_carry, others, policy.params, 0), WARM):
        pass
    random.seed(0)
    played = steps_on_host(act, policy.initial_carry, env, policy.params, 0)
    begin, total = time.perf_counter(), 0.0
    for step in islice(played, steps // count):
        total += float(step.step.reward.sum())
    found = {"seconds": time.perf_counter() - begin, "rewards": total, "told": env.events()}
    env.close()
    return found


def workers(num_agents: int, steps: int, count: int) -> dict[str, Any]:
    """Measure rollouts of processes that act."""
    pool = {"num_groups": 1, "bridge": "worker"}
    env = jf.make_env("custom", make=partial(Junction, num_agents), num_envs=count, pool=pool)
    agent = agent_of(env.spec, count, rollout_length=ROLLOUT // count, num_minibatches=1)
    sample = sampler(env, agent)
    known = {weights.shape: jnp.asarray(weights) for weights in junction.networks(num_agents)}
    first = {part: init_params(agent.parts[part], jax.random.key(0)) for part in agent.acting.parts}
    own = jax.tree.map(lambda leaf: known.get(leaf.shape, leaf), first)
    inputs: dict[str, Any] = {part: Learned(params) for part, params in own.items()}
    inputs["statistics"] = init_statistics(env, agent)
    hyper = jax.tree.map(jnp.float32, agent.hyper)
    state, begin, total = sample.init(jax.random.key(0)), 0.0, 0.0
    for tick in range(-1, steps // ROLLOUT):
        begin = time.perf_counter() if tick == 0 else begin
        state, outputs, _ = sample.step(state, inputs, hyper, jax.random.key(tick + 1))
        total += float(outputs["rollout"].reward.sum())
    found = {"seconds": time.perf_counter() - begin, "rewards": total, "told": env.events()}
    env.close()
    return found


def compiled(num_agents: int, steps: int, count: int) -> dict[str, Any]:
    """Measure in one program, with the observations of all cars concatenated."""
    base = traffic_junction.make(f"TrafficJunction{num_agents}-v0")

    def all_see(obs: Any) -> Any:
        view = jnp.broadcast_to(
            obs["view"].reshape(-1), (num_agents, junction.num_seen(num_agents))
        )
        return {"view": view, OUT: obs[OUT]}

    shapes = {
        "view": jax.ShapeDtypeStruct((num_agents, junction.num_seen(num_agents)), jnp.float32)
    }
    spec = base.spec._replace(obs=base.spec.obs | shapes)

    def reset(key: Any, params: Any) -> Any:
        state, obs = base.reset(key, params)
        return state, all_see(obs)

    def step(state: Any, action: Any, key: Any) -> Any:
        state, timestep = base.step(state, action, key)
        return state, timestep._replace(
            obs=all_see(timestep.obs), next_obs=all_see(timestep.next_obs)
        )

    env = jf.vectorize(base._replace(spec=spec, reset=reset, step=step), num_envs=count)
    policy = policy_of(spec, num_agents)

    @partial(jax.jit, static_argnums=2)
    def run(state: Any, key: Any, length: int) -> tuple[Any, jax.Array]:
        bank = env.draw_fresh(key, length)

        def once(carry: tuple, t: jax.Array) -> tuple:
            (state, timestep), carry = carry[0], carry[1]
            action, carry = policy.act(policy.params, carry, timestep, jnp.zeros(count, bool), key)
            state, after = env.step(state, action, jax.random.fold_in(key, t), bank, t)
            return ((state, after.obs), carry), after.reward.sum()

        last, rewards = jax.lax.scan(once, (state, policy.initial_carry(count)), jnp.arange(length))
        return last[0], rewards.sum()

    length = steps // count
    state = env.reset(jax.random.key(0))
    ready = run.lower(state, jax.random.key(1), length).compile()
    begin = time.perf_counter()
    _, total = jax.block_until_ready(ready(state, jax.random.key(1)))
    return {"seconds": time.perf_counter() - begin, "rewards": float(total)}


def alone(num_agents: int, steps: int, count: int) -> dict[str, Any]:
    """Measure the cost of ma-gym's Python: a program that steps it in one process cannot be faster."""
    nets = [tuple(one[i] for one in junction.networks(num_agents)) for i in range(num_agents)]
    known = list[list[list[int]]]()
    worlds, seen = junction.begin(num_agents, count)
    for _ in range(steps // count):
        known.append(np.stack([junction.act(own, seen) for own in nets], axis=1).tolist())
        junction.step_all(worlds, known[-1], seen)
    worlds, seen = junction.begin(num_agents, count)
    begin, total = time.perf_counter(), 0.0
    for actions in known:
        total += junction.step_all(worlds, actions, seen)
    return {"seconds": time.perf_counter() - begin, "rewards": total}


def main(how: str, num_agents: str, *asked: str) -> None:
    """Measure each number of junctions."""
    jf.setup(cpu_devices=1, cache=False)
    side = {"host": host, "workers": workers, "compiled": compiled, "alone": alone}[how]
    say({count: side(int(num_agents), steps, count) for count, steps in junction.numbers(asked)})


if __name__ == "__main__":
    main(*sys.argv[1:])
