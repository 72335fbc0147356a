"""Pictures one after another as a GIF or an MP4."""

import io
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

SUFFIXES = (".gif", ".mp4", ".html")
"""Of files with an episode; a page is written by `evaluation.viewer`."""


def check_out(path: Path) -> None:
    """Check that a file like ``path`` can be written here.

    Raises:
        ValueError: they cannot; one line that says what to write or to install.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"out={path}: write a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if path.suffix == ".mp4" and _find_ffmpeg() is None:
        raise ValueError(f"out={path} needs ffmpeg: pip install 'jaxrl_fast[video]', or write out=....gif")
    if not path.parent.is_dir():
        raise ValueError(f"out={path}: there is no folder {path.parent}: make it, or write another one")


def encode(pictures: Iterable[np.ndarray], suffix: str, picture_s: float) -> tuple[bytes, list[tuple[int, int]]]:
    """A file of the kind ``suffix`` that shows each of the ``pictures``, uint8 ``[H, W, 3]``, for ``picture_s``
    seconds: its content, and height and width of each picture."""
    sizes: list[tuple[int, int]] = []

    def counted() -> Iterator[np.ndarray]:
        for picture in pictures:
            sizes.append(picture.shape[:2])
            yield picture

    return (_gif if suffix == ".gif" else _mp4)(counted(), picture_s), sizes


def fitted(picture: np.ndarray, width: int) -> np.ndarray:
    """A picture at most ``width`` pixels wide: a smaller one is enlarged by whole pixels, a larger one averaged."""
    image = Image.fromarray(picture)
    times = width // image.width
    if times >= 1:
        return picture.repeat(times, axis=0).repeat(times, axis=1)
    return np.asarray(image.resize((width, max(1, round(image.height * width / image.width))), Image.Resampling.BOX))


def _gif(pictures: Iterator[np.ndarray], picture_s: float) -> bytes:
    # Hundredths of a second are all that the format knows, and browsers take less than two for ten.
    duration_ms = 10 * max(2, round(100 * picture_s))
    images = (Image.fromarray(picture).quantize(dither=Image.Dither.NONE) for picture in pictures)
    file = io.BytesIO()
    next(images).save(file, "GIF", save_all=True, append_images=images, duration=duration_ms, loop=0)
    return file.getvalue()


def _mp4(pictures: Iterator[np.ndarray], picture_s: float) -> bytes:
    first = next(pictures)
    height, width = first.shape[:2]
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(1 / picture_s), "-i", "-"]
    # Its colors are stored for squares of two by two pixels.
    made = ["-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2", "-pix_fmt", "yuv420p", "-movflags", "faststart"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "movie.mp4"
        command = [_find_ffmpeg() or "ffmpeg", "-loglevel", "error", *given, *made, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as ffmpeg:
            assert ffmpeg.stdin is not None
            for picture in chain([first], pictures):
                ffmpeg.stdin.write(picture.tobytes())
        return path.read_bytes()


def _find_ffmpeg() -> str | None:
    if find_spec("imageio_ffmpeg") is None:
        return shutil.which("ffmpeg")
    import imageio_ffmpeg

    return str(imageio_ffmpeg.get_ffmpeg_exe())
