"""Traffic junction, compiled.

Two roads of two lanes cross on a grid of 14 x 14 cells. Cars enter at four gates, each on one of
three routes, and are out at the end of their route. Each car accelerates or brakes. A car whose
next cell is taken stays and is penalized for the collision. Each car is penalized for each step on
the road, more with every step. Cars move one after another. Unlike in ma-gym, a car that is not on
the road observes zeros.

Source: Sukhbaatar et al., arXiv 1605.07736, with the rules of ma-gym 0.0.14.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import OUT, Discrete, EnvSpec, Number, PyTree, Timestep
from jaxrl_fast.envs.env import Env
from jaxrl_fast.envs.options import read_options

SIDE, MAX_CARS, MAX_STEPS = 14, 10, 100
IDS = {"TrafficJunction4-v0": 4, "TrafficJunction10-v0": 10}
"""ma-gym's ids -> number of cars."""
GAS = 0
GATES = ((7, 0), (13, 7), (6, 13), (0, 6))
HEADINGS = ((0, 1), (-1, 0), (0, -1), (1, 0))
"""(row, column) of each gate, and the direction of a car that enters there."""
TURNS_AFTER = (SIDE, 6, 7)
"""Steps after which a car on each route turns: never, to the right, to the left."""


class Cars(NamedTuple):
    """State of the cars.

    Attributes:
        gate: Gate at which each car entered, int32 ``[A]``.
        route: Route of each car, int32 ``[A]``.
        progress: Cells that each car has passed on its route, int32 ``[A]``.
        age: Steps of each car on the road, int32 ``[A]``.
        entered: Whether each car has entered, bool ``[A]``.
        arrived: Whether each car has arrived, bool ``[A]``.
        collisions: Number of collisions in the episode, int32.
    """

    gate: jax.Array
    route: jax.Array
    progress: jax.Array
    age: jax.Array
    entered: jax.Array
    arrived: jax.Array
    collisions: jax.Array

    @property
    def on_road(self) -> jax.Array:
        """Cars on the road, bool ``[A]``."""
        return self.entered & ~self.arrived


def _route(gate: int, route: int) -> np.ndarray:
    """List the cells (row, column) of a route, ``[cells, 2]``."""
    cell, heading, cells = np.array(GATES[gate]), np.array(HEADINGS[gate]), []
    while ((cell >= 0) & (cell < SIDE)).all():
        cells.append(cell)
        if len(cells) == TURNS_AFTER[route] + 1:
            right = np.array([heading[1], -heading[0]])
            heading = right if route == 1 else -right
        cell = cell + heading
    return np.array(cells)


ROUTES = [[_route(gate, route) for route in range(3)] for gate in range(len(GATES))]
LENGTHS = np.array([[len(cells) for cells in routes] for routes in ROUTES])
CELLS = np.array(
    [
        [np.pad(cells, ((0, LENGTHS.max() + 1 - len(cells)), (0, 0))) for cells in routes]
        for routes in ROUTES
    ],
    np.int32,
)
"""(row, column) of a car by gate, route and progress, padded after the end of a route."""


def ids() -> list[str]:
    """List ma-gym's ids of the environments with 4 and with 10 cars.

    Returns:
        Ids.
    """
    return list(IDS)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a traffic junction."""

    num_agents: Annotated[int | None, Number(1, MAX_CARS, "whole", optional=True)] = None
    """Number of cars, 1 to 10; None for the number in the id."""
    arrive_prob: Annotated[float, Number(0, 1)] = 0.5
    """Probability that a car enters in a step."""
    step_cost: Annotated[float, Number()] = -0.01
    """Reward of each step on the road, multiplied by the car's number of steps so far."""
    collision_reward: Annotated[float, Number()] = -10.0
    """Reward of a car whose next cell is taken."""


def make(id: str, **values: Any) -> Env:
    """Make a traffic junction.

    Args:
        id: One of `ids`.
        **values: `Options`.

    Returns:
        The environment.

    Raises:
        ValueError: An option is unknown or out of range.
    """
    options = read_options(Options, values, id)
    arrive_prob, step_cost = options.arrive_prob, options.step_cost
    collision_reward = options.collision_reward
    num_cars = IDS[id] if options.num_agents is None else options.num_agents

    def step(cars: Cars, action: jax.Array, key: jax.Array) -> tuple[Cars, Timestep]:
        moving = cars.on_road
        cars, collided = move(cars, action == GAS)
        cars = cars._replace(age=cars.age + moving)
        reward = moving * (collision_reward * collided + step_cost * cars.age)
        over = jnp.all(cars.arrived)
        cars = enter(cars, key, arrive_prob)
        obs = observe(cars)
        return cars, Timestep(obs, obs, reward, over, jnp.zeros((), bool))

    obs = {
        "view": jax.ShapeDtypeStruct((num_cars, 9 * (num_cars + 5)), jnp.float32),
        OUT: jax.ShapeDtypeStruct((num_cars,), jnp.bool_),
    }
    name = f"TrafficJunction{num_cars}"
    return Env(
        EnvSpec(name, obs, Discrete(2), MAX_STEPS, num_agents=num_cars),
        partial(reset, num_cars=num_cars),
        step,
        shortest_episode=int(LENGTHS.min()) - 1,
        draw=draw,
        success=lambda cars: cars.collisions == 0,
    )


