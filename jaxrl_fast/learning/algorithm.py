"""The interface of an algorithm: hyper-parameters, networks, action selection, losses, and data of
the updates.

A factory such as `jaxrl_fast.ppo` makes an `Algorithm` independently of an environment.
``build(spec, num_envs)`` returns its `Agent` for one environment, or raises if the algorithm does
not support the environment. `assembly.bind` does everything else for all algorithms:
normalization, frame stacks, replay, n-step returns, recurrent memory. Losses run networks over the
sequences of a batch with the functions at the end of this file, recurrent or not.

Axes: ``T`` time, ``E`` environments, ``L`` steps of a training sequence, ``B`` batch. With several
agents, an axis ``A`` follows ``E`` and ``B`` (`core`).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree, Transition, stable_hash
from jaxrl_fast.fields import check_fields, hyper_of, options_of, types_of
from jaxrl_fast.learning.data import OnPolicyBatch as OnPolicyBatch
from jaxrl_fast.learning.data import Prioritize as Prioritize
from jaxrl_fast.learning.data import Relabel as Relabel
from jaxrl_fast.learning.data import Replay as Replay
from jaxrl_fast.learning.data import ReplayBatch as ReplayBatch
from jaxrl_fast.learning.data import WarmupActions as WarmupActions
from jaxrl_fast.networks.network import Network
from jaxrl_fast.numerics.optimizers import MakeOptimizer

MAX_UPDATES = 64
"""Most default updates in a tick of an off-policy algorithm; brax's notebook has 32 to 64 for 128
environments.
"""
MAX_MINIBATCHES = 32
"""Most default minibatches in an epoch, as in brax's notebook for 2,048 environments, and in
purejaxql for 128.
"""
Sizes = Callable[..., dict[str, int]]
"""(num_envs, total_steps or None) -> sizes of an algorithm by the name of their option; given sizes
are unchanged.
"""
MAX_WARMUP, WARMUP_SHARE = 5_000, 20
"""The default warm-up of off-policy algorithms has at most so many steps, and at most one of so
many of the run.
"""


def off_policy_sizes(
    rollout_length: int,
    updates_per_tick: int | None,
    warmup_steps: int | None = None,
    *,
    steps_per_update: int = 1,
) -> Sizes:
    """Return the function that fills in ``updates_per_tick`` (from 1 to `MAX_UPDATES`) and
    ``warmup_steps``.

    Args:
        rollout_length: Steps of each environment in a tick.
        updates_per_tick: The given number of updates; None for the default.
        warmup_steps: The given number of steps before the first update; None for the default.
        steps_per_update: Sampled steps of a tick per default update.

    Returns:
        The `Sizes` function.
    """

    def sizes(num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        updates = min(max(1, num_envs * rollout_length // steps_per_update), MAX_UPDATES)
        warmup = (
            MAX_WARMUP
            if total_steps is None
            else max(1, min(MAX_WARMUP, total_steps // WARMUP_SHARE))
        )
        updates = updates if updates_per_tick is None else updates_per_tick
        return {
            "updates_per_tick": updates,
            "warmup_steps": warmup if warmup_steps is None else warmup_steps,
        }

    return sizes


TICK_STEPS, MAX_TICK_STEPS, TICKS_PER_RUN, LEAST_ROLLOUT = 2048, 16_384, 500, 16
"""Steps of a default on-policy tick, most in a long run, ticks of a long run, and fewest steps of
each environment.
"""


def default_rollout(num_envs: int, total_steps: int | None = None) -> int:
    """Return the default rollout length of on-policy algorithms, a power of two.

    A tick has 2,048 steps over all environments, as in Stable-Baselines3 and CleanRL: small tasks
    need about 50 ticks. In a run of more than a million steps it has a 500th of the run, up to
    16,384, for gradients with less noise.

    Args:
        num_envs: Number of environments.
        total_steps: Environment steps of the run; None for a short one.

    Returns:
        Steps of each environment in a tick.
    """
    tick = min(max(TICK_STEPS, (total_steps or 0) // TICKS_PER_RUN), MAX_TICK_STEPS)
    return max(LEAST_ROLLOUT, 2 ** int(math.log2(max(1, tick // num_envs))))


def on_policy_sizes(
    rollout_length: int | None,
    num_minibatches: int | None,
    *,
    steps: int,
    least: int,
    whole_rollouts: bool,
) -> Sizes:
    """Return the function that fills in ``rollout_length`` and ``num_minibatches``.

    The default number of minibatches is the largest power of two, up to `MAX_MINIBATCHES`, that
    divides the number of sequences and either leaves ``steps`` steps in a minibatch or is at most
    ``least``.

    Args:
        rollout_length: The given rollout length; None for `default_rollout`.
        num_minibatches: The given number; None for the default.
        steps: Preferred number of steps in a minibatch.
        least: Number of minibatches that is used even with fewer steps.
        whole_rollouts: Whether a sequence is a whole rollout of an environment instead of a single
            step.

    Returns:
        The `Sizes` function.
    """

    def sizes(num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        length = (
            default_rollout(num_envs, total_steps) if rollout_length is None else rollout_length
        )
        total = num_envs * length
        count = num_envs if whole_rollouts else total
        powers = [2**k for k in range(MAX_MINIBATCHES.bit_length())]
        fitting = [n for n in powers if count % n == 0 and (n <= least or total // n >= steps)]
        minibatches = max(fitting) if num_minibatches is None else num_minibatches
        return {"rollout_length": length, "num_minibatches": minibatches}

    return sizes


class Learned(NamedTuple):
    """Parameters of a part, which other parts may read.

    Attributes:
        params: Params by network, with the statistics of normalization layers.
        target: Params of the target networks (slow copies), for the networks that have one.
    """

    params: dict[str, PyTree]
    target: Mapping[str, PyTree] = {}


Peers = dict[str, Learned]
"""`Learned` by part."""


class GradientResult(NamedTuple):
    """Result of a part's losses on a batch.

    Attributes:
        grads: Gradients by network, like its params.
        metrics: Scalars to report, by name.
        statistics: New statistics in the params that are not of batch norms, whose changes are in
            ``grads`` (`Network.in_loss`): a dictionary by network, for the networks that have any.
        priorities: Priority of each sample in prioritized replay, ``[B]``; else ``()``.
    """

    grads: dict[str, PyTree]
    metrics: Metrics
    statistics: Mapping[str, PyTree] = {}
    priorities: Any = ()


Found = GradientResult
"""Name of `GradientResult` until 0.2.0."""


class Part(NamedTuple):
    """Networks that are updated together, and separately from other parts, such as an actor or a
    critic.

    Attributes:
        networks: Networks by name. The part's key initializes the first; keys derived from it
            initialize the others.
        gradients: ``(learned, peers, batch, key, hyper) -> GradientResult``. ``learned`` is the
            part's `Learned`, ``peers`` has at least the `Learned` of the parts that it ``reads``,
            ``batch`` an `OnPolicyBatch` or `ReplayBatch` with leaves ``[L, B, ...]``, ``hyper`` the
            hyper-parameters of this tick.
        optimizers: One for each network, each with a separate clip of the gradient norm.
        reads: Other parts whose `Learned` the losses need.
        targets: Networks that have a target network.
        target_rate: ``(hyper, updates) -> weight`` of the new params in the target networks after
            each step, 0 to 1; ``updates`` counts the updates of the run before this one.
        every: The part is updated once in this many updates.
    """

    networks: dict[str, Network]
    gradients: Callable[[Learned, dict[str, Learned], Any, jax.Array, Any], GradientResult]
    optimizers: Mapping[str, MakeOptimizer]
    reads: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    target_rate: Callable[[Any, jax.Array], Any] = lambda hyper, updates: hyper.tau
    every: int = 1


class Values(NamedTuple):
    """Values of a rollout, ``[T, E]``.

    Attributes:
        now: Values of the observations.
        next: Values of ``next_obs``.
    """

    now: jax.Array
    next: jax.Array


ValueOf = Callable[[PyTree, PyTree, jax.Array | None], jax.Array]
"""(outputs ``[..., out]`` of a critic, obs and action of the same steps) -> values ``[...]``; the
action is None at ``next_obs``.
"""


MakeTargets = Callable[[Values, Transition, Any], dict[str, jax.Array]]
"""(values and normalized rollout ``[T, E, ...]``; hyper) -> targets of a rollout's updates, such as
advantages: arrays ``[T, E, ...]`` by name.
"""


class OnPolicy(NamedTuple):
    """Data of an on-policy algorithm: each rollout is used for some epochs, then discarded.

    Attributes:
        num_epochs: Passes over the rollout in a tick.
        num_minibatches: Minibatches in each epoch.
        sequence_length: Steps of a training sequence (``L``); None for whole rollouts with
            recurrent networks, else 1.
        critic: Part whose `Values` the targets use, with the params from before the tick's updates.
        network: Network of that part.
        value: Computes values from that network's outputs.
        targets: Computes ``targets`` of batches. If None, losses compute them from rewards, with
            the newest params.
        mixer: Another network of that part, if any: ``value`` gets the pair of both networks'
            outputs.
    """

    num_epochs: int
    num_minibatches: int
    sequence_length: int | None = None
    critic: str = ""
    network: str = ""
    value: ValueOf = lambda outputs, obs, action: outputs[..., 0]
    targets: MakeTargets | None = None
    mixer: str = ""


Decide = Callable[
    [dict[str, Any], PyTree, PyTree, jax.Array, Any, bool],
    tuple[jax.Array, PyTree, dict[str, jax.Array]],
]
"""(outputs of networks by part ``[E, ...]``, obs ``[E, ...]`` as they read it, state from
`InitDecide`, key, hyper, explore) -> (actions ``[E, ...]``, next state, extras ``[E, ...]`` to
store, by name). ``explore`` is False outside of training: the action is greedy and ``hyper`` is
None.
"""


InitDecide = Callable[[int], PyTree]
"""(num_envs) -> state of `Decide` before the first step, such as correlated noise, leaves
``[num_envs, ...]``.
"""


class Transform(NamedTuple):
    """A change of rollouts between sampling and storing, such as a bonus that is added to rewards.

    Its networks, if any, are in a `Part`, whose losses read what ``apply`` adds to
    ``extras.decision``.

    Attributes:
        init: ``() -> state`` before the first rollout, such as running statistics.
        apply: ``(rollout, parts, state, hyper, key) -> (rollout, state)``. ``rollout`` is a
            `Transition` ``[T, E, ...]`` as sampled, not normalized; the second argument has the
            `Learned` of the parts that it ``reads``.
        reads: Parts whose `Learned` it needs.
    """

    init: Callable[[], PyTree]
    apply: Callable[[Transition, Peers, PyTree, Any, jax.Array], tuple[Transition, PyTree]]
    reads: tuple[str, ...] = ()


class Agent(NamedTuple):
    """An algorithm built for the shapes of one environment.

    Attributes:
        parts: Networks that are updated together, by name.
        data: Data of the updates.
        acts: Parts that select actions, each with the name of the network that runs.
        decide: Selects actions from these networks' outputs.
        rollout_length: Steps of each environment in a tick.
        remembers: Parts, each with the name of a network, that also run in training, so that their
            recurrent memory at the starts of sequences is stored.
        init_decide: Initial state of ``decide``.
        normalize_observations: Whether running statistics normalize observations; None for all but
            images and grids.
        normalize_rewards: Whether the running deviation of discounted returns divides rewards.
        max_return: Largest absolute discounted return of normalized rewards (arXiv 2604.04539);
            None for no bound but the clip of single rewards.
        transform: Changes rollouts before they are stored; None for no change.
        outputs_of: Picks the outputs of a policy of discrete actions from the outputs by part, for
            `policy.teacher`; None if there is no such policy.
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
    transform: Transform | None = None
    outputs_of: Callable[[dict[str, Any]], jax.Array] | None = None


