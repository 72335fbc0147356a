"""`make gpu` in its short form: everything runs and is written, and a part that fails stops no
other part.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "gpu"))
import gpu
import gpu_parts
from gpu_figures import difference
from gpu_page import page
from gpu_plan import short


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory):
    """Return the command's exit code, its folder and its output.

    One part gets an unsupported XLA flag, which ends its process; another part gets words of an
    unknown environment.
    """
    folder = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setattr(gpu_parts, "DETERMINISTIC", "--xla_no_such_flag=true")
        patch.setattr(gpu, "short", lambda: short()._replace(explained="env=nothing"))
        parts = "roofline,deterministic,law,sampling,updates,ticks,placements,returns,graphs"
        status = gpu.main(["--short", f"out={folder}", f"parts={parts}"])
    return status, folder, json.loads((folder / "gpu.json").read_text())


def test_what_fails_stops_nothing_else(measured):
    status, folder, document = measured
    parts = document["parts"]
    assert {name: part["status"] for name, part in parts.items()} == {
        **dict.fromkeys(
            ("deterministic", "law", "sampling", "updates", "ticks", "returns"), "measured"
        ),
        **dict.fromkeys(("placements", "graphs"), "skipped"),
        "roofline": "failed",
    }
    assert status == 1
    assert "env=nothing is unknown" in parts["roofline"]["why"]
    rows = parts["deterministic"]["rows"]
    assert rows["ppo probe, default"]["bitwise_again"] is True
    assert "no_such_flag" in rows["ppo probe, deterministic"]["error"]
    assert "failed: ended" in (folder / "README.md").read_text()


def test_figures_are_there_with_what_they_were_measured_on(measured):
    _, folder, document = measured
    rows = {name: part["rows"] for name, part in document["parts"].items()}
    assert rows["law"]["ppo probe"]["holds"] and rows["law"]["ppo probe"]["bitwise_again"]
    for part, row, rates in (
        ("sampling", "probe 8", {"sampling_hz"}),
        ("updates", "ppo 16", {"update_hz", "update_frame_hz"}),
        ("ticks", "ppo probe", {"sampling_hz", "update_hz", "update_frame_hz"}),
    ):
        found = rows[part][row]
        assert rates == {"sampling_hz", "update_hz", "update_frame_hz"} & set(found)
        assert all(
            0 < found[rate]["least"] <= found[rate]["median"] <= found[rate]["most"]
            for rate in rates
        )
    assert rows["updates"]["ppo 16"]["an_update"]["flops"] > 0
    reached = rows["returns"]["ppo probe"]
    assert 0 < reached["reached_s"] <= reached["process_s"] and reached["reached_at_steps"] <= 256
    assert {"device", "machine", "versions", "commit", "command"} <= set(document)
    text = (folder / "README.md").read_text()
    assert "its figures have no meaning" in text and "| ppo probe |" in text


def test_predictions_stand_beside_what_was_measured(measured):
    _, _, document = measured
    rounds = {"env_steps": 128, "updates": 64, "batch_size": 512}
    row = {
        "chip": "H100 SXM",
        "floors_us": [0.0, 1.0, 2.0, 4.0],
        "tick_us": [1.0, 5.0, 10e3, 18e3, 36e3],
    }
    row |= {"rounds": rounds, "programs": [{"memory_bytes": 2_000_000}]}
    line = next(
        x
        for x in page(document, {"ppo probe": row}).splitlines()
        if "predicted for an H100 SXM" in x
    )
    assert line.split(" | ")[1:4] == ["10 to 36", "3.56k to 12.8k", "1.78k to 6.4k"]


def test_states_that_are_apart_are_told_from_rounding():
    first, last = np.zeros(100), np.ones(100)
    names = {
        "first/private.learn.x": first,
        "private.learn.x": last,
        "first/private.sample.n": np.zeros(1, int),
    }
    one = {"learned": np.array(["private.learn."]), "private.sample.n": np.ones(1, int), **names}
    rounded = difference(one, {**one, "private.learn.x": last * (1 + 1e-6)})
    assert rounded["share_of_change"] == pytest.approx(1e-6)
    assert rounded["largest_difference"] == pytest.approx(1e-6)
    other = difference(
        one, {**one, "private.learn.x": last * 1.1, "private.sample.n": np.zeros(1, int)}
    )
    assert other["share_of_change"] == pytest.approx(0.1)
    assert other["largest_difference"] is None


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["--short", "parts=law,speed"], "parts=law,speed: write some of law,sampling"),
        (["--shorter"], "--shorter is unknown: write --short, out=FOLDER or parts="),
        (["parts=law"], "JAX sees no accelerator here: write make gpu EXTRA=cuda13"),
    ],
)
def test_wrong_words_end_in_one_line(words, instead, monkeypatch, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(SystemExit, match="2"):
        gpu.main(words)
    line = capsys.readouterr().err
    assert instead in line and line.count("\n") == 1
