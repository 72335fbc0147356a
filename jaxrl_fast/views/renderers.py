"""Episodes as GIF and MP4: drawing of each suite, bodies by MuJoCo's OpenGL, and encoding."""

import io
import math
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from ctypes.util import find_library
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import numpy as np
from PIL import Image

from jaxrl_fast import envs
from jaxrl_fast.core import EnvSpec
from jaxrl_fast.envs.env import Env, Geom, Motion, Scene
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.training.episodes import act_by_step, host_seed, steps_on_host
from jaxrl_fast.views.viewer import Watched, check_finite, watch, watch_bodies

SUFFIXES = (".gif", ".mp4", ".html")
"""Suffixes of files with an episode; `views.viewer` writes pages."""


def check_out(path: Path) -> None:
    """Check that a file can be written.

    Args:
        path: File.

    Raises:
        ValueError: Unsupported suffix, missing ffmpeg, or missing folder.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"out={path}: write a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )
    if path.suffix == ".mp4" and _find_ffmpeg() is None:
        raise ValueError(
            f"out={path} needs ffmpeg: pip install 'jaxrl_fast[video]', or write out=....gif"
        )
    if not path.parent.is_dir():
        raise ValueError(
            f"out={path}: there is no folder {path.parent}: make it, or write another one"
        )


def encode(
    pictures: Iterable[np.ndarray], suffix: str, picture_s: float
) -> tuple[bytes, list[tuple[int, int]]]:
    """Encode pictures as GIF or MP4.

    Args:
        pictures: Pictures, uint8 ``[H, W, 3]``.
        suffix: ``.gif`` or ``.mp4``.
        picture_s: Duration of a picture in seconds.

    Returns:
        Content of the file, and height and width of each picture.
    """
    sizes: list[tuple[int, int]] = []

    def counted() -> Iterator[np.ndarray]:
        for picture in pictures:
            sizes.append(picture.shape[:2])
            yield picture

    return (_gif if suffix == ".gif" else _mp4)(counted(), picture_s), sizes


def fitted(picture: np.ndarray, width: int) -> np.ndarray:
    """Scale a picture to at most a width: a smaller one by a whole factor, a larger one by
    averaging.

    Args:
        picture: Picture, uint8 ``[H, W, 3]``.
        width: Width in pixels.

    Returns:
        The picture.
    """
    image = Image.fromarray(picture)
    times = width // image.width
    if times >= 1:
        return picture.repeat(times, axis=0).repeat(times, axis=1)
    return np.asarray(
        image.resize(
            (width, max(1, round(image.height * width / image.width))), Image.Resampling.BOX
        )
    )


def _gif(pictures: Iterator[np.ndarray], picture_s: float) -> bytes:
    # The format stores hundredths of a second, and browsers replace less than two by ten.
    duration_ms = 10 * max(2, round(100 * picture_s))
    images = (Image.fromarray(picture).quantize(dither=Image.Dither.NONE) for picture in pictures)
    file = io.BytesIO()
    next(images).save(
        file, "GIF", save_all=True, append_images=images, duration=duration_ms, loop=0
    )
    return file.getvalue()


def _mp4(pictures: Iterator[np.ndarray], picture_s: float) -> bytes:
    first = next(pictures)
    height, width = first.shape[:2]
    source = [
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-s",
        f"{width}x{height}",
        "-r",
        str(1 / picture_s),
        "-i",
        "-",
    ]
    # Colors are stored for squares of two by two pixels.
    made = [
        "-vf",
        "crop=trunc(iw/2)*2:trunc(ih/2)*2",
        "-pix_fmt",
        "yuv420p",
        "-movflags",
        "faststart",
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "movie.mp4"
        command = [_find_ffmpeg() or "ffmpeg", "-loglevel", "error", *source, *made, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as ffmpeg:
            assert ffmpeg.stdin is not None
            for picture in chain([first], pictures):
                ffmpeg.stdin.write(picture.tobytes())
        return path.read_bytes()


def _find_ffmpeg() -> str | None:
    if find_spec("imageio_ffmpeg") is None:
        return shutil.which("ffmpeg")
    import imageio_ffmpeg

    return str(imageio_ffmpeg.get_ffmpeg_exe())


FIELD_OF_VIEW = 35.0
TOWARDS_CAMERA = np.array((0.45, -1.0, 0.32))
"""Direction from the target to the camera: from the side and slightly above, as in ``policy.html``.
"""
SKY, TILES = (0.93, 0.94, 0.96), ((0.80, 0.83, 0.87), (0.72, 0.76, 0.81))
BODIES, FIXED = ((0.94, 0.50, 0.25, 1.0), (0.86, 0.40, 0.19, 1.0)), (0.55, 0.58, 0.63, 1.0)
"""Two alternating colors, so that crossing limbs are distinguishable; and the color of static
shapes.
"""
SHADOW_PIXELS = 1024
"""A quarter of MuJoCo's default: four times as fast without a GPU, and no visible difference at
this size.
"""
INSTALL_GL = "install a GL that needs no screen (apt install libosmesa6)"


def offer_gl() -> None:
    """Set ``MUJOCO_GL`` to a GL that draws without a screen, if there is one and none is set.

    Call it before MuJoCo is imported, which reads the variable. Gymnasium reads it, too.
    """
    if sys.platform != "linux" or {"MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        return
    for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if find_library(library):
            os.environ["MUJOCO_GL"] = name
            return


def drawn_by_gl(
    scene: Scene, motion: Motion, steps: Iterable[int], width: int
) -> Iterator[np.ndarray]:
    """Draw a motion with MuJoCo's OpenGL.

    Args:
        scene: Bodies.
        motion: Motion of the bodies.
        steps: Steps to draw.
        width: Width in pixels.

    Returns:
        Iterator over pictures, uint8 ``[2 / 3 width, width, 3]``. Without a GL, the first one
        raises one of many errors.
    """
    import mujoco

    height = width * 2 // 3
    model = _model(scene, motion, (width, height))
    data = mujoco.MjData(model)
    center, radius = _bounds(mujoco, model, data, motion)
    ways = motion.positions.mean(axis=1) - motion.positions[0].mean(axis=0)
    # The camera does not follow a robot on a table, where only the arm would move the mean.
    follows = np.linalg.norm(ways, axis=1).max() > radius
    camera = _camera(mujoco, radius)
    model.stat.extent = 3 * radius  # extent of shadows
    with closing(mujoco.Renderer(model, height, width)) as renderer:
        for step in steps:
            _pose(mujoco, model, data, motion, step)
            camera.lookat = center + (ways[step] if follows else 0)
            data.light_xpos[0] = camera.lookat - 3 * radius * data.light_xdir[0]
            renderer.update_scene(data, camera)
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            yield renderer.render()


def _model(scene: Scene, motion: Motion, pixels: tuple[int, int]) -> Any:
    """Make a model with the geoms of ``scene`` on bodies that can be placed anywhere."""
    import mujoco

    spec = mujoco.MjSpec()
    spec.visual.global_.offwidth, spec.visual.global_.offheight = pixels
    spec.visual.global_.fovy = FIELD_OF_VIEW
    spec.visual.quality.shadowsize = SHADOW_PIXELS
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = [0.45] * 3, [0.2] * 3
    spec.visual.headlight.specular = [0.0] * 3
    sky = {"type": mujoco.mjtTexture.mjTEXTURE_SKYBOX, "builtin": mujoco.mjtBuiltin.mjBUILTIN_FLAT}
    spec.add_texture(name="sky", **sky, rgb1=SKY, rgb2=SKY, width=64, height=64)
    tiles = {"type": mujoco.mjtTexture.mjTEXTURE_2D, "builtin": mujoco.mjtBuiltin.mjBUILTIN_CHECKER}
    spec.add_texture(name="tiles", **tiles, rgb1=TILES[0], rgb2=TILES[1], width=128, height=128)
    ground = spec.add_material(name="ground", texrepeat=[0.5, 0.5], texuniform=True)
    ground.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "tiles"
    spec.worldbody.add_light(
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        dir=[0.3, 0.5, -1.0],
        diffuse=[0.6] * 3,
        specular=[0.1] * 3,
    )
    bodies = [spec.worldbody.add_body(mocap=True) for _ in range(motion.positions.shape[1])]
    for number, geom in enumerate(scene.geoms):
        _add(mujoco, spec, bodies[geom.body] if geom.body >= 0 else spec.worldbody, geom, number)
    return spec.compile()


def _add(mujoco: Any, spec: Any, body: Any, geom: Geom, number: int) -> None:
    """Add a geom to a body; kinds that the page does not draw are skipped, too."""
    kind = getattr(mujoco.mjtGeom, f"mjGEOM_{geom.kind.upper()}", None)
    options: dict[str, Any] = {
        "size": geom.size,
        "rgba": geom.color or (BODIES[geom.body % 2] if geom.body >= 0 else FIXED),
    }
    if geom.kind == "plane":
        options |= {"size": [0.0, 0.0, 1.0], "material": "ground", "rgba": [1.0] * 4}  # infinite
    elif geom.mesh is not None:
        vertices, faces = geom.mesh
        mesh = spec.add_mesh(
            name=f"mesh{number}", inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
        )
        mesh.uservert, mesh.userface = vertices.ravel().tolist(), faces.ravel().tolist()
        options |= {"meshname": mesh.name, "size": [0.0] * 3}
    if kind is not None:
        body.add_geom(type=kind, pos=geom.position, quat=geom.rotation, **options)


def _pose(mujoco: Any, model: Any, data: Any, motion: Motion, step: int) -> None:
    data.mocap_pos[:], data.mocap_quat[:] = motion.positions[step], motion.rotations[step]
    mujoco.mj_kinematics(model, data)
    mujoco.mj_camlight(model, data)


def _bounds(mujoco: Any, model: Any, data: Any, motion: Motion) -> tuple[np.ndarray, float]:
    """Return center and radius of a sphere around everything finite at the start of the motion."""
    _pose(mujoco, model, data, motion, 0)
    shown = model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE
    places, radii = data.geom_xpos[shown], model.geom_rbound[shown, None]
    low, high = (places - radii).min(axis=0), (places + radii).max(axis=0)
    return (low + high) / 2, float(np.linalg.norm(high - low) / 2)


def _camera(mujoco: Any, radius: float) -> Any:
    """Make a camera at a distance that shows a sphere of this radius."""
    camera = mujoco.MjvCamera()
    x, y, z = TOWARDS_CAMERA / np.linalg.norm(TOWARDS_CAMERA)
    camera.azimuth, camera.elevation = math.degrees(math.atan2(-y, -x)), -math.degrees(math.asin(z))
    camera.distance = 0.95 * radius / math.sin(math.radians(FIELD_OF_VIEW / 2))
    return camera


def drawn_bodies(
    scene: Scene, motion: Motion, steps: Iterable[int], width: int
) -> Iterator[np.ndarray]:
    """Draw a motion, after a check of its numbers.

    Args:
        scene: Bodies.
        motion: Motion of the bodies.
        steps: Steps to draw.
        width: Width in pixels.

    Returns:
        Iterator over pictures, uint8 ``[2 / 3 width, width, 3]``.

    Raises:
        ValueError: There is no GL, or a number is not finite.
    """
    check_finite(motion)
    by_gl = drawn_by_gl(scene, motion, steps, width)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of a missing screen
            first = next(by_gl)
    except (
        Exception
    ) as error:  # GLs raise different errors: ImportError, FatalError, AttributeError, OSError, ...
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".:")
        instead = f"{INSTALL_GL}, or write out=....html; MuJoCo's error: {reason}"
        raise ValueError(f"{scene.title} cannot be drawn here: {instead}") from error
    yield from chain([first], by_gl)


if TYPE_CHECKING:  # Gymnasium takes a second to import
    from jaxrl_fast.envs.pool.making import FilmedHost

HINTS = {"OpenGL": INSTALL_GL, "pygame": "it comes with pip install 'jaxrl_fast[video]'"}
"""A word in an error of an environment's renderer -> remedy."""


