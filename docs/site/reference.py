"""The reference pages of the site, from what the code itself says: commands, keys, environments, functions."""

import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import yaml

import jaxrl_fast as jf
from jaxrl_fast import envs, placement
from jaxrl_fast.__main__ import COMMANDS
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.commands.cli import train_help
from jaxrl_fast.commands.run_config import CONFIG_DIR
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.settings.schema import Key, algo_keys, describe_type, run_keys

SECTIONS = {
    "": "Of every run",
    "eval.": "Evaluations",
    "checkpoint.": "Checkpoints",
    "env.": "Environments",
    "pool.": "Environments on the host",
    "distributed.": "Several processes",
}


COMMON = {
    "activation": "of hidden layers",
    "actor_learning_rate_ratio": "the actor's learning rate over that of the critic",
    "batch_size": "transitions in the batch of an update, or sequences with a memory",
    "buffer_size": "transitions in replay, for each seed",
    "burn_in": "steps before a sequence that only fill the memory",
    "cnn": "convolutions for images",
    "critic_hidden": "widths of the critic's layers",
    "critic_keys": "entries of a dictionary observation that the critic reads; all",
    "critic_layer_norm": "layer norm in the critic",
    "critic_learning_rate_ratio": "the critic's learning rate over that of the policy",
    "discount": "γ per step",
    "double": "choose the next action by the newest network, value it by the target network",
    "dueling": "a head for the state's value and one for advantages",
    "epsilon": "how often a random action is taken",
    "hidden": "widths of the layers",
    "importance_exponent": "how far weights undo what priorities do to samples: 0 not, 1 wholly",
    "initial_temperature": "of the policy, before it is learned",
    "keys": "entries of a dictionary observation that are read; all",
    "layer_norm": "layer norm in hidden layers",
    "learning_rate": "of the optimizer",
    "max_grad_norm": "to which gradients are clipped",
    "max_repeats": "steps for which noise stays the same, at most",
    "max_return": "the largest discounted return, once rewards are normalized",
    "n_step": "steps whose rewards are summed before bootstrapping",
    "noise_spread": "how much more the last environment explores than `exploration_noise`, and the first less",
    "normalize_advantages": "to mean 0 and deviation 1 in each batch",
    "normalize_observations": "by running statistics; by default all but images",
    "normalize_rewards": "by the running deviation of discounted returns",
    "num_atoms": "returns, or quantiles, of a distribution",
    "num_critics": "Q-networks",
    "num_epochs": "passes over a rollout in a tick",
    "num_minibatches": "batches that a rollout is divided into",
    "optimizer": "of all networks",
    "policy_delay": "critic updates for each of the policy",
    "policy_hidden": "widths of the policy's layers",
    "policy_keys": "entries of a dictionary observation that the policy reads; all",
    "priority_exponent": "of the priorities of replay; 0: uniform",
    "q_hidden": "widths of the Q-network's layers",
    "q_keys": "entries of a dictionary observation that the Q-network reads; all",
    "recurrent_size": "of a GRU in front of the networks; 0: none",
    "reward_scale": "a factor of rewards",
    "rollout_length": "steps of each environment in a tick",
    "sequence_length": "steps of a sequence that are learned from, with a memory",
    "share_parameters": "agents share their networks",
    "target_entropy_per_action": "of the policy, in nats for each dimension of the action",
    "target_entropy_ratio": "of the policy, as a share of that of random actions",
    "target_period": "updates between two moves of the target network",
    "tau": "how far target networks move at an update, 0 to 1",
    "temperature_learning_rate": "of the temperature",
    "updates_per_tick": "gradient updates in a tick",
    "value_head": "what is learned of the return: its mean, probabilities, or quantiles",
    "value_hidden": "widths of the value network's layers",
    "value_max": "the largest return of a distribution",
    "value_min": "the smallest return of a distribution",
    "warmup_steps": "steps in replay before the first update",
    "weight_decay": "of AdamW",
}
"""What options of algorithms mean, where the docstring of their rates does not say it in a bullet."""
GROUPS = {
    "env": "the environment: a [short name](environments.md), or a suite with `env.id=`",
    "algo": "the [algorithm](algorithms.md)",
    "placement": "where it runs: `auto`, or one of those [below](#placements)",
    "config": "a file to take settings from, such as `runs/latest/config.yaml`",
    "tuned": "`false` leaves out the settings tuned for environment and algorithm",
}


