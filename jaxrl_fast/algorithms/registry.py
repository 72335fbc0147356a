"""The algorithms by name, and a user's by the path of its factory, such as ``my_package.make``.

A new algorithm of this package needs a separate file here, and its name in `ALGORITHMS` and
``__all__``.
"""

import inspect
from collections.abc import Callable
from typing import Any

from jaxrl_fast.algorithms.bc import bc
from jaxrl_fast.algorithms.dqn import dqn
from jaxrl_fast.algorithms.fast_td3 import fast_td3
from jaxrl_fast.algorithms.flash_sac import flash_sac
from jaxrl_fast.algorithms.impala import impala
from jaxrl_fast.algorithms.ippo import ippo
from jaxrl_fast.algorithms.iql import iql
from jaxrl_fast.algorithms.mappo import mappo
from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.pqn import pqn
from jaxrl_fast.algorithms.pqn_vdn import pqn_vdn
from jaxrl_fast.algorithms.reppo import reppo
from jaxrl_fast.algorithms.sac import sac
from jaxrl_fast.algorithms.sac_discrete import sac_discrete
from jaxrl_fast.algorithms.td3 import td3
from jaxrl_fast.algorithms.td3_bc import td3_bc
from jaxrl_fast.core import EnvSpec
from jaxrl_fast.learning.algorithm import Agent, Algorithm
from jaxrl_fast.numerics.optimizers import plain
from jaxrl_fast.system import fault_of, import_function

__all__ = [
    "bc",
    "dqn",
    "fast_td3",
    "flash_sac",
    "impala",
    "ippo",
    "iql",
    "mappo",
    "ppo",
    "pqn",
    "pqn_vdn",
    "reppo",
]
__all__ += ["sac", "sac_discrete", "td3", "td3_bc"]
FACTORIES: tuple[Callable[..., Algorithm], ...] = (
    bc,
    dqn,
    fast_td3,
    flash_sac,
    impala,
    ippo,
    iql,
    mappo,
    ppo,
    pqn,
)
FACTORIES += pqn_vdn, reppo, sac, sac_discrete, td3, td3_bc
ALGORITHMS: dict[str, Callable[..., Algorithm]] = {make.__name__: make for make in FACTORIES}
CUSTOM = "custom"
"""Name on the command line of an algorithm whose factory is ``algo.make``."""


def factory_of(name: str) -> Callable[..., Algorithm]:
    """Return the factory of an algorithm.

    Args:
        name: Name in `ALGORITHMS`, or the path of a user's function, which is imported.

    Returns:
        The factory.

    Raises:
        ValueError: The function cannot be imported.
    """
    return ALGORITHMS[name] if name in ALGORITHMS else import_function(name, "algo.make")


def make_named(name: str, /, **options: Any) -> Algorithm:
    """Make an algorithm by name.

    Args:
        name: As in `factory_of`.
        **options: Arguments of the factory; a user's need not have ``precision``.

    Returns:
        The algorithm. A user's has the path of its factory as name, and all ``options`` but rates,
        with which a policy can be loaded.

    Raises:
        ValueError: The factory refuses its arguments; or a user's fails or returns something else.
    """
    factory = factory_of(name)
    if name in ALGORITHMS:
        return factory(**options)
    if (
        "precision" not in inspect.signature(factory).parameters
        and options.pop("precision", "f32") != "f32"
    ):
        raise ValueError(
            f"precision: algo.make={name} has no argument of this name: leave precision out"
        )
    made = made_by_user(factory, name, options)
    given = {key: plain(value) for key, value in options.items() if key not in made.hyper._fields}

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        try:
            return made.build(spec, num_envs)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"algo.make={name} fails with {spec.name}: {fault_of(error)}"
            ) from error

    return made._replace(name=name, options={**given, **made.options}, build=build)


def made_by_user(factory: Callable[..., Any], name: str, options: dict[str, Any]) -> Algorithm:
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
    if not isinstance(made, Algorithm):
        raise ValueError(
            f"algo.make={name} returned {type(made).__name__}: return a jaxrl_fast.Algorithm"
        )
    missing = [rate for rate in ("discount", "reward_scale") if not hasattr(made.hyper, rate)]
    if missing:
        raise ValueError(
            f"algo.make={name}: its hyper-parameters lack {' and '.join(missing)}: add a field to hyper"
        )
    return made
