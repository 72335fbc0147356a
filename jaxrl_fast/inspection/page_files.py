"""The files that our pages are made of."""

import json
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

ASSETS = files("jaxrl_fast.inspection") / "assets"


def assembled(name: str, folder: Traversable = ASSETS, **content: Any) -> str:
    """The page ``name``. Where ``{{this}}`` stands in it comes that ``content`` as JSON, else the file of that name."""
    # "<" of a name or title would end the script that the data lie in.
    data = {key: json.dumps(value, allow_nan=False).replace("<", "\\u003c") for key, value in content.items()}
    page = text_of(name, folder)
    return re.sub(r"\{\{([\w.]+)\}\}", lambda place: data.get(place[1]) or text_of(place[1], folder), page)


def text_of(name: str, folder: Traversable = ASSETS) -> str:
    """A file of ``folder``."""
    return (folder / name).read_text("utf-8")
