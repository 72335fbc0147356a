"""Accelerators that can be compiled for without having one, their compilers, and the words that name them."""

import os
import re
import sys
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import NamedTuple

import jax
from jax.experimental import topologies

from jaxrl_fast.settings.schema import ConfigError


class Chip(NamedTuple):
    """One device of a kind.

    - ``title``: its name in sentences.
    - ``platform``: XLA's word for its compiler.
    - ``memory_bytes``: of one device; ``bandwidth``: bytes a second that it reads and writes.
    - ``product_flops``: a second, in matrix products of float32 arrays as JAX does them by default there.
    - ``devices_per_host``: as such machines are built.
    - ``description``: XLA's ``GpuTargetConfigProto`` as text; empty where a topology says all.
    """

    title: str
    platform: str
    memory_bytes: int
    bandwidth: float
    product_flops: float
    devices_per_host: int
    description: str = ""


H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 } core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84942979072
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  shared_memory_per_core: 233472 shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  runtime_version: "13.0.0" driver_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""Of an H100 SXM: NVIDIA's H100 data sheet, and the CUDA programming guide's limits of compute capability 9.0."""

CHIPS = {
    "h100": Chip("H100 SXM", "cuda", 84_942_979_072, 3.352e12, 494.7e12, 8, H100),
    "tpu-v5e": Chip("TPU v5e", "tpu", 17_179_869_184, 8.19e11, 197e12, 8),
}
"""Products of float32 arrays: on an H100 in TF32, 494.7 TFLOP/s; on a TPU v5e in bfloat16, 197 TFLOP/s (Google's and
NVIDIA's data sheets). A TPU runs a program without launching kernels one by one."""


THIS = "this"
"""The word for the machine that the command runs on."""
SMALLEST_TPU = "2x2"
"""A program for one TPU is compiled for the first of four, the smallest that XLA has a topology of."""


class Target(NamedTuple):
    """A machine, or several that are joined.

    - ``name``: as the user wrote it.
    - ``chip``: what its devices are.
    - ``num_devices``: over all hosts.
    - ``topology``: XLA's word for how they are joined.
    """

    name: str
    chip: Chip
    num_devices: int
    topology: str


def parse_target(word: str) -> Target:
    """The machine that ``word`` names.

    Raises:
        ConfigError: with the words that there are.
    """
    name, _, size = word.partition(":")
    if name not in CHIPS:
        raise ConfigError(f"target={word}: write {', '.join(CHIPS)}, with a number of devices as in h100:8, or {THIS}")
    chip = CHIPS[name]
    size = size or ("1x1" if chip.platform == "tpu" else "1")
    if chip.platform == "tpu":
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", size):
            raise ConfigError(f"target={word}: write the rows and columns of devices, as in tpu-v5e:2x4")
        number = prod(map(int, size.split("x")))
        return Target(word, chip, number, f"v5e:{SMALLEST_TPU if number == 1 else size}")
    most, number = chip.devices_per_host, int(size) if size.isdecimal() else 0
    if number < 1 or (number > most and number % most):
        raise ConfigError(f"target={word}: write a number of devices up to {most}, or a multiple of {most}")
    return Target(word, chip, number, f"1x{-(-number // most)}x{min(number, most)}")


def devices_of(target: Target) -> list[jax.Device]:
    """Devices that programs can be compiled for and that run nothing. Needs the compiler of their platform
    (`jaxrl_fast.targets.accelerators`)."""
    if target.chip.platform == "cuda":
        text = target.chip.description
        found = topologies.get_topology_desc(platform="cuda", target_config=text, topology=target.topology)
    else:
        found = topologies.get_topology_desc(target.topology, target.chip.platform)
    return list(found.devices)[: target.num_devices]


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
