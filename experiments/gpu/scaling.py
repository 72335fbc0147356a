"""One to 64 absent H100s: the compiler's figures for each size, and a band of time.

``python experiments/gpu/scaling.py`` compiles all rows (`make targets` first; a minute each;
existing results are not repeated), ``python experiments/gpu/scaling.py sac_ant_weak`` the rows of
one line. Figures are written to experiments/results/scaling.json, the picture to scaling.png, the
tables to docs/scaling.md.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from scaling_model import collectives_a_tick, network_us, tick_ms
from targets import compile_row, rounded

RESULTS = Path(__file__).parent.parent / "results"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
SIZES = (1, 2, 4, 8, 16, 32, 64)
FEW = (1, 8, 64)
PPO_ENVS, PPO_MINIBATCHES = 2048, 8
SAC_ENVS, SAC_BATCH = 128, 512


class Line(NamedTuple):
    """Rows of one kind over `SIZES`.

    - ``title``: for the page.
    - ``words``: of explain, for this many devices.
    - ``sizes``: the compiled sizes.
    """

    title: str
    words: Callable[[int], str]
    sizes: tuple[int, ...] = SIZES


def ppo(env: str, *, factor: int = 1, more: str = "") -> str:
    """Return PPO with ``factor`` times as many environments, and minibatches larger by the same
    factor.
    """
    envs = PPO_ENVS * factor
    sizes = f"num_envs={envs} algo.rollout_length=16 algo.num_epochs=4 algo.num_minibatches={PPO_MINIBATCHES}"
    return f"env={env} algo=ppo tuned=false {sizes} total_steps={envs * 16 * 100} {more}".strip()


def sac(env: str, *, factor: int = 1, more: str = "") -> str:
    """Return SAC with ``factor`` times as many environments, and batches larger by the same factor."""
    sizes = f"num_envs={SAC_ENVS * factor} algo.batch_size={SAC_BATCH * factor} algo.updates_per_tick=64"
    nets = "algo.policy_hidden=[256,256] algo.critic_hidden=[256,256]"
    return f"env={env} algo=sac tuned=false {sizes} {nets} total_steps={SAC_ENVS * factor * 8192} {more}".strip()


def divided(number: int) -> str:
    """Return words for one seed on this many devices."""
    return f"placement=data_parallel shards={max(8, number)}" if number > 1 else ""


LINES = {
    "ppo_halfcheetah_weak": Line(
        "PPO halfcheetah, 2,048 environments per device",
        lambda n: ppo("halfcheetah", factor=n, more=divided(n)),
    ),
    "ppo_halfcheetah_strong": Line(
        "PPO halfcheetah, 2,048 environments in total",
        lambda n: ppo("halfcheetah", more=divided(n)),
        FEW,
    ),
    "ppo_halfcheetah_seeds": Line(
        "PPO halfcheetah, one seed per device",
        lambda n: ppo("halfcheetah", more=f"num_seeds={n}" if n > 1 else ""),
        FEW,
    ),
    "sac_halfcheetah_weak": Line(
        "SAC halfcheetah, 128 environments and a batch of 512 per device",
        lambda n: sac("halfcheetah", factor=n, more=divided(n)),
    ),
    "sac_halfcheetah_strong": Line(
        "SAC halfcheetah, 128 environments and a batch of 512 in total",
        lambda n: sac("halfcheetah", more=divided(n)),
        FEW,
    ),
    "sac_halfcheetah_seeds": Line(
        "SAC halfcheetah, one seed per device",
        lambda n: sac("halfcheetah", more=f"num_seeds={n}" if n > 1 else ""),
        FEW,
    ),
    "ppo_ant_weak": Line(
        "PPO ant, 2,048 environments per device",
        lambda n: ppo("ant", factor=n, more=divided(n)),
        FEW,
    ),
    "sac_ant_weak": Line(
        "SAC ant, 128 environments and a batch of 512 per device",
        lambda n: sac("ant", factor=n, more=divided(n)),
        FEW,
    ),
}
COLUMNS = (
    *(
        "devices",
        "hosts",
        "collectives per tick",
        "MB per tick",
        "ms per tick",
        "network, ms",
        "steps/s",
        "updates/s",
    ),
    *("frames/s", "speed-up", "memory per device"),
)


def rates(row: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return steps, updates and frames a second: the slow end of the band and the fast one. Seeds
    count together.
    """
    fast, slow = tick_ms(row)
    rounds, seeds = row["rounds"], row["num_seeds"]
    steps, updates = rounds["env_steps"] * seeds, rounds["updates"] * seeds
    numbers = {"steps": steps, "updates": updates, "frames": updates * rounds["batch_size"]}
    return {name: (1e3 * number / slow, 1e3 * number / fast) for name, number in numbers.items()}


