"""A cache of environments and compiled programs in the user's files, and the identity of everything
they depend on.

The name of a file is a digest of code, packages, machine, JAX's configuration and the run's
settings. A file contains the facts of an environment, so that it need not be built again, or one
compiled program.
"""

import hashlib
import json
import os
import platform
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization

from jaxrl_fast import envs, plugins
from jaxrl_fast.algorithms.registry import ALGORITHMS, declared_named
from jaxrl_fast.commands.run_config import make_envs
from jaxrl_fast.core import EnvSpec, PyTree
from jaxrl_fast.envs.env import Bodies, Env, VecEnv, vectorize
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.policy.policies import spec_from_json, spec_to_json
from jaxrl_fast.settings.machine import cache_root, cpu_fingerprint, make_own_folder, make_room
from jaxrl_fast.settings.run import Run
from jaxrl_fast.system import replacing

OWN = "jaxrl_fast"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "chex", "ml_dtypes", "numpy")
CODE = (".py", ".so", ".xml", ".yaml", ".json")
VARIABLES = (
    "JAX",
    "XLA",
    "LIBTPU",
    "TPU_",
    "CUDA",
    "NVIDIA",
    "NCCL",
    "TF_",
    "OMP_",
    "OPENBLAS",
    "LD_",
)
"""Prefixes of environment variables that may change results."""
UNIMPORTANT = ("JAXRL_FAST_CACHE",)
CACHE_SETTINGS = ("jax_compilation_cache_dir", "jax_compilation_cache", "jax_persistent_cache")
"""Prefixes of JAX options that control JAX's cache."""


def identity_of(suite: str, algo: str) -> dict[str, Any] | None:
    """Collect everything that cached files of a suite depend on, other than settings. Starts JAX's
    devices.

    Args:
        suite: Suite of environments.
        algo: Name of the algorithm.

    Returns:
        Nested values for JSON; None for suites that cannot be cached, such as user environments.
    """
    cached_with = envs.named_suite(suite).cached_with
    if cached_with is None:
        return None
    sources = _sources_of_others(suite, algo)
    return {
        "python": [platform.python_implementation(), platform.python_version()],
        "code": {name: _digest_of_code(name) for name in (OWN, *(s.package for s in sources))},
        "packages": {name: [_version(name), _stamp(name)] for name in (*PACKAGES, *cached_with)},
        "required": {name: _version(name) for source in sources for name in source.requires},
        "variables": {
            k: v for k, v in os.environ.items() if k.startswith(VARIABLES) and k not in UNIMPORTANT
        },
        "jax": {
            k: repr(v) for k, v in jax.config.values.items() if not k.startswith(CACHE_SETTINGS)
        },
        "machine": [cpu_fingerprint(), platform.platform()],
        "devices": [
            [d.platform, d.device_kind, d.id, d.client.platform_version] for d in jax.devices()
        ],
    }


def _sources_of_others(suite: str, algo: str) -> list[plugins.Source]:
    """Return the code of other packages that bring a suite or an algorithm which ours lack."""
    names: list[tuple[plugins.Group, str]] = []
    if suite not in plugins.SUITES:
        names.append(("suites", suite))
    if algo not in ALGORITHMS:
        names.append(("algorithms", algo))
    sources = (plugins.source_of(group, name) for group, name in names)
    return [source for source in sources if source is not None]


