"""The cache of compiled programs: a cached program saves tracing, changes no number, and is used
only where it is valid.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.commands import env_cache as identities
from jaxrl_fast.commands.env_cache import KeptFiles, env_cache_of, make_cached_envs
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.envs import adapter_utils
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime import program_store
from jaxrl_fast.runtime.graph import Fragment, Graph, TrainState
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.settings.machine import make_room

WORDS = [
    "env=cartpole",
    "algo=ppo",
    "num_envs=4",
    "total_steps=1024",
    "algo.rollout_length=8",
    "tuned=false",
]
COMMAND = """
import atexit, json, sys
import jax
from jaxrl_fast import train
traced = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **more: traced.append(more.get("fun_name", "")) if "trace" in event else None
)
out = sys.argv.pop(1)
atexit.register(lambda: json.dump([traced, sorted(sys.modules)], open(out, "w")))
train.run_as_process()
"""
OF_THE_CLOCK = ("wall_s", "sampling_hz", "update_hz", "update_frame_hz")


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def files(tmp_path, told) -> KeptFiles:
    return KeptFiles(tmp_path / "kept", told.append)


def test_a_file_comes_back_as_it_was_written(files, told):
    content = {"program": b"\x00\x01", "names": ["a", ["b"]], "array": np.arange(3)}
    files.write("one", content)
    found = files.read("one")
    assert found["program"] == content["program"] and found["names"] == content["names"]
    np.testing.assert_array_equal(found["array"], content["array"])
    assert files.read("another") is None
    assert told == []


@pytest.mark.parametrize("place", [0, 30, -1])
def test_a_damaged_file_is_not_used_and_said_in_a_line(files, told, place):
    files.write("one", {"program": b"machine code"})
    path = files.folder / "one"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert files.read("one") is None
    assert len(told) == 1 and str(path) in told[0] and "rebuilt" in told[0]


def test_a_file_under_another_name_is_not_used(files, told):
    files.write("one", {"program": b"of these settings"})
    (files.folder / "one").rename(files.folder / "other")
    assert files.read("other") is None
    assert "has changed" in told[0]


def test_a_file_that_others_may_write_is_not_used(files, told):
    files.write("one", {"program": b""})
    assert (files.folder / "one").stat().st_mode & 0o777 == 0o600
    (files.folder / "one").chmod(0o620)
    assert files.read("one") is None
    assert "others can write to it" in told[0]


def test_a_link_is_not_followed(files, tmp_path, told):
    files.write("one", {"program": b""})
    (files.folder / "one").rename(tmp_path / "elsewhere")
    (files.folder / "one").symlink_to(tmp_path / "elsewhere")
    assert files.read("one") is None
    assert len(told) == 1


def test_the_folder_is_closed_to_others_or_not_used(files, told):
    assert files.folder.stat().st_mode & 0o777 == 0o700
    files.write("one", {"program": b""})
    files.folder.chmod(0o755)
    assert KeptFiles(files.folder, told.append).read("one") is not None
    assert files.folder.stat().st_mode & 0o777 == 0o700
    files.folder.chmod(0o770)
    open_to_others = KeptFiles(files.folder, told.append)
    assert open_to_others.read("one") is None
    open_to_others.write("two", {"program": b""})
    assert not (files.folder / "two").exists()
    assert len(told) == 1 and "others can write" in told[0]


def test_a_link_to_a_folder_is_not_used(files, tmp_path, told):
    (tmp_path / "link").symlink_to(files.folder)
    assert not KeptFiles(tmp_path / "link", told.append).usable
    assert "not a folder of yours" in told[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_or_a_file_of_another_user_is_not_used(files, told):
    files.write("one", {"program": b""})
    os.chown(files.folder / "one", 12345, -1)
    assert files.read("one") is None
    os.chown(files.folder, 12345, -1)
    assert not KeptFiles(files.folder, told.append).usable
    assert len(told) == 2


def test_the_files_that_were_not_read_for_longest_give_way(tmp_path, told):
    files = KeptFiles(tmp_path / "kept", told.append, max_bytes=3_500)
    for age, name in enumerate(("old", "read", "new")):
        files.write(name, {"program": bytes(1_000)})
        os.utime(files.folder / name, (age, age))
    files.read("old")
    files.write("newest", {"program": bytes(1_000)})
    assert {path.name for path in files.folder.iterdir()} == {"old", "new", "newest"}
    files.write("too large", {"program": bytes(4_000)})
    assert list(files.folder.iterdir()) == []
    assert told == []


def test_xlas_own_cache_stays_bounded_and_what_was_used_last_stays(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}-cache").write_bytes(bytes(1_000))
        os.utime(tmp_path / f"{number}-cache", (number + 10 * (number == 1), number))
    (tmp_path / "folder").mkdir()
    make_room(tmp_path, 4_000 + (tmp_path / "folder").lstat().st_size)
    assert len(list(tmp_path.iterdir())) == 5
    make_room(tmp_path, 2_000 + (tmp_path / "folder").lstat().st_size)
    assert {path.name for path in tmp_path.iterdir()} == {"1-cache", "3-cache", "folder"}
    make_room(tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_setup_makes_room_in_xlas_cache(tmp_path):
    script = (
        "from jaxrl_fast.settings import machine\n"
        "machine.MAX_CACHE_BYTES = 0\nmachine.setup()\nprint(machine.cache_folder())"
    )
    env = {**os.environ, "JAXRL_FAST_CACHE": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
        )
        folder = Path(done.stdout.strip())
        assert folder.parent == tmp_path and list(folder.iterdir()) == []
        (folder / "old-cache").write_bytes(b"program")


@pytest.mark.parametrize(
    "tree", [1, None, (), {}, [1, None, (2, {"b": 3, "a": 4})], TrainState({"x": 1}, {}, (), 2, 3)]
)
def test_the_structure_of_a_state_comes_back(tree):
    described = json.loads(json.dumps(program_store.to_json(tree)))
    assert jax.tree.structure(program_store.from_json(described)) == jax.tree.structure(tree)


def test_a_node_of_another_package_keeps_its_names():
    state = optax.adam(1e-3).init({"w": np.zeros(2)})
    found = program_store.from_json(program_store.to_json(state))

    def names(tree):
        return [
            jax.tree_util.keystr(p, simple=True, separator=".")
            for p, _ in jax.tree_util.tree_leaves_with_path(tree)
        ]

    assert names(found) == names(state)


@pytest.mark.parametrize(
    "place", ["os:stat_result", "jaxrl_fast.commands.env_cache:KeptFiles", "subprocess:Popen"]
)
def test_only_types_of_a_state_are_made(place):
    with pytest.raises(ValueError, match="is not a type of a state"):
        program_store.from_json(["own", place, []])


def test_what_a_program_depends_on_is_all_in_its_name(monkeypatch, tmp_path):
    package = tmp_path / "some_physics"
    package.mkdir()
    (package / "__init__.py").write_text("gravity = 9.81\n")
    (package / "model.xml").write_text("<a/>")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(identities, "OWN", "no_package")
    monkeypatch.setattr(identities, "PACKAGES", ("some_physics",))
    names = [identities.digest(identities.identity_of("probe", "ppo"))]

    def changed() -> bool:
        names.append(identities.digest(identities.identity_of("probe", "ppo")))
        return names[-1] not in names[:-1]

    assert not changed()
    (package / "model.xml").write_text("<b></b>")
    assert changed()
    os.utime(package / "__init__.py", (1, 1))
    assert changed()
    (package / "other.py").write_text("")
    assert changed()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert changed()
    monkeypatch.setattr(identities, "_version", lambda name: "1.2.3")
    assert changed()
    with jax.numpy_rank_promotion(
        "warn" if jax.config.jax_numpy_rank_promotion != "warn" else "allow"
    ):
        assert changed()
    monkeypatch.setattr(identities, "OWN", "some_physics")
    assert changed()
    assert identities.identity_of("custom", "ppo") is None
    assert identities.identity_of("gymnasium", "ppo") is None


def test_a_world_that_is_built_while_one_program_is_traced_serves_the_next(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXRL_FAST_CACHE", str(tmp_path))
    run = compose(["env=halfcheetah", "algo=sac", "num_envs=2"])
    for _ in range(2):
        env = make_cached_envs(run, env_cache_of(run, pytest.fail))
    world, key = env.env, jax.random.key(0)
    params = jax.eval_shape(world.sample_params, key)
    state, _ = jax.eval_shape(world.reset, key, params)
    arguments = state, jnp.zeros(6), key
    lowered = jax.jit(world.step).lower(*arguments)
    assert len(jax.tree.leaves(lowered.in_avals)) == len(jax.tree.leaves(arguments))


class Kept(dict):
    """A store of programs in memory."""

    read, write = dict.get, dict.__setitem__

    packages = ("jaxrl_fast",)

    def refuse(self, name: str, why: str) -> None:
        TOLD.append(f"{name}: {why}")


TRACED: list[str] = []
TOLD: list[str] = []


def counted(name: str, function):
    def call(*arguments):
        TRACED.append(name)
        return function(*arguments)

    return call


def run_twice(
    placement: str, devices: int, store: Kept | None, num_seeds: int = 1
) -> list[np.ndarray]:
    """Return all numbers of two chunks of a small PPO run."""
    env = tiny.line(discrete=True, num_envs=8)
    env = env._replace(
        **{name: counted(name, getattr(env, name)) for name in ("reset", "draw_fresh", "step")}
    )
    algorithm = ppo(
        rollout_length=4, num_epochs=1, num_minibatches=2, policy_hidden=(4,), value_hidden=(4,)
    )
    graph, _ = build_graph(env, algorithm, GraphOptions())
    placed = PLACEMENTS[placement](graph, jax.devices()[:devices])
    keys = jax.random.split(jax.random.key(3), num_seeds)
    program = programs.compile(graph, placed, 2, num_seeds)
    init, run = program.ready(keys, algorithm.hyper, store)
    state, metrics = run(init(keys, algorithm.hyper))
    state, more = run(state)
    leaves = [
        *jax.tree.leaves(state._replace(key=jax.random.key_data(state.key))),
        *metrics.values(),
        *more.values(),
    ]
    return [np.asarray(leaf) for leaf in leaves]


@pytest.mark.parametrize(
    ("placement", "devices", "num_seeds"),
    [("fused", 1, 1), ("data_parallel", 2, 2), ("sharded_sampling", 2, 1)],
)
def test_kept_programs_are_not_traced_and_compute_the_same_bits(placement, devices, num_seeds):
    store = Kept()
    numbers = []
    for place in (None, store, store):
        TRACED.clear()
        numbers.append(run_twice(placement, devices, place, num_seeds))
        assert bool(TRACED) == (len(numbers) < 3)
    for again in numbers[1:]:
        for one, other in zip(numbers[0], again, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_module_that_is_imported_later_is_loaded_at_its_first_use(tmp_path, monkeypatch):
    (tmp_path / "heavy_pictures.py").write_text(
        "import sys\nsys.loaded_pictures = True\ncolor = 'red'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    adapter_utils.import_later("heavy_pictures", "no_such_module_at_all")
    import heavy_pictures

    assert not hasattr(sys, "loaded_pictures")
    assert heavy_pictures.color == "red" and sys.loaded_pictures
    assert sys.modules["heavy_pictures"].color == "red"
    assert "no_such_module_at_all" not in sys.modules
    monkeypatch.delattr(sys, "loaded_pictures")
    monkeypatch.delitem(sys.modules, "heavy_pictures")


def test_gymnax_starts_without_the_libraries_of_its_pictures(tmp_path, commands):
    """With them, the import of gymnax takes four times as long."""
    lines = [
        "import sys",
        "import jaxrl_fast.envs.from_gymnax",
        "print(sorted({'pandas', 'scipy.stats'} & {*sys.modules}))",
    ]
    assert commands.run(tmp_path, "python", *lines).out == "[]\n"


@pytest.mark.parametrize(
    "damage", [{"exported": b"no program"}, {"results": ["own", "os:stat_result", []]}, {}]
)
def test_a_kept_program_of_another_kind_is_traced_anew_and_said_in_a_line(damage):
    TOLD.clear()
    store = Kept()
    numbers = run_twice("fused", 1, store)
    store["chunk"] = {**store["chunk"], **damage}
    TRACED.clear()
    again = run_twice("fused", 1, store)
    assert bool(TRACED) == bool(damage) and len(TOLD) == len(damage)
    for one, other in zip(numbers, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_cannot_be_exported_is_compiled_all_the_same():
    def step(private, inputs, hyper, key):
        jax.debug.callback(lambda x: None, private)
        return private + 1, {}, {"count": private}

    TOLD.clear()
    graph = Graph((Fragment("counts", lambda key: jnp.zeros(()), step, (), ()),))
    program = programs.compile(graph, PLACEMENTS["fused"](graph, jax.devices()), 3)
    keys = jax.random.split(jax.random.key(0), 1)
    init, run = program.ready(keys, (), Kept())
    assert run(init(keys, ()))[1]["counts/count"].tolist() == [[0.0, 1.0, 2.0]]
    assert len(TOLD) == 1 and TOLD[0].startswith("chunk: ")


def start(
    folder: Path, cache: Path, *words: str
) -> tuple[list[str], list[str], list[dict[str, str]], str]:
    """Run a command; return the traced functions, its modules, its metrics and its output."""
    out = folder.with_suffix(".json")
    env = {**os.environ, "JAXRL_FAST_CACHE": str(cache)}
    command = [
        sys.executable,
        "-c",
        COMMAND,
        str(out),
        *WORDS,
        *words,
        f"run_dir={folder}",
        "eval.beside=false",
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    traced, modules = json.loads(out.read_text())
    with (folder / "metrics.csv").open() as file:
        rows = [
            {k: v for k, v in row.items() if k not in OF_THE_CLOCK} for row in csv.DictReader(file)
        ]
    return traced, modules, rows, done.stdout + done.stderr


def test_a_second_start_traces_nothing_and_computes_the_same(tmp_path):
    cache = tmp_path / "cache"
    words = ("eval.episodes=1", "eval.every=100_000_000", "eval.beside=false")
    traced, modules, rows, _ = start(tmp_path / "first", cache, *words)
    assert {"init", "chunk"} <= set(traced) and "gymnax" in modules
    again, modules, same_rows, _ = start(tmp_path / "second", cache, *words, "seed=0")
    assert not {"init", "chunk"} & set(again)
    assert same_rows == rows
