"""What every test runs under: no silent rank promotion, warnings as errors, repeatable examples, and four CPU devices,
since the laws of placements are to hold on 1, 2 and 4."""

import os
import signal
import tempfile
from collections.abc import Iterator

os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"  # most programs here, and in commands, run for a moment only

import jax
import pytest
from hypothesis import HealthCheck, settings
from jax._src import cache_key, compiler
from many_commands import Commands

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs, and theirs, ignore Ctrl-C
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile(
    "laws",
    deadline=None,
    max_examples=10,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("laws")

THIRD_PARTY_WARNINGS = (
    # brax 0.14.2 and gymnax 1.0.1 on import and in their physics
    "ignore::DeprecationWarning:brax.*",
    "ignore::DeprecationWarning:gymnax.*",
    "ignore::DeprecationWarning:flax.*",
    "ignore::DeprecationWarning:tensorboardX.*",
    "ignore:.*google.protobuf.*:DeprecationWarning",
    "ignore:.*jax.*deprecated.*:DeprecationWarning:(?!jaxrl_fast|envs)",
)
"""Exceptions to warnings-as-errors, each of code that is not ours. Later lines win in pytest."""


def pytest_configure(config: pytest.Config) -> None:
    keep_compiled_programs(config)
    compile_in_half_the_time()
    for line in ("error", *THIRD_PARTY_WARNINGS):
        config.addinivalue_line("filterwarnings", line)


def keep_compiled_programs(config: pytest.Config) -> None:
    """For as long as this process lives, for itself and for the commands that it starts.

    Each worker of pytest-xdist has a folder of its own: JAX does not write its files in one piece, so that a process
    may read half of what another one writes.
    """
    folder = tempfile.TemporaryDirectory(prefix="jaxrl_fast-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["JAXRL_FAST_CACHE"] = folder.name
    jax.config.update("jax_compilation_cache_dir", folder.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


quick = True
"""Whether programs are compiled by XLA's older emitters, in half the time; to be changed by `same_bits` alone."""


def compile_in_half_the_time() -> None:
    """Here and in commands, to which a flag says it. A flag here would hold for the whole process."""
    usual_options = compiler.get_compile_options

    def options(*args, **kwargs):
        made = usual_options(*args, **kwargs)
        if quick:
            made.env_option_overrides = [*made.env_option_overrides, ("xla_cpu_use_fusion_emitters", False)]
        return made

    compiler.get_compile_options = options
    cache_key.custom_hook = lambda: str(quick)  # else what was kept of one kind would be found for the other
    flag = "--xla_cpu_use_fusion_emitters=false"
    flags = os.environ.get("XLA_FLAGS", "").replace(flag, "").strip()  # of pytest-xdist, who set it
    os.environ["XLA_FLAGS"] = flags
    usual_options(num_replicas=1, num_partitions=1)  # XLA reads its flags, once
    os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("notes")) as commands:
        yield commands


@pytest.fixture
def strict_dtypes() -> Iterator[None]:
    """No implicit promotion between dtypes: for the numerics that are our own."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture
def optimized() -> Iterator[None]:
    """Compile as users do: where programs run for long, or what was compiled is looked at."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def same_bits() -> Iterator[None]:
    """Compile by the emitters that users have, which round alike however fragments are cut into programs."""
    global quick
    quick = False
    yield
    quick = True
