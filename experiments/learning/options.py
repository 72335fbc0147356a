"""What each option of an algorithm brings or costs: greedy return and seconds, three seeds.

``python experiments/learning/options.py`` makes all missing runs, ``... ppo`` only an algorithm's,
``core=1`` on another core, ``--page`` only writes ``docs/options.md``. Every row is one run with
three seeds on one core, and the same run without the option. A result is written when its run ends,
so an interrupted script goes on where it was. The rows with host environments need Gymnasium.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from defaults import option, processor_s
from describe import ROOT, commit, machine, machines_line, versions
from learning import read_curve

from jaxrl_fast.numerics.intervals import difference_interval

RESULT = ROOT / "experiments" / "results" / "options.json"
PAGE = ROOT / "docs" / "options.md"
SEEDS, EPISODES = 3, 20
HEAD = """# What options bring

`python experiments/learning/options.py` makes these runs and writes this page: an option of `docs/algorithms.md` or of
an example and the same run without it, after equally many steps; where an option names `total_steps`, the number
was chosen to take about equal seconds (the column has them). Nothing else is tuned. Returns are means over the last
greedy evaluation (20 episodes) of three seeds, with the lowest and highest seed. Seconds are of one core's processor,
for all three seeds in one program, with start-up and evaluations. Three seeds show large effects only: read a row as
"works, and costs so much", not as a ranking. Each section is about one run, whose command comes first. *Difference* is
Welch's 95 % interval of the difference to the run without the option; three seeds have no verdict
([intervals](intervals.md)).
"""
CHEETAH = (
    "env=gymnasium",
    "env.id=HalfCheetah-v5",
    "algo=ppo",
    "tuned=false",
    "total_steps=100_000",
)
SWING = ("env=pendulum", "num_envs=1", "tuned=false", "total_steps=4_000", "algo.warmup_steps=500")
SWING += ("algo.policy_hidden=[64,64]", "algo.critic_hidden=[64,64]")
SAC, TD3 = (*SWING, "algo=sac"), (*SWING, "algo=td3")
FIVE = "algo.updates_per_tick=5"
POLE = ("env=cartpole", "algo=dqn", "tuned=false", "total_steps=50_000", "num_envs=4")
RUNNER = ("env=hopper", "algo=sac", "tuned=false", "total_steps=20_000", "num_envs=4")
RUN = ("env=halfcheetah", "algo=ppo", "tuned=false", "total_steps=700_000")
CROSSING = ("env=traffic_junction_4", "algo=pqn_vdn", "tuned=false", "total_steps=400_000")
GOALS = ("env=custom", "algo=custom", "num_envs=16", "algo.share=0")
BITS = (
    *GOALS,
    "env.make=examples.hindsight.bits",
    "algo.make=examples.hindsight.dqn",
    "total_steps=60_000",
)
ARM = (
    *GOALS,
    "env.make=examples.hindsight.arm",
    "algo.make=examples.hindsight.sac",
    "total_steps=40_000",
)
SEA = (
    "env=custom",
    "env.make=examples.curiosity.deep_sea",
    "algo=custom",
    "algo.make=examples.curiosity.ppo",
)
SEA += ("num_envs=16", "total_steps=700_000", "algo.bonus_weight=0")


class Row(NamedTuple):
    """One option.

    Attributes:
        base: Words of the run without it.
        words: Words of the option, which replace words of equal keys.
    """

    base: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def runs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Words of both runs."""
        chosen = {word.partition("=")[0] for word in self.words}
        return self.base, (
            *(word for word in self.base if word.partition("=")[0] not in chosen),
            *self.words,
        )


ROWS: dict[str, Row] = {
    "ppo value_clip_range": Row(CHEETAH, ("algo.value_clip_range=0.2",)),
    "ppo max_kl": Row(CHEETAH, ("algo.max_kl=0.02",)),
    "ppo desired_kl": Row(CHEETAH, ("algo.desired_kl=0.01",)),
    "ppo normalize_values": Row(
        CHEETAH, ("algo.normalize_values=true", "algo.normalize_rewards=false")
    ),
    "ppo free_deviation": Row(CHEETAH, ("algo.free_deviation=true",)),
    "ppo clip_actions": Row(CHEETAH, ("algo.clip_actions=true",)),
    "ppo orthogonal": Row(CHEETAH, ("algo.orthogonal=true",)),
    "ppo share_torso": Row(CHEETAH, ("algo.share_torso=true",)),
    "sac REDQ": Row((*SAC, FIVE), ("algo.num_critics=5", "algo.target_critics=2")),
    "sac DroQ": Row((*SAC, FIVE), ("algo.critic_dropout=0.01", "algo.critic_layer_norm=true")),
    "sac updates_per_tick": Row(SAC, (FIVE,)),
    "sac fixed_temperature": Row(SAC, ("algo.fixed_temperature=0.2",)),
    "sac deviation bounds": Row(SAC, ("algo.deviation_min=0.01", "algo.deviation_max=2")),
    "sac prioritized": Row(
        SAC, ("algo.priority_exponent=0.6", "algo.importance_exponent=linear:0.4:1")
    ),
    "sac gSDE": Row(SAC, ("algo.noise_steps=8",)),
    "sac num_envs=16": Row(RUNNER, ("num_envs=16",)),
    "sac num_envs=64": Row(RUNNER, ("num_envs=64",)),
    "td3 REDQ": Row((*TD3, FIVE), ("algo.num_critics=5", "algo.target_critics=2")),
    "td3 prioritized": Row(
        TD3, ("algo.priority_exponent=0.6", "algo.importance_exponent=linear:0.4:1")
    ),
    "dqn munchausen": Row(POLE, ("algo.munchausen=0.9",)),
    "dqn epsilon_spread": Row(POLE, ("algo.epsilon=0.4", "algo.epsilon_spread=7")),
    "dqn IQN": Row(
        (*POLE[:3], "total_steps=20_000", "num_envs=4"),
        ("algo.value_head=implicit", "algo.num_atoms=8"),
    ),
    "dqn noisy": Row(POLE, ("algo.noisy=true", "algo.epsilon=0")),
    "own hindsight, DQN": Row(BITS, ("algo.share=0.8",)),
    "own hindsight, SAC": Row(ARM, ("algo.share=0.8",)),
    "own bonus, size 10": Row((*SEA, "+env.size=10"), ("algo.bonus_weight=3",)),
    "own bonus, size 12": Row((*SEA, "+env.size=12"), ("algo.bonus_weight=3",)),
    "own bonus, size 15": Row((*SEA, "+env.size=15"), ("algo.bonus_weight=3",)),
    "seconds reppo": Row(RUN, ("algo=reppo", "total_steps=200_000")),
    "seconds fast_td3": Row(RUN, ("algo=fast_td3", "total_steps=40_000")),
    "seconds td3": Row(RUN, ("algo=td3", "total_steps=17_000")),
    "seconds flash_sac": Row(RUN, ("algo=flash_sac", "total_steps=3_000")),
    "pqn_vdn mixer": Row(CROSSING, ("algo.mixer=qmix",)),
}
"""Rows by algorithm and option."""


