"""`jf.check_env` and its command: each rule refuses an environment that breaks it, and a good one
passes.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from many_commands import Commands, refusal

import jaxrl_fast as jf
from jaxrl_fast.envs.env_checks import RULES, Report

LIMIT = 12


def report_on(env: Any, **options: Any) -> Report:
    return jf.check_env(env, num_steps=40, tell=lambda line: None, **options)


def only(report: Report, rule: str, kind: str = "wrong") -> str:
    """Return the words of the only rule that is not ok."""
    assert [(f.kind, f.rule) for f in report.findings if f.kind != "ok"] == [(kind, rule)], str(
        report
    )
    return next(f.words for f in report.findings if f.kind != "ok")


Ends = Callable[[Any, Any], tuple[Any, Any]]


def walk(
    start: Callable[[Any], Any] = lambda key: jax.random.uniform(key, (2,)),
    move: Callable[[Any, Any], Any] = lambda x, action: x + 0.1 * action,
    reward: Callable[[Any, Any], Any] = lambda x, action: x[0],
    ends: Ends = lambda x, steps: (jnp.abs(x[0]) > 1.3, jnp.zeros((), bool)),
    after: Callable[[Any, Any, Any], Any] = lambda state, done, key: state,
    obs: Callable[[Any, Any], Any] = lambda x, following: following,
    limit: int | None = LIMIT,
) -> jf.Env:
    """Make a point that walks; a test replaces a part of it by a wrong one."""

    def reset(key: jax.Array, params: Any) -> Any:
        x = start(key)
        return (x, jnp.zeros((), jnp.int32)), x

    def step(state: Any, action: jax.Array, key: jax.Array) -> Any:
        x = move(state[0], action)
        terminated, truncated = ends(x, state[1] + 1)
        following = after((x, state[1] + 1), terminated | truncated, key)
        given = jf.Timestep(
            obs(x, following[0]), following[0], reward(x, action), terminated, truncated
        )
        return following, given

    box = jf.Box(-np.ones(2, np.float32), np.ones(2, np.float32))
    return jf.Env(
        jf.EnvSpec("walk", jax.ShapeDtypeStruct((2,), jnp.float32), box, limit), reset, step
    )


def test_a_good_environment_follows_all_rules():
    lines: list[str] = []
    report = jf.check_env(walk(), num_steps=40, tell=lines.append)
    assert not report.wrong and {f.kind for f in report.findings} == {"ok"}
    assert [f.rule for f in report.findings] == [
        rule for rule in RULES if rule not in ("space", "mask", "image")
    ]
    assert (
        lines == str(report).splitlines()
        and lines[0] == "ok     shapes, dtypes and calls follow the interface"
    )
    assert (
        lines[-1].startswith("speed  ") and " steps/s in 64 environments, compiled in " in lines[-1]
    )
    assert not report_on(jf.vectorize(walk(), num_envs=2)).wrong
    assert not report_on(walk).wrong


CALLS = itertools.count()
LEAKED: list[Any] = []


def leak(x: Any) -> Any:
    """Return a value of the trace before, from the third call on."""
    LEAKED.append(x[0])
    return LEAKED[-2] if len(LEAKED) > 2 else x[0]


NEVER = jnp.zeros((), bool)


def over(limit: int) -> Ends:
    return lambda x, steps: (steps >= limit, NEVER)


def first_again(state: Any, done: Any, key: Any) -> Any:
    """Reset to a stored first state."""
    return jnp.where(done, jnp.ones(2), state[0]), state[1]


def new_start(state: Any, done: Any, key: Any) -> Any:
    """Reset to a new state."""
    x = jnp.where(done, jax.random.uniform(key, (2,)), state[0])
    return x, jnp.where(done, 0, state[1])


BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "counts calls": (
        {"reward": lambda x, a: x[0] + next(CALLS)},
        "pure",
        "step computes something else each time",
    ),
    "NumPy's random": (
        {"start": lambda key: jnp.asarray(np.random.default_rng().random(2), jnp.float32)},
        "pure",
        "reset computes",
    ),
    "no action": (
        {"move": lambda x, a: 0.9 * x},
        "actions",
        "gave the same observations, rewards and ends",
    ),
    "extreme reward": (
        {"reward": lambda x, a: jnp.where(jnp.abs(a[0]) > 0.999, jnp.nan, 1.0)},
        "finite",
        "with extreme actions: reward nan",
    ),
    "infinite observation": ({"move": lambda x, a: 1.0 / (1.0 - a)}, "finite", "observation inf"),
    "limit terminates": (
        {"ends": over(LIMIT)},
        "limit",
        f"terminated after exactly {LIMIT} steps, the time limit",
    ),
    "first again": (
        {"start": lambda key: jnp.ones(2), "after": first_again, "limit": None, "ends": over(5)},
        "terminal",
        "each terminal observation equals the first one of its episode",
    ),
    "new start": (
        {"after": new_start},
        "terminal",
        "a counter in the state starts again where an episode ends",
    ),
    "new start at a limit": (
        {
            "after": lambda state, done, key: (state[0], jnp.where(done, 0, state[1])),
            "ends": lambda x, s: (NEVER, s >= 6),
        },
        "terminal",
        "a counter in the state starts again where an episode ends",
    ),
    "leaks a trace": ({"reward": lambda x, a: leak(x)}, "pure", "fails when it is traced again"),
    "two observations": (
        {"obs": lambda x, following: following + 1},
        "terminal",
        "obs differs from next_obs",
    ),
    "dtype": ({"move": lambda x, a: (x + a).astype(jnp.float16)}, "spec", "step gives a state"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_each_rule_finds_a_compiled_environment_that_breaks_it(fault: str):
    parts, rule, words = BROKEN[fault]
    report = report_on(walk(**parts))
    assert rule in [finding.rule for finding in report.wrong], str(report)
    assert next(f for f in report.wrong if f.rule == rule).words.count(words) == 1, str(report)
    assert len(report.wrong) == 1, str(report)


def test_an_environment_that_cannot_be_played_is_named():
    """Check a step that JAX cannot map over environments."""

    def ordered(x: Any, action: Any) -> Any:
        io_callback(lambda seen: None, None, x, ordered=True)
        return x + action

    assert "8 of them cannot be played: ValueError: Cannot `vmap`" in str(
        report_on(walk(move=ordered))
    )


def test_what_may_be_intended_is_a_note():
    assert "all seeds give the same" in only(
        report_on(walk(start=lambda key: jnp.zeros(2))), "starts", "note"
    )
    assert "exactly 7 steps" in only(report_on(walk(ends=over(7))), "limit", "note")
    still = walk(ends=lambda x, steps: (NEVER, NEVER), limit=None)
    assert only(report_on(still), "limit", "note") == "no episode ended"

    def calls(x: Any, action: Any) -> Any:
        jax.debug.callback(lambda: None)
        return x + action

    assert "step calls Python (debug_callback)" in only(report_on(walk(move=calls)), "pure", "note")


def test_a_second_environment_that_differs_is_found():
    speeds = itertools.count(1)

    def make() -> jf.Env:
        speed = next(speeds)
        return walk(move=lambda x, action: x + 0.1 * speed * action)

    assert "differs in a second environment" in only(report_on(make), "repeats")


# On the host.


class Steps(gymnasium.Env):
    """A good environment: a point that walks; subclasses break one rule."""

    observation_space = gymnasium.spaces.Box(-5, 5, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.steps = self.np_random.random(2).astype(np.float32), 0
        return self.x, {}

    def step(self, action: Any) -> Any:
        self.x, self.steps = self.x + np.float32(0.1) * action, self.steps + 1
        return self.x, float(self.x[0]), bool(abs(self.x[0]) > 1.3), False, {}


def limited(cls: Any) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(cls(), LIMIT)


class Shared(Steps):
    """All environments have one wind."""

    wind = np.zeros(2, np.float32)

    def reset(self, **options: Any) -> Any:
        Shared.wind = np.zeros(2, np.float32)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        Shared.wind = Shared.wind + action
        obs, *others = super().step(action)
        return np.clip(obs + 0.01 * Shared.wind, -5, 5).astype(np.float32), *others


class Statistics(gymnasium.ObservationWrapper):
    """A user's wrapper with a memory."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.mean, self.count = np.zeros(2), 1

    def observation(self, obs: Any) -> Any:
        self.mean, self.count = self.mean + (obs - self.mean) / self.count, self.count + 1
        return (obs - self.mean).astype(np.float32)


