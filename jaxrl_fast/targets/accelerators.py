"""Accelerators for which programs can be compiled without a device, their compilers, and their
names.
"""

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
    """One kind of device.

    Attributes:
        title: Name in sentences.
        platform: XLA's name of its compiler.
        memory_bytes: Memory of one device.
        bandwidth: Memory bandwidth in bytes per second.
        product_flops: FLOP per second in matrix products of float32 arrays with JAX's default
            precision.
        devices_per_host: Devices of a usual machine.
        description: XLA's ``GpuTargetConfigProto`` as text; empty if a topology is sufficient.
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
"""An H100 SXM: NVIDIA's H100 data sheet, and the CUDA programming guide's limits of compute
capability 9.0.
"""
H200 = H100.replace("3352320000000", "4800000000000").replace("84942979072", "150754820096")
"""The same chip with more and faster memory (NVIDIA's H200 data sheet; its size as the driver
reports it).
"""

CHIPS = {
    "h100": Chip(
        "H100 SXM",
        "cuda",
        memory_bytes=84_942_979_072,
        bandwidth=3.352e12,
        product_flops=494.7e12,
        devices_per_host=8,
        description=H100,
    ),
    "h200": Chip(
        "H200 SXM",
        "cuda",
        memory_bytes=150_754_820_096,
        bandwidth=4.8e12,
        product_flops=494.7e12,
        devices_per_host=8,
        description=H200,
    ),
    "tpu-v5e": Chip(
        "TPU v5e",
        "tpu",
        memory_bytes=17_179_869_184,
        bandwidth=8.19e11,
        product_flops=197e12,
        devices_per_host=8,
    ),
}
"""Products of float32 arrays: on an H100 or H200 in TF32, 494.7 TFLOP/s; on a TPU v5e in bfloat16,
197 TFLOP/s (Google's and NVIDIA's data sheets). A TPU runs a program without launching kernels one
by one.
"""


THIS = "this"
"""Name of the machine on which the command runs."""
SMALLEST_TPU = "2x2"
"""A program for one TPU is compiled for the first of four, the smallest topology that XLA has."""


class Target(NamedTuple):
    """A machine, or several connected ones.

    Attributes:
        name: Name that the user wrote.
        chip: Kind of its devices.
        num_devices: Devices over all hosts.
        topology: XLA's name of their connection.
    """

    name: str
    chip: Chip
    num_devices: int
    topology: str


def parse_target(word: str) -> Target:
    """Read the name of a target.

    Args:
        word: Kind of device, with a number or topology of devices after a colon.

    Returns:
        The target.

    Raises:
        ConfigError: There is no such target; the message lists the names.
    """
    name, _, size = word.partition(":")
    if name not in CHIPS:
        raise ConfigError(
            f"target={word}: write {', '.join(CHIPS)}, with a number of devices as in h100:8, or {THIS}"
        )
    chip = CHIPS[name]
    size = size or ("1x1" if chip.platform == "tpu" else "1")
    if chip.platform == "tpu":
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", size):
            raise ConfigError(
                f"target={word}: write the rows and columns of devices, as in tpu-v5e:2x4"
            )
        number = prod(map(int, size.split("x")))
        return Target(word, chip, number, f"v5e:{SMALLEST_TPU if number == 1 else size}")
    most, number = chip.devices_per_host, int(size) if size.isdecimal() else 0
    if number < 1 or (number > most and number % most):
        raise ConfigError(
            f"target={word}: write a number of devices up to {most}, or a multiple of {most}"
        )
    return Target(word, chip, number, f"1x{-(-number // most)}x{min(number, most)}")


def devices_of(target: Target) -> list[jax.Device]:
    """Return devices for which programs can be compiled, but that run nothing.

    Args:
        target: Target whose platform has a compiler here.

    Returns:
        The devices.
    """
    if target.chip.platform == "cuda":
        text = target.chip.description
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=text, topology=target.topology
        )
    else:
        topology = topologies.get_topology_desc(target.topology, target.chip.platform)
    return list(topology.devices)[: target.num_devices]


FOLDER = ".venv-targets"
VARIABLE = "JAXRL_FAST_TARGETS"
PLUGINS = {"cuda": "jax_plugins.xla_cuda13", "tpu": "libtpu"}
"""By platform, the module that must be importable to compile for it."""


def python_for(platform: str) -> Path:
    """Return the Python that can compile for a platform.

    Args:
        platform: XLA's name of the compiler.

    Returns:
        Path of the executable.

    Raises:
        ConfigError: There is none; the message has the installation command.
    """
    if has_compiler(platform):
        return Path(sys.executable)
    for folder in places():
        python = folder / "bin" / "python"
        if python.exists():
            return python
    raise ConfigError(
        f"no compiler for accelerators is installed: run make targets in a checkout of jaxrl_fast, which makes "
        f"{FOLDER} (1.5 GB), or set {VARIABLE} to a folder that it made"
    )


def places() -> list[Path]:
    """Return where the virtual environment may be: the user's folder, else in the checkout and the
    working directory.

    Returns:
        Folders in the order of the search.
    """
    named = os.environ.get(VARIABLE)
    checkout = Path(__file__).resolve().parents[2]
    return [Path(named)] if named else [checkout / FOLDER, Path.cwd() / FOLDER]


def has_compiler(platform: str) -> bool:
    """Return whether this Python can compile for a platform.

    Args:
        platform: XLA's name of the compiler.

    Returns:
        True if it can.
    """
    package = PLUGINS[platform].rpartition(".")[0]
    return (not package or find_spec(package) is not None) and find_spec(
        PLUGINS[platform]
    ) is not None


def compile_only(dump: Path) -> dict[str, str]:
    """Return the environment variables of a process that compiles for absent devices and dumps
    XLA's analysis.

    Args:
        dump: Folder of the dumps.

    Returns:
        All variables of the process.
    """
    # Without a device XLA cannot ask CUB for the memory of a sort of at least 32,768 numbers.
    flags = (
        compile_here(dump)["XLA_FLAGS"] + " --xla_gpu_deviceless_cub_mode=DEVICELESS_CUB_DISABLED"
    )
    variables = {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "JAXRL_FAST_CACHE": "off",
        "XLA_FLAGS": flags,
    }
    return {**os.environ, **variables}


def compile_here(dump: Path) -> dict[str, str]:
    """Return the environment variables with which XLA dumps its analysis of the programs it
    compiles.

    Args:
        dump: Folder of the dumps.

    Returns:
        Variables to add.
    """
    flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_gpu_collect_cost_model_stats=true"
    # XLA does not analyze a program that it loads from disk.
    return {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
        "JAXRL_FAST_CACHE": "off",
    }
