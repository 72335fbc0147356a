"""Features of other packages that may disappear in their next version: private names, options of
XLA, JAX's configuration, an event, arguments.

Each is checked by name, before the tests that would fail without it.
"""

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import compilation
import jax
import jax.numpy as jnp
import pytest

from jaxrl_fast.runtime.xla_options import xla_knows

ROOT = Path(__file__).parent.parent
SOURCES = [
    p
    for folder in ("jaxrl_fast", "envs", "tests", "experiments", "docs")
    for p in ROOT.glob(f"{folder}/**/*.py")
]
TEXTS = [
    *SOURCES,
    *ROOT.glob("docs/**/*.md"),
    ROOT / "README.md",
    ROOT / "Makefile",
    ROOT / ".ci" / "run",
]

NAMES = {
    "jax._src.compiler.compile_or_get_cached": "the costs of tests",
    "jax._src.clusters.K8sCluster": "several processes under Kubernetes",
    "jax._src.clusters.OmpiCluster": "several processes under Open MPI",
    "jax._src.clusters.SlurmCluster": "several processes under SLURM",
    "jax._src.distributed.global_state": "the end of several processes",
    "jax._src.lib._jax.DistributedRuntimeClient.wait_at_barrier": "the end of several processes",
    "jax._src.xla_bridge": "the line after a fork of a process in which JAX has started",
    "brax.envs._envs": "the list of brax's environments",
}
"""Private names, and features that only they provide."""
MEMBERS = {"_cache_size": jax.jit(lambda x: x)}
"""Private names of objects, such as this one, which gives the number of compilations of a function
in tests.
"""
IN_SOURCE = {
    "_in_axes": "brax.envs.wrappers.training",
    "_max_episode_steps": "gymnasium.wrappers.common",
}
"""Private names of instances, and the module that sets them."""
OPTIONS = {
    "xla_backend_optimization_level": 1,
    "xla_cpu_collective_call_terminate_timeout_seconds": 40,
    "xla_cpu_collective_timeout_seconds": 40,
    "xla_cpu_enable_fast_math": True,
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_gpu_deterministic_ops": True,
    "xla_cpu_fast_math_honor_division": False,
    "xla_cpu_fast_math_honor_functions": False,
    "xla_cpu_fast_math_honor_infs": False,
    "xla_cpu_fast_math_honor_nans": False,
    "xla_cpu_max_isa": "AVX",
    "xla_backend_extra_options": "",
    "xla_cpu_multi_thread_eigen": False,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_prefer_vector_width": "512",
    "xla_cpu_use_fusion_emitters": False,
    "xla_dump_hlo_as_text": False,
    "xla_dump_to": "",
    "xla_gpu_collect_cost_model_stats": False,
    "xla_gpu_deviceless_cub_mode": "DEVICELESS_CUB_DISABLED",
    "xla_gpu_enable_command_buffer": "",
    "xla_gpu_graph_min_graph_size": 5,
}
"""Options of XLA, with a valid value."""
SETTINGS = {
    "jax_compilation_cache_dir",
    "jax_cpu_collectives_implementation",
    "jax_default_matmul_precision",
    "jax_disable_most_optimizations",
    "jax_enable_compilation_cache",
    "jax_enable_preemption_service",
    "jax_enable_x64",
    "jax_log_compiles",
    "jax_num_cpu_devices",
    "jax_numpy_rank_promotion",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_platforms",
    "jax_traceback_filtering",
}
"""Options of JAX, by `jax.config` or as variables."""
ARGUMENTS = {
    "jax.distributed.initialize": {
        "cluster_detection_method",
        "heartbeat_timeout_seconds",
        "local_device_ids",
    },
    "orbax.checkpoint.PyTreeCheckpointHandler": {"multiprocessing_options"},
    "orbax.checkpoint.Checkpointer": {"multiprocessing_options"},
    "orbax.checkpoint.options.MultiprocessingOptions": {"primary_host", "active_processes"},
    "orbax.checkpoint.args.PyTreeRestore": {"restore_args"},
    "orbax.checkpoint.RestoreArgs": {"restore_type"},
}
OTHERWISE = {
    "xla_cpu_disable_new_fusion_emitters",
    "xla_bridge",
    "xla_client",
    "xla_cpu_collective_call_warn_stuck_timeout_seconds",
    "xla_cuda13",
    "xla_flags",
    "xla_knows",
    "xla_no_such_flag",
    "xla_options",
}
"""Names that look like an option and are none, or are an environment variable only."""
EVENT = "/jax/compilation_cache/cache_hits"
COMPILED = "/jax/core/compile/backend_compile_duration"
"""Event with the compile time of a program, for `experiments/startup/startup.py` alone."""
GONE = {"xla_cpu_use_fusion_emitters": (0, 11)}
"""The version of JAX from which programs do without these options."""
FLAGS = {
    # XLA accepts any name there; the next test shows that this one acts
    compilation.OLDER_EMITTERS: True,
    compilation.ONE_PART: True,
    compilation.FEW_OPTIMIZATIONS: True,
    "--xla_cpu_use_fusion_emitters=false": jax.__version_info__ < (0, 11),
    "--xla_no_such_flag=true": False,
}
"""Flags with which tests compile fast, and whether the installed JAX has them."""


