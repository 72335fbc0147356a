"""The dashboard: raw requests to a real server."""

import http.client
import json
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dashboard_runs import (
    LIMIT_S,
    LISTED,
    SECRET,
    Server,
    a_run,
    ask,
    ask_json,
    make_runs,
    rows_of,
    serving,
    soon,
)

from jaxrl_fast import dashboard
from jaxrl_fast.training.records import RunStatus, write_status
from jaxrl_fast.views import dashboard_app
from jaxrl_fast.views.dashboard_app import (
    MAX_DEPTH,
    FoundRuns,
    changes,
    greedy_curve,
    row_of,
    success_curve,
    training_curve,
)
from jaxrl_fast.views.report_page import MAX_POINTS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    runs = tmp_path_factory.mktemp("server") / "runs"
    make_runs(runs)
    with serving(runs) as found:
        yield found


# Contents of the pages.


def test_every_run_has_a_row_and_a_link_is_none(server: Server):
    rows = rows_of(server)
    assert set(rows) == LISTED
    states = {name: row["state"] for name, row in rows.items()}
    assert states == dict.fromkeys(LISTED, "training") | {"cartpole/ppo/a": "done", "dead": "dead"}
    row = rows["cartpole/ppo/b"]
    assert (row["env"], row["algo"], row["env_steps"], row["total_steps"]) == (
        "cartpole",
        "ppo",
        200,
        400,
    )
    assert (row["eval_return"], row["best_return"], row["elapsed_s"]) == (105.0, 120.0, 14.0)
    assert (row["sampling_hz"], row["update_hz"], row["update_frame_hz"]) == (100.0, 5.0, 640.0)
    assert row["left_s"] == 200 * (14.0 - 10.0) / 200
    assert rows["cartpole/ppo/a"]["left_s"] is None
    assert rows["dead"]["best_return"] == 105.0, "from evals.csv, where run.json lacks it"


def test_a_curve_is_the_table(server: Server):
    curve = ask_json(server, "/api/curve?run=cartpole/ppo/a")
    assert (curve["steps"], curve["wall_s"]) == ([100, 200], [1.5, 3.0])
    assert (curve["mean"], curve["low"], curve["high"]) == ([27.5, 105], [15, 100], [40, 110])
    half = ask_json(server, "/api/curve?run=half+%252f+written/run")
    assert half["mean"] == curve["mean"]
    assert ask_json(server, "/api/curve?run=dead&of=train")["mean"] == []


def test_a_long_curve_is_thinned_and_gaps_are_left_out():
    steps = np.arange(5000.0)
    returns = np.where(steps % 2, np.nan, steps)
    curve = training_curve({"env_steps": steps, "wall_s": steps / 10, "episode_return": returns})
    assert len(curve["steps"]) == MAX_POINTS and curve["low"] == []
    assert (curve["steps"][0], curve["mean"][0]) == (8, np.mean([0, 2, 4, 6, 8]))
    assert greedy_curve({})["mean"] == training_curve({})["mean"] == success_curve({})["mean"] == []


def test_a_run_opens_its_report_or_a_plain_page(server: Server):
    assert ask(server, "/run/cartpole/ppo/a/") == (200, b"<title>the report</title>")
    assert ask(server, "/run/cartpole%2Fppo/a/graph.svg")[0] == 200
    for path in ("/run/dead/", "/run/dead/live", "/run/cartpole/ppo/a/live"):
        status, plain = ask(server, path)
        assert status == 200 and b"run.js" in plain
    assert ask(server, "/run/half%20%252f%20written/run/")[0] == 200
    assert ask(server, "/run/dead")[0] == 307
    details = ask_json(server, "/api/run?run=cartpole/ppo/a")
    assert details == {"lines": [], "files": ["report.html", "graph.svg"]}
    assert ask_json(server, "/api/run?run=cartpole/ppo/b")["files"] == []


