"""Writes the tables of README and docs that follow from the code or results:
``python docs/site/docs_tables.py``.

A table is between ``<!-- table: name -->`` and ``<!-- end -->``, a file of ``experiments/`` between
``<!-- file: path -->`` and the same. ``tests/test_docs.py`` refuses a page that this would change.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments" / "learning"))

from coming_from.page import pairs, pairs_jax
from docs_measured import MEASURED, table
from docs_run import reason_not_run
from docs_text import ROOT, command_lines, pages
from learning_rows import ROWS

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.plugins import SUITES as SUITE_RECORDS

RESULTS = ROOT / "experiments" / "results"
DISCRETE, CONTINUOUS = (
    jf.Discrete(2),
    jf.Box(np.full(1, -1.0, np.float32), np.full(1, 1.0, np.float32)),
)
ANY = {
    suite: (suite, (DISCRETE, CONTINUOUS), "algorithms.md")
    for suite, record in SUITE_RECORDS.items()
    if record.selected_by == "id" and suite != "probe"
}
SUITES = ANY | {
    "brax": ("brax", (CONTINUOUS,), "concepts.md"),
    "gymnax": ("gymnax", (DISCRETE, CONTINUOUS), "start.md"),
    "gymnasium": ("Gymnasium", (DISCRETE, CONTINUOUS), "host.md"),
    "atari": ("Atari", (DISCRETE,), "pixels.md"),
    "custom": ("your own", (DISCRETE, CONTINUOUS), "tutorials/world.md"),
    "traffic": ("traffic junction", (DISCRETE,), "algorithms.md#several-agents"),
    "jaxmarl": ("JaxMARL", (DISCRETE,), "algorithms.md#several-agents"),
    "jumanji": ("Jumanji", (DISCRETE,), "algorithms.md#several-agents"),
    "pettingzoo": ("PettingZoo", (DISCRETE, CONTINUOUS), "host.md"),
    "playground": ("MuJoCo Playground", (CONTINUOUS,), "suites.md"),
    "craftax": ("Craftax", (DISCRETE,), "suites.md"),
    "xminigrid": ("XLand-MiniGrid", (DISCRETE,), "suites.md"),
    "pgx": ("Pgx", (DISCRETE,), "suites.md"),
    "octax": ("Octax", (DISCRETE,), "suites.md"),
    "jaxtari": ("JAXtari", (DISCRETE,), "suites.md"),
    "navix": ("NAVIX", (DISCRETE,), "suites.md"),
}
"""By suite: its name, the actions of its environments, and its page."""
EXTRAS = {
    "cuda12": "a GPU, with CUDA 12",
    "cuda13": "a GPU, with CUDA 13",
    "tpu": "a TPU",
    "onnx": "policies as ONNX files",
    "atari": "Atari's games",
    "notebook": "a live plot in notebooks",
    "paper": "figures for papers",
    "envpool": "EnvPool's environments",
    "jaxmarl": "JaxMARL's environments of several agents",
    "jumanji": "Jumanji's environments",
    "playground": "MuJoCo Playground's environments",
    "craftax": "Craftax and Craftax-Classic",
    "xminigrid": "XLand-MiniGrid's environments",
    "pgx": "Pgx's games",
    "octax": "Octax's CHIP-8 games",
    "jaxtari": "JAXtari's Atari games",
    "navix": "NAVIX's environments (Python 3.12 and later)",
    "suites": "JaxMARL, Jumanji, and the suites from MuJoCo Playground to NAVIX",
    "pettingzoo": "PettingZoo's environments, stepped on the host",
    "minari": "data sets in Minari's layout",
    "dashboard": "the dashboard",
    "optuna": "samplers of Optuna in searches",
    "wandb": "Weights & Biases",
    "video": "MP4, and pictures of Gymnasium's classic control",
}


PUBLISHED = {
    "cartpole_ppo": "Rejax: 500 after 500,000",
    "breakout_ppo": "gymnax-blines: 28 after 10 million",
    "space_invaders_ppo": "gymnax-blines: 131 after 10 million",
    "pendulum_ppo": "Stable-Baselines3 zoo: −172 after 100,000",
    "pendulum_td3": "Stable-Baselines3 zoo: −152 after 20,000",
    "pendulum_sac": "Stable-Baselines3 zoo: −157 after 20,000",
    "halfcheetah_sac": "brax.training: 1,645 after 200,000",
    "halfcheetah_ppo": "brax.training: 576 after 3,280,000",
}
"""Returns of peers after so many steps, as published or measured elsewhere, for comparison with our
rows.
"""


SPEEDS = {
    "spread_ippo": ("IPPO, `spread`", "1.2 × the bare loop"),
    "spread_mappo": ("MAPPO, `spread`", "1.2 × the bare loop"),
    "smax_3m_mappo": ("MAPPO, `smax_3m`", "1.2 × the bare loop"),
    "points": ("cost of an agent's step, three agents against one", "at most 1.1 ×"),
}
"""Rows of ``bench/agents.py``: title and target."""


def takes(name: str, action: jf.Discrete | jf.Box, agents: int | None) -> bool:
    """Return whether an algorithm supports these actions and this number of agents."""
    shape = jax.ShapeDtypeStruct((3,) if agents is None else (agents, 3), jnp.float32)
    algorithm = ALGORITHMS[name]()
    if algorithm.for_agents != (agents is not None):
        return False
    try:
        algorithm.build(jf.EnvSpec("any", shape, action, 10, num_agents=agents), 4)
    except ValueError:
        return False
    return True


def learned_rows() -> dict[tuple[str, str], str]:
    """Return the newest learning result of each algorithm and suite, by both; rows that missed
    their goal do not count.
    """
    found = {}
    for name, row in ROWS.items():
        file = RESULTS / f"{name}.json"
        if file.exists() and not row.unsolved and "(missed)" not in learning_line(name):
            run = compose(list(row.words))
            suite = envs.SHORT_NAMES[run.env].suite if run.env in envs.SHORT_NAMES else run.env
            found.setdefault((run.algo, suite), name)
    return found


def learning_line(name: str) -> str:
    """Return the link to a row in ``docs/learning.md``."""
    lines = (ROOT / "docs" / "learning.md").read_text().splitlines()
    return next((line for line in lines if line.startswith(f"| [{name}]")), "(missed)")


def coverage() -> str:
    """Write algorithms × suites."""
    learned, rows = learned_rows(), []
    for name in ALGORITHMS:
        cells = [f"[`{name}`](algorithms.md)"]
        for suite, (_, actions, _) in SUITES.items():
            agents = (
                2
                if SUITE_RECORDS[suite].agents == "several"
                or (suite == "custom" and ALGORITHMS[name]().for_agents)
                else None
            )
            runs = any(takes(name, action, agents) for action in actions)
            # there is no data of images
            runs &= not (suite == "atari" and ALGORITHMS[name]().needs_data)
            picture = learned.get((name, suite))
            cells.append(
                f"[●](../experiments/results/{picture}.png)" if picture else "○" if runs else "–"
            )
        rows.append(cells)
    return table(["`algo=`", *(f"[{title}]({page})" for title, _, page in SUITES.values())], rows)


def extras() -> str:
    """Write the extras of the package, except the extra for its developers."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [name for name in known if name not in ("dev", "docs")]
    rows = [[f"`pip install 'jaxrl_fast[{name}]'`", EXTRAS[name]] for name in named]
    return table(["extra", "for"], rows)


