"""``report.html`` and the figure show the contents of the run's files; a real browser without a
network shows the page.
"""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from browser import Page, chromium_page
from chromium import CHROMIUM
from tiny import line

import jaxrl_fast as jf
from jaxrl_fast import report
from jaxrl_fast.numerics.intervals import mean_interval
from jaxrl_fast.settings.schema import run_keys
from jaxrl_fast.training.records import read_status, write_status
from jaxrl_fast.training.run_folder import read_run
from jaxrl_fast.views import report_page
from jaxrl_fast.views.comparing import groups_of, joined, labels_of
from jaxrl_fast.views.dashboard_app import row_of
from jaxrl_fast.views.listeners import LiveReport
from jaxrl_fast.views.paper_figure import final_scores, lines_of, scale_of
from jaxrl_fast.views.report_page import (
    differing_settings,
    page_of,
    settings_table,
    short_names,
    thinned,
    time_spent,
    write_report,
)

STEPS, SEEDS = 32 * 8, 3
GRAPH = "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='30'><rect width='40' height='30'/></svg>"


def train(folder: Path, **options: Any) -> Path:
    algorithm = jf.ppo(rollout_length=8, num_minibatches=1, policy_hidden=(8,), value_hidden=(8,))
    given = dict(
        total_steps=STEPS, eval_every=64, eval_episodes=3, num_seeds=SEEDS, tell=lambda line: None
    )
    jf.learn(line(discrete=True), algorithm, run_dir=folder, **{**given, **options})
    config = {
        "env": {"name": "line"},
        "algo": {"name": "ppo", "clip_range": 0.2},
        "seed": options.get("seed", 0),
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """Two finished runs of different seeds, the first with everything that a report can show."""
    folder = tmp_path_factory.mktemp("runs")
    first, second = train(folder / "<b>first"), train(folder / "second", seed=7)
    lines = {"lines": ["text </script><script>document.title='broken'</script>"]}
    known = {
        "reference": {"return": 4.0, "source": "a paper"},
        "machine": {"processor": "abacus", "cores": 2},
    }
    write_status(first, {**read_status(first), **lines, **known, "versions": {"jax": "1.2"}})
    (first / "policy.html").write_text("<!doctype html><p id='inside'>episode</p>")
    (first / "graph.svg").write_text(GRAPH)
    return first, second


def data_of(page: str) -> dict[str, Any]:
    (data,) = re.findall(
        r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(data, parse_constant=lambda name: pytest.fail(name))


# Without a browser.


def test_its_numbers_are_those_of_the_tables(runs):
    first, _ = runs
    (run,) = data_of((first / "report.html").read_text())["runs"]
    rows = np.loadtxt(first / "evals.csv", delimiter=",", skiprows=1)
    for step, mean, low, high in zip(
        *(run["scores"][name] for name in ("env_steps", "mean", "low", "high")), strict=True
    ):
        seeds = [
            rows[(rows[:, 1] == step) & (rows[:, 0] == seed), 3].mean() for seed in range(SEEDS)
        ]
        assert mean == pytest.approx(np.mean(seeds), rel=1e-5)
        assert (low, high) == pytest.approx(mean_interval(seeds), rel=1e-4)
    table = np.genfromtxt(first / "metrics.csv", delimiter=",", names=True)
    np.testing.assert_allclose(run["metrics"]["sampling_hz"], table["sampling_hz"], rtol=1e-5)
    assert len(run["seeds"]) == SEEDS
    assert run["state"] == "done" and "learn/actor/entropy" in run["metrics"]


def test_it_grows_while_training_goes_on_and_tells_the_end(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("jaxrl_fast.views.listeners.EVERY_S", 0.0)
    monkeypatch.setattr("jaxrl_fast.views.listeners.SHARE", 1e9)
    seen = []

    def look(row) -> None:
        seen.append(data_of((tmp_path / "report.html").read_text())["runs"][0])

    train(tmp_path, on_metrics=look)
    assert seen[0]["state"] == "training"
    assert len(seen[2]["metrics"]["env_steps"]) < len(seen[-1]["metrics"]["env_steps"])
    assert data_of((tmp_path / "report.html").read_text())["runs"][0]["state"] == "done"


def test_a_run_that_fails_leaves_a_report_that_says_so(tmp_path: Path):
    def fail(state, scores):
        raise RuntimeError("a callback failed")

    with pytest.raises(RuntimeError):
        train(tmp_path, between_chunks=fail)
    (run,) = data_of((tmp_path / "report.html").read_text())["runs"]
    assert (run["state"], run["error"]) == ("failed", "a callback failed")


def test_it_is_written_no_more_often_than_its_share_of_the_time(tmp_path: Path, monkeypatch):
    now, written = [0.0], []

    def write(folder: Path) -> None:
        written.append(now[0])
        now[0] += 2.0

    monkeypatch.setattr("jaxrl_fast.views.listeners.write_report", write)
    monkeypatch.setattr("jaxrl_fast.views.listeners.time.monotonic", lambda: now[0])
    live, folder = LiveReport(), SimpleNamespace(path=tmp_path, tell=lambda line: None)
    for _ in range(1000):
        live(folder)
        now[0] += 1.0
    assert written[:2] == [0.0, 202.0] and len(written) == 5


def test_what_goes_wrong_with_it_costs_a_line_and_no_run(tmp_path: Path, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(report_page, "page_of", lambda views: 1 / 0)
    train(tmp_path, tell=told.append)
    assert next(text for text in told if "report" in text) == "no report.html (division by zero)"
    assert read_run(tmp_path).state == "done"


def test_a_long_table_is_averaged_and_ends_where_it_ends():
    rows = 12_345
    table = {
        "env_steps": np.arange(rows) + 1.0,
        "loss": np.where(np.arange(rows) % 7 == 3, np.nan, 5.0),
    }
    short = thinned(table)
    assert len(short["loss"]) == 500 and short["env_steps"][-1] == rows
    np.testing.assert_allclose(short["loss"], 5.0)
    assert np.isnan(thinned({"loss": np.full(rows, np.nan)})["loss"]).all()


def test_the_seconds_add_up_to_the_whole(runs):
    view = read_run(runs[0])
    parts = [part for part in time_spent(view) if not part.get("beside")]
    assert sum(part["seconds"] for part in parts) == pytest.approx(view.summary["wall_s"], rel=0.02)


def test_the_seconds_of_a_population_are_its_members(tmp_path: Path):
    (tmp_path / "members.json").write_text(json.dumps({"members": [{"number": 0}]}))
    (tmp_path / "summary.json").write_text(json.dumps({"wall_s": 9.0, "compile_s": 2.0}))
    write_status(tmp_path, {})
    assert [part["label"][:5] for part in time_spent(read_run(tmp_path))] == ["compi", "train"]


def test_settings_say_where_they_come_from(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(
        "algo: {name: ppo, hidden: [64, 64], clip: null}\nplacement: fused\n"
    )
    write_status(tmp_path, {"sources": {"algo": "command line"}, "chosen": "measured"})
    assert settings_table(read_run(tmp_path)) == [
        ["algo", "ppo", "command line"],
        ["algo.hidden", "[64,64]", "default"],
        ["algo.clip", "null", "default"],
        ["placement", "fused", "measured"],
    ]
    varied = [["algo.hidden", "choice", ["[8]", "[64,64]"]], ["algo.rate", "log", ["1e-05", "0.1"]]]
    (tmp_path / "members.json").write_text(json.dumps({"members": [], "settings": varied}))
    rows = settings_table(read_run(tmp_path))
    assert rows[1] == ["algo.hidden", "choice: [8], [64,64]", "drawn by each member"]
    assert rows[-1] == ["algo.rate", "log: 1e-05, 0.1", "drawn by each member"]


OPEN_KEYS = {"run_dir", "eval.every", "checkpoint.every", "pool.workers", "pool.num_groups"}
OPEN_KEYS |= {
    f"env.{n}"
    for n in (
        "episode_length",
        "frame_stack",
        "frame_skip",
        "sticky",
        "life_loss",
        "noop_max",
        "clip_rewards",
    )
}


def test_what_is_not_set_says_what_it_means(runs):
    view = read_run(runs[0])
    settings = {
        "env": {"name": "line"},
        "algo": {"name": "sac", "target_critics": None},
        "pool": {"workers": None},
    }
    rows = {key: value for key, value, _ in settings_table(view._replace(settings=settings))}
    assert rows["algo.target_critics"] == "null: all" and rows["pool.workers"] == "null: measured"
    own = {"algo": {"name": "custom", "make": "no_such_package.make", "width": None}}
    assert ["algo.width", "null", "default"] in settings_table(view._replace(settings=own))
    unset = {key for key, declared in run_keys().items() if declared.default is None}
    found = report_page.meanings_of_null("sac")
    assert unset & set(found) == OPEN_KEYS, (
        "of these, the text behind a semicolon is the value that null means"
    )
    assert found["env.episode_length"] == "null: the environment's" and found["run_dir"].endswith(
        "<time>-..."
    )


def test_the_rates_of_a_page_begin_with_the_updates():
    steps = np.arange(1.0, 6.0)
    table = {
        "env_steps": steps,
        "wall_s": steps,
        "sampling_hz": np.array([9e3, 9e3, 5e3, 20.0, 30.0]),
    }
    table |= {"update_hz": np.array([0.0, 0.0, 4.0, 20.0, 30.0]), "update_frame_hz": np.zeros(5)}
    assert report_page.warmup_rows(table) == 3
    assert report_page.warmup_rows({name: column[3:] for name, column in table.items()}) == 0
    assert report_page.warmup_rows({}) == 0
    assert report_page.warmup_rows({name: column[:3] for name, column in table.items()}) == 0
    none = {name: column[:2] for name, column in table.items()}
    assert report_page.warmup_rows(none) == 0, "without updates"


def test_runs_are_called_what_tells_them_apart(runs):
    first, second = map(read_run, runs)
    assert short_names([first]) == [runs[0].name]
    assert short_names([first, second]) == [runs[0].name, "second"]
    assert differing_settings([[first], [second]]) == [
        ["seed", "0", "7"],
        ["folder", runs[0].name, "second"],
    ]
    assert differing_settings([[first, second]]) == [["folder", f"{runs[0].name}, second"]]


def test_runs_that_differ_in_their_seeds_are_one_line(runs):
    first, second = map(read_run, runs)
    assert labels_of([first, second]) == ["ppo", "ppo"]
    other = second._replace(
        settings={**second.settings, "algo": {"name": "ppo", "clip_range": 0.3}}
    )
    assert labels_of([first, other]) == ["ppo (clip_range=0.2)", "ppo (clip_range=0.3)"]
    lines = lines_of([first, second])
    assert lines["ppo"]["line"].returns.shape == (4, 2 * SEEDS)
    (scores,) = final_scores(lines, ["line"]).values()
    expected = lines["ppo"]["line"].returns
    low = expected.mean(axis=1).min()
    np.testing.assert_allclose(scores[:, 0], (expected[-1] - low) / (4.0 - low), rtol=1e-6)
    assert (
        scale_of(lines)
        == "score: 0 is the lowest return in the figure, 1 is the published reference"
    )
    status = {**first.status, "reference": {"return": 4.0, "random": -9.0}}
    lines = lines_of([first._replace(status=status), second])
    np.testing.assert_allclose(
        final_scores(lines, ["line"])["ppo"][:, 0], (expected[-1] + 9.0) / 13.0, rtol=1e-6
    )
    assert scale_of(lines) == "score: 0 is random actions (published), 1 is the published reference"


def test_joined_runs_have_the_seeds_of_all_and_the_mean_of_their_metrics(runs):
    first, second = map(read_run, runs)
    both = joined([first, second])
    assert both.status["num_seeds"] == 2 * SEEDS and both.state == "done"
    means = [view.metrics["episode_return"] for view in (first, second)]
    np.testing.assert_allclose(both.metrics["episode_return"], np.mean(means, axis=0))
    late = second._replace(
        metrics={name: values[1:] for name, values in second.metrics.items()}, state="training"
    )
    both = joined([first, late])
    np.testing.assert_array_equal(both.metrics["env_steps"], late.metrics["env_steps"])
    assert both.state == "training"
    page = data_of(page_of([first, second]))
    assert [run["name"] for run in page["runs"]] == ["ppo"] and len(
        page["runs"][0]["scores"]["seeds"]
    ) == 2 * SEEDS
    waiting = second._replace(metrics={}, evals={}, state="dead")
    both = joined([first, waiting])
    assert both.state == "dead" and both.evals["seed"].max() == SEEDS - 1
    np.testing.assert_array_equal(both.metrics["env_steps"], first.metrics["env_steps"])


def test_only_runs_that_differ_in_their_seeds_are_one_curve_of_a_page(runs):
    first, second = map(read_run, runs)

    def with_settings(**changes):
        return second._replace(settings={**second.settings, **changes})

    def curves(*views):
        return [run["name"] for run in data_of(page_of(views))["runs"]]

    assert curves(first, with_settings(checkpoint={"every": 9})) == ["ppo"]
    placed = with_settings(placement="actor_critic")
    assert curves(first._replace(settings={**first.settings, "placement": "fused"}), placed) == [
        "ppo (placement=fused)",
        "ppo (placement=actor_critic)",
    ]
    assert curves(
        with_settings(env={"name": "line", "size": 5}),
        with_settings(env={"name": "line", "size": 50}),
    ) == [
        "ppo (env.size=5)",
        "ppo (env.size=50)",
    ]
    assert curves(with_settings(name="x", num_envs=1), with_settings(name="x", num_envs=8)) == [
        "ppo (x)",
        "ppo (x)",
    ]
    bare = [
        second._replace(settings={}, path=Path(name), status={"env": name, "algo": "ppo"})
        for name in "ab"
    ]
    assert curves(*bare) == ["ppo, a", "ppo, b"]
    assert len(groups_of([first, placed])) == 1, (
        "a figure for a paper has one line for all placements"
    )


def test_a_seed_of_two_runs_does_not_count_twice(runs):
    first, second = map(read_run, runs)
    assert [len(group.views) for group in groups_of([first, second, first])] == [2, 1]
    shown = data_of(page_of([first, first]))["runs"]
    assert len(shown) == 2 and all(len(run["scores"]["seeds"]) == SEEDS for run in shown)
    with pytest.raises(ValueError, match="has a seed in common with another run of ppo on line"):
        lines_of([first, second, first])


@pytest.mark.parametrize("suffix", ["pdf", "svg", "png"])
def test_the_figure_is_a_file_of_its_kind(runs, tmp_path: Path, suffix: str, capsys):
    first, second = map(str, runs)
    file = tmp_path / f"curve.{suffix}"
    assert report.main([first, second, f"out={file}"]) == 0
    assert file.read_bytes()[:4] in (b"%PDF", b"<?xm", b"\x89PNG")
    assert capsys.readouterr().out == f"{file}\n"
    if suffix == "png":  # the others contain the date
        drawn = file.read_bytes()
        report.main([first, second, f"out={file}"])
        assert file.read_bytes() == drawn, "intervals are of the same samples"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "write the path of a run's folder, such as runs/latest"),
        (
            ["nothing/here"],
            "nothing/here contains no run: write the path of a run's folder, such as runs/latest",
        ),
        (["{first}", "{first}/."], "two of these folders are the same run: write each once"),
        (["{first}", "to=x.pdf"], "unknown key 'to': the keys of report are out"),
        (["{first}", "out=x.doc"], "out=x.doc: write a file that ends in .html, .pdf, .svg, .png"),
        (
            ["{first}", "out=no/such/x.html"],
            "cannot write no/such/x.html (No such file or directory): write another out=...",
        ),
        (["{empty}", "out=x.pdf"], "{empty} is not evaluated yet: leave it out"),
    ],
)
def test_wrong_words_are_one_line(runs, tmp_path: Path, capsys, words, expected):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    names = {"first": runs[0], "empty": tmp_path}
    assert report.main([word.format(**names) for word in words]) == 2
    assert capsys.readouterr().err == f"jaxrl_fast: error: {expected.format(**names)}\n"


def test_without_rliable_a_line_says_what_to_install(runs, tmp_path: Path):
    script = "import sys; sys.modules['rliable'] = None; from jaxrl_fast.report import main; sys.exit(main())"
    words = [str(runs[0]), f"out={tmp_path / 'x.pdf'}"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "jaxrl_fast: error: a figure needs rliable: pip install 'jaxrl_fast[paper]'"
    )


# In a browser without a network.


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with chromium_page(CHROMIUM) as page:
        yield page
    bad = [e for e in page.events if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]
    outside = [e for e in page.events if e["method"] == "Network.requestWillBeSent"]
    assert not bad
    assert all(
        e["params"]["request"]["url"].split(":")[0] in ("file", "data", "about") for e in outside
    )


def colors_in(page: Page, selector: str) -> set[tuple[int, ...]]:
    """Return the colors of a canvas."""
    script = f"document.querySelector({json.dumps(selector)}).toDataURL().split(',')[1]"
    import io

    from matplotlib.image import imread

    pixels = imread(io.BytesIO(base64.b64decode(page.run(script))))
    opaque = pixels[pixels[..., 3] > 0.95][:, :3]
    return {tuple(color) for color in np.round(opaque * 255).astype(int).tolist()}


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_shows_the_run(page: Page, runs, width: int, dark: bool):
    write_report(runs[0])
    page.open(runs[0] / "report.html", width=width, height=900, mobile=width < 600, dark=dark)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.title") == "line, ppo"
    figures = page.run("document.getElementById('figures').innerText")
    (run,) = data_of((runs[0] / "report.html").read_text())["runs"]
    assert (
        all(figure["value"] in figures for figure in run["figures"])
        and "greedy return" in figures.lower()
    )
    curve = (86, 180, 233) if dark else (0, 114, 178)
    assert curve in colors_in(page, "#learning canvas")
    assert curve in colors_in(page, "#rates canvas")
    said = page.run("document.getElementById('lines').innerText")
    assert "text </script><script>" in said
    assert page.run("document.querySelector('header p').innerText").startswith("<b>first — ✓ done")


def test_a_language_that_no_format_takes_stops_no_page(page: Page, runs):
    write_report(runs[0])
    script = (
        "Object.defineProperty(navigator, 'language', {value: 'en-US@posix', configurable: true})"
    )
    added = page.ask("Page.addScriptToEvaluateOnNewDocument", source=script)
    page.open(runs[0] / "report.html", width=1440, height=900)
    page.ask("Page.removeScriptToEvaluateOnNewDocument", **added)
    assert page.run("document.querySelectorAll('#learning canvas').length") == 1
    assert page.run("navigator.language") == "en-US"


def test_axis_zoom_and_choice_of_metrics(page: Page, runs):
    write_report(runs[0])
    page.open(runs[0] / "report.html", width=1440, height=900)
    charts = "document.querySelectorAll('#losses canvas').length"
    before = page.run(charts)
    page.run(
        "[...document.querySelectorAll('#choose input[type=checkbox]')].find(box => !box.checked).click()"
    )
    assert page.run(charts) == before + 1
    axis = "document.querySelector('#learning canvas').toDataURL()"
    by_steps = page.run(axis)
    page.run("document.querySelector('[data-axis=wall_s]').click()")
    assert page.run(axis) != by_steps
    page.run("document.querySelector('[data-axis=env_steps]').click()")
    for kind, x in (("mousePressed", 500), ("mouseMoved", 800), ("mouseReleased", 800)):
        top = page.run(
            "document.querySelector('#learning canvas').getBoundingClientRect().top + 100"
        )
        page.ask(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=top,
            button="left",
            buttons=1,
            clickCount=1,
        )
    assert page.run(axis) != by_steps


def test_the_episode_plays_inside_the_page(page: Page, runs):
    write_report(runs[0])
    page.open(runs[0] / "report.html", width=1440, height=900)
    page.run("document.querySelector('#episode button').click()")
    assert page.run("document.querySelector('#episode iframe').srcdoc.includes('inside')")
    assert page.run("document.querySelector('#graph img').decode().then(() => true)")


def test_the_comparison_shows_both(page: Page, runs, tmp_path: Path):
    file = tmp_path / "comparison.html"
    first, second = map(read_run, runs)
    second = second._replace(
        settings={**second.settings, "algo": {"name": "ppo", "clip_range": 0.3}}
    )
    file.write_text(page_of([first, second]), "utf-8")
    page.open(file, width=1440, height=900)
    assert {(0, 114, 178), (213, 94, 0)} <= colors_in(page, "#learning canvas")
    cells = page.run("document.querySelector('#differing table').innerText").split()
    names = ["ppo", "(clip_range=0.2)", "ppo", "(clip_range=0.3)"]
    differ = ["algo.clip_range", "0.2", "0.3", "seed", "0", "7"]
    assert cells == ["setting", *names, *differ, "folder", "<b>first", "second"]
    assert page.run("document.title") == "ppo (clip_range=0.2) · ppo (clip_range=0.3)"
    assert page.run("document.getElementById('settings').hidden")


def open_with_columns(
    page: Page, run: Path, folder: Path, names: str, values: Callable[[int], str]
) -> None:
    """Open the report of a run whose evaluations have more columns, with the values of each row's
    number.
    """
    header, *rows = (run / "evals.csv").read_text().splitlines()
    lines = [f"{header},{names}", *(f"{row},{values(number)}" for number, row in enumerate(rows))]
    (folder / "evals.csv").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text("env: {name: line}\n")
    write_report(folder)
    page.open(folder / "report.html", width=1440, height=900)


def test_success_has_a_figure_and_a_chart(page: Page, runs, tmp_path: Path):
    open_with_columns(page, runs[1], tmp_path, "success", lambda number: f"{number % 2}")
    assert "success\n" in page.run("document.getElementById('figures').innerText")
    assert (
        page.run("document.querySelector('#learning h3').innerText") == "success, % of the episodes"
    )
    assert page.run("document.querySelectorAll('#learning canvas').length") == 2
    page.open(runs[0] / "report.html", width=1440, height=900)
    assert page.run("document.querySelectorAll('#learning canvas').length") == 1


def test_metrics_of_episodes_are_charts_where_they_change_and_one_line_elsewhere(
    page: Page, runs, tmp_path: Path
):
    open_with_columns(
        page, runs[1], tmp_path, "env/wood,env/iron,env/coal", lambda number: f"{number},0.0,2.0"
    )
    for axis in ("env_steps", "wall_s", "env_steps"):
        page.run(f"document.querySelector('[data-axis={axis}]').click()")
        titles = page.run(
            "[...document.querySelectorAll('#learning .grid h3')].map(title => title.innerText)"
        )
        assert titles == ["env/wood of the greedy episodes"]
        lines = page.run(
            "[...document.querySelectorAll('#learning .quiet')].map(line => line.innerText)"
        )
        assert lines == ["Without a change: env/iron 0, env/coal 2."]


def test_an_empty_folder_makes_a_page_without_errors(page: Page, tmp_path: Path):
    (tmp_path / "config.yaml").write_text("env: {name: cartpole}\n")
    write_report(tmp_path)
    page.open(tmp_path / "report.html", width=390, height=800)
    assert "Not evaluated yet." in page.run("document.body.innerText")


def test_a_run_without_evaluations_says_so(tmp_path: Path):
    view = read_run(train(tmp_path / "run", eval_every=0, num_seeds=1, total_steps=64))
    assert report_page.describe_run(view)["unevaluated"] == "Not evaluated (eval.every=0)."
    assert row_of("run", view.status)["unevaluated"] == "not evaluated (eval.every=0)"
    with pytest.raises(ValueError, match=r"run is not evaluated \(eval.every=0\): leave it out"):
        lines_of([view])
    assert row_of("other", {**view.status, "eval.every": 8})["unevaluated"] == ""
