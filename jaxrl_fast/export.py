"""``python -m jaxrl_fast.export runs/latest``: write the policy of a run as files that do not need
jaxrl_fast.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxrl_fast.algorithms.registry import declared_named, factory_of
from jaxrl_fast.commands import cli
from jaxrl_fast.core import MAX_SIZE
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.policy.exporting import (
    FORMATS,
    NUM_OBSERVATIONS,
    describe,
    export_policy,
    has_onnx,
    signature,
)
from jaxrl_fast.policy.policies import best_of_sweep, load_policy
from jaxrl_fast.settings.machine import setup
from jaxrl_fast.settings.schema import ConfigError, Key
from jaxrl_fast.system import CODE

HELP = """python -m jaxrl_fast.export RUN [formats=jax,onnx] [agent=2]
  RUN         folder of a run, such as runs/latest, or of a policy, to which the files are added
  formats     jax: policy.jax, for jax.export.deserialize on cpu, cuda or tpu, with the JAX
                version that wrote it or a newer one
              onnx: policy.onnx, for any ONNX runtime; needs pip install onnx onnxruntime
              default: both, or jax where those packages are missing
  agent       write the policy of one of several agents, from 0, to a folder such as agent_2
              default: the policy of all agents
  algo.make, algo.network, algo.memory   again, if one is your own
Each file is compared with the policy on 1,000 observations, and removed if they disagree."""


KEYS = {"formats": Key(str, None), "agent": Key(int, None, 0, maximum=MAX_SIZE)}
KEYS |= {f"algo.{part}": Key(str, None) for part in CODE}
Factory = Callable[..., AnyAlgorithm]
"""(options) -> algorithm."""


def export_run(words: Sequence[str]) -> int:
    """Write a run's policy in the requested formats, and print the files.

    Args:
        words: Words of the command line.

    Returns:
        Exit code.
    """
    folder, formats, number, factory = read_words(words)
    setup()
    # An accelerator may round its products more coarsely than the check allows, and may be busy
    # training.
    jax.config.update("jax_platforms", "cpu")
    policy = load_policy(folder, algorithm=factory)
    if number is not None:
        policy, folder = policy.agent(number), folder / f"agent_{number}"
        folder.mkdir(exist_ok=True)
    about = describe(policy)
    print(f"{folder}: {about['env']}, {about['algo']}")
    for key in ("observation", "action", "memory"):
        if key in about:
            print(f"{key:<12} {about[key]}")
    for name in formats or (FORMATS if has_onnx() else ["jax"]):
        path, difference = export_policy(policy, folder, name)
        print(
            f"{path.name:<12} {path.stat().st_size / 1000:.1f} kB; {NUM_OBSERVATIONS:,} observations: {difference}"
        )
        print("\n".join(f"  {line}" for line in FORMATS[name].usage(signature(policy), path)))
    if not formats and not has_onnx():
        print("policy.onnx  not written: pip install onnx onnxruntime, then export again")
    return 0


def read_words(words: Sequence[str]) -> tuple[Path, list[str], int | None, Factory | None]:
    """Parse the words of the command line.

    Args:
        words: Words of the command line.

    Returns:
        Folder of the policy, formats (empty for the default), number of an agent or None, and the
        factory of a user's algorithm or network, or None.

    Raises:
        ConfigError: No folder or several, a folder without a policy, an unknown key or format, or
            an invalid agent.
        ImportError: A package that a format needs is missing.
    """
    run, options = cli.read_words(words, "export", KEYS, settings=())
    formats = (
        [] if options["formats"] is None else list(dict.fromkeys(options["formats"].split(",")))
    )
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ConfigError(
            f"formats={options['formats']}: '{unknown[0]}' is not one of {', '.join(FORMATS)}"
        )
    folder = run if (run / "policy.json").exists() else run / "policy"
    if not (folder / "policy.json").exists():
        how = best_of_sweep(run) or "write the path of a run's folder, such as runs/latest"
        raise ConfigError(f"{run} contains no policy: {how}")
    if "onnx" in formats and not has_onnx():
        raise ImportError(
            "formats=onnx needs two packages: pip install onnx onnxruntime, or write formats=jax"
        )
    return folder, formats, options["agent"], own_factory(folder, options)


def own_factory(folder: Path, options: dict[str, Any]) -> Factory | None:
    """Return the factory of a policy with a user's algorithm, network or memory.

    Args:
        folder: Folder of the policy.
        options: Values of `KEYS`.

    Returns:
        The factory; None if neither is given.

    Raises:
        ConfigError: The algorithm is a user's, and not named.
    """
    make, *parts = (options[f"algo.{part}"] for part in CODE)
    paths = {name: path for name, path in zip(CODE[1:], parts, strict=True) if path is not None}
    if make is None and not paths:
        return None
    name = (
        make or json.loads((folder / "policy.json").read_text(encoding="utf-8"))["made_by"]["algo"]
    )
    factory = factory_of(name) if make else declared_named(name)
    if factory is None:  # code that a folder names is not executed
        raise ConfigError(f"{folder}: its algorithm is your own: write algo.make={name} again")
    return partial(factory, **paths)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("export", export_run, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
