"""Checkpoints on disk: written whole or not at all, every bit checked, old ones deleted in the
right order.
"""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.training import checkpoints as files
from jaxrl_fast.training.checkpoints import (
    Checkpointer,
    Checkpoints,
    find,
    newest_good,
    prune,
    remove_stale,
)

SETTINGS = {"env": "line", "algo.hidden": [8], "algo.learning_rate": 3e-4}
REFILLS = ["experience"]
PROGRESS = {"ticks": 3, "env_steps": 12, "wall_s": 0.5}


def state(value: float = 1.0) -> TrainState:
    """One leaf of every kind that a train state has; each depends on ``value``, 0 or 1."""
    one = int(value)
    private = {
        "sample": {
            "flags": jnp.array([one > 0, False]),
            "none": jnp.zeros((0, 3)),
            "scalar": jnp.float32(value),
            "half": jnp.full(3, value, jnp.bfloat16),
        },
        "experience": {
            "ring": jnp.arange(one, one + 200_000).astype(jnp.uint8),
            "steps": jnp.int32(6 + one),
        },
        "learn": (jnp.full((30, 7), value), jax.random.key(4 + one)),
    }
    rates = {"rate": jnp.float32(1e-3 * value)}
    return TrainState(
        private, {"actor": jnp.full(4, value)}, rates, jnp.int32(2 + one), jax.random.key(8 + one)
    )


def save(folder: Path, steps: int = 12, value: float = 1.0, score: float | None = None) -> Path:
    content = {
        "settings": SETTINGS,
        "progress": PROGRESS,
        "score": score,
        "refills": REFILLS,
        "left_out": False,
    }
    return files.write(folder, steps, files.snapshot(state(value), REFILLS), content)


def same(a: TrainState, b: TrainState) -> bool:
    names = files.snapshot(jax.tree.map(jnp.asarray, a), REFILLS), files.snapshot(b, REFILLS)
    return names[0].keys() == names[1].keys() and all(
        x.dtype == y.dtype and x.tobytes() == y.tobytes()
        for x, y in zip(names[0].values(), names[1].values(), strict=True)
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("saved"))


def test_what_is_read_is_what_was_written(saved):
    description = files.read_description(saved)
    assert (description.settings, description.progress) == (SETTINGS, PROGRESS)
    restored = files.restore(state(0.0), description, files.read_arrays(description))
    assert same(restored, state())
    assert jnp.issubdtype(restored.key.dtype, jax.dtypes.prng_key)
    own_rate = files.restore(state(0.0), description, files.read_arrays(description), ["rate"])
    assert own_rate.hyper == state(0.0).hyper and same(
        own_rate._replace(hyper=state().hyper), state()
    )


def test_the_size_that_is_announced_is_the_size_on_disk(saved):
    announced = files.sizes(state(), REFILLS)
    for part, size in zip(("state", "replay"), announced, strict=True):
        on_disk = sum(f.stat().st_size for f in (saved / part).rglob("*") if f.is_file())
        assert size <= on_disk <= size + 30_000, part


@given(data=st.data())
def test_a_flipped_bit_anywhere_changes_nothing_or_is_found(saved, tmp_path_factory, data):
    copy = tmp_path_factory.mktemp("flipped") / "12"
    shutil.copytree(saved, copy)
    file = data.draw(
        st.sampled_from(sorted(f for f in copy.rglob("*") if f.is_file() and f.stat().st_size))
    )
    at = data.draw(st.integers(0, file.stat().st_size - 1))
    damaged = bytearray(file.read_bytes())
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(damaged)
    try:
        description = files.read_description(copy)
        restored = files.restore(state(0.0), description, files.read_arrays(description))
    except files.CheckpointError as error:
        assert "\n" not in str(error)
        return
    assert same(restored, state())


