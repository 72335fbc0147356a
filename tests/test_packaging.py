"""The installed files, and the allowed imports of each module."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("jaxrl_fast/**/*.py"), *ROOT.glob("envs/**/*.py")])
SOURCES = [path for path in SOURCES if ROOT / "jaxrl_fast" / "envs" not in path.parents]  # a link
BASE = {"core", "system", "numerics", "process"}
MAY_IMPORT: dict[str, set[str]] = {
    "process": set(),
    "system": set(),
    "core": {"process"},
    "plugins": set(),
    "jaxprs": set(),
    "spaces": set(),
    "contents": {"system"},
    "numerics": {"core", "system"},
    "fields": {"core", "numerics"},
    "networks": {"core", "system", "numerics"},
    "envs": {*BASE, "plugins", "spaces", "contents", "fields"},
    "runtime": {"core"},
    "learning": {"core", "numerics", "fields", "networks", "envs", "runtime"},
    "replay": {"core", "numerics", "learning"},
    "algorithms": {*BASE, "plugins", "fields", "spaces", "networks", "learning"},
    "policy": {*BASE, "jaxprs", "spaces", "networks", "learning", "algorithms"},
    "settings": {
        *BASE,
        "plugins",
        "contents",
        "fields",
        "networks",
        "envs",
        "runtime",
        "learning",
        "algorithms",
    },
    "training": {*BASE, "contents", "fields", "envs", "runtime", "learning", "policy", "settings"},
    "hosts": {"core", "jaxprs", "numerics", "envs", "runtime", "learning"},
    "offline": {
        *BASE,
        "spaces",
        "contents",
        "envs",
        "runtime",
        "learning",
        "replay",
        "policy",
        "settings",
        "training",
    },
    "assembly": {
        "core",
        "numerics",
        "envs",
        "runtime",
        "learning",
        "replay",
        "settings",
        "training",
        "hosts",
        "offline",
    },
    "views": {*BASE, "envs", "runtime", "policy", "settings", "training"},
    "suites": {*BASE, "spaces", "fields", "envs"},
    "commands": {
        *BASE,
        "plugins",
        "networks",
        "envs",
        "runtime",
        "learning",
        "algorithms",
        "policy",
        "settings",
        "training",
    },
    "population": {
        *BASE,
        "envs",
        "runtime",
        "learning",
        "algorithms",
        "policy",
        "settings",
        "training",
        "assembly",
        "commands",
    },
    "tuning": {
        "spaces",
        "networks",
        *BASE,
        "envs",
        "runtime",
        "learning",
        "settings",
        "training",
        "hosts",
        "assembly",
        "views",
        "commands",
    },
    "targets": {
        "core",
        "runtime",
        "learning",
        "settings",
        "training",
        "hosts",
        "assembly",
        "views",
        "commands",
        "tuning",
    },
}
"""Every package of jaxrl_fast, its modules of the lowest layer and `assembly`, the lowest first.

