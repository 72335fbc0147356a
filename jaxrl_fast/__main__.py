"""``python -m jaxrl_fast``: the list of commands."""

import sys

from jaxrl_fast.plugins import PluginFailed, load, registered
from jaxrl_fast.process import raise_at_ctrl_c

COMMANDS = {
    "train": "train a policy: python -m jaxrl_fast.train env=halfcheetah",
    "check": "check an environment: python -m jaxrl_fast.check env=custom env.make=my_package.make",
    "explain": "show a run's fragments and devices: python -m jaxrl_fast.explain env=halfcheetah",
    "autotune": "find the fastest settings here: python -m jaxrl_fast.autotune env=halfcheetah",
    "sweep": "search rates, or train a population: python -m jaxrl_fast.sweep env=halfcheetah sample.algo...",
    "evaluate": "evaluate a trained policy: python -m jaxrl_fast.evaluate <run folder> episodes=100",
    "collect": "write episodes of its policy to files: python -m jaxrl_fast.collect <run folder> out=data/walk",
    "render": "draw its episodes as GIF or MP4: python -m jaxrl_fast.render <run folder>",
    "report": "show runs on one page: python -m jaxrl_fast.report <run folder> [<another> ...]",
    "dashboard": "show runs on a live page: python -m jaxrl_fast.dashboard",
    "export": "write a policy as JAX and ONNX files: python -m jaxrl_fast.export <run folder>",
}


def main() -> int:
    """Print the commands, or run one of another package.

    Returns:
        Exit code of the command; 0, or 2 if the first word is no command of another package.
    """
    if sys.argv[1:2] and sys.argv[1] not in ("-h", "--help"):
        return run_registered(sys.argv[1], sys.argv[2:])
    print("python -m jaxrl_fast.<command> --help")
    for name, text in COMMANDS.items():
        print(f"  {name:<10} {text}")
    for name in registered("commands"):
        print(f"  {name:<10} of another package: python -m jaxrl_fast {name}")
    return 0


def run_registered(name: str, words: list[str]) -> int:
    """Run a command of another package.

    Args:
        name: Name that it registers.
        words: Words after it.

    Returns:
        Its exit code; 2 if there is none of this name, or it cannot be loaded.
    """
    try:
        command = load("commands", name)
    except PluginFailed as error:
        print(f"jaxrl_fast: error: {error}", file=sys.stderr)
        return 2
    if command is not None:
        raise_at_ctrl_c()
        return int(command(words) or 0)
    instead = name if name in COMMANDS else "train"
    print(
        f"jaxrl_fast: error: unknown word '{name}': write python -m jaxrl_fast.{instead} ...",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
