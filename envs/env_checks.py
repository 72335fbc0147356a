"""Checks of a user's environment: shapes and dtypes before training, and all rules on request
(`check_env`).
"""

import copy
import math
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import (
    OUT,
    STATE,
    Actions,
    Box,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    PyTree,
    Timestep,
    action_shape,
    reward_shape,
)
from jaxrl_fast.envs.env import (
    Draw,
    Env,
    VecEnv,
    describe_images,
    is_count,
    vectorize,
    with_image_axes,
)
from jaxrl_fast.envs.episode_metrics import check_names
from jaxrl_fast.envs.errors import RuleBroken
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.envs.playing import (
    NUM_ENVS,
    Player,
    Trace,
    compiled_player,
    equal,
    host_player,
    play_episodes,
)
from jaxrl_fast.numerics.normalization import is_mask
from jaxrl_fast.spaces import NO_BOUND, is_bounded
from jaxrl_fast.system import fault_of


def check_start(env: Env, name: str) -> None:
    """Check a user's environment for `vectorize`, as training does before it starts.

    Only its reset is compiled, and only the first state is drawn.

    Args:
        env: Environment.
        name: Name in error messages.

    Raises:
        ValueError: A shape or dtype is wrong, the first observation is not finite, or the picture
            is wrong.
    """
    check_shapes(env, name)
    state, first = jax.jit(lambda key: env.reset(key, env.sample_params(key)))(jax.random.key(0))
    for leaf in jax.tree.leaves(first):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not jnp.all(jnp.isfinite(leaf)):
            raise ValueError(f"{name}: reset gives a NaN or an infinity in its observation")
    if env.draw is not None:
        check_picture(env.draw, state, name)


def check_picture(draw: Draw, state: PyTree, name: str) -> None:
    """Check that a state can be drawn.

    Args:
        draw: `Env.draw`.
        state: State to draw.
        name: Name in error messages.

    Raises:
        ValueError: ``draw`` fails or does not return uint8 ``[height, width, 3]``.
    """
    try:
        picture = draw(state)
    except Exception as error:
        raise ValueError(f"{name}: draw failed: {fault_of(error)}") from error
    shape, dtype = np.shape(picture), getattr(picture, "dtype", type(picture).__name__)
    if dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or not all(shape):
        raise ValueError(
            f"{name}: draw gives {dtype}{list(shape)}: write uint8[height, width, 3], an RGB picture"
        )


def check_shapes(env: Env, name: str) -> None:
    """Check the shapes and dtypes of an environment without computing anything.

    Args:
        env: Environment.
        name: Name in error messages.

    Raises:
        ValueError: ``sample_params``, ``reset``, ``step`` or ``success`` fails or contradicts the
            spec, which also declares the metrics.
    """
    _check_observations(name, env.spec)
    action, key = _an_action(name, env.spec), jax.random.key(0)
    params = _shapes(name, "sample_params", env.sample_params, key)
    began = _shapes(name, "reset", env.reset, key, params)
    if not (isinstance(began, tuple) and len(began) == 2):
        raise ValueError(f"{name}: reset must return (state, observation)")
    state, obs = began
    _require_like(name, "reset gives an observation", obs, "its spec", env.spec.obs)
    stepped = _shapes(name, "step", env.step, state, action, key)
    if not (isinstance(stepped, tuple) and len(stepped) == 2 and isinstance(stepped[1], Timestep)):
        raise ValueError(f"{name}: step must return (state, jaxrl_fast.Timestep)")
    after, timestep = stepped
    _require_like(name, "step gives a state", after, "reset", state)
    _require_like(name, "step gives a next_obs", timestep.next_obs, "its spec", env.spec.obs)
    for field, kind in (("terminated", "bool"), ("truncated", "bool")):
        _require_numbers(name, f"step gives {field}", getattr(timestep, field), kind)
    _require_numbers(
        name, "step gives reward", timestep.reward, "real number", reward_shape(env.spec)
    )
    check_names(env.spec.metrics, timestep.metrics, name)
    if env.success is not None:
        _require_numbers(
            name, "success gives", _shapes(name, "success", env.success, after), "bool"
        )


