"""The algorithms by name, and a user's by the path of its factory, such as ``my_package.make``.

A new algorithm of this package needs a separate file here, and its class in `DECLARED`. Another
package registers its own (`jaxrl_fast.plugins`).
"""

import inspect
from collections.abc import Callable
from typing import Any

from jaxrl_fast import plugins
from jaxrl_fast.algorithms.bc import Bc
from jaxrl_fast.algorithms.dqn import Dqn
from jaxrl_fast.algorithms.fast_td3 import FastTd3
from jaxrl_fast.algorithms.flash_sac import FlashSac
from jaxrl_fast.algorithms.impala import Impala
from jaxrl_fast.algorithms.ippo import Ippo
from jaxrl_fast.algorithms.iql import Iql
from jaxrl_fast.algorithms.mappo import Mappo
from jaxrl_fast.algorithms.ppo import Ppo
from jaxrl_fast.algorithms.pqn import Pqn
from jaxrl_fast.algorithms.pqn_vdn import PqnVdn
from jaxrl_fast.algorithms.reppo import Reppo
from jaxrl_fast.algorithms.sac import Sac
from jaxrl_fast.algorithms.sac_discrete import SacDiscrete
from jaxrl_fast.algorithms.td3 import Td3
from jaxrl_fast.algorithms.td3_bc import Td3Bc
from jaxrl_fast.core import EnvSpec
from jaxrl_fast.learning.algorithm import Agent, AnyAlgorithm, DeclaredAlgorithm
from jaxrl_fast.numerics.optimizers import plain
from jaxrl_fast.system import fault_of, import_function

DECLARED: tuple[type[DeclaredAlgorithm], ...] = (
    Bc,
    Dqn,
    FastTd3,
    FlashSac,
    Impala,
    Ippo,
    Iql,
    Mappo,
    Ppo,
    Pqn,
    PqnVdn,
    Reppo,
    Sac,
    SacDiscrete,
    Td3,
    Td3Bc,
)
ALGORITHMS: dict[str, type[DeclaredAlgorithm]] = {cls.name: cls for cls in DECLARED}
CUSTOM = "custom"
"""Name on the command line of an algorithm whose factory is ``algo.make``."""


def names_of_algorithms() -> list[str]:
    """List the algorithms that have a name.

    Returns:
        Names of ours, and of other packages'.
    """
    return [*ALGORITHMS, *plugins.registered("algorithms")]


def declared_named(name: str) -> type[DeclaredAlgorithm] | None:
    """Return the class of an algorithm.

    Args:
        name: Any text.

    Returns:
        The class of this package, or of another that registers it; None for another text, such as
        the path of a user's function.

    Raises:
        ValueError: Another package registers it, and cannot be loaded or registers something else.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    declared = plugins.load("algorithms", name)
    if declared is None:
        return None
    if not (isinstance(declared, type) and issubclass(declared, DeclaredAlgorithm)):
        raise plugins.PluginFailed(
            f"algo={name} is registered as {declared!r}: register a jaxrl_fast.DeclaredAlgorithm"
        )
    if declared.name != name:
        raise plugins.PluginFailed(
            f"algo={name} is registered, and its class has the name '{declared.name}': write name: ClassVar[str] = "
            f"'{name}' in {declared.__qualname__}"
        )
    return declared


def factory_of(name: str) -> Callable[..., AnyAlgorithm]:
    """Return the factory of an algorithm.

    Args:
        name: Name of an algorithm, or the path of a user's function, which is imported.

    Returns:
        The factory.

    Raises:
        ValueError: The function cannot be imported.
    """
    return declared_named(name) or import_function(name, "algo.make")


def make_named(name: str, /, **options: Any) -> AnyAlgorithm:
    """Make an algorithm by name.

    Args:
        name: As in `factory_of`.
        **options: Arguments of the factory; a user's need not have ``precision``.

    Returns:
        The algorithm. A user's has the path of its factory as name, and the factory's arguments but
        rates as options, with which a policy can be loaded.

    Raises:
        ValueError: The factory refuses its arguments; or a user's fails or returns something else.
    """
    declared = declared_named(name)
    if declared is not None:
        return declared(**options)
    factory = factory_of(name)
    taken = inspect.signature(factory).parameters
    if "precision" not in taken and options.pop("precision", "f32") != "f32":
        raise ValueError(
            f"precision: algo.make={name} has no argument of this name: leave precision out"
        )
    made = made_by_user(factory, name, options)
    rates = made.hyper._fields
    stored = {key: value for key, value in made.options.items() if key in taken}
    stored |= {key: plain(value) for key, value in options.items() if key not in rates}

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        try:
            return made.build(spec, num_envs)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"algo.make={name} fails with {spec.name}: {fault_of(error)}"
            ) from error

    return made._replace(name=name, options=stored, build=build)


def made_by_user(factory: Callable[..., Any], name: str, options: dict[str, Any]) -> AnyAlgorithm:
    """Call a user's factory.

    Args:
        factory: Function.
        name: Its path, for messages.
        options: Its arguments.

    Returns:
        The algorithm.

    Raises:
        ValueError: It fails, or returns something else.
    """
    try:
        made = factory(**options)
    except Exception as error:
        raise ValueError(f"algo.make={name} failed: {fault_of(error)}") from error
    if not isinstance(made, AnyAlgorithm):
        raise ValueError(
            f"algo.make={name} returned {type(made).__name__}: return a jaxrl_fast.Algorithm"
        )
    missing = [rate for rate in ("discount", "reward_scale") if not hasattr(made.hyper, rate)]
    if missing:
        raise ValueError(
            f"algo.make={name}: its hyper-parameters lack {' and '.join(missing)}: add a field to hyper"
        )
    return made
