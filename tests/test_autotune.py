"""The autotune command and its processes: crashes count as results, a signal saves the
measurements, no process is left behind.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from many_commands import Commands
from processes_left import wait_until_gone

from jaxrl_fast import autotune
from jaxrl_fast.commands import tuning_cache
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.settings import machine
from jaxrl_fast.tuning import auto, sweep_report
from jaxrl_fast.tuning.candidates import at_width
from jaxrl_fast.tuning.measuring import Child, Failure, Row, Settings, measure
from jaxrl_fast.tuning.search import patience
from jaxrl_fast.tuning.trial import share_of_others
from jaxrl_fast.tuning.width_sweep import Record

ROOT = Path(__file__).parent.parent
WALK = [
    "env=custom",
    "env.make=tests.tuning_envs.walk",
    "algo=ppo",
    "num_envs=16",
    "algo.rollout_length=32",
    "algo.num_minibatches=1",
    "algo.num_epochs=1",
    "algo.policy_hidden=[4]",
    "algo.value_hidden=[4]",
]
QUICK = ["repeats=2", "repeat_s=0.01"]
LIMIT_S = 600.0
"""A test waits this long only for what never comes."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the programs that all tests of this file compile."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def here(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a working directory from which the environments can be imported, without cached
    results.
    """
    (cache / "autotune.json").unlink(missing_ok=True)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAXRL_FAST_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "jaxrl_fast.autotune", *words]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["knobs=width"], "knobs=width: write one of num_envs, placement"),
        (["knobs=num_env"], "did you mean num_envs?"),
        (["objective=learning"], "objective=learning: write one of training, sampling"),
        (["repeats=0"], "repeats=0: write a number of at least 1"),
        (["memory_cap_gb=lots"], "memory_cap_gb=lots: write a number or null"),
        (["env=halfchetah"], "did you mean halfcheetah?"),
        (["algo.gamma=1"], "unknown key 'algo.gamma'"),
        (["resume=runs/latest"], "autotune does not resume runs: write config="),
        (["out=/proc/nowhere"], "cannot write to out=/proc/nowhere"),
        (["show", "all"], "show all: write python -m jaxrl_fast.autotune show"),
        (["--multirun", "seed=1,2"], "--multirun is for training"),
        (["knobs"], "cannot read 'knobs'"),
        (
            ["overlap=auto"],
            "overlap=auto is for train: write one of none, sampling, actor_critic, all",
        ),
    ],
)
def test_bad_input_ends_in_one_line_and_status_2(
    words, expected, here: Path, capsys: pytest.CaptureFixture[str]
):
    assert autotune.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("jaxrl_fast: error: ") and said.count("\n") == 1
    assert expected in said
    assert [path.name for path in here.iterdir()] == ["tests"]


def test_a_sweep_outlives_its_candidates_and_keeps_draws_and_remembers_what_it_found(
    here: Path, commands: Commands
):
    variables = {"JAXRL_FAST_CACHE": os.environ["JAXRL_FAST_CACHE"]}
    # 16, 64 and 4 are always measured; the measured rates decide which numbers follow.
    words = [
        *WALK,
        "+env.abort_at=4",
        "+env.starve_at=64",
        *QUICK,
        "objective=sampling",
        "knobs=num_envs",
    ]
    done = commands.run(here, "autotune", *words, "max_num_envs=64", trains=True, **variables)
    assert done.status == 0, done.err
    doc = json.loads((here / "sweeps" / "custom_ppo_sampling.json").read_text())
    rows = {row["value"]: row for row in doc["rows"]}
    assert rows[16]["status"] == "measured"
    assert rows[64]["status"] in ("crashed", "out of memory", "killed") and rows[64]["why"]
    assert rows[4]["status"] == "crashed" and "SIGABRT" in rows[4]["why"]
    assert all(row["status"] == "measured" for width, row in rows.items() if width not in (4, 64))
    assert 1e4 < rows[16]["memory_bytes"] < 1e6  # of its arrays, not of the process
    assert {row["repeats"] for row in rows.values() if row["sampling_hz"]} <= {1, 2}
    assert all(
        row["in_turn"] == (row["repeats"] == 2) for row in rows.values() if row["sampling_hz"]
    )
    assert rows[doc["chosen"]["num_envs"]]["status"] == "measured" and not doc["interrupted"]
    assert {"jax", "jaxrl_fast", "python"} <= set(doc["versions"]) and doc["machine"]
    assert (
        doc["command"].endswith("max_num_envs=64")
        and "env.make=tests.tuning_envs.walk" in doc["command"]
    )
    assert doc["bounds"]["sampling_of_environments"]["median"] > 0
    with open(here / "sweeps" / "custom_ppo_sampling.csv", newline="") as file:
        assert [row["value"] for row in csv.DictReader(file)] == [str(value) for value in rows]
    assert (here / "sweeps" / "custom_ppo_sampling.png").stat().st_size > 10_000
    assert "crashed" in done.out and f"num_envs={doc['chosen']['num_envs']}" in done.out
    shown = commands.run(here, "autotune", "show", **variables)
    assert "1 findings" in shown.out and "sampling" in shown.out


def test_a_candidate_over_the_cap_is_skipped_before_it_runs(here: Path):
    row = one(compose([*WALK, "+env.abort_at=1"]), here, memory_cap=1e6)  # it would abort if it ran
    assert row.status == "skipped" and "0.001 GB are allowed" in row.why
    assert row.outcome().larger_fails


def test_settings_that_make_no_run_are_refused_in_their_own_words(here: Path):
    row = one(compose([*WALK, "learners=3"]), here)
    assert row.status == "refused" and "learners=3 cannot share" in row.why


def one(run, folder: Path, memory_cap: float | None = None) -> Row:
    """Measure one candidate in a child of this process."""
    files = folder / "files"
    files.mkdir()
    settings = Settings(files, memory_cap, repeats=1, repeat_s=0.01)
    return measure(at_width(run, run.num_envs), "training", patience([], 1), settings)


def test_a_trial_ends_with_its_parent_wherever_it_is(here: Path):
    child = Child(
        compose([*WALK, "+env.hang_in_make=true", "+env.leave_pid=pid"]), "training", here
    )
    wait_for(here / "pid")
    child.process.stdin.close()  # as the system does for the child of a killed parent
    wait_until_gone(child.process.pid)
    with child:
        assert isinstance(child.ready(), Failure)


def wait_for(path: Path) -> str:
    until = time.monotonic() + LIMIT_S
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < until
        time.sleep(0.05)
    return path.read_text()


def test_ctrl_c_keeps_what_was_measured_prints_the_best_and_leaves_nobody_behind(here: Path):
    words = [*WALK, "+env.leave_pid=pids", *QUICK, "repeats=20", "knobs=num_envs"]
    process = subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert any("best so far" in line for line in process.stdout)
    wait_for(here / "pids")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    assert "best so far: " in out and "Traceback" not in err
    doc = json.loads((here / "sweeps" / "custom_ppo.json").read_text())
    assert doc["interrupted"] and doc["rows"][0]["status"] == "measured"
    assert not tuning_cache.read()
    wait_until_gone(*map(int, (here / "pids").read_text().split()))


def test_num_envs_auto_looks_around_only_where_the_run_is_worth_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(auto, "REPEAT_S", 0.02)
    told: list[str] = []
    short = auto.resolve(
        compose([*WALK, "num_envs=auto", "total_steps=10_000"]), may_measure=True, log=told.append
    )
    assert short == compose([*WALK[:3], *WALK[4:], "total_steps=10_000"])
    assert len(told) == 1 and "the run takes only about 0:0" in told[0]
    told.clear()
    words = [*WALK, "num_envs=auto", "total_steps=1_000_000_000_000"]
    long = auto.resolve(compose(words), may_measure=True, log=told.append)
    assert [line.partition(":")[0] for line in told] == ["num_envs=auto"] * 2
    assert (
        "measures 4, 16, 64 environments" in told[0] and f"{long.num_envs} environments" in told[1]
    )
    assert (
        long.num_envs in (4, 16, 64) and long.num_envs * long.algo_options["rollout_length"] == 512
    )
    (finding,) = tuning_cache.read().values()
    assert finding.quick
    assert auto.resolve(compose(words), may_measure=False, log=told.append) == long


def test_overlap_auto_measures_only_where_the_run_is_worth_it(here: Path):
    if machine.cpu_cores() == 1:
        pytest.skip("nothing could run at the same time")
    told: list[str] = []
    short = compose([*WALK, "overlap=auto", "total_steps=10_000"])
    assert auto.resolve_overlap(short, may_measure=True, log=told.append).overlap == "none"
    assert len(told) == 1 and "the run takes only about 0:0" in told[0]
    told.clear()
    words = [*WALK, "overlap=auto", "total_steps=1_000_000_000_000"]
    long = auto.resolve_overlap(compose(words), may_measure=True, log=told.append)
    assert [line.partition(":")[0] for line in told] == ["overlap=auto"] * 2
    assert (
        "measures none, actor_critic, all, sampling in turn" in told[0]
        and " the steps/s of none" in told[1]
    )
    assert auto.resolve_overlap(compose(words), may_measure=False, log=told.append) == long


def test_a_row_that_others_disturbed_is_named(here: Path):
    run = compose(WALK)
    quiet = Row(
        "num_envs", 16, "none", run, "training", "measured", "", {}, (1.0,), None, 0.05, 1.0
    )
    record = Record()
    record.rows = [quiet]
    assert sweep_report.disturbed(record) == []
    record.rows.append(quiet._replace(value=64, others=0.4))
    assert "up to 40% of the CPU meanwhile (num_envs=64)" in sweep_report.disturbed(record)[0]
    assert share_of_others((10.0, 1.0), (14.0, 3.0), 2.0) == pytest.approx(
        1.0 / machine.cpu_cores()
    )
    assert share_of_others(None, None, 2.0) is None


TRIAL = """
import sys
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.settings.run import to_yaml
from jaxrl_fast.tuning import trial
from jaxrl_fast.tuning.measuring import Request

happened, repeat = [], trial.repeat

def timed(*args):
    happened.append("timed")
    return repeat(*args)

def wait():
    happened.append("asked")
    if happened.count("asked") == 3:
        print(*happened)
        sys.exit()

trial.repeat = timed
with open("run.yaml", "w") as file:
    file.write(to_yaml(compose(["env=cartpole", "algo=ppo", "num_envs=4", "placement=fused", "devices=1"])))
trial.measure(Request("run.yaml", "environments", None, float(sys.argv[1])), lambda w, **_: happened.append(w), wait)
"""


@pytest.mark.parametrize(("repeat_s", "first"), [("0", "timed"), ("0.2", "timed timed")])
def test_nothing_is_timed_before_it_is_asked_for_since_others_may_be_compiling(
    repeat_s, first, here: Path
):
    """Time one chunk to derive how many chunks a repeat needs."""
    out = subprocess.run(
        [sys.executable, "-c", TRIAL, repeat_s], check=True, capture_output=True, text=True
    ).stdout
    assert out == f"ready asked {first} repeat asked timed repeat asked\n"
