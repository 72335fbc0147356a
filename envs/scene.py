"""The bodies of a simulated environment as plain numbers, to be drawn elsewhere."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Triangles(NamedTuple):
    """The surface of a mesh.

    Attributes:
        vertices: Float32 ``[V, 3]`` in metres, in the frame of the geom.
        faces: Three indices of vertices each, int32 ``[F, 3]``, counter-clockwise as seen from outside.
    """

    vertices: np.ndarray
    faces: np.ndarray


class Geom(NamedTuple):
    """A shape that is fixed to a body, with the conventions of MuJoCo (https://mujoco.readthedocs.io, XMLreference).

    Attributes:
        kind: ``plane``, ``sphere``, ``capsule``, ``ellipsoid``, ``cylinder``, ``box``, ``mesh``, or another word.
        body: Index of the body; -1 for a static shape.
        position: ``(x, y, z)`` in metres, in the body's frame.
        rotation: Unit quaternion ``(w, x, y, z)``, in the body's frame.
        size: Three numbers in metres, radii and half lengths, whose meaning depends on the kind.
        color: ``(red, green, blue, opacity)`` in [0, 1]; None if the model does not define one.
        mesh: The surface of a ``mesh``, else None.
    """

    kind: str
    body: int
    position: tuple[float, ...]
    rotation: tuple[float, ...]
    size: tuple[float, ...]
    color: tuple[float, ...] | None
    mesh: Triangles | None = None


class Scene(NamedTuple):
    """Everything that can be drawn of an environment.

    Attributes:
        title: Title of the picture.
        geoms: Shapes.
        step_s: Simulated time per step in seconds.
    """

    title: str
    geoms: tuple[Geom, ...]
    step_s: float


class Motion(NamedTuple):
    """The motion of ``B`` bodies in one episode of ``T`` steps, including the first and the last state.

    Attributes:
        positions: In metres, ``[T + 1, B, 3]``.
        rotations: Unit quaternions ``(w, x, y, z)``, ``[T + 1, B, 4]``.
        rewards: Reward of each step, ``[T]``.
        terminated: Whether the episode ended by termination, not by the time limit.
    """

    positions: np.ndarray
    rotations: np.ndarray
    rewards: np.ndarray
    terminated: bool


class Bodies(NamedTuple):
    """How an environment with bodies is drawn.

    Attributes:
        scene: ``() -> Scene``, collects the shapes.
        pose: ``(state) -> (positions [..., B, 3], rotations [..., B, 4])`` of the bodies in states, as in `Motion`;
            pure.
    """

    scene: Callable[[], Scene]
    pose: Callable[[Any], tuple[Any, Any]]
