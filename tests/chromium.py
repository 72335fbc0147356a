"""Whether a headless Chromium is available for tests, and screenshots of its pages."""

import io

import numpy as np
import pytest
from browser import Page, find_chromium

CHROMIUM = find_chromium()
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: apt install chromium"
)


def pixels(page: Page) -> np.ndarray:
    """Return a screenshot, float ``[height, width, 3]`` in [0, 1]."""
    from matplotlib.image import imread

    return imread(io.BytesIO(page.png()))[..., :3]
