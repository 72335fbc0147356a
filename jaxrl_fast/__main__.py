"""``python -m jaxrl_fast``: the list of commands."""

import sys

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
    """Print the commands.

    Returns:
        Exit code: 0, or 2 if there are arguments, which belong to a command.
    """
    words = [word for word in sys.argv[1:] if word not in ("-h", "--help")]
    if words:
        print(
            f"jaxrl_fast: error: unknown word '{words[0]}': write python -m jaxrl_fast.train ...",
            file=sys.stderr,
        )
        return 2
    print("python -m jaxrl_fast.<command> --help")
    for name, text in COMMANDS.items():
        print(f"  {name:<10} {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