A package may import only the packages above it in this list.
"""
PLUG_INS = {"hosts", "offline", "suites", "views", "population", "tuning", "targets"}
"""Packages that the engine does not name; `assembly`, the commands and each other do."""
COMMANDS = {
    "train",
    "check",
    "collect",
    "evaluate",
    "render",
    "explain",
    "export",
    "report",
    "dashboard",
    "autotune",
}
COMMANDS |= {"sweep"}
ENTRY_POINTS = {"__init__", "__main__", "api", "placement", "evaluator", *COMMANDS}
"""Modules outside the packages: commands and public names. They may import anything; no other
module imports them.
"""
APPLIED = {"algorithm", "data", "critics", "acting"}
"""The modules of `learning` with which algorithms are declared; they do not depend on the code
common to all algorithms.
"""
KNOW_ENVS = {"jaxrl_fast.views.viewer", "jaxrl_fast.views.renderers"}
"""Modules below the commands that contain names of environments."""
SUITES = ["craftax", "jaxtari", "navix", "octax", "pgx", "xminigrid"]
ONE_ADAPTER = {
    name: f"jaxrl_fast.{'envs' if name in ('brax', 'gymnax') else 'suites'}.from_{name}"
    for name in ("brax", "gymnax", "jaxmarl", "jumanji", *SUITES)
}
ONE_ADAPTER["mujoco_playground"] = "jaxrl_fast.suites.from_playground"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("jaxrl_fast", *parts) if parts[0] == "envs" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Return the dotted names of all imports of a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


IMPORTS = {module_name(path): imports_of(path) for path in SOURCES}


def importers(package: str) -> set[str]:
    return {name for name, used in IMPORTS.items() if any(u.split(".")[0] == package for u in used)}


def imported_packages(name: str) -> set[str]:
    """Return the packages of jaxrl_fast that a module imports, except its package; `__init__` for
    itself.
    """
    own = {u for u in IMPORTS[name] if u.split(".")[0] == "jaxrl_fast"}
    return {package_of(u) for u in own if u != "jaxrl_fast" or name != "jaxrl_fast"} - {
        package_of(name),
        "__init__",
    }


def package_of(name: str) -> str:
    """Return the package of jaxrl_fast that contains a module, or the module itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_every_module_lies_in_a_package_that_is_named_here():
    found = {package_of(name) for name in IMPORTS}
    assert found == {*MAY_IMPORT, *ENTRY_POINTS}


def test_a_package_may_import_only_packages_below_it():
    below: set[str] = set()
    for package, allowed in MAY_IMPORT.items():
        assert allowed <= below, (
            f"{package} would import {allowed - below}, which is in a higher layer"
        )
        below.add(package)


def test_imports_flow_one_way():
    for name in IMPORTS:
        if package_of(name) in MAY_IMPORT:
            above = imported_packages(name) - MAY_IMPORT[package_of(name)]
            assert not above, f"{name} imports {above}"


def test_the_engine_names_no_plug_in():
    for name in IMPORTS:
        if package_of(name) in set(MAY_IMPORT) - PLUG_INS - {"assembly"}:
            assert not imported_packages(name) & {*PLUG_INS, "assembly"}, name


OPTIONAL = {
    "averaging",
    "flat_params",
    "frame_stack",
    "observation_view",
    "transforms",
}
"""Modules of `learning` that not every run needs: `assembly` selects them."""


def test_the_graph_of_a_run_is_given_what_is_optional():
    """What a run does not use is handed in where a run has it."""
    used = IMPORTS["jaxrl_fast.learning.run_graph"]
    learning = {u.split(".")[2] for u in used if u.startswith("jaxrl_fast.learning.")}
    assert not learning & OPTIONAL, learning & OPTIONAL


def test_no_modules_import_each_other_in_a_circle():
    """Also within a package, within functions and for type checkers only."""
    left = {name: (used & set(IMPORTS)) - {"jaxrl_fast", name} for name, used in IMPORTS.items()}
    while free := {name for name, used in left.items() if not used & set(left)}:
        left = {name: used for name, used in left.items() if name not in free}
    assert not left, f"these modules are in a circle, or import one that is: {sorted(left)}"


def test_a_package_hands_nothing_on():
    own = {"envs", "algorithms"}  # environments by name; the names of helpers until 0.2.0
    for path in (p for p in ROOT.glob("jaxrl_fast/*/__init__.py") if p.parent.name not in own):
        (docstring,) = ast.parse(path.read_text()).body
        assert isinstance(docstring, ast.Expr), path


def test_the_search_knows_no_process_and_no_device():
    packages = {used.split(".")[0] for used in IMPORTS["jaxrl_fast.tuning.search"]}
    assert packages <= {"statistics", "collections", "itertools", "math", "typing"}


NAMES_A_PLACE = re.compile(
    r"jax\.(local_)?devices|device_put|[Ss]harding(?!Axes|_axes)|PartitionSpec|Mesh|shard_map|pmap|axis_name|pmean|psum|all_gather|"
    r"all_to_all|ppermute|axis_index|process_(index|count)"
)


