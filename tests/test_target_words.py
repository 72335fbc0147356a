"""``explain target=``: the names of machines, error messages for wrong ones, and measurements on
this machine.
"""

import json
import subprocess
import sys

import pytest

from jaxrl_fast import explain
from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.targets import accelerators, cost_tables
from jaxrl_fast.targets.accelerators import CHIPS
from jaxrl_fast.targets.compiling import Stored, room_of
from jaxrl_fast.targets.program_cost import ProgramCost, kernels_a_round

CARTPOLE = ("env=cartpole", "algo=ppo")


@pytest.mark.parametrize(
    ("word", "devices", "topology"),
    [
        ("h100", 1, "1x1x1"),
        ("h100:8", 8, "1x1x8"),
        ("h100:64", 64, "1x8x8"),
        ("h200:2", 2, "1x1x2"),
        ("tpu-v5e", 1, "v5e:2x2"),
        ("tpu-v5e:2x4", 8, "v5e:2x4"),
    ],
)
def test_a_word_names_devices_and_how_they_are_joined(word, devices, topology):
    found = accelerators.parse_target(word)
    assert (found.num_devices, found.topology) == (devices, topology)


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        (
            "h300",
            "target=h300: write h100, h200, tpu-v5e, with a number of devices as in h100:8, or this",
        ),
        ("h100:12", "target=h100:12: write a number of devices up to 8, or a multiple of 8"),
        ("h100:0", "write a number of devices up to 8"),
        ("h100:2x4", "write a number of devices up to 8"),
        ("tpu-v5e:8", "target=tpu-v5e:8: write the rows and columns of devices, as in tpu-v5e:2x4"),
    ],
)
def test_a_wrong_machine_is_refused_in_one_line(word, instead, capsys):
    assert explain.main([*CARTPOLE, f"target={word}"]) == 2
    line = capsys.readouterr().err
    assert instead in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("target=h100", "target=h100:8"), "target=h100 target=h100:8: write one target"),
        (
            ("num_envs=64,many", "target=h100"),
            "num_envs=64,many: write numbers with commas between them",
        ),
        (("placement=nowhere", "target=h100"), "placement=nowhere is unknown"),
    ],
)
def test_wrong_words_beside_a_target(words, instead, capsys):
    assert explain.main([*CARTPOLE, *words]) == 2
    assert instead in capsys.readouterr().err


def test_without_compilers_it_says_how_to_get_them(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(accelerators.VARIABLE, str(tmp_path))
    monkeypatch.setattr(accelerators, "has_compiler", lambda platform: False)
    assert explain.main([*CARTPOLE, "target=h100"]) == 2
    assert "run make targets in a checkout of jaxrl_fast" in capsys.readouterr().err


def test_the_number_of_devices_is_the_targets(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(cost_tables.DUMP, str(tmp_path))
    assert explain.main([*CARTPOLE, "target=h100:8", "devices=2"]) == 2
    assert "the target sets their number (h100:8): leave it out" in capsys.readouterr().err


def test_widths_are_read_only_where_several_are_listed():
    assert cost_tables.asked_widths(["num_envs=64,1024", "seed=1"]) == [64, 1024]
    assert cost_tables.asked_widths(["num_envs=64"]) == []
    with pytest.raises(ConfigError):
        cost_tables.asked_widths(["num_envs=64,x"])


def test_a_compilers_talk_is_left_out_and_errors_are_not():
    assert cost_tables.is_compilers_talk(
        "W1123 08:42:03.615707   20162 sort_rewriter.cc:929] Using fallback"
    )
    assert not cost_tables.is_compilers_talk("jaxrl_fast: error: target=h200: write h100")
    assert not cost_tables.is_compilers_talk("Warning: [x] y")


def test_this_machine_is_measured(tmp_path):
    sizes = (
        "num_envs=8",
        "algo.rollout_length=8",
        "algo.num_epochs=1",
        "total_steps=6400",
        "placement=fused",
    )
    words = [*CARTPOLE, "target=this", *sizes, "devices=1", f"out={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl_fast.explain", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads((tmp_path / "graph.json").read_text())["target"]
    assert "measured on 1 cpu" in done.stdout
    assert "no prediction for cpu" in done.stdout
    assert facts["measured"]["tick_s"]
    assert all(seconds > 0 for seconds in facts["measured"]["tick_s"])


def test_kernels_of_a_round_count_what_repeats_within_it():
    nothing = ProgramCost(*[None] * len(ProgramCost._fields))
    cost = nothing._replace(repeated={"learn": {"1": 5, "16": 70, "32": 4}})
    assert kernels_a_round(cost, "learn", 16) == 70 + 2 * 4
    assert kernels_a_round(cost, "sample", 16) is None


def test_what_else_fits_fills_the_device():
    """The largest replay buffer and the largest number of environments use exactly the available
    memory.
    """
    chip = CHIPS["h100"]
    limit, replay, rest = 0.75 * chip.memory_bytes, 2e9, 1e9
    cost = ProgramCost(*[None] * len(ProgramCost._fields))._replace(
        group=0, memory_bytes=int(replay + rest)
    )
    elsewhere = cost._replace(group=1, memory_bytes=10)
    room = room_of([cost, elsewhere], Stored(1000, 0, replay), 64, chip)
    assert room.needed_bytes == replay + rest
    assert rest + replay / 1000 * room.largest_buffer_size == pytest.approx(limit, rel=1e-4)
    assert replay + rest / 64 * room.largest_num_envs == pytest.approx(limit, rel=1e-3)
    assert room_of([elsewhere], None, 64, chip).largest_buffer_size is None


def test_a_run_that_does_not_fit_has_no_room():
    chip = CHIPS["h100"]
    cost = ProgramCost(*[None] * len(ProgramCost._fields))._replace(
        group=0, memory_bytes=chip.memory_bytes
    )
    room = room_of([cost], Stored(1000, 0, 0.5 * chip.memory_bytes), 64, chip)
    assert room.needed_bytes > room.limit_bytes
    assert room.largest_buffer_size < 1000
    assert room.largest_num_envs < 64