def test_the_best_return_is_kept_beside_the_newest(tmp_path: Path):
    status = RunStatus(tmp_path)
    for steps, value in enumerate((1.0, 3.0, 2.0)):
        status.add({"kind": "eval", "env_steps": steps, "eval_return_mean": value}, {})
    assert (status.facts["eval_return"], status.facts["best_return"]) == (2.0, 3.0)


# Refused requests.

OUTSIDE = (
    "/run/../outside/report.html",
    "/run/%2e%2e/outside/report.html",
    "/run/..%2foutside%2freport.html",
    "/run/%252e%252e/outside/report.html",
    "/run/cartpole/ppo/a/../../../../outside/report.html",
    "/run/cartpole/ppo/a/..%2f..%2f..%2f..%2foutside/report.html",
    "/run/cartpole/ppo/a/..%5c..%5coutside/report.html",
    "/run/cartpole/ppo/../ppo/a/report.html",
    "/run/cartpole/ppo/./a/report.html",
    "/run/cartpole//ppo/a/report.html",
    "/run/cartpole/ppo/a%00/report.html",
    "/run/cartpole/ppo/a/report.html%00",
    "/run/link/report.html",
    "/run/link/",
    "/run/latest/report.html",
    "/run/cartpole/ppo/b/policy.html",
    "/run/dead/graph.svg",
    "/run/dead/curve.png",
    "/run/tables/are/links/",
    "/run/cartpole/ppo/a/config.yaml",
    "/run/cartpole/ppo/a/run.json",
    "/run/cartpole/ppo/",
    "/run/cartpole/ppo/live",
    "/run/../outside/live",
    "/run/latest/live",
    "/run/",
    "/run/1/2/3/4/5/",
    "/run/.hidden/",
    "/assets/../dashboard_app.py",
    "/assets/..%2fdashboard_app.py",
    "/assets/dashboard.html",
    "/api/curve?run=../outside",
    "/api/curve?run=..%2Foutside",
    "/api/curve?run=link",
    "/api/curve?run=tables/are/links",
    "/api/curve?run=",
    "/api/run?run=../outside",
    "/api/run?run=link",
    "/api/run?run=/",
)


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leads_out_of_the_runs(server: Server, path: str):
    status, body = ask(server, path)
    assert status == 404 and SECRET.encode() not in body, body


def test_absolute_paths_are_no_names(server: Server):
    outside = str(server.runs.parent / "outside")
    for path in (
        f"/run/{outside}/report.html",
        f"/run//{outside}/report.html",
        f"/api/curve?run={outside}",
    ):
        assert ask(server, path)[0] == 404


def test_only_this_machine_is_a_host(server: Server):
    port = server.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert ask(server, "/api/runs", hosts=(host,))[0] == 200
    foreign = (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"127.0.0.1.evil.example:{port}",
        "",
    )
    for hosts in (*((host,) for host in foreign), (), (f"127.0.0.1:{port}", "evil.example")):
        for path in ("/", "/api/runs", "/events", "/nowhere"):
            assert ask(server, path, hosts=hosts)[0] == 400, hosts


def test_it_only_reads(server: Server):
    def snapshot() -> list[tuple[str, float]]:
        return sorted((str(path), path.lstat().st_mtime) for path in server.runs.rglob("*"))

    before = snapshot()
    for path in ("/", "/api/runs", "/events", "/run/dead/", "/nowhere"):
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert ask(server, path, method=method)[0] == 405
        assert ask(server, path, method="HEAD") == (404 if path == "/nowhere" else 200, b"")
    assert snapshot() == before


def test_every_answer_says_what_a_browser_may_do(server: Server):
    answers = {}
    for path in (
        "/",
        "/nowhere",
        "/api/runs",
        "/run/cartpole/ppo/a/",
        "/run/cartpole/ppo/a/graph.svg",
    ):
        with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
            connection.request("GET", path)
            answers[path] = connection.getresponse()
        assert answers[path].headers["X-Content-Type-Options"] == "nosniff"
        assert answers[path].headers["Referrer-Policy"] == "no-referrer"
        assert answers[path].headers["Cache-Control"] == "no-store"
    policies = {path: answer.headers["Content-Security-Policy"] for path, answer in answers.items()}
    assert all("default-src 'none'" in policy for policy in policies.values())
    assert {path for path, policy in policies.items() if "unsafe-inline" in policy} == {
        path for path in policies if "/a/" in path
    }
    assert all(("sandbox" in policy) == ("unsafe-inline" in policy) for policy in policies.values())


