"""Data of the updates: replay as an algorithm declares it, and the batches that losses get.

Axes: ``T`` time, ``E`` environments, ``L`` steps of a training sequence, ``W`` steps of a window,
``B`` batch. With several agents, an axis ``A`` follows ``E`` and ``B`` (`core`).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

from jaxrl_fast.core import PyTree, Transition


class Prioritize(NamedTuple):
    """Prioritized replay: sequences are sampled in proportion to a power of their priority (arXiv
    1511.05952).

    Attributes:
        part: Part whose ``GradientResult.priorities`` are used.
        exponent: Exponent of the priorities, α in the paper.
        correction: ``(hyper) -> exponent`` of the importance weights, 0 (none) to 1 (full), β in
            the paper.
    """

    part: str
    exponent: float
    correction: Callable[[Any], Any]


Relabel = Callable[[Transition, Transition, jax.Array], Transition]
"""(window of consecutive steps ``[W, ...]`` of an episode; one of its steps from the window's last
on, drawn uniformly; key) -> the window with changed goals, rewards or ends. Observations and
rewards are as sampled, not normalized.

Source: Andrychowicz et al. (2017), section 3.3, arXiv 1707.01495 (with the later step's goal,
"future").
"""


WarmupActions = Literal["uniform", "policy"]

NEXT_ACTION = "next_action"
"""Entry of `Replay.keep` with the recorded action after each step of a run's ``data``; NaN where
there is none, as at the ends of episodes and in steps that the run itself has sampled.
"""


class Replay(NamedTuple):
    """Data of an off-policy algorithm: steps are stored, and batches are sampled with replacement.

    Attributes:
        capacity: Stored steps over all environments.
        batch_size: Sequences in the batch of an update.
        num_batches: Batches, so updates, in a tick (``K``).
        warmup_steps: Stored steps over all environments before the first update.
        n_step: Steps whose rewards are summed before bootstrapping.
        sequence_length: Steps of a sequence that enter the loss (``L``), for recurrent networks;
            else 1.
        burn_in: Steps before these that only compute the recurrent memory.
        `keep`: Names of the decision's extras (`Decide`) that are stored.
        prioritize: `Prioritize`, None for uniform sampling. Priorities of an update reach replay in
            the next tick; several of one sequence as their maximum.
        warmup_actions: Actions of the first ``warmup_steps``: uniformly random ones, or the
            policy's exploration.
        relabel: Changes windows as a batch is drawn, such as their goals in hindsight; None for no
            change.
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
    warmup_actions: WarmupActions = "policy"
    relabel: Relabel | None = None


class OnPolicyBatch(NamedTuple):
    """Sequences of a rollout, leaves ``[L, B, ...]``.

    Attributes:
        obs: Observations as networks read them.
        action: Actions as sent to the environment.
        first: Whether a step begins an episode.
        memory: Recurrent memory of each acting network before the first step, by part,
            ``[1, B, ...]``.
        extras: Extras of the decisions, by name (`Decide`).
        targets: Results of `OnPolicy.targets` by name; empty without it.
        transition: Without targets, a `core.Transition` of the remaining data: rewards, next
            observations and episode ends; else ``()``.
    """

    obs: PyTree
    action: jax.Array
    first: jax.Array
    memory: dict[str, PyTree]
    extras: dict[str, jax.Array]
    targets: dict[str, jax.Array]
    transition: Any = ()


class ReplayBatch(NamedTuple):
    """Sequences from replay, leaves ``[L, B, ...]``; ``L`` is 1 unless a network is recurrent.

    For recurrent networks ``obs`` covers the ``W`` steps of a window: the burn-in, the ``L`` steps
    of the loss and n - 1 more steps. The fields ``first``, ``memory`` and ``last`` are ``()`` for
    other networks. `learning.algorithm` runs networks over both kinds.

    Attributes:
        obs: Observations as networks read them.
        action: Actions as sent to the environment.
        reward: Discounted sum over n steps.
        bootstrap: Factor of the value at ``next_obs`` in the target: γ^n, or 0 after a termination.
        next_obs: Observation after those n steps.
        extras: Extras named by `Replay.keep`.
        first: Whether a step begins an episode, ``[W, B]``.
        memory: Recurrent memory before the window, by part, ``[1, B, ...]``.
        last: Which of the ``W`` steps ``next_obs`` follows, ``[L, B]``.
        weight: Importance weights of the losses in prioritized replay, else ``()``;
            `algorithm.mean_loss` applies them.
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
