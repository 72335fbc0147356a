"""Sizes that follow from the number of environments, where none is given.

With more environments a tick samples more steps. So that these are learned from as often, it then makes more updates,
up to a limit, and from there on larger ones.
"""

from collections.abc import Callable

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