class Algorithm(NamedTuple):
    """An algorithm and its settings, independent of an environment, as an assembled record.

    Algorithms of this package are `DeclaredAlgorithm`, which has the same attributes. A function
    that changes one, such as by another ``build``, returns this record.

    Attributes:
        name: Name in tables, files and `algorithms.registry`.
        hyper: NamedTuple of hyper-parameters, at least ``discount`` and ``reward_scale``; each may
            be a schedule.
        options: Settings by name with which a policy's networks are built again.
        build: ``(spec, num_envs) -> Agent`` for one environment, whose ``spec`` has observations as
            networks read them (images stacked). Raises ``ValueError`` if the algorithm does not
            support the environment.
        sizes: Computes the options that depend on the number of environments and the run's length
            and were not given.
        for_agents: Whether the algorithm requires an environment of several agents.
        needs_data: Whether it learns from recorded steps only.
        declared: The declaration with the same settings, from which a file can make it again; None
            if there is none.
    """

    name: str
    hyper: Any
    options: dict[str, Any]
    build: Callable[[EnvSpec, int], Agent]
    sizes: Sizes = lambda num_envs, total_steps=None: {}
    for_agents: bool = False
    needs_data: bool = False
    declared: "DeclaredAlgorithm | None" = None


@dataclass(frozen=True, kw_only=True, eq=False)
class DeclaredAlgorithm:
    """An algorithm whose settings are the fields of a dataclass, independent of an environment.

    A subclass declares a field for each setting, with a type, a default and its documentation in a
    string below it, and defines ``build``. Fields of the types `Rate0`, `Rate01` and `AnyRate` are
    rates, which may be schedules and change during a run; at least ``discount`` and
    ``reward_scale``. All others shape the program. Base classes hold the fields that several
    algorithms share.

    Losses get the values of the rates in a tick as ``hyper``, a NamedTuple. Its annotation is the
    class that declares the rates that a loss reads, such as `PpoHyper`, for type checkers and
    editors.
    """

    name: ClassVar[str] = ""
    for_agents: ClassVar[bool] = False
    needs_data: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Name a user's algorithm by its path, unless it declares a name.

        Args:
            **options: Options of the class.
        """
        super().__init_subclass__(**options)
        if "name" not in vars(cls) and not cls.__module__.startswith("jaxrl_fast."):
            cls.name = f"{cls.__module__}.{cls.__qualname__}"

    def __post_init__(self) -> None:
        """Check and convert the fields.

        Raises:
            ValueError: A field has another type, or is out of range.
        """
        check_fields(self)

    @cached_property
    def hyper(self) -> Any:
        """NamedTuple of the rates."""
        return hyper_of(self)

    @property
    def options(self) -> dict[str, Any]:
        """Fields by name that are neither rates nor functions."""
        return options_of(self)

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the options that depend on the run and were not given; by default none."""
        return {}

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment; each algorithm defines it."""
        raise NotImplementedError(f"{type(self).__name__} has no build(self, spec, num_envs)")

    def _replace(self, **changes: Any) -> Any:
        """Return a copy with other fields or rates, or a record with other functions."""
        return replaced(self, changes)


AnyAlgorithm = Algorithm | DeclaredAlgorithm
"""Both have ``name``, ``hyper``, ``options``, ``build``, ``sizes``, ``for_agents``, ``needs_data``
and ``_replace``.
"""


def declaration_of(algorithm: AnyAlgorithm) -> DeclaredAlgorithm | None:
    """Return the declaration with the settings of an algorithm.

    Args:
        algorithm: Algorithm.

    Returns:
        None if it was assembled in another way, or changed since.
    """
    return algorithm if isinstance(algorithm, DeclaredAlgorithm) else algorithm.declared


def replaced(declared: DeclaredAlgorithm, changes: dict[str, Any]) -> AnyAlgorithm:
    """Change a declared algorithm.

    Args:
        declared: Algorithm.
        changes: New values by field, or by attribute of `Algorithm`, such as ``hyper`` or
            ``build``.

    Returns:
        A declared algorithm, if these are fields, or rates of the same type; else a record.
    """
    hyper = changes.get("hyper")
    if hyper is not None and type(hyper) is type(declared.hyper):
        changes = {n: value for n, value in changes.items() if n != "hyper"} | hyper._asdict()
    declared_changes = {name: changes[name] for name in changes if name in types_of(type(declared))}
    other = {name: changes[name] for name in changes if name not in declared_changes}
    changed = dataclasses.replace(declared, **declared_changes) if declared_changes else declared
    if not other:
        return changed
    record = Algorithm(
        name=changed.name,
        hyper=changed.hyper,
        options=changed.options,
        build=changed.build,
        sizes=changed.sizes,
        for_agents=changed.for_agents,
        needs_data=changed.needs_data,
    )
    return record._replace(**other)


def init_params(part: Part, key: jax.Array) -> dict[str, PyTree]:
    """Initialize the params of a part's networks.

    Args:
        part: Part.
        key: Random key, which initializes the first network; derived keys initialize the others.

    Returns:
        Params by network.
    """
    others = {name: jax.random.fold_in(key, stable_hash(name)) for name in list(part.networks)[1:]}
    return {name: network.init(others.get(name, key)) for name, network in part.networks.items()}


def gradients_of(
    loss_fn: Callable[[PyTree], tuple[jax.Array, Any]], params: PyTree
) -> tuple[PyTree, Any]:
    """Compute the gradients of a loss.

    Args:
        loss_fn: ``(params) -> (loss, auxiliary result)``, such as metrics.
        params: Params.

    Returns:
        Gradients and the auxiliary result.
    """
    (_, beside), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return grads, beside


def elementwise(
    loss: Callable[..., jax.Array], x: jax.Array, y: jax.Array, *values: Any
) -> jax.Array:
    """Apply a loss on scalars to arrays.

    Args:
        loss: Loss of two scalars and ``values``.
        x: First arguments, ``[L, B]`` or ``[L, B, A]``.
        y: Second arguments, same shape.
        *values: Further arguments, the same for all elements.

    Returns:
        Losses of the same shape.
    """
    return (
        jax.vmap(lambda a, b: elementwise(loss, a, b, *values))(x, y)
        if x.ndim
        else loss(x, y, *values)
    )


def require_positive(**sizes: int) -> None:
    """Check that sizes are positive.

    Args:
        **sizes: Sizes by the name of their setting.

    Raises:
        ValueError: A size is less than 1.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size}: write a positive number")


