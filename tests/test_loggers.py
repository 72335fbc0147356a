"""Log backends for scalars in addition to the tables: TensorBoard, Weights & Biases (here a
stand-in that stores everything), none.
"""

import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tiny import line

import jaxrl_fast as jf
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.settings.run import flat_settings
from jaxrl_fast.training.records import check_logger, read_status

STEPS = 32 * 4


def learn(folder: Path, **options: Any) -> jf.Result:
    algorithm = jf.ppo(rollout_length=8, num_minibatches=1, policy_hidden=(8,), value_hidden=(8,))
    given = dict(
        total_steps=STEPS, eval_every=64, eval_episodes=3, run_dir=folder, tell=lambda text: None
    )
    return jf.learn(line(discrete=True), algorithm, **{**given, **options})


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Install a stand-in for the package: ``inits`` and ``rows`` that it was given, ``ends``: exit
    codes of its runs; ``broken`` runs refuse rows.
    """
    kept = SimpleNamespace(inits=[], rows=[], ends=[], broken=False, closed=False)
    module: Any = ModuleType("wandb")
    module.Error = type("Error", (Exception,), {})
    module.Settings = lambda **settings: settings

    def log(row: dict[str, float]) -> None:
        if kept.broken:
            raise module.Error("no connection")
        kept.rows.append(row)

    def init(**options: Any) -> SimpleNamespace:
        if kept.closed:
            raise module.Error("No API\nkey.")
        kept.inits.append(options)
        finish = lambda exit_code: kept.ends.append(exit_code)  # noqa: E731
        place = str(options["dir"] / "wandb" / "offline" / "files")
        return SimpleNamespace(
            log=log, define_metric=lambda *a, **b: None, finish=finish, dir=place, offline=True
        )

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return kept


def test_weights_and_biases_gets_the_rows_and_evaluations(tmp_path: Path, wandb: SimpleNamespace):
    lines: list[str] = []
    result = learn(tmp_path, log="wandb", tell=lines.append, settings={"env": "line", "seed": 7})
    chunks, evals = (
        [row for row in result.history if row["kind"] == kind] for kind in ("train", "eval")
    )
    got = {
        key: [row[key] for row in wandb.rows if key in row]
        for key in ("train/wall_s", "eval/return_mean")
    }
    assert got["train/wall_s"] == [row["wall_s"] for row in chunks]
    assert got["eval/return_mean"] == pytest.approx([row["eval_return_mean"] for row in evals])
    assert [row["env_steps"] for row in wandb.rows if "eval/return_mean" in row] == [64, 128]
    (init,) = wandb.inits
    assert (init["project"], init["name"], init["config"]) == (
        "jaxrl_fast",
        tmp_path.name,
        {"env": "line", "seed": 7},
    )
    assert wandb.ends == [0] and not list(tmp_path.glob("events.*"))
    assert f"Weights & Biases: offline; upload with wandb sync {tmp_path}/wandb/offline" in lines


def test_a_resumed_run_goes_on_under_its_id(tmp_path: Path, wandb: SimpleNamespace):
    chunks: list[int] = []
    learn(
        tmp_path,
        log="wandb",
        on_metrics=lambda row: chunks.append(1),
        should_stop=lambda: len(chunks) > 0,
    )
    learn(tmp_path, log="wandb", resume=tmp_path)
    learn(tmp_path.parent / "other", log="wandb")
    first, again, other = (init["id"] for init in wandb.inits)
    assert first == again != other and first == read_status(tmp_path)["wandb_id"]


@pytest.mark.parametrize("log", ("wandb", "tensorboard"))
def test_rows_that_are_there_are_not_sent_again(tmp_path: Path, wandb: SimpleNamespace, log: str):
    """The run ends with an error one chunk after its last checkpoint."""

    def fail(state: Any, scores: Any) -> None:
        if len((tmp_path / "metrics.csv").read_text().splitlines()) > 3:
            raise RuntimeError

    plan = jf.Checkpoints(every=64)
    with pytest.raises(RuntimeError):
        learn(tmp_path, log=log, between_chunks=fail, checkpoints=plan, eval_beside=False)
    learn(tmp_path, log="wandb", resume=tmp_path, eval_beside=False, checkpoints=plan)
    keys = ("train/wall_s", "eval/return_mean")
    trained, evaluated = ([row["env_steps"] for row in wandb.rows if key in row] for key in keys)
    assert (trained, evaluated) == (
        ([32, 64, 96, 128], [64, 128]) if log == "wandb" else ([96, 128], [128])
    )


def test_what_fails_at_weights_and_biases_costs_a_line(tmp_path: Path, wandb: SimpleNamespace):
    wandb.broken, lines = True, []
    result = learn(tmp_path, log="wandb", tell=lines.append)
    assert result.summary["env_steps"] == STEPS
    assert [text for text in lines if "no connection" in text]


def test_a_run_that_is_not_let_in_says_what_to_write(tmp_path: Path, wandb: SimpleNamespace):
    wandb.closed = True
    with pytest.raises(
        ValueError, match=r"log=wandb: No API key: set WANDB_MODE=offline, or write log=tensorboard"
    ):
        learn(tmp_path, log="wandb")
    assert read_status(tmp_path)["state"] == "failed"


def test_a_failed_run_is_failed_there_too(tmp_path: Path, wandb: SimpleNamespace):
    def fail(state: Any, scores: Any) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        learn(tmp_path, log="wandb", between_chunks=fail)
    assert wandb.ends == [1]


@pytest.mark.parametrize("found", (None, ModuleType("wandb")))
def test_without_the_package_a_line_says_what_to_do(
    found: ModuleType | None, monkeypatch: pytest.MonkeyPatch
):
    """A folder ``wandb``, which the package makes for its runs, looks like an empty module."""
    monkeypatch.setitem(sys.modules, "wandb", found)
    with pytest.raises(ImportError, match="pip install wandb, or write log=tensorboard"):
        check_logger("wandb")
    check_logger("tensorboard")


def test_tensorboard_is_the_default_and_none_writes_nothing(tmp_path: Path):
    learn(tmp_path / "default")
    learn(tmp_path / "none", log="none")
    assert len(list(tmp_path.glob("default/events.*"))) == 1 and not list(
        tmp_path.glob("none/events.*")
    )


def test_the_key_is_kept_for_a_resumed_run():
    assert compose([]).log == "tensorboard"
    assert flat_settings(compose(["log=wandb"]))["log"] == "wandb"


def test_ctrl_c_cannot_interrupt_the_queue_of_the_event_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Ctrl-C raises in the main thread only; within a put it would leave the queue locked, and
    closing would hang.
    """
    from tensorboardX import SummaryWriter

    threads = set()
    method = SummaryWriter.add_scalar

    def noted(*given: Any, **words: Any) -> Any:
        threads.add(threading.current_thread())
        return method(*given, **words)

    monkeypatch.setattr(SummaryWriter, "add_scalar", noted)
    learn(tmp_path)
    assert threads and threading.main_thread() not in threads
