"""Moving bodies as pictures: by MuJoCo's renderer where there is a GL, else by ``policy.html`` in a Chromium."""

import base64
import io
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from jaxrl_fast.environments.scene import Motion, Scene
from jaxrl_fast.evaluation.episode_page import check_finite, page_of
from jaxrl_fast.inspection.pictures.browser import BrowserError, chromium_page, find_chromium
from jaxrl_fast.inspection.pictures.by_gl import INSTALL_GL, drawn_by_gl


def drawn_bodies(scene: Scene, motion: Motion, steps: Iterable[int], width: int) -> Iterator[np.ndarray]:
    """Pictures of a motion at some of its steps, uint8 ``[2 / 3 width, width, 3]``.

    Raises:
        ValueError: neither GL nor Chromium draws them here (one line that says what to install), or a body is
            somewhere that is not a number.
    """
    check_finite(motion)
    steps = list(steps)
    by_gl = drawn_by_gl(scene, motion, steps, width)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a missing screen
            first = next(by_gl)
    except Exception as error:  # each GL fails in its own way: ImportError, FatalError, AttributeError, OSError, ...
        yield from drawn_by_page(scene, motion, steps, width, _first_line(error))
        return
    yield from chain([first], by_gl)


def drawn_by_page(
    scene: Scene, motion: Motion, steps: Iterable[int], width: int, why_not_gl: str = "nothing"
) -> Iterator[np.ndarray]:
    """As `drawn_bodies`, by a Chromium that shows ``policy.html``. ``why_not_gl``: for the message.

    Raises:
        ValueError: there is no Chromium, or it draws nothing.
    """
    chromium = find_chromium()
    if chromium is None:
        raise ValueError(
            f"{scene.title} cannot be drawn here: {INSTALL_GL}, or a Chromium (apt install chromium); "
            f"MuJoCo says: {why_not_gl}"
        )
    try:
        yield from _pictures(chromium, page_of(scene, motion), steps, width)
    except (BrowserError, OSError) as error:
        raise ValueError(
            f"{scene.title} cannot be drawn here: {chromium} says: {_first_line(error)}; MuJoCo says: {why_not_gl}"
        ) from error


def _pictures(chromium: str, content: str, steps: Iterable[int], width: int) -> Iterator[np.ndarray]:
    with tempfile.TemporaryDirectory() as folder, chromium_page(chromium) as page:
        file = Path(folder) / "policy.html"
        file.write_text(content, "utf-8")
        page.open(file, width=width, height=width * 2 // 3)
        for step in steps:
            address = page.run(f"pictureAt({step})")
            png = base64.b64decode(address.partition(",")[2])
            yield np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".:")
