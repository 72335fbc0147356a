"""The shapes of brax's bodies, read from the MuJoCo model that every backend of brax starts from."""

from typing import Any

import numpy as np

from jaxrl_fast.environments.scene import Geom, Triangles

KINDS = ("plane", "heightfield", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")
"""MuJoCo's kinds of geoms in the order of its mjtGeom."""
MESH = KINDS.index("mesh")
NO_COLOR = ((0.5, 0.5, 0.5, 1.0), (0.4, 0.33, 0.26, 1.0))
"""Colors that say nothing: MuJoCo's default, and the one that brax's own models have throughout."""


def geoms_of(model: Any) -> tuple[Geom, ...]:
    """Every geom of a ``mujoco.MjModel``, in its order. Body 0 of MuJoCo, which never moves, becomes -1, so that the
    others have the indices of brax's links."""
    return tuple(_geom(model, index) for index in range(model.ngeom))


def _geom(model: Any, index: int) -> Geom:
    kind = int(model.geom_type[index])
    color = _floats(model.geom_rgba[index])
    return Geom(
        kind=KINDS[kind] if kind < len(KINDS) else f"kind {kind} of MuJoCo",
        body=int(model.geom_bodyid[index]) - 1,
        position=_floats(model.geom_pos[index]),
        rotation=_floats(model.geom_quat[index]),
        size=_floats(model.geom_size[index]),
        color=None if color in NO_COLOR else color,
        mesh=_triangles(model, int(model.geom_dataid[index])) if kind == MESH else None,
    )


def _triangles(model: Any, mesh: int) -> Triangles:
    vertex, face = int(model.mesh_vertadr[mesh]), int(model.mesh_faceadr[mesh])
    return Triangles(
        np.array(model.mesh_vert[vertex : vertex + int(model.mesh_vertnum[mesh])], np.float32),
        np.array(model.mesh_face[face : face + int(model.mesh_facenum[mesh])], np.int32),
    )


def _floats(numbers: np.ndarray) -> tuple[float, ...]:
    """As Python's, six digits: a model's are float32 or written by hand, and a page is no longer than it must be."""
    return tuple(round(float(number), 6) for number in numbers)
