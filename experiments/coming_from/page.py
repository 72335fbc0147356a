"""The pairs of ``docs/coming_from*.md`` side by side, with the results of both programs, for
`docs_tables`.
"""

import json
import textwrap
from collections.abc import Iterable
from typing import Any

from coming_from.run import PAIRS, RESULTS, ROOT, Pair

TITLES = {
    "sb3": (
        "Stable-Baselines3",
        "PPO on Gymnasium's CartPole, eight environments in this process.",
    ),
    "cleanrl": (
        "CleanRL",
        "PPO on Gymnasium's CartPole, as commands. CleanRL prints returns of training episodes.",
    ),
    "purejaxrl": (
        "PureJaxRL",
        "PPO on gymnax's CartPole, eight seeds by `vmap`; returns are from training episodes. PureJaxRL ran without "
        "navix, which CartPole does not need.",
    ),
    "rejax": ("Rejax", "PPO on gymnax's CartPole, eight seeds in one program, three evaluations."),
    "brax": (
        "brax.training",
        "PPO on brax's inverted pendulum (spring), one evaluation at the end.",
    ),
    "stoix": (
        "Stoix",
        "PPO on gymnax's CartPole, as commands. Networks have 256 units and ReLU on both sides. Stoix at "
        "commit 8fff19c with JAX 0.5.3; its README installs it with `uv sync`.",
    ),
    "mava": (
        "Mava",
        "IPPO on level-based foraging: two agents that must lift food together (8x8-2p-2f-coop), as commands. Mava at "
        "commit 57c8e64 with JAX 0.4.30 and its own branch of Jumanji.",
    ),
}


def shown(words: tuple[str, ...]) -> str:
    """Show a program as a block: the text of its file, or the command."""
    if len(words) == 1:
        return f"```py\n{(ROOT / words[0]).read_text()}```"
    lines = textwrap.wrap(
        "python " + " ".join(words), 72, break_long_words=False, break_on_hyphens=False
    )
    return "```shell\n" + " \\\n    ".join(lines) + "\n```"


def outcome(title: str, result: dict[str, Any]) -> str:
    """Write the results of both programs."""
    peer, ours = (
        f"return {result[side]['return']:.3g}, {result[side]['seconds']:.0f} s"
        for side in ("theirs", "ours")
    )
    conditions = f"{result['machine']}; seconds from the first import on, with compilation"
    return f"{title}: {peer}. jaxrl_fast: {ours} ({conditions})."


def section(name: str, pair: Pair, result: dict[str, Any]) -> str:
    """Write a pair, side by side."""
    title, about = TITLES[name]
    columns = [(title, shown(pair.theirs)), ("jaxrl_fast", shown(pair.ours))]
    cells = "\n".join(f"<div markdown>\n\n{who}\n\n{code}\n\n</div>" for who, code in columns)
    return f'## {title}\n\n{about}\n\n<div class="side" markdown>\n{cells}\n</div>\n\n{outcome(title, result)}'


FIRST = ("sb3", "cleanrl", "brax")
"""Libraries of the first page; the others have another."""


def pairs() -> str:
    """Write the pairs of the first page."""
    return sections(FIRST)


def pairs_jax() -> str:
    """Write the pairs with other libraries of JAX."""
    return sections([name for name in TITLES if name not in FIRST])


def sections(names: Iterable[str]) -> str:
    """Write the pairs that have results."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return "\n\n".join(
        section(name, PAIRS[name], results[name]) for name in names if name in results
    )
