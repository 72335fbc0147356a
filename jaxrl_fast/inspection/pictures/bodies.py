"""Moving bodies as pictures, by MuJoCo's renderer."""

import warnings
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from jaxrl_fast.environments.scene import Motion, Scene
from jaxrl_fast.evaluation.episode_page import check_finite
from jaxrl_fast.inspection.pictures.by_gl import INSTALL_GL, drawn_by_gl


def drawn_bodies(scene: Scene, motion: Motion, steps: Iterable[int], width: int) -> Iterator[np.ndarray]:
    """Pictures of a motion at some of its steps, uint8 ``[2 / 3 width, width, 3]``.

    Raises:
        ValueError: there is no GL here (one line that says what to install), or a body is somewhere that is not a
            number.
    """
    check_finite(motion)
    by_gl = drawn_by_gl(scene, motion, steps, width)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a missing screen
            first = next(by_gl)
    except Exception as error:  # each GL fails in its own way: ImportError, FatalError, AttributeError, OSError, ...
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".:")
        instead = f"{INSTALL_GL}, or write out=....html; MuJoCo says: {reason}"
        raise ValueError(f"{scene.title} cannot be drawn here: {instead}") from error
    yield from chain([first], by_gl)