def require_actions(name: str, spec: EnvSpec, kinds: tuple[type, ...], instead: str) -> Any:
    """Return the action space, if the algorithm supports its kind.

    Args:
        name: Name of the algorithm.
        spec: Environment.
        kinds: Supported types of action spaces.
        instead: Algorithm for the other kind, for the message.

    Returns:
        The action space.

    Raises:
        ValueError: The algorithm does not support the actions.
    """
    if not isinstance(spec.action, kinds):
        kind = "continuous" if isinstance(spec.action, Box) else "discrete"
        raise ValueError(
            f"algo={name} does not work with the {kind} actions of {spec.name}: write algo={instead}"
        )
    return spec.action


def over_rollout(
    network: Network, params: PyTree, batch: OnPolicyBatch, part: str
) -> tuple[Any, PyTree]:
    """Run a network over the sequences of a rollout.

    Args:
        network: Network of ``part``.
        params: Its params.
        batch: Sequences ``[L, B, ...]``.
        part: Name of the part.

    Returns:
        Outputs ``[L, B, out]`` and the memory after every step, ``[L, B, ...]``.
    """
    memory = jax.tree.map(lambda x: x[0], batch.memory[part]) if network.recurrent else ()
    return network.in_loss(params, memory, batch.obs, batch.first)