def reset(key: jax.Array, params: PyTree, *, num_cars: int) -> tuple[Cars, PyTree]:
    """Start an episode with one car at each gate; the others wait.

    Args:
        key: PRNG key.
        params: Unused.
        num_cars: Number of cars, ``A``.

    Returns:
        State and observation.
    """
    gates_key, routes_key = jax.random.split(key)
    gates = jax.random.permutation(gates_key, len(GATES)).astype(jnp.int32)
    zeros, numbers = jnp.zeros(num_cars, jnp.int32), jnp.arange(num_cars)
    route = jax.random.randint(routes_key, (num_cars,), 0, 3)
    entered, arrived, collisions = (
        numbers < len(GATES),
        jnp.zeros(num_cars, bool),
        jnp.zeros((), jnp.int32),
    )
    cars = Cars(
        gate=gates[numbers % len(GATES)],
        route=route,
        progress=zeros,
        age=zeros,
        entered=entered,
        arrived=arrived,
        collisions=collisions,
    )
    return cars, observe(cars)


def move(cars: Cars, gas: jax.Array) -> tuple[Cars, jax.Array]:
    """Move the cars that accelerate, one after another.

    Args:
        cars: State.
        gas: Cars that accelerate, bool ``[A]``.

    Returns:
        State, and cars that collided, bool ``[A]``.
    """
    last = jnp.asarray(LENGTHS)[cars.gate, cars.route] - 1
    going, following = cars.on_road & gas, place(cars._replace(progress=cars.progress + 1))

    def one(
        carry: tuple[jax.Array, jax.Array], xs: tuple
    ) -> tuple[tuple[jax.Array, jax.Array], tuple]:
        at, there = carry
        i, goes, target, arrives = xs
        taken = jnp.any(there & jnp.all(at == target[None], axis=1))
        moves, mine = goes & ~taken, jnp.arange(at.shape[0]) == i
        at = jnp.where((mine & moves)[:, None], target[None], at)
        return (at, there & ~(mine & moves & arrives)), (moves, goes & taken)

    xs = jnp.arange(gas.shape[0]), going, following, cars.progress + 1 == last
    _, (moves, collided) = jax.lax.scan(one, (place(cars), cars.on_road), xs)
    progress = cars.progress + moves
    arrived = cars.arrived | (moves & (progress == last))
    collisions = cars.collisions + jnp.sum(collided, dtype=jnp.int32)
    return cars._replace(progress=progress, arrived=arrived, collisions=collisions), collided


def enter(cars: Cars, key: jax.Array, arrive_prob: float) -> Cars:
    """Let the first waiting car enter at a random free gate, with a probability.

    Args:
        cars: State.
        key: PRNG key.
        arrive_prob: Probability that a car enters.

    Returns:
        State.
    """
    chance_key, gate_key, route_key = jax.random.split(key, 3)
    at_gates = jnp.all(place(cars)[:, None] == jnp.asarray(GATES)[None], axis=2)
    free = ~jnp.any(at_gates & cars.on_road[:, None], axis=0)
    gate = jax.random.categorical(gate_key, jnp.where(free, 0.0, -jnp.inf)).astype(jnp.int32)
    arrives = (
        (jax.random.uniform(chance_key) < arrive_prob) & jnp.any(free) & ~jnp.all(cars.entered)
    )
    new = arrives & (jnp.arange(cars.gate.shape[0]) == jnp.argmin(cars.entered))
    route = jax.random.randint(route_key, (), 0, 3)
    return cars._replace(
        gate=jnp.where(new, gate, cars.gate),
        route=jnp.where(new, route, cars.route),
        entered=cars.entered | new,
    )


def place(cars: Cars) -> jax.Array:
    """Return the cell of every car.

    Args:
        cars: State.

    Returns:
        (row, column), int32 ``[A, 2]``.
    """
    return jnp.asarray(CELLS)[cars.gate, cars.route, cars.progress]


def observe(cars: Cars) -> PyTree:
    """Return each car's observation of the 3 x 3 cells around it.

    Args:
        cars: State.

    Returns:
        ``view`` float32 ``[A, 9 * (A + 5)]``: for each cell the number of the car in it (one-hot),
        its row and column divided by 13, and its route (one-hot). ``out`` bool ``[A]``: cars that
        are not on the road.
    """
    at, there, number = place(cars), cars.on_road, cars.gate.shape[0]
    about = (jnp.eye(number), at.astype(jnp.float32) / (SIDE - 1), jax.nn.one_hot(cars.route, 3))
    offset = at[None] - at[:, None]  # [A, A, 2], of the second from the first
    near = jnp.all(jnp.abs(offset) <= 1, axis=2) & there[None] & there[:, None]
    cell = jax.nn.one_hot(3 * (offset[..., 0] + 1) + offset[..., 1] + 1, 9) * near[..., None]
    view = jnp.einsum("ijc,jf->icf", cell, jnp.concatenate(about, axis=1))
    return {"view": view.reshape(number, -1), OUT: ~there}


def draw(cars: Any) -> np.ndarray:
    """Draw the roads, and each car on them in a separate color.

    Args:
        cars: State.

    Returns:
        Picture, uint8 ``[336, 336, 3]``.
    """
    picture = np.full((SIDE, SIDE, 3), 20, np.uint8)
    picture[6:8], picture[:, 6:8] = 143, 143
    colors = np.random.default_rng(3).integers(60, 255, (MAX_CARS, 3))
    for i, (row, column) in enumerate(np.asarray(place(cars))):
        if np.asarray(cars.on_road)[i]:
            picture[row, column] = colors[i]
    return picture.repeat(24, axis=0).repeat(24, axis=1)
