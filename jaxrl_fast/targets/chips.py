"""Accelerators that can be compiled for without having one: what XLA must know of them, and their limits."""

from typing import NamedTuple


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
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  device_memory_size: 84942979072
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  runtime_version: "13.0.0"
  driver_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
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
