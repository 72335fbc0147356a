"""Machines to compile for, by name: ``h100``, ``h100:8``, ``h100:64``, ``tpu-v5e:2x4``."""

import re
from math import prod
from typing import NamedTuple

import jax
from jax.experimental import topologies

from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.targets.chips import CHIPS, Chip

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
    (`jaxrl_fast.targets.compilers`)."""
    if target.chip.platform == "cuda":
        text = target.chip.description
        found = topologies.get_topology_desc(platform="cuda", target_config=text, topology=target.topology)
    else:
        found = topologies.get_topology_desc(target.topology, target.chip.platform)
    return list(found.devices)[: target.num_devices]
