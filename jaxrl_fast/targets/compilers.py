"""The environment that holds compilers for accelerators: its Python compiles, and training never sees it.

Two compilers of JAX's are 1 GB, and with their packages installed JAX would look for accelerators at every start.
So ``make targets`` puts them into a folder of their own, and commands that need one run there.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from jaxrl_fast.settings.schema import ConfigError

FOLDER = ".venv-targets"
VARIABLE = "JAXRL_FAST_TARGETS"
PLUGINS = {"cuda": "jax_plugins.xla_cuda13", "tpu": "libtpu"}
"""By platform, what must be importable to compile for it."""


def python_for(platform: str) -> Path:
    """The Python that can compile for a platform.

    Raises:
        ConfigError: there is none; says how to make it.
    """
    if has_compiler(platform):
        return Path(sys.executable)
    for folder in places():
        python = folder / "bin" / "python"
        if python.exists():
            return python
    raise ConfigError(
        f"no compiler for accelerators is installed: write make targets in a checkout of jaxrl_fast, which makes "
        f"{FOLDER} (1.5 GB), or set {VARIABLE} to a folder that it made"
    )


def places() -> list[Path]:
    """Where the environment may be: where the user says, beside the package's checkout, in the working directory."""
    named = os.environ.get(VARIABLE)
    checkout = Path(__file__).resolve().parents[2]
    return [Path(named)] if named else [checkout / FOLDER, Path.cwd() / FOLDER]


def has_compiler(platform: str) -> bool:
    """Whether this Python can compile for a platform."""
    package = PLUGINS[platform].rpartition(".")[0]
    return (not package or find_spec(package) is not None) and find_spec(PLUGINS[platform]) is not None


def compile_only(dump: Path) -> dict[str, str]:
    """Environment variables of a process that compiles for what is not here and puts down in ``dump`` what XLA says."""
    # Without a device XLA cannot ask CUB how much memory a sort of 32,768 numbers and more needs.
    flags = compile_here(dump)["XLA_FLAGS"] + " --xla_gpu_deviceless_cub_mode=DEVICELESS_CUB_DISABLED"
    own = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "JAXRL_FAST_CACHE": "off", "XLA_FLAGS": flags}
    return {**os.environ, **own}


def compile_here(dump: Path) -> dict[str, str]:
    """Environment variables with which XLA puts down in ``dump`` what it says of the programs that it compiles."""
    flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_gpu_collect_cost_model_stats=true"
    # A program that is found on disk is not compiled, and nothing is said of it.
    return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(), "JAXRL_FAST_CACHE": "off"}
