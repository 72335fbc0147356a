"""Episodes as GIF and MP4: the pictures show the episode that evaluation counts, with every
renderer.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_commands import Commands, refusal
from PIL import Image
from untrained import untrained_run

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.envs import drawings, from_gymnax
from jaxrl_fast.envs.env_checks import check_start
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.training.episodes import evaluate_episodes, evaluation_on_host
from jaxrl_fast.views import renderers
from jaxrl_fast.views.renderers import Shot, picked, subject_of

OWN = '''
import gymnasium, jax, jax.numpy as jnp, numpy as np, jaxrl_fast as jf

def make():
    """A point that walks to the right, and falls off at 3."""
    def reset(key, params):
        return jnp.zeros(1), jnp.zeros(1)
    def step(x, action, key):
        x = x + 1.0
        return x, jf.Timestep(x, x, x[0], x[0] >= 3, jnp.zeros((), bool))
    def draw(x):
        picture = np.zeros((2, 6, 3), np.uint8)
        picture[1, int(x[0])] = 255
        return picture
    spec = jf.EnvSpec("walk", jax.ShapeDtypeStruct((1,), jnp.float32), jf.Discrete(2), max_episode_steps=50)
    return jf.Env(spec, reset, step, step_s=0.5, draw=draw)

class Walk(gymnasium.Env):
    """The same on the host, but its steps pay by the seed."""
    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}

    def __init__(self, render_mode=None):
        self.render_mode, self.x = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.pay = 0, float(self.np_random.random())
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.x += 1
        return np.full(1, self.x, np.float32), self.pay, self.x >= 3, False, {}

    def render(self):
        picture = np.zeros((2, 6, 3), np.uint8)
        picture[1, self.x] = 255
        return picture

def blind():
    return Walk()
'''


def shots_of(
    policy: Policy, name: str, seed: int = 0, max_steps: int = 40, every: int = 1, **options
) -> list[Shot]:
    with subject_of(name, options) as subject:
        return list(subject.shoot(policy, seed=seed, max_steps=max_steps, every=every, width=480))


def frames_of(gif: Path) -> tuple[list[np.ndarray], list[int]]:
    """Return the pictures of a GIF, and the duration of each in ms. Equal successive pictures count
    as one.
    """
    frames, times = [], []
    with Image.open(gif) as image:
        for index in range(image.n_frames):
            image.seek(index)
            frames.append(np.asarray(image.convert("RGB")))
            times.append(image.info["duration"])
        assert image.info["loop"] == 0
    return frames, times


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a package, for runs."""
    (tmp_path / "own_pictures.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


# Files.


def test_a_gif_holds_the_pictures_for_their_time(tmp_path: Path):
    colors = [(255, 0, 0), (0, 255, 0), (10, 20, 230), (10, 20, 230)]
    pictures = [np.full((4, 6, 3), color, np.uint8) for color in colors]
    content, sizes = renderers.encode(iter(pictures), ".gif", 0.05)
    (tmp_path / "x.gif").write_bytes(content)
    frames, times = frames_of(tmp_path / "x.gif")
    assert sizes == [(4, 6)] * 4
    np.testing.assert_array_equal(frames, pictures[:3])
    assert times == [50, 50, 100]


def test_an_mp4_holds_the_pictures_for_their_time(tmp_path: Path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    pictures = [np.full((33, 48, 3), 40 * i, np.uint8) for i in range(6)]
    (tmp_path / "x.mp4").write_bytes(renderers.encode(pictures, ".mp4", 0.2)[0])
    words = ["-i", tmp_path / "x.mp4", "-f", "rawvideo", "-pix_fmt", "gray", "-"]
    read = subprocess.run([ffmpeg.get_ffmpeg_exe(), *words], capture_output=True, timeout=900)
    frames = np.frombuffer(read.stdout, np.uint8).reshape(6, 32, 48)
    np.testing.assert_allclose(frames.mean(axis=(1, 2)), [40 * i for i in range(6)], atol=4)
    about = read.stderr.decode()
    assert "Video: h264" in about and "yuv420p" in about and " 5 fps" in about


def test_pictures_are_enlarged_by_whole_pixels_and_made_smaller_by_means():
    picture = np.random.default_rng(0).integers(0, 255, (4, 6, 3), np.uint8)
    large = renderers.fitted(picture, 20)
    assert large.shape == (12, 18, 3)
    np.testing.assert_array_equal(large[1::3, 1::3], picture)
    small = renderers.fitted(picture, 3)
    assert small.shape == (2, 3, 3)
    np.testing.assert_allclose(small[0, 0], picture[:2, :2].mean(axis=(0, 1)), atol=1)


@pytest.mark.parametrize(
    ("last", "every", "steps"),
    [(6, 2, [0, 2, 4, 6]), (5, 2, [0, 2, 4, 5]), (1, 9, [0, 1]), (2, 1, [0, 1, 2])],
)
def test_the_first_and_the_last_state_are_always_seen(last: int, every: int, steps: list[int]):
    assert picked(last, every) == steps


# Drawn from the state.


def state_of(id: str, **fields: float):
    env = from_gymnax.make(id)
    state, _ = env.reset(jax.random.key(0), ())
    return env, state._replace(state=state.state.replace(**fields))


def color_at(
    picture: np.ndarray, x: float, y: float, center: tuple[float, float], height: float
) -> str:
    """Return the color at a point in the environment's units, in HTML notation."""
    scale = picture.shape[0] / height
    column, row = (
        picture.shape[1] / 2 + (x - center[0]) * scale,
        picture.shape[0] / 2 - (y - center[1]) * scale,
    )
    return "#" + bytes(picture[round(row), round(column)]).hex()


@pytest.mark.parametrize(
    ("id", "fields", "center", "height", "there", "not_there"),
    [
        ("CartPole-v1", {"x": 1.0, "theta": 0.5}, (0, 0.5), 3.4, (1.38, 0.7), (0.62, 0.7)),
        ("CartPole-v1", {"x": -1.0, "theta": 0.0}, (0, 0.5), 3.4, (-1.0, 0.9), (1.0, 0.9)),
        ("Pendulum-v1", {"theta": 0.0, "last_u": 0.0}, (0, 0), 2.8, (0.0, 0.8), (0.0, -0.8)),
        ("Pendulum-v1", {"theta": 1.57, "last_u": 0.0}, (0, 0), 2.8, (-0.8, 0.0), (0.8, 0.0)),
        (
            "Acrobot-v1",
            {"joint_angle1": 0.0, "joint_angle2": 1.57},
            (0, 0),
            4.6,
            (0.8, -1.0),
            (-0.8, -1.0),
        ),
        ("MountainCar-v0", {"position": -0.52}, (-0.3, 0.5), 1.2, (-0.52, 0.0), (-0.52, 0.3)),
    ],
)
def test_lines_stand_where_the_state_says(
    id: str, fields: dict, center, height: float, there, not_there
):
    env, state = state_of(id, **{name: jnp.float32(value) for name, value in fields.items()})
    picture = env.draw(state)
    assert color_at(picture, *there, center, height) == drawings.BODY
    assert color_at(picture, *not_there, center, height) != drawings.BODY


def test_a_grid_shows_its_channels_in_their_colors():
    where = {"pos": 7, "ball_x": 2, "ball_y": 6, "last_x": 1, "last_y": 7}
    env, state = state_of(
        "Breakout-MinAtar", **{name: jnp.int32(place) for name, place in where.items()}
    )
    picture, colors = env.draw(state), drawings.CHANNEL_COLORS
    assert picture.shape == (10, 10, 3)
    assert [tuple(picture[at]) for at in ((9, 7), (6, 2), (7, 1))] == list(colors[:3])
    assert np.all(picture[1:4] == colors[3])


def test_gymnax_environments_with_lines_or_a_grid_are_drawn_and_others_are_not():
    drawn = {id for id in from_gymnax.ids() if from_gymnax.make(id).draw is not None}
    grids = {"Catch-bsuite", "DeepSea-bsuite", "Pong-misc"} | {
        id for id in from_gymnax.ids() if "MinAtar" in id
    }
    assert drawn == {*drawings.LINES, *grids}


def test_the_pictures_are_those_of_the_episode_that_is_evaluated(tmp_path: Path):
    policy = untrained_run(tmp_path, "env=cartpole")
    env = jf.make_env("cartpole", num_envs=1)
    counted = evaluate_episodes(policy, env, jax.random.key(7), episodes=1)
    shots = shots_of(policy, "cartpole", seed=7, every=3)
    assert shots[-1].steps == int(counted.length[0]) and shots[-1].returned == float(
        counted.returns[0]
    )
    assert [shot.end for shot in shots] == [""] * (len(shots) - 1) + ["terminated"]
    assert shots[-1].picture.shape == (320, 480, 3)
    with_pole = [
        np.flatnonzero((shot.picture == (240, 128, 63)).all(axis=2).any(axis=0)) for shot in shots
    ]
    leans = [columns[-1] - columns[0] for columns in with_pole]
    assert leans[-1] > 2 * leans[0], "the last picture shows the fall"
    assert shots_of(policy, "cartpole", max_steps=4)[-1]._replace(picture=None) == (
        None,
        4,
        4.0,
        "cut",
    )
    assert shots_of(policy, "cartpole", episode_length=4)[-1].end == "truncated"


# A user's renderer.


def test_a_world_of_ones_own_is_drawn_by_its_draw(own: Path):
    policy = untrained_run(own / "run", "env=custom", "env.make=own_pictures.make")
    shots = shots_of(policy, "custom", make="own_pictures.make")
    places = [int(shot.picture[-1, :, 0].argmax()) // 80 for shot in shots]
    assert (places, shots[-1].returned, shots[-1].end) == ([0, 1, 2, 3], 6.0, "terminated")


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda x: np.zeros((2, 2, 3)), r"draw gives float64\[2, 2, 3\]: write uint8"),
        (
            lambda x: np.zeros((2, 2), np.uint8),
            r"draw gives uint8\[2, 2\]: write uint8\[height, width, 3\]",
        ),
        (lambda x: [[1, 2, 3]], r"draw gives list\[1, 3\]"),
        (lambda x: 1 / 0, "draw failed: ZeroDivisionError"),
    ],
)
def test_what_is_no_picture_is_refused_before_training(own: Path, draw, says: str):
    env = envs.make("custom", make="own_pictures.make")
    with pytest.raises(ValueError, match=says):
        check_start(env._replace(draw=draw), "mine")


