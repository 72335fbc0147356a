"""Plug-ins of the engine by name: suites of environments, and what other packages register.

Our suites are in a table here. A package of others registers its own by an entry point, which is
looked up only for names that our tables lack:

    [project.entry-points."jaxrl_fast.suites"]
    my_suite = "my_package.suite:SUITE"         # a `Suite`

    [project.entry-points."jaxrl_fast.algorithms"]
    my_algo = "my_package.algorithm:MyAlgo"     # a subclass of `jaxrl_fast.DeclaredAlgorithm`

    [project.entry-points."jaxrl_fast.commands"]
    my_command = "my_package.command:main"      # words -> exit code

Nothing is imported here, since the workers of a pool read this module and must not import JAX.
"""

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Group = Literal["suites", "algorithms", "commands"]
NONE: Mapping[str, str] = MappingProxyType({})


class Defaults(NamedTuple):
    """Settings of a run on an environment that nothing else sets.

    Attributes:
        algo: Name of the algorithm.
        num_envs: Number of environments.
        total_steps: Environment steps over all environments.
    """

    algo: str = "ppo"
    num_envs: int = 16
    total_steps: int = 1_000_000


class Suite(NamedTuple):
    """A suite of environments, described without an import of its package.

    Attributes:
        module: Module of its adapter. It has ``make(id, **options) -> Env``, ``ids()``,
            ``Options``, the dataclass of the options, and may have ``REFUSED``, a reason by id.
        example: An environment of it, for messages.
        defaults: Defaults of its environments.
        algo_of_id: Algorithms with higher returns than the default, by id.
        selected_by: Option that selects the environment.
        is_host: Whether its environments are stepped on the host. ``make_host`` then makes
            several, and ``film`` one that can be drawn.
        agents: Whether its environments have one agent or several; None for any number.
        extra: Whether its package is an extra of ``jaxrl_fast``, to be installed by this name.
        oldest_python: Oldest Python of its package.
        frame_stack: Default number of stacked images, or None.
        leaves_its_space: Ids with observations outside of the bounds that they declare.
        cached_with: Packages that determine its environments, besides their names and options;
            None if compiled programs of them cannot be stored for the next start.
    """

    module: str
    example: str
    defaults: Defaults = Defaults()
    algo_of_id: Mapping[str, str] = NONE
    selected_by: Literal["id", "file", "make"] = "id"
    is_host: bool = False
    agents: Literal["one", "several"] | None = "one"
    extra: bool = False
    oldest_python: tuple[int, int] = (3, 0)
    frame_stack: int | None = None
    leaves_its_space: tuple[str, ...] = ()
    cached_with: tuple[str, ...] | None = None