def digest(*parts: Any) -> str:
    """Compute a name from values.

    Args:
        *parts: Values for JSON, or with a complete ``repr``.

    Returns:
        40 hexadecimal digits.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()[:40]


def _digest_of_code(package: str) -> str:
    """Return the digest of the contents of a package's files."""
    digest = hashlib.sha256()
    for path, place in _files(package):
        content = Path(path).read_bytes()
        digest.update(f"{place} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _stamp(package: str) -> str:
    """Return the digest of the modification times and sizes of a package's files."""
    digest = hashlib.sha256()
    for path, place in _files(package):
        state = os.stat(path)
        digest.update(f"{place} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _files(package: str) -> Iterator[tuple[str, str]]:
    """Iterate over the files of a package that can change its behaviour, as path and name within
    it, in order.
    """
    spec = find_spec(package)
    if spec is None:
        return
    for root in spec.submodule_search_locations or ():
        for folder, folders, files in os.walk(root, followlinks=True):
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


MAX_BYTES = 512_000_000
"""Largest size of all files in bytes. The files that were not read for longest are removed."""
FOLDER = "kept"
HEAD = b"jaxrl_fast kept 1\n"
DIGEST_BYTES = 32


class KeptFiles:
    """A folder of files, each a dictionary of numbers, texts, bytes and arrays.

    ``tell`` gets a line if a file or the folder cannot be used.
    """

    def __init__(
        self, folder: Path, tell: Callable[[str], None], max_bytes: int = MAX_BYTES
    ) -> None:
        self.folder, self.tell, self.max_bytes = folder, tell, max_bytes
        wrong = make_own_folder(folder)
        self.usable = wrong is None
        if wrong is not None:
            tell(f"{wrong}; until then nothing is cached for the next start")

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a file; None if there is no usable one."""
        path = self.folder / name
        if not self.usable:
            return None
        try:
            content = _read_own(path)
            if content[: len(HEAD)] != HEAD:
                raise ValueError("it is of another kind")
            digest, body = content[len(HEAD) :][:DIGEST_BYTES], content[len(HEAD) + DIGEST_BYTES :]
            if digest != _digest(name, body):
                raise ValueError("it has changed")
            os.utime(path)
            return dict(serialization.msgpack_restore(body))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            self.tell(f"{path} cannot be used ({_reason(error)}) and is rebuilt")
            return None

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replace a file atomically, and remove old ones if all are larger than ``max_bytes``."""
        if not self.usable:
            return
        body = serialization.msgpack_serialize(content)
        try:
            with (
                replacing(self.folder / name) as temporary,
                open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
            ):
                file.write(HEAD + _digest(name, body) + body)
            make_room(self.folder, self.max_bytes)
        except OSError as error:
            self.tell(
                f"cannot write to {self.folder} ({error.strerror}): the next start is as slow as this one"
            )


def _read_own(path: Path) -> bytes:
    """Read a file that belongs to the user and that others cannot write."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        file_stat = os.fstat(file.fileno())
        if (
            not stat.S_ISREG(file_stat.st_mode)
            or file_stat.st_uid != os.geteuid()
            or file_stat.st_mode & 0o022
        ):
            raise ValueError("others can write to it")
        return file.read()


def _digest(name: str, body: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + body).digest()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())


class EnvCache(NamedTuple):
    """The cache of a run.

    Attributes:
        files: Cached files.
        identity: Everything that they depend on, other than the run's settings.
    """

    files: KeptFiles
    identity: dict[str, Any]


def env_cache_of(run: Run, tell: Callable[[str], None]) -> EnvCache | None:
    """Open the cache of a run for which JAX has started.

    Args:
        run: Settings of the run.
        tell: Shows messages to the user.

    Returns:
        The cache; None with ``JAXRL_FAST_CACHE=off``, in several processes, for environments and
        algorithms that are not determined by their names, and with ``debug``, which traces each
        tick's operations.
    """
    root = cache_root()
    if root is None or run.debug or jax.process_count() > 1 or declared_named(run.algo) is None:
        return None
    suite, _ = envs.resolve(run.env, dict(run.env_options))
    identity = identity_of(suite, run.algo)
    return None if identity is None else EnvCache(KeptFiles(root / FOLDER, tell), identity)


def make_cached_envs(run: Run, keeper: EnvCache | None) -> VecEnv | HostEnv:
    """Make the environments of a run; cached ones are built only when they are traced.

    Args:
        run: Settings of the run.
        keeper: Cache, or None.

    Returns:
        The environments.
    """
    if keeper is None:
        return make_envs(run)
    name = f"world-{digest(keeper.identity, *envs.resolve(run.env, dict(run.env_options)))}"
    stored = keeper.files.read(name)
    if stored is not None:
        return vectorize(_built_later(run, stored), num_envs=run.num_envs)
    env = make_envs(run)
    if isinstance(env, VecEnv) and env.env is not None:
        facts = _facts(env.env)
        if same(spec_from_json(facts["spec"]), env.spec):
            keeper.files.write(name, facts)
    return env


def same(one: EnvSpec, other: EnvSpec) -> bool:
    """Check whether two specs are equal, including their containers.

    Args:
        one: Spec.
        other: Spec.

    Returns:
        True if they are equal.
    """
    if str(jax.tree.structure(one)) != str(jax.tree.structure(other)):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(
        np.array_equal(a, b) and np.asarray(a).dtype == np.asarray(b).dtype for a, b in pairs
    )


def _facts(env: Env) -> dict[str, Any]:
    return {
        "spec": spec_to_json(env.spec),
        "shortest_episode": int(env.shortest_episode),
        "steps_per_reset": env.steps_per_reset,
        "step_s": float(env.step_s),
        "draws": env.draw is not None,
        "succeeds": env.success is not None,
        "has_bodies": env.bodies is not None,
    }


def _built_later(run: Run, stored: dict[str, Any]) -> Env:
    """Make the environment of a run, which is built at the first call of one of its functions."""
    built: list[Env] = []
    lock = threading.Lock()

    def world() -> Env:
        with lock, jax.ensure_compile_time_eval():  # its arrays must outlive the current trace
            if not built:
                built.append(envs.make(run.env, **run.env_options))
        return built[0]

    return Env(
        spec_from_json(stored["spec"]),
        reset=lambda key, params: world().reset(key, params),
        step=lambda state, action, key: world().step(state, action, key),
        sample_params=lambda key: world().sample_params(key),
        shortest_episode=stored["shortest_episode"],
        step_s=stored["step_s"],
        draw=(lambda state: _of(world().draw, state)) if stored["draws"] else None,
        success=(lambda state: _of(world().success, state)) if stored["succeeds"] else None,
        bodies=Bodies(lambda: _bodies(world()).scene(), lambda state: _bodies(world()).pose(state))
        if stored["has_bodies"]
        else None,
        steps_per_reset=stored.get("steps_per_reset"),
    )


def _bodies(env: Env) -> Bodies:
    assert env.bodies is not None
    return env.bodies


def _of(function: Any, state: PyTree) -> Any:
    return function(state)


WITHOUT_EFFECT = ("seed", "name", "log", "tuned")
"""Settings that programs do not depend on. A seed is an argument."""
SECTIONS_WITHOUT = ("eval.", "checkpoint.", "stop.")


class ProgramFiles(NamedTuple):
    """A `program_store.Store` of the programs of one run.

    Attributes:
        files: Cached files.
        key: Digest of everything that the programs depend on.
        packages: Packages whose code is in the digest.
    """

    files: KeptFiles
    key: str
    packages: tuple[str, ...]

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a program; None if there is none."""
        return self.files.read(f"program-{self.key}-{name}")

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a program."""
        self.files.write(f"program-{self.key}-{name}", content)

    def refuse(self, name: str, why: str) -> None:
        """Report why a program cannot be used or cached."""
        self.files.tell(
            f"program '{name}' is not cached for the next start ({' '.join(why.split())})"
        )


def store_of(keeper: EnvCache, settings: Mapping[str, Any], program: Any) -> ProgramFiles:
    """Return the store of a run's compiled programs.

    Args:
        keeper: Cache of the run.
        settings: Settings of the run.
        program: Other values that the programs depend on.

    Returns:
        The store.
    """
    telling = {
        key: value
        for key, value in settings.items()
        if key not in WITHOUT_EFFECT and not key.startswith(SECTIONS_WITHOUT)
    }
    return ProgramFiles(
        files=keeper.files,
        key=digest(keeper.identity, telling, repr(program)),
        packages=tuple(keeper.identity["code"]),
    )
