"""What the bodies of a simulated environment look like: plain numbers, to be drawn by whoever wants to."""

from typing import NamedTuple

import numpy as np


class Triangles(NamedTuple):
    """The surface of a mesh.

    - ``vertices``: float32 ``[V, 3]`` in metres, in the frame of its geom.
    - ``faces``: three indices of vertices each, int32 ``[F, 3]``, counter-clockwise as seen from outside.
    """

    vertices: np.ndarray
    faces: np.ndarray


class Geom(NamedTuple):
    """A shape that is fixed to a body, with the conventions of MuJoCo (https://mujoco.readthedocs.io, XMLreference).

    - ``kind``: ``plane``, ``sphere``, ``capsule``, ``ellipsoid``, ``cylinder``, ``box``, ``mesh``, or another word.
    - ``body``: index of its body; -1 for what never moves.
    - ``position``: in metres, ``(x, y, z)``, and ``rotation``: unit quaternion ``(w, x, y, z)``; in its body's frame.
    - ``size``: three numbers in metres, whose meaning depends on the kind: radii and half lengths.
    - ``color``: ``(red, green, blue, opacity)`` in [0, 1]; None where its model leaves it open.
    - ``mesh``: the surface of a ``mesh``, else None.
    """

    kind: str
    body: int
    position: tuple[float, ...]
    rotation: tuple[float, ...]
    size: tuple[float, ...]
    color: tuple[float, ...] | None
    mesh: Triangles | None = None


class Scene(NamedTuple):
    """All that can be drawn of an environment.

    - ``title``: what it is called.
    - ``geoms``: its shapes.
    - ``step_s``: seconds of simulated time that a step takes.
    """

    title: str
    geoms: tuple[Geom, ...]
    step_s: float


class Motion(NamedTuple):
    """How ``B`` bodies moved in one episode of ``T`` steps; the first and the last state are both in it.

    - ``positions``: in metres, ``[T + 1, B, 3]``.
    - ``rotations``: unit quaternions ``(w, x, y, z)``, ``[T + 1, B, 4]``.
    - ``rewards``: of its steps, ``[T]``.
    - ``terminated``: whether the environment ended it, and not the time limit.
    """

    positions: np.ndarray
    rotations: np.ndarray
    rewards: np.ndarray
    terminated: bool