def missing() -> Iterator[str]:
    """Return the features that the installed versions lack."""
    for name in {**NAMES, **ARGUMENTS}:
        try:
            found = pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            yield name
        else:
            known = inspect.signature(found).parameters if name in ARGUMENTS else {}
            yield from (
                f"{name}({argument}=)" for argument in ARGUMENTS.get(name, set()) - set(known)
            )
    yield from (name for name, owner in MEMBERS.items() if not hasattr(owner, name))
    for name, module in IN_SOURCE.items():
        if name not in inspect.getsource(pkgutil.resolve_name(module)):
            yield f"{module}'s {name}"
    yield from (
        f"option {name}"
        for name, value in OPTIONS.items()
        if not _gone(name) and not xla_knows(name, value)
    )
    yield from (f"setting {name}" for name in SETTINGS if name not in jax.config.values)


def _gone(option: str) -> bool:
    return jax.__version_info__ >= GONE.get(option, (99,))


def test_what_nobody_promises_is_there():
    from jaxrl_fast.envs.from_brax import quiet

    with quiet():
        lacking = list(missing())
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("jax", "jaxlib", "orbax-checkpoint", "brax")
    )
    assert not lacking, (
        f"{versions} lack {', '.join(lacking)}: fix this first, other tests depend on it"
    )


@pytest.mark.parametrize("option", GONE)
def test_what_is_done_without_is_really_gone(option: str):
    assert xla_knows(option, OPTIONS[option]) != _gone(option)


@pytest.mark.parametrize("flag", FLAGS)
def test_this_version_has_the_flags_with_which_tests_compile_fast(flag: str):
    assert compilation.supports(flag) == FLAGS[flag]


def test_tests_are_compiled_by_the_older_code_for_fused_operations():
    text = jax.jit(lambda x: jnp.tanh(x).sum()).lower(jnp.ones(1_000)).compile().as_text()
    # the newer code makes a fusion of each operation
    assert "tanh" in text and "wrapped_" not in text


def test_programs_found_on_disk_are_told_of():
    told: list[str] = []
    listen = lambda event, *_, **__: told.append(event)  # noqa: E731
    jax.monitoring.register_event_listener(listen)
    jax.monitoring.register_event_duration_secs_listener(listen)
    least = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        for _ in range(2):
            jax.jit(lambda x: x + 15).lower(1.0).compile()
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
        jax.monitoring.unregister_event_listener(listen)
        jax.monitoring.unregister_event_duration_listener(listen)
    assert {EVENT, COMPILED} <= set(told), (
        f"JAX {jax.__version__} does not report {EVENT} or {COMPILED}"
    )


def test_the_lists_are_complete():
    text = "\n".join(path.read_text() for path in TEXTS if path != Path(__file__))
    private = {
        name for name in re.findall(r"\bjax\._src[\w.]*", text) if name.rpartition(".")[2] != "_src"
    }
    assert private == {name for name in NAMES if name.startswith("jax.")}
    assert set(re.findall(r"\bxla_\w+", text)) - OTHERWISE == set(OPTIONS)
    settings = re.findall(r'config\.update\(\s*"(\w+)"', text) + re.findall(
        r"jax\.config\.(jax_\w+)", text
    )
    variables = set(re.findall(r"\b(JAX_[A-Z_]+)(?:\"|=\w)", text)) - {"JAX_COORDINATOR_PORT"}
    assert {*settings, *map(str.lower, variables)} == SETTINGS
    assert set(re.findall(r'"(/jax/[\w/]+)"', text)) == {EVENT, COMPILED}


PEERS = sorted(ROOT.glob("experiments/bench/peer_*.py"))
"""They run with the exact versions of a lock file."""
DOCUMENTED = {
    "_asdict",
    "_config",
    "_current_frames",
    "_exit",
    "_fields",
    "_make",
    "_replace",
    "_repr_html_",
}


def test_no_other_private_name_is_used():
    listed = {name.rpartition(".")[2] for name in NAMES} | {*MEMBERS, *IN_SOURCE}
    sources = {path: ast.parse(path.read_text()) for path in SOURCES if path not in PEERS}
    used = {(path.name, name) for path, tree in sources.items() for name in private_names(tree)}
    assert {(path, name) for path, name in used if name not in listed | DOCUMENTED} == set()
    assert {name for _, name in used if name in MEMBERS} == set(MEMBERS)


def private_names(tree: ast.Module) -> Iterator[str]:
    """Return the names with an underscore that a file takes from anything but itself, this project
    and its objects.
    """
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    own = {
        a.asname or a.name for node in imports for a in node.names if _is_ours(node.module or "")
    } | {"self", "cls"}
    for node in imports:
        parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        yield from (
            p
            for p in parts
            if p.startswith("_") and p != "__future__" and not _is_ours(node.module or "")
        )
    for node in nodes:
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in own
        ):
            yield from re.findall(r"^_[a-z]\w*", node.attr)


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in ("jaxrl_fast", "envs")
