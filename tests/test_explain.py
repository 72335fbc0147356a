"""Explain: the figures match the layouts and the compiled programs, and elements of the picture do
not overlap.
"""

import json
import re
import subprocess
import sys
from functools import cache
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_fast import explain, sac
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import Fragment, Graph, ShardingAxes
from jaxrl_fast.runtime.graph import init as init_graph
from jaxrl_fast.runtime.placements import Group, Placement, data_parallel, fused
from jaxrl_fast.settings.run import to_yaml
from jaxrl_fast.training.records import write_status
from jaxrl_fast.views import description as inspection
from jaxrl_fast.views.description import (
    ChannelFacts,
    Description,
    FragmentFacts,
    GroupFacts,
    bytes_moved,
    plain,
)
from jaxrl_fast.views.graph_picture import BOXES, DARK, draw_run, text_width, to_mermaid, to_svg
from jaxrl_fast.views.hlo import find_collectives, loop_runs

TICKS, UPDATES, HYPER = 3, 4, 0.01
KEYS = jax.random.split(jax.random.key(0), 1)
SVG = "{http://www.w3.org/2000/svg}"


def apart(graph, devices) -> Placement:
    """Place each fragment in a separate program, alternating on two devices."""
    groups = [Group((f.name,), (devices[i % 2],)) for i, f in enumerate(graph.fragments)]
    return Placement("apart", tuple(groups))


def toy_graph() -> Graph:
    """Build a data-parallel graph: rows sharded over devices, and a learner of ``UPDATES`` steps on
    their mean; it compiles quickly.
    """

    def sample(private, inputs, hyper, key):
        rows = private + jnp.sum(inputs["weights"]) + inputs["scale"]
        return rows, {"rows": {"x": rows, "flag": rows > 0}}, {}

    def learn(private, inputs, hyper, key):
        def update(w, _):
            return w - hyper * jax.grad(lambda w: jnp.mean((inputs["rows"]["x"] @ w) ** 2))(w), None

        w, _ = jax.lax.scan(update, private, length=UPDATES)
        return w, {"weights": w, "unread": w * 2}, {}

    sampler = Fragment(
        "sample",
        lambda key: jnp.ones((8, 6)),
        sample,
        ("weights", "scale"),
        ("rows",),
        division=ShardingAxes(0, {"rows": 0}, 8, "rows (made up)"),
    )
    scaler = Fragment(
        "scale",
        lambda key: jnp.ones(()),
        lambda p, i, h, k: (p, {"scale": p + jnp.mean(i["rows"]["x"])}, {}),
        ("rows",),
        ("scale",),
        publish=lambda p: {"scale": p},
    )
    learner = Fragment(
        "learn",
        lambda key: jnp.ones(6),
        learn,
        ("rows",),
        ("weights", "unread"),
        publish=lambda w: {"weights": w, "unread": w},
        start=1,
    )
    return Graph((sampler, scaler, learner), {("sample", "weights"): 1, ("sample", "scale"): 1})


def cycle_graph() -> Graph:
    """Build a worker and a server that alternate three times a tick; the server's message is one
    round old.
    """

    def work(private, inputs, hyper, key):
        return private, {"gradient": inputs["weights"] * hyper}, {}

    def serve(private, inputs, hyper, key):
        return private - inputs["gradient"], {"weights": private - inputs["gradient"]}, {}

    worker = Fragment(
        "worker", lambda key: jnp.zeros(()), work, ("weights",), ("gradient",), rounds=3
    )
    server = Fragment(
        "server",
        lambda key: jnp.ones(5),
        serve,
        ("gradient",),
        ("weights",),
        lambda w: {"weights": w},
        rounds=3,
    )
    return Graph((worker, server), {("worker", "weights"): 1})


