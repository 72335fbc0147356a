"""A pytest plug-in for `gpu`: a test that requests more devices than there are is skipped, with a
message.
"""

from typing import Any

import jax
import pytest


class Devices(list):
    """JAX's devices; a request for a missing one skips the test."""

    def __getitem__(self, key: Any) -> Any:
        wanted = key.stop if isinstance(key, slice) else key + 1
        if wanted is not None and wanted > len(self):
            pytest.skip(f"needs {wanted} devices, there are {len(self)}", allow_module_level=True)
        return super().__getitem__(key)


all_devices = jax.devices


def devices(*args: Any, **options: Any) -> Devices:
    """Do the same as `jax.devices`."""
    return Devices(all_devices(*args, **options))


def pytest_configure(config: pytest.Config) -> None:
    jax.devices = devices