@pytest.mark.parametrize("part", ["state", "replay"])
def test_a_flipped_bit_in_an_array_is_found(saved, tmp_path, part):
    copy = Path(shutil.copytree(saved, tmp_path / "12"))
    largest = max(
        (f for f in (copy / part).rglob("*") if f.is_file()), key=lambda f: f.stat().st_size
    )
    damaged = bytearray(largest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    largest.write_bytes(damaged)
    # By our digest, before other packages read the file.
    damage = r"12 is damaged \(.* has changed\): there is no other checkpoint of this run"
    with pytest.raises(files.CheckpointError, match=damage):
        files.read_arrays(files.read_description(copy))


def test_a_changed_description_is_found(saved, tmp_path):
    copy = Path(shutil.copytree(saved, tmp_path / "12"))
    stored = json.loads((copy / "description.json").read_text())
    stored["content"]["progress"]["ticks"] += 1
    (copy / "description.json").write_text(json.dumps(stored))
    with pytest.raises(files.CheckpointError, match=r"description.json has changed"):
        files.read_description(copy)


@pytest.mark.parametrize("name", ["description.json", "state"])
def test_a_truncated_file_is_found(saved, tmp_path, name):
    copy = Path(shutil.copytree(saved, tmp_path / "12"))
    inside = [f for f in [copy / name, *(copy / name).rglob("*")] if f.is_file()]
    largest = max(inside, key=lambda f: f.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    with pytest.raises(files.CheckpointError, match="is damaged"):
        files.read_arrays(files.read_description(copy))


@pytest.mark.parametrize(("change", "why"), [(-1, "cannot reshape"), (1, "more bytes")])
def test_a_file_of_another_length_is_refused_even_with_its_digests(saved, tmp_path, change, why):
    copy = Path(shutil.copytree(saved, tmp_path / "12"))
    file = copy / "state" / "arrays.bin"
    content = file.read_bytes()
    file.write_bytes(content + b"0" if change > 0 else content[:change])
    stored = json.loads((copy / "description.json").read_text())
    stored["content"]["files"]["state/arrays.bin"] = files._digest_of_file(file)
    stored["digest"] = files._digest_of(stored["content"])
    (copy / "description.json").write_text(json.dumps(stored))
    with pytest.raises(files.CheckpointError, match=f"state cannot be read: .*{why}"):
        files.read_arrays(files.read_description(copy))


def test_another_version_is_named(saved, tmp_path):
    copy = Path(shutil.copytree(saved, tmp_path / "12"))
    stored = json.loads((copy / "description.json").read_text())
    (copy / "description.json").write_text(json.dumps({**stored, "format": 99}))
    with pytest.raises(
        files.CheckpointError, match="has format 99, this version of jaxrl_fast reads 2 and 3"
    ):
        files.read_description(copy)


def test_a_checkpoint_of_other_arrays_is_refused_by_name(saved):
    description = files.read_description(saved)
    arrays = files.read_arrays(description)
    wider = state()
    wider.private["learn"] = (jnp.ones((30, 8)), wider.private["learn"][1])
    with pytest.raises(
        files.CheckpointError,
        match=r"private.learn.0 is float32\[30, 7\] there and float32\[30, 8\]",
    ):
        files.restore(wider, description, arrays)
    with pytest.raises(
        files.CheckpointError, match=r"the checkpoint has channels\.actor, this run does not"
    ):
        files.restore(state()._replace(channels={}), description, arrays)


def test_an_unfinished_checkpoint_is_never_taken_for_a_good_one(tmp_path, monkeypatch):
    run = tmp_path / "run"
    save(run / "checkpoints", 10)

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", killed)
    # as after SIGKILL: nothing cleans up
    monkeypatch.setattr(files.shutil, "rmtree", lambda *args, **kwargs: None)
    with pytest.raises(KeyboardInterrupt):
        save(run / "checkpoints", 20)
    monkeypatch.undo()
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"10", "20.unfinished"}
    assert find(run) == newest_good(run, print) == run / "checkpoints" / "10"
    remove_stale(run / "checkpoints")
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"10"}