@cache
def looked_at(placement, make=toy_graph) -> tuple:
    """``(description, run, state shapes)`` of two devices, compiled."""
    graph = make()
    placed = placement(graph, jax.devices()[:2])
    program = programs.compile(graph, placed, TICKS)
    run = program.ready(KEYS, HYPER)[1]
    state = jax.eval_shape(program.init, KEYS, HYPER)
    shapes = inspection.trace_shapes(graph, state, {})
    return (
        inspection.describe(graph, placed, state, shapes=shapes, run=run, ticks_per_chunk=TICKS),
        run,
        state,
    )


@st.composite
def descriptions(draw) -> Description:
    """Graphs of 4 to 12 fragments in 1 to 6 groups, with every kind of edge."""
    names = [f"fragment_{i}" for i in range(draw(st.integers(4, 12)))]
    group = [draw(st.integers(0, 5)) for _ in names]
    used = sorted(set(group))
    channels = []
    for i, writer in enumerate(names):
        for j in range(draw(st.integers(0, 2))):
            later = names[i + 1 :]
            ages = [(0, later), (1, names)] if later else [(1, names)]
            for age, readers in draw(
                st.lists(st.sampled_from(ages), max_size=2, unique_by=lambda a: a[0])
            ):
                some = tuple(
                    draw(st.lists(st.sampled_from(readers), min_size=1, max_size=3, unique=True))
                )
                size = draw(st.none() | st.integers(0, 10**10))
                channels.append(
                    ChannelFacts(
                        f"channel_{i}_{j}", writer, some, age, False, None, size, size, None
                    )
                )
    facts = tuple(
        FragmentFacts(
            name,
            (),
            (),
            used.index(group[i]),
            draw(st.sampled_from([0, 0, 99])),
            1,
            1,
            i == 3,
            64,
            "environments",
            draw(st.sampled_from([1, 1, 2])),
            0,
        )
        for i, name in enumerate(names)
    )
    groups = tuple(
        GroupFacts(
            tuple(n for n, g in zip(names, group, strict=True) if g == number),
            ("cpu:0", f"cpu:{number + 1}"),
            1,
        )
        for number in used
    )
    return Description("some", 1, facts, tuple(channels), groups, ())


