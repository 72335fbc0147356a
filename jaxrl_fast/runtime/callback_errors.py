"""Errors of Python functions that a compiled program calls, which JAX replaces by its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def reraise_callback_error(failures: list[Exception]) -> Iterator[None]:
    """Raise a callback's original error in place of JAX's.

    Args:
        failures: Errors of the callbacks.

    Returns:
        A context manager.

    Raises:
        Exception: The original error of a callback.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if failures:
            raise failures.pop() from error
        raise