def reference_pages() -> dict[str, str]:
    """All pages, Markdown by file name."""
    return {
        "commands.md": commands(),
        "keys.md": keys(),
        "algorithms.md": algorithms(),
        "environments.md": environments(),
        "api.md": api(),
    }


def commands() -> str:
    """Every command with the text of its ``--help``."""
    parts = ["# Commands\n\nWhat `--help` prints, by command."]
    for name, text in COMMANDS.items():
        module = importlib.import_module(f"jaxrl_fast.{name}")
        shown = train_help() if name == "train" else module.help_text() if hasattr(module, "help_text") else module.HELP
        parts.append(f"## {name}\n\n{text.partition(':')[0].capitalize()}.\n\n```text\n{shown}\n```")
    return "\n\n".join(parts) + "\n"


def keys() -> str:
    """Every key of a run, by section."""
    known, parts = (
        run_keys(),
        ["# Keys\n\nWords `key=value` of `train`, and of every command that takes a run's words."],
    )
    groups = table(["key", "meaning"], [[f"`{name}`", text] for name, text in GROUPS.items()])
    parts.append(f"## What, and from where\n\n{groups}")
    for prefix, title in SECTIONS.items():
        own = {k: v for k, v in known.items() if k.startswith(prefix) and (prefix or "." not in k)}
        parts.append(f"## {title}\n\n{key_table(own)}")
    places = [[f"`{name}`", first_line(make)] for name, make in PLACEMENTS.items()]
    parts.append(
        f"## Placements\n\nValues of `placement=`, beside `auto`.\n\n{table(['name', 'what it does'], places)}"
    )
    return "\n\n".join(parts) + "\n"


def algorithms() -> str:
    """Every key of every algorithm, with what its docstrings say."""
    parts = ["# Keys of algorithms\n\nWords `algo.key=value`; in Python, arguments of `jaxrl_fast.<name>`."]
    for name, factory in ALGORITHMS.items():
        rates = COMMON | meanings(type(factory().hyper))
        own = {k: v._replace(text=rates.get(k.removeprefix("algo."), "")) for k, v in algo_keys(name).items()}
        parts.append(f"## {name}\n\n{docstring(factory)}\n\n{key_table(own)}")
    return "\n\n".join(parts) + "\n"


def environments() -> str:
    """Every short name of an environment, with its defaults."""
    defaults = yaml.safe_load((CONFIG_DIR / "envs.yaml").read_text())
    tuned = {path.stem for path in (CONFIG_DIR / "tuned").glob("*.yaml")}
    rows = []
    for name, (suite, id_, _) in envs.SHORT_NAMES.items():
        own = defaults.get(name, {})
        settings = [f"`{algo}`" for algo in ALGORITHMS if f"{name}_{algo}" in tuned]
        cells = [f"`{name}`", suite, f"`{id_}`", f"`{own.get('algo', 'ppo')}`"]
        rows.append([*cells, f"{own.get('num_envs', 0):,}", f"{own.get('total_steps', 0):,}", ", ".join(settings)])
    head = ["`env=`", "suite", "id", "algorithm", "environments", "steps", "settings tuned for"]
    families = ", ".join(f"`env={suite} env.id={id_}`" for suite, id_ in envs.EXAMPLE_IDS.items() if suite != "probe")
    title = "# Environments\n\nShort names, with their defaults."
    return f"{title}\n\n{table(head, rows)}\n\nAny other by its id: {families}.\n"


