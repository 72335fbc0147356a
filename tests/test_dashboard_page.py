"""The pages of the dashboard in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Page, chromium_page
from chromium import CHROMIUM, pixels
from dashboard_runs import HOSTILE, LISTED, Server, make_runs, serving, soon

from jaxrl_fast.training.records import write_status

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt install chromium")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    runs = tmp_path_factory.mktemp("server") / "runs"
    make_runs(runs)
    with serving(runs) as found:
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium_page(CHROMIUM) as page:
        yield page


def open_list(page: Page, server: Server, **options: Any) -> None:
    """Open the list of runs, with the drawn curve of one run, which has returns."""
    page.open(f"http://127.0.0.1:{server.port}/", **options)
    soon(lambda: page.run("lines.size") == len(LISTED))
    page.run("byId('clear').click(), choose('cartpole/ppo/a', true)")
    soon(
        lambda: page.run(
            "!drawing && curves.has('cartpole/ppo/a') && chart.plot?.data[0].length && chart.box.offsetWidth"
        )
    )


def complaints(page: Page) -> list[dict[str, Any]]:
    thrown = [
        e
        for e in page.events
        if e["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    ]
    return thrown + [e for e in page.events if e["method"] == "Log.entryAdded"]


def test_the_page_shows_the_runs_and_asks_nobody_else(browser: Page, server: Server):
    browser.events.clear()
    open_list(browser, server)
    assert complaints(browser) == []
    asked = [
        e["params"]["request"]["url"]
        for e in browser.events
        if e["method"] == "Network.requestWillBeSent"
    ]
    assert len(asked) > 8
    assert all(url.startswith((f"http://127.0.0.1:{server.port}/", "data:")) for url in asked), (
        asked
    )
    cells = browser.run(
        "Object.values(lines.get('cartpole/ppo/b').cells).map(cell => cell.innerText.trim())"
    )
    assert cells[:7] == [
        "cartpole/ppo/blive",
        "▶training",
        "cartpole",
        "ppo",
        "200 / 400",
        "105.0",
        "120.0",
    ]
    assert cells[7:-1] == ["–", "100", "5", "640", "0:14", "0:04"]
    assert browser.run("lines.get('cartpole/ppo/a').cells.eval_success.innerText") == "100 %"


@pytest.mark.parametrize("path", ("", "run/%3Cimg%20src=x%20onerror=document.title='ran'%3E/"))
def test_text_of_a_folder_is_text(browser: Page, server: Server, path: str):
    browser.events.clear()
    browser.open(f"http://127.0.0.1:{server.port}/{path}")
    soon(lambda: HOSTILE in browser.run("document.body.innerText"))
    browser.run(f"typeof choose === 'undefined' || choose({json.dumps(HOSTILE)}, true)")
    soon(lambda: browser.run("document.querySelector('.u-legend')?.textContent.includes('<img')"))
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("document.title") in ("runs", HOSTILE) and complaints(browser) == []


@pytest.mark.parametrize(("width", "height"), ((1440, 900), (390, 844)))
def test_the_chart_is_drawn_on_wide_and_narrow_screens_light_and_dark(
    browser: Page, server: Server, width, height
):
    for dark in (False, True):
        open_list(browser, server, width=width, height=height, mobile=width < 600, dark=dark)
        left, top, right, bottom = (
            int(x)
            for x in browser.run(
                "(({left, top, right, bottom}) => [left, top, right, bottom])"
                "(document.querySelector('.u-over').getBoundingClientRect())"
            )
        )
        assert 0 <= left < right <= width and bottom - top > 150
        picture = pixels(browser)
        assert (picture.mean() < 0.35) == dark
        line = np.array([0x56, 0xB4, 0xE9] if dark else [0x00, 0x72, 0xB2]) / 255
        drawn = np.abs(picture[top:bottom, left:right] - line).max(-1) < 0.05
        assert drawn.any(axis=0).mean() > 0.9, "from the left to the right"
        assert browser.run("document.documentElement.scrollWidth") <= width


def test_it_keeps_choice_scroll_focus_and_zoom_as_it_changes(browser: Page, server: Server):
    open_list(browser, server, height=400)
    browser.run(
        "lines.get('cartpole/ppo/b').box.click(), lines.get('cartpole/ppo/b').box.focus(), scrollTo(0, 200)"
    )
    soon(lambda: browser.run("chart.plot.series.length") == 7)
    browser.run("chart.plot.setScale('x', {min: 120, max: 180}), window.drawn = 0")
    soon(lambda: browser.run("chart.plot.scales.x.min") == 120)
    browser.run("chart.plot.hooks.draw = [() => drawn++], 0")
    folder = server.runs / "cartpole/ppo/b"
    facts, table = json.loads((folder / "run.json").read_text()), (folder / "evals.csv").read_text()
    (folder / "evals.csv").write_text(table + "0,300,4.5,7,5\n1,300,4.5,9,5\n")
    write_status(folder, facts | {"env_steps": 300, "eval_return": 8.0, "eval_steps": 300})
    soon(lambda: browser.run("lines.get('cartpole/ppo/b').cells.eval_return.textContent") == "8")
    soon(lambda: browser.run("chart.plot.data[0].at(-1)") == 300)
    assert browser.run("[...chosen.keys()]") == ["cartpole/ppo/a", "cartpole/ppo/b"]
    assert browser.run("[scrollY, document.activeElement.ariaLabel]") == [
        200,
        "draw cartpole/ppo/b",
    ]
    assert browser.run("[chart.plot.scales.x.min, chart.plot.scales.x.max]") == [120, 180]
    assert browser.run("drawn") > 0
    (folder / "evals.csv").write_text(table)
    write_status(folder, facts)


def test_success_is_drawn_where_it_is_known(browser: Page, server: Server):
    open_list(browser, server)
    browser.run("byId('of').value = 'success', byId('of').onchange()")
    soon(lambda: browser.run("chart.plot.data[1]?.at(-1)") == 100)
    assert browser.run("[...chart.plot.data]") == [[100, 200], [25, 100]]
    assert (
        browser.run(
            "getComputedStyle(document.querySelector('#heads [data-key=eval_success]')).display"
        )
        != "none"
    )
    browser.run(
        "update({rows: [...lines.values()].map(({row}) => ({...row, eval_success: null})), gone: []}, true)"
    )
    assert (
        browser.run(
            "getComputedStyle(document.querySelector('#heads [data-key=eval_success]')).display"
        )
        == "none"
    )


def test_who_hides_a_line_hides_its_range_and_its_colors_follow_the_scheme(
    browser: Page, server: Server
):
    open_list(browser, server)
    shown = "chart.plot.series.slice(1).map(series => series.show)"
    assert browser.run(shown) == [True] * 3
    browser.run("chart.plot.setSeries(1, {show: false})")
    assert browser.run(shown) == [False] * 3
    before = browser.run("chart.plot.series[1].stroke()")
    browser.prefer(dark=True)
    soon(lambda: browser.run("chart.plot.series[1].stroke()") != before)
    browser.prefer(dark=False)


def test_it_sorts_and_filters(browser: Page, server: Server):
    open_list(browser, server)
    rows = "[...document.querySelectorAll('#rows tr')].filter(tr => !tr.hidden)"
    shown = f"{rows}.map(tr => tr.cells[1].firstChild.textContent)"
    browser.run("document.querySelector('#heads [data-key=name] button').click()")
    assert browser.run(shown) == sorted(LISTED)
    browser.run("document.querySelector('#heads [data-key=name] button').click()")
    assert browser.run(shown) == sorted(LISTED, reverse=True)
    browser.run("byId('filter').value = 'PPO done', byId('filter').oninput()")
    assert browser.run(shown) == ["cartpole/ppo/a"]
    assert browser.run("document.querySelector('#heads [data-key=name]').ariaSort") == "descending"


def test_it_says_when_the_server_is_gone(browser: Page, tmp_path: Path):
    with serving(tmp_path) as server:
        browser.open(f"http://127.0.0.1:{server.port}/")
        soon(lambda: "No runs yet" in browser.run("document.body.innerText"))
        assert browser.run("byId('gone').hidden")
    soon(lambda: not browser.run("byId('gone').hidden"))


def test_a_report_runs_its_scripts_and_reaches_nothing(browser: Page, server: Server):
    """The name may come from a folder that somebody else sent."""
    script = (
        "fetch('/api/runs').then(() => 'read', () => 'refused').then(text => document.title = text)"
    )
    (server.runs / "dead/report.html").write_text(f"<title>waits</title><script>{script}</script>")
    browser.open(f"http://127.0.0.1:{server.port}/run/dead/")
    assert soon(lambda: (title := browser.run("document.title")) != "waits" and title) == "refused"
    (server.runs / "dead/report.html").unlink()
