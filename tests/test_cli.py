"""The command line for a user: help, errors of one line, sweeps, exit codes."""

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from jaxrl_fast import autotune, check, collect, dashboard, envs, evaluate, explain, render
from jaxrl_fast.__main__ import COMMANDS
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.commands import cli
from jaxrl_fast.commands.cli import train_help
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.population import sweep_words
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.settings.run import flat_settings
from jaxrl_fast.settings.schema import ConfigError, run_keys, written
from jaxrl_fast.settings.signatures import algo_keys

ROOT = Path(__file__).parent.parent
JOB = [
    "env=probe",
    "env.id=value",
    "algo=ppo",
    "num_envs=4",
    "total_steps=64",
    "eval.episodes=4",
    "algo.rollout_length=8",
    "algo.policy_hidden=[4]",
    "algo.value_hidden=[4]",
]


def python_m(module: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900)


def one_error_line(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("jaxrl_fast: error:")]
    assert "Traceback" not in text
    return line


def test_help_fits_a_screen_and_names_everything(capsys: pytest.CaptureFixture[str]):
    assert cli.main("train", lambda words: 1, ["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 50
    assert max(len(line) for line in lines) <= 80
    words = " ".join(lines).split()
    assert {*envs.SHORT_NAMES, *ALGORITHMS, *PLACEMENTS, *run_keys()} <= set(words)
    examples = [line for line in lines if line.startswith("  train")]
    assert len(examples) == 4


OWN_ENV = """
def make(size: int = 3, *, speed, kind: "Unknown" = None):
    \"\"\"Make it.

    Args:
        size: Number of cells.
        speed: Cells per step.
    \"\"\"
    raise RuntimeError("called")
"""


def entries(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the entries of ``--help`` with other words, by key, each in one line."""
    assert cli.main("train", lambda words: 1, [*words.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert not any("None" in line or "`" in line for line in lines)
    found: dict[str, str] = {}
    for line in lines:
        if re.match(r"  \+?[a-z]", line):
            name, _, rest = line.strip().partition("=")
            found[name] = rest
        elif line.startswith("   "):
            found[name] += f" {line.strip()}"
    return found


@pytest.mark.parametrize("algo", ["dqn", "flash_sac"])
def test_help_beside_other_words_lists_the_keys_of_one_algorithm(
    algo: str, capsys: pytest.CaptureFixture[str]
):
    found = entries(f"env=cartpole algo={algo}", capsys)
    general = {name for name in run_keys() if not name.startswith(("env.", "algo.", "pool."))}
    own = {name for name in found if name.startswith("algo.")}
    assert own == set(algo_keys(algo)) and general <= set(found)
    assert not any(name.startswith("pool.") for name in found)
    assert {name for name in found if "env." in name} == {
        "env.episode_length",
        "env.frame_stack",
        "+env.NAME",
    }
    for name in own:
        description = found[name].rpartition("(")[0].split(" ", 1)
        assert len(description) == 2 and description[1].strip(" *"), name
    rate = found["algo.discount"]
    assert rate.startswith("0.99 ") and rate.endswith("(number or schedule, 0 to 1)")
    values, tuned = (
        flat_settings(compose(["env=cartpole", f"algo={algo}"])),
        found["algo.learning_rate"],
    )
    assert tuned.startswith(f"{values['algo.learning_rate']} {'*' if algo == 'dqn' else ' '}")


def test_help_shows_defaults_not_given_values(capsys: pytest.CaptureFixture[str]):
    assert entries("env=cartpole algo=dqn seed=3 algo.discount=0.5", capsys)["seed"].startswith(
        "0 "
    )


def test_help_lists_the_keys_of_a_suite_and_of_a_users_function(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("gymnasium")
    found = entries("env=gymnasium env.id=CartPole-v1", capsys)
    assert {"+env.wrappers", "+env.max_episode_steps", "pool.workers", "algo.clip_range"} <= set(
        found
    )
    (tmp_path / "own_helped.py").write_text(OWN_ENV)
    monkeypatch.syspath_prepend(tmp_path)
    found = entries("env=custom env.make=own_helped.make", capsys)
    assert found["+env.size"].split() == ["3", "Number", "of", "cells", "(whole", "number)"]
    assert found["+env.speed"].split() == ["VALUE", "Cells", "per", "step"]
    assert {"+env.kind", "env.episode_length", "env.frame_stack"} <= set(
        found
    ) and "env.sticky" not in found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("env=cartpol", "env=cartpol is unknown"),
        ("env=cartpole algo.discount=2", "algo.discount=2"),
    ],
)
def test_a_wrong_word_beside_help_is_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main("train", lambda words: 1, [*words.split(), "--help"]) == 2
    out, err = capsys.readouterr()
    assert said in one_error_line(err) and not out


def test_the_help_of_commands_that_take_the_same_words_names_this_list():
    for text in (train_help(), explain.HELP, check.HELP, autotune.HELP):
        assert re.search(r"env=\S+ (algo=\S+ )?--help", text), text


@pytest.mark.parametrize(
    "command", [autotune, check, collect, dashboard, evaluate, render, sweep_words]
)
def test_the_help_of_a_command_has_every_key_with_its_default(command: Any):
    for name, key in command.KEYS.items():
        default = "" if key.default in (None, ()) else f"={written(key.default)}"
        assert key.text and re.search(
            rf"(?m)^  {re.escape(name + default)} +{re.escape(key.text)}", command.HELP
        ), name


def test_every_example_of_the_help_is_a_run():
    for words, _ in cli.EXAMPLES:
        for job in cli.expand([word for word in words.split() if word != "--multirun"]):
            compose(job)


def test_version_names_what_results_depend_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2.3")
    assert cli.main("train", lambda words: 1, ["--version"]) == 0
    assert "jax 1.2.3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("an\nerror"), 2),
        (ValueError("an error"), 2),
        (PermissionError(13, "an error"), 2),
        (ImportError("an error"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_line_and_a_status(
    error: BaseException,
    status: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def run(words: list[str]) -> int:
        raise error

    assert cli.main("train", run, []) == status
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if status == 2 else 0)
    assert ("an error" in said) == (status == 2)


def test_the_traceback_is_shown_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert cli.main("train", lambda words: int(words[0]), ["x"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.splitlines()[-1].startswith("jaxrl_fast: error:")


def test_a_failure_that_is_not_about_the_settings_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        cli.main("train", lambda words: 1 // len(words), [])


def test_a_sweep_is_every_combination_in_order():
    jobs = cli.expand(
        ["env=cartpole", "seed=range(1,3)", "algo=ppo,sac", "algo.policy_hidden=[4],[8]"]
    )
    assert len(jobs) == 8
    assert jobs[0] == ["env=cartpole", "seed=1", "algo=ppo", "algo.policy_hidden=[4]"]
    assert jobs[-1] == ["env=cartpole", "seed=2", "algo=sac", "algo.policy_hidden=[8]"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["seed=1,x"], "seed=x: write a whole number"),
        (["algo=glob(*)"], "write the values of a sweep with commas"),
        (["seed=range(1,1)"], "give no run"),
        (["seed=1,2", "run_dir=here"], "several runs would write to run_dir=here"),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_before_its_first_job(words: list[str], expected: str):
    with pytest.raises(ConfigError, match=expected.replace("(", r"\(").replace("*", r"\*")):
        cli.expand(words)


def test_the_status_of_a_sweep_is_its_worst_and_a_signal_ends_it(monkeypatch: pytest.MonkeyPatch):
    statuses = iter([0, 2, 0, 130, 0])
    monkeypatch.setattr(cli, "_run_job", lambda words: next(statuses))
    assert cli.multirun("train", ["seed=1,2,3"]) == 2
    assert cli.multirun("train", ["seed=1,2"]) == 130
    assert next(statuses) == 0


def test_a_job_passes_on_its_exit_status_and_our_sigterm():
    assert cli._run_job([sys.executable, "-c", "raise SystemExit(7)"]) == 7
    parent = os.getpid()
    ask = f"import os, signal, time; os.kill({parent}, signal.SIGTERM); time.sleep(60)"
    before = signal.getsignal(signal.SIGTERM)
    assert cli._run_job([sys.executable, "-c", ask]) == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("words", "plain"),
    [
        (["--env=cartpole", "-seed=3"], ["env=cartpole", "seed=3"]),
        (["--num-envs=8", "--algo.learning-rate=1e-3"], ["num_envs=8", "algo.learning_rate=1e-3"]),
        (["runs/latest", "--episodes=5"], ["runs/latest", "episodes=5"]),
        (["+env.x=-1", "env=cartpole"], ["+env.x=-1", "env=cartpole"]),
        (["--help", "-m", "--version", "--multirun", "-h"],) * 2,
    ],
)
def test_dashes_before_a_key_are_read_as_in_other_programs(words: list[str], plain: list[str]):
    assert cli.without_dashes(words) == plain


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--env", "cartpole"], "--env: write env=cartpole"),
        (["--total-steps", "100", "seed=1"], "--total-steps: write total_steps=100"),
        (["--debug"], "--debug: write debug=..."),
        (["--debug", "--seed=3"], "--debug: write debug=..."),
    ],
)
def test_a_key_and_a_value_in_two_words_are_answered_in_one_line(words: list[str], line: str):
    with pytest.raises(ConfigError) as error:
        cli.without_dashes(words)
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("words", "missing", "listed"),
    [
        (["env=custom"], "env=custom needs env.make", "env.episode_length"),
        (["env=mjcf"], "env=mjcf needs env.file", "env.backend"),
        (["env=gymnasium"], "env=gymnasium needs env.id", "env.wrappers"),
        (["env=brax"], "env=brax needs env.id", "env.backend"),
        (["env=custom", "env.make=nowhere.make"], "cannot import nowhere", "algo.learning_rate"),
        (["algo=custom", "env=cartpole"], "algo=custom needs algo.make", "total_steps"),
        (["algo=custom", "algo.make=nowhere.make"], "cannot import nowhere", "total_steps"),
    ],
)
def test_help_lists_what_is_known_and_names_what_is_missing(
    words: list[str], missing: str, listed: str
):
    text = cli.train_help(words)
    line = next(line for line in text.splitlines() if line.startswith("missing: "))
    assert missing in line
    assert listed in text and max(map(len, text.splitlines())) <= 80


def test_help_of_a_robots_file_lists_its_options():
    text = cli.train_help(["env=mjcf", "env.file=arm.xml"])
    assert "missing" not in text and "env.*: options of arm.xml = mjcf" in text


def test_the_help_of_every_command_needs_no_extra(tmp_path: Path):
    code = f"""
import sys
from importlib import import_module
for name in ("starlette", "uvicorn", "onnx", "onnxruntime", "rliable", "minari", "wandb"):
    sys.modules[name] = None
for name in {sorted(COMMANDS)}:
    assert import_module(f"jaxrl_fast.{{name}}").main(["--help"]) == 0, name
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_list_of_commands_names_modules_that_exist(tmp_path: Path):
    listed = python_m("jaxrl_fast", cwd=tmp_path)
    assert listed.returncode == 0
    for name in COMMANDS:
        assert find_spec(f"jaxrl_fast.{name}") is not None
        assert any(line.split()[0] == name for line in listed.stdout.splitlines())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["env=halfchetah"], "did you mean halfcheetah?"),
        (["env=cartpole", "algo=sac"], "algo=sac_discrete"),
    ],
)
def test_bad_input_ends_in_one_line_and_status_2(words: list[str], expected: str, tmp_path: Path):
    ended = python_m("jaxrl_fast.train", *words, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert expected in one_error_line(ended.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_trains_each_job_in_a_folder_of_its_own(tmp_path: Path):
    ended = python_m(
        "jaxrl_fast.train", "--multirun", *JOB, "seed=1,2", "eval.beside=false", cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("runs/*/*/*/summary.json"))) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