def test_a_run_that_ended_before_its_first_checkpoint_names_another(tmp_path):
    stopped = tmp_path / "2"
    stopped.mkdir()
    with pytest.raises(
        files.CheckpointError, match=r"contains no checkpoint: write the folder of a run"
    ):
        find(stopped)
    (stopped / "config.yaml").write_text("env:\n  name: ant\nalgo:\n  name: ppo\n")
    save(tmp_path / "3" / "checkpoints", 10)
    (tmp_path / "3" / "config.yaml").write_text("env:\n  name: hopper\nalgo:\n  name: ppo\n")
    with pytest.raises(
        files.CheckpointError, match=rf"ended before its first one: repeat it with config={stopped}"
    ):
        find(stopped)
    save(tmp_path / "1" / "checkpoints", 10)
    (tmp_path / "1" / "config.yaml").write_text("env:\n  name: ant\nalgo:\n  name: sac\n")
    (tmp_path / "latest").symlink_to(stopped)
    with pytest.raises(
        files.CheckpointError, match=rf"ended before its first one: resume={tmp_path / '1'} has one"
    ):
        find(tmp_path / "latest")


def test_the_newest_and_the_best_stay_and_only_the_newest_keeps_replay(tmp_path):
    for steps, score in ((1, 3.0), (2, 9.0), (3, None), (4, 1.0), (5, 2.0)):
        save(tmp_path, steps, score=score)
        prune(tmp_path, keep=2)
    assert files.all_steps(tmp_path) == [2, 4, 5]
    assert [s for s in (2, 4, 5) if (tmp_path / str(s) / "replay").exists()] == [5]
    old, new = (files.read_description(tmp_path / steps) for steps in ("4", "5"))
    assert old.replay_lost and not new.replay_lost
    assert set(files.read_arrays(new)) - set(files.read_arrays(old)) == {
        "private.experience.ring",
        "private.experience.steps",
    }
    kept = files.restore(state(0.0), old, files.read_arrays(old))
    assert kept.private["learn"][0][0, 0] == 1.0


def test_a_damaged_checkpoint_is_passed_over_for_the_newest_good_one(tmp_path):
    for steps in (10, 20, 30):
        save(tmp_path / "checkpoints", steps)
    (tmp_path / "checkpoints" / "30" / "description.json").write_text("{}")
    shutil.rmtree(tmp_path / "checkpoints" / "20" / "state")
    told: list[str] = []
    assert newest_good(tmp_path, told.append) == tmp_path / "checkpoints" / "10"
    assert len(told) == 2 and all(line.startswith("skipped: checkpoint") for line in told)


def test_the_writer_copies_what_it_is_given_before_it_returns(tmp_path):
    ours = {"sample": np.zeros(100_000, np.float32)}
    before = state()._replace(private={"sample": jax.device_put(ours["sample"])})
    with Checkpointer(tmp_path, Checkpoints(), SETTINGS, REFILLS) as saver:
        saver.save(12, before, PROGRESS, None)
        jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)(before.private)
    assert not files.read_arrays(files.read_description(tmp_path / "12"))["private.sample"].any()


def test_a_checkpoint_that_cannot_be_written_is_told_and_the_last_good_one_stays(tmp_path):
    told: list[str] = []
    folder = tmp_path / "checkpoints"
    with Checkpointer(folder, Checkpoints(), SETTINGS, REFILLS, told.append) as saver:
        saver.save(10, state(), PROGRESS, None)
        saver.wait()
        (folder / "20.unfinished").write_text("a file where a folder is to be made")
        saver.save(20, state(), PROGRESS, None)
    assert len(told) == 1 and f"the last good checkpoint is {folder / '10'}" in told[0]
    assert files.read_arrays(files.read_description(folder / "10"))
