"""The compiled junction against ma-gym's rules, written a second time on a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_fast.core import OUT
from jaxrl_fast.envs import traffic_junction
from jaxrl_fast.envs.env_checks import check_start

TURNS = {  # the turn of a car that heads there: to the right, to the left
    (0, 1): ((7, 6), (7, 7)),
    (-1, 0): ((7, 7), (6, 7)),
    (1, 0): ((6, 6), (7, 6)),
    (0, -1): ((6, 7), (6, 6)),
}
GOALS = {(7, 13), (0, 7), (6, 0), (13, 6)}
STEPS = 300


class Junction:
    """Drive the cars one after another over a dictionary of taken cells; arguments decide which car
    enters where.
    """

    def __init__(self, num_cars: int) -> None:
        self.cells: dict[tuple, int] = {}
        self.at, self.heading, self.route = {}, {}, {}
        self.turned, self.age, self.done = set(), [0] * num_cars, set()

    def enter(self, car: int, gate: tuple, heading: tuple, route: int) -> None:
        assert gate not in self.cells
        self.at[car], self.heading[car], self.route[car], self.cells[gate] = (
            gate,
            heading,
            route,
            car,
        )

    def step(self, gas: np.ndarray) -> list[float]:
        rewards = [0.0] * len(self.age)
        for car in sorted(set(self.at) - self.done):
            self.age[car] += 1
            rewards[car] = -0.01 * self.age[car] - 10.0 * (gas[car] and self.collides(car))
            if self.at[car] in GOALS:
                self.done.add(car)
                del self.cells[self.at[car]]
        return rewards

    def collides(self, car: int) -> bool:
        here, route = self.at[car], self.route[car]
        if route and car not in self.turned and here == TURNS[self.heading[car]][route - 1]:
            row, column = self.heading[car]
            self.heading[car] = (column, -row) if route == 1 else (-column, row)
            self.turned.add(car)
        following = here[0] + self.heading[car][0], here[1] + self.heading[car][1]
        if following in self.cells:
            return True
        del self.cells[here]
        self.at[car], self.cells[following] = following, car
        return False


def views(junction: Junction, num_cars: int) -> np.ndarray:
    seen = np.zeros((num_cars, 3, 3, num_cars + 5), np.float32)
    for car in set(junction.at) - junction.done:
        for cell, other in junction.cells.items():
            row, column = cell[0] - junction.at[car][0] + 1, cell[1] - junction.at[car][1] + 1
            if 0 <= row < 3 and 0 <= column < 3:
                about = np.zeros(num_cars + 5)
                about[[other, num_cars + 2 + junction.route[other]]] = 1
                about[num_cars : num_cars + 2] = cell[0] / 13, cell[1] / 13
                seen[car, row, column] = about
    return seen.reshape(num_cars, -1)


@pytest.mark.parametrize("num_cars", [4, 10])
def test_cars_move_collide_see_and_are_paid_as_in_ma_gym(num_cars: int):
    env = traffic_junction.make(f"TrafficJunction{num_cars}-v0")
    check_start(env, "junction")
    reset, step, rng = jax.jit(env.reset), jax.jit(env.step), np.random.default_rng(1)
    collisions = episodes = 0
    state, obs = reset(jax.random.key(0), ())
    junction, known = Junction(num_cars), set()
    for t in range(STEPS):
        for car in np.flatnonzero(np.asarray(state.entered)):  # the new ones
            if int(car) not in known:
                known.add(int(car))
                gate = int(state.gate[car])
                junction.enter(
                    int(car),
                    traffic_junction.GATES[gate],
                    traffic_junction.HEADINGS[gate],
                    int(state.route[car]),
                )
        np.testing.assert_allclose(obs["view"], views(junction, num_cars), atol=1e-6)
        assert set(np.flatnonzero(~np.asarray(obs[OUT]))) == set(junction.at) - junction.done
        brake = rng.random(num_cars) < 0.2
        state, timestep = step(state, jnp.asarray(brake, jnp.int32), jax.random.key(t))
        rewards = junction.step(~brake)
        np.testing.assert_allclose(timestep.reward, rewards, rtol=1e-5)
        collisions += sum(reward < -9 for reward in rewards)
        assert bool(timestep.terminated) == (len(junction.done) == num_cars)
        assert bool(env.success(state)) == (int(state.collisions) == 0)
        obs = timestep.next_obs
        if timestep.terminated:
            episodes += 1
            assert t + 1 >= env.shortest_episode
            state, obs = reset(jax.random.key(1000 + t), ())
            junction, known = Junction(num_cars), set()
    assert episodes >= 3 and collisions >= 3
    picture = env.draw(state)
    assert picture.dtype == np.uint8 and picture.shape == (336, 336, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_agents": 11}, "env.num_agents=11: write a number of at most 10"),
        ({"arrive_prob": 2.0}, "env.arrive_prob=2.0: write a number of at most 1"),
        ({"lanes": 3}, "has no option 'lanes': write one of arrive_prob, collision_reward"),
    ],
)
def test_a_junction_that_does_not_exist_is_refused(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        traffic_junction.make("TrafficJunction4-v0", **options)
