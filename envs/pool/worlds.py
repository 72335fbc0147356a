"""Gymnasium environments by name, with their wrappers. No JAX: the workers import this."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium

ATARI_EPISODE_STEPS = 27_000
"""Half an hour at 60 frames a second, four frames a step (Machado et al., 2018)."""
WRAPPERS = "a name of gymnasium.wrappers, my_package.MyWrapper, or {name: {option: value}}"


def recipe(
    id: str,
    *,
    wrappers: Sequence[str | Mapping[str, Mapping[str, Any]]] = (),
    max_episode_steps: int | None = None,
    **options: Any,
) -> Callable[[], gymnasium.Env]:
    """A function that makes the environment ``id``, here or in a worker; ``options`` go to the environment.

    ``wrappers`` are put around it in order, the time limit being inside of them: ``"FlattenObservation"`` and the like
    of `gymnasium.wrappers`, ``"my_package.MyWrapper"``, or with options ``{"ClipReward": {"min_reward": -1}}``.

    Raises:
        ValueError: unknown id or wrapper, or a time limit below 1.
    """
    if max_episode_steps is not None and not (type(max_episode_steps) is int and max_episode_steps >= 1):
        raise ValueError(f"max_episode_steps={max_episode_steps}: write a whole number of at least 1")
    spec = copy.deepcopy(find(id))
    spec.order_enforce = False  # the pool resets before it steps
    spec.max_episode_steps = max_episode_steps or spec.max_episode_steps
    return partial(build, spec, tuple(_wrapper(one) for one in wrappers), options)


def build(
    spec: gymnasium.envs.registration.EnvSpec,
    wrappers: Sequence[tuple[Callable[..., gymnasium.Env], Mapping[str, Any]]],
    options: Mapping[str, Any],
) -> gymnasium.Env:
    """The environment of a `recipe`."""
    if str(spec.entry_point).startswith("ale_py"):
        ale_py = import_module("ale_py")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else each process prints a banner
    with _quiet_mujoco() if str(spec.entry_point).startswith("gymnasium.envs.mujoco") else nullcontext():
        env = gymnasium.make(spec, disable_env_checker=True, **options)
    for wrapper, wrapper_options in wrappers:
        env = wrapper(env, **wrapper_options)
    return env


def find(id: str) -> gymnasium.envs.registration.EnvSpec:
    """What Gymnasium has registered as ``id``; ``my_package:MyEnv-v0`` imports ``my_package`` first.

    Raises:
        ValueError: nothing is, or its package is not installed.
    """
    module, _, name = str(id).rpartition(":")
    try:
        if module:
            import_module(module)
        if name.startswith("ALE/"):
            gymnasium.register_envs(import_module("ale_py"))
    except ModuleNotFoundError as error:
        needed = "'jaxrl_fast[atari]'" if error.name == "ale_py" else str(error.name)
        raise ValueError(f"env.id={id} needs the package '{error.name}': pip install {needed}") from error
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ValueError(f"env.id={id}: Gymnasium: {' '.join(str(error).split())}") from error


class EpisodicLife(gymnasium.Wrapper):
    """Each life is an episode for the learner; the game itself begins anew only when it is over (Mnih et al., 2015)."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.lives = 0
        self.over = True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the game's, with ``terminated`` also where a life was lost."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self.env.unwrapped.ale.lives()  # type: ignore[attr-defined]
        self.over = terminated or truncated
        lost, self.lives = lives < self.lives, lives
        return obs, reward, terminated or lost, truncated, info

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """A new game where the last is over or a seed is given, else one idle step into the next life."""
        if self.over or options.get("seed") is not None:
            obs, info = self.env.reset(**options)
        else:
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset(**options)
        self.over = False
        self.lives = self.env.unwrapped.ale.lives()  # type: ignore[attr-defined]
        return obs, info


def atari(
    game: str,
    *,
    sticky: bool = True,
    life_loss: bool = False,
    frame_skip: int = 4,
    noop_max: int = 30,
    screen_size: int = 84,
    max_episode_steps: int | None = ATARI_EPISODE_STEPS,
    **options: Any,
) -> Callable[[], gymnasium.Env]:
    """A function that makes an Atari game with the usual preprocessing: one grey frame ``[84, 84]`` uint8 a step.

    Each action is repeated for ``frame_skip`` frames, the last two are joined by their maximum; a game begins with up
    to ``noop_max`` idle frames. ``sticky`` repeats the last action with probability 0.25 (Machado et al., 2018).
    ``max_episode_steps`` counts the policy's steps; ``options`` go to ALE. Frames are stacked by whoever learns.

    Raises:
        ValueError: unknown game, or ``ale-py`` or OpenCV is not installed.
    """
    id = game if "/" in game else f"ALE/{game}-v5"
    spec = copy.deepcopy(find(id))
    try:
        import_module("cv2")
    except ModuleNotFoundError as error:
        raise ValueError(f"env.id={id} needs OpenCV: pip install 'jaxrl_fast[atari]'") from error
    spec.order_enforce, spec.max_episode_steps = False, None
    ale = {"frameskip": 1, "repeat_action_probability": 0.25 if sticky else 0.0, "obs_type": "grayscale", **options}
    preprocessing = {"frame_skip": frame_skip, "noop_max": noop_max, "screen_size": screen_size}
    wrappers: list[tuple[Callable[..., gymnasium.Env], dict[str, Any]]] = [
        (gymnasium.wrappers.AtariPreprocessing, preprocessing)
    ]
    if max_episode_steps is not None:
        wrappers.append((gymnasium.wrappers.TimeLimit, {"max_episode_steps": max_episode_steps}))
    if life_loss:
        wrappers.append((EpisodicLife, {}))
    return partial(build, spec, tuple(wrappers), ale)


@contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """MuJoCo prints a deprecation in Gymnasium's HalfCheetah file for each one made, and logs it to a file."""
    mujoco = import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _wrapper(one: str | Mapping[str, Mapping[str, Any]]) -> tuple[Callable[..., gymnasium.Env], dict[str, Any]]:
    if isinstance(one, Mapping) and len(one) == 1:
        ((name, options),) = one.items()
    else:
        name, options = one, {}  # type: ignore[assignment]
    if not (isinstance(name, str) and isinstance(options or {}, Mapping)):
        raise ValueError(f"wrappers: {one!r}: write {WRAPPERS}")
    module, _, attribute = name.rpartition(".")
    try:
        wrapper = getattr(import_module(module or "gymnasium.wrappers"), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"wrappers: there is no {name}: write {WRAPPERS}") from error
    return wrapper, dict(options or {})