# Folders in any condition.


def test_rows_of_nonsense_are_rows():
    values = (None, "x", [], {}, True, -1, 0, 10**400, float("nan"), float("inf"), 2**31, "\ud800")
    for value in values:
        row = row_of(
            "a", dict.fromkeys((*row_of("a", {}), "pid", "host", "updated_at", "wall_s"), value)
        )
        json.dumps(row, allow_nan=False)
        assert row["name"] == "a" and row["state"] == "unknown"
    own = {"state": "training", "host": socket.gethostname()}
    assert [row_of("a", own | {"pid": pid})["state"] for pid in ("x", -1, 10**30)] == [
        "unknown"
    ] * 3


def test_damaged_runs_are_listed(tmp_path: Path):
    for name, damage in {
        "half": b'{"state": "trai',
        "bytes": b"\xff\x00\xfe",
        "list": b"[1]",
        "empty": b"",
    }.items():
        folder = a_run(tmp_path / name)
        for file in ("run.json", "config.yaml", "summary.json", "metrics.csv", "evals.csv"):
            (folder / file).write_bytes(damage)
    (a_run(tmp_path / "older", state="done") / "run.json").unlink()
    (tmp_path / "older/summary.json").write_text('{"stopped_by": null, "wall_s": 3}')
    (tmp_path / "older/metrics.csv").write_text("env_steps,wall_s\n200,3.5\n400,7")
    (tmp_path / "older/config.yaml").write_text(
        "env: {name: brax, id: ant}\nalgo: sac\ntotal_steps: 400\n"
    )
    rows = FoundRuns(tmp_path).rows()
    assert set(rows) == {"half", "bytes", "list", "empty", "older"}
    older = {"state": "done", "env": "ant", "algo": "sac", "env_steps": 400, "best_return": 105}
    assert older.items() <= rows["older"].items()


def test_a_folder_may_vanish_at_any_time(server: Server):
    """Create and delete one run during requests; the answers are only rows and 'not found'."""
    folder, stop = server.runs / "comes" / "and_goes", threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            (a_run(folder) / "report.html").write_text("x")
            time.sleep(0.02)
            shutil.rmtree(folder)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    seen: list[tuple[bool, int]] = []

    def ask_all() -> bool:
        for path in (
            "/run/comes/and_goes/",
            "/api/curve?run=comes/and_goes",
            "/api/run?run=comes/and_goes",
            "/api/runs",
        ):
            seen.append((path == "/api/runs", ask(server, path)[0]))
        return len(seen) >= 800 and {(False, 200), (False, 404)} <= set(seen)

    try:
        soon(ask_all, pause_s=0.0)
    finally:
        stop.set()
        thread.join()
    assert set(seen) == {(True, 200), (False, 200), (False, 404)}
    soon(lambda: set(rows_of(server)) == LISTED)


def test_a_root_that_vanishes_or_is_not_there_yet_holds_nothing(tmp_path: Path):
    runs = FoundRuns(tmp_path / "runs")
    assert runs.rows() == {}
    a_run(tmp_path / "runs/a")
    assert soon(runs.rows).keys() == {"a"}