def table(rows: dict[int, dict[str, Any]]) -> list[str]:
    """Write a line's rows by number of devices."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for number, row in sorted(rows.items()):
        count, size_bytes = collectives_a_tick(row)
        fast, slow = tick_ms(row)
        network = [us / 1e3 for us in network_us(row["programs"], number)]
        gained = [
            now / then
            for now, then in zip(rates(row)["frames"], rates(rows[1])["frames"], strict=True)
        ]
        cells = [
            str(number),
            str(-(-number // 8)),
            f"{count:,.0f}",
            f"{size_bytes / 1e6:,.3g}",
            f"{fast:.3g} to {slow:.3g}",
            f"{network[0]:.3g} to {network[1]:.3g}",
            *(f"{rounded(low)} to {rounded(high)}" for low, high in rates(row).values()),
            " to ".join(f"{gain:.3g}" for gain in sorted(gained)),
            f"{max(program['memory_bytes'] or 0 for program in row['programs']) / 1e6:,.0f} MB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def draw(found: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Plot frames a second against devices, a panel for each algorithm, bands from slow to fast."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    for panel, algo in zip(panels, ("ppo", "sac"), strict=True):
        for name, rows in found.items():
            if name.startswith(algo):
                numbers = sorted(rows)
                low, high = zip(*(rates(rows[n])["frames"] for n in numbers), strict=True)
                panel.fill_between(numbers, low, high, alpha=0.2)
                middle = [(a * b) ** 0.5 for a, b in zip(low, high, strict=True)]
                panel.plot(numbers, middle, marker="o", label=LINES[name].title.partition(" ")[2])
        panel.set(
            title=algo.upper(),
            xscale="log",
            yscale="log",
            xlabel="H100s",
            ylabel="update frame rate, frames/s",
        )
        panel.set_xticks(SIZES, labels=[str(n) for n in SIZES])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.set_ylim(top=5 * panel.get_ylim()[1])  # room for the legend
        panel.legend(fontsize=8, loc="upper left")
    figure.suptitle(
        "Predicted from compiled programs, not measured; bands: launches of 1 to 4 µs, fast to slow network"
    )
    figure.savefig(RESULTS / "scaling.png", dpi=130)


def write_page(found: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Replace the tables of the page, below its text."""
    words = PAGE.read_text().partition("<!-- tables -->")[0]
    parts = [f"## {LINES[name].title}\n\n" + "\n".join(table(rows)) for name, rows in found.items()]
    PAGE.write_text(f"{words}<!-- tables -->\n\n" + "\n\n".join(parts) + "\n")


def main(names: list[str]) -> None:
    """Compile the missing rows of the named lines (of all, if none), then write page and picture of
    all rows.
    """
    if unknown := set(names) - set(LINES):
        raise SystemExit(f"{', '.join(unknown)}: write one of {', '.join(LINES)}")
    file = RESULTS / "scaling.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for name in names or LINES:
        for number in LINES[name].sizes:
            key = f"{name}_{number}"
            words, target = LINES[name].words(number), f"h100:{number}"
            alike = (
                row for row in results.values() if (row["words"], row["target"]) == (words, target)
            )
            if (same := next(alike, None)) is not None:
                results[key] = same
            else:
                results[key] = {
                    **compile_row(words, target),
                    "num_seeds": number if "num_seeds" in words else 1,
                }
                print(f"{key}: compiled in {results[key]['compile_s']:.0f} s", flush=True)
                file.write_text(json.dumps(results, indent=1) + "\n")
    found = by_line(results)
    draw(found)
    write_page(found)


def by_line(results: dict[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return results by line and number of devices; a line without one device is left out."""
    found = {
        name: {n: results[f"{name}_{n}"] for n in line.sizes if f"{name}_{n}" in results}
        for name, line in LINES.items()
    }
    return {name: rows for name, rows in found.items() if 1 in rows}


if __name__ == "__main__":
    main(sys.argv[1:])
