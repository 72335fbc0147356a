"""What an algorithm says: its rates, its networks by name, how an action is chosen, its losses, and what data it wants.

An `Algorithm` is made by a factory (`jaxrl_fast.ppo`, `jaxrl_fast.sac`, `jaxrl_fast.dqn`) before any environment is
known; ``build(spec, num_envs)`` gives its `Agent` for one environment and checks, on the host, that the two fit.
Everything around it is done once for all algorithms by `experience.binding`: normalization, stacks of frames, replay,
n-step returns, memory.

Axes: ``T`` time, ``E`` environments, ``L`` steps of a training sequence, ``B`` batch. Environments of several agents
will have their axis ``A`` behind ``E`` and ``B``.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax

from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree, Transition, stable_hash
from jaxrl_fast.networks.network import Network
from jaxrl_fast.numerics.optimizers import MakeOptimizer


class Learned(NamedTuple):
    """What a part has learned, and others may read: ``params`` by network, with the statistics of normalization layers,
    and ``target``, slow copies of those networks that have one."""

    params: dict[str, PyTree]
    target: Mapping[str, PyTree] = {}


class Found(NamedTuple):
    """What a part found in a batch.

    ``grads`` by network, like its params; ``metrics`` are scalars; ``statistics``: what batch norms have seen by
    now, of the networks that have any (`ApplyLearning`), by network; ``priorities`` ``[B]``: how much each sample
    is worth being drawn again, where replay is prioritized.
    """

    grads: dict[str, PyTree]
    metrics: Metrics
    statistics: Mapping[str, PyTree] = {}
    priorities: Any = ()


class FindGradients(Protocol):
    """The losses of a part."""

    def __call__(self, own: Learned, peers: dict[str, Learned], batch: Any, key: jax.Array, hyper: Any) -> Found:
        """``own``: what the part has learned; ``peers``: what those have that it reads (there may be more); ``batch``:
        `OnPolicyBatch` or `ReplayBatch`, leaves ``[L, B, ...]``; ``hyper``: the rates of this tick."""


class TargetRate(Protocol):
    """How far slow copies move after a step."""

    def __call__(self, hyper: Any, updates: jax.Array, /) -> Any:
        """``updates``: how many the run has made before this one. Returns the share of the new params, 0 to 1."""


class Project(Protocol):
    """Holds params to a constraint, such as weights of unit norm."""

    def __call__(self, params: dict[str, PyTree], /) -> dict[str, PyTree]:
        """``params`` by network, after a step or after averaging; returns those that the part goes on with."""


class Part(NamedTuple):
    """Networks that are updated together, apart from other parts.

    The first of ``networks`` begins as it would alone. ``optimizers``: one for each network, with a clip of its own.
    ``reads``: the parts whose `Learned` its losses need. ``targets``: the networks with slow copies, which move towards
    the params by ``target_rate`` (`TargetRate`) after each step. ``project``: `Project`. ``every``: the part steps at
    one update in so many.
    """

    networks: dict[str, Network]
    gradients: FindGradients
    optimizers: Mapping[str, MakeOptimizer]
    reads: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    target_rate: TargetRate = lambda hyper, updates: hyper.tau
    project: Project = lambda params: params
    every: int = 1


class Values(NamedTuple):
    """Values ``[T, E]`` of the observations of a rollout, and of the true successors of each."""

    now: jax.Array
    next: jax.Array


class ValueOf(Protocol):
    """Makes values of a critic's outputs."""

    def __call__(self, outputs: PyTree, obs: PyTree, action: jax.Array | None, /) -> jax.Array:
        """``outputs`` ``[..., out]``, ``obs`` and ``action`` ``[..., ...]``, the action None at a true successor.
        Returns values ``[...]``."""


class MakeTargets(Protocol):
    """What a rollout's updates learn towards, computed once a tick."""

    def __call__(self, values: Values, rollout: Transition, hyper: Any, /) -> dict[str, jax.Array]:
        """``values`` and ``rollout`` ``[T, E, ...]``, observations and rewards normalized. Returns arrays ``[T, E,
        ...]`` by name."""


class OnPolicy(NamedTuple):
    """Each rollout is learned from ``num_epochs`` times, in ``num_minibatches`` minibatches of sequences of
    ``sequence_length`` steps (None: with a memory whole rollouts, else single steps), and forgotten.

    ``targets(values, rollout, hyper) -> dict`` of arrays ``[T, E, ...]``, computed once a tick from what the part
    ``critic`` says before it learns from the rollout (`Values`): ``value(outputs, obs, action) -> [...]`` makes values
    of the outputs ``[..., out]`` of its ``network``; at successors ``action`` is None. Without ``targets`` batches hold
    rewards and ends of episodes instead, and the losses compute what they need with the params that learn
    (`algorithms.sequences`).
    """

    num_epochs: int
    num_minibatches: int
    sequence_length: int | None = None
    critic: str = ""
    network: str = ""
    value: ValueOf = lambda outputs, obs, action: outputs[..., 0]
    targets: MakeTargets | None = None


class Correction(Protocol):
    """How far importance weights undo what priorities do to the distribution of samples."""

    def __call__(self, hyper: Any, /) -> Any:
        """``hyper``: the rates of a tick. Returns the exponent of the weights, from 0 (not) to 1 (wholly)."""


