"""``python -m jaxrl_fast.render runs/latest``: draw greedy episodes of a run's policy as GIF or
MP4.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from jaxrl_fast import envs
from jaxrl_fast.commands import cli
from jaxrl_fast.commands.cli import POLICIES, check_spaces, open_run, read_words
from jaxrl_fast.envs.env import Env
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.settings.machine import setup
from jaxrl_fast.settings.run import Run
from jaxrl_fast.settings.schema import MAX_SEED, ConfigError, Key
from jaxrl_fast.system import replace_file
from jaxrl_fast.views.renderers import Shot, Subject, check_out, encode, offer_gl, subject_of
from jaxrl_fast.views.report_page import REPORT_FILE, write_report
from jaxrl_fast.views.viewer import write_policy_html

KEYS = {
    "out": Key(
        str,
        None,
        text="RUN/policy.gif, another .gif, .mp4 (pip install 'jaxrl_fast[video]') or, of brax, .html",
        path=True,
    ),
    "policy": Key(Literal["newest", "best"], "newest", text="which of the run"),
    "episodes": Key(int, 1, 1, "number of episodes, one after another", 100),
    "seed": Key(
        int, 0, 0, "seed of the first episode; the next ones have the following numbers", MAX_SEED
    ),
    "seconds": Key(int, 20, 1, "longest duration of an episode, in the environment's time", 3600),
    "fps": Key(
        int, 25, 1, "most pictures per second; steps between two pictures are not drawn", 50
    ),
    "width": Key(
        int,
        480,
        16,
        "largest width of pictures in pixels; small ones are enlarged by a whole factor",
        4096,
    ),
}
HELP = cli.help_of("render RUN", KEYS, cli.OF_RUN)
ENDS = {
    "terminated": "ended by the environment",
    "truncated": "ended by the time limit",
    "cut": "cut here",
}
PAUSE_S = 1.0
"""Duration of an episode's last picture in seconds."""


def render_run(words: Sequence[str]) -> int:
    """Play greedy episodes of a run's policy, draw them, and print the file.

    Args:
        words: Words of the command line.

    Returns:
        Exit code.

    Raises:
        ValueError: Invalid words, or the environment cannot be drawn.
    """
    folder, options = read_words(words, "render", KEYS)
    which, out = options["policy"], Path(options["out"] or folder / "policy.gif")
    if options["out"] is not None:
        check_out(out)
    offer_gl()
    setup()
    # An accelerator may be busy training, and one environment does not need it.
    jax.config.update("jax_platforms", "cpu")
    run, policy = open_run(folder, POLICIES[which], options["settings"])
    if out.suffix == ".html":
        write_page(run, policy, folder, out, options["seed"])
        return 0
    with subject_of(run.env, run.env_options) as subject:
        check_spaces(policy, subject.spec, folder)
        print(f"{folder}: {policy.spec.name}, {policy.made_by['algo']}, {which} policy", flush=True)
        every = max(1, round(1 / (options["fps"] * subject.step_s)))
        picture_s = every * subject.step_s
        content, sizes = encode(
            pictures_of(subject, policy, options, every, picture_s), out.suffix, picture_s
        )
    replace_file(out, content)
    if options["out"] is None and (folder / REPORT_FILE).is_file():
        write_report(folder)  # which shows the picture
    size = f"{len(sizes)} pictures of {sizes[0][1]} × {sizes[0][0]}"
    print(f"{out}: {size}, {len(sizes) * picture_s:.1f} s, {len(content) / 1000:,.0f} kB")
    return 0


def pictures_of(
    subject: Subject, policy: Policy, options: dict[str, Any], every: int, picture_s: float
) -> Iterator[np.ndarray]:
    """Draw all episodes, and print the result of each.

    Args:
        subject: Environment with a camera.
        policy: Policy.
        options: Values of `KEYS`.
        every: Steps between pictures.
        picture_s: Duration of a picture in seconds.

    Returns:
        Iterator over pictures, uint8 ``[H, W, 3]``.
    """
    max_steps = max(1, round(options["seconds"] / subject.step_s))
    for episode in range(options["episodes"]):
        seed = (options["seed"] + episode) % (MAX_SEED + 1)
        shot: Shot | None = None
        for shot in subject.shoot(
            policy, seed=seed, max_steps=max_steps, every=every, width=options["width"]
        ):
            yield shot.picture
        assert shot is not None
        yield from [shot.picture] * round(PAUSE_S / picture_s)
        print(
            f"seed {seed}: {shot.steps:,} steps, return {shot.returned:.1f}, {ENDS[shot.end]}",
            flush=True,
        )


def write_page(run: Run, policy: Policy, folder: Path, out: Path, seed: int) -> None:
    """Write an episode as a page with a viewer.

    Args:
        run: Settings of the run.
        policy: Policy.
        folder: Folder of the run.
        out: File to write.
        seed: Seed of the episode.

    Raises:
        ConfigError: The environment has no bodies.
    """
    env = None if envs.is_host(run.env) else envs.make_to_draw(run.env, **run.env_options)
    if not isinstance(env, Env) or env.bodies is None:
        raise ConfigError(
            f"out={out}: pages are for environments with bodies, such as brax's: write out=....gif"
        )
    check_spaces(policy, env.spec, folder)
    write_policy_html(policy, env, out, seed=seed)
    print(f"{out}: seed {seed}, {out.stat().st_size / 1000:,.0f} kB, opens in any browser")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("render", render_run, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
