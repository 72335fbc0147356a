"""XLA's options, by what a program computes and on which device. None changes a number but for rounding."""

import os
from functools import cache
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from jaxrl_fast.core import UNKNOWN_PRODUCTS, Products

EIGEN = "xla_cpu_experimental_ynn_fusion_type"
CPU_OPTIONS: dict[str, str | bool] = {EIGEN: ""}
"""Matrix products by Eigen, not by YNNPACK: on 2 cores 5 % more SAC updates of 512, 6 % more PPO updates of 10,240
(medians of 8 and 4 rounds in turn, JAX 0.10.2). Not where products are small: of several agents with a memory, whose
minibatches are a few sequences, Eigen takes 1.4 times as long (`experiments/bench/agents.py`, one core)."""

YNNPACK_PRODUCT = 2**24
"""Updates alone, without environments in their program, take YNNPACK where no product has more multiply-adds (256 rows
by 256 x 256): SAC on Gymnasium's HalfCheetah makes 1.03 times as many so. With 512 rows it makes no difference, with
10,240 there are 8 % fewer; and with brax's steps in the program SAC makes 6 % fewer even of 256."""

SMALL_OPTIONS: dict[str, str | bool] = {"xla_cpu_multi_thread_eigen": False}
SMALL_PRODUCT = 2**21
"""Where no matrix product has more multiply-adds (512 rows by 64 x 64, some 25 microseconds), XLA is told not to
compute one by several threads: PPO on CartPole makes 1.15 times as many steps so with minibatches of 128, but no more
with 2,048 and with layers of 256 (2 cores of an AMD EPYC of family 26, JAX 0.10.2,
`experiments/bench/compiler_options.py`). Why was not found out: the optimized program is the same text, and two cores
are busy either way."""

WIDE_VECTORS: dict[str, str | bool] = {"xla_cpu_prefer_vector_width": "512"}
FULL_WIDTH_FAMILY = ("AuthenticAMD", 26)
"""From this family on (Zen 5) AMD's processors compute 512 bits at once: PPO with 64 CartPoles makes 1.05 times as many
steps with them (same machine), SAC and PPO on halfcheetah as many. Older ones do it in two halves, and on an Intel Xeon
nothing was gained."""

ACTING_OPTIONS: dict[str, str | bool] = {**CPU_OPTIONS, "xla_cpu_use_fusion_emitters": False}
"""Programs that only act and step environments: an evaluation of halfcheetah takes 1.9 s so, on one core, 2.4 s with
XLA's newer code for fused operations, and 2.8 s with YNNPACK as well; ant 1.0, 1.3 and 1.4 s. Where there are updates
too, the newer code is better: SAC on halfcheetah makes 18 % fewer without it. PPO there, where a program of its own
samples, takes 12 % more steps."""

STARTING_OPTIONS: dict[str, str | bool] = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": False}
"""The program of the first state, which runs once, for milliseconds: that of halfcheetah is compiled in 1 core-second
so, otherwise in 6, that of CartPole in 0.3 and 1.6 (AMD EPYC, JAX 0.10.2)."""

GPU_GRAPHS: dict[str, str | bool] = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE",
    "xla_gpu_graph_min_graph_size": "1",
}
"""Loops and branches become part of CUDA graphs, so that a GPU starts a whole tick at once and its host never waits.
Compiled for an H100 and never run on one, so only with ``JAXRL_FAST_GPU_GRAPHS=1``."""


GPU_PLATFORMS = ("gpu", "cuda", "rocm")


def starts_kernels_singly(platform: str) -> bool:
    """Whether a device's host starts kernel after kernel, so that many small ones cost more than a few large ones."""
    return platform in GPU_PLATFORMS


def compiler_options(
    mesh: Mesh, *, products: Products = UNKNOWN_PRODUCTS, acting: bool = False
) -> dict[str, str | bool]:
    """Options of XLA for these devices, as far as this version of it has them; ``products``: of the program;
    ``acting``: for one that plays and learns nothing."""
    platform = mesh.devices.flat[0].platform
    if platform in GPU_PLATFORMS and os.environ.get("JAXRL_FAST_GPU_GRAPHS") == "1":
        return GPU_GRAPHS
    if platform != "cpu":
        return {}
    return _known(ACTING_OPTIONS if acting else _learning_options(products))


def _learning_options(products: Products) -> dict[str, str | bool]:
    updates_only = not products.environments and products.largest <= YNNPACK_PRODUCT
    ynnpack = products.sequences or updates_only
    options = {name: value for name, value in CPU_OPTIONS.items() if not (ynnpack and name == EIGEN)}
    if products.largest <= SMALL_PRODUCT:
        options |= SMALL_OPTIONS
    vendor, family = processor_family()
    if vendor == FULL_WIDTH_FAMILY[0] and family >= FULL_WIDTH_FAMILY[1]:
        options |= WIDE_VECTORS
    return options


def acting_options(device: jax.Device | None = None) -> dict[str, str | bool]:
    """`compiler_options` of a program that plays, on one ``device``; default JAX's own."""
    platform = jax.default_backend() if device is None else device.platform
    return _known(ACTING_OPTIONS) if platform == "cpu" else {}


def starting_options() -> dict[str, str | bool]:
    """`compiler_options` of the program that makes the first state, on JAX's own device."""
    return _known(STARTING_OPTIONS) if jax.default_backend() == "cpu" else {}


def _known(options: dict[str, str | bool]) -> dict[str, str | bool]:
    return {name: value for name, value in options.items() if xla_knows(name, value)}


@cache
def xla_knows(option: str, value: str | bool) -> bool:
    """Whether XLA compiles a program for the CPU with this option."""
    cpu = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    lowered = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((), np.float32, sharding=cpu))
    try:
        lowered.compile(compiler_options={option: value})
    except jax.errors.JaxRuntimeError:
        return False
    return True


@cache
def processor_family() -> tuple[str, int]:
    """The processor's vendor and family, which tell generations apart that a virtual machine calls by one name; "" and
    0 where the system does not say."""
    said = first_processor()
    return said.get("vendor_id", ""), int(said.get("cpu family", 0))


def first_processor() -> dict[str, str]:
    """What the system says of its first processor, by Linux's names; family and model are told of x86."""
    cpuinfo = Path("/proc/cpuinfo")
    first = cpuinfo.read_text().partition("\n\n")[0] if cpuinfo.exists() else ""
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
