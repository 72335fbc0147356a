"""A URL is refused where a path of this machine is expected; it would become a folder ``s3:``."""

from pathlib import Path

import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast.system import local_path

URLS = ["s3://bucket/run", "gs://bucket/run", "https://a.org/x", "hf://datasets/x", "file:///tmp/x"]
REFUSED = "URLs are not supported: write a path of this machine"


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_url_is_no_path(url: str, kind: type):
    with pytest.raises(ValueError, match=REFUSED):
        local_path(kind(url))


@pytest.mark.parametrize(
    "path", ["run", "/tmp/run", "a:b", "a/b:/c", "c:", "minari:pendulum/sac-v0"]
)
def test_other_texts_are_paths(path: str):
    assert local_path(path) == Path(path)


COMMANDS = [
    ("train", "env=cartpole", "run_dir={}"),
    ("train", "resume={}"),
    ("train", "config={}"),
    ("train", "env=pendulum", "algo=bc", "data={}"),
    ("train", "env=pendulum", "teacher={}"),
    ("sweep", "env=cartpole", "sample.algo.learning_rate=log:1e-4:1e-2", "run_dir={}"),
    ("sweep", "resume={}"),
    ("autotune", "env=cartpole", "out={}"),
    ("explain", "env=cartpole", "out={}"),
    ("evaluate", "{}"),
    ("collect", "run", "out={}"),
    ("render", "run", "out={}"),
    ("report", "{}"),
    ("report", "run", "out={}"),
    ("export", "{}"),
    ("dashboard", "runs={}"),
]


def test_no_command_takes_a_url_for_a_path(commands, tmp_path: Path):
    lines = [[word.format(URLS[0]) for word in words] for words in COMMANDS]
    for words, ended in zip(lines, commands.run_all(tmp_path, lines), strict=True):
        assert ended.status == 2, (words, ended)
        assert REFUSED in ended.err and ended.err.count("\n") == 1, (words, ended.err)
    assert not list(tmp_path.iterdir())


def test_no_function_takes_a_url_for_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    env = jf.make_env("probe", id="observation", num_envs=2)
    url, ppo = URLS[0], jf.ppo()
    dataset = jf.Dataset(
        obs={"": np.zeros((3, 1), np.float32)},
        action=np.zeros(2, np.int32),
        reward=np.zeros(2, np.float32),
        terminated=np.array([False, True]),
        truncated=np.array([False, False]),
        lengths=np.array([2]),
    )
    rates = {"learning_rate": "log:1e-4:1e-2"}
    calls = [
        lambda: jf.learn(env, ppo, total_steps=64, run_dir=url),
        lambda: jf.learn(env, ppo, total_steps=64, resume=url),
        lambda: jf.learn(env, jf.bc(), total_steps=64, data=url),
        lambda: jf.train_population(env, ppo, rates=rates, total_steps=64, run_dir=url),
        lambda: jf.train_population(env, ppo, rates=rates, total_steps=64, resume=url),
        lambda: jf.load_policy(url),
        lambda: jf.load_dataset(url),
        lambda: jf.save_dataset(dataset, url),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=REFUSED):
            call()
    assert not list(tmp_path.iterdir())