def after_rollout(
    network: Network,
    params: PyTree,
    batch: OnPolicyBatch,
    part: str,
    memories: PyTree,
    next_obs: PyTree,
) -> Any:
    """Run a network at the observations after every step of a rollout's sequences.

    Args:
        network: Network of ``part``.
        params: Its params.
        batch: Sequences ``[L, B, ...]``.
        part: Name of the part.
        memories: Memory after every step, from `over_rollout`.
        next_obs: Observations after every step, ``[L, B, ...]``.

    Returns:
        Outputs ``[L, B, out]``.
    """
    if not network.recurrent:
        return network.apply(params, (), next_obs, jnp.zeros_like(batch.first))[0]
    memory = jax.tree.map(lambda x: x[0], batch.memory[part])
    return after_steps(network, params, (memory, batch.obs, batch.first), memories, next_obs)


def over_replay(
    data: Replay,
    network: Network,
    params: PyTree,
    batch: ReplayBatch,
    part: str,
    action: jax.Array | None = None,
    *,
    learning: bool = True,
) -> Any:
    """Run a network over the steps of a replay batch that enter the loss. No gradient reaches the
    burn-in.

    Args:
        data: Lengths of the sequences.
        network: Network of ``part``.
        params: Its params.
        batch: Sequences ``[L, B, ...]``.
        part: Name of the part.
        action: Actions ``[L, B, ...]``, for networks that take them.
        learning: Whether the loss is of these params, so that batch norms use the batch's
            statistics.

    Returns:
        Outputs ``[L, B, out]``.

    Source: Kapturowski et al. (2019), R2D2, ICLR, section 3.
    """
    length, run = batch.reward.shape[0], network.in_loss if learning else network.apply
    if not network.recurrent:
        return run(params, (), batch.obs, jnp.zeros(batch.reward.shape, bool), action)[0]
    learned = slice(data.burn_in, data.burn_in + length)
    memory = _before(batch, part)
    if data.burn_in:
        memories = _remember(network, params, memory, batch, slice(0, data.burn_in))
        memory = jax.lax.stop_gradient(jax.tree.map(lambda x: x[-1], memories))
    obs, first = jax.tree.map(lambda x: x[learned], (batch.obs, batch.first))
    return run(params, memory, obs, first, action)[0]


