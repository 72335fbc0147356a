"""A checkpoint of format 2, whose arrays Orbax wrote for version 0.2.0, is read and resumed."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from jaxrl_fast.training.checkpoints import (
    BESIDE,
    CheckpointError,
    read_arrays,
    read_description,
)

RUN = Path(__file__).parent / "old_checkpoints" / "sac"
"""A run of SAC on a probe, and digests of its arrays as version 0.2.0 read them."""
NEWEST = RUN / "checkpoints" / "200"


def digests(path: Path) -> dict[str, str]:
    arrays = read_arrays(read_description(path))
    return {
        name: f"{array.dtype}{list(array.shape)} {sha256(array.tobytes()).hexdigest()}"
        for name, array in arrays.items()
    }


def test_an_old_checkpoint_has_its_numbers():
    assert digests(NEWEST) == json.loads((RUN / "digests.json").read_text())


@pytest.mark.parametrize("name", ["manifest.ocdbt", "_METADATA", "ocdbt.process_0/manifest.ocdbt"])
def test_a_damaged_old_checkpoint_is_refused(tmp_path: Path, name: str):
    shutil.copytree(NEWEST, tmp_path / "200")
    (tmp_path / "200" / "state" / name).unlink()
    with pytest.raises(CheckpointError, match=r"is damaged \(state/.* cannot be read: No such"):
        read_arrays(read_description(tmp_path / "200"))


def test_an_old_run_goes_on_and_writes_todays_format(commands, tmp_path: Path):
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "run" / "digests.json").unlink()
    ended = commands.run(tmp_path, "train", "resume=run", "total_steps=240", trains=True)
    assert (ended.status, ended.err) == (0, "")
    newest = tmp_path / "run" / "checkpoints" / "240"
    assert json.loads((newest / "description.json").read_text())["format"] == 3
    assert (newest / "replay" / "arrays.bin").is_file()
    names = [{n for n in digests(path) if not n.startswith(BESIDE)} for path in (newest, NEWEST)]
    assert names[0] == names[1]
