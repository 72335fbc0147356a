"""Each example, with short settings: it runs, and prints the output that its text promises."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "docs" / "site"))
from notebook import CELLS

FOLDER = Path(__file__).parent.parent / "examples"
SHORT: dict[str, tuple[dict[str, Any], str]] = {
    "train_step": (dict(num_envs=4, ticks=2, rollout_length=16), "128 steps"),
    "own_world": (dict(total_steps=64, num_envs=2, episodes=2), "down at"),
    "own_algorithm": (dict(total_steps=1024, num_envs=2), "greedy return of each seed"),
    "seeds_and_rates": (
        dict(num_seeds=2, num_rates=2, ticks=4, num_envs=2),
        "4 trainings, 2,048 steps",
    ),
    "gymnasium_env": (dict(total_steps=128, num_envs=2), "°C"),
    "export_and_play": (dict(total_steps=8), "return in Gymnasium, by ONNX"),
}
"""By file: arguments that make an example short, and its expected output."""


@pytest.mark.parametrize("name", SHORT)
def test_an_example_runs_and_prints(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    settings, said = SHORT[name]
    example.main(**settings, **({"folder": tmp_path} if name == "export_and_play" else {}))
    assert said in capsys.readouterr().out


PARTS = {"curiosity", "hindsight"}
"""Modules for ``algo.make`` and ``env.make``, which `test_relabeling` trains."""


def test_every_example_is_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SHORT) | PARTS


def test_the_notebook_lies_there_with_the_outputs_of_its_cells():
    """`python docs/site/notebook.py` runs it and writes it."""
    book = json.loads((FOLDER / "tour.ipynb").read_text())
    assert ["".join(cell["source"]) for cell in book["cells"]] == list(CELLS)
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells[1:])
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    assert book["metadata"]["seconds"] < 300
