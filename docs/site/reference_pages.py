"""The reference pages of the site, generated from the code: commands, keys, environments,
functions.
"""

import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import jaxrl_fast as jf
from jaxrl_fast import envs, placement
from jaxrl_fast.__main__ import COMMANDS
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.commands.cli import train_help
from jaxrl_fast.commands.layers import CONFIG_DIR
from jaxrl_fast.fields import texts_of
from jaxrl_fast.plugins import SUITES
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.settings.schema import Key, describe_type, run_keys
from jaxrl_fast.settings.signatures import algo_keys

ROOT = Path(__file__).resolve().parent.parent.parent
SECTIONS = {
    "": "General",
    "eval.": "Evaluations",
    "checkpoint.": "Checkpoints",
    "stop.": "Early stop",
    "env.": "Environments",
    "pool.": "Host environments",
    "distributed.": "Several processes",
}

GROUPS = {
    "env": "the environment: a [short name](environments.md), or a suite with `env.id=`",
    "algo": "the [algorithm](algorithms.md)",
    "placement": "the devices of the run: `auto`, or a name [below](#placements)",
    "config": "a file with settings, such as `runs/latest/config.yaml`",
    "tuned": "`false` omits the settings tuned for environment and algorithm",
}


RATES = {
    "Rate0": "a rate of at least 0",
    "Rate01": "a rate from 0 to 1",
    "AnyRate": "any rate",
}
"""Types of the fields of a declared algorithm that may be schedules and change during a run."""


def reference_pages() -> dict[str, str]:
    """Return all pages, Markdown by file name."""
    return {
        "commands.md": commands(),
        "keys.md": keys(),
        "algorithms.md": algorithms(),
        "environments.md": environments(),
        "api.md": api(),
        "ppo_line_by_line.md": line_by_line(),
    }


def commands() -> str:
    """Write every command with the text of its ``--help``."""
    parts = ["# Commands\n\nThe output of `--help`, by command."]
    for name, text in COMMANDS.items():
        module = importlib.import_module(f"jaxrl_fast.{name}")
        shown = train_help() if name == "train" else module.HELP
        parts.append(
            f"## {name}\n\n{text.partition(':')[0].capitalize()}.\n\n```text\n{shown}\n```"
        )
    return "\n\n".join(parts) + "\n"


def keys() -> str:
    """Write every key of a run, by section."""
    known, parts = (
        run_keys(),
        [
            "# Keys\n\nWrite `key=value` after `train`, and after every command that accepts the settings of a run."
        ],
    )
    groups = table(["key", "meaning"], [[f"`{name}`", text] for name, text in GROUPS.items()])
    parts.append(f"## Environment, algorithm and sources\n\n{groups}")
    for prefix, title in SECTIONS.items():
        own = {k: v for k, v in known.items() if k.startswith(prefix) and (prefix or "." not in k)}
        parts.append(f"## {title}\n\n{key_table(own)}")
    places = [[f"`{name}`", first_line(make)] for name, make in PLACEMENTS.items()]
    parts.append(
        f"## Placements\n\nValues of `placement=`, in addition to `auto`.\n\n{table(['name', 'effect'], places)}"
    )
    return "\n\n".join(parts) + "\n"


def algorithms() -> str:
    """Write every key of every algorithm, with its docstring."""
    parts = [
        "# Keys of algorithms\n\nWrite `algo.key=value`. In Python, write arguments of `jaxrl_fast.<name>`."
    ]
    for name, declared in ALGORITHMS.items():
        texts = texts_of(declared)
        own = {
            key: declaration._replace(text=texts[key.removeprefix("algo.")])
            for key, declaration in algo_keys(name).items()
        }
        parts.append(f"## {name}\n\n{plain(sections(declared)[''])}\n\n{key_table(own)}")
    return "\n\n".join(parts) + "\n"


def environments() -> str:
    """Write every short name of an environment, with its defaults."""
    tuned = {path.stem for path in (CONFIG_DIR / "tuned").glob("*.yaml")}
    rows = []
    for name, short in envs.SHORT_NAMES.items():
        own = short.defaults
        settings = [f"`{algo}`" for algo in ALGORITHMS if f"{name}_{algo}" in tuned]
        cells = [f"`{name}`", short.suite, f"`{short.id}`", f"`{own.algo}`"]
        rows.append(
            [
                *cells,
                f"{own.num_envs:,}",
                f"{own.total_steps:,}",
                ", ".join(settings),
            ]
        )
    head = ["`env=`", "suite", "id", "algorithm", "environments", "steps", "settings tuned for"]
    families = ", ".join(
        f"`env={suite} env.id={record.example}`"
        for suite, record in SUITES.items()
        if record.selected_by == "id" and suite != "probe"
    )
    title = "# Environments\n\nShort names, with their defaults."
    return f"{title}\n\n{table(head, rows)}\n\nOther environments, by id: {families}.\n"


def api() -> str:
    """Write the public names of ``jaxrl_fast``."""
    parts = ["# Python\n\nThe public names of `jaxrl_fast` and of `jaxrl_fast.placement`."]
    names = [name for name in jf.__all__ if name not in (*ALGORITHMS, "__version__")]
    for module, own in ((jf, names), (placement, placement.__all__)):
        for name in sorted(own, key=lambda n: (n[0].isupper(), n.lower())):
            thing = getattr(module, name)
            if callable(thing) and name not in RATES:
                parts.append(
                    f"## {name}\n\n```text\n{signature(name, thing)}\n```\n\n{docstring(thing)}"
                )
    parts.append("## Types of rates\n\n" + "; ".join(f"`{n}`: {t}" for n, t in RATES.items()))
    parts.append(
        "## Algorithms\n\n" + ", ".join(f"[`{name}`](algorithms.md#{name})" for name in ALGORITHMS)
    )
    return "\n\n".join(parts) + "\n"


