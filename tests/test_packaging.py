"""What is installed, and which module may know which."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("jaxrl_fast/**/*.py"), *ROOT.glob("envs/**/*.py")])
LAYERS = (
    {"core", "processes", "distributed"},
    {"env", "host_env", "networks", "distributions", "returns", "losses", "normalize", "buffers", "schedules"},
    {"algorithm", "algorithms", "frames", "frame_buffer", "rollout", "evaluation"},
    {"graph"},
    {"host", "learners"},
    {"fragments"},
    {"placement"},
    {"layout"},
    {"chain"},
    {"program", "timeline"},
    {"hlo", "inspection", "labels", "diagram", "drawing"},
    {"loop", "ceiling", "stopwatch"},
)
"""Rooms of jaxrl_fast from the ground up: a room imports nothing of a floor above it."""
ONE_ADAPTER = {"brax": "envs.from_brax", "gymnax": "envs.from_gymnax"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, *, nested: bool = True) -> set[str]:
    """Dotted names of the modules a file imports; without ``nested`` only those imported as it is imported."""
    tree = ast.parse(path.read_text())
    names: set[str] = set()
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


IMPORTS = {module_name(path): imports_of(path) for path in SOURCES}


def importers(package: str) -> set[str]:
    return {name for name, used in IMPORTS.items() if any(u.split(".")[0] == package for u in used)}


def rooms(name: str) -> set[str]:
    """The rooms of jaxrl_fast that a module imports."""
    return {used.split(".")[1] for used in IMPORTS[name] if used.startswith("jaxrl_fast.")}


def test_imports_flow_one_way():
    floor = {room: height for height, layer in enumerate(LAYERS) for room in layer}
    for name in IMPORTS:
        room = name.split(".")[1] if name.startswith("jaxrl_fast.") else None
        if room in floor:
            above = {used for used in rooms(name) if floor.get(used, -1) > floor[room]}
            assert not above, f"{name} imports {above}"


@pytest.mark.parametrize("name", ["graph", "placement", "layout", "chain", "program", "timeline"])
def test_graph_and_placement_know_no_reinforcement_learning(name: str):
    assert rooms(f"jaxrl_fast.{name}") <= {"core", "distributed", "graph", "placement", "layout", "chain"}


def test_the_search_knows_no_process_and_no_device():
    packages = {used.split(".")[0] for used in IMPORTS["jaxrl_fast.tuning.search"]}
    assert packages <= {"statistics", "collections", "itertools", "math", "typing"}


NAMES_A_PLACE = re.compile(
    r"jax\.(local_)?devices|device_put|[Ss]harding|PartitionSpec|Mesh|shard_map|pmap|axis_name|pmean|psum|all_gather|"
    r"all_to_all|ppermute|axis_index|process_(index|count)"
)


def test_algorithms_and_learners_name_no_device_no_mapped_axis_and_no_collective():
    placed = {"placement", "layout", "chain", "program", "distributed", "loop"}
    for path in SOURCES:
        name = module_name(path)
        if re.fullmatch(r"jaxrl_fast\.(algorithm.*|fragments|learners|losses|returns|buffers|networks|frame.*)", name):
            assert not rooms(name) & placed, name
            assert not NAMES_A_PLACE.search(path.read_text()), name
        if name.startswith("jaxrl_fast.algorithm"):
            assert not rooms(name) & {"graph", "fragments", "learners"}, name


def test_the_numeric_rooms_know_no_config_and_no_environment():
    for name in IMPORTS:
        if name.startswith("jaxrl_fast.") and name.split(".")[1] in set().union(*LAYERS):
            packages = {used.split(".")[0] for used in IMPORTS[name]}
            assert not packages & {"hydra", "omegaconf", "envs"}, name
            assert not rooms(name) & {"config", "schema", "cli"}, name


def test_environments_know_only_what_a_world_is():
    for name in IMPORTS:
        if name.split(".")[0] == "envs":
            assert rooms(name) <= {"core", "env", "host_env"}, name


@pytest.mark.parametrize("package", ONE_ADAPTER)
def test_each_suite_is_imported_in_one_adapter(package: str):
    worlds = {name for name in importers(package) if name.startswith("envs")}
    assert worlds == {ONE_ADAPTER[package]}
    assert importers(package) - worlds <= {"jaxrl_fast.visualization"}


def test_gymnasium_is_known_to_its_adapter_and_the_pool_only():
    for name in importers("gymnasium"):
        assert name == "envs.from_gymnasium" or name.startswith("envs.pool."), name


def test_a_worker_of_the_pool_loads_no_jax():
    code = "import sys, envs.pool.worker; assert not {'jax', 'jaxlib', 'jaxrl_fast', 'flax'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_importing_the_library_is_light_and_changes_no_jax_setting():
    code = """
import sys, jax
before = dict(jax.config.values)
import jaxrl_fast
assert dict(jax.config.values) == before, "a JAX setting changed"
heavy = {"hydra", "omegaconf", "brax", "gymnax", "gymnasium", "mujoco", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
from jaxrl_fast.runtime import jax_has_started
assert not jax_has_started(), "a device was touched"
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_wheel_carries_the_settings_and_no_experiment(tmp_path: Path):
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    for name in ("jaxrl_fast", "envs", "tests", "experiments"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    done = subprocess.run([*command, "-w", tmp_path, source], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = [*SOURCES, *ROOT.glob("jaxrl_fast/config/**/*.yaml")]
    assert {str(path.relative_to(ROOT)) for path in wanted} <= held
    assert any(name.startswith("jaxrl_fast/config/tuned/") for name in held)
    assert {name.split("/")[0] for name in held if ".dist-info" not in name} == {"jaxrl_fast", "envs"}


def test_the_lock_holds_names_and_versions_only_for_every_dependency():
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    pattern = re.compile(r'([A-Za-z0-9._-]+)==([A-Za-z0-9.+!]+)(; python_version (<|>=) "3\.12")?')
    matches = [pattern.fullmatch(line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if not match]
    locked = {_normal(match[1]) for match in matches if match}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {_normal(re.match(r"[A-Za-z0-9._-]+", name)[0]) for name in asked} <= locked


def test_the_version_is_written_once_for_users_and_once_for_pip():
    import jaxrl_fast

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == jaxrl_fast.__version__


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
