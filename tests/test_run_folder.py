"""Resolution of run folders."""

from pathlib import Path

import pytest

from jaxrl_fast.commands.cli import without_links
from jaxrl_fast.training.run_folder import link_latest


def test_latest_is_the_newest_run_and_a_folder_of_that_name_is_left_alone(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        link_latest(tmp_path / name, tmp_path)
        assert (tmp_path / "latest").resolve() == tmp_path / name
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "summary.json").write_text("{}")
    link_latest(tmp_path / "a", tmp_path)
    assert (tmp_path / "latest" / "summary.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "latest"]


def test_the_link_names_a_run_elsewhere_and_commands_print_its_real_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "results" / "mine"
    run.mkdir(parents=True)
    link_latest(Path("results/mine"), Path("runs"))
    assert (tmp_path / "runs" / "latest").resolve() == run
    assert without_links(Path("runs/latest")) == Path("results/mine")
    assert without_links(Path("runs/latest/policy")) == Path("results/mine/policy")
    assert without_links(run) == run
    assert without_links(Path("results/mine")) == Path("results/mine")
    link_latest(Path("runs/latest"), Path("runs"))  # run_dir=runs/latest
    assert (tmp_path / "runs" / "latest").resolve() == run