def api() -> str:
    """The public names of ``jaxrl_fast``."""
    parts = ["# Python\n\nThe names of `jaxrl_fast`, and of `jaxrl_fast.placement`."]
    names = [name for name in jf.__all__ if name not in (*ALGORITHMS, "__version__")]
    for module, own in ((jf, names), (placement, placement.__all__)):
        for name in sorted(own, key=lambda n: (n[0].isupper(), n.lower())):
            thing = getattr(module, name)
            if callable(thing):
                parts.append(f"## {name}\n\n```text\n{signature(name, thing)}\n```\n\n{docstring(thing)}")
    parts.append("## Algorithms\n\n" + ", ".join(f"[`{name}`](algorithms.md#{name})" for name in ALGORITHMS))
    return "\n\n".join(parts) + "\n"


def key_table(known: Mapping[str, Key]) -> str:
    """A table of keys: name, default, what may be written, what it means."""
    rows = [[f"`{name}`", default_of(key), choices(key), plain(key.text.rstrip(":"))] for name, key in known.items()]
    return table(["key", "default", "write", "meaning"], rows)


def default_of(key: Key) -> str:
    """A default as it is written on the command line; none: it follows from the rest."""
    value = key.default
    if value is None:
        return ""
    shown = (
        str(value).lower() if isinstance(value, bool) else str(list(value)) if isinstance(value, tuple) else str(value)
    )
    return f"`{shown}`" if shown else ""


def choices(key: Key) -> str:
    """What may be written, as messages say it."""
    if get_origin(key.type) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(key.type))
    return "a number or a schedule" if key.type is Any else describe_type(key.type).replace("|", "\\|")


def meanings(cls: type) -> dict[str, str]:
    """What the bullets of a docstring say of each field."""
    text = re.sub(r"\s*\n\s+", " ", inspect.getdoc(cls) or "").replace("- ``", "\n- ``")
    found: dict[str, str] = {}
    for names, meaning in re.findall(
        r"(?:^|[;.] |- |, )((?:``\w+``(?:, )?)+): ([^;]+?)(?=;|\.?$|\.\s*\n| - ``)", text, re.M
    ):
        found |= dict.fromkeys(re.findall(r"``(\w+)``", names), meaning)
    return found


def signature(name: str, thing: Any) -> str:
    """A signature, an argument a line where it is long; of a NamedTuple or dataclass, its fields."""
    if inspect.isclass(thing) and (hasattr(thing, "_fields") or dataclasses.is_dataclass(thing)):
        fields = getattr(thing, "_fields", None) or [f.name for f in dataclasses.fields(thing)]
        return f"{name}({', '.join(fields)})"
    if inspect.isclass(thing):
        return name
    given = inspect.signature(thing)
    bare = given.replace(
        parameters=[p.replace(annotation=inspect.Parameter.empty) for p in given.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )
    return "\n".join(
        textwrap.wrap(re.sub(r"<function (?:<lambda>|\w+\.<locals>\.\w+|\w+)[^>]*>", "...", f"{name}{bare}"), 100)
    )


def docstring(thing: Any) -> str:
    """A docstring as Markdown."""
    text = inspect.getdoc(thing) or ""
    body, _, raises = text.partition("Raises:")
    raised = re.findall(r"^\s*([\w, ]+): (.+?)(?=^\s*[A-Z]\w*(?:Error|Exception)[\w, ]*:|\Z)", raises, re.M | re.S)
    lines = "\n".join(f"- `{kind.strip()}`: {' '.join(why.split())}" for kind, why in raised)
    return plain(body.strip()) + (f"\n\nRaises:\n\n{plain(lines)}" if lines else "")


def plain(text: str) -> str:
    """Docstring markup as Markdown: one kind of backticks, no bare angle brackets, no pipes that end a cell."""
    text = re.sub(r"``(.+?)``", r"`\1`", text, flags=re.S).replace("::\n", ":\n")
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;").replace("*", "\\*") for part in parts)


def first_line(thing: Any) -> str:
    """The first line of a docstring."""
    return plain((inspect.getdoc(thing) or "").partition("\n")[0])


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])