def test_a_thousand_runs_are_listed_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = [f"env{number % 7}/ppo/{number}" for number in range(1000)]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir(parents=True)
        write_status(tmp_path / name, {"state": "done", "env_steps": number, "best_return": 1.0})
    read: list[Path] = []
    facts = dashboard_app.read_facts
    monkeypatch.setattr(
        dashboard_app, "read_facts", lambda folder: read.append(folder) or facts(folder)
    )
    monkeypatch.setattr(dashboard_app, "FRESH_S", 0.0)
    monkeypatch.setattr(dashboard_app, "IDLE_SHARE", 0.0)
    runs = FoundRuns(tmp_path)
    assert {name: row["env_steps"] for name, row in runs.rows().items()} == {
        name: n for n, name in enumerate(names)
    }
    assert len(read) == 1000 and len(names[0].split("/")) < MAX_DEPTH
    write_status(tmp_path / names[5], {"state": "failed", "env_steps": 5, "best_return": 1.0})
    shutil.rmtree(tmp_path / names[6])
    rows = runs.rows()
    assert (
        rows[names[5]]["state"] == "failed"
        and len(rows) == 999
        and read[1000:] == [tmp_path / names[5]]
    )


# Updates of a running run.


def test_a_page_hears_of_what_changes_and_of_nothing_else(server: Server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    connection.request("GET", "/events")
    stream = connection.getresponse()
    assert stream.headers["Content-Type"].startswith("text/event-stream")

    def event() -> tuple[str, dict[str, Any]]:
        kind, data, end = (stream.readline().decode() for _ in range(3))
        assert end == "\n"
        return kind.removeprefix("event: ").strip(), json.loads(data.removeprefix("data: "))

    def change() -> dict[str, Any]:
        while (told := event())[0] == "beat":  # where nothing has changed for a while
            pass
        assert told[0] == "change"
        return told[1]

    kind, first = event()
    assert kind == "list" and {row["name"] for row in first["rows"]} == LISTED
    # at once, with all of its files
    folder = a_run(server.runs / ".new").rename(server.runs / "new")
    news = change()
    assert ([row["name"] for row in news["rows"]], news["gone"]) == (["new"], [])
    facts = json.loads((folder / "run.json").read_text())
    write_status(folder, facts | {"env_steps": 333})
    assert [row["env_steps"] for row in change()["rows"]] == [333]
    gone = folder.rename(server.runs / ".gone")
    assert change() == {"rows": [], "gone": ["new"]}
    shutil.rmtree(gone)
    connection.close()


def test_of_rows_only_the_changed_ones_are_sent():
    one, two = row_of("a", {}), row_of("b", {})
    assert changes({"a": one, "b": two}, {"a": one, "b": two}) == {"rows": [], "gone": []}
    other = {**two, "env_steps": 5}
    assert changes({"a": one, "b": two}, {"b": other}) == {"rows": [other], "gone": ["a"]}


# The command.


def test_ctrl_c_ends_it_quietly_with_a_page_open(tmp_path: Path):
    with serving(tmp_path) as server:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
            connection.request("GET", "/events")
            connection.getresponse().readline()
            server.process.send_signal(signal.SIGINT)
            out, err = server.process.communicate(timeout=LIMIT_S)
        assert (server.process.returncode, out, err) == (130, "", "")


def test_it_listens_on_this_machine_alone():
    with dashboard.listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_what_cannot_be_served_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
):
    run, file = a_run(tmp_path / "run"), tmp_path / "file"
    file.write_text("")
    with dashboard.listen(0) as taken:
        port = taken.getsockname()[1]
        for words, line in {
            (f"port={port}",): f"port={port} is in use: write another, or port=0 for a free one",
            ("port=x",): "port=x: write a whole number",
            ("port=65536",): "port=65536: write a number of at most 65535",
            ("host=0.0.0.0",): "unknown key 'host': the keys of dashboard are runs and port",
            (
                f"runs={run}",
            ): f"runs={run} is a run: write the folder that contains it, runs={tmp_path}",
            (
                f"runs={file}",
            ): f"runs={file} is not a folder: write a folder that contains runs, such as runs=runs",
        }.items():
            assert dashboard.main(words) == 2
            assert capsys.readouterr().err == f"jaxrl_fast: error: {line}\n"
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert dashboard.main([]) == 2
    assert capsys.readouterr().err.endswith(
        "needs two packages: pip install 'jaxrl_fast[dashboard]'\n"
    )