def published() -> str:
    """Write our returns next to published ones."""
    rows = []
    for name, peer in PUBLISHED.items():
        result = json.loads((RESULTS / f"{name}.json").read_text())
        least, most = result["return_ci95"]  # three seeds and more
        command = f"`{' '.join(ROWS[name].words)}`"
        own = f"**{result['return_mean']:,.0f}** [{least:,.0f}, {most:,.0f}]"
        rows.append(
            [
                command,
                f"{result['env_steps']:,}",
                f"{len(result['curve'][-1]['returns'])}",
                own,
                peer,
            ]
        )
    return table(["command", "steps", "seeds", "greedy return [95 %]", "other library"], rows)


def agents_speed() -> str:
    """Write the training speed of several agents against bare loops, and the cost of an agent's
    step.
    """
    found = json.loads((RESULTS / "bench" / "agents.json").read_text())
    rows = []
    for name in ("spread_ippo", "spread_mappo", "smax_3m_mappo", "points"):
        for pair, ratio in found.get(name, {}).get("ratio", {}).items():
            apart, _, rival = pair.rpartition(" / ")
            rate = found[name]["rate"]["three_agents" if name == "points" else apart or "ours"][
                "median"
            ]
            cell = f"{ratio['median']:.2f} × [{ratio['least']:.2f}, {ratio['most']:.2f}]"
            way = ", `placement=actor_critic`" if apart else ""
            rows.append(
                [
                    SPEEDS[name][0] + way,
                    SPEEDS[name][1],
                    rival.replace("_", " "),
                    f"{rate:,.0f}",
                    cell,
                    found[name]["machine"],
                ]
            )
    return table(["", "target", "compared with", "steps/s", "ratio", "machine"], rows)


def not_run() -> str:
    """Write the command lines that `docs_run` leaves out, and the reasons."""
    reasons: dict[str, list[str]] = {}
    for line in dict.fromkeys(line for path in pages() for line in command_lines(path)):
        if why := reason_not_run(line):
            reasons.setdefault(why, []).append(line if len(line) < 100 else f"{line[:97]}...")
    return table(
        ["reason", "lines"],
        [[why, "<br>".join(f"`{x}`" for x in lines)] for why, lines in reasons.items()],
    )


OWN = (agents_speed, coverage, extras, not_run, pairs, pairs_jax, published)
TABLES: dict[str, Callable[[], str]] = {f.__name__: f for f in OWN} | MEASURED


def filled(text: str) -> str:
    """Return a page with its current tables."""

    def fill(found: re.Match[str]) -> str:
        kind, name = found[1], found[2]
        body = (
            TABLES[name]() if kind == "table" else (ROOT / "experiments" / name).read_text().strip()
        )
        return f"<!-- {kind}: {name} -->\n\n{body}\n\n<!-- end -->"

    return re.sub(r"<!-- (table|file): (\S+) -->\n.*?<!-- end -->", fill, text, flags=re.S)


def main() -> None:
    """Write every page that has changed."""
    for path in pages():
        text = path.read_text()
        if filled(text) != text:
            Path(path).write_text(filled(text), encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