def meet(a, b) -> bool:
    """Return whether two rectangles (or lines) have a common point that is not on an edge of both."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def texts(svg: str) -> dict[tuple[float, float, float, float], str]:
    """Return the area of each text."""
    found = {}
    for text in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        x, y, size = (float(text.get(name)) for name in ("x", "y", "font-size"))
        width = text_width(text.text or "", size, bold=text.get("font-weight") is not None)
        found[x, y - 0.8 * size, x + width, y + 0.22 * size] = text.text or ""
    return found


def shapes(svg: str, kind: str, *names: str) -> list[tuple[float, ...]]:
    """Return the numbers of all elements of a kind."""
    return [
        tuple(float(e.get(name, "")) for name in names)
        for e in ElementTree.fromstring(svg).iter(f"{SVG}{kind}")
    ]


@given(descriptions())
@settings(max_examples=40)
def test_in_the_picture_no_text_meets_another_or_the_edge_of_a_box(description: Description):
    svg = to_svg(description, "a title")
    words = texts(svg)
    for a, b in combinations(words, 2):
        assert not meet(a, b), (words[a], words[b])
    ground, *frames = shapes(svg, "rect", "x", "y", "width", "height")
    assert all(
        x >= 0 and y >= 0 and right <= ground[2] and low <= ground[3] for x, y, right, low in words
    )
    names = {fragment.name: fragment for fragment in description.fragments}
    for place, word in words.items():
        around = [
            (x, y, x + w, y + h) for x, y, w, h in frames if meet(place, (x, y, x + w, y + h))
        ]
        if word in names:
            outer, inner = around
            assert (
                inner[0] <= place[0]
                and place[2] <= inner[2]
                and outer[0] <= inner[0]
                and inner[2] <= outer[2]
            )


@given(descriptions())
@settings(max_examples=20)
def test_every_color_of_the_picture_has_another_on_dark_pages(description: Description):
    elements = list(ElementTree.fromstring(to_svg(description, "a title")).iter())
    used = {element.get(name) for element in elements for name in ("fill", "stroke")} - {
        None,
        "none",
    }
    assert used <= set(DARK) and not used & set(DARK.values())


@given(descriptions())
@settings(max_examples=20)
def test_every_channel_goes_from_its_writer_to_each_reader(description: Description):
    svg = to_svg(description, "a title")
    places = texts(svg)
    boxes = [
        (x, x + w) for x, y, w, _ in shapes(svg, "rect", "x", "y", "width", "height") if y == BOXES
    ]
    column = {}
    for place, word in places.items():
        if word in {fragment.name for fragment in description.fragments}:
            (middle,) = [(left + right) / 2 for left, right in boxes if left < place[0] < right]
            column[word] = round(middle, 2)
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        (dot,) = group.iter(f"{SVG}circle")
        tips = [
            float(arrow.get("points", "").partition(",")[0])
            for arrow in group.iter(f"{SVG}polygon")
        ]
        dashed = any(path.get("stroke-dasharray") for path in group.iter(f"{SVG}path"))
        found.append(
            (next(group.iter(f"{SVG}text")).text, round(float(dot.get("cx", "")), 2), tips, dashed)
        )
    wanted = [
        (c.name, column[c.writer], [column[reader] for reader in c.readers], bool(c.age))
        for c in description.channels
    ]
    for (name, writer, tips, dashed), (its_name, its_writer, its_readers, old) in zip(
        found, wanted, strict=True
    ):
        assert (name, dashed) == (its_name, old)
        np.testing.assert_allclose([writer, *tips], [its_writer, *its_readers], atol=0.02)


def test_texts_are_not_wider_than_they_are_taken_for():
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    for text in (
        "learn_critic",
        "WWW mmm @%",
        "1.44 kB, age 1",
        "8 logical shards over 4 devices",
        "cpu:0 to cpu:11",
    ):
        for bold in (False, True):
            face = FontProperties(family="DejaVu Sans", weight="semibold" if bold else "normal")
            assert TextPath((0, 0), text, size=12, prop=face).get_extents().width <= text_width(
                text, 12, bold=bold
            )


def test_mermaid_has_every_fragment_in_its_group_and_every_edge():
    description = looked_at(apart)[0]
    text = to_mermaid(description, "a title")
    assert re.findall(r'subgraph group\d\["(.*)"\]', text) == [
        g.devices[0] for g in description.groups
    ]
    edges = re.findall(r"(f_\w+) (-->|-\.->)\|\"(\w+)[^|]*\| (f_\w+)", text)
    wanted = [
        (f"f_{c.writer}", "-.->" if c.age else "-->", c.name, f"f_{r}")
        for c in description.channels
        for r in c.readers
    ]
    assert edges == wanted and len(edges) == 4


def test_sizes_are_those_of_the_arrays_that_were_compiled():
    description, run, state = looked_at(apart)
    sizes = {c.name: c.size_bytes for c in description.channels}
    compiled = inspection.run_shapes(run)
    assert set(compiled) == {"rows", "scale", "weights"}
    for name, value in {**compiled, **state.channels}.items():
        assert sizes[name] == sum(
            x.dtype.itemsize * int(np.prod(x.shape)) for x in jax.tree.leaves(value)
        )
    assert sizes["rows"] == 8 * 6 * (4 + 1) and sizes["unread"] == 24
    assert {c.name: (c.readers, c.age) for c in description.channels} == {
        "rows": (("scale", "learn"), 0),
        "scale": (("sample",), 1),
        "weights": (("sample",), 1),
        "unread": ((), 0),
    }


@pytest.mark.parametrize("make", [toy_graph, cycle_graph])
def test_what_crosses_is_what_the_chain_copies(make):
    description, run, _ = looked_at(apart, make)
    graph = make()
    moved = {c.name: 0 for c in description.channels}

    def watch(segment, *arguments) -> None:
        for given_, names in zip(arguments[-2], segment.moved, strict=True):
            for name in names:
                moved[name] += sum(x.nbytes for x in jax.tree.leaves(given_[name]))

    program = programs.compile(graph, apart(graph, jax.devices()[:2]), TICKS)
    run._replace(watch=watch)(program.init(KEYS, HYPER))
    assert {c.name: c.crossing_bytes * TICKS for c in description.channels} == moved
    assert moved["rows" if make is toy_graph else "gradient"] > 0


def test_bytes_moved_counts_what_a_device_does_not_hold_already():
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices[:2]), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    here, there = (jax.sharding.SingleDeviceSharding(d) for d in devices[:2])
    tree = {"a": jax.ShapeDtypeStruct((4, 6), np.float32), "b": jax.ShapeDtypeStruct((2,), np.int8)}
    total = 4 * 6 * 4 + 2
    for source, target, wanted in (
        (here, here, 0),
        (here, there, total),
        (here, rows, total // 2),
        (rows, here, total // 2),
        (whole, rows, 0),
        (here, whole, total),
        (rows, whole, total),
        (rows, jax.sharding.SingleDeviceSharding(devices[3]), total),
    ):
        assert bytes_moved(tree, source, target) == wanted
    assert bytes_moved(tree, {"a": here, "b": rows}, {"a": there, "b": here}) == 4 * 6 * 4 + 1


def test_collectives_are_counted_by_tick_and_flops_are_xlas_own():
    description, run, _ = looked_at(data_parallel)
    (program,) = description.programs
    assert program.calls == 1 / TICKS
    assert program.facts.flops == run.cost_analysis()["flops"]
    assert program.facts.argument_bytes == run.memory_analysis().argument_size_in_bytes
    (gradients,) = (c for c in program.facts.collectives if c.runs == UPDATES)
    assert (gradients.kind, gradients.instructions, gradients.size_bytes) == ("all-reduce", 1, 24)
    assert {c.runs for c in program.facts.collectives} == {UPDATES, 1.0}
    assert program.facts.loops == (UPDATES,)
    assert all(c.crossing_bytes == 0 for c in description.channels)


def test_loops_of_a_program_are_multiplied_out_and_unknown_ones_are_said_to_be_unknown():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))

    def local(x, n):
        inner = lambda c, _: (jax.lax.psum(c, "x") * 0.5, None)  # noqa: E731
        x, _ = jax.lax.scan(lambda c, _: jax.lax.scan(inner, c, length=5), x, length=7)
        return jax.lax.fori_loop(
            0, n, lambda _, c: c & jax.lax.ppermute(c, "x", [(0, 1), (1, 0)]), x > 0
        )

    specs = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)
    text = jax.jit(mapped).lower(np.zeros((2, 3), np.float32), np.int32(4)).compile().as_text()
    found = {(c.kind, c.runs, c.instructions, c.size_bytes) for c in find_collectives(text)}
    assert found == {("all-reduce", 35.0, 1, 12), ("collective-permute", None, 1, 3)}
    assert sorted(n for n in loop_runs(text) if n == n) == [7.0, 35.0]


def test_a_description_is_json_and_a_run_is_drawn_without_its_programs(tmp_path: Path):
    graph, (description, run, state) = toy_graph(), looked_at(data_parallel)
    told: list[str] = []
    draw_run(
        tmp_path / "graph.svg",
        "toy",
        graph,
        fused(graph, jax.devices()),
        state,
        run,
        1,
        told.append,
    )
    svg = (tmp_path / "graph.svg").read_text()
    assert {"sample", "learn", "rows", "weights", "24 B, age 1", "cpu:0", "from tick 1"} <= set(
        texts(svg).values()
    )
    assert svg.count("stroke-dasharray") == 2
    divided = set(texts(to_svg(description, "toy")).values())
    assert {"cpu:0, cpu:1", "8 rows over 2 devices", "the same on 2 devices"} <= divided
    draw_run(
        tmp_path / "no" / "graph.svg",
        "toy",
        graph,
        fused(graph, jax.devices()),
        state,
        run,
        1,
        told.append,
    )
    assert told == ["no graph.svg (No such file or directory)"]
    again = json.loads(json.dumps(plain(description), allow_nan=False))
    assert [f["name"] for f in again["fragments"]] == ["sample", "scale", "learn"]
    assert again["programs"][0]["facts"]["flops"] > 0


def test_only_files_of_our_own_are_replaced(tmp_path: Path):
    (tmp_path / "graph.svg").write_text(to_svg(looked_at(apart)[0], "a title"))
    explain.open_folder(tmp_path)
    explain.open_folder(tmp_path / "not" / "yet")
    (tmp_path / "graph.json").write_text("{}")
    with pytest.raises(
        ValueError,
        match=r"graph\.json was not written by this command: move it, or write another out=",
    ):
        explain.open_folder(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError, match=r"cannot write to out=.* \(Not a directory\): write another folder"
    ):
        explain.open_folder(tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["out="], "out= has no value"),
        (["out=a", "out=b"], "out=a out=b: write one folder"),
        (["env=nowhere"], "env=nowhere is unknown"),
        (["episodes=3"], "unknown key 'episodes'"),
        (["--multirun", "seed=1,2"], "--multirun is for training"),
    ],
)
def test_bad_input_ends_in_one_line_and_status_2(words, message, capsys):
    assert explain.main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_cycle_is_told_by_the_round():
    description = looked_at(apart, cycle_graph)[0]
    assert [program.calls for program in description.programs] == [3, 3]
    facts = {
        c.name: (c.age, c.per_round, c.size_bytes, c.tick_bytes, c.crossing_bytes)
        for c in description.channels
    }
    assert facts == {"gradient": (0, True, 20, 60, 60), "weights": (1, True, 20, 60, 60)}
    assert {"20 B a round", "20 B a round, one round old", "3 rounds a tick"} <= set(
        texts(to_svg(description, "")).values()
    )


def test_help_names_the_keys(capsys):
    assert explain.main(["--help"]) == 0
    assert "out " in capsys.readouterr().out


def settings_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Return the table of ``explain settings`` by key: value and origin."""
    assert explain.main(["settings", *words]) == 0
    lines = [
        re.split(r"  +", line.strip())
        for line in capsys.readouterr().out.splitlines()
        if line.strip()
    ]
    assert lines[0] == ["key", "value", "set by"]
    return {key: (value, origin) for key, value, origin in lines[1:]}


