"""A prototype of workers that act on several hosts: rollouts from Ray actors, each with a share of
the environments.

``<python with ray and this package> experiments/bench/ray_rollouts.py``

Two actors on this machine stand for two hosts. The plan of a rollout (`envs.pool.rolling`) is sent
to each once; in a tick the trainer puts parameters and random numbers into Ray's store and gets the
rollouts back. The rollouts must equal one process's within 1e-6. In turn are measured: this
prototype, worker processes without Ray, and central inference over Ray, which sends each step's
actions to both actors. Nothing was run on several machines.
"""

import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind, sampler
from jaxrl_fast.envs.host_env import HostEnv, Rollouts
from jaxrl_fast.envs.pool.batches import put_actions, row_seeds, split
from jaxrl_fast.envs.pool.codec import allocate, array_fields, place, size_bytes
from jaxrl_fast.envs.pool.recipes import recipe
from jaxrl_fast.envs.pool.rolling import begin_rollout, make_roll, rollout_fields
from jaxrl_fast.envs.pool.stepping import describe, make_stepper
from jaxrl_fast.learning.acting import uniform_action
from jaxrl_fast.learning.algorithm import Learned
from jaxrl_fast.learning.run_graph import init_params, init_statistics

RESULT = Path(__file__).resolve().parent.parent / "results" / "bench" / "ray_rollouts.json"
ID, NUM_ENVS, LENGTH, ACTORS, REPEATS = "CartPole-v1", 16, 512, 2, 5