class Unseeded(Steps):
    """It starts without the seed."""

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        self.x = np.random.default_rng().random(2).astype(np.float32)
        return self.x, {}


class Outside(Steps):
    """It leaves its space."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))


class Doubles(Steps):
    """Its observations have another dtype after a step."""

    def step(self, action: Any) -> Any:
        obs, *others = super().step(action)
        return obs.astype(np.float64), *others


class Entry(Steps):
    """One entry of its observations has another dtype than its space."""

    observation_space = gymnasium.spaces.Dict(
        x=Steps.observation_space, goal=gymnasium.spaces.Box(-1, 1, (1,))
    )

    def reset(self, **options: Any) -> Any:
        return self.with_goal(super().reset(**options))

    def step(self, action: Any) -> Any:
        return self.with_goal(super().step(action))

    def with_goal(self, found: tuple) -> tuple:
        return {"x": found[0], "goal": np.zeros(1)}, *found[1:]


class Zero(Steps):
    """Its end is a number."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, int(terminated), truncated, info


class Deaf(Steps):
    """Its actions have no effect."""

    def step(self, action: Any) -> Any:
        return super().step(np.full(2, 0.3, np.float32))


class Explosive(Steps):
    """Its reward overflows under extreme actions."""

    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, float("inf") if np.abs(action).min() >= 1 else 0.0, *others


