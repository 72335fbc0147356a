"""Moving bodies drawn by MuJoCo's renderer, without a screen."""

import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from ctypes.util import find_library
from typing import Any

import numpy as np

from jaxrl_fast.environments.scene import Geom, Motion, Scene

FIELD_OF_VIEW = 35.0
TOWARDS_CAMERA = np.array((0.45, -1.0, 0.32))
"""From what is looked at: from the side and a little from above, as in ``policy.html``."""
SKY, TILES = (0.93, 0.94, 0.96), ((0.80, 0.83, 0.87), (0.72, 0.76, 0.81))
BODIES, FIXED = ((0.94, 0.50, 0.25, 1.0), (0.86, 0.40, 0.19, 1.0)), (0.55, 0.58, 0.63, 1.0)
"""Two colors in turn, so that limbs that cross can be told apart; and that of what never moves."""
SHADOW_PIXELS = 1024
"""A quarter of MuJoCo's own: without a GPU four times as fast, and no difference to be seen at this size."""
INSTALL_GL = "install a GL that needs no screen (apt install libosmesa6)"


def offer_gl() -> None:
    """Name a GL that draws without a screen in ``MUJOCO_GL``, if there is one and none is named; before anything
    imports MuJoCo, which reads it then. Gymnasium reads it, too."""
    if sys.platform != "linux" or {"MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        return
    for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if find_library(library):
            os.environ["MUJOCO_GL"] = name
            return


def drawn_by_gl(scene: Scene, motion: Motion, steps: Iterable[int], width: int) -> Iterator[np.ndarray]:
    """Pictures of a motion at some of its steps, uint8 ``[2 / 3 width, width, 3]``.

    Raises:
        Exception: of many kinds, before the first picture: there is no GL here.
    """
    import mujoco

    height = width * 2 // 3
    model = _model(scene, motion, (width, height))
    data = mujoco.MjData(model)
    center, radius = _bounds(mujoco, model, data, motion)
    ways = motion.positions.mean(axis=1) - motion.positions[0].mean(axis=0)
    # A robot that stands on a table is not followed: only its arm would move the mean.
    follows = np.linalg.norm(ways, axis=1).max() > radius
    camera = _camera(mujoco, radius)
    model.stat.extent = 3 * radius  # as far as shadows reach
    with closing(mujoco.Renderer(model, height, width)) as renderer:
        for step in steps:
            _pose(mujoco, model, data, motion, step)
            camera.lookat = center + (ways[step] if follows else 0)
            data.light_xpos[0] = camera.lookat - 3 * radius * data.light_xdir[0]
            renderer.update_scene(data, camera)
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            yield renderer.render()


def _model(scene: Scene, motion: Motion, pixels: tuple[int, int]) -> Any:
    """A model with the geoms of ``scene`` on bodies that stand wherever they are put."""
    import mujoco

    spec = mujoco.MjSpec()
    spec.visual.global_.offwidth, spec.visual.global_.offheight = pixels
    spec.visual.global_.fovy = FIELD_OF_VIEW
    spec.visual.quality.shadowsize = SHADOW_PIXELS
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = [0.45] * 3, [0.2] * 3
    spec.visual.headlight.specular = [0.0] * 3
    sky = {"type": mujoco.mjtTexture.mjTEXTURE_SKYBOX, "builtin": mujoco.mjtBuiltin.mjBUILTIN_FLAT}
    spec.add_texture(name="sky", **sky, rgb1=SKY, rgb2=SKY, width=64, height=64)
    tiles = {"type": mujoco.mjtTexture.mjTEXTURE_2D, "builtin": mujoco.mjtBuiltin.mjBUILTIN_CHECKER}
    spec.add_texture(name="tiles", **tiles, rgb1=TILES[0], rgb2=TILES[1], width=128, height=128)
    ground = spec.add_material(name="ground", texrepeat=[0.5, 0.5], texuniform=True)
    ground.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "tiles"
    spec.worldbody.add_light(
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, dir=[0.3, 0.5, -1.0], diffuse=[0.6] * 3, specular=[0.1] * 3
    )
    bodies = [spec.worldbody.add_body(mocap=True) for _ in range(motion.positions.shape[1])]
    for number, geom in enumerate(scene.geoms):
        _add(mujoco, spec, bodies[geom.body] if geom.body >= 0 else spec.worldbody, geom, number)
    return spec.compile()


def _add(mujoco: Any, spec: Any, body: Any, geom: Geom, number: int) -> None:
    """Add a geom to a body; kinds that the page does not draw are left out here, too."""
    kind = getattr(mujoco.mjtGeom, f"mjGEOM_{geom.kind.upper()}", None)
    options: dict[str, Any] = {
        "size": geom.size,
        "rgba": geom.color or (BODIES[geom.body % 2] if geom.body >= 0 else FIXED),
    }
    if geom.kind == "plane":
        options |= {"size": [0.0, 0.0, 1.0], "material": "ground", "rgba": [1.0] * 4}  # without an end
    elif geom.mesh is not None:
        vertices, faces = geom.mesh
        mesh = spec.add_mesh(name=f"mesh{number}", inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL)
        mesh.uservert, mesh.userface = vertices.ravel().tolist(), faces.ravel().tolist()
        options |= {"meshname": mesh.name, "size": [0.0] * 3}
    if kind is not None:
        body.add_geom(type=kind, pos=geom.position, quat=geom.rotation, **options)


def _pose(mujoco: Any, model: Any, data: Any, motion: Motion, step: int) -> None:
    data.mocap_pos[:], data.mocap_quat[:] = motion.positions[step], motion.rotations[step]
    mujoco.mj_kinematics(model, data)
    mujoco.mj_camlight(model, data)


def _bounds(mujoco: Any, model: Any, data: Any, motion: Motion) -> tuple[np.ndarray, float]:
    """Center and radius of a sphere around all that is not endless, as the motion begins."""
    _pose(mujoco, model, data, motion, 0)
    shown = model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE
    places, radii = data.geom_xpos[shown], model.geom_rbound[shown, None]
    low, high = (places - radii).min(axis=0), (places + radii).max(axis=0)
    return (low + high) / 2, float(np.linalg.norm(high - low) / 2)


def _camera(mujoco: Any, radius: float) -> Any:
    """A camera as far away as shows a sphere of this radius."""
    camera = mujoco.MjvCamera()
    x, y, z = TOWARDS_CAMERA / np.linalg.norm(TOWARDS_CAMERA)
    camera.azimuth, camera.elevation = math.degrees(math.atan2(-y, -x)), -math.degrees(math.asin(z))
    camera.distance = 0.95 * radius / math.sin(math.radians(FIELD_OF_VIEW / 2))
    return camera
