"""The files that our pages are made of."""

import json
import re
from importlib.resources import files
from typing import Any

ASSETS = files("jaxrl_fast.inspection") / "assets"


def assembled(name: str, **content: Any) -> str:
    """The page ``name``. Where ``{{this}}`` stands in it comes that ``content`` as JSON, else the file of that name."""
    # "<" of a name would end the script that the data lie in.
    data = {key: json.dumps(value, allow_nan=False).replace("<", "\\u003c") for key, value in content.items()}
    page = text_of(name)
    return re.sub(r"\{\{([\w.]+)\}\}", lambda place: data.get(place[1]) or text_of(place[1]), page)


def text_of(name: str) -> str:
    """A file as it is."""
    return (ASSETS / name).read_text("utf-8")