def test_what_computes_names_no_device_no_mapped_axis_and_no_collective():
    for path in SOURCES:
        name = module_name(path)
        if package_of(name) in {"numerics", "networks", "learning", "replay", "algorithms"}:
            assert not NAMES_A_PLACE.search(path.read_text()), name


GRAMMARS = {"jaxrl_fast.settings.words", "jaxrl_fast.settings.files"}


def test_only_settings_and_what_stands_on_them_know_config_and_environments_by_name():
    for name in IMPORTS:
        if package_of(name) in set(MAY_IMPORT) - {"settings", "commands", "tuning"}:
            assert not GRAMMARS & set(IMPORTS[name]), name
            assert (
                "jaxrl_fast.envs" not in IMPORTS[name]
                or name in KNOW_ENVS
                or package_of(name) in ("envs", "suites")
            ), name


def test_environments_import_only_core_and_the_types_of_environments():
    for name in IMPORTS:
        if package_of(name) == "envs":
            allowed = {"core", "contents", "fields", "numerics", "plugins", "spaces", "system"}
            assert imported_packages(name) <= allowed, name


def test_nobody_imports_a_package_of_another_root():
    """A folder ``envs`` in the user's directory must not shadow the package's folder."""
    others = {
        path
        for folder in ("tests", "experiments", "docs")
        for path in ROOT.glob(f"{folder}/**/*.py")
    }
    used = {**IMPORTS, **{str(path): imports_of(path) for path in others}}
    assert not [
        name for name, imports in used.items() if any(u.split(".")[0] == "envs" for u in imports)
    ]


def test_an_algorithm_imports_only_what_it_declares_with():
    for name in IMPORTS:
        if package_of(name) == "algorithms" and name.count(".") == 2:
            learned = {
                u.split(".")[2] for u in IMPORTS[name] if u.startswith("jaxrl_fast.learning.")
            }
            assert learned <= APPLIED, (name, learned - APPLIED)


@pytest.mark.parametrize("package", ONE_ADAPTER)
def test_each_suite_is_imported_in_one_adapter(package: str):
    assert importers(package) == {ONE_ADAPTER[package]}


def test_gymnasium_is_known_to_its_adapters_and_the_pool_only():
    hosts = ("gymnasium", "atari", "batched", "mjcf")
    adapters = {f"jaxrl_fast.envs.from_{name}" for name in hosts}
    for name in importers("gymnasium"):
        assert name in adapters or name.startswith("jaxrl_fast.envs.pool."), name


def test_a_worker_of_the_pool_loads_no_jax():
    code = "import sys, jaxrl_fast.envs.pool.worker; assert not {'jax', 'jaxlib', 'flax'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr


def test_importing_the_library_is_light_and_changes_no_jax_setting():
    code = """
import sys, jax
before = dict(jax.config.values)
import jaxrl_fast
jaxrl_fast.learn  # loads all public names
assert dict(jax.config.values) == before, "a JAX setting changed"
heavy = {"brax", "gymnax", "gymnasium", "mujoco", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
from jaxrl_fast.settings.machine import jax_has_started
assert not jax_has_started(), "a device was touched"
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr


ONLY_DECLARED = """
import importlib.metadata as metadata, re, sys
from packaging.requirements import Requirement

def key(name):
    return re.sub("[-_.]+", "-", name).lower()

declared, left = set(), ["jaxrl_fast"]
while left:
    name = key(left.pop())
    if name not in declared:
        declared.add(name)
        needs = [Requirement(line) for line in metadata.requires(name) or ()]
        left += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
belongs = metadata.packages_distributions()
hidden = {top for top, names in belongs.items() if not declared & set(map(key, names))} - {"packaging"}

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
"""Of the installed packages, Python finds those that a plain install of ours brings."""


