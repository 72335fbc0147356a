"""Pictures of worlds of several agents, drawn from the states of Jumanji's and JaxMARL's."""

from collections.abc import Callable
from typing import Any

import numpy as np

from envs.gymnax_pictures import BODY, DARK, GOAL, LIMB, SKY, Sheet

SIDE = 640
"""Pixels of the longer side of a picture."""
FLOOR, REQUESTED, SHELF = "#d5dbe2", "#2f9e62", "#6f7fb5"
TEAMS = ("#1f6fb2", "#b8481a")


def foraging(grid_size: int) -> Callable[[Any], np.ndarray]:
    """Draws Jumanji's foraging: food in green, players in orange (red: they are loading); dots are levels."""

    def draw(state: Any) -> np.ndarray:
        sheet = _board(grid_size, grid_size)
        food, players = state.food_items, state.agents
        for place, level, eaten in zip(*map(np.asarray, (food.position, food.level, food.eaten)), strict=True):
            if not eaten:
                _piece(sheet, place, int(level), GOAL)
        for place, level, loads in zip(
            *map(np.asarray, (players.position, players.level, players.loading)), strict=True
        ):
            _piece(sheet, place, int(level), LIMB if loads else BODY)
        return sheet.picture()

    return draw


def warehouse(state: Any, goals: list[tuple[int, int]]) -> np.ndarray:
    """Jumanji's warehouse: shelves (green: requested) and robots (red: they carry one), which look where their line
    goes; ``goals``: (column, row) of the cells to deliver at."""
    sheet = _board(*np.shape(state.grid)[1:])
    for column, row in goals:
        _square(sheet, (row, column), 0.96, DARK)
    shelves, robots = state.shelves, state.agents
    for row, column, wanted in zip(
        *map(np.asarray, (shelves.position.x, shelves.position.y, shelves.is_requested)), strict=True
    ):
        _square(sheet, (row, column), 0.8, REQUESTED if wanted else SHELF)
    headings = ((0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0))  # up, right, down, left
    for row, column, looks, carries in zip(
        *map(np.asarray, (robots.position.x, robots.position.y, robots.direction, robots.is_carrying)), strict=True
    ):
        center = np.array((column, -row), float)
        sheet.disk(center, 0.33, LIMB if carries else BODY)
        sheet.line([center, center + 0.33 * np.array(headings[int(looks)])], 0.1, DARK)
    return sheet.picture()


def particles(world: Any) -> Callable[[Any], np.ndarray]:
    """Draws JaxMARL's particles (MPE): agents and landmarks as disks in their own sizes and colors."""
    sizes = np.asarray(world.rad, float)
    colors = ["#{:02x}{:02x}{:02x}".format(*map(int, np.asarray(color))) for color in world.colour]
    order = sorted(range(len(sizes)), key=lambda i: i < world.num_agents)  # landmarks first, under the agents

    def draw(state: Any) -> np.ndarray:
        sheet = Sheet((0.0, 0.0), 4.0, (SIDE, SIDE))
        for i in order:
            sheet.disk(np.asarray(state.state.p_pos)[i], float(sizes[i]), colors[i])
        return sheet.picture()

    return draw


def battle(world: Any) -> Callable[[Any], np.ndarray]:
    """Draws JaxMARL's battles (SMAX): units in the colors of their teams, twice their size, smaller the less health
    they have within their rings."""
    sizes, full = np.asarray(world.unit_type_radiuses, float), np.asarray(world.unit_type_health, float)
    middle = (world.map_width / 2, world.map_height / 2)

    def draw(state: Any) -> np.ndarray:
        units = getattr(state.state, "state", state.state)
        sheet = Sheet(middle, world.map_height, (SIDE * world.map_width // world.map_height, SIDE))
        kinds, alive = np.asarray(units.unit_types).astype(int), np.asarray(units.unit_alive).astype(bool)
        for i, place in enumerate(np.asarray(units.unit_positions)):
            if alive[i]:
                radius, health = 2 * sizes[kinds[i]], float(units.unit_health[i]) / full[kinds[i]]
                sheet.disk(place, radius, DARK)
                sheet.disk(place, 0.9 * radius, SKY)
                sheet.disk(place, 0.9 * radius * np.sqrt(max(health, 0.0)), TEAMS[int(i >= world.num_allies)])
        return sheet.picture()

    return draw


def _board(rows: int, columns: int) -> Sheet:
    """A board whose cell (row, column) is around the point (column, -row)."""
    cell = SIDE // max(rows, columns)
    sheet = Sheet(((columns - 1) / 2, (1 - rows) / 2), rows, (cell * columns, cell * rows))
    for i in range(rows * columns):
        _square(sheet, divmod(i, columns), 0.94, FLOOR)
    return sheet


def _square(sheet: Sheet, cell: Any, side: float, color: str) -> None:
    corners = side / 2 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    sheet.shape(corners + np.array((cell[1], -cell[0]), float), color)


def _piece(sheet: Sheet, cell: Any, level: int, color: str) -> None:
    center = np.array((cell[1], -cell[0]), float)
    sheet.disk(center, 0.38, color)
    for i in range(level):
        sheet.disk((center[0] + 0.16 * (i - (level - 1) / 2), center[1]), 0.06, SKY)
