"""The files that our pages are made of."""

import re
from importlib.resources import files

ASSETS = files("jaxrl_fast.inspection") / "assets"


def assembled(name: str, **content: str) -> str:
    """The page ``name``. Where ``{{this}}`` stands in it comes that ``content``, else the file of that name."""
    page = (ASSETS / name).read_text("utf-8")
    return re.sub(r"\{\{([\w.]+)\}\}", lambda place: content.get(place[1]) or text_of(place[1]), page)


def text_of(name: str) -> str:
    """A file as it is."""
    return (ASSETS / name).read_text("utf-8")