def over_successors(
    data: Replay,
    network: Network,
    params: PyTree,
    batch: ReplayBatch,
    part: str,
    action: jax.Array | None = None,
) -> Any:
    """Run a network at ``next_obs``, with the memory of the steps before it.

    Args:
        data: Lengths of the sequences.
        network: Network of ``part``.
        params: Its params.
        batch: Sequences ``[L, B, ...]``.
        part: Name of the part.
        action: Actions ``[L, B, ...]``, for networks that take them.

    Returns:
        Outputs ``[L, B, out]``.
    """
    if not network.recurrent:
        return network.apply(
            params, (), batch.next_obs, jnp.zeros(batch.reward.shape, bool), action
        )[0]
    memory = _before(batch, part)
    memories = None if network.after else _remember(network, params, memory, batch, slice(None))
    steps = memory, batch.obs, batch.first
    return after_steps(network, params, steps, memories, batch.next_obs, batch.last, action)


def after_steps(
    network: Network,
    params: PyTree,
    steps: tuple[PyTree, PyTree, jax.Array],
    memories: PyTree,
    next_obs: PyTree,
    at: jax.Array | None = None,
    action: jax.Array | None = None,
) -> Any:
    """Run a network with a memory at observations that each follow a step of a sequence.

    Args:
        network: Network.
        params: Its params.
        steps: Memory before the sequence, leaves ``[B, ...]``, its observations ``[L, B, ...]``,
            and ``first`` ``[L, B]``.
        memories: Memory after every step, ``[L, B, ...]``; not read if the network has
            `Network.after`.
        next_obs: Observations ``[N, B, ...]``.
        at: Step that each follows, ``[N, B]``; None for all steps in order.
        action: Actions ``[N, B, ...]``, for networks that take them.

    Returns:
        Outputs ``[N, B, out]``.
    """
    first = steps[2]
    if network.after:
        at = jnp.broadcast_to(jnp.arange(len(first))[:, None], first.shape) if at is None else at
        return network.after(params, *steps, next_obs, at, action)
    columns = jnp.arange(first.shape[1])[None]
    before = memories if at is None else jax.tree.map(lambda x: x[at, columns], memories)
    new = jnp.zeros((jax.tree.leaves(next_obs)[0].shape[:2]), bool)
    return apply_apart(network, params, before, next_obs, new, action)[0]