class Ends(Steps):
    """Its time limit terminates."""

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return np.clip(obs, -5, 5), reward, self.steps >= LIMIT, False, {}


class Resets(Steps):
    """It resets itself, as a vectorized environment does."""

    def reset(self, **options: Any) -> Any:
        self.first = super().reset(**options)[0]
        return self.first, {}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return self.first if terminated else obs, reward, terminated, truncated, info


class Numbered(Steps):
    """Each instance moves faster than the one before."""

    numbers = itertools.count()

    def __init__(self) -> None:
        self.speed = next(Numbered.numbers)

    def step(self, action: Any) -> Any:
        return super().step(np.float32(0.001 * self.speed) + action)


class Fails(Steps):
    """It fails in its third step."""

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise RuntimeError("no such file")
        return super().step(action)


HOST: dict[str, tuple[Callable[[], Any], str, str]] = {
    "shared": (
        lambda: limited(Shared),
        "separate",
        "differs where another environment got other actions",
    ),
    "statistics": (lambda: Statistics(limited(Steps)), "repeats", "something outlives an episode"),
    "unseeded": (
        lambda: limited(Unseeded),
        "starts",
        "two resets with the same seed give different observations",
    ),
    "outside": (lambda: limited(Outside), "space", "which is not in Box(0.0, 1.0, (2,), float32)"),
    "doubles": (lambda: limited(Doubles), "space", "step 1 returns an observation float64[2]"),
    "entry": (
        lambda: limited(Entry),
        "space",
        "entry 'goal', float64[1] from 0 to 0, which is not in Box",
    ),
    "zero": (lambda: limited(Zero), "space", "step 1 returns terminated=0: write a bool"),
    "deaf": (lambda: limited(Deaf), "actions", "other actions gave the same"),
    "explosive": (lambda: limited(Explosive), "finite", "actions: reward inf"),
    "ends": (lambda: Ends(), "limit", f"terminated after exactly {LIMIT} steps, the time limit"),
    "resets": (
        lambda: limited(Resets),
        "terminal",
        "each terminal observation equals the first one",
    ),
    "numbered": (lambda: limited(Numbered), "repeats", "differs in a second environment"),
    "fails": (Fails, "spec", "raised RuntimeError: no such file (step 3 of an episode"),
}


@pytest.mark.parametrize("fault", HOST)
def test_each_rule_finds_an_environment_on_the_host_that_breaks_it(fault: str):
    make, rule, words = HOST[fault]
    if fault == "ends":
        host = jf.make_env(
            "custom", make=make, num_envs=2, episode_length=LIMIT, pool={"workers": 0}
        )
        report = report_on(host)
        host.close()
    else:
        report = report_on(make)
    found = {finding.rule: finding.words for finding in report.wrong}
    assert words in found.get(rule, ""), str(report)
    assert set(found) <= {rule, "repeats"} if rule == "starts" else set(found) == {rule}, str(
        report
    )