def check_spaces(spec: EnvSpec, name: str) -> None:
    """Check the observations and actions of any environment, compiled or on the host.

    Args:
        spec: Environment.
        name: Name in error messages.

    Raises:
        ValueError: Training does not support them.
    """
    _check_observations(name, spec)
    _an_action(name, spec)


def check_option(name: str, value: Any, default: Any) -> None:
    """Check that an option is a bool or a number if its default is one.

    Args:
        name: Name of the option in error messages.
        value: Value to check.
        default: Default value.

    Raises:
        ValueError: The value is of another kind.
    """
    if isinstance(default, bool) and not isinstance(value, bool):
        raise ValueError(f"{name}={value}: write true or false")
    number = isinstance(default, int | float) and not isinstance(default, bool)
    if number and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name}={value}: write a number, such as {default}")


def _shapes(name: str, what: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        raise ValueError(f"{name}: {what} failed: {fault_of(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _check_observations(name: str, spec: EnvSpec) -> None:
    if not isinstance(spec, EnvSpec):
        raise ValueError(f"{name}: its spec is {type(spec).__name__}: write a jaxrl_fast.EnvSpec")
    odd = _odd_observation(spec.obs)
    if odd is not None:
        raise ValueError(
            f"{name}: its spec has an observation {odd!r}: write jax.ShapeDtypeStruct(shape, dtype) with a dtype such "
            "as jnp.float32, or a dictionary, list or tuple of them"
        )
    leaves = jax.tree_util.tree_leaves_with_path(spec.obs)
    if sum(math.prod(leaf.shape) for path, leaf in leaves if not is_mask(path)) < 1:
        raise ValueError(
            f"{name}: its spec has no numbers to observe: write jax.ShapeDtypeStruct(shape, dtype)"
        )
    _check_agents(name, spec)
    for mask in [leaf for path, leaf in leaves if is_mask(path)]:
        wanted = () if spec.num_agents is None else (spec.num_agents,)
        size = num_choices(spec.action)
        if size and mask.shape != (*wanted, size):
            raise ValueError(
                f"{name}: action_mask has shape {list(mask.shape)}: write one bool for each of the {size} "
                f"{'actions' if isinstance(spec.action, Discrete) else 'values of all parts of an action'}"
                + (" of each agent" if wanted else "")
            )


def num_choices(space: Actions) -> int:
    """Return the length of an ``action_mask``.

    Args:
        space: Action space.

    Returns:
        Number of actions, or of the values of all parts; 0 for continuous actions.
    """
    if isinstance(space, Box):
        return 0
    return space.num_actions if isinstance(space, Discrete) else sum(space.sizes)


def _check_agents(name: str, spec: EnvSpec) -> None:
    """Check that observations have an axis for the agents if there are several."""
    if spec.num_agents is None:
        return
    if not is_count(spec.num_agents):
        raise ValueError(
            f"{name}: num_agents={spec.num_agents!r}: write a whole number of at least 1"
        )
    of_agents = (
        {key: leaf for key, leaf in spec.obs.items() if key != STATE}
        if isinstance(spec.obs, dict)
        else spec.obs
    )
    for leaf in jax.tree.leaves(of_agents):
        if leaf.shape[:1] != (spec.num_agents,):
            raise ValueError(
                f"{name}: its spec has an observation of shape {list(leaf.shape)}: with num_agents={spec.num_agents} "
                f"write [{spec.num_agents}, ...], one row for each agent; only '{STATE}' has no agent axis"
            )
    out = of_agents.get(OUT) if isinstance(of_agents, dict) else None
    if out is not None and (out.shape != (spec.num_agents,) or out.dtype != jnp.bool_):
        raise ValueError(
            f"{name}: '{OUT}' is {out.dtype}{list(out.shape)}: write bool[{spec.num_agents}]"
        )


def _odd_observation(spec: PyTree) -> Any:
    """Return the first part of an observation's spec that is not supported in training or policy
    files, or None.
    """
    if isinstance(spec, dict | list | tuple):
        inside = list(spec.values()) if isinstance(spec, dict) else spec
        keys = [key for key in spec if not isinstance(key, str)] if isinstance(spec, dict) else []
        return next(
            (odd for odd in (*keys, *map(_odd_observation, inside)) if odd is not None), None
        )
    supported = (
        isinstance(spec, jax.ShapeDtypeStruct)
        and _is_real(spec.dtype)
        and jnp.result_type(spec) == spec.dtype
    )
    return None if supported or spec is None else spec


def _an_action(name: str, spec: EnvSpec) -> jax.ShapeDtypeStruct:
    space = spec.action
    if isinstance(space, MultiDiscrete) and space.sizes and all(map(is_count, space.sizes)):
        return jax.ShapeDtypeStruct(action_shape(spec), jnp.int32)
    if isinstance(space, Discrete) and is_count(space.num_actions):
        return jax.ShapeDtypeStruct(action_shape(spec), jnp.int32)
    if isinstance(space, Box) and all(
        isinstance(x, np.ndarray | np.generic | jax.Array) for x in space
    ):
        low, high = np.asarray(space.low), np.asarray(space.high)
        real = _is_real(low.dtype) and _is_real(high.dtype)
        if (
            real
            and low.shape == high.shape
            and low.size
            and is_bounded(low, high).all()
            and (low < high).all()
        ):
            return jax.ShapeDtypeStruct(action_shape(spec), jnp.float32)
    raise ValueError(
        f"{name}: actions {space!r} are not supported: write Discrete(n) with n >= 1, or "
        f"Box(low, high) with arrays of bounds below {NO_BOUND:g}, low < high, or MultiDiscrete(sizes)"
    )


def _require_like(name: str, what: str, actual: PyTree, whose: str, wanted: PyTree) -> None:
    def text(tree: PyTree) -> str:
        shown = jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(jnp.shape(x))}", tree)
        return str(shown).replace("'", "")

    if text(actual) != text(wanted):
        raise ValueError(
            f"{name}: {what} {text(actual)}, but {whose} has {text(wanted)}: shapes and dtypes must agree"
        )


def _require_numbers(
    name: str, what: str, value: Any, kind: str, shape: tuple[int, ...] = ()
) -> None:
    wanted = f"write {'one' if shape == () else 'for each agent one'} {kind}, shape {list(shape)}"
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise ValueError(f"{name}: {what} {value}: {wanted}")
    fits = (
        jnp.issubdtype(value.dtype, jnp.bool_)
        if kind == "bool"
        else _is_real(value.dtype) and value.dtype != bool
    )
    if value.shape != shape or not fits:
        raise ValueError(f"{name}: {what} {value.dtype}{list(value.shape)}: {wanted}")


def _is_real(dtype: Any) -> bool:
    """Check whether an observation may have this dtype: real numbers or bools."""
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


class Verdict(NamedTuple):
    """The result of a rule.

    Attributes:
        kind: ``ok``, ``note`` (unusual, but may be intended) or ``wrong``.
        rule: The rule, one of `RULES`.
        words: What was observed, and what to write; "" if all is well.
    """

    kind: str
    rule: str
    words: str = ""


RULES = {
    "spec": "shapes, dtypes and calls follow the interface",
    "pure": "reset and step are pure functions",
    "starts": "the seed decides where an episode starts",
    "repeats": "the same seed and actions give the same episode, also in a second environment and after other episodes",
    "separate": "environments do not influence each other",
    "actions": "actions have an effect",
    "finite": "observations and rewards are finite, also under extreme actions",
    "space": "observations, rewards and ends are in their spaces at every step",
    "mask": "a mask allows at least one action",
    "terminal": "a step returns the terminal observation, and does not reset",
    "limit": "a time limit truncates and does not terminate",
    "image": "an image has the axes [height, width, channels]",
}


class Report(NamedTuple):
    """The result of `check_env`. Its text has one line for each rule.

    Attributes:
        name: Name of the environment.
        findings: Results of the rules that were checked.
        steps_per_s: Steps per second over all environments, or None if they were not run.
        compile_s: Seconds to compile the timed steps, or None on the host.
        num_envs: Number of environments that were timed.
    """

    name: str
    findings: tuple[Verdict, ...]
    steps_per_s: float | None = None
    compile_s: float | None = None
    num_envs: int = 0

    @property
    def wrong(self) -> tuple[Verdict, ...]:
        """Rules that are broken."""
        return tuple(finding for finding in self.findings if finding.kind == "wrong")

    def lines(self) -> list[str]:
        """Return one line for each rule, and one for the speed."""
        rules = [
            f"{f.kind:<6} {RULES[f.rule]}{': ' if f.words else ''}{f.words}" for f in self.findings
        ]
        if self.steps_per_s is None:
            return rules
        compiled = "" if self.compile_s is None else f", compiled in {self.compile_s:.1f} s"
        return [
            *rules,
            f"speed  {self.steps_per_s:,.0f} steps/s in {self.num_envs} environments{compiled}",
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


TIMED_ENVS, TIMED_STEPS = 64, 64


def check_env(
    env: Any, *, num_steps: int = 1_000, seed: int = 0, tell: Callable[[str], None] = print
) -> Report:
    """Play an environment, and report which rules it follows, with its speed.

    Args:
        env: `Env`, `VecEnv`, `HostEnv`, an environment of Gymnasium, PettingZoo, gymnax or brax, or
            a function that makes one. A function is called twice, and the environments are
            compared.
        num_steps: Steps of each of 8 environments, at least to the end of the time limit, but at
            most 20 s.
        seed: Seed.
        tell: Gets each line.

    Returns:
        The report. ``report.wrong`` is empty if no rule is broken.

    Raises:
        ValueError: ``env`` is none of these, or cannot be made.
    """
    try:
        report = _report_on(env, num_steps, seed)
    except RuleBroken as error:
        report = Report("", (Verdict("wrong", "spec", str(error)),))
    for line in report.lines():
        tell(line)
    return report


def _report_on(env: Any, num_steps: int, seed: int) -> Report:
    again: Callable[[], Any] | None = env if callable(env) else None
    made = env if again is None else again()
    if not isinstance(made, Env | VecEnv | HostEnv):
        make = env if callable(env) or isinstance(env, str) else partial(copy.deepcopy, env)
        sizes: dict[str, Any] = dict(num_envs=1, num_seeds=1, pool={"workers": 0, "num_groups": 1})
        again = partial(import_module("jaxrl_fast.envs.custom").make_any, make=make, **sizes)
        made = again()
    if not isinstance(made, HostEnv):
        return _report_on_env(_single(made), num_steps, seed, again)
    try:
        return _report_on_host(made, num_steps, seed)
    finally:
        if made is not env:
            made.close()


def _single(env: Env | VecEnv) -> Env:
    if isinstance(env, Env):
        return env
    if env.env is None:
        raise ValueError(
            f"{env.spec.name}: check the single environment from which this VecEnv was made"
        )
    return env.env


def _report_on_env(env: Env, num_steps: int, seed: int, again: Callable[[], Any] | None) -> Report:
    name = env.spec.name
    try:
        check_start(env, name)
    except ValueError as error:
        return Report(name, (Verdict("wrong", "spec", str(error)),))
    verdicts = [Verdict("ok", "spec"), _judge_purity(env)]
    if verdicts[1].kind == "wrong":
        return Report(name, tuple(verdicts))
    try:
        player = compiled_player(env)
        second = lambda: player if again is None else compiled_player(_single(again()))  # noqa: E731
        findings = (
            *verdicts,
            *_judge_images(with_image_axes(env).spec),
            *_judge(player, second, num_steps, seed),
        )
        steps_per_s, compile_s = _speed(env)
        return Report(
            name=name,
            findings=findings,
            steps_per_s=steps_per_s,
            compile_s=compile_s,
            num_envs=TIMED_ENVS,
        )
    except Exception as error:
        message = f"{NUM_ENVS} of them cannot be played: {fault_of(error)}"
        return Report(name, (Verdict("wrong", "spec", message),))


def _report_on_host(host: HostEnv, num_steps: int, seed: int) -> Report:
    if host.watched is None:
        raise ValueError(
            f"{host.spec.name}: EnvPool's environments cannot be checked: write pool.backend=workers"
        )
    outside: list[str] = []
    players = [host_player(host.watched(NUM_ENVS, outside.append)) for _ in range(2)]
    try:
        verdicts = _judge(players[0], lambda: players[1], num_steps, seed)
        steps_per_s = players[0].steps_per_s()
    except RuntimeError as error:  # `PoolError`, which has the environment's traceback
        return Report(host.spec.name, (Verdict("wrong", "spec", _first_line(error)),))
    finally:
        for player in players:
            player.close()
    space = Verdict("wrong", "space", outside[0]) if outside else Verdict("ok", "space")
    return Report(
        name=host.spec.name,
        findings=(Verdict("ok", "spec"), *_judge_images(host.spec), *verdicts, space),
        steps_per_s=steps_per_s,
        compile_s=None,
        num_envs=NUM_ENVS,
    )


def _judge(
    player: Player, second: Callable[[], Player], num_steps: int, seed: int
) -> list[Verdict]:
    """Play the environments, and return the findings of the rules that are the same for all of
    them.
    """
    limit = player.spec.max_episode_steps
    long = max(num_steps, 1 + min(limit or 0, 5 * num_steps))
    starts, trace = _judge_starts(player, seed), play_episodes(player, long, seed)
    later = play_episodes(player, len(trace.steps), seed)
    other = play_episodes(second(), len(trace.steps), seed, changed=True)
    verdicts = [starts, *_judge_repeats(trace, later, other, second, seed)]
    masked = isinstance(player.spec.obs, dict) and "action_mask" in player.spec.obs
    for rule in ("finite", *(["mask"] if masked else []), "terminal"):
        verdicts.append(
            Verdict("wrong", rule, trace.faults[rule])
            if rule in trace.faults
            else Verdict("ok", rule)
        )
    return [*verdicts, _judge_limit(trace.ends, limit)]


def _judge_images(spec: EnvSpec) -> list[Verdict]:
    return [Verdict("note", "image", line) for line in describe_images(spec)]


def _judge_starts(player: Player, seed: int) -> Verdict:
    one, same, other = player.start(seed), player.start(seed), player.start(seed + 1)
    if not equal(one, same).all():
        message = "two resets with the same seed give different observations: draw with the key only, or on the host from"
        return Verdict(
            "wrong", "starts", f"{message} self.np_random after super().reset(seed=seed)"
        )
    rolled = jax.tree.map(lambda leaf: np.roll(leaf, 1, axis=0), one)
    if equal(one, other).all() and equal(one, rolled).all():
        return Verdict("note", "starts", "all seeds give the same first observation: intended?")
    return Verdict("ok", "starts")


def _judge_repeats(
    trace: Trace, later: Trace, other: Trace, second: Callable[[], Player], seed: int
) -> list[Verdict]:
    """Compare the same actions in the same and in a second environment, and other actions in
    environment 0.
    """

    def differences(one: Trace, two: Trace) -> tuple[np.ndarray, int]:
        """Return for each environment whether it differs, and the first step at which one does."""
        differ, at = ~equal(one.first, two.first), 0
        for number, (a, b) in enumerate(zip(one.steps, two.steps, strict=False), 1):
            parts = (a.next_obs, a.reward, a.terminated), (b.next_obs, b.reward, b.terminated)
            new = ~equal(*parts)
            at = number if not at and new[1:].any() else at
            differ = differ | new
        return differ, at

    changed, at = differences(trace, other)
    acts = Verdict("ok", "actions")
    if not changed[0]:
        message = f"other actions gave the same observations, rewards and ends in {len(trace.steps)} steps"
        acts = Verdict("wrong", "actions", message)
    again, when = differences(trace, later)
    if again.any():
        message = (
            f"after other episodes, step {when} differs: something outlives an episode, such as the running statistics "
            "of a wrapper or a random generator without the seed"
        )
        return [Verdict("wrong", "repeats", message), acts]
    if not changed[1:].any():
        return [Verdict("ok", "repeats"), Verdict("ok", "separate"), acts]
    fresh, since = differences(trace, play_episodes(second(), len(trace.steps), seed))
    if fresh.any():
        return [
            Verdict(
                "wrong",
                "repeats",
                f"step {since} differs in a second environment that was made alike",
            ),
            acts,
        ]
    message = f"step {at} differs where another environment got other actions: they share something that changes"
    return [Verdict("ok", "repeats"), Verdict("wrong", "separate", message), acts]


def _judge_limit(ends: list[tuple[int, str]], limit: int | None) -> Verdict:
    lengths = [length for length, kind in ends if kind == "terminated"]
    at, near = lengths.count(limit or 0), lengths.count((limit or 0) - 1)
    if limit is not None and limit > 1 and at >= 2 and at > 3 * near:
        reason = f"{at} episodes terminated after exactly {limit} steps, the time limit: return terminated=False there"
        return Verdict("wrong", "limit", f"{reason}; the limit itself truncates")
    if len(lengths) >= 4 and len(set(lengths)) == 1 and lengths[0] > 1:
        reason = f"all {len(lengths)} terminations came after exactly {lengths[0]} steps: if that is a time limit, return"
        return Verdict(
            "note",
            "limit",
            f"{reason} truncated there, or write it as max_episode_steps or env.episode_length",
        )
    if not ends:
        return Verdict("note", "limit", "no episode ended")
    return Verdict("ok", "limit")


def _judge_purity(env: Env) -> Verdict:
    """Trace reset and step twice, since a side effect or a value from outside changes the trace."""
    key = jax.random.key(0)
    params = env.sample_params(key)
    state = jax.eval_shape(lambda key: env.reset(key, params)[0], key)
    action = jax.ShapeDtypeStruct(
        action_shape(env.spec), jnp.float32 if isinstance(env.spec.action, Box) else jnp.int32
    )
    for what, function, args in (
        ("reset", env.reset, (key, params)),
        ("step", env.step, (state, action, key)),
    ):
        try:
            first, again = (
                _fingerprint(jax.make_jaxpr(lambda *args, f=function: f(*args))(*args))
                for _ in range(2)
            )
        except Exception as error:
            reason = f"{what} fails when it is traced again: {type(error).__name__}: {_first_line(error)}"
            return Verdict("wrong", "pure", reason)
        if first != again:
            reason = f"{what} computes something else each time that it is traced: it reads or writes a value outside of"
            return Verdict(
                "wrong",
                "pure",
                f"{reason} its arguments, such as a counter or NumPy's random numbers",
            )
        called = next((name for name, _ in first if "callback" in name), None)
        if called is not None:
            reason = f"{what} calls Python ({called}) at every step: such calls are slow, and JAX may repeat or drop them"
            return Verdict("note", "pure", reason)
    return Verdict("ok", "pure")


def _fingerprint(closed: Any) -> list[tuple[str, str]]:
    """List the operations and constants of a traced program, also of the programs in it."""
    operations, todo = [], [closed]
    while todo:
        program = todo.pop()
        for x in getattr(program, "consts", ()):
            numbers = (
                jax.random.key_data(x)
                if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)
                else x
            )
            operations.append(("constant", str(hash(np.asarray(numbers).tobytes()))))
        for eqn in program.eqns:
            literals = [str(v.val) for v in eqn.invars if hasattr(v, "val")]
            operations.append((eqn.primitive.name, f"{literals} {[v.aval for v in eqn.outvars]}"))
            parts = jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns"))
            todo.extend(part for part in parts if hasattr(part, "eqns"))
    return operations


def _speed(env: Env) -> tuple[float, float]:
    """Return steps per second with random-like actions, and the seconds to compile them."""
    vec = vectorize(env, num_envs=TIMED_ENVS)
    space, shape = env.spec.action, (TIMED_ENVS, *action_shape(env.spec))

    def run(key: jax.Array) -> Any:
        state, _ = vec.reset(key)
        bank = vec.draw_fresh(key, TIMED_STEPS)

        def advance(state: Any, t: jax.Array) -> Any:
            now = jax.random.fold_in(key, t)
            drawn = jax.random.uniform(now, shape)
            if isinstance(space, Box):
                low, high = (
                    jnp.broadcast_to(jnp.asarray(bound, jnp.float32), shape) for bound in space
                )
                action = low + drawn * (high - low)
            else:
                numbers = jnp.asarray(
                    space.num_actions if isinstance(space, Discrete) else space.sizes
                )
                action = (drawn * jnp.broadcast_to(numbers, shape)).astype(jnp.int32)
            state, ts = vec.step(state, action, now, bank, t)
            return state, ts.reward

        return jax.lax.scan(advance, state, jnp.arange(TIMED_STEPS))

    begin_s = time.perf_counter()
    compiled = jax.jit(run).lower(jax.random.key(0)).compile()
    compile_s = time.perf_counter() - begin_s
    jax.block_until_ready(compiled(jax.random.key(1)))
    begin_s = time.perf_counter()
    jax.block_until_ready(compiled(jax.random.key(2)))
    return TIMED_ENVS * TIMED_STEPS / (time.perf_counter() - begin_s), compile_s