class Prioritize(NamedTuple):
    """Sequences are sampled with a probability in proportion to their priority, ``Found.priorities`` of ``part``, to
    the power of ``exponent``; `Correction` says how much of that the weights of the losses undo."""

    part: str
    exponent: float
    correction: Correction


class Replay(NamedTuple):
    """Steps are stored, ``capacity`` over all environments, and each tick ``num_batches`` batches of ``batch_size``
    sequences are drawn from them, uniformly and with replacement.

    Nothing is learned before ``warmup_steps`` steps. Rewards are added up over ``n_step`` steps. With a memory, a
    sequence is ``burn_in`` steps that only fill it and ``sequence_length`` that are learned from; without, one step.
    ``keep``: names of the decision's extras that are stored. ``prioritize``: `Prioritize`, or None for all alike; the
    priorities that an update finds reach replay in the next tick, those of one sequence as their maximum.
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

    ``memory``: that of each acting network, by part, before every step; ``extras`` of the decisions; ``targets`` as
    `OnPolicy` makes them. Without these: ``transition``, all else that is known of the steps; else ``()``.
    """

    obs: PyTree
    action: jax.Array
    first: jax.Array
    memory: dict[str, PyTree]
    extras: dict[str, jax.Array]
    targets: dict[str, jax.Array]
    transition: Any = ()


class ReplayBatch(NamedTuple):
    """Steps out of replay, leaves ``[L, B, ...]``; ``L`` is 1 without a memory.

    ``reward``: the sum over n steps; ``bootstrap``: what the value at ``next_obs``, the observation after them, counts
    for: γ^n, or 0 where the task ended. ``extras``: what `Replay.keep` names. ``weight``: what the loss of each step
    counts for, with priorities; else ``()``. `algorithms.sequences.mean_loss` heeds it.

    With a memory, ``obs`` and ``first`` cover ``W`` steps, those of the burn-in before and n - 1 after the others;
    ``memory``, by part, is that before the first of them, ``[1, B, ...]``, and ``last`` ``[L, B]`` says which of the
    ``W`` steps ``next_obs`` follows. Else these three are ``()``. `algorithms.sequences` runs networks over either.
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


class Decide(Protocol):
    """How an action is chosen."""

    def __call__(
        self, outputs: dict[str, Any], obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool
    ) -> tuple[jax.Array, PyTree, dict[str, jax.Array]]:
        """``outputs``: those of each acting part, ``[E, ...]``; ``obs`` ``[E, ...]`` as the networks saw it; ``state``:
        what it keeps of each environment. Returns actions ``[E, ...]``, the state, and extras ``[E, ...]`` that
        training wants to remember. Without ``explore`` the action is the best one, and ``hyper`` None."""


class InitDecide(Protocol):
    """What a choice of actions keeps of each environment."""

    def __call__(self, num_envs: int, /) -> PyTree:
        """Returns its state before the first step, ``[num_envs, ...]``."""


class Agent(NamedTuple):
    """An algorithm bound to the shapes of one environment, before `experience.binding` does the rest.

    ``acts``: the parts that choose actions, each with the name of the network that runs; ``remembers``: parts whose
    networks run beside them in training, so that their memory at the starts of sequences is known.
    ``decide`` as `Decide`; ``init_decide(num_envs) -> state``. ``rollout_length``: steps of each environment in a tick.
    ``normalize_observations``: None means all but images.
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


class Build(Protocol):
    """Binds an algorithm to the shapes of one environment."""

    def __call__(self, spec: EnvSpec, num_envs: int, /) -> Agent:
        """``spec``: observations as networks see them, with whole stacks. Raises ``ValueError`` where they do not
        fit."""


class Algorithm(NamedTuple):
    """``hyper``: a NamedTuple of rates that may be swept, scheduled or changed on resume; it has at least ``discount``
    and ``reward_scale``. ``options``: the keyword arguments that made it, enough to make its networks again;
    ``build``: `Build`."""

    name: str
    hyper: Any
    options: dict[str, Any]
    build: Build


def init_params(part: Part, key: jax.Array) -> dict[str, PyTree]:
    """The params of a part's networks, by name; the first network has the key that it would have alone."""
    others = {name: jax.random.fold_in(key, stable_hash(name)) for name in list(part.networks)[1:]}
    return {name: network.init(others.get(name, key)) for name, network in part.networks.items()}


def gradients_of(loss_fn: Callable[[PyTree], tuple[jax.Array, Any]], params: PyTree) -> tuple[PyTree, Any]:
    """Gradients of ``loss_fn(params) -> (loss, metrics)``, and the metrics or whatever else it gives."""
    (_, beside), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return grads, beside


def elementwise(loss: Callable[..., jax.Array], x: jax.Array, y: jax.Array, *values: Any) -> jax.Array:
    """Apply a loss on scalars to arrays ``[L, B]``."""
    return jax.vmap(jax.vmap(lambda a, b: loss(a, b, *values)))(x, y)


def require_positive(**sizes: int) -> None:
    """Refuse a size of zero or less.

    Raises:
        ValueError: naming the size.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size}: write a positive number")


def require_actions(name: str, spec: EnvSpec, kinds: tuple[type, ...], instead: str) -> Any:
    """The action space, if it is one that the algorithm knows.

    Raises:
        ValueError: with what to write instead.
    """
    if not isinstance(spec.action, kinds):
        kind = "continuous" if isinstance(spec.action, Box) else "discrete"
        raise ValueError(f"algo={name} does not work with the {kind} actions of {spec.name}: write algo={instead}")
    return spec.action