def test_a_plain_install_trains_without_a_package_that_nobody_declares(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(ONLY_DECLARED)
    cache = {"JAXRL_FAST_CACHE": str(tmp_path / "cache")}
    variables = {**os.environ, **cache, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    line = [
        sys.executable,
        "-m",
        "jaxrl_fast.train",
        "env=cartpole",
        *TINY,
        f"run_dir={tmp_path / 'run'}",
    ]
    done = subprocess.run(
        line, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cache").is_dir()  # programs were stored


def build(source: Path, into: Path) -> Path:
    """Build a wheel of ``source``, a folder or a source distribution."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-q",
    ]
    done = subprocess.run(
        [*command, "-w", into, source], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return next(into.glob("*.whl"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkout: the files to install, and some that must not be installed."""
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path_factory.mktemp("checkout") / "source"
    for name in ("jaxrl_fast", "envs", "tests", "experiments"):
        if (ROOT / name).exists():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of the repository."""
    return build(source, tmp_path_factory.mktemp("wheel"))


def test_a_wheel_carries_the_settings_and_assets_and_no_experiment(wheel: Path):
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = [
        *SOURCES,
        *ROOT.glob("jaxrl_fast/config/**/*.yaml"),
        *ROOT.glob("jaxrl_fast/**/assets/*"),
    ]
    names = {str(path.relative_to(ROOT)) for path in wanted}
    assert {f"jaxrl_fast/{name}" if name.startswith("envs/") else name for name in names} <= held
    assert any(name.startswith("jaxrl_fast/config/tuned/") for name in held)
    assert {name.split("/")[0] for name in held if ".dist-info" not in name} == {"jaxrl_fast"}


def test_a_source_distribution_gives_the_same_wheel(source: Path, wheel: Path, tmp_path: Path):
    code = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    again = build(next(tmp_path.glob("*.tar.gz")), tmp_path / "wheel")
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())


def shadow(folder: Path) -> Path:
    """Make a user's folder with modules named like the package's inner modules; importing them
    fails.
    """
    for name in ("envs", "experiments", "tests"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(
            "raise ImportError('the module of a user was imported')\n"
        )
    for name in ("runs", "train", "core", "api", "system"):
        (folder / f"{name}.py").write_text(
            "raise ImportError('the module of a user was imported')\n"
        )
    return folder


TINY = [
    "algo=ppo",
    "num_envs=2",
    "algo.rollout_length=8",
    "algo.num_minibatches=1",
    "total_steps=1",
    "eval.episodes=1",
]
ON_HOST = ["env=gymnasium", "env.id=CartPole-v1", "pool.workers=1", *TINY]


def ours(folder: Path, path: Path, command: str, *words: str) -> str:
    """Return the output of a command that starts in ``folder`` with the package from ``path``."""
    variables = {**os.environ, "PYTHONPATH": str(path)}
    line = [sys.executable, "-m", f"jaxrl_fast.{command}", *words]
    done = subprocess.run(
        line, cwd=folder, env=variables, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the module of a user" not in done.stdout + done.stderr
    return done.stdout


def test_the_wheel_trains_from_another_folder_without_the_repository(wheel: Path, tmp_path: Path):
    """Run in an environment that has only the package's dependencies."""
    place = tmp_path / "packages"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "-q",
        "--target",
        place,
        wheel,
    ]
    done = subprocess.run(install, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    (folder := tmp_path / "own").mkdir()
    code = "import jaxrl_fast.envs; print(jaxrl_fast.envs.__file__, jaxrl_fast.__file__)"
    variables = {**os.environ, "PYTHONPATH": str(place)}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=variables, capture_output=True, text=True
    )
    assert [Path(path).parent for path in found.stdout.split()] == [
        place / "jaxrl_fast/envs",
        place / "jaxrl_fast",
    ]
    ours(shadow(folder), place, "train", *ON_HOST, "run_dir=here")
    assert (folder / "here" / "summary.json").exists()


def test_nothing_in_a_users_folder_shadows_training(tmp_path: Path):
    """Train from a plain checkout with a pool, an evaluator and a visualizer."""
    folder = shadow(tmp_path)
    ours(folder, ROOT, "train", *ON_HOST, "eval.picture=true", "run_dir=on_host")
    # of the visualizer, which a short run may not wait for
    drawn = folder / "on_host" / "render.log"
    assert not drawn.exists() or "the module of a user" not in drawn.read_text()


def test_nothing_in_a_users_folder_shadows_the_other_commands(tmp_path: Path):
    folder = shadow(tmp_path)
    ours(folder, ROOT, "train", "env=cartpole", *TINY, "run_dir=run")
    ours(folder, ROOT, "evaluate", "run", "episodes=1")
    ours(folder, ROOT, "render", "run", "out=episode.gif", "width=64")
    ours(folder, ROOT, "export", "run", "formats=jax")
    ours(folder, ROOT, "report", "run")
    ours(folder, ROOT, "explain", "env=cartpole", *TINY)
    for command in ("autotune", "dashboard"):
        assert "jaxrl_fast" in ours(folder, ROOT, command, "--help")


def public_named_tuples() -> list[ast.ClassDef]:
    return [
        node
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and node.name[0] != "_"
        and "NamedTuple" in map(ast.unparse, node.bases)
    ]


def fields_of(cls: ast.ClassDef) -> dict[str, str]:
    """Return the fields of a class, with their types as written."""
    fields = [node for node in cls.body if isinstance(node, ast.AnnAssign)]
    return {
        field.target.id: ast.unparse(field.annotation)
        for field in fields
        if isinstance(field.target, ast.Name)
    }


@pytest.mark.text
def test_every_field_of_a_public_type_is_documented():
    """A field is documented in the docstring of its class, or by a string below the field."""
    missing = []
    for cls in public_named_tuples():
        documented = ast.get_docstring(cls) or ""
        own = {
            field.target.id
            for field, text in pairwise(cls.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        }
        unnamed = [name for name in fields_of(cls) if not re.search(rf"\b{name}\b", documented)]
        missing += [f"{cls.name}.{name}" for name in unnamed if name not in own]
    assert not missing, f"these fields lack a description: {', '.join(missing)}"


@pytest.mark.text
def test_an_alias_of_a_function_is_documented():
    """A string below it documents it, since `Callable` names no arguments.

    The test above checks fields of public types.
    """
    missing = [
        f"{path}: {ast.unparse(alias.targets[0])}"
        for path in SOURCES
        for alias, text in pairwise([*ast.parse(path.read_text()).body, ast.Pass()])
        if isinstance(alias, ast.Assign) and ast.unparse(alias.value).startswith("Callable[")
        if not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant))
    ]
    assert not missing, f"describe arguments and results of {', '.join(missing)}"


MAX_UNPACKED = 4
"""Most fields of a record that may be built from an unpacked tuple."""


def packed_calls(source: str, records: dict[str, int]) -> list[int]:
    """Return the lines that build a large record from an unpacked tuple, or read `locals`.

    Args:
        source: Code.
        records: Number of fields by name of a record.
    """
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            unpacked = any(isinstance(argument, ast.Starred) for argument in node.args)
            if name == "locals" or (unpacked and records.get(name, 0) > MAX_UNPACKED):
                lines.append(node.lineno)
    return lines


def records_of(source: str) -> dict[str, int]:
    """Return the NamedTuples and dataclasses of a file, with their numbers of fields."""
    return {
        node.name: len(fields_of(node))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and (
            "NamedTuple" in map(ast.unparse, node.bases)
            or any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        )
    }


@pytest.mark.text
def test_records_are_built_with_keywords_and_nothing_reads_locals():
    texts = {path: path.read_text() for path in SOURCES}
    records = {name: n for text in texts.values() for name, n in records_of(text).items()}
    found = [f"{path}:{n}" for path, text in texts.items() for n in packed_calls(text, records)]
    assert found == []


def test_a_packed_record_is_found():
    source = "class A(NamedTuple):\n    a: int\n    b: int\n    c: int\n    d: int\n    e: int\n"
    assert records_of(source) == {"A": 5}
    assert packed_calls("A(*x)\nA(a=1)\nB(*x)\nm.A(1, *x)\nlocals()", {"A": 5, "B": 4}) == [1, 4, 5]


@pytest.mark.text
def test_the_citation_names_the_version_of_the_package():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