SUITES: dict[str, Suite] = {
    "brax": Suite(
        "jaxrl_fast.envs.from_brax",
        "ant",
        Defaults(num_envs=64),
        cached_with=("brax", "mujoco", "mujoco_mjx", "jaxopt", "trimesh", "scipy"),
    ),
    "gymnax": Suite(
        "jaxrl_fast.envs.from_gymnax",
        "CartPole-v1",
        Defaults(total_steps=500_000),
        cached_with=("gymnax",),
    ),
    "gymnasium": Suite(
        "jaxrl_fast.envs.from_gymnasium",
        "HalfCheetah-v5",
        Defaults(algo="sac"),
        algo_of_id=dict.fromkeys(
            ("Ant-v5", "HalfCheetah-v5", "Humanoid-v5", "Walker2d-v5"), "flash_sac"
        ),
        is_host=True,
        leaves_its_space=("LunarLander-v3", "LunarLanderContinuous-v3"),
    ),
    "atari": Suite(
        "jaxrl_fast.envs.from_atari",
        "Pong",
        Defaults(num_envs=8, total_steps=10_000_000),
        is_host=True,
        frame_stack=4,
    ),
    "jaxmarl": Suite(
        "jaxrl_fast.suites.from_jaxmarl",
        "MPE_simple_spread_v3",
        Defaults(algo="mappo"),
        agents="several",
        extra=True,
    ),
    "jumanji": Suite(
        "jaxrl_fast.suites.from_jumanji",
        "LevelBasedForaging",
        Defaults(num_envs=64, total_steps=3_000_000),
        algo_of_id=dict.fromkeys(
            ("LevelBasedForaging", "RobotWarehouse", "SearchAndRescue-v0"), "ippo"
        ),
        agents="several",
        extra=True,
    ),
    "playground": Suite(
        "jaxrl_fast.suites.from_playground",
        "CheetahRun",
        Defaults(algo="sac", num_envs=64),
        extra=True,
    ),
    "craftax": Suite(
        "jaxrl_fast.suites.from_craftax",
        "Craftax-Classic-Symbolic-v1",
        Defaults(num_envs=64),
        extra=True,
    ),
    "xminigrid": Suite(
        "jaxrl_fast.suites.from_xminigrid", "MiniGrid-Empty-8x8", Defaults(num_envs=64), extra=True
    ),
    "pgx": Suite(
        "jaxrl_fast.suites.from_pgx",
        "minatar-breakout",
        Defaults(num_envs=64, total_steps=2_000_000),
        extra=True,
    ),
    "octax": Suite("jaxrl_fast.suites.from_octax", "pong", extra=True),
    "jaxtari": Suite(
        "jaxrl_fast.suites.from_jaxtari", "pong", Defaults(total_steps=10_000_000), extra=True
    ),
    "navix": Suite(
        "jaxrl_fast.suites.from_navix",
        "Navix-Empty-8x8-v0",
        Defaults(num_envs=64),
        extra=True,
        oldest_python=(3, 12),
    ),
    "pettingzoo": Suite(
        "jaxrl_fast.envs.from_pettingzoo",
        "mpe2/simple_spread_v3",
        Defaults(algo="mappo"),
        is_host=True,
        agents="several",
    ),
    "traffic": Suite(
        "jaxrl_fast.envs.traffic_junction",
        "TrafficJunction4-v0",
        Defaults(algo="mappo"),
        agents="several",
        cached_with=(),
    ),
    "probe": Suite(
        "jaxrl_fast.envs.probes",
        "value",
        Defaults(total_steps=50_000),
        agents=None,
        cached_with=(),
    ),
    "mjcf": Suite(
        "jaxrl_fast.envs.from_mjcf",
        "robot.xml",
        Defaults(algo="sac", total_steps=100_000),
        selected_by="file",
        agents=None,
    ),
    "custom": Suite(
        "jaxrl_fast.envs.custom",
        "my_package.make",
        Defaults(total_steps=500_000),
        selected_by="make",
        agents=None,
    ),
}
REFUSED_SUITES = {
    "kinetix": "it needs JAX 0.9 or earlier",
    "popgym_arcade": "it replaces gymnax by another version",
}
"""Suites that do not install next to jaxrl_fast, and why."""


class PluginFailed(ValueError):
    """A registered name of another package cannot be loaded."""


def registered(group: Group) -> list[str]:
    """List the names that other packages register.

    Args:
        group: What they register.

    Returns:
        Sorted names.
    """
    return sorted(_entry_points(group))


def load(group: Group, name: str) -> Any:
    """Load what another package registers.

    Args:
        group: What it registers.
        name: Its name.

    Returns:
        The object; None if no package registers the name.

    Raises:
        PluginFailed: The package cannot be imported, or lacks it.
    """
    point = _entry_points(group).get(name)
    if point is None:
        return None
    try:
        return point.load()
    except Exception as error:  # of the code of others
        raise PluginFailed(
            f"{name} of {point.value} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


class Source(NamedTuple):
    """Code that another package registers.

    Attributes:
        package: Package that is imported.
        requires: Names of the distributions that it requires.
    """

    package: str
    requires: tuple[str, ...]


def source_of(group: Group, name: str) -> Source | None:
    """Return the code that another package registers, which decides what its programs compute.

    Args:
        group: What it registers.
        name: Its name.

    Returns:
        The source; None if no package registers the name.
    """
    point = _entry_points(group).get(name)
    if point is None:
        return None
    requires = (point.dist.requires if point.dist is not None else None) or ()
    names = (re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in requires)
    return Source(point.module.split(".")[0], tuple(sorted(names)))


def suite_of(name: str) -> Suite | None:
    """Return the suite of a name.

    Args:
        name: Name of a suite.

    Returns:
        The suite, ours or of another package; None if there is none.

    Raises:
        PluginFailed: It is another package's, and cannot be loaded.
    """
    if name in SUITES:
        return SUITES[name]
    suite = load("suites", name)
    if suite is not None and not isinstance(suite, Suite):
        raise PluginFailed(f"{name} is no jaxrl_fast.plugins.Suite, but {type(suite).__name__}")
    return suite


@cache
def _entry_points(group: Group) -> dict[str, Any]:
    from importlib.metadata import entry_points  # 8 ms, needed for few names

    return {point.name: point for point in entry_points(group=f"jaxrl_fast.{group}")}
