"""Functions that make Gymnasium environments by name, with their wrappers. Workers import this
module: no JAX.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium

from jaxrl_fast.envs.pool.several_agents import AgentsTogether
from jaxrl_fast.envs.pool.stepping import GOES_ON, MakeGymnasium, refuse_statistics
from jaxrl_fast.system import fault_of, place_of

ATARI_EPISODE_STEPS = 27_000
"""30 minutes at 60 frames per second, with four frames per step (Machado et al., 2018)."""
WRAPPERS = "a name of gymnasium.wrappers, my_package.MyWrapper, or {name: {option: value}}"


def recipe(
    id: str,
    *,
    wrappers: Sequence[str | Mapping[str, Mapping[str, Any]]] = (),
    max_episode_steps: int | None = None,
    **options: Any,
) -> MakeGymnasium:
    """Return a function that makes a Gymnasium environment, in the parent or in a worker.

    Args:
        id: Gymnasium id.
        wrappers: Wrappers in order, applied outside of the time limit: names of
            `gymnasium.wrappers`, such as ``"FlattenObservation"``, ``"my_package.MyWrapper"``, or
            with options ``{"ClipReward": {"min_reward": -1}}``.
        max_episode_steps: Time limit in steps, or None for the registered one.
        **options: Arguments of the environment's constructor.

    Returns:
        The function, which can be pickled.

    Raises:
        ValueError: Unknown id or wrapper, or a time limit below 1.
    """
    if max_episode_steps is not None and not (
        type(max_episode_steps) is int and 1 <= max_episode_steps < 2**31
    ):
        advice = "write a whole number of at least 1 that 32 bits hold (2,147,483,647)"
        raise ValueError(f"max_episode_steps={max_episode_steps}: {advice}")
    spec = copy.deepcopy(find(id))
    spec.order_enforce = False  # the pool resets before it steps
    spec.max_episode_steps = max_episode_steps or spec.max_episode_steps
    return partial(build_env, spec, tuple(_wrapper(one) for one in wrappers), options)


def build_env(
    spec: gymnasium.envs.registration.EnvSpec,
    wrappers: Sequence[tuple[Callable[..., gymnasium.Env], Mapping[str, Any]]],
    options: Mapping[str, Any],
) -> gymnasium.Env:
    """Make the environment of a `recipe`.

    Args:
        spec: Gymnasium's registration.
        wrappers: Wrapper classes and their options, in order.
        options: Arguments of the environment's constructor.

    Returns:
        The environment.
    """
    if str(spec.entry_point).startswith("ale_py"):
        ale_py = import_module("ale_py")
        # else each process prints a banner
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    with (
        _quiet_mujoco()
        if str(spec.entry_point).startswith("gymnasium.envs.mujoco")
        else nullcontext()
    ):
        env = gymnasium.make(spec, disable_env_checker=True, **options)
    for wrapper, wrapper_options in wrappers:
        env = wrapper(env, **wrapper_options)
    return env


def limited(make: Callable[[], Any], max_episode_steps: int) -> gymnasium.Env:
    """Make an environment with another time limit.

    Args:
        make: Makes an environment.
        max_episode_steps: Time limit in steps. It replaces the limit of a
            `gymnasium.wrappers.TimeLimit`.

    Returns:
        The environment.
    """
    layer = env = make()
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            layer._max_episode_steps = max_episode_steps
            return env
        layer = layer.env
    # `AgentsTogether` counts its steps.
    return (
        env
        if isinstance(layer, AgentsTogether)
        else gymnasium.wrappers.TimeLimit(env, max_episode_steps)
    )


def find(id: str) -> gymnasium.envs.registration.EnvSpec:
    """Look up Gymnasium's registration of an id.

    Args:
        id: Gymnasium id. ``my_package:MyEnv-v0`` imports ``my_package`` first.

    Returns:
        The registration.

    Raises:
        ValueError: The id is unknown, or its package is not installed.
    """
    module, _, name = str(id).rpartition(":")
    try:
        if module:
            import_module(module)
        if name.startswith("ALE/"):
            gymnasium.register_envs(import_module("ale_py"))
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and place_of(error) is None:
            needed = "'jaxrl_fast[atari]'" if error.name == "ale_py" else str(error.name)
            raise ValueError(
                f"env.id={id} needs the package '{error.name}': pip install {needed}"
            ) from error
        raise ValueError(
            f"env.id={id}: cannot import {module or 'ale_py'}: {fault_of(error)}"
        ) from error
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ValueError(f"env.id={id}: Gymnasium: {' '.join(str(error).split())}") from error


class LifeLoss(gymnasium.Wrapper):
    """Ends a training episode at the loss of a life, while the game continues from the same state.

    No step is added, no reward is lost, and the score is the whole game's.

    Source: Mnih et al. (2015).
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.lives, self.over, self.last = 0, True, None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the game; ``terminated`` is also true if a life was lost."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self.env.unwrapped.ale.lives()  # type: ignore[attr-defined]
        self.over = terminated or truncated
        # some games end a few steps after the last life
        lost = 0 < lives < self.lives and not self.over
        self.lives, self.last = lives, obs
        return obs, reward, terminated or lost, truncated, {**info, GOES_ON: True} if lost else info

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start a new game if the last one is over or a seed is given, else return the observation
        of the next life.
        """
        if not self.over and options.get("seed") is None:
            return self.last, {}
        obs, info = self.env.reset(**options)
        self.over, self.last = False, obs
        self.lives = self.env.unwrapped.ale.lives()  # type: ignore[attr-defined]
        return obs, info


def atari(
    game: str,
    *,
    sticky: bool,
    life_loss: bool,
    frame_skip: int,
    noop_max: int,
    screen_size: int,
    episode_length: int | None,
    **options: Any,
) -> MakeGymnasium:
    """Return a function that makes an Atari game with the usual preprocessing.

    A step has one grey frame ``[84, 84, 1]`` uint8. Frames are stacked later (`frame_stack`).

    Args:
        game: ``Pong`` or ``ALE/Pong-v5``.
        sticky: Repeat the last action with probability 0.25 (Machado et al., 2018).
        life_loss: End an episode with each lost life.
        frame_skip: Frames for which an action is repeated; the maximum of the last two is observed.
        noop_max: Largest number of idle frames at the start of a game.
        screen_size: Height and width of a frame in pixels.
        episode_length: Time limit in steps of the policy, or None.
        **options: Arguments of ALE.

    Returns:
        The function, which can be pickled.

    Raises:
        ValueError: Unknown game, or ``ale-py`` or OpenCV is not installed.
    """
    sizes = {"frame_skip": frame_skip, "noop_max": noop_max, "screen_size": screen_size}
    spec = copy.deepcopy(_game(game))
    try:
        import_module("cv2")
    except ModuleNotFoundError as error:
        raise ValueError(f"env.id={game} needs OpenCV: pip install 'jaxrl_fast[atari]'") from error
    spec.order_enforce, spec.max_episode_steps = False, None
    ale = {
        "frameskip": 1,
        "repeat_action_probability": 0.25 if sticky else 0.0,
        "obs_type": "grayscale",
        **options,
    }
    wrappers: list[tuple[Callable[..., gymnasium.Env], dict[str, Any]]] = [
        (gymnasium.wrappers.AtariPreprocessing, {**sizes, "grayscale_newaxis": True})
    ]
    if episode_length is not None:
        wrappers.append((gymnasium.wrappers.TimeLimit, {"max_episode_steps": episode_length}))
    if life_loss:
        wrappers.append((LifeLoss, {}))
    return partial(build_env, spec, tuple(wrappers), ale)


def _game(name: str) -> gymnasium.envs.registration.EnvSpec:
    """Return the registration of ``Pong`` or ``ALE/Pong-v5``."""
    short = str(name).removeprefix("ALE/").removesuffix("-v5")
    find("ALE/Pong-v5")  # registers all of them
    games = {spec.name: spec for spec in gymnasium.registry.values() if spec.namespace == "ALE"}
    if short in games:
        return games[short]
    lowered = {game.lower(): game for game in games}
    near = [lowered[game] for game in get_close_matches(short.lower(), lowered, n=3, cutoff=0.5)]
    hint = (
        f"nearest: {', '.join(near)}"
        if near
        else "write one such as Pong, Breakout or SpaceInvaders"
    )
    raise ValueError(f"env.id={name}: Atari has no such game; {hint}")


@contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """Suppress MuJoCo's deprecation warning about Gymnasium's HalfCheetah, printed and logged for
    each environment.
    """
    mujoco = import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _wrapper(
    one: str | Mapping[str, Mapping[str, Any]],
) -> tuple[Callable[..., gymnasium.Env], dict[str, Any]]:
    if isinstance(one, Mapping) and len(one) == 1:
        ((name, options),) = one.items()
    else:
        name, options = one, {}  # type: ignore[assignment]
    if not (isinstance(name, str) and isinstance(options or {}, Mapping)):
        raise ValueError(f"wrappers: {one!r}: write {WRAPPERS}")
    module, _, attribute = name.rpartition(".")
    try:
        module = f"gymnasium.wrappers.{module}" if module in ("", "vector") else module
        wrapper = getattr(import_module(module.rstrip(".")), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"wrappers: there is no {name}: write {WRAPPERS}") from error
    refuse_statistics(wrapper, "wrappers")
    return wrapper, dict(options or {})
