"""Reading run folders from another process: during a run, after it, and after it was killed."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tiny import line

import jaxrl_fast as jf
from jaxrl_fast.commands.run_config import FOLLOWS, compose
from jaxrl_fast.training.records import RunStatus, read_status, state_now, write_status
from jaxrl_fast.training.run_folder import GrowingTable, is_run, read_columns, read_run, scores_of

STEPS = 32 * 4


def learn(folder: Path, **options) -> jf.Result:
    algorithm = jf.ppo(rollout_length=8, num_minibatches=1, policy_hidden=(8,), value_hidden=(8,))
    given = dict(
        total_steps=STEPS, eval_every=64, eval_episodes=3, num_seeds=2, tell=lambda line: None
    )
    return jf.learn(line(discrete=True), algorithm, run_dir=folder, **{**given, **options})


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    learn(folder)
    return folder


def test_a_run_says_what_it_does_while_it_goes_on(tmp_path: Path):
    seen = []
    learn(tmp_path, on_metrics=lambda row: seen.append(read_run(tmp_path)), eval_beside=False)
    assert [view.state for view in seen[:2]] == ["training", "training"]
    assert seen[-1].status["env_steps"] > seen[0].status["env_steps"] > 0
    assert len(seen[-1].metrics["env_steps"]) == 4
    assert read_run(tmp_path).state == "done"


def test_scores_are_the_rows_of_the_table(finished: Path):
    view = read_run(finished)
    scores = scores_of(view.evals)
    assert scores.env_steps.tolist() == [64, 128]
    rows = np.loadtxt(finished / "evals.csv", delimiter=",", skiprows=1)
    for step, returns in zip(scores.env_steps, scores.returns, strict=True):
        expected = [rows[(rows[:, 1] == step) & (rows[:, 0] == seed), 3].mean() for seed in (0, 1)]
        np.testing.assert_allclose(returns, expected, rtol=1e-12)
    assert view.status["eval_return"] == pytest.approx(scores.returns[-1].mean())


def test_a_run_that_is_stopped_and_resumed_keeps_its_lines(tmp_path: Path):
    chunks: list[int] = []
    learn(tmp_path, on_metrics=lambda row: chunks.append(1), should_stop=lambda: len(chunks) > 0)
    assert read_run(tmp_path).state == "stopped"
    lines = read_status(tmp_path)["lines"]
    learn(tmp_path, resume=tmp_path)
    view = read_run(tmp_path)
    assert view.state == "done" and view.status["lines"][: len(lines)] == lines
    assert any(text.startswith("resumes from") for text in view.status["lines"][len(lines) :])


def test_a_run_that_fails_says_why(tmp_path: Path):
    def fail(state, scores):
        raise RuntimeError("a callback\nfailed")

    with pytest.raises(RuntimeError):
        learn(tmp_path, between_chunks=fail)
    view = read_run(tmp_path)
    assert view.state == "failed" and view.status["error"] == "a callback failed"


def test_another_run_in_the_folder_begins_with_a_clean_page(tmp_path: Path):
    RunStatus(tmp_path, error="old").set(lines=["old"], chosen="old")
    assert RunStatus(tmp_path).facts["lines"] == [] and "chosen" not in read_status(tmp_path)
    write_status(tmp_path, {"chosen": "by the command"})
    assert RunStatus(tmp_path).facts["chosen"] == "by the command"


def test_a_killed_process_is_dead_and_its_number_proves_nothing(tmp_path: Path):
    script = (
        "import sys, time; from pathlib import Path; from jaxrl_fast.training.records import RunStatus; "
        "RunStatus(Path(sys.argv[1])).set(state='training'); print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert state_now(read_status(tmp_path)) == "training"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert state_now(read_status(tmp_path)) == "dead"
    if read_status(tmp_path)["process_start"] is not None:
        assert state_now({**read_status(tmp_path), "pid": os.getpid()}) == "dead"
    elsewhere = {"state": "training", "host": "another", "pid": 1}
    assert state_now({**elsewhere, "updated_at": time.time()}) == "training"
    assert state_now({**elsewhere, "updated_at": time.time() - 3600}) == "dead"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "env_steps,wall_s\n",
        "env_steps,wall_s\n1,2\n3",
        "\0\0\0",
        "env_steps,wall_s\n1,2\n3,x,4\n",
    ],
)
def test_tables_that_are_half_written_or_damaged(tmp_path: Path, text: str):
    (tmp_path / "metrics.csv").write_text(text)
    table = read_columns(tmp_path / "metrics.csv")
    if "1,2" in text:
        assert {name: column.tolist() for name, column in table.items()} == {
            "env_steps": [1.0],
            "wall_s": [2.0],
        }
    assert read_run(tmp_path).settings == {} and is_run(tmp_path)


@pytest.mark.parametrize(
    "name", ["run.json", "config.yaml", "summary.json", "metrics.csv", "evals.csv"]
)
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\0", b"[1]", b"{" * 2000])
def test_no_damage_stops_the_reader(tmp_path: Path, finished: Path, name: str, content: bytes):
    for file in ("run.json", "config.yaml", "summary.json", "metrics.csv", "evals.csv"):
        if (finished / file).exists():
            (tmp_path / file).write_bytes((finished / file).read_bytes())
    (tmp_path / name).write_bytes(content)
    view = read_run(tmp_path)
    assert view.state in ("done", "unknown")
    scores_of(view.evals)


def test_an_evaluation_that_lacks_a_seed_is_left_out():
    evals = {
        "seed": [0, 1, 0],
        "env_steps": [1, 1, 2],
        "wall_s": [1, 1, 2],
        "return": [3, 5, 9],
        "length": [1, 1, 1],
    }
    scores = scores_of({name: np.array(column, float) for name, column in evals.items()})
    assert scores.env_steps.tolist() == [1] and scores.returns.tolist() == [[3, 5]]


def test_no_number_in_it_is_one_that_json_lacks(tmp_path: Path):
    write_status(tmp_path, {"eval_return": math.inf, "wall_s": math.nan})
    text = (tmp_path / "run.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["eval_return"] is None


def test_where_settings_come_from(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("seed: 3\n")
    run = compose(
        ["env=cartpole", "algo=ppo", f"config={tmp_path / 'mine.yaml'}", "algo.clip_range=0.3"]
    )
    assert run.sources["algo.clip_range"] == "command line"
    assert run.sources["algo.num_epochs"] == "config/tuned/cartpole_ppo.yaml"
    assert run.sources["seed"] == str(tmp_path / "mine.yaml")
    assert "algo.gae_lambda" not in run.sources
    assert (
        compose(["env=cartpole", "algo=ppo", "tuned=false"]).sources["algo.rollout_length"]
        == FOLLOWS
    )


def test_a_table_whose_folder_was_gone_for_a_while_has_the_names_of_its_columns(tmp_path: Path):
    (tmp_path / "run").mkdir()
    table = GrowingTable(tmp_path / "run" / "evals.csv", None)
    (tmp_path / "run").rmdir()
    with pytest.raises(FileNotFoundError):
        table.add([{"seed": 0}])
    (tmp_path / "run").mkdir()
    table.add([{"seed": 1}])
    table.close()
    assert (tmp_path / "run" / "evals.csv").read_text().splitlines() == ["seed", "1"]