def measure(words: list[str]) -> None:
    """Make the missing runs of the asked rows."""
    asked = {
        name: row
        for name, row in ROWS.items()
        if all(word in name or "=" in word for word in words)
    }
    core = int(option(words, "core", 0))
    for run_words in dict.fromkeys(words for row in asked.values() for words in row.runs):
        key = " ".join(run_words)
        if key not in read():
            made = run(run_words, core) | {
                "machine": machine(),
                "versions": versions(),
                "commit": commit(),
            }
            RESULT.write_text(json.dumps(read() | {key: made}, indent=1) + "\n")
            print(key, made["returns"], f"{made['seconds']:.0f} s", flush=True)


def run(words: tuple[str, ...], core: int) -> dict[str, Any]:
    """Train three seeds in one program on one core."""
    with tempfile.TemporaryDirectory() as place:
        folder, before = Path(place) / "run", processor_s()
        asked = [
            *words,
            f"num_seeds={SEEDS}",
            f"eval.episodes={EPISODES}",
            "checkpoint.keep=0",
            "log=none",
        ]
        command = [
            "taskset",
            "-c",
            str(core),
            sys.executable,
            "-m",
            "jaxrl_fast.train",
            *asked,
            f"run_dir={folder}",
        ]
        found: dict[str, Any] = dict(
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL
        )
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, **found)
        if done.returncode:
            raise SystemExit(
                f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
            )
        return {"returns": read_curve(folder)[-1]["returns"], "seconds": processor_s() - before}


def read() -> dict[str, Any]:
    """Return all results by the words of their run."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def shown(made: dict[str, Any]) -> str:
    """Write a mean return with its range."""
    returns = np.array(made["returns"])
    return f"{returns.mean():.4g} ({returns.min():.4g} to {returns.max():.4g})"


def difference(without: dict[str, Any], with_it: dict[str, Any]) -> str:
    """Write the 95 % interval of the difference of both means."""
    interval = difference_interval(with_it["returns"], without["returns"])
    return "–" if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}"


def write_page() -> None:
    """Write ``docs/options.md`` from all rows of which both runs exist."""
    made, text = read(), list[str]()
    for base in dict.fromkeys(row.base for row in ROWS.values()):
        text += section(base, made)
    PAGE.write_text("\n".join([HEAD, *text, machines_line(made.values()), ""]))


def title_of(base: tuple[str, ...]) -> str:
    """Return the algorithm and the environment of a run."""
    named = dict(word.split("=", 1) for word in base)
    algo, env = (
        named.get(f"{of}.make", named.get(f"{of}.id", named[of])) for of in ("algo", "env")
    )
    return f"{algo.removeprefix('examples.')} on {env.removeprefix('examples.')}"


def section(base: tuple[str, ...], made: dict[str, Any]) -> list[str]:
    """Write the options that were tried in one run; nothing if there is no result."""
    pairs = [
        (row.words, *(made.get(" ".join(run)) for run in row.runs))
        for row in ROWS.values()
        if row.base == base
    ]
    whole = [(words, without, with_it) for words, without, with_it in pairs if without and with_it]
    if not whole:
        return []
    without, alike = (
        whole[0][1],
        [row.base for row in ROWS.values() if title_of(row.base) == title_of(base)],
    )
    differs = [word for word in base if not all(word in other for other in alike)]
    lines = [f"## {', '.join([title_of(base), *differs])}", "", f"`{' '.join(base)}`", ""]
    lines += ["| option | return | difference | seconds |", "|---|---|---|---|"]
    lines.append(f"| none | {shown(without)} | | {without['seconds']:.0f} |")
    for words, before, after in whole:
        cells = (
            f"`{' '.join(words)}`",
            shown(after),
            difference(before, after),
            f"{after['seconds']:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


if __name__ == "__main__":
    if "--page" not in sys.argv:
        measure(sys.argv[1:])
    write_page()
