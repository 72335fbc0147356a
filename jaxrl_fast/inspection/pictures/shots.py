"""Greedy episodes, picture by picture. Here it is chosen by suite how the pictures come about:

- brax: its bodies, by MuJoCo's renderer;
- gymnax, MinAtar and environments of one's own: by `Env.draw`, from the state;
- Gymnasium and Atari: by themselves, with ``render_mode="rgb_array"``.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import numpy as np

import envs
from jaxrl_fast.core import EnvSpec
from jaxrl_fast.environments.env import Env
from jaxrl_fast.evaluation.on_host import host_seed, steps_on_host
from jaxrl_fast.evaluation.viewer import watch_bodies
from jaxrl_fast.evaluation.watching import Watched, watch
from jaxrl_fast.inspection.pictures.bodies import drawn_bodies
from jaxrl_fast.inspection.pictures.by_gl import INSTALL_GL
from jaxrl_fast.inspection.pictures.movie import fitted
from jaxrl_fast.policy.policies import Policy

if TYPE_CHECKING:  # Gymnasium takes a second to import
    from envs.pool.camera import FilmedHost

HINTS = {"OpenGL": INSTALL_GL, "pygame": "it comes with pip install 'jaxrl_fast[video]'"}
"""What to do about an error of an environment that draws itself, by a word in it."""


class Shot(NamedTuple):
    """A picture of an episode.

    - ``picture``: uint8 RGB ``[H, W, 3]``.
    - ``steps``, ``returned``: how many steps there were until then, and the sum of their rewards.
    - ``end``: as of `Watched` in the last shot, else empty.
    """

    picture: np.ndarray
    steps: int
    returned: float
    end: str


class Shoot(Protocol):
    """Plays an episode and takes pictures of it."""

    def __call__(self, policy: Policy, *, seed: int, max_steps: int, every: int, width: int) -> Iterator[Shot]:
        """``max_steps``: it is cut after these. Returns shots of its first state, of every ``every``-th after that, and
        of its last one, at most ``width`` pixels wide."""


class Subject(NamedTuple):
    """An environment in front of the camera.

    - ``spec``: its observations, actions and time limit.
    - ``step_s``: how long a step lasts in its pictures, in seconds.
    - ``shoot``: plays an episode and takes pictures.
    """

    spec: EnvSpec
    step_s: float
    shoot: Shoot


@contextmanager
def subject_of(name: str, options: dict[str, Any]) -> Iterator[Subject]:
    """What is drawn of the environment that ``envs.make`` makes of ``name`` and ``options``; closed on leaving.

    Raises:
        ValueError: there are no pictures of it; one line that says what to write instead.
    """
    suite, given = envs.resolve(name, dict(options))
    made = envs.make_to_draw(name, **options)
    if not isinstance(made, Env):
        with closing(made.env):
            yield Subject(made.env.spec, made.step_s, _shoot_on_host(made))
    elif suite == "brax":
        yield _of_bodies(made, given)
    elif made.draw is not None:
        yield Subject(made.spec, made.step_s, _shoot_states(made))
    else:
        raise ValueError(
            f"{made.spec.name} cannot be drawn: its Env has no draw. Write one, a function from a state to "
            "uint8[height, width, 3], and return env._replace(draw=...) from a make of your own (env=custom)"
        )


def picked(last: int, every: int) -> list[int]:
    """The steps of which there are pictures."""
    return [*range(0, last, every), last]


def _of_bodies(env: Env, options: dict[str, Any]) -> Subject:
    from envs import from_brax

    options.pop("frame_stack", None)
    scene = from_brax.scene_of(**options)

    def shoot(policy: Policy, *, seed: int, max_steps: int, every: int, width: int) -> Iterator[Shot]:
        motion, watched = watch_bodies(policy, env, jax.random.key(seed), max_steps=max_steps)
        steps = picked(len(watched.rewards), every)
        for step, picture in zip(steps, drawn_bodies(scene, motion, steps, width), strict=True):
            yield _shot(watched, step, picture)

    return Subject(env.spec, scene.step_s, shoot)


def _shoot_states(env: Env) -> Shoot:
    def shoot(policy: Policy, *, seed: int, max_steps: int, every: int, width: int) -> Iterator[Shot]:
        assert env.draw is not None
        watched = watch(policy, env, jax.random.key(seed), see=lambda state: state, max_steps=max_steps)
        for step in picked(len(watched.rewards), every):
            state = jax.tree.map(lambda x, step=step: x[step], watched.seen)
            yield _shot(watched, step, fitted(env.draw(state), width))

    return shoot


def _shot(watched: Watched, step: int, picture: np.ndarray) -> Shot:
    last = step == len(watched.rewards)
    return Shot(picture, step, float(watched.rewards[:step].sum()), watched.end if last else "")


def _shoot_on_host(film: "FilmedHost") -> Shoot:
    def shoot(policy: Policy, *, seed: int, max_steps: int, every: int, width: int) -> Iterator[Shot]:
        act = jax.jit(policy.act)
        host = host_seed(jax.random.key(seed))
        steps = steps_on_host(act, policy.initial_carry, film.env, policy.params, host)
        yield Shot(_picture(film, width), 0, 0.0, "")
        for number, step in zip(range(1, max_steps + 1), steps, strict=False):
            end = "terminated" if step.terminated[0] else "truncated" if step.truncated[0] else ""
            end = end or ("cut" if number == max_steps else "")
            if end or number % every == 0:
                yield Shot(_picture(film, width), number, float(step.episode_return[0]), end)
            if end:
                return

    return shoot


def _picture(film: "FilmedHost", width: int) -> np.ndarray:
    try:
        return fitted(film.picture(), width)
    except Exception as error:  # of a window system, of a package that is not installed, ...
        reason = " ".join(str(error).split())
        hints = [hint for word, hint in HINTS.items() if word in reason]
        said = "; ".join([f"{type(error).__name__}: {reason}", *hints])
        raise ValueError(f"{film.env.spec.name} cannot be drawn: {said}") from error
