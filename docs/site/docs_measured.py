"""Tables of figures in ``docs/``, from the result files of the measurements, for `docs_tables`."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "results"
WORLDS = {"pendulum": "Pendulum", "halfcheetah": "halfcheetah", "cartpole": "CartPole"}


def read(name: str) -> Any:
    """Read a result file."""
    return json.loads((RESULTS / name).read_text())


def table(head: list[str], rows: list[list[str]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rate(value: float) -> str:
    """Format a rate with three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def frames(row: dict[str, Any]) -> str:
    """Compute updates a second × batch = update frame rate."""
    return f"{rate(row['update_hz'])} × {row['batch_size']:,} = {row['update_frame_hz']:,.0f}"


def distribution_row(row: dict[str, Any]) -> list[str]:
    """Write one placement; bold where it is faster than `fused` in every round."""
    words = [row["placement"], f"overlap={row['overlap']}", f"learners={row['learners']}"]
    label = " ".join(word for word in words if word not in ("overlap=none", "learners=1"))
    against = f"{row['speed']:.2f} [{row['speed_least']:.2f}, {row['speed_most']:.2f}]"
    against = f"**{against}**" if row["speed_least"] > 1 else against
    moved = (
        "all-reduces"
        if row["placement"] == "data_parallel"
        else f"{row['crossing_bytes_per_tick'] / 1e3:,.0f}"
    )
    idle = ", ".join(
        f"{share:.0%}".replace("%", " %") for share in (row["idle_share"] or {}).values()
    )
    itself = row["placement"] == "fused" and row["learners"] == 1
    return [
        f"`{label}`",
        f"{row['sampling_hz']:,.0f}",
        frames(row),
        "1" if itself else against,
        moved,
        idle,
    ]


def distribution(job: str) -> str:
    """Write every placement for one algorithm and environment, against `fused`."""
    algo, _, world = job.partition("-")
    head = [
        f"{algo.upper()}, {WORLDS.get(world, world)}",
        "steps/s",
        "updates/s × batch = frames/s",
        "against `fused`",
    ]
    rows = [distribution_row(row) for row in read("distribution.json")["jobs"][job]]
    return table([*head, "kB per tick between devices", "idle, device 0, 1"], rows)


