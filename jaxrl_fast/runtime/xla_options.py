"""Options of XLA by program and device. They change results only by rounding."""

import os
from functools import cache
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from jaxrl_fast.core import UNKNOWN_PRODUCTS, Products

EIGEN = "xla_cpu_experimental_ynn_fusion_type"
CPU_OPTIONS: dict[str, str | bool] = {EIGEN: ""}
"""Matrix products by Eigen instead of YNNPACK: on 2 cores, 5 % more SAC updates of 512, 6 % more
PPO updates of 10,240 (medians of 8 and 4 rounds in turn, JAX 0.10.2). Not for small products: for
several agents with a memory, whose minibatches are a few sequences, Eigen takes 1.4 times as long
(`experiments/bench/agents.py`, one core).
"""

YNNPACK_PRODUCT = 2**24
"""Most multiply-adds of a product (256 rows by 256 x 256) up to which programs of updates without
environments use YNNPACK: SAC on Gymnasium's HalfCheetah is 1.03 times as fast. With 512 rows there
is no difference, with 10,240 there are 8 % fewer updates. With brax's steps in the program, SAC
makes 6 % fewer updates even with 256 rows.
"""

SMALL_OPTIONS: dict[str, str | bool] = {"xla_cpu_multi_thread_eigen": False}
SMALL_PRODUCT = 2**21
"""Most multiply-adds of a product (512 rows by 64 x 64, some 25 microseconds) up to which each runs
in one thread. PPO on CartPole is 1.15 times as fast with minibatches of 128, but no faster with
2,048 and with layers of 256 (2 cores of an AMD EPYC of family 26, JAX 0.10.2,
`experiments/bench/compiler_options.py`). The reason is open: the optimized program is the same
text, and two cores are busy either way.
"""

WIDE_VECTORS: dict[str, str | bool] = {"xla_cpu_prefer_vector_width": "512"}
FULL_WIDTH_FAMILY = ("AuthenticAMD", 26)
"""First family of AMD's processors (Zen 5) that computes 512 bits at once: PPO with 64 CartPoles is
1.05 times as fast (same machine), SAC and PPO on halfcheetah are unchanged. Older families split
512 bits in two halves, and an Intel Xeon gained nothing.
"""

ACTING_OPTIONS: dict[str, str | bool] = {**CPU_OPTIONS, "xla_cpu_use_fusion_emitters": False}
"""Options of programs that only act and step environments: an evaluation of halfcheetah takes 1.9
s, on one core, 2.4 s with XLA's newer code for fused operations, and 2.8 s with YNNPACK as well;
ant 1.0, 1.3 and 1.4 s. In programs with updates the newer code is better: SAC on halfcheetah makes
18 % fewer updates without it. PPO there makes 12 % more steps if a separate program samples. These
figures are of JAX 0.10.2. JAX 0.11 has no such option of a program, so all programs have the newer
code there; a flag of the whole process (XLA_FLAGS) still exists and starts no run earlier: first
step of SAC on halfcheetah after 24.5 s with it, 22.8 s without, of PPO on CartPole after 5.1 and
5.9 s.
"""

STARTING_OPTIONS: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": False,
}
"""Options of the program of the initial state, which runs once, for milliseconds: halfcheetah's is
compiled in 1 core-second instead of 6, CartPole's in 0.3 instead of 1.6 (AMD EPYC, JAX 0.10.2). JAX
0.11 has the first option only.
"""

GPU_GRAPHS: dict[str, str | bool] = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE",
    "xla_gpu_graph_min_graph_size": "1",
}
"""Loops and branches become part of CUDA graphs, so that a GPU starts a whole tick at once and its
host never waits. Only with ``JAXRL_FAST_GPU_GRAPHS=1``, because they were compiled for an H100 but
never run on one.
"""


GPU_PLATFORMS = ("gpu", "cuda", "rocm")


def starts_kernels_singly(platform: str) -> bool:
    """Return whether a device's host starts kernels one by one, so many small kernels are slower
    than few large ones.

    Args:
        platform: Platform of the device.

    Returns:
        True for GPUs.
    """
    return platform in GPU_PLATFORMS


def compiler_options(
    mesh: Mesh, *, products: Products = UNKNOWN_PRODUCTS, acting: bool = False
) -> dict[str, str | bool]:
    """Return XLA's options for a program.

    Args:
        mesh: Its devices.
        products: Size of its matrix products.
        acting: Whether it only acts and makes no updates.

    Returns:
        Options that this version of XLA supports.
    """
    platform = mesh.devices.flat[0].platform
    if platform in GPU_PLATFORMS and os.environ.get("JAXRL_FAST_GPU_GRAPHS") == "1":
        return GPU_GRAPHS
    if platform != "cpu":
        return {}
    return _known(ACTING_OPTIONS if acting else _learning_options(products))


def _learning_options(products: Products) -> dict[str, str | bool]:
    updates_only = not products.environments and products.largest <= YNNPACK_PRODUCT
    ynnpack = products.sequences or updates_only
    options = {
        name: value for name, value in CPU_OPTIONS.items() if not (ynnpack and name == EIGEN)
    }
    if products.largest <= SMALL_PRODUCT:
        options |= SMALL_OPTIONS
    vendor, family = processor_family()
    if vendor == FULL_WIDTH_FAMILY[0] and family >= FULL_WIDTH_FAMILY[1]:
        options |= WIDE_VECTORS
    return options


def acting_options(device: jax.Device | None = None) -> dict[str, str | bool]:
    """Return `compiler_options` of a program that only acts.

    Args:
        device: Its device; None for JAX's default.

    Returns:
        Options that this version of XLA supports.
    """
    platform = jax.default_backend() if device is None else device.platform
    return _known(ACTING_OPTIONS) if platform == "cpu" else {}


def starting_options() -> dict[str, str | bool]:
    """Return `compiler_options` of the program that makes the initial state, on JAX's default
    device.

    Returns:
        Options that this version of XLA supports.
    """
    return _known(STARTING_OPTIONS) if jax.default_backend() == "cpu" else {}


def _known(options: dict[str, str | bool]) -> dict[str, str | bool]:
    return {name: value for name, value in options.items() if xla_knows(name, value)}


@cache
def xla_knows(option: str, value: str | bool) -> bool:
    """Return whether XLA accepts an option for a program on the CPU.

    Args:
        option: Name of the option.
        value: Its value.

    Returns:
        True if it does.
    """
    cpu = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    lowered = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((), np.float32, sharding=cpu))
    try:
        lowered.compile(compiler_options={option: value})
    except jax.errors.JaxRuntimeError:
        return False
    return True


@cache
def processor_family() -> tuple[str, int]:
    """Return the processor's vendor and family, which distinguish generations that a virtual
    machine gives one name.

    Returns:
        Vendor and family; "" and 0 if the system does not report them.
    """
    said = first_processor()
    return said.get("vendor_id", ""), int(said.get("cpu family", 0))


def first_processor() -> dict[str, str]:
    """Return the system's description of its first processor.

    Returns:
        Values by Linux's names, with family and model on x86; empty without ``/proc/cpuinfo``.
    """
    cpuinfo = Path("/proc/cpuinfo")
    first = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0] if cpuinfo.exists() else ""
    return {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in first.splitlines())
    }
