"""``python -m jaxrl_fast.export runs/latest``: the policy that a run left behind, as files that need no jaxrl_fast."""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from jaxrl_fast.commands import cli
from jaxrl_fast.policy.exporting import FORMATS, NUM_OBSERVATIONS, describe, export_policy, has_onnx, signature
from jaxrl_fast.policy.policies import load_policy
from jaxrl_fast.settings.machine import setup
from jaxrl_fast.settings.schema import ConfigError, Key

HELP = """python -m jaxrl_fast.export RUN [formats=jax,onnx] [agent=2]
  RUN         a run's folder, such as runs/latest, or a policy's; the files join the policy's
  formats     jax: policy.jax, for jax.export.deserialize on cpu, cuda or tpu, with the JAX
                that wrote it or a newer one
              onnx: policy.onnx, for any ONNX runtime; needs pip install onnx onnxruntime
              default: both, or jax where those packages are missing
  agent       of several agents, the policy of this one alone, from 0, into a folder agent_2
              default: the policy of all together
A file is compared with the policy on 1,000 observations, and is left only if they agree."""


def export_run(words: Sequence[str]) -> int:
    """Write a run's policy in the formats asked for and say what was written.

    Raises:
        ValueError, ImportError: one line that says what was wrong and what to write instead.
    """
    folder, formats, number = read_words(words)
    setup()
    # An accelerator may round its products more coarsely than the check allows, and may be busy training.
    jax.config.update("jax_platforms", "cpu")
    policy = load_policy(folder)
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
        print(f"{path.name:<12} {path.stat().st_size / 1000:.1f} kB; {NUM_OBSERVATIONS:,} observations: {difference}")
        print("\n".join(f"  {line}" for line in FORMATS[name].usage(signature(policy), path)))
    if not formats and not has_onnx():
        print("policy.onnx  not written: pip install onnx onnxruntime, then export again")
    return 0


def read_words(words: Sequence[str]) -> tuple[Path, list[str], int | None]:
    """The policy's folder, the formats asked for, if any, and the number of an agent, if one is asked for.

    Raises:
        ConfigError: no folder or several, one without a policy, an unknown key or format, an agent that is no number.
        ImportError: a package that a format needs is missing.
    """
    run, given = cli.read_words(words, "export", {"formats": Key(str, None), "agent": Key(str, None)})
    formats = [] if given["formats"] is None else list(dict.fromkeys(given["formats"].split(",")))
    if given["agent"] is not None and not given["agent"].isdecimal():
        raise ConfigError(f"agent={given['agent']}: write the number of an agent, from 0")
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ConfigError(f"formats={given['formats']}: '{unknown[0]}' is none of {', '.join(FORMATS)}")
    folder = run if (run / "policy.json").exists() else run / "policy"
    if not (folder / "policy.json").exists():
        raise ConfigError(f"{run} holds no policy: write the path of a run's folder, such as runs/latest")
    if "onnx" in formats and not has_onnx():
        raise ImportError("formats=onnx needs two packages: pip install onnx onnxruntime, or write formats=jax")
    return folder, formats, None if given["agent"] is None else int(given["agent"])


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return cli.main("export", export_run, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
