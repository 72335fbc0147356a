"""Suites, algorithms and commands of another distribution, which is the one of
``docs/tutorials/suite.md``, installed by pip.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

import pytest
from many_commands import Commands

from jaxrl_fast import envs, plugins
from jaxrl_fast.algorithms import registry
from jaxrl_fast.commands import env_cache
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.plugins import SUITES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorials" / "suite.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.S)


@pytest.fixture(scope="session")
def installed(tmp_path_factory) -> Path:
    """Install the package of the page, and return the folder to put on the path."""
    folder = tmp_path_factory.mktemp("buoys")
    for language, text in BLOCK.findall(PAGE.read_text()):
        named = re.match(r"# (\S+\.(?:py|toml))\n", text)
        if language in ("python", "toml") and named is not None:
            file = folder / "source" / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    (folder / "source" / "buoys" / "__init__.py").touch()
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(folder / "site")]
    pip = [sys.executable, "-m", "pip", "install", *words, str(folder / "source")]
    subprocess.run(pip, check=True, cwd=folder, capture_output=True)
    return folder / "site"


def run(commands: Commands, folder: Path, site: Path, *words: str, trains: bool = False):
    return commands.run(folder, *words, trains=trains, PYTHONPATH=str(site))


TRAIN = ["env=buoys", "env.id=windy", "+env.gusts=2", "algo=huber_ppo", "algo.delta=0.5"]


def test_a_run_with_its_suite_and_algorithm_trains_resumes_and_acts(
    commands, installed, tmp_path: Path
):
    words = ["total_steps=2048", "algo.rollout_length=32", "run_dir=run", "log=none"]
    ended = run(commands, tmp_path, installed, "train", *TRAIN, *words, trains=True)
    assert ended.status == 0, ended.err
    assert "name: huber_ppo" in (tmp_path / "run" / "config.yaml").read_text()
    more = ["resume=run", "total_steps=4096"]
    ended = run(commands, tmp_path, installed, "train", *more, trains=True)
    assert ended.status == 0, ended.err
    for command in (["evaluate", "run", "episodes=2"], ["export", "run", "formats=jax"]):
        ended = run(commands, tmp_path, installed, *command, trains=True)
        assert ended.status == 0, ended.err
    made_by = json.loads((tmp_path / "run" / "policy" / "policy.json").read_text())
    assert "huber_ppo" in json.dumps(made_by)


def test_its_code_in_python_runs(commands, installed, tmp_path: Path):
    (code,) = (text for language, text in BLOCK.findall(PAGE.read_text()) if language == "py")
    lines = code.replace("50_000", "1024").splitlines()
    ended = run(commands, tmp_path, installed, "python", *lines, trains=True)
    assert ended.status == 0, ended.err


def test_help_and_lists_name_what_it_registers(commands, installed, tmp_path: Path):
    shown = run(commands, tmp_path, installed, "train", *TRAIN[:2], "algo=huber_ppo", "--help").out
    for text in (
        "algo.delta=1.0",
        "Error from which the loss is linear",
        "+env.gusts=1.0",
        "Strength of the wind",
        "num_envs=8",
        "total_steps=50000",
    ):
        assert text in shown, shown
    listed = run(commands, tmp_path, installed, "train", "--help").out
    assert "huber_ppo" in listed and "buoys" in listed


REFUSED = [
    ("env=buoys", "env=buoys needs env.id: write for example env=buoys env.id=windy"),
    ("env=buoys env.id=stormy", "buoys has no such environment; write one of calm, windy"),
    (
        "env=buoys env.id=calm +env.gust=1",
        "has no option 'gust': write one of episode_length, gusts",
    ),
    ("env=buoys env.id=calm +env.gusts=-1", "env.gusts=-1: write a number of at least 0"),
    ("env=buoys env.id=calm algo=huber_ppo algo.delta=big", "algo.delta=big: write a number"),
    ("env=boys env.id=calm", "buoys"),
    ("env=cartpole algo=hubert_ppo", "huber_ppo"),
    ("env=cartpole algo.delta=1", "it belongs to algo=huber_ppo"),
]


@pytest.mark.parametrize(("words", "expected"), REFUSED, ids=[words for words, _ in REFUSED])
def test_wrong_words_are_answered_in_one_line(
    words: str, expected: str, commands, installed, tmp_path: Path
):
    ended = run(commands, tmp_path, installed, "train", *words.split())
    assert ended.status == 2 and ended.err.count("\n") == 1 and expected in ended.err, ended.err


def test_a_command_of_another_package_runs(installed, tmp_path: Path):
    def ended(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "jaxrl_fast", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": f"{installed}:{ROOT}", "PATH": ""},
        )
        return done.returncode, done.stdout + done.stderr

    assert ended("winds") == (0, "calm windy\n")
    assert ended("winds", "strong") == (0, "strong\n")
    assert "winds" in ended()[1]
    status, said = ended("train")
    assert status == 2 and "write python -m jaxrl_fast.train" in said


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("no_such_package:x", "cannot be loaded: ModuleNotFoundError: No module named 'no_such"),
        ("json:loads", "broken is no jaxrl_fast.plugins.Suite"),
    ],
)
def test_what_cannot_be_loaded_is_named(value: str, expected: str, monkeypatch):
    point = EntryPoint("broken", value, "jaxrl_fast.suites")
    monkeypatch.setattr(plugins, "_entry_points", lambda group: {"broken": point})
    with pytest.raises(ValueError, match=expected):
        envs.make("broken", id="x")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("json:loads", "register a jaxrl_fast.DeclaredAlgorithm"),
        ("jaxrl_fast.algorithms.ppo:Ppo", "its class has the name 'ppo'"),
    ],
)
def test_what_is_no_algorithm_of_that_name_is_refused(value: str, expected: str, monkeypatch):
    point = EntryPoint("broken", value, "jaxrl_fast.algorithms")
    monkeypatch.setattr(plugins, "_entry_points", lambda group: {"broken": point})
    with pytest.raises(ValueError, match=expected):
        registry.make_named("broken")


def test_a_name_of_ours_is_not_replaced(monkeypatch):
    point = EntryPoint("brax", "json:loads", "jaxrl_fast.suites")
    monkeypatch.setattr(plugins, "_entry_points", lambda group: {"brax": point, "ppo": point})
    assert plugins.suite_of("brax") is SUITES["brax"]
    assert registry.declared_named("ppo") is registry.ALGORITHMS["ppo"]


@pytest.mark.parametrize("name", SUITES)
def test_the_module_of_every_record_exists(name: str):
    assert find_spec(SUITES[name].module) is not None


def test_a_run_with_names_of_ours_asks_no_other_package(monkeypatch):
    def asked(group: plugins.Group) -> dict:
        raise AssertionError(f"entry points of {group} were read")

    monkeypatch.setattr(plugins, "_entry_points", asked)
    for words in (["env=cartpole"], ["env=brax", "env.id=ant", "algo=sac", "placement=fused"]):
        run = compose(words)
        suite, _ = envs.resolve(run.env, dict(run.env_options))
        assert env_cache.identity_of(suite, run.algo) is not None


def test_a_package_that_cannot_be_loaded_changes_no_message_about_others(monkeypatch):
    point = EntryPoint("broken", "no_such_package:x", "jaxrl_fast.algorithms")
    monkeypatch.setattr(plugins, "_entry_points", lambda group: {"broken": point})
    with pytest.raises(ValueError, match="it belongs to algo=dqn"):
        compose(["env=cartpole", "algo=ppo", "algo.epsilon_spread=0.1"])
    with pytest.raises(ValueError, match=r"env\.file=.* has no effect .*: write it with env=mjcf"):
        compose(["env=cartpole", "env.file=a.xml"])


def test_the_next_start_reads_its_programs_and_a_change_of_its_code_makes_others(
    installed, tmp_path: Path
):
    site = Path(shutil.copytree(installed, tmp_path / "site"))
    words = [*TRAIN, "total_steps=1024", "algo.rollout_length=32", "log=none", "eval.every=0"]
    cache = tmp_path / "cache"

    def start(name: str) -> set[str]:
        variables = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "JAXRL_FAST_CACHE": str(cache)}
        subprocess.run(
            [sys.executable, "-m", "jaxrl_fast.train", *words, f"run_dir={name}"],
            check=True,
            cwd=tmp_path,
            env={**os.environ, **variables},
        )
        return {path.name for path in (cache / "kept").glob("program-*")}

    first = start("first")
    assert first and start("second") == first
    policies = [
        (tmp_path / name / "policy" / "params.msgpack").read_bytes() for name in ("first", "second")
    ]
    assert policies[0] == policies[1]
    with open(site / "buoys" / "algorithm.py", "a") as file:
        file.write("# changed\n")
    assert start("third") > first
