"""Sizes that follow from the number of environments, where none is given.

With more environments a tick samples more steps. So that these are learned from as often, it then makes more updates,
up to a limit, and from there on larger ones.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree, Transition, stable_hash
from jaxrl_fast.networks.network import Network
from jaxrl_fast.numerics.optimizers import MakeOptimizer

MAX_UPDATES = 64
"""In a tick of an off-policy algorithm; brax's notebook has 32 to 64 for 128 environments."""
MAX_MINIBATCHES = 32
"""In an epoch, as brax's notebook has for 2,048 environments, and purejaxql for 128."""


Sizes = Callable[[int], dict[str, int]]
"""(num_envs) -> sizes of an algorithm by the name of their option; sizes that were given are unchanged."""


def off_policy_sizes(rollout_length: int, updates_per_tick: int | None, *, steps_per_update: int = 1) -> Sizes:
    """``updates_per_tick``, if None: one for each ``steps_per_update`` steps that a tick samples, at most
    `MAX_UPDATES`."""

    def sizes(num_envs: int) -> dict[str, int]:
        default = min(max(1, num_envs * rollout_length // steps_per_update), MAX_UPDATES)
        return {"updates_per_tick": default if updates_per_tick is None else updates_per_tick}

    return sizes


def default_rollout(num_envs: int) -> int:
    """128 steps up to 64 environments, then as many as make 8,192 steps a tick, at least 32 (brax's notebook: 5 to 30
    for 2,048 to 4,096 environments)."""
    return max(32, min(128, 8192 // num_envs))


def on_policy_sizes(
    rollout_length: int | None, num_minibatches: int | None, *, steps: int, least: int, whole_rollouts: bool
) -> Sizes:
    """``rollout_length``, if None: `default_rollout`. ``num_minibatches``, if None: the largest power of two, up to
    `MAX_MINIBATCHES`, that divides the sequences (single steps; with ``whole_rollouts`` one for each environment) and
    leaves ``steps`` steps in a minibatch, or is not above ``least``."""

    def sizes(num_envs: int) -> dict[str, int]:
        length = default_rollout(num_envs) if rollout_length is None else rollout_length
        total = num_envs * length
        count = num_envs if whole_rollouts else total
        powers = [2**k for k in range(MAX_MINIBATCHES.bit_length())]
        fitting = [n for n in powers if count % n == 0 and (n <= least or total // n >= steps)]
        minibatches = max(fitting) if num_minibatches is None else num_minibatches
        return {"rollout_length": length, "num_minibatches": minibatches}

    return sizes


class Learned(NamedTuple):
    """What a part has learned, and others may read.

    - ``params``: by network, with the statistics of normalization layers.
    - ``target``: the params of the target networks (slow copies), for those networks that have one.
    """

    params: dict[str, PyTree]
    target: Mapping[str, PyTree] = {}


Peers = dict[str, Learned]
"""What parts have learned, by name."""


class GradientResult(NamedTuple):
    """What a part computed from a batch.

    - ``grads``: by network, like its params.
    - ``metrics``: scalars to report, by name.
    - ``statistics``: the new statistics of batch norms (`ApplyLearning`), by network, for those that have any.
    - ``priorities``: how likely each sample is to be sampled again, ``[B]``, for prioritized replay; ``()`` otherwise.
    """

    grads: dict[str, PyTree]
    metrics: Metrics
    statistics: Mapping[str, PyTree] = {}
    priorities: Any = ()


Found = GradientResult
"""Its name until 0.2.0."""


class Part(NamedTuple):
    """Networks that are updated together, and separately from other parts, such as an actor or a critic.

    - ``networks``: by name. The first is initialized from the part's key itself, the others from keys derived of it.
    - ``gradients(own, peers, batch, key, hyper)``: computes the losses of the part. ``own``: what the part has learned;
      ``peers``: the same of at least the parts that it ``reads``, by name; ``batch``: `OnPolicyBatch` or `ReplayBatch`,
      leaves ``[L, B, ...]``; ``hyper``: the rates of this tick.
    - ``optimizers``: one for each network, with its own clip of the gradient norm.
    - ``reads``: the other parts whose `Learned` its losses need.
    - ``targets``: the networks that have a target network.
    - ``target_rate(hyper, updates)``: the weight of the new params in these after each step, 0 to 1; ``updates``: how
      many the run has made before this one.
    - ``project(params)``: applies a constraint, such as unit norm, to the params by network after each step and after
      averaging.
    - ``every``: the part is updated at one of so many updates.
    """

    networks: dict[str, Network]
    gradients: Callable[[Learned, dict[str, Learned], Any, jax.Array, Any], GradientResult]
    optimizers: Mapping[str, MakeOptimizer]
    reads: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    target_rate: Callable[[Any, jax.Array], Any] = lambda hyper, updates: hyper.tau
    project: Callable[[dict[str, PyTree]], dict[str, PyTree]] = lambda params: params
    every: int = 1


class Values(NamedTuple):
    """The critic's values of a rollout, ``[T, E]``.

    - ``now``: at the observations.
    - ``next``: at the true successor of each.
    """

    now: jax.Array
    next: jax.Array


ValueOf = Callable[[PyTree, PyTree, jax.Array | None], jax.Array]
"""(outputs ``[..., out]`` of a critic, obs and action of the same steps) -> values ``[...]``; at true successors the
action is None."""


MakeTargets = Callable[[Values, Transition, Any], dict[str, jax.Array]]
"""(values and rollout ``[T, E, ...]``, normalized; hyper) -> targets of a rollout's updates, such as advantages: arrays
``[T, E, ...]`` by name."""


class OnPolicy(NamedTuple):
    """The data of an on-policy algorithm: each rollout is learned from for some epochs, then discarded.

    - ``num_epochs``: passes over the rollout in a tick.
    - ``num_minibatches``: in each epoch.
    - ``sequence_length``: steps of a training sequence (``L``); None: whole rollouts for recurrent networks, else 1.
    - ``critic``, ``network``: the part and its network whose values (`Values`) the targets are made of, with the params
      from before the tick's updates.
    - ``value``: computes values from that network's outputs.
    - ``targets``: computes what batches hold as ``targets``. Without it (None), batches hold rewards and ends of
      episodes instead, and the losses compute what they need with the newest params (`learning.algorithm`).
    """

    num_epochs: int
    num_minibatches: int
    sequence_length: int | None = None
    critic: str = ""
    network: str = ""
    value: ValueOf = lambda outputs, obs, action: outputs[..., 0]
    targets: MakeTargets | None = None


class Prioritize(NamedTuple):
    """Prioritized replay (arXiv 1511.05952): sequences are sampled in proportion to a power of their priority.

    - ``part``: whose ``GradientResult.priorities`` count.
    - ``exponent``: of the priorities, α in the paper.
    - ``correction(hyper)``: the exponent of the importance weights, 0 (none) to 1 (full), β in the paper.
    """

    part: str
    exponent: float
    correction: Callable[[Any], Any]


class Replay(NamedTuple):
    """The data of an off-policy algorithm: steps are stored, and batches sampled, with replacement.

    - ``capacity``: steps stored over all environments.
    - ``batch_size``: sequences in the batch of an update.
    - ``num_batches``: batches, so updates, in a tick (``K``).
    - ``warmup_steps``: steps stored, over all environments, before the first update.
    - ``n_step``: steps whose rewards are summed before bootstrapping.
    - ``sequence_length``: steps of a sequence that are learned from (``L``), for recurrent networks; else 1.
    - ``burn_in``: steps before these that only bring the recurrent memory up to date.
    - ``keep``: names of the decision's extras (`Decide`) that are stored.
    - ``prioritize``: how sequences are sampled by priority (`Prioritize`), None for uniformly. The priorities that an
      update finds reach replay in the next tick, those of one sequence as their maximum.
    """

    capacity: int
    batch_size: int
    num_batches: int
    warmup_steps: int
    n_step: int = 1
    sequence_length: int = 1
    burn_in: int = 0
    keep: tuple[str, ...] = ()
    prioritize: Prioritize | None = None


class OnPolicyBatch(NamedTuple):
    """Sequences of a rollout, leaves ``[L, B, ...]``.

    - ``obs``: as networks see it; ``action``: as sent to the environment; ``first``: whether a step begins an episode.
    - ``memory``: the recurrent memory of each acting network before the first step, by part, ``[1, B, ...]``.
    - ``extras``: of the decisions, by name (`Decide`).
    - ``targets``: by name, as `OnPolicy.targets` computes them; empty without.
    - ``transition``: without targets, a `core.Transition` of what is left of the steps: rewards, successors and ends of
      episodes; else ``()``.
    """

    obs: PyTree
    action: jax.Array
    first: jax.Array
    memory: dict[str, PyTree]
    extras: dict[str, jax.Array]
    targets: dict[str, jax.Array]
    transition: Any = ()


class ReplayBatch(NamedTuple):
    """Sequences out of replay, leaves ``[L, B, ...]``; ``L`` is 1 unless a network is recurrent.

    - ``obs``: as networks see it; ``action``: as sent to the environment.
    - ``reward``: the discounted sum over n steps.
    - ``bootstrap``: the factor of the value at ``next_obs`` in the target: γ^n, or 0 where the task ended.
    - ``next_obs``: the observation after those n steps.
    - ``extras``: those that `Replay.keep` names.
    - ``weight``: importance weights of the losses with prioritized replay, else ``()``; `algorithm.mean_loss` applies
      them.

    For recurrent networks ``obs`` covers the ``W`` steps of a window, with the burn-in before and n - 1 steps after the
    ``L`` others, and there are three more fields, else ``()``. `learning.algorithm` runs networks over both kinds.

    - ``first``: whether a step begins an episode, ``[W, B]``.
    - ``memory``: the recurrent memory before the window, by part, ``[1, B, ...]``.
    - ``last``: which of the ``W`` steps ``next_obs`` follows, ``[L, B]``.
    """

    obs: PyTree
    action: jax.Array
    reward: jax.Array
    bootstrap: jax.Array
    next_obs: PyTree
    extras: dict[str, jax.Array]
    first: Any = ()
    memory: Any = ()
    last: Any = ()
    weight: Any = ()


Decide = Callable[
    [dict[str, Any], PyTree, PyTree, jax.Array, Any, bool], tuple[jax.Array, PyTree, dict[str, jax.Array]]
]
"""(outputs of networks by part ``[E, ...]``, obs ``[E, ...]`` as they saw it, own state from `InitDecide`, key, hyper,
explore) -> (actions ``[E, ...]``, next state, extras ``[E, ...]`` to store, by name). ``explore`` is False outside of
training: the action is the best known one and ``hyper`` None."""


InitDecide = Callable[[int], PyTree]
"""(num_envs) -> the state of `Decide` before the first step, such as correlated noise, leaves ``[num_envs, ...]``."""


class Agent(NamedTuple):
    """An algorithm for the shapes of one environment, as `learning.acting` takes it.

    - ``parts``: the networks that are updated together, by name.
    - ``data``: what the updates learn from.
    - ``acts``: the parts that choose actions, each with the name of the network that runs.
    - ``decide``: chooses actions from the outputs of these.
    - ``rollout_length``: steps of each environment in a tick.
    - ``remembers``: parts, each with the name of a network, that run beside these in training, so that their recurrent
      memory at the starts of sequences is stored.
    - ``init_decide``: the first state of ``decide``.
    - ``normalize_observations``: by running statistics; None: unless all are images.
    - ``normalize_rewards``: by the running deviation of discounted returns.
    - ``max_return``: normalized rewards are small enough that no discounted return so far is larger (arXiv 2604.04539);
      None: they are clipped only one by one.
    """

    parts: dict[str, Part]
    data: OnPolicy | Replay
    acts: Mapping[str, str]
    decide: Decide
    rollout_length: int
    remembers: Mapping[str, str] = {}
    init_decide: InitDecide = lambda num_envs: ()
    normalize_observations: bool | None = None
    normalize_rewards: bool = False
    max_return: float | None = None


class Algorithm(NamedTuple):
    """An algorithm and its settings, before any environment is known.

    - ``name``: for tables and files, and to find it in `algorithms.registry`.
    - ``hyper``: a NamedTuple of rates, at least ``discount`` and ``reward_scale``; they may follow a schedule.
    - ``options``: those keyword arguments of its factory that its networks depend on.
    - ``build(spec, num_envs)``: makes the `Agent` for one environment; ``spec``: with observations as networks see them
      (images stacked). Raises ``ValueError`` where algorithm and environment do not fit.
    - ``sizes``: those of its options that follow from the number of environments where they are not given.
    - ``for_agents``: it is for worlds of several agents, and only for these.
    """

    name: str
    hyper: Any
    options: dict[str, Any]
    build: Callable[[EnvSpec, int], Agent]
    sizes: Sizes = lambda num_envs: {}
    for_agents: bool = False


def init_params(part: Part, key: jax.Array) -> dict[str, PyTree]:
    """Initial params of a part's networks, by name; the first is initialized from ``key`` itself."""
    others = {name: jax.random.fold_in(key, stable_hash(name)) for name in list(part.networks)[1:]}
    return {name: network.init(others.get(name, key)) for name, network in part.networks.items()}


def gradients_of(loss_fn: Callable[[PyTree], tuple[jax.Array, Any]], params: PyTree) -> tuple[PyTree, Any]:
    """Gradients of ``loss_fn(params) -> (loss, metrics)``, and the metrics or whatever else it gives."""
    (_, beside), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return grads, beside


def elementwise(loss: Callable[..., jax.Array], x: jax.Array, y: jax.Array, *values: Any) -> jax.Array:
    """Apply a loss on scalars to arrays ``[L, B]``, or ``[L, B, A]``."""
    return jax.vmap(lambda a, b: elementwise(loss, a, b, *values))(x, y) if x.ndim else loss(x, y, *values)


def require_positive(**sizes: int) -> None:
    """Check that sizes are positive.

    Raises:
        ValueError: naming the size.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size}: write a positive number")


def require_actions(name: str, spec: EnvSpec, kinds: tuple[type, ...], instead: str) -> Any:
    """The action space, if it is one of the ``kinds`` that the algorithm supports.

    Raises:
        ValueError: with what to write instead.
    """
    if not isinstance(spec.action, kinds):
        kind = "continuous" if isinstance(spec.action, Box) else "discrete"
        raise ValueError(f"algo={name} does not work with the {kind} actions of {spec.name}: write algo={instead}")
    return spec.action


def over_rollout(network: Network, params: PyTree, batch: OnPolicyBatch, part: str) -> tuple[Any, PyTree]:
    """Outputs ``[L, B, out]`` of a network of ``part``, and its memory after every step ``[L, B, ...]``."""
    memory = jax.tree.map(lambda x: x[0], batch.memory[part]) if network.recurrent else ()
    return network.apply(params, memory, batch.obs, batch.first)


def over_replay(
    data: Replay, network: Network, params: PyTree, batch: ReplayBatch, part: str, action: jax.Array | None = None
) -> Any:
    """Outputs ``[L, B, out]`` of a network of ``part`` at the steps that are learned from; ``action`` ``[L, B, ...]``
    is for networks that take one. No gradient reaches the burn-in (Kapturowski et al., "Recurrent experience replay
    in distributed reinforcement learning", ICLR 2019, section 3)."""
    length = batch.reward.shape[0]
    if not network.recurrent:
        return network.apply(params, (), batch.obs, jnp.zeros(batch.reward.shape, bool), action)[0]
    learned = slice(data.burn_in, data.burn_in + length)
    memory = _before(batch, part)
    if data.burn_in:
        memories = _remember(network, params, memory, batch, slice(0, data.burn_in))
        memory = jax.lax.stop_gradient(jax.tree.map(lambda x: x[-1], memories))
    obs, first = jax.tree.map(lambda x: x[learned], (batch.obs, batch.first))
    return network.apply(params, memory, obs, first, action)[0]


def over_successors(
    data: Replay, network: Network, params: PyTree, batch: ReplayBatch, part: str, action: jax.Array | None = None
) -> Any:
    """As `over_replay`, at ``next_obs``, with the memory of the steps before it."""
    if not network.recurrent:
        return network.apply(params, (), batch.next_obs, jnp.zeros(batch.reward.shape, bool), action)[0]
    memories = _remember(network, params, _before(batch, part), batch, slice(None))
    columns = jnp.arange(batch.last.shape[1])[None]
    memory = jax.tree.map(lambda x: x[batch.last, columns], memories)
    return apply_apart(network, params, memory, batch.next_obs, jnp.zeros(batch.reward.shape, bool), action)[0]


def mean_loss(losses: jax.Array, batch: ReplayBatch) -> jax.Array:
    """The mean of losses ``[L, B]``, each with its importance weight where replay is prioritized (arXiv 1511.05952,
    section 3.4)."""
    return jnp.mean(losses if isinstance(batch.weight, tuple) else batch.weight * losses)


def sequence_priority(errors: jax.Array) -> jax.Array:
    """The priority ``[B]`` of sequences with errors ``[L, B]``: of more than one step, nine parts of the largest and
    one of the mean (Kapturowski et al., ICLR 2019, section 2.3)."""
    size = jnp.abs(errors)
    return 0.9 * jnp.max(size, axis=0) + 0.1 * jnp.mean(size, axis=0)


def apply_apart(
    network: Network, params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
) -> tuple[Any, PyTree]:
    """Outputs ``[T, B, out]`` at observations ``[T, B, ...]``, each after its own memory ``[T, B, ...]`` and not after
    the step before it; and the memory after each."""
    shape = first.shape

    def flat(tree: PyTree) -> PyTree:
        # Batch first: where it is divided among devices, merging the two axes then moves nothing.
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(1, first.size, *x.shape[2:]), tree)

    def apart(x: jax.Array) -> jax.Array:
        lead = x.ndim - network.trailing_axes - 2
        return x.reshape(*x.shape[:lead], *shape[::-1], *x.shape[lead + 2 :]).swapaxes(lead, lead + 1)

    before, own_action = jax.tree.map(lambda x: x[0], flat(memory)), None if action is None else flat(action)
    return jax.tree.map(apart, network.apply(params, before, flat(obs), flat(first), own_action))


def _before(batch: ReplayBatch, part: str) -> PyTree:
    return jax.tree.map(lambda x: x[0], batch.memory[part])


def _remember(network: Network, params: PyTree, memory: PyTree, batch: ReplayBatch, steps: slice) -> PyTree:
    obs, first = jax.tree.map(lambda x: x[steps], (batch.obs, batch.first))
    action = None if network.action_shape is None else jnp.zeros((*first.shape, *network.action_shape))
    return network.apply(params, memory, obs, first, action)[1]
