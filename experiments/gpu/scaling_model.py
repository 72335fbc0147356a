"""Estimated time of a tick on many GPUs: the compiler's figures for one device, and the share of a
network.

The network is a band of two assumptions, since no network was measured: the latency of an
all-reduce, and the bytes per second of each device. Within a host of eight: NVLink 4, 450 GB/s in
each direction (NVIDIA's H100 data sheet). Between hosts: one 400 Gb/s InfiniBand adapter for each
GPU, 50 GB/s (NVIDIA's DGX H100 user guide). Latencies are orders of magnitude of NCCL's for small
messages: 10 to 30 µs within a host, 30 to 100 µs between hosts.
"""

from typing import Any, NamedTuple

DEVICES_PER_HOST = 8


class Network(NamedTuple):
    """``latency_us``: the least and the most time of an all-reduce of any size; ``bandwidth``:
    bytes a second of each device, one way.
    """

    latency_us: tuple[float, float]
    bandwidth: float


WITHIN_HOST = Network((10.0, 30.0), 450e9)
BETWEEN_HOSTS = Network((30.0, 100.0), 50e9)


def network_of(num_devices: int) -> Network:
    """Return the network of a collective over this many devices."""
    return WITHIN_HOST if num_devices <= DEVICES_PER_HOST else BETWEEN_HOSTS


def collective_us(kind: str, size_bytes: float, num_devices: int, latency_us: float) -> float:
    """Return the bytes of one collective: in a ring each device sends ``2 (n - 1) / n`` of the
    bytes for an all-reduce, half of it for others (NCCL's tests, "PERFORMANCE.md").
    """
    share = (num_devices - 1) / num_devices * (2 if kind == "all-reduce" else 1)
    return latency_us + 1e6 * share * size_bytes / network_of(num_devices).bandwidth


def network_us(programs: list[dict[str, Any]], num_devices: int) -> tuple[float, float]:
    """Return the least and the most microseconds of collectives in a tick; programs of one group
    run one after another.
    """
    if num_devices == 1:
        return 0.0, 0.0
    runs = [
        (
            found["kind"],
            found["size_bytes"] / found["instructions"],
            found["instructions"] * found["runs"],
        )
        for program in programs
        for found in program["collectives"]
    ]
    low, high = (
        sum(often * collective_us(kind, size, num_devices, latency) for kind, size, often in runs)
        for latency in network_of(num_devices).latency_us
    )
    return low, high


def tick_ms(facts: dict[str, Any]) -> tuple[float, float]:
    """Return the band of a tick: from kernels of at least 1 µs and a fast network, to kernels of at
    least 4 µs and a slow one.
    """
    us = dict(zip(("roofline", *facts["floors_us"]), facts["tick_us"], strict=True))
    low, high = network_us(facts["programs"], facts["num_devices"])
    return (us[1.0] + low) / 1e3, (us[4.0] + high) / 1e3


def collectives_a_tick(facts: dict[str, Any]) -> tuple[float, float]:
    """Return the number of collectives in a tick, and their bytes."""
    found = [each for program in facts["programs"] for each in program["collectives"]]
    return sum(x["instructions"] * x["runs"] for x in found), sum(
        x["size_bytes"] * x["runs"] for x in found
    )
