"""Pictures of gymnax and multi-agent environments, drawn from their states.

gymnax's visualizer is not used: it needs pygame for simple line drawings, and writes files instead
of arrays.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SKY, GROUND, BODY, LIMB, GOAL, DARK = (
    "#eef1f5",
    "#8b95a1",
    "#f0803f",
    "#b8481a",
    "#2f9e62",
    "#1b232c",
)
CHANNEL_COLORS = (
    (86, 180, 233),
    (240, 128, 63),
    (240, 228, 66),
    (0, 158, 115),
    (204, 121, 167),
    (213, 94, 0),
    (0, 114, 178),
    (230, 230, 230),
    (153, 153, 153),
    (255, 170, 190),
)
"""Colors for the channels of a grid, in turn. Most are distinguishable for color-blind people
(Okabe and Ito, 2008).
"""
Points = Any
"""Points ``(x, y)``: ``[N, 2]`` or a list of pairs."""


class Sheet:
    """A picture with methods to draw in an environment's units, with the y axis upwards.

    Attributes:
        center: Point in the middle of the picture, ``(x, y)``.
        height: Height of the visible area in the environment's units.
        pixels: Width and height in pixels.
    """

    def __init__(
        self, center: tuple[float, float], height: float, pixels: tuple[int, int] = (960, 640)
    ) -> None:
        self.image = Image.new("RGB", pixels, SKY)
        self.pen = ImageDraw.Draw(self.image)
        self.center, self.scale = np.array(center), pixels[1] / height

    def at(self, points: Points) -> list[tuple[float, float]]:
        """Convert points to pixel coordinates."""
        middle = np.array(self.image.size) / 2
        placed = middle + (np.array(points, float) - self.center) * (self.scale, -self.scale)
        return [(float(x), float(y)) for x, y in placed]

    def line(self, points: Points, width: float, color: str) -> None:
        """Draw a line with round ends and corners."""
        self.pen.line(self.at(points), color, round(width * self.scale), joint="curve")
        for point in (points[0], points[-1]):
            self.disk(point, width / 2, color)

    def shape(self, points: Points, color: str) -> None:
        """Draw a filled polygon."""
        self.pen.polygon(self.at(points), color)

    def disk(self, center: Any, radius: float, color: str) -> None:
        """Draw a filled circle."""
        self.pen.circle(self.at([center])[0], radius * self.scale, color)

    def picture(self) -> np.ndarray:
        """Return the picture, uint8 ``[height, width, 3]``."""
        return np.asarray(self.image)


def cart_pole(state: Any, params: Any) -> np.ndarray:
    """Draw the cart and its track, which ends where an episode terminates.

    Args:
        state: gymnax state.
        params: gymnax parameters.

    Returns:
        Picture, uint8 ``[height, width, 3]``.
    """
    sheet, limit = Sheet((0.0, 0.5), 3.4), float(params.x_threshold)
    x, theta = float(state.x), float(state.theta)
    sheet.line([(-limit, -0.2), (limit, -0.2)], 0.04, GROUND)
    for end in (-limit, limit):
        sheet.line([(end, -0.3), (end, -0.1)], 0.04, GROUND)
    sheet.shape([(x - 0.3, -0.18), (x + 0.3, -0.18), (x + 0.3, 0.12), (x - 0.3, 0.12)], DARK)
    length = 2 * float(params.length)
    sheet.line([(x, 0.0), (x + length * np.sin(theta), length * np.cos(theta))], 0.1, BODY)
    sheet.disk((x, 0.0), 0.05, SKY)
    return sheet.picture()


def pendulum(state: Any, params: Any) -> np.ndarray:
    """Draw the rod (upright at angle 0), and the last torque as an arc around its axle.

    Args:
        state: gymnax state.
        params: gymnax parameters.

    Returns:
        Picture, uint8 ``[height, width, 3]``.
    """
    length, theta = float(params.l), float(state.theta)
    sheet, torque = Sheet((0.0, 0.0), 2.8 * length, (800, 800)), float(np.ravel(state.last_u)[0])
    sheet.line([(0.0, 0.0), (-length * np.sin(theta), length * np.cos(theta))], 0.18 * length, BODY)
    sheet.disk((0.0, 0.0), 0.05 * length, DARK)
    turned = np.linspace(0.0, np.pi / 2 * torque / float(params.max_torque), 24)
    if abs(turned[-1]) > 0.05:
        sheet.line(
            0.3 * length * np.stack([-np.sin(turned), np.cos(turned)], axis=-1), 0.03 * length, DARK
        )
    return sheet.picture()


def acrobot(state: Any, params: Any) -> np.ndarray:
    """Draw both links, and the height that the end of the second must reach.

    Args:
        state: gymnax state.
        params: gymnax parameters.

    Returns:
        Picture, uint8 ``[height, width, 3]``.
    """
    lengths = np.array([params.link_length_1, params.link_length_2], float)
    angles = np.cumsum([float(state.joint_angle1), float(state.joint_angle2)])
    joints = np.cumsum(
        lengths[:, None] * np.stack([np.sin(angles), -np.cos(angles)], axis=-1), axis=0
    )
    reach = float(lengths.sum())
    sheet = Sheet((0.0, 0.0), 2.3 * reach, (800, 800))
    sheet.line([(-1.2 * reach, 1.0), (1.2 * reach, 1.0)], 0.03, GOAL)
    for begin, end, color in (((0.0, 0.0), joints[0], LIMB), (joints[0], joints[1], BODY)):
        sheet.line([begin, end], 0.18, color)
        sheet.disk(begin, 0.06, SKY)
    return sheet.picture()


def mountain_car(state: Any, params: Any) -> np.ndarray:
    """Draw the car in its valley, and a flag at the goal.

    Args:
        state: gymnax state.
        params: gymnax parameters.

    Returns:
        Picture, uint8 ``[height, width, 3]``.
    """
    low, high = float(params.min_position), float(params.max_position)
    sheet = Sheet(((low + high) / 2, 0.5), (high - low) * 2 / 3)

    def on_hill(x: Any) -> np.ndarray:
        return np.stack([x, 0.45 * np.sin(3 * x) + 0.4], axis=-1)

    sheet.line(on_hill(np.linspace(low, high, 200)), 0.012, GROUND)
    foot = on_hill(float(params.goal_position))
    pole = foot + np.array([(0.0, 0.0), (0.0, 0.16)])
    sheet.line(pole, 0.01, DARK)
    sheet.shape(pole[1] + np.array([(0.0, 0.0), (0.08, -0.03), (0.0, -0.06)]), GOAL)
    x = float(state.position)
    slope = np.arctan(1.35 * np.cos(3 * x))
    turn = np.array([[np.cos(slope), np.sin(slope)], [-np.sin(slope), np.cos(slope)]])
    body = np.array(
        [(-0.06, 0.03), (0.06, 0.03), (0.06, 0.07), (0.03, 0.09), (-0.04, 0.09), (-0.06, 0.07)]
    )
    sheet.shape(on_hill(x) + body @ turn, BODY)
    for wheel in np.array([(-0.035, 0.025), (0.035, 0.025)]) @ turn:
        sheet.disk(on_hill(x) + wheel, 0.022, DARK)
    return sheet.picture()


LINES: dict[str, tuple[Callable[[Any, Any], np.ndarray], Callable[[Any], float]]] = {
    "Acrobot-v1": (acrobot, lambda params: params.dt),
    "CartPole-v1": (cart_pole, lambda params: params.tau),
    "MountainCar-v0": (mountain_car, lambda params: 1 / 30),
    "MountainCarContinuous-v0": (mountain_car, lambda params: 1 / 30),
    "Pendulum-v1": (pendulum, lambda params: params.dt),
}
"""Id -> (function of gymnax's state and parameters that draws a picture, function of the parameters
for seconds per step).
"""


def is_grid(shape: Sequence[int]) -> bool:
    """Check whether an observation can be drawn as a grid.

    Args:
        shape: Shape of the observation.

    Returns:
        True for ``[rows, columns]`` and ``[rows, columns, channels]`` with more than 3 rows and
        columns.
    """
    return len(shape) in (2, 3) and min(shape[:2]) > 3


def grid(observation: Any) -> np.ndarray:
    """Draw a grid with one pixel per cell, in the color of the cell's first channel that is not 0.

    Args:
        observation: ``[rows, columns]`` or ``[rows, columns, channels]``.

    Returns:
        Picture, uint8 ``[rows, columns, 3]``.
    """
    cells = np.asarray(observation) != 0
    cells = cells if cells.ndim == 3 else cells[..., None]
    colors = np.array(
        [CHANNEL_COLORS[i % len(CHANNEL_COLORS)] for i in range(cells.shape[2])], np.uint8
    )
    background = np.array((24, 29, 36), np.uint8)
    return np.where(cells.any(axis=2, keepdims=True), colors[cells.argmax(axis=2)], background)


SIDE = 640
"""Length of a picture's longer side in pixels."""
FLOOR, REQUESTED, SHELF = "#d5dbe2", "#2f9e62", "#6f7fb5"
TEAMS = ("#1f6fb2", "#b8481a")


