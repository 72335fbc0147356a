"""The sources of a run's settings: a config file, a checkpoint, and the tables of this package."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_fast.algorithms.registry import declared_named
from jaxrl_fast.settings import schema
from jaxrl_fast.settings.files import read_yaml
from jaxrl_fast.settings.run import MADE, REPEATABLE
from jaxrl_fast.settings.schema import ConfigError, read_value, run_keys
from jaxrl_fast.settings.signatures import algo_keys
from jaxrl_fast.system import CODE, local_path, names_code
from jaxrl_fast.training.callbacks import to_stderr
from jaxrl_fast.training.checkpoints import find, newest_good, read_description
from jaxrl_fast.training.resuming import stores_a_part

CONFIG_DIR = Path(__file__).parent.parent / "config"
COMMAND_LINE = "command line"
"""Origin of settings, other than files."""


class Layer(NamedTuple):
    """Settings from one source, such as a file.

    Attributes:
        source: Prefix of error messages.
        values: Values by dotted key.
    """

    source: str
    values: dict[str, Any]


def read_checkpoint(given: Layer) -> Layer | None:
    """Return the settings of the checkpoint of ``resume``, None without one; its path replaces
    ``resume`` in ``given``.

    A run continues in its folder, unless another is named or ``resume`` names a checkpoint instead
    of a run.

    Args:
        given: Settings of the command line.

    Returns:
        The settings.

    Raises:
        ConfigError: ``resume`` contradicts another setting, or the checkpoint is not a command's.
    """
    keys = run_keys()
    resume, run_dir = (
        read_value(name, given.values.get(name), keys[name]) for name in ("resume", "run_dir")
    )
    if resume is None:
        return None
    if "config" in given.values:
        raise ConfigError("resume uses the settings of the run: leave config out")
    if resume == "auto" and run_dir is None:
        raise ConfigError("resume=auto needs a folder: write run_dir=<folder> with it")
    path = (
        newest_good(Path(run_dir), to_stderr)
        if resume == "auto"
        else _without_links(find(Path(resume)))
    )
    given.values["resume"] = None if path is None else str(path)
    if path is None:
        return None
    if run_dir is None and path.parent.parent.resolve() == Path(resume).resolve():
        given.values["run_dir"] = str(path.parent.parent)
    known = read_description(path).settings
    if stores_a_part(known) or not known.get(REPEATABLE, True):
        config = path.parent.parent / "config.yaml"
        if not config.is_file():
            raise ConfigError(
                f"{path} was written by jf.learn: resume it with jf.learn(resume=...)"
            )
        known = read_file(config).values
    algo = str(known.get("algo"))
    names = {} if declared_named(algo) is None else algo_keys(algo)
    require_named_again(path, known, given.values)
    earlier = {name: value for name, value in schema.EARLIER.items() if name in names}
    keys_of_run = {key: value for key, value in known.items() if not key.startswith(MADE)}
    return Layer(f"{path}: ", {**earlier, **keys_of_run})


def require_named_again(folder: Path, named: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that a user's algorithm, network or memory is named again on the command line.

    Code that a folder names is not executed.

    Args:
        folder: Folder of a run, or a checkpoint.
        named: Its settings by dotted key.
        given: Settings of the command line.

    Raises:
        ConfigError: It is not.
    """
    keys = [f"algo.{part}" for part in CODE]
    words = " ".join(
        f"{key}={named[key]}"
        for key in keys
        if names_code(named.get(key)) and given.get(key) is None
    )
    if words:
        raise ConfigError(
            f"{folder} names {words}, and code that a folder names is not executed: write {words} again if you trust it"
        )


def _without_links(path: Path) -> Path:
    """Resolve links, since ``runs/latest`` changes when this run creates a folder."""
    return path if path.absolute() == path.resolve() else path.resolve()


def read_file(path: Any) -> Layer:
    """Read a config file. A group (env, algo, placement) is a name, or a section with ``name``.

    Args:
        path: Path, or None for no settings.

    Returns:
        Its settings.

    Raises:
        ConfigError: It is missing, or contains something else.
    """
    if path is None:
        return Layer("", {})
    local_path(str(path), "config")
    try:
        tree = read_yaml(Path(str(path)))
    except OSError as error:
        raise ConfigError(
            f"config={path}: {error.strerror}; write the path of a config.yaml"
        ) from None
    except ValueError as error:
        raise ConfigError(f"config={path}{error}") from None
    if "resume" in tree:
        raise ConfigError(f"{path}: resume works on the command line only: write it there")
    return Layer(f"{path}: ", schema.by_dotted_key(tree))


def sources_of(names: Iterable[str], *layers: Layer) -> dict[str, str]:
    """Return the origin of those settings that are in the layers; the first layer with a setting
    counts.

    Args:
        names: Settings by dotted key.
        *layers: Layers, the most important first.

    Returns:
        Origin by setting.
    """
    found = {
        name: next((layer for layer in layers if name in layer.values), None) for name in names
    }
    return {
        n: layer.source.removesuffix(": ") or COMMAND_LINE
        for n, layer in found.items()
        if layer is not None
    }


def tuned_settings(env: str, id: str | None, algo: str) -> Layer:
    """Read ``<env>_<id>_<algo>.yaml`` (with dashes for slashes in the id), else
    ``<env>_<algo>.yaml``, else nothing.

    Args:
        env: Name of the environment.
        id: Its id within a suite, or None.
        algo: Name of the algorithm.

    Returns:
        The tuned settings.
    """
    own = [] if id is None else [f"{env}_{id.replace('/', '-')}_{algo}.yaml"]
    for name in (*own, f"{env}_{algo}.yaml"):
        path = CONFIG_DIR / "tuned" / name
        if path.exists():
            return Layer(f"config/tuned/{name}: ", schema.flatten(read_yaml(path)))
    return Layer("", {})
