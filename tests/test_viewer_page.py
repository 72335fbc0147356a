"""``policy.html``: it contains the episode, and a real browser without a network shows it."""

import base64
import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from browser import Page, chromium_page
from chromium import CHROMIUM, needs_chromium, pixels
from dashboard_runs import soon

import jaxrl_fast as jf
from jaxrl_fast.envs import from_brax
from jaxrl_fast.envs.env import Motion, Scene, vectorize
from jaxrl_fast.envs.from_brax import geoms_of
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.training.episodes import evaluate_episodes
from jaxrl_fast.views.viewer import ASSETS, FULL_SCALE, draw_policy, page_of

EVERY_KIND = """
<mujoco>
  <asset>
    <hfield name="hills" nrow="3" ncol="3" size="1 1 .1 .1"/>
    <mesh name="wedge" vertex="0 0 0  .6 0 0  0 .6 0  0 0 .6"/>
  </asset>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <geom type="hfield" hfield="hills" pos="5 5 0"/>
    <body><geom type="sphere" size=".3" pos="0 0 .1"/></body>
    <body><geom type="capsule" size=".15 .3"/></body>
    <body><geom type="box" size=".2 .1 .4" rgba=".1 .2 .9 1"/></body>
    <body><geom type="cylinder" size=".2 .3"/></body>
    <body><geom type="ellipsoid" size=".3 .2 .1"/></body>
    <body><geom type="mesh" mesh="wedge" rgba=".1 .8 .2 1"/></body>
  </worldbody>
</mujoco>
"""
STEPS, BODIES, DISTANCE = 80, 6, 400.0
SHOWN_KINDS = {"plane", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh"}


def a_run(steps: int = STEPS, bodies: int = BODIES, distance: float = DISTANCE) -> Motion:
    """Make a run of a row of bodies that turn, and move ``distance`` metres along x."""
    share = np.linspace(0, 1, steps + 1)[:, None]
    row = np.arange(bodies)[None] - bodies / 2
    positions = np.stack(
        [row + distance * share, 0.1 * np.sin(9 * share + row), 0.5 + 0 * (row + share)], axis=-1
    )
    half = 3 * share + 0 * row
    rotations = np.stack([np.cos(half), np.sin(half), 0 * half, 0 * half], axis=-1)
    rewards = np.random.default_rng(0).normal(1, 1, steps)
    return Motion(*(x.astype(np.float32) for x in (positions, rotations, rewards)), terminated=True)


def every_kind() -> Scene:
    return Scene("every kind </script>", geoms_of(mujoco.MjModel.from_xml_string(EVERY_KIND)), 0.05)


def numbers(text: str, dtype: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def data_of(page: str) -> dict[str, Any]:
    (data,) = re.findall(r'<script type="application/json" id="episode">(.*?)</script>', page)
    return json.loads(data)


def scene_and_physics(id: str, backend: str) -> tuple[Scene, Any]:
    with from_brax.quiet():
        physics = from_brax.brax_envs.get_environment(id, backend=backend)
    return from_brax.scene_of(physics, f"{id}, {backend}"), physics


# Without a browser.


def test_the_states_come_back_within_half_a_step_of_what_is_stored():
    motion = a_run()
    data = data_of(page_of(every_kind(), motion))
    unit = data["reach"] / FULL_SCALE
    assert unit < 2e-4, "metres; the row is six metres long"
    offsets = numbers(data["offsets"], "<i2", STEPS + 1, BODIES, 3)
    found = numbers(data["center"], "<f4", STEPS + 1, 1, 3).astype(float) + unit * offsets
    assert np.abs(found - motion.positions).max() <= unit / 2 + 1e-9
    rotations = numbers(data["rotations"], "<i2", STEPS + 1, BODIES, 4) / FULL_SCALE
    assert np.abs(rotations - motion.rotations).max() <= 0.5 / FULL_SCALE + 1e-9
    np.testing.assert_array_equal(numbers(data["rewards"], "<f4", STEPS), motion.rewards)
    assert (data["title"], data["steps"], data["bodies"]) == ("every kind </script>", STEPS, BODIES)


def test_every_kind_of_geom_is_described_and_named_in_the_viewer():
    geoms = every_kind().geoms
    assert [geom.body for geom in geoms] == [-1, -1, *range(BODIES)]
    kinds = ["plane", "heightfield", "sphere", "capsule", "box", "cylinder", "ellipsoid", "mesh"]
    assert [geom.kind for geom in geoms] == kinds
    (shapes,) = re.findall(
        r"const SHAPES = {\n(.*?)\n};", (ASSETS / "bodies.js").read_text("utf-8"), re.S
    )
    assert {"plane", *re.findall(r"^  (\w+): ", shapes, re.M)} == SHOWN_KINDS
    (wedge,) = [geom.mesh for geom in geoms if geom.mesh]
    assert wedge.vertices.shape == (4, 3) and sorted(set(wedge.faces.ravel())) == [0, 1, 2, 3]
    assert [geom.color for geom in geoms if geom.kind in ("sphere", "box")] == [
        None,
        (0.1, 0.2, 0.9, 1.0),
    ]


@pytest.mark.parametrize("what", ("positions", "rotations", "rewards"))
def test_what_is_not_a_number_is_refused_with_its_step(what: str):
    motion = a_run()
    getattr(motion, what)[3] = np.nan
    with pytest.raises(ValueError, match="of step 3 is not a finite number"):
        page_of(every_kind(), motion)


def test_every_geom_of_every_brax_environment_is_drawn():
    """Compare with the environment's simulation, of which brax reads some numbers from different
    places.
    """
    for number, id in enumerate(sorted(set(from_brax.ids()) - {"fast"})):
        scene, physics = scene_and_physics(id, from_brax.BACKENDS[number % len(from_brax.BACKENDS)])
        assert {geom.kind for geom in scene.geoms} <= SHOWN_KINDS, id
        assert len(scene.geoms) == len(physics.sys.geom_type), id
        assert {geom.body for geom in scene.geoms} <= set(range(-1, physics.sys.num_links())), id
        for field, own in (
            ("position", "geom_pos"),
            ("rotation", "geom_quat"),
            ("size", "geom_size"),
        ):
            ours = np.array([getattr(geom, field) for geom in scene.geoms])
            np.testing.assert_allclose(ours, getattr(physics.sys, own), atol=1e-5, err_msg=id)
        assert scene.step_s == pytest.approx(physics.dt)


@pytest.mark.parametrize("backend", from_brax.BACKENDS)
def test_the_state_of_every_backend_has_a_pose_for_each_body(backend: str):
    env = from_brax.make("inverted_pendulum", backend=backend)
    pose = jax.eval_shape(lambda key: from_brax.pose_of(env.reset(key, ())[0]), jax.random.key(0))
    assert [x.shape for x in pose] == [(2, 3), (2, 4)]


def test_a_page_of_1000_steps_is_small():
    for id, bodies in (("halfcheetah", 7), ("ant", 9), ("humanoid", 11)):
        page = page_of(scene_and_physics(id, "spring")[0], a_run(1000, bodies))
        assert len(page.encode()) <= 2_000_000 / 2, id


def pusher_of_carts(force: float) -> Policy:
    """Push an inverted pendulum's cart one way, until the pole falls."""
    spec = jf.make_env("inverted_pendulum", num_envs=1).spec

    def act(
        params: Any, carry: Any, obs: jax.Array, first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any]:
        return jnp.full((obs.shape[0], 1), params), carry

    return Policy(jnp.float32(force), act, lambda num_envs: (), spec, {})


def test_the_page_shows_the_episode_that_the_evaluation_counts(tmp_path: Path):
    """Check the steps and rewards, and that the last state, with the pole down, is included."""
    options = {"episode_length": 60}
    policy, env = pusher_of_carts(0.3), jf.make_env("inverted_pendulum", num_envs=3, **options)
    counted = evaluate_episodes(
        policy, vectorize(env.env, num_envs=1), jax.random.key(5), episodes=1
    )
    assert draw_policy(policy, env, 5, tmp_path)
    data = data_of((tmp_path / "policy.html").read_text("utf-8"))
    steps = data["steps"]
    assert data["terminated"] and 2 < steps < 60 and steps == int(counted.length[0])
    assert numbers(data["rewards"], "<f4", steps).sum() == pytest.approx(float(counted.returns[0]))
    pole = numbers(data["rotations"], "<i2", steps + 1, 2, 4)[:, 1] / FULL_SCALE
    lean = 2 * np.arccos(np.minimum(np.abs(pole @ pole[0]), 1))
    assert lean[-1] > 0.2 and np.all(np.diff(lean[1:]) > 0)
    assert (data["title"], data["step_s"]) == ("inverted_pendulum, generalized", 0.04)


def test_an_environment_without_bodies_gets_no_page_and_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    env = jf.make_env("brax", id="fast", num_envs=1)
    assert not draw_policy(pusher_of_carts(0.0), env, 0, tmp_path)
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "policy.html").exists()


# With a browser.


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with chromium_page(CHROMIUM) as page:
        yield page


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "policy.html"
    path.write_text(page_of(every_kind(), a_run()), "utf-8")
    return path


TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def text(page: Page, id: str) -> str:
    return page.run(f"document.getElementById('{id}').textContent")


def settled_text(page: Page, id: str) -> str:
    page.run(TWO_FRAMES)
    return text(page, id)


def press(page: Page, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        page.ask("Input.dispatchKeyEvent", type=kind, key=key)
    page.run(TWO_FRAMES)


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
        page.ask(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
        )
    page.run(TWO_FRAMES)


def swipe(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    for kind, points in (("touchStart", [start]), ("touchMove", [end]), ("touchEnd", [])):
        page.ask(
            "Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y} for x, y in points]
        )
    page.run(TWO_FRAMES)


def boxes(page: Page, selectors: tuple[str, ...]) -> dict[str, list[float]]:
    """Return left, top, right and bottom of the first pixels of each color."""
    script = """selectors => Object.fromEntries(selectors.map(one => {
        const box = document.querySelector(one).getBoundingClientRect();
        return [one, [box.left, box.top, box.right, box.bottom]];
    }))"""
    return page.run(f"({script})({json.dumps(selectors)})")


def bodies_seen(picture: np.ndarray) -> np.ndarray:
    """Return where the picture has the strong colors of bodies, between the two panels, bool
    ``[height, width]``.
    """
    colorful = picture.max(-1) - picture.min(-1) > 0.25
    height = len(picture)
    colorful[: height // 5], colorful[-height // 3 :] = False, False
    return colorful


def differs(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((bodies_seen(one) != bodies_seen(other)).sum() > 500)


@needs_chromium
def test_it_plays_at_once_and_asks_nobody_for_anything(browser: Page, file: Path):
    browser.events.clear()
    browser.open(file)
    soon(lambda: float(text(browser, "time")) > 0)
    browser.run("seek(0)")
    for step in (0, STEPS):  # after 400 metres the bodies are in the picture as at the start
        browser.run(f"seek({step})")
        browser.run(TWO_FRAMES)
        assert bodies_seen(pixels(browser)).sum() > 3000
    asked = [
        e["params"]["request"]["url"]
        for e in browser.events
        if e["method"] == "Network.requestWillBeSent"
    ]
    assert {url for url in asked if not url.startswith("data:")} == {file.as_uri()}
    assert [
        e
        for e in browser.events
        if e["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    ] == []
    logged = [e["params"]["entry"] for e in browser.events if e["method"] == "Log.entryAdded"]
    assert [entry for entry in logged if entry["level"] == "error"] == []
    assert text(browser, "title") == "every kind </script>"
    assert text(browser, "note") == "Not drawn: heightfield."


@needs_chromium
def test_the_slider_and_the_keys_move_it(browser: Page, file: Path):
    browser.open(file)
    returns = np.concatenate([[0], np.cumsum(a_run().rewards.astype(float))])
    left, top, right, bottom = boxes(browser, ("#slider",))["#slider"]
    pictures, motion = [], a_run()
    for share in (0.25, 0.75):
        spot = (left + share * (right - left), (top + bottom) / 2)
        drag(browser, spot, spot)
        step = int(settled_text(browser, "step"))
        assert abs(step - share * STEPS) <= 2
        assert (
            text(browser, "return") == f"{returns[step]:.2f}"
            and text(browser, "time") == f"{step * 0.05:.2f}"
        )
        found = np.array(
            browser.run("stage.bodies.map(body => [...body.position, ...body.quaternion])")
        )[:BODIES]
        np.testing.assert_allclose(found[:, :3], motion.positions[step], atol=1e-4)
        np.testing.assert_allclose(
            np.roll(found[:, 3:], 1, axis=1), motion.rotations[step], atol=1e-4
        )
        pictures.append(pixels(browser))
    assert differs(*pictures)
    for key, expected in (
        ("End", STEPS),
        ("ArrowLeft", STEPS - 1),
        ("ArrowRight", STEPS),
        ("Home", 0),
    ):
        press(browser, key)
        assert int(text(browser, "step")) == expected
        assert text(browser, "return") == f"{returns[expected]:.2f}"
    browser.run("clock.speed = 0.01")  # so that it does not end meanwhile
    press(browser, " ")
    assert browser.run("document.getElementById('play').ariaLabel") == "Pause"
    press(browser, " ")
    assert browser.run("document.getElementById('play').ariaLabel") == "Play"
    speed = browser.run("document.getElementById('speed').value")
    press(browser, "ArrowUp")
    assert float(browser.run("document.getElementById('speed').value")) > float(speed)


@needs_chromium
def test_it_can_be_turned_and_zoomed_with_a_mouse_and_a_finger(browser: Page, file: Path):
    for mobile in (False, True):
        browser.open(file, width=600, height=500, mobile=mobile)
        browser.run("seek(40)")
        browser.run(TWO_FRAMES)
        before = pixels(browser)
        (swipe if mobile else drag)(browser, (300, 220), (420, 230))
        turned = pixels(browser)
        assert differs(before, turned)
        if not mobile:
            browser.ask(
                "Input.dispatchMouseEvent", type="mouseWheel", x=300, y=220, deltaX=0, deltaY=400
            )
            browser.run(TWO_FRAMES)
            assert bodies_seen(pixels(browser)).sum() < 0.9 * bodies_seen(turned).sum()
        browser.run("document.getElementById('camera').click()")
        browser.run(TWO_FRAMES)
        assert not differs(before, pixels(browser))


@needs_chromium
@pytest.mark.parametrize(("width", "height"), ((1440, 900), (390, 844)))
def test_it_fits_a_wide_and_a_narrow_screen_light_and_dark(
    browser: Page, file: Path, width: int, height: int
):
    browser.open(file, width=width, height=height, mobile=width < 600)
    browser.run("seek(40)")
    brightness = []
    for dark in (False, True):
        browser.prefer(dark=dark)
        browser.run(TWO_FRAMES)
        brightness.append(pixels(browser).mean())
    assert brightness[0] > 0.7 and brightness[1] < 0.35
    controls = ("#play", "#slider", "#speed", "#camera")
    places = boxes(browser, ("header", "footer", "#hint", "#return", "#note", *controls))
    for name, (left, top, right, bottom) in places.items():
        assert 0 <= left < right <= width and 0 <= top < bottom <= height, (name, places[name])
    assert places["#slider"][2] - places["#slider"][0] > 250, "pixels for the steps"
    assert places["header"][3] < places["footer"][1] - height / 3, "room for the bodies"
    for one, other in combinations(controls, 2):
        (left, top, right, bottom), (its_left, its_top, its_right, its_bottom) = (
            places[one],
            places[other],
        )
        apart = right <= its_left or its_right <= left or bottom <= its_top or its_bottom <= top
        assert apart, f"{one} overlaps {other}"
    assert browser.run("document.documentElement.scrollWidth") <= width


@needs_chromium
def test_without_webgl_it_says_so_and_still_counts(browser: Page, file: Path):
    script = browser.ask(
        "Page.addScriptToEvaluateOnNewDocument",
        source="HTMLCanvasElement.prototype.getContext = () => null",
    )
    browser.open(file)
    browser.run("seek(80)")
    assert settled_text(browser, "step") == str(STEPS)
    assert "no WebGL" in text(browser, "note")
    browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