class Shot(NamedTuple):
    """A picture of an episode.

    Attributes:
        picture: RGB, uint8 ``[H, W, 3]``.
        steps: Steps so far.
        returned: Sum of the rewards so far.
        end: `Watched.end` in the last shot, else "".
    """

    picture: np.ndarray
    steps: int
    returned: float
    end: str


class Shoot(Protocol):
    """Plays an episode and draws it."""

    def __call__(
        self, policy: Policy, *, seed: int, max_steps: int, every: int, width: int
    ) -> Iterator[Shot]:
        """Return shots of the first state, of every ``every``-th state and of the last one.

        ``max_steps`` is the time limit, and ``width`` the largest width in pixels.
        """


class Subject(NamedTuple):
    """An environment with a camera.

    Attributes:
        spec: Observations, actions and time limit.
        step_s: Duration of a step in pictures, in seconds.
        shoot: Plays an episode and draws it.
    """

    spec: EnvSpec
    step_s: float
    shoot: Shoot


@contextmanager
def subject_of(name: str, options: dict[str, Any]) -> Iterator[Subject]:
    """Make an environment with a camera, and close it at exit.

    Args:
        name: Name for ``envs.make``.
        options: Options for ``envs.make``.

    Returns:
        Context manager of the environment.

    Raises:
        ValueError: The environment has no pictures.
    """
    made = envs.make_to_draw(name, **options)
    if not isinstance(made, Env):
        with closing(made.env):
            yield Subject(made.env.spec, made.step_s, _shoot_on_host(made))
    elif made.bodies is not None:
        yield _of_bodies(made, made.bodies.scene())
    elif made.draw is not None:
        yield Subject(made.spec, made.step_s, _shoot_states(made))
    else:
        raise ValueError(
            f"{made.spec.name} cannot be drawn: its Env has no draw. Write a function from a state to "
            "uint8[height, width, 3], and return env._replace(draw=...) from a custom make (env=custom)"
        )