def foraging(grid_size: int) -> Callable[[Any], np.ndarray]:
    """Make a function that draws Jumanji's level-based foraging.

    Food is green, players are orange (red while loading), and the dots show levels.

    Args:
        grid_size: Rows and columns of the field.

    Returns:
        ``draw(state)``, which returns a picture.
    """

    def draw(state: Any) -> np.ndarray:
        sheet = _board(grid_size, grid_size)
        food, players = state.food_items, state.agents
        for place, level, eaten in zip(
            *map(np.asarray, (food.position, food.level, food.eaten)), strict=True
        ):
            if not eaten:
                _piece(sheet, place, int(level), GOAL)
        for place, level, loads in zip(
            *map(np.asarray, (players.position, players.level, players.loading)), strict=True
        ):
            _piece(sheet, place, int(level), LIMB if loads else BODY)
        return sheet.picture()

    return draw


def warehouse(state: Any, goals: list[tuple[int, int]]) -> np.ndarray:
    """Draw Jumanji's robot warehouse.

    Shelves are blue (green if requested). Robots are orange (red while carrying), with a line in
    their direction.

    Args:
        state: Jumanji state.
        goals: (column, row) of the cells to deliver at.

    Returns:
        Picture, uint8 ``[height, width, 3]``.
    """
    sheet = _board(*np.shape(state.grid)[1:])
    for column, row in goals:
        _square(sheet, (row, column), 0.96, DARK)
    shelves, robots = state.shelves, state.agents
    for row, column, wanted in zip(
        *map(np.asarray, (shelves.position.x, shelves.position.y, shelves.is_requested)),
        strict=True,
    ):
        _square(sheet, (row, column), 0.8, REQUESTED if wanted else SHELF)
    headings = ((0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0))  # up, right, down, left
    for row, column, looks, carries in zip(
        *map(
            np.asarray, (robots.position.x, robots.position.y, robots.direction, robots.is_carrying)
        ),
        strict=True,
    ):
        center = np.array((column, -row), float)
        sheet.disk(center, 0.33, LIMB if carries else BODY)
        sheet.line([center, center + 0.33 * np.array(headings[int(looks)])], 0.1, DARK)
    return sheet.picture()


