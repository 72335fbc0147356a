"""How a file of settings is read: YAML 1.1 with the numbers and dates of YAML 1.2.

``on``, ``off``, ``yes`` and ``no`` are true and false, ``010`` is eight and ``1:20`` eighty; ``1e-3``
is a number, ``2024-01-01`` and ``${...}`` are texts. OmegaConf 2.3, which read the files of 0.2.0,
gave the same values (``tests/golden/words.json`` has its results).
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

EXPONENT = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")
"""Numbers such as ``1e-3``, which are texts in YAML 1.1."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that is written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Make a dictionary of a map."""
        names = set()
        for key, _ in node.value:
            if key.tag.endswith(":str") and key.value in names:
                message = f"duplicate key {key.value}: write it once"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            names.add(key.value if key.tag.endswith(":str") else None)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if not tag.endswith(":timestamp")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))


def read_yaml(path: Path) -> dict[Any, Any]:
    """Read a file of settings.

    Args:
        path: Path.

    Returns:
        Its content, nothing of an empty file.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is not YAML, or contains something else than keys and values. The message
            continues the path.
    """
    try:
        tree = _copied(yaml.load(path.read_text(encoding="utf-8"), _Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f" is not YAML: {' '.join(str(error).split())}") from None
    if isinstance(tree, str):
        return {tree: None}
    if tree is not None and not isinstance(tree, dict):
        raise ValueError(": write keys and values, such as seed: 3")
    return tree or {}


def _copied(tree: Any) -> Any:
    """Return a copy of numbers, texts, lists and maps."""
    if isinstance(tree, dict):
        if None in tree:
            raise ValueError("a key is null: write a name, such as seed: 3")
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_copied(value) for value in tree]
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise ValueError(f"!!{type(tree).__name__}: write numbers, texts, lists and maps")
