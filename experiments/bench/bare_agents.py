"""Worker: IPPO and MAPPO as bare loops over JaxMARL's environments, in one file.

Hyper-parameters and sizes are JaxMARL's published ones (github.com/FLAIROx/JaxMARL, ``baselines``:
``ippo_ff_mpe``, ``mappo_homogenous_rnn_mpe`` and ``mappo_homogenous_rnn_smax``), and so is the
method: environments that reset themselves in every step, values computed during sampling, a value
for every agent. The code was written for this comparison.

``python bare_agents.py rate <row> [all]``: a repeat is one iteration of 128 steps in every
environment, after the first; ``all`` leaves out the layer before the memory, which our network does
not have.

``python bare_agents.py solve <row> <steps> <seeds> <evaluations>``: whole runs, one seed after
another. Prints steps, each seed's greedy return (SMAX: share of battles won) and seconds at every
evaluation.
"""

import sys
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from bare_setup import (
    EPOCHS,
    MINIBATCHES,
    NUM_STEPS,
    ROWS,
    Seen,
    Setup,
    begin,
    by_name,
    flat,
    make,
    run,
    run_once,
    see,
)
from worker import say, serve

DISCOUNT, GAE_LAMBDA, CLIP, VALUE_COEF = 0.99, 0.95, 0.2, 0.5
EPISODES = 128


class Step(NamedTuple):
    """One step of all agents, ``[N, ...]``."""

    seen: Seen
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    over: jax.Array


class Loop(NamedTuple):
    """The state of training."""

    params: dict[str, Any]
    opt_state: Any
    worlds: Any
    seen: Seen
    memory: tuple[jax.Array, jax.Array]
    key: jax.Array


def init(setup: Setup, key: jax.Array) -> Loop:
    """Build the state before the first iteration."""
    keys = jax.random.split(key, 4)
    worlds, seen, memory = begin(setup, keys[0], setup.row.num_envs)
    once = jax.tree.map(lambda x: x[None], seen)
    params = {
        "policy": setup.policy.init(keys[1], memory[0], once.obs, once.first),
        "critic": setup.critic.init(keys[2], memory[1], once.central, once.first),
    }
    return Loop(params, setup.optimizer.init(params), worlds, seen, memory, keys[3])


def act(setup: Setup, loop: Loop, _: None) -> tuple[Loop, Step]:
    """Make one step of all agents."""
    key, act_key, step_key = jax.random.split(loop.key, 3)
    log_probs, value, memory = run_once(setup, loop.params, loop.memory, loop.seen)
    action = jax.random.categorical(act_key, log_probs)
    log_prob = jnp.take_along_axis(log_probs, action[:, None], axis=1)[:, 0]
    keys = jax.random.split(step_key, setup.row.num_envs)
    obs, worlds, reward, done, _ = jax.vmap(setup.world.step)(
        keys, loop.worlds, by_name(setup, action)
    )
    over = jnp.tile(done["__all__"], len(setup.names))
    seen = see(setup, obs, worlds, flat(setup, done) | over)
    step = Step(loop.seen, action, log_prob, value, flat(setup, reward), over)
    return loop._replace(worlds=worlds, seen=seen, memory=memory, key=key), step


def advantages(steps: Step, last: jax.Array) -> jax.Array:
    """Compute GAE ``[T, N]``; ``last``: the values after the last step."""

    def back(carry: tuple, step: Step) -> tuple[tuple, jax.Array]:
        following, advantage = carry
        goes_on = DISCOUNT * (1.0 - step.over)
        advantage = step.reward + goes_on * (following + GAE_LAMBDA * advantage) - step.value
        return (step.value, advantage), advantage

    return jax.lax.scan(back, (last, jnp.zeros_like(last)), steps, reverse=True)[1]


def loss(params: Any, setup: Setup, memory: tuple, steps: Step, advantage: jax.Array) -> jax.Array:
    """Compute PPO's loss, with clipped values."""
    log_probs, value, _ = run(setup, params, memory, steps.seen)
    target = advantage + steps.value
    near = steps.value + jnp.clip(value - steps.value, -CLIP, CLIP)
    value_loss = 0.5 * jnp.mean(jnp.maximum(jnp.square(value - target), jnp.square(near - target)))
    ratio = jnp.exp(
        jnp.take_along_axis(log_probs, steps.action[..., None], axis=-1)[..., 0] - steps.log_prob
    )
    scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.mean(jnp.minimum(ratio * scaled, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * scaled))
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    return VALUE_COEF * value_loss - gain - setup.row.entropy_coef * entropy