def line_by_line() -> str:
    """Show ``reference/ppo.py`` next to the places of the engine that its docstrings name."""
    source = (ROOT / "reference" / "ppo.py").read_text()
    head, *blocks = re.split(r"^(?=def |class |if __name__)", source, flags=re.M)
    rows = [f"```python\n{head.strip()}\n```"]
    for block in blocks:
        named = re.search(r"Engine:\s+([\w.,\s]+?)\.\s*\"\"\"", block)
        names = re.split(r",\s+", named[1]) if named else []
        places = "\n".join(f"- {place(name)}" for name in names)
        code = f"<div markdown>\n\n```python\n{block.strip()}\n```\n\n</div>"
        rows.append(
            f'<div class="lines" markdown>\n{code}\n<div markdown>\n\n{places}\n\n</div>\n</div>'
        )
    return LINE_BY_LINE + "\n\n".join(rows) + "\n"


LINE_BY_LINE = """---
hide:
  - toc
---

# PPO here, line by line

`python reference/ppo.py` solves CartPole in less than a minute. The file computes the same PPO as `jaxrl_fast.ppo()`
with default options, including random keys, resets, truncation, statistics and minibatches. A test starts it from the
engine's state at ticks 0, 1, 10 and 40 (a tick is one round of training) and compares the states after one tick: floats
agree within 1e-6, integers exactly. The right column names the engine's version of each function, which supports every
algorithm and placement. `reference/sac.py` and `reference/dqn.py` have the same form and the same test.

"""


def place(name: str) -> str:
    """Write a name of the engine with its file and line."""
    module, _, attribute = name.rpartition(".")
    thing = getattr(importlib.import_module(f"jaxrl_fast.{module}"), attribute)
    file = Path(inspect.getsourcefile(thing)).resolve().relative_to(ROOT)
    return f"`{attribute}`<br>{file}, line {inspect.getsourcelines(thing)[1]}"


def key_table(known: Mapping[str, Key]) -> str:
    """Write a table of keys: name, default, allowed values, meaning."""
    rows = [
        [f"`{name}`", default_of(key), choices(key), plain(key.text.rstrip(":"))]
        for name, key in known.items()
    ]
    return table(["key", "default", "write", "meaning"], rows)


def default_of(key: Key) -> str:
    """Format a default as written on the command line; none where it follows from other keys."""
    value = key.default
    if value is None:
        return ""
    shown = (
        str(value).lower()
        if isinstance(value, bool)
        else str(list(value))
        if isinstance(value, tuple)
        else str(value)
    )
    return f"`{shown}`" if shown else ""


def choices(key: Key) -> str:
    """Return the allowed values in the words of error messages."""
    if get_origin(key.type) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(key.type))
    return (
        "a number or a schedule" if key.type is Any else describe_type(key.type).replace("|", "\\|")
    )


SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Source):\s*", re.M)
ENTRY = re.compile(r"^(\*{0,2}\w[\w, .]*): (.+(?:\n +.+)*)", re.M)


def sections(thing: Any) -> dict[str, str]:
    """Split a Google-style docstring by the titles of its sections; the text before the first is
    named "".
    """
    parts = SECTION.split(inspect.getdoc(thing) or "")
    return {
        title: textwrap.dedent(f"    {text}").strip()
        for title, text in zip(["", *parts[1::2]], parts[::2], strict=True)
    }


def entries(section: str) -> dict[str, str]:
    """Read the entries of a section, such as the arguments, by name."""
    return {name: " ".join(meaning.split()) for name, meaning in ENTRY.findall(section)}


def signature(name: str, thing: Any) -> str:
    """Format a signature, an argument per line where it is long; of a NamedTuple or dataclass, its
    fields.
    """
    if inspect.isclass(thing) and (hasattr(thing, "_fields") or dataclasses.is_dataclass(thing)):
        fields = getattr(thing, "_fields", None) or [f.name for f in dataclasses.fields(thing)]
        return f"{name}({', '.join(fields)})"
    if inspect.isclass(thing):
        return name
    given = inspect.signature(thing)
    bare = given.replace(
        parameters=[
            p.replace(annotation=inspect.Parameter.empty) for p in given.parameters.values()
        ],
        return_annotation=inspect.Signature.empty,
    )
    return "\n".join(
        textwrap.wrap(
            re.sub(r"<function (?:<lambda>|\w+\.<locals>\.\w+|\w+)[^>]*>", "...", f"{name}{bare}"),
            100,
        )
    )


def docstring(thing: Any) -> str:
    """Write a docstring as Markdown, with a list for each section of names."""
    own = sections(thing)
    parts = [plain(own.pop(""))]
    for title, text in own.items():
        listed = "\n".join(f"- `{name}`: {meaning}" for name, meaning in entries(text).items())
        text = (
            listed
            if title in ("Args", "Raises", "Attributes") and listed
            else " ".join(text.split())
        )
        parts.append(f"**{title}**\n\n{plain(text)}")
    return "\n\n".join(parts)


def plain(text: str) -> str:
    """Convert docstring markup to Markdown: one kind of backticks, no bare angle brackets, no pipes
    that end a cell.
    """
    text = re.sub(r"``(.+?)``", r"`\1`", text, flags=re.S).replace("::\n", ":\n")
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("*", "\\*")
        for part in parts
    )


def first_line(thing: Any) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return plain(" ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()))


def table(head: list[str], rows: list[list[str]]) -> str:
    """Write a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])