def test_a_good_environment_on_the_host_follows_all_rules():
    report = report_on(lambda: limited(Steps))
    assert {f.kind for f in report.findings} == {"ok"}, str(report)
    assert {f.rule for f in report.findings} == set(RULES) - {"pure", "mask", "image"}
    assert str(report).splitlines()[-1].endswith(" steps/s in 8 environments")
    assert not report_on(limited(Steps)).wrong, "one environment, which is copied"
    host = jf.make_env("gymnasium", id="CartPole-v1", num_envs=2, pool={"workers": 1})
    assert not report_on(host).wrong
    host.close()


def test_agents_and_masks_are_checked():
    from parallel_envs import Leaving

    class Within(Leaving):
        def action_space(self, agent: str) -> Any:
            return gymnasium.spaces.Discrete(2)

    class Small(Within):
        def observation_space(self, agent: str) -> Any:
            return gymnasium.spaces.Box(-np.inf, 2.5, (4,), np.float64)

    report = report_on(Within)
    assert not report.wrong, str(report)
    assert only_wrong(report_on(Small)).startswith(
        "reset returns the observation of a float64[4] from "
    )


def only_wrong(report: Report) -> str:
    (finding,) = report.wrong
    return finding.words


def test_a_mask_restricts_the_actions():
    """Check that no environment gets an action that its mask forbids, which here gives NaN."""

    def masked(mask_of: Callable[[Any], Any]) -> jf.Env:
        def seen(steps: Any) -> Any:
            mask = mask_of(steps)
            return {"x": steps.astype(jnp.float32)[None], "action_mask": mask}

        def step(steps: Any, action: Any, key: Any) -> Any:
            reward = jnp.where(action == steps % 3, 1.0, jnp.nan)
            return steps + 1, jf.Timestep(seen(steps + 1), seen(steps + 1), reward, NEVER, NEVER)

        obs = {
            "x": jax.ShapeDtypeStruct((1,), jnp.float32),
            "action_mask": jax.ShapeDtypeStruct((3,), bool),
        }
        spec = jf.EnvSpec("masked", obs, jf.Discrete(3), LIMIT)
        return jf.Env(spec, lambda key, params: (jnp.int32(0), seen(jnp.int32(0))), step)

    def broken(mask_of: Callable[[Any], Any]) -> set[str]:
        return {finding.rule for finding in report_on(masked(mask_of)).wrong}

    assert broken(lambda steps: jnp.arange(3) == steps % 3) == {"actions"}, (
        "only one action is allowed"
    )
    assert "finite" in broken(lambda steps: jnp.ones(3, bool))
    assert "mask" in broken(lambda steps: (jnp.arange(3) == steps % 3) & (steps < 5))


# The command.

MODULE = """
from test_check import *

def good():
    return walk()

def deaf():
    return walk(move=lambda x, action: 0.9 * x)

def typed():
    return walk(move=lambda x, action: (x + action).astype(jnp.float16))

def host():
    return limited(Outside)
"""


def test_the_command_prints_a_line_for_each_rule_and_its_exit_code_says_the_result(
    commands: Commands, tmp_path: Path
):
    (tmp_path / "checked.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{MODULE}"
    )
    said = {
        "good": (0, "ok     a time limit truncates and does not terminate"),
        "deaf": (1, "wrong  actions have an effect: other actions gave the same"),
        "typed": (
            1,
            "wrong  shapes, dtypes and calls follow the interface: env.make=checked.typed: step gives",
        ),
        "host": (1, "wrong  observations, rewards and ends are in their spaces at every step: "),
    }
    words = [["check", "env=custom", f"env.make=checked.{name}", "steps=30"] for name in said]
    for ended, (status, line) in zip(commands.run_all(tmp_path, words), said.values(), strict=True):
        assert (ended.status, ended.err) == (status, ""), ended.out
        assert line in ended.out and ended.out.startswith("custom = checked.")
    assert "env=nothing is unknown" in refusal(commands.run(tmp_path, "check", "env=nothing"))
    ended = commands.run(tmp_path, "check", "env=cartpole", "steps=0")
    assert "steps=0: write a number of at least 1" in refusal(ended)
