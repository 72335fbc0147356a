"""Adapter of XLand-MiniGrid. The only file that imports xminigrid
(https://github.com/dunnolab/xland-minigrid, 0.9).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xminigrid
from xminigrid.benchmarks import (
    NAME2HFFILENAME,
    Benchmark,
    load_benchmark,
    load_benchmark_from_path,
)
from xminigrid.core.constants import NUM_COLORS, NUM_TILES, Colors, Tiles
from xminigrid.core.goals import NUM_GOALS
from xminigrid.types import RuleSet

from jaxrl_fast.core import Discrete, EnvSpec, PyTree, Timestep
from jaxrl_fast.envs.adapter_utils import like, relaxed, settled
from jaxrl_fast.envs.env import A_COUNT, Env, is_count
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.options import EnvOptions, check_others, read_options
from jaxrl_fast.system import fault_of

STEPS_PER_RESET = 32
"""A reset draws a map, which takes as long as several steps."""
FIND_A_BALL = {
    "goal": [3, Tiles.BALL, Colors.YELLOW],
    "rules": [[0]],
    "init_tiles": [
        [Tiles.BALL, Colors.YELLOW],
        [Tiles.SQUARE, Colors.RED],
        [Tiles.KEY, Colors.BLUE],
    ],
}
"""The default ruleset of XLand environments, whose own has no goal: stand next to the yellow ball.
"""
LENGTHS = {"goal": 5, "rules": 7, "init_tiles": 2}
"""Lengths of XLand's encodings; shorter ones are padded with zeros."""


def ids() -> list[str]:
    """List the registered ids.

    Returns:
        Sorted ids, ``XLand-MiniGrid-*`` and ``MiniGrid-*``.
    """
    return sorted(xminigrid.registered_environments())


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of an XLand-MiniGrid environment."""

    benchmark: str | None = None
    """Rulesets of which each episode samples one: a name such as ``trivial-21k``, which is
    downloaded, or a file in that format."""
    ruleset: Any = None
    """``goal``, ``rules`` and ``init_tiles`` as XLand encodes them, for every episode; None for
    `FIND_A_BALL`."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Values that override the environment's parameters, such as ``view_size=7``."""


def make(id: str, **values: Any) -> Env:
    """Make an XLand-MiniGrid environment.

    Args:
        id: One of `ids`.
        **values: `Options`.

    Returns:
        The environment. It observes the agent's view with tiles and colors as one-hot numbers,
        ``[view_size, view_size, tiles + colors]``.

    Raises:
        ValueError: Unknown option or benchmark, one of the wrong kind, or both kinds of rules.
    """
    chosen = read_options(Options, values, f"xminigrid {id}")
    benchmark, ruleset, options = chosen.benchmark, chosen.ruleset, dict(chosen.others)
    base, params = xminigrid.make(id)
    fixed = ("ruleset", "max_steps", "render_mode")
    changeable = {name: value for name, value in vars(params).items() if name not in fixed}
    check_others(f"xminigrid {id}", options, changeable)
    for option, value in options.items():
        if option != "grid_type" and not is_count(value):
            raise ValueError(f"env.{option}={value}: {A_COUNT}")
    if (view := options.get("view_size", 3)) % 2 == 0 or view < 3:
        raise ValueError(
            f"env.view_size={view}: write an odd number of at least 3, with the agent in the middle"
        )
    takes_rules, sample_params = hasattr(params, "ruleset"), None
    if (benchmark or ruleset) and not (takes_rules and not (benchmark and ruleset)):
        raise ValueError(
            f"xminigrid {id}: "
            + ("write env.benchmark or env.ruleset" if takes_rules else "has no rules")
        )
    limit = {"max_steps": chosen.episode_length} if chosen.episode_length else {}
    params = params.replace(**options, **limit)
    if benchmark:
        sample_params = _benchmark(benchmark).sample_ruleset
    elif takes_rules:
        params = params.replace(ruleset=_ruleset(ruleset or FIND_A_BALL))
    try:
        env = adapt(base, params, name=id, sample_rules=sample_params)
        check_shapes(env, f"xminigrid {id}")
    except Exception as error:  # any error that an option or a ruleset causes inside xminigrid
        named = ", ".join(f"env.{name}" for name in options) or "the rules"
        raise ValueError(f"xminigrid {id} does not take {named}: {fault_of(error)}") from error
    return env._replace(steps_per_reset=STEPS_PER_RESET)