def particles(env: Any) -> Callable[[Any], np.ndarray]:
    """Make a function that draws JaxMARL's particle environments (MPE), agents and landmarks as
    disks.

    Args:
        env: JaxMARL environment, for sizes and colors.

    Returns:
        ``draw(state)``, which returns a picture.
    """
    sizes = np.asarray(env.rad, float)
    colors = ["#{:02x}{:02x}{:02x}".format(*map(int, np.asarray(color))) for color in env.colour]
    # landmarks first, under the agents
    order = sorted(range(len(sizes)), key=lambda i: i < env.num_agents)

    def draw(state: Any) -> np.ndarray:
        sheet = Sheet((0.0, 0.0), 4.0, (SIDE, SIDE))
        for i in order:
            sheet.disk(np.asarray(state.state.p_pos)[i], float(sizes[i]), colors[i])
        return sheet.picture()

    return draw


def battle(env: Any) -> Callable[[Any], np.ndarray]:
    """Make a function that draws JaxMARL's battles (SMAX).

    Units are drawn at twice their size in their team's color; the area inside a unit's ring shows
    its health.

    Args:
        env: JaxMARL environment, for sizes and health.

    Returns:
        ``draw(state)``, which returns a picture.
    """
    sizes, full = np.asarray(env.unit_type_radiuses, float), np.asarray(env.unit_type_health, float)
    middle = (env.map_width / 2, env.map_height / 2)

    def draw(state: Any) -> np.ndarray:
        units = getattr(state.state, "state", state.state)
        sheet = Sheet(middle, env.map_height, (SIDE * env.map_width // env.map_height, SIDE))
        kinds, alive = (
            np.asarray(units.unit_types).astype(int),
            np.asarray(units.unit_alive).astype(bool),
        )
        for i, place in enumerate(np.asarray(units.unit_positions)):
            if alive[i]:
                radius, health = 2 * sizes[kinds[i]], float(units.unit_health[i]) / full[kinds[i]]
                sheet.disk(place, radius, DARK)
                sheet.disk(place, 0.9 * radius, SKY)
                sheet.disk(
                    place, 0.9 * radius * np.sqrt(max(health, 0.0)), TEAMS[int(i >= env.num_allies)]
                )
        return sheet.picture()

    return draw


def _board(rows: int, columns: int) -> Sheet:
    """Make a board with cell (row, column) centered at the point (column, -row)."""
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