def minibatches(
    setup: Setup, key: jax.Array, memory: tuple, steps: Step, advantage: jax.Array
) -> tuple:
    """Split into sequences of agents for a memory, else into single steps,
    ``[MINIBATCHES, L, N', ...]``.
    """
    batch = (jax.tree.map(lambda x: x[None], memory), steps, advantage)
    if not setup.row.central:
        none = jnp.zeros((1, advantage.size))
        batch = jax.tree.map(
            lambda x: x.reshape(1, -1, *x.shape[2:]), ((none, none), steps, advantage)
        )
    order = jax.random.permutation(key, batch[2].shape[1])

    def parts(x: jax.Array) -> jax.Array:
        return x[:, order].reshape(x.shape[0], MINIBATCHES, -1, *x.shape[2:]).swapaxes(0, 1)

    memory, steps, advantage = jax.tree.map(parts, batch)
    return jax.tree.map(lambda x: x[:, 0], memory), steps, advantage


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def iteration(setup: Setup, loop: Loop) -> Loop:
    """Make a rollout and the updates on it."""
    before = loop.memory
    loop, steps = jax.lax.scan(partial(act, setup), loop, None, NUM_STEPS)
    found = advantages(steps, run_once(setup, loop.params, loop.memory, loop.seen)[1])
    key, *keys = jax.random.split(loop.key, EPOCHS + 1)

    def update(carry: tuple, batch: tuple) -> tuple[tuple, None]:
        params, opt_state = carry
        grads = jax.grad(loss)(params, setup, *batch)
        change, opt_state = setup.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, change), opt_state), None

    def epoch(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
        return jax.lax.scan(update, carry, minibatches(setup, key, before, steps, found))[0], None

    (params, opt_state), _ = jax.lax.scan(epoch, (loop.params, loop.opt_state), jnp.stack(keys))
    return loop._replace(params=params, opt_state=opt_state, key=key)


@partial(jax.jit, static_argnums=0)
def evaluate(setup: Setup, params: Any, key: jax.Array) -> jax.Array:
    """Compute the team's mean greedy return (SMAX: share of battles won) in the first episode of
    `EPISODES` environments.
    """
    num_agents = len(setup.names)

    def won(worlds: Any) -> jax.Array:
        alive = worlds.state.unit_alive.astype(bool)
        return jnp.any(alive[:, :num_agents], axis=1) & ~jnp.any(alive[:, num_agents:], axis=1)

    def step(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
        worlds, seen, memory, going, total = carry
        log_probs, _, memory = run_once(setup, params, memory, seen)
        actions = by_name(setup, jnp.argmax(log_probs, axis=-1))
        obs, worlds, reward, done, _ = jax.vmap(setup.world.step_env)(
            jax.random.split(key, EPISODES), worlds, actions
        )
        paid = flat(setup, reward).reshape(num_agents, -1).sum(axis=0)
        gain = won(worlds) & done["__all__"] if setup.smax else paid
        seen = see(setup, obs, worlds, flat(setup, done))
        return (worlds, seen, memory, going & ~done["__all__"], total + going * gain), None

    first = (*begin(setup, key, EPISODES), jnp.ones(EPISODES, bool), jnp.zeros(EPISODES))
    return jax.lax.scan(step, first, jax.random.split(key, setup.world.max_steps + 2))[0][-1].mean()


def rate(name: str, embeds: str = "") -> None:
    """Measure steady-state training."""
    setup = make(ROWS[name], 1_000, embeds=embeds != "all")
    since = time.perf_counter()
    loop = jax.jit(init, static_argnums=0)(setup, jax.random.key(0))
    loop = jax.block_until_ready(iteration(setup, loop))
    first_s = time.perf_counter() - since

    def repeat() -> dict[str, Any]:
        nonlocal loop
        since = time.perf_counter()
        loop = jax.block_until_ready(iteration(setup, loop))
        seconds = time.perf_counter() - since
        return {
            "seconds": seconds,
            "steps": NUM_STEPS * setup.row.num_envs,
            "updates": EPOCHS * MINIBATCHES,
        }

    serve(repeat, first_s=first_s)


def solve(name: str, steps: str, seeds: str, evaluations: str) -> None:
    """Train whole runs."""
    since, row = time.perf_counter(), ROWS[name]
    per_iteration = NUM_STEPS * row.num_envs
    iterations = round(int(steps) / per_iteration)
    setup = make(row, iterations)
    at = np.unique(np.linspace(0, iterations, int(evaluations) + 1).astype(int)[1:])
    curve = {int(number): ([], 0.0) for number in at}
    for seed in range(int(seeds)):
        begun, loop = (
            time.perf_counter(),
            jax.jit(init, static_argnums=0)(setup, jax.random.key(seed)),
        )
        for number in range(1, iterations + 1):
            loop = iteration(setup, loop)
            if number not in curve:
                continue
            value = float(evaluate(setup, loop.params, jax.random.key(10_000 + number)))
            values, seconds = curve[number]
            curve[number] = [*values, value], seconds + time.perf_counter() - begun
            # to standard error: see `worker`
            print(name, seed, number * per_iteration, value, flush=True)
    points = [(number * per_iteration, *point) for number, point in curve.items()]
    say({"curve": points, "seconds": time.perf_counter() - since})


if __name__ == "__main__":
    {"rate": rate, "solve": solve}[sys.argv[1]](*sys.argv[2:])
