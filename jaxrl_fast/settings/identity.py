"""What a compiled program depends on beside its run's settings: code, packages, machine, and JAX's own settings."""

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

from jaxrl_fast.settings.runtime import cpu_fingerprint

OWN = ("jaxrl_fast", "envs")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "chex", "ml_dtypes", "numpy")
OF_SUITES = {
    "brax": ("brax", "mujoco", "mujoco_mjx", "jaxopt", "trimesh", "scipy"),
    "gymnax": ("gymnax",),
    "traffic": (),
    "probe": (),
}
"""Suites whose worlds are wholly said by a name, options and these packages; those of others are never kept."""
CODE = (".py", ".so", ".xml", ".yaml", ".json")
VARIABLES = ("JAX", "XLA", "LIBTPU", "TPU_", "CUDA", "NVIDIA", "NCCL", "TF_", "OMP_", "OPENBLAS", "LD_")
"""Begin the names of environment variables that may change what is computed."""
UNIMPORTANT = ("JAXRL_FAST_CACHE",)
CACHE_SETTINGS = ("jax_compilation_cache_dir", "jax_compilation_cache", "jax_persistent_cache")
"""Begin the names of JAX's settings that say where and what it saves."""


def identity_of(suite: str) -> dict[str, Any] | None:
    """All of it for worlds of a ``suite``, as JSON has it; None for worlds that are more than their names, such as a
    user's own. Starts JAX's devices."""
    if suite not in OF_SUITES:
        return None
    packages = (*PACKAGES, *OF_SUITES[suite])
    return {
        "python": [platform.python_implementation(), platform.python_version()],
        "code": {name: _digest_of_code(name) for name in OWN},
        "packages": {name: [_version(name), _stamp(name)] for name in packages},
        "variables": {k: v for k, v in os.environ.items() if k.startswith(VARIABLES) and k not in UNIMPORTANT},
        "jax": {k: repr(v) for k, v in jax.config.values.items() if not k.startswith(CACHE_SETTINGS)},
        "machine": [cpu_fingerprint(), platform.platform()],
        "devices": [[d.platform, d.device_kind, d.id, d.client.platform_version] for d in jax.devices()],
    }


def digest(*parts: Any) -> str:
    """A name for what all of this says."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()[:40]


def _digest_of_code(package: str) -> str:
    """Of what is written in a package's files."""
    found = hashlib.sha256()
    for path, place in _files(package):
        content = Path(path).read_bytes()
        found.update(f"{place} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _stamp(package: str) -> str:
    """Of when a package's files were last changed, and how long they are."""
    found = hashlib.sha256()
    for path, place in _files(package):
        state = os.stat(path)
        found.update(f"{place} {state.st_size} {state.st_mtime_ns}\n".encode())
    return found.hexdigest()


def _files(package: str) -> Iterator[tuple[str, str]]:
    """The files of a package that can change what it does, as path and name within it, in order."""
    spec = find_spec(package)
    if spec is None:
        return
    for root in spec.submodule_search_locations or ():
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(files):
                if name.endswith(CODE):
                    path = os.path.join(folder, name)
                    yield path, os.path.relpath(path, root)


def _version(package: str) -> str | None:
    try:
        return version(package.replace("_", "-"))
    except PackageNotFoundError:
        return None