def overlap_row(row: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    """Write one overlap; ``plain`` is the row without any."""
    summary = row["summary"]
    score = f"{summary['eval_return_mean']:.1f} ± {summary['eval_return_std']:.1f}"
    same = row is not plain and row["returns"] == plain["returns"]
    name = (
        f"{row['algo'].upper()} {WORLDS[row['env']]}, {summary['env_steps']:,} steps"
        if row is plain
        else ""
    )
    words = [
        name,
        f"`{row['overlap']}`",
        f"`{row['placement']}`",
        score + (" (equal numbers)" if same else ""),
    ]
    return [*words, f"{summary['wall_s']:.1f} s", f"{summary['sampling_hz']:,.0f}", frames(summary)]


def overlaps() -> str:
    """Write the cost of each overlap in return, and its gain in speed."""
    rows = read("overlap.json")["rows"]
    plain = {(row["env"], row["algo"]): row for row in rows if row["overlap"] == "none"}
    head = [
        "",
        "`overlap=`",
        "`placement=`",
        "return, mean ± std over seeds",
        "seconds, with compilation",
        "steps/s",
    ]
    body = [overlap_row(row, plain[row["env"], row["algo"]]) for row in rows]
    return table([*head, "updates/s × batch = frames/s"], body)


def pool_row(row: dict[str, Any]) -> list[str]:
    """Write one environment in the pool, and the better of one process and Gymnasium's vector
    environments.
    """
    rates = row["rates"]
    others = {name: rates[name] for name in ("one process", "sync", "async") if name in rates}
    best = max(others, key=lambda name: others[name])
    ours = max(value for name, value in rates.items() if name.startswith("pool"))
    who = best if best == "one process" else f"`{best}` vector"
    default, actors = (f"{rates[name]:,.0f}" if name in rates else "" for name in ("auto", "ray"))
    against = f" ({rates['auto'] / others[best]:.2f} ×)" if default else ""
    name = f"{row['env']}, {row['num_envs']}"
    return [
        name,
        f"{others[best]:,.0f}, {who}",
        f"{ours:,.0f} ({ours / others[best]:.2f} ×)",
        default + against,
        actors,
    ]


def pool() -> str:
    """Write the rates of host environments: the pool, one process or Gymnasium's vector
    environments, and Ray's actors.
    """
    head = ["environment, number", "one process, or Gymnasium's better vector", "pool, 2 workers"]
    return table(
        [*head, "pool, default workers", "Ray actors"],
        [pool_row(row) for row in read("pool.json")["rows"]],
    )


def envpool() -> str:
    """Write EnvPool alone, and through the pool's interface."""
    rows = []
    for row in read("pool.json")["rows"]:
        rates = row["rates"]
        if "envpool backend" in rates:
            alone, behind = rates["envpool"], rates["envpool backend"]
            rows.append(
                [
                    f"{row['env']}, {row['num_envs']}",
                    f"{alone:,.0f}",
                    f"{behind:,.0f}",
                    f"{behind / alone:.2f}",
                ]
            )
    return table(["environment, number", "EnvPool alone", "`pool.backend=envpool`", "ratio"], rows)


SIDES = {
    "ours": "host fragment (default)",
    "ours, callbacks": "ordered callbacks",
    "updates alone": "the same updates alone, no environment",
    "sbx": "SBX",
    "sb3": "Stable-Baselines3",
}


def host_sac_rates() -> str:
    """Write updates a second of SAC on HalfCheetah-v5."""
    found = read("bench/host_sac.json")["rates"]
    rows = []
    for side, name in SIDES.items():
        speed, against = found["rate"][side]["median"], found["ours_against"][side]["median"]
        rows.append(
            [
                name,
                f"{speed:.0f}",
                f"{256 * speed / 1e3:.1f}k",
                "" if side == "ours" else f"{against:.2f}",
            ]
        )
    return table(
        [
            "",
            "updates/s",
            "update frame rate",
            "the default / this row, median of the rounds' ratios",
        ],
        rows,
    )


def host_sac_returns() -> str:
    """Write one whole run of each."""
    runs, rows = read("bench/host_sac.json")["returns"], []
    for side in ("ours", "sbx", "sb3"):
        steps, score, seconds = runs[side]["curve"][-1]
        name = "ours" if side == "ours" else SIDES[side]
        rows.append(
            [
                name,
                f"{steps:,}",
                f"{score:,.0f}",
                f"{seconds:,.0f}",
                f"{runs[side]['seconds_to_4000']:,.0f}",
            ]
        )
    return table(
        ["", "steps", "return at the end", "seconds in total", "seconds to a return of 4,000"], rows
    )


def sweep_row(job: str) -> list[str]:
    """Write the autotuner's result for one run."""
    found = read(f"sweeps/{job}.json")
    chosen, bounds, spreeze = found["chosen"], found["bounds"], found["spreeze"]
    share = bounds["share_of_bounds"]
    low, high = (f"{100 * share[end]:.0f}" for end in ("low", "high"))
    rates = {x["batch_size"]: f"{x['update_frame_hz']['median'] / 1e3:.1f}k" for x in spreeze}
    rates |= {
        x["batch_size"]: f"{rates[x['batch_size']]} ({x['batch_size']:,})"
        for x in spreeze
        if x["best"]
    }
    return [
        f"{found['env']}, {found['algo'].upper()}",
        f"{chosen['num_envs']:,} environments",
        f"{chosen['sampling_hz']:,.0f} steps/s, {chosen['speedup']:.2f} ×",
        f"{100 * share['median']:.0f} % [{low}, {high}]",
        f"{bounds['environments']['sampling_hz']['median'] / 1e3:.1f}k steps/s",
        f"{bounds['updates']['update_hz']['median']:.0f} updates/s",
        ", ".join(rates[size] for size in sorted(rates)),
    ]


def sweeps() -> str:
    """Write the autotuner's results on halfcheetah, and their ratios to the upper bound."""
    head = ["", "selected", "speed, against the default width", "share of the bound"]
    head += ["environments alone", "updates alone", "update frame rate at batch 256, best, 8,192"]
    return table(head, [sweep_row(f"halfcheetah_{algo}") for algo in ("sac", "ppo")])


def search_rows(job: str, found: dict[str, Any]) -> list[list[str]]:
    """Write each search of one job, against the whole grid."""
    rates = {row["width"]: median(row["rates"]) for row in found["grid"] if row["rates"]}
    grid_s, rows = sum(row["took_s"] for row in found["grid"]), []
    for search in found["searches"]:
        share = 100 * rates[search["chosen"]] / max(rates.values())
        words = [
            job.replace("_", " "),
            f"{len(search['rows'])} of {len(found['grid'])}",
            f"{search['chosen']:,}",
        ]
        rows.append([*words, f"{share:.1f} %", f"{100 * search['took_s'] / grid_s:.0f} %"])
    return rows


def searches() -> str:
    """Write the autotuner's search against measuring every width."""
    found = {
        job: x for job, x in read("autotune_search.json").items() if "searches" in x and "grid" in x
    }
    head = [
        "job",
        "widths measured",
        "selected",
        "speed, share of the grid's best",
        "time, share of the grid's",
    ]
    return table(head, [row for job, x in found.items() for row in search_rows(job, x)])


MOVED = ("actor_critic", 2), ("sampler_learner", 2)
"""Placements, with their devices, that move fragments and split no axis."""


def equal_numbers() -> str:
    """Compare placements with `fused`: fragments on other devices, and sharded axes."""
    rows, lines = read("equal_numbers.json")["rows"], []
    moved = [row for row in rows if (row["placement"], row["devices"]) in MOVED]
    kinds = {
        "fragments on other devices": [row for row in moved if row["ticks"] > 1],
        "the same with each program's own compiler options": [
            row for row in moved if row["ticks"] == 1
        ],
        "an axis split over devices": [row for row in rows if row not in moved],
    }
    for name, found in kinds.items():
        ticks = sorted({row["ticks"] for row in found})
        worst, held = (
            max(row["difference"] for row in found),
            sum(row["difference"] <= row["allowed"] for row in found),
        )
        compared = f"{held:,} of {len(found):,}"
        lines.append(
            [
                name,
                compared,
                f"{worst:.2g}",
                f"{max(row['allowed'] for row in found):g}",
                f"{ticks[-1]}",
            ]
        )
    return table(
        ["compared with `fused`", "within limit", "largest difference", "limit", "after ticks"],
        lines,
    )


def other_languages() -> str:
    """Write the tutorial blocks on export that ran in other languages."""
    found = read("docs_other.json")
    rows = [
        [f"`{file}`", row["versions"], f"{row['action']:.5f}", f"{row['in Python']:.5f}"]
        for file, row in found["blocks"].items()
    ]
    return table(
        ["program", "run with", "action", f"action in Python, {found['compared with']}"], rows
    )


EVALUATED = {
    "sac halfcheetah, whole": "SAC halfcheetah, a run of 160,000 steps",
    "ppo halfcheetah, whole": "PPO halfcheetah, whole run",
    "sac halfcheetah, groups": "SAC halfcheetah, 32,000 steps, `placement=actor_critic overlap=all`, two devices",
    "ppo cartpole": "PPO CartPole, a run of seconds",
    "ppo cartpole, cold": "PPO CartPole, empty compilation cache",
}


def evaluation_row(name: str) -> list[str]:
    """Write the cost of evaluations for one run, during training and between chunks."""
    found, cells = read("evaluation_cost.json")[name], []
    for way in ("beside", "between chunks"):
        middle, least, most = found["ratios"].get(way, {}).get("all_s", (0.0, 0.0, 0.0))
        spread = f" [{least:.2f}, {most:.2f}]" if found["pairs"] > 1 else ""
        cells.append(f"{middle:.2f}{spread}" if middle else "")
    return [EVALUATED[name], str(found["pairs"]), *cells, found["machine"]]


def evaluation() -> str:
    """Write the seconds of runs with evaluations, divided by the seconds of the same run without."""
    head = ["job, ten evaluations", "pairs", "during training", "between chunks", "machine"]
    return table(head, [evaluation_row(name) for name in EVALUATED])


JOBS = ("ppo-halfcheetah", "sac-halfcheetah", "ppo-pendulum", "sac-pendulum")
JOBS += ("ppo-Pendulum-v1", "sac-Pendulum-v1", "ppo-HalfCheetah-v5", "sac-HalfCheetah-v5")
MEASURED: dict[str, Callable[[], str]] = {
    f.__name__: f
    for f in (
        overlaps,
        pool,
        envpool,
        host_sac_rates,
        host_sac_returns,
        sweeps,
        searches,
        equal_numbers,
        other_languages,
        evaluation,
    )
}
MEASURED |= {f"distribution-{job}": partial(distribution, job) for job in JOBS}
"""Tables of figures by name."""
