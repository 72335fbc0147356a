"""Run folders in every condition, and a real dashboard that shows them."""

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jaxrl_fast.training.records import RunStatus

ROOT = Path(__file__).parent.parent
LIMIT_S = 300.0
"""Far longer than any answer takes on a busy machine; it catches only hangs."""
HOSTILE = "<img src=x onerror=document.title='ran'>"
SECRET = "nobody may read this"
EVALS = """seed,env_steps,wall_s,return,length
0,100,1.5,10.0,5
0,100,1.5,20.0,5
1,100,1.5,30.0,5
1,100,1.5,50.0,5
0,200,3.0,100.0,5
1,200,3.0,110.0,5
"""
SUCCESSES = "".join(
    f"{row},{told}\n" for row, told in zip(EVALS.split(), ("success", *"100011"), strict=True)
)


class Server(NamedTuple):
    """Start a dashboard; return it with the folder of runs that it shows."""

    port: int
    runs: Path
    process: subprocess.Popen[str]


@contextmanager
def serving(runs: Path) -> Iterator[Server]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "jaxrl_fast.dashboard", f"runs={runs}", "port=0"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
            yield Server(int(port), runs, process)
        finally:
            process.kill()


def a_run(folder: Path, *, evals: str = EVALS, **facts: Any) -> Path:
    """Write a run folder. By default the run is still running, in this process."""
    folder.mkdir(parents=True)
    status = RunStatus(folder, env="cartpole", algo="ppo", total_steps=400, num_seeds=2)
    row = dict(env_steps=200, wall_s=14.0, sampling_hz=100.0, update_hz=5.0, update_frame_hz=640.0)
    status.set(
        **{
            "state": "training",
            "compile_s": 10.0,
            **row,
            "eval_steps": 200,
            "eval_return": 105.0,
            **facts,
        }
    )
    (folder / "config.yaml").write_text("total_steps: 400\n")
    (folder / "evals.csv").write_text(evals)
    return folder


def make_runs(runs: Path) -> None:
    a_run(runs / "cartpole/ppo/a", state="done", env_steps=400, evals=SUCCESSES, eval_success=1.0)
    a_run(runs / "cartpole/ppo/b", best_return=120.0)
    a_run(runs / "dead", pid=2**22 + 1)
    a_run(runs / HOSTILE, error=HOSTILE, lines=[HOSTILE])
    a_run(runs / "half %2f written" / "run", evals=EVALS + "0,300,4.5,1")
    (runs / "cartpole/ppo/a/report.html").write_text("<title>the report</title>")
    (runs / "cartpole/ppo/a/graph.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    a_run(Path(runs, *"12345"))
    a_run(runs / ".hidden")
    (runs / "latest").symlink_to("cartpole/ppo/a")
    outside = a_run(runs.parent / "outside")
    (outside / "report.html").write_text(SECRET)
    (outside / "config.yaml").write_text(SECRET)
    (runs / "link").symlink_to(outside)
    (runs / "cartpole/ppo/b/policy.html").symlink_to(outside / "report.html")
    (runs / "dead/graph.svg").symlink_to(runs / "cartpole/ppo/a/graph.svg")
    os.mkfifo(runs / "dead/curve.png")
    linked = a_run(runs / "tables/are/links")
    (linked / "evals.csv").unlink()
    (linked / "evals.csv").symlink_to(outside / "evals.csv")


LISTED = {"cartpole/ppo/a", "cartpole/ppo/b", "dead", HOSTILE, "half %2f written/run"}


def ask(
    server: Server, path: str, *, method: str = "GET", hosts: tuple[str, ...] | None = None
) -> tuple[int, bytes]:
    """Return status and body of a request. The path is sent without escaping."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    connection.putrequest(method, path, skip_host=True)
    for host in (f"127.0.0.1:{server.port}",) if hosts is None else hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def ask_json(server: Server, path: str) -> Any:
    status, body = ask(server, path)
    assert status == 200, (status, body)
    return json.loads(body, parse_constant=pytest.fail)


def rows_of(server: Server) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in ask_json(server, "/api/runs")}


def soon(condition: Any, *, pause_s: float = 0.05) -> Any:
    """Wait for a true value and return it."""
    end = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(pause_s)
    return value