def test_settings_are_a_table_of_what_was_set_by_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (file := Path("my.yaml")).write_text("seed: 4\neval:\n  episodes: 8\n")
    found = settings_of(["env=cartpole", "algo=dqn", "num_envs=auto", f"config='{file}'"], capsys)
    for key, expected in {
        "env": ("cartpole", "command line"),
        "algo": ("dqn", "command line"),
        "placement": ("auto", "default"),
        "num_envs": ("auto", "command line"),
        "seed": ("4", str(file)),
        "eval.episodes": ("8", str(file)),
        "eval.every": ("20000", "follows total_steps"),
        "env.id": ("CartPole-v1", "env=cartpole"),
        "algo.n_step": ("3", "tuned file (config/tuned/cartpole_dqn.yaml)"),
        "algo.double": ("true", "default"),
    }.items():
        assert found[key] == expected, key
    assert not any(name.startswith("pool.") for name in found)
    found = settings_of(["env=acrobot"], capsys)
    assert found["algo"] == ("ppo", "environment's defaults")
    assert found["algo.rollout_length"][1] == "follows num_envs and total_steps"
    assert found["tuned"] == ("false", "no file for env and algo")


def test_settings_of_a_host_environment_and_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["env=gymnasium", "env.id=CartPole-v1", "num_envs=3", "+env.render_mode=rgb_array"]
    found = settings_of(words, capsys)
    assert found["algo"] == ("ppo", "chosen for discrete actions")
    assert found["pool.num_groups"] == ("1", "follows num_envs")
    assert found["+env.render_mode"] == ("rgb_array", "command line")
    run = compose([*words, "seed=7"])
    (tmp_path / "config.yaml").write_text(to_yaml(run))
    write_status(tmp_path, {"sources": run.sources, "chosen": "measured here"})
    found = settings_of([str(tmp_path)], capsys)
    assert found["seed"] == ("7", "command line") and found["algo"] == (
        "ppo",
        "chosen for discrete actions",
    )
    assert found["placement"] == ("auto", "measured here")


