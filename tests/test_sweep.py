"""The command `sweep`: one line for a wrong word, a killed sweep that continues to the bit, groups,
hosts, pages.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from many_commands import Commands

import jaxrl_fast as jf
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.population.sweep_words import HELP, KEYS, read_sweep, run_of
from jaxrl_fast.sweep import main
from jaxrl_fast.training.run_folder import read_run
from jaxrl_fast.views.report_page import joined_members, page_of_joined

ROOT = Path(__file__).parent.parent
SMALL = [
    "env=cartpole",
    "algo=ppo",
    "tuned=false",
    "num_envs=4",
    "algo.rollout_length=16",
    "algo.policy_hidden=[8]",
]
SMALL += ["algo.value_hidden=[8]", "total_steps=1280", "finalists=2", "final_episodes=4"]
RATE = "sample.algo.learning_rate=log:1e-4:1e-1"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], "nothing varies"),
        (["sample.algo.speed=log:1:2"], "no such setting of the algorithm"),
        (["sample.algo.discount=uniform:0.99:0.9"], "write uniform:0.9:0.99"),
        (["sample.algo.discount=uniform:0.9:1.5"], "at most 1"),
        (["sample.algo.num_epochs=log:1:4"], "each of its values is a group"),
        (["sample.algo.max_kl=choice:0,0.1"], "0 switches it off"),
        ([RATE, "population.size=8", "population.every=1e9"], "not below total_steps"),
        ([RATE, "population.size=8", "sample.algo.num_epochs=choice:1,2"], "need equal sizes"),
        ([RATE, "population.quantile=0.9"], "at most 0.5"),
        ([RATE, "num_seeds=3"], "seeds_per_trial=3"),
        ([RATE, "trials=0"], "at least 1"),
        ([RATE, "sampler=best"], "random, tpe, gp"),
        (["sample.algo.discount=grid:0.9,0.95,0.99", "trials=2"], "the grid has 3 points"),
        ([RATE, "resume=nowhere"], "no such folder"),
        ([RATE, "resume="], "no such folder"),
        ([RATE, "resume=."], "not the folder of a sweep"),
        ([RATE, "speed=3"], "unknown key 'speed'"),
        ([RATE, "population.quantile=0.3"], "population.size=16"),
        ([RATE, "jobs=3"], "launcher=slurm"),
        ([RATE, "launcher=slurm", "sample.algo.discount=grid:0.9,0.95"], "the whole grid"),
        (["sample.algo.discount=grid:0.9,0.95", "trials=3"], "the grid has 2 points"),
        ([RATE, "population.siz=4"], "population.size"),
        ([RATE, "sampel.algo.discount=uniform:0.9:1"], "did you mean sample"),
        (["sample.algo.name=choice:ppo,dqn"], "sample.algo=choice"),
        ([RATE, "launcher=slurm", "run_dir=x"], "leave it out"),
    ],
)
def test_a_wrong_word_ends_in_one_line_and_status_2(
    words, expected, here: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([*SMALL, *words]) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1 and not (here / "runs").exists()


def test_a_pool_that_cannot_serve_a_population_or_rungs_is_refused(here: Path, commands: Commands):
    host = [
        "env=gymnasium",
        "env.id=CartPole-v1",
        "algo=ppo",
        "num_envs=4",
        "pool.workers=0",
        "total_steps=1280",
        RATE,
    ]
    ended = [
        commands.run(here, "sweep", *host, word) for word in ("population.size=999", "halving=2")
    ]
    assert [one.status for one in ended] == [2, 2]
    assert "write population.size=256" in ended[0].err and "leave halving out" in ended[1].err


def test_help_names_every_key():
    assert all(name in HELP for name in KEYS)


def test_a_group_has_its_sizes_and_rates_that_are_switched_on():
    sweep = read_sweep(
        [
            *SMALL,
            RATE,
            "sample.algo.policy_hidden=choice:[8],[16,16]",
            "sample.algo.max_kl=log:0.01:0.1",
        ]
    )
    run = run_of(sweep, {"algo.policy_hidden": (16, 16)})
    assert run.algo_options["policy_hidden"] == (16, 16) and run.algo_options["max_kl"] > 0


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "jaxrl_fast.sweep", *SMALL, *words, f"run_dir={folder}"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def test_a_population_that_is_killed_in_an_exchange_continues_to_the_bit(
    here: Path, commands: Commands
):
    words = [
        RATE,
        "sample.algo.discount=uniform:0.9:0.99",
        "population.size=4",
        "population.every=64",
        "seed=3",
    ]
    subprocess.run(
        command(here / "whole", *words),
        env=environment(),
        check=True,
        capture_output=True,
        timeout=900,
    )
    killed = subprocess.Popen(
        command(here / "killed", *words), env=environment(), stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 900
    while not list((here / "killed").glob("population/[3-9]")):
        assert time.monotonic() < until
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (here / "killed" / "best").exists()
    assert commands.run(here, "sweep", f"resume={here / 'killed'}", trains=True).status == 0
    for name in ("lineage.csv", "best/policy/params.msgpack"):
        assert (here / "killed" / name).read_bytes() == (here / "whole" / name).read_bytes(), name
    ours, theirs = (without_seconds(here / name / "trials.csv") for name in ("killed", "whole"))
    assert ours == theirs


def without_seconds(path: Path) -> list[list[str]]:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    at = rows[0].index("seconds")
    return [row[:at] + row[at + 1 :] for row in rows]


def test_a_search_by_halving_over_sizes_leaves_its_files_and_the_best_can_be_repeated(
    here: Path, commands: Commands
):
    words = [
        RATE,
        "sample.algo.policy_hidden=choice:[8],[4]",
        "trials=8",
        "halving=2",
        "at_once=2",
        "write_tuned=true",
    ]
    assert commands.run(here, "sweep", *SMALL, *words, "run_dir=found", trains=True).status == 0
    found = here / "found"
    names = {path.name for path in found.iterdir()}
    assert {
        "trials.csv",
        "rates.png",
        "parallel.png",
        "report.html",
        "best",
        "cartpole_ppo.yaml",
    } <= names
    stored = json.loads((found / "members.json").read_text())
    assert {str(one["point"]["algo.policy_hidden"]) for one in stored["members"]} == {"[8]", "[4]"}
    summary, status = (
        json.loads((found / file).read_text()) for file in ("summary.json", "run.json")
    )
    assert status["wall_s"] == pytest.approx(summary["wall_s"])
    (again,) = [line for what, line in stored["commands"] if what == "repeat"]
    assert "policy_hidden=choice:[8],[4]" in again and "run_dir" not in again
    best = compose([f"config={found / 'best' / 'config.yaml'}"])
    point = summary["best_settings"]
    assert best.algo_options["learning_rate"] == pytest.approx(point["algo.learning_rate"])
    assert (
        compose([f"config={found / 'cartpole_ppo.yaml'}", "env=cartpole", "algo=ppo"]).num_envs == 4
    )
    assert jf.load_policy(found / "best").spec.name == "CartPole-v1"
    assert "members" in (found / "report.html").read_text()
    views = [read_run(found), read_run(found)]
    joined = joined_members(views)
    assert (
        joined is not None
        and len(joined["members"]) == 16
        and joined["members"][0]["score"] >= joined["members"][1]["score"]
    )
    assert "members" in page_of_joined(views, joined)


@pytest.mark.parametrize(
    "word, kept", [("checkpoint.keep=0", []), ("checkpoint.every=512", ["2", "4"])]
)
def test_checkpoints_are_as_often_as_asked(
    word: str, kept: list[str], here: Path, commands: Commands
):
    words = [RATE, "population.size=2", "population.every=256", word, "run_dir=run"]
    assert commands.run(here, "sweep", *SMALL, *words, trains=True).status == 0
    assert sorted(path.name for path in (here / "run").glob("population/*")) == kept


def test_groups_with_other_ticks_train_as_many_steps_and_a_group_that_cannot_run_is_refused(
    here: Path, commands: Commands
):
    words = [
        *SMALL,
        RATE,
        "sample.num_envs=choice:4,8",
        "sample.algo.rollout_length=choice:16,32",
        "trials=4",
        "at_once=2",
    ]
    assert commands.run(here, "sweep", *words, "run_dir=groups", trains=True).status == 0
    members = json.loads((here / "groups" / "members.json").read_text())["members"]
    assert {one["env_steps"] for one in members} == {1280}
    best = compose([f"config={here / 'groups' / 'best' / 'config.yaml'}"])
    assert best.total_steps == 1280
    ended = commands.run(
        here, "sweep", *SMALL, RATE, "sample.algo.num_minibatches=choice:4,7", "run_dir=none"
    )
    assert ended.status == 2 and "does not divide" in ended.err and not (here / "none").exists()


def test_a_search_on_the_host_takes_turns(here: Path, commands: Commands):
    words = [
        "env=gymnasium",
        "env.id=CartPole-v1",
        "algo=ppo",
        "num_envs=2",
        "pool.workers=0",
        "total_steps=64",
        RATE,
    ]
    words += [
        "algo.rollout_length=16",
        "trials=4",
        "at_once=2",
        "finalists=1",
        "final_episodes=2",
        "run_dir=host",
    ]
    assert commands.run(here, "sweep", *words, trains=True).status == 0
    assert len((here / "host" / "trials.csv").read_text().splitlines()) == 1 + 4 * 2


def test_a_script_of_jobs_names_each_seed_and_folder(here: Path, commands: Commands):
    words = [*SMALL, RATE, "launcher=slurm", "jobs=3", "seed=7"]
    assert commands.run(here, "sweep", *words).status == 0
    script = (here / "sweep.sh").read_text()
    assert (
        "--array=0-2" in script
        and "seed=$((7 + 1000 * JOB))" in script
        and "launcher" not in script
    )
    (here / "sweep.sh").write_text("something else")
    assert "no sweep wrote it" in commands.run(here, "sweep", *words).err
    wrong = commands.run(here, "sweep", *words, "sample.algo.num_minibatches=choice:4,7")
    assert wrong.status == 2 and "does not divide" in wrong.err


def test_a_sweep_without_a_checkpoint_begins_anew_and_a_complete_one_stays(
    here: Path, commands: Commands
):
    words = [*SMALL, RATE, "trials=2", "run_dir=one"]
    assert commands.run(here, "sweep", *words, "checkpoint.keep=0").status == 0
    (here / "one" / "summary.json").unlink()  # as if it had been killed before its first checkpoint
    again = commands.run(here, "sweep", "resume=one")
    assert again.status == 0 and "begins anew" in again.out
    summary = (here / "one" / "summary.json").read_bytes()
    complete = commands.run(here, "sweep", "resume=one")
    assert complete.status == 0 and "is complete" in complete.out
    assert (here / "one" / "summary.json").read_bytes() == summary
