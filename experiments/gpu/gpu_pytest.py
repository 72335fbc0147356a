"""A plug-in of pytest for `gpu`: a test that asks for more devices than there are is skipped, and says so."""

from typing import Any

import jax
import pytest


class Devices(list):
    """JAX's devices; asking for one that is not there skips the test."""

    def __getitem__(self, key: Any) -> Any:
        wanted = key.stop if isinstance(key, slice) else key + 1
        if wanted is not None and wanted > len(self):
            pytest.skip(f"needs {wanted} devices, there are {len(self)}", allow_module_level=True)
        return super().__getitem__(key)


all_devices = jax.devices


def devices(*args: Any, **options: Any) -> Devices:
    """As `jax.devices`."""
    return Devices(all_devices(*args, **options))


def pytest_configure(config: pytest.Config) -> None:
    jax.devices = devices