def counted_on_host(policy: Policy, name: str, seed: int = 0, **options) -> tuple[float, int]:
    """Compute an evaluation's numbers: the return and the length of an episode."""
    host = jf.make_env(name, num_envs=1, pool={"workers": 0, "num_groups": 1}, **options)
    params = jax.tree.map(lambda x: x[None], policy.params)
    totals = evaluation_on_host(policy, host, 1)(params, jax.random.key(seed)[None])
    host.close()
    return float(totals.returns[0, 0]), int(totals.length[0, 0])


def test_one_of_gymnasium_shows_its_last_state_and_not_the_next_episode(own: Path):
    policy = untrained_run(own / "run", "env=custom", "env.make=own_pictures.Walk")
    shots = shots_of(policy, "custom", make="own_pictures.Walk", every=2)
    places = [int(shot.picture[-1, :, 0].argmax()) // 80 for shot in shots]
    assert (places, shots[-1].end) == ([0, 2, 3], "terminated")
    assert (shots[-1].returned, 3) == counted_on_host(policy, "custom", make="own_pictures.Walk")
    with pytest.raises(
        ValueError, match="its render_mode is None, and only rgb_array gives pictures"
    ):
        shots_of(policy, "custom", make="own_pictures.blind")


def test_one_that_needs_a_package_to_be_drawn_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    policy = untrained_run(tmp_path, "env=gymnasium", "env.id=CartPole-v1")
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(
        ValueError, match=r"CartPole-v1 cannot be drawn: .* pip install 'jaxrl_fast\[video\]'$"
    ):
        shots_of(policy, "gymnasium", id="CartPole-v1")


def test_a_game_is_the_one_that_is_evaluated(tmp_path: Path):
    pytest.importorskip("ale_py")
    options = {"id": "Freeway", "noop_max": 3, "episode_length": 12, "screen_size": 36}
    words = [f"env.{name}={value}" for name, value in options.items() if name != "screen_size"]
    policy = untrained_run(tmp_path, "env=atari", *words, "+env.screen_size=36")
    shots = shots_of(policy, "atari", seed=3, every=5, **options)
    assert [shot.steps for shot in shots] == [0, 5, 10, 12] and shots[-1].end == "truncated"
    assert {shot.picture.shape for shot in shots} == {(630, 480, 3)}
    assert np.any(shots[0].picture != shots[-1].picture)
    assert (shots[-1].returned, 12) == counted_on_host(policy, "atari", seed=3, **options)


# Bodies.

GL = """
import numpy as np
from jaxrl_fast.views.renderers import drawn_by_gl, offer_gl
offer_gl()
from test_viewer_page import a_run, every_kind
pictures = drawn_by_gl(every_kind(), a_run(), (0, 1, 80), 240)
np.save("pictures.npy", np.stack(list(pictures)))
"""


def colorful(picture: np.ndarray) -> np.ndarray:
    """Return the pixels of bodies, bool ``[height, width]``."""
    return picture.max(axis=2).astype(int) - picture.min(axis=2) > 64


def check_bodies(pictures: np.ndarray) -> None:
    """Check that the row of bodies is in the middle, also after 400 metres, and turns."""
    for picture in pictures:
        rows, columns = np.nonzero(colorful(picture))
        assert 400 < len(rows) < 4000
        assert 60 < rows.mean() < 110 and 90 < columns.mean() < 150
    assert (colorful(pictures[0]) != colorful(pictures[1])).sum() < (
        colorful(pictures[0]) != colorful(pictures[2])
    ).sum()


@pytest.fixture(scope="module")
def by_gl(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    folder = tmp_path_factory.mktemp("gl")
    tests = str(Path(__file__).parent)
    drawn = commands.run(
        folder, "python", f"import sys; sys.path.insert(0, {tests!r})", *GL.splitlines()
    )
    if drawn.status:
        pytest.skip(f"no GL without a screen here: apt install libosmesa6: {drawn.err[-300:]}")
    return np.load(folder / "pictures.npy")


def test_mujoco_draws_every_kind_of_body(by_gl: np.ndarray):
    assert by_gl.shape == (3, 160, 240, 3) and by_gl.dtype == np.uint8
    check_bodies(by_gl)


# The command.


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    untrained_run(folder / "cartpole", "env=cartpole")
    untrained_run(folder / "probe", "env=probe", "env.id=value")
    untrained_run(folder / "pendulum", "env=inverted_pendulum", "env.episode_length=20")
    return folder


def test_the_command_draws_what_it_says(commands: Commands, runs: Path):
    ended = commands.run(
        runs, "render", "cartpole", "episodes=2", "seed=7", "width=96", "fps=50", trains=True
    )
    assert (ended.status, ended.err) == (0, "")
    first, *episodes, last = ended.out.splitlines()
    assert first == "cartpole: CartPole-v1, ppo, newest policy"
    counts = [
        re.fullmatch(r"seed (\d): (\d+) steps, return ([\d.]+), ended by the environment", e)
        for e in episodes
    ]
    assert [found and found[1] for found in counts] == ["7", "8"]
    steps = [int(found[2]) for found in counts if found]
    pictures = sum(steps) + 2 + 2 * 50  # the first states, and a second at each end
    assert last.startswith(
        f"cartpole/policy.gif: {pictures} pictures of 96 × 64, {pictures / 50:.1f} s, "
    )
    frames, times = frames_of(runs / "cartpole" / "policy.gif")
    assert sum(times) == 20 * pictures and frames[0].shape == (64, 96, 3)
    assert not list((runs / "cartpole").glob("*.unfinished"))


def test_a_mistake_ends_in_one_line(commands: Commands, runs: Path):
    said = {
        "": "write the path of one run's folder",
        "nowhere": "nowhere contains no run",
        "cartpole out=x.avi": "out=x.avi: write a file that ends in .gif, .mp4 or .html",
        "cartpole out=no/x.gif": "there is no folder no",
        "cartpole out=x.html": "pages are for environments with bodies, such as brax's: write out=....gif",
        "cartpole frames=3": (
            "unknown key 'frames': the keys of render are out, policy, episodes, seed, seconds, fps and width"
        ),
        "cartpole fps=100": "fps=100: write a number of at most 50",
        "cartpole policy=last": "policy=last: write one of newest, best",
        "cartpole policy=best": "cartpole/policy/best holds no policy",
        "probe": "probe value cannot be drawn: its Env has no draw. Write a function",
    }
    ended = commands.run_all(runs, [["render", *words.split()] for words in said])
    for one, (words, expected) in zip(ended, said.items(), strict=True):
        assert expected in refusal(one), words


def test_brax_is_drawn_as_a_page_or_says_what_to_install(commands: Commands, runs: Path):
    page = runs / "page.html"
    ended = commands.run(runs, "render", "pendulum", f"out={page}", "seed=3", trains=True)
    assert ended.status == 0, ended.err
    (data,) = re.findall(
        r'<script type="application/json" id="episode">(.*?)</script>', page.read_text("utf-8")
    )
    assert json.loads(data)["steps"] == 20
    nothing = {"PATH": "", "MUJOCO_GL": "off"}
    ended = commands.run(runs, "render", "pendulum", "seconds=1", trains=True, **nothing)
    (line,) = [line for line in ended.err.splitlines() if line.startswith("jaxrl_fast: error: ")]
    assert ended.status == 2
    assert "apt install libosmesa6" in line and "or write out=....html" in line
    assert not (runs / "pendulum" / "policy.gif").exists()


def test_brax_is_drawn_by_mujoco(commands: Commands, runs: Path, by_gl: np.ndarray):
    ended = commands.run(runs, "render", "pendulum", "seconds=1", "width=120", trains=True, PATH="")
    assert (ended.status, ended.err) == (0, "")
    frames, _ = frames_of(runs / "pendulum" / "policy.gif")
    assert frames[0].shape == (80, 120, 3) and colorful(frames[0]).sum() > 30