class Host:
    """A share of the environments in a process that may be on another machine."""

    def __init__(self, index: int) -> None:
        self.host_spec = describe(recipe(ID), ID)
        self.fields = array_fields(NUM_ENVS, self.host_spec.observe, self.host_spec.act)
        self.arrays = place(self.fields, np.zeros(size_bytes(self.fields), np.uint8))
        self.rows, self.index = split(slice(0, NUM_ENVS), ACTORS)[index], index
        self.stepper = make_stepper(
            self.host_spec, self.arrays, range(self.rows.start, self.rows.stop)
        )

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Start episodes, and return the first observations."""
        self.arrays.seed[:] = seeds
        self.stepper.reset()
        return self.arrays.obs[self.rows]

    def load(self, plan: Any) -> None:
        """Prepare rollouts."""
        plan = plan._replace(fields=rollout_fields(self.fields, plan.length, ACTORS) | plan.fields)
        self.shared = allocate(plan.fields, np.zeros(size_bytes(plan.fields), np.uint8))
        place_ = self.rows, self.index
        self.make_rollout = make_roll(
            self.stepper.inside, self.host_spec, self.arrays, plan, self.shared, place_
        )

    def roll(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Make a rollout, and return this share of it."""
        for name, value in given.items():
            self.shared[name][...] = value
        begin_rollout(self.shared, self.arrays)
        self.make_rollout()
        return {
            name: own_rows(name, array, self.rows)
            for name, array in self.shared.items()
            if is_result(name)
        }

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Make one step, as central inference does."""
        put_actions(self.arrays, self.rows, actions)
        self.stepper.step(self.rows)
        return self.arrays.obs[self.rows], self.arrays.facts[self.rows]


def is_given(name: str) -> bool:
    """Return whether the trainer writes an array."""
    return name.startswith(("given", "carry")) or name == "first"


def is_result(name: str) -> bool:
    """Return whether a rollout writes an array."""
    return name.startswith(("carry", "decision", "memory")) or name in (
        "obs",
        "final_obs",
        "action",
        "facts",
    )


def own_rows(name: str, array: np.ndarray, rows: slice) -> np.ndarray:
    """Return the rows of an array of the rollout."""
    return array[rows] if name.startswith("carry") else array[:, rows]


def over_ray(env: HostEnv, hosts: list[Any]) -> HostEnv:
    """Return environments whose rollouts come from the actors."""
    parts = split(slice(0, NUM_ENVS), ACTORS)
    host_spec = describe(recipe(ID), ID)
    fields = array_fields(NUM_ENVS, host_spec.observe, host_spec.act)
    shared: dict[str, np.ndarray] = {}
    asked: dict[None, Any] = {}
    steps = [0]

    import ray

    def reset(seed: Any) -> np.ndarray:
        seeds = row_seeds([int(seed)], range(NUM_ENVS), num_rows=NUM_ENVS, num_groups=1)
        steps[0] = 0
        return np.concatenate(ray.get([host.reset.remote(seeds) for host in hosts]))

    def load(plan: Any) -> dict[str, np.ndarray]:
        whole = plan._replace(fields=rollout_fields(fields, plan.length, ACTORS) | plan.fields)
        asked[None] = plan
        shared.update(allocate(whole.fields, np.zeros(size_bytes(whole.fields), np.uint8)))
        ray.get([host.load.remote(plan) for host in hosts])
        return shared

    def roll() -> None:
        given = ray.put({name: array for name, array in shared.items() if is_given(name)})
        for rows, result in zip(
            parts, ray.get([host.roll.remote(given) for host in hosts]), strict=True
        ):
            for name, value in result.items():
                own_rows(name, shared[name], rows)[...] = value
        steps[0] += NUM_ENVS * len(shared["action"])

    return env._replace(
        reset=reset,
        steps=lambda: steps[0],
        rollouts=Rollouts(load, roll, tuple(parts), print, lambda: asked.get(None)),
    )


def sampling(env: HostEnv, length: int = LENGTH, given: bool = False) -> Any:
    """Return a function that makes a rollout with fixed parameters; ``given``: with random actions
    drawn beforehand.
    """
    algorithm = jf.ppo(rollout_length=length)
    agent = bind(algorithm, env.spec, env.num_envs)
    if given:
        agent = agent._replace(
            acting=agent.acting._replace(explore=drawing(env, agent.acting.explore))
        )
    sample = sampler(env, agent)
    inputs: dict[str, Any] = {
        n: Learned(init_params(agent.parts[n], jax.random.key(5))) for n in agent.acting.parts
    }
    inputs["statistics"] = init_statistics(env, agent)
    hyper = jax.tree.map(jnp.float32, agent.hyper)
    state = sample.init(jax.random.key(0))

    def rollout(tick: int) -> Any:
        nonlocal state
        state, outputs, _ = sample.step(state, inputs, hyper, jax.random.key(tick))
        return outputs["rollout"]

    return rollout


def drawing(env: HostEnv, explore: Any) -> Any:
    """Return a replacement of ``explore`` that draws actions without observations, and stores zeros
    with them.
    """

    def draw(learned: Any, carry: Any, obs: Any, first: Any, key: Any, hyper: Any) -> tuple:
        stored = jax.eval_shape(explore, learned, carry, obs, first, key, hyper)[2]
        extras = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), stored)
        return uniform_action(env.spec.action, obs, first.shape, key), carry, extras

    return draw


def central(hosts: list[Any]) -> float:
    """Return the seconds of a rollout with a message to each actor at each step; actions cost
    nothing here.
    """
    import ray

    sizes = [rows.stop - rows.start for rows in split(slice(0, NUM_ENVS), ACTORS)]
    began = time.perf_counter()
    for t in range(LENGTH):
        ray.get(
            [
                host.step.remote(np.full(size, t % 2))
                for host, size in zip(hosts, sizes, strict=True)
            ]
        )
    return time.perf_counter() - began


def main() -> None:
    """Compare the bits, measure in turn, and store the seconds of a rollout."""
    import ray

    jf.setup(cpu_devices=1)
    ray.init(num_cpus=ACTORS, include_dashboard=False, log_to_driver=False)
    hosts = [ray.remote(Host).remote(i) for i in range(ACTORS)]
    pool = {"num_groups": 1, "bridge": "worker"}
    here = jf.make_env("gymnasium", id=ID, num_envs=NUM_ENVS, pool={**pool, "workers": 0})
    own = jf.make_env("gymnasium", id=ID, num_envs=NUM_ENVS, pool={**pool, "workers": ACTORS})
    sides = {"Ray": sampling(over_ray(here, hosts)), "worker processes": sampling(own)}
    separate = jf.make_env("gymnasium", id=ID, num_envs=NUM_ENVS, pool={**pool, "workers": 0})
    alone = sampling(separate)
    for tick in range(2):
        want = alone(tick)
        for rollout in sides.values():
            jax.tree.map(
                partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), rollout(tick), want
            )
    seconds: dict[str, list[float]] = {name: [] for name in (*sides, "central inference over Ray")}
    for repeat in range(REPEATS):
        for name, rollout in sides.items():
            began = time.perf_counter()
            rollout(2 + repeat)
            seconds[name].append(time.perf_counter() - began)
        seconds["central inference over Ray"].append(central(hosts))
    for name, row in seconds.items():
        rates = sorted(NUM_ENVS * LENGTH / s for s in row)
        print(
            f"{name}: {statistics.median(rates):,.0f} [{rates[0]:,.0f}, {rates[-1]:,.0f}] steps/s"
        )
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from describe import machine, versions

    document = {
        "seconds_of_a_rollout": seconds,
        "num_envs": NUM_ENVS,
        "length": LENGTH,
        "actors": ACTORS,
    }
    document |= {"machine": machine(), "versions": versions()["ours"] | {"ray": ray.__version__}}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