def mean_loss(losses: jax.Array, batch: ReplayBatch) -> jax.Array:
    """Average losses, each with its importance weight if replay is prioritized.

    Args:
        losses: Losses ``[L, B]``.
        batch: Batch with the weights.

    Returns:
        A scalar.

    Source: Schaul et al. (2016), section 3.4, arXiv 1511.05952.
    """
    return jnp.mean(losses if isinstance(batch.weight, tuple) else batch.weight * losses)


def sequence_priority(errors: jax.Array) -> jax.Array:
    """Compute the priority of sequences: 0.9 times the largest error plus 0.1 times the mean.

    Args:
        errors: Errors ``[L, B]``.

    Returns:
        Priorities ``[B]``.

    Source: Kapturowski et al. (2019), R2D2, ICLR, section 2.3.
    """
    size = jnp.abs(errors)
    return 0.9 * jnp.max(size, axis=0) + 0.1 * jnp.mean(size, axis=0)


def apply_apart(
    network: Network,
    params: PyTree,
    memory: PyTree,
    obs: PyTree,
    first: jax.Array,
    action: jax.Array | None = None,
) -> tuple[Any, PyTree]:
    """Run a network at observations that each follow a separate memory, not the step before.

    Args:
        network: Network.
        params: Its params.
        memory: Memory before each observation, ``[T, B, ...]``.
        obs: Observations ``[T, B, ...]``.
        first: Whether each begins an episode, ``[T, B]``.
        action: Actions ``[T, B, ...]``, for networks that take them.

    Returns:
        Outputs ``[T, B, out]`` and the memory after each observation, ``[T, B, ...]``.
    """
    shape = first.shape

    def flat(tree: PyTree) -> PyTree:
        # Batch first: if it is sharded over devices, merging the two axes then transfers nothing.
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(1, first.size, *x.shape[2:]), tree)

    def apart(x: jax.Array, lead: int = 0) -> jax.Array:
        return x.reshape(*x.shape[:lead], *shape[::-1], *x.shape[lead + 2 :]).swapaxes(
            lead, lead + 1
        )

    before, own_action = (
        jax.tree.map(lambda x: x[0], flat(memory)),
        None if action is None else flat(action),
    )
    outputs, after = network.apply(params, before, flat(obs), flat(first), own_action)
    # Of outputs, the members of an ensemble come first.
    return jax.tree.map(
        lambda x: apart(x, x.ndim - network.trailing_axes - 2), outputs
    ), jax.tree.map(apart, after)


def _before(batch: ReplayBatch, part: str) -> PyTree:
    return jax.tree.map(lambda x: x[0], batch.memory[part])


def _remember(
    network: Network, params: PyTree, memory: PyTree, batch: ReplayBatch, steps: slice
) -> PyTree:
    obs, first = jax.tree.map(lambda x: x[steps], (batch.obs, batch.first))
    action = (
        None if network.action_shape is None else jnp.zeros((*first.shape, *network.action_shape))
    )
    return network.apply(params, memory, obs, first, action)[1]