def picked(last: int, every: int) -> list[int]:
    """List the steps to draw.

    Args:
        last: Last step.
        every: Steps between pictures.

    Returns:
        Steps, including the first and the last.
    """
    return [*range(0, last, every), last]


def _of_bodies(env: Env, scene: Scene) -> Subject:
    def shoot(
        policy: Policy, *, seed: int, max_steps: int, every: int, width: int
    ) -> Iterator[Shot]:
        motion, watched = watch_bodies(policy, env, jax.random.key(seed), max_steps=max_steps)
        steps = picked(len(watched.rewards), every)
        for step, picture in zip(steps, drawn_bodies(scene, motion, steps, width), strict=True):
            yield _shot(watched, step, picture)

    return Subject(env.spec, scene.step_s, shoot)


def _shoot_states(env: Env) -> Shoot:
    def shoot(
        policy: Policy, *, seed: int, max_steps: int, every: int, width: int
    ) -> Iterator[Shot]:
        assert env.draw is not None
        watched = watch(
            policy, env, jax.random.key(seed), see=lambda state: state, max_steps=max_steps
        )
        for step in picked(len(watched.rewards), every):
            state = jax.tree.map(lambda x, step=step: x[step], watched.seen)
            yield _shot(watched, step, fitted(env.draw(state), width))

    return shoot


