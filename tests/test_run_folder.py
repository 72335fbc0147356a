"""Resolution of run folders."""

from pathlib import Path

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
