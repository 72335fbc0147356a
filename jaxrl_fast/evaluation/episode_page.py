"""One episode of moving bodies as one HTML file that holds its viewer, its data and nothing of the network."""

import base64
import json
import re
from importlib.resources import files
from typing import Any

import numpy as np

from jaxrl_fast.environments.scene import Geom, Motion, Scene

ASSETS = files("jaxrl_fast.evaluation") / "assets"
FULL_SCALE = 32767
"""The largest int16: stands for 1 in rotations and for the largest offset in positions."""


def page_of(scene: Scene, motion: Motion) -> str:
    """The page.

    Raises:
        ValueError: a position, rotation or reward is not a number.
    """
    # "<" of a title would end the script that the data lie in.
    data = {"episode": json.dumps(described(scene, motion), allow_nan=False).replace("<", "\\u003c")}
    page = (ASSETS / "policy.html").read_text("utf-8")
    return re.sub(r"\{\{([\w.]+)\}\}", lambda at: data.get(at[1]) or (ASSETS / at[1]).read_text("utf-8"), page)


def described(scene: Scene, motion: Motion) -> dict[str, Any]:
    """An episode as JSON. Arrays are base64 of little-endian numbers.

    A body may run for hundreds of metres, where int16 would be centimetres apart. So the mean over bodies is stored as
    float32, and of each body only the offset from it, as a share of the largest one: for a body of 1 m the steps are
    0.03 mm. Rotations are int16, too.

    Raises:
        ValueError: a position, rotation or reward is not a number.
    """
    check_finite(motion)
    center = motion.positions.mean(axis=1, keepdims=True).astype("<f4")
    offsets = motion.positions - center
    reach = float(np.abs(offsets).max()) or 1.0
    return {
        "title": scene.title,
        "step_s": round(scene.step_s, 6),  # float32 says 0.049999997
        "steps": len(motion.rewards),
        "bodies": motion.positions.shape[1],
        "terminated": motion.terminated,
        "geoms": [_geom(geom) for geom in scene.geoms],
        "center": _base64(center),
        "reach": reach,
        "offsets": _base64(np.rint(offsets / reach * FULL_SCALE).astype("<i2")),
        "rotations": _base64(np.rint(np.clip(motion.rotations, -1, 1) * FULL_SCALE).astype("<i2")),
        "rewards": _base64(motion.rewards.astype("<f4")),
    }


def check_finite(motion: Motion) -> None:
    """Check that a motion can be drawn.

    Raises:
        ValueError: a position, rotation or reward is not a number.
    """
    for what, numbers in zip(("a position", "a rotation", "a reward"), motion[:3], strict=True):
        if not np.isfinite(numbers).all():
            step = int(np.argmin(np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)))
            raise ValueError(f"{what} of step {step:,} is not a finite number")


def _geom(geom: Geom) -> dict[str, Any]:
    fields = geom._asdict()
    if geom.mesh is not None:
        vertices, faces = geom.mesh
        fields["mesh"] = {"vertices": _base64(vertices.astype("<f4")), "faces": _base64(faces.astype("<u4"))}
    return fields


def _base64(numbers: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()