def _shot(watched: Watched, step: int, picture: np.ndarray) -> Shot:
    last = step == len(watched.rewards)
    return Shot(picture, step, float(watched.rewards[:step].sum()), watched.end if last else "")


def _shoot_on_host(film: "FilmedHost") -> Shoot:
    def shoot(
        policy: Policy, *, seed: int, max_steps: int, every: int, width: int
    ) -> Iterator[Shot]:
        act = act_by_step(policy)
        host = host_seed(jax.random.key(seed))
        steps = steps_on_host(act, policy.initial_carry, film.env, policy.params, host)
        yield Shot(_picture(film, width), 0, 0.0, "")
        for number, (*_, step) in zip(range(1, max_steps + 1), steps, strict=False):
            end = "terminated" if step.terminated[0] else "truncated" if step.truncated[0] else ""
            end = end or ("cut" if number == max_steps else "")
            if end or number % every == 0:
                yield Shot(_picture(film, width), number, float(step.episode_return[0]), end)
            if end:
                return

    return shoot


def _picture(film: "FilmedHost", width: int) -> np.ndarray:
    try:
        return fitted(film.picture(), width)
    except Exception as error:  # of a window system, of a package that is not installed, ...
        reason = " ".join(str(error).split())
        hints = [hint for word, hint in HINTS.items() if word in reason]
        said = "; ".join([f"{type(error).__name__}: {reason}", *hints])
        raise ValueError(f"{film.env.spec.name} cannot be drawn: {said}") from error