def adapt(env: Any, params: Any, *, name: str, sample_rules: Any = None) -> Env:
    """Convert an object with XLand-MiniGrid's interface to an `Env`.

    Args:
        env: Environment without wrappers that reset.
        params: Its parameters.
        name: Name in the spec.
        sample_rules: ``(key) -> RuleSet`` of an episode, or None for the rules in ``params``.

    Returns:
        The environment. An episode is a success if its goal is reached.
    """
    reset_one, step_one = relaxed(env.reset), relaxed(env.step)

    def observed(view: jax.Array) -> jax.Array:
        tiles, colors = (
            jax.nn.one_hot(view[..., i], n) for i, n in enumerate((NUM_TILES, NUM_COLORS))
        )
        return jnp.concatenate([tiles, colors], axis=-1)

    def reset(key: jax.Array, rules: PyTree) -> tuple[PyTree, jax.Array]:
        task_params = params if rules == () else params.replace(ruleset=rules)
        first = settled(reset_one(task_params, jax.random.key_data(key)))
        return first, observed(first.observation)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following = like(step_one(params, state, action), state)
        obs, over = observed(following.observation), following.step_type == 2
        terminated = over & (following.discount == 0.0)
        reward = jnp.asarray(following.reward, jnp.float32)
        return following, Timestep(obs, obs, reward, terminated, over & ~terminated)

    sample_params = sample_rules or (lambda key: ())
    obs = jax.eval_shape(lambda key: reset(key, sample_params(key))[1], jax.random.key(0))
    spec = EnvSpec(name, obs, Discrete(int(env.num_actions(params))), None)
    return Env(spec, reset, step, sample_params, success=_reached, draw=_drawn(env, params))


def _reached(state: PyTree) -> jax.Array:
    """Return whether an episode ended with its goal; some environments also end with a failure,
    without a reward.
    """
    return (state.discount == 0.0) & (state.reward > 0.0)


def _drawn(env: Any, params: Any) -> Any:
    return lambda state: np.asarray(env.render(params, state), np.uint8)


def _benchmark(name: str) -> Benchmark:
    """Load the rulesets of a file, or of a name, which downloads them at the first time."""
    try:
        if Path(name).is_file():
            return load_benchmark_from_path(name)
        if name in NAME2HFFILENAME:
            return load_benchmark(name)
    except Exception as error:  # any error of the network or of the file's format
        raise ValueError(f"env.benchmark={name} cannot be loaded: {fault_of(error)}") from error
    raise ValueError(
        f"env.benchmark={name}: no such file: write its path, or one of {', '.join(NAME2HFFILENAME)}"
    )


def _ruleset(ruleset: dict[str, list[Any]]) -> RuleSet:
    """Convert lists of numbers to XLand's rules."""
    if not isinstance(ruleset, Mapping) or set(ruleset) != set(LENGTHS):
        raise ValueError(f"env.ruleset={ruleset}: write {', '.join(LENGTHS)}")
    rows = {name: [ruleset[name]] if name == "goal" else ruleset[name] for name in LENGTHS}
    for name, length in LENGTHS.items():
        if not (rows[name] and all(_is_encoding(row, length) for row in rows[name])):
            what = (
                f"up to {length} numbers" if name == "goal" else f"lists of up to {length} numbers"
            )
            raise ValueError(f"env.ruleset.{name}={ruleset[name]}: write {what} from 0 to 255")
    tiles = [ruleset["goal"][1:3], *ruleset["init_tiles"]]
    if ruleset["goal"][0] >= NUM_GOALS or any(max(x[:1], default=0) >= NUM_TILES for x in tiles):
        raise ValueError(f"env.ruleset: write a goal below {NUM_GOALS} and tiles below {NUM_TILES}")
    if any(max(x[1:2], default=0) >= NUM_COLORS for x in tiles):
        raise ValueError(f"env.ruleset: write colors below {NUM_COLORS}")
    padded = {
        name: jnp.asarray(
            [[*row, *[0] * (LENGTHS[name] - len(row))] for row in rows[name]], jnp.uint8
        )
        for name in rows
    }
    return RuleSet(**padded | {"goal": padded["goal"][0]})


def _is_encoding(row: Any, length: int) -> bool:
    """Check for a list of at most so many bytes."""
    numbers = isinstance(row, Sequence) and all(isinstance(x, int) and 0 <= x < 256 for x in row)
    return numbers and 1 <= len(row) <= length