def test_settings_start_no_device():
    code = """
from jaxrl_fast import explain
from jaxrl_fast.settings.machine import jax_has_started
assert explain.main(["settings", "env=halfcheetah"]) == 0 and not jax_has_started()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs/none"], "runs/none contains no run"),
        (["runs/none", "seed=3"], "config=runs/none/config.yaml"),
        (["env=nope"], "env=nope is unknown"),
    ],
)
def test_wrong_words_of_settings_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert explain.main(["settings", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


MY_ENV = """
import jax, jax.numpy as jnp, jaxrl_fast as jf

def make():
    def reset(key, params):
        x = jax.random.uniform(key, (1,))
        return x, x
    def step(x, action, key):
        x, no = x + action - 0.5, jnp.zeros((), bool)
        return x, jf.Timestep(obs=x, next_obs=x, reward=-abs(x[0]), terminated=no, truncated=no)
    return jf.Env(jf.EnvSpec("walk", jax.ShapeDtypeStruct((1,), jnp.float32), jf.Discrete(2), 50), reset, step)
"""


def test_the_command_prints_and_writes_what_would_run(tmp_path: Path):
    (tmp_path / "my_env.py").write_text(MY_ENV)
    words = [
        "env=custom",
        "env.make=my_env.make",
        "algo=ppo",
        "num_envs=4",
        "placement=data_parallel",
        "devices=2",
        "algo.rollout_length=8",
        "algo.num_epochs=1",
        "algo.num_minibatches=2",
        "algo.policy_hidden=[4]",
        "algo.value_hidden=[4]",
        "out=here",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl_fast.explain", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    for wanted in (
        "sample",
        "rollout",
        "4 environments over 2 devices",
        "all-reduce",
        "compiled in",
        "FLOPs",
    ):
        assert wanted in done.stdout
    assert (
        done.stdout.splitlines()[-1] == "written: here/graph.svg, here/graph.mmd, here/graph.json"
    )
    assert {path.name for path in (tmp_path / "here").iterdir()} == {
        "graph.svg",
        "graph.mmd",
        "graph.json",
    }
    figures = json.loads((tmp_path / "here" / "graph.json").read_text())
    assert figures["run"]["placement"] == "data_parallel" and figures["run"]["compile_s"] > 0
    ElementTree.fromstring((tmp_path / "here" / "graph.svg").read_text())


@pytest.mark.parametrize("overlap", ["none", "actor_critic"])
def test_the_shapes_of_channels_that_nobody_reads_are_found_too(overlap):
    algorithm = sac(
        batch_size=8, buffer_size=64, warmup_steps=8, policy_hidden=(4,), critic_hidden=(4,)
    )
    graph, _ = build_graph(tiny.line(discrete=False), algorithm, GraphOptions(overlap))
    state = jax.eval_shape(lambda key: init_graph(graph, key, algorithm.hyper), jax.random.key(0))
    shapes = inspection.trace_shapes(graph, state, {})
    assert set(shapes) == {channel for fragment in graph.fragments for channel in fragment.writes}
