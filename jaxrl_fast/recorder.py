"""The run's clock and memory: what the chunks and evaluations say, as rows, rates and a summary."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from jaxrl_fast.algorithm import Agent
from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.env import VecEnv
from jaxrl_fast.evaluation import bootstrap_interval
from jaxrl_fast.graph import Graph, active_ticks
from jaxrl_fast.placement import Placement
from jaxrl_fast.reporting import Row, RunFolder


class NonFiniteError(ValueError):
    """An environment or an update gave a NaN or an infinity; the message names the step."""


class Plan(NamedTuple):
    """Sizes of a run, all in ticks but ``steps_per_tick`` (environment steps over all environments)."""

    ticks_per_chunk: int
    num_chunks: int
    chunks_per_eval: int
    steps_per_tick: int


class Recorder:
    """The run's clock and memory: rows, rates and the summary. Times in seconds."""

    def __init__(
        self, env: VecEnv, agent: Agent, plan: Plan, graph: Graph, placement: Placement, num_seeds: int,
        on_metrics: Callable[[Row], None] | None, folder: RunFolder | None,
    ) -> None:  # fmt: skip
        self.env, self.agent, self.plan, self.graph, self.num_seeds = env, agent, plan, graph, num_seeds
        self.devices = sorted({str(device) for group in placement.groups for device in group.devices})
        self.on_metrics, self.folder = on_metrics, folder
        self.history: list[Row] = []
        self.scores = np.zeros(0)
        self.eval_row: Row = {}
        self.start_s = self.last_s = time.perf_counter()
        self.first_step_s = self.compile_s = 0.0
        self.rates: list[tuple[float, int]] = []
        self.ticks = 0

    def compiling(self) -> None:
        """The programs are about to be traced and compiled."""
        self.last_s = time.perf_counter()

    def compiled(self) -> None:
        """The first training step starts now."""
        now = time.perf_counter()
        self.compile_s, self.last_s, self.first_step_s = now - self.last_s, now, now

    def wall_s(self) -> float:
        return time.perf_counter() - self.start_s

    def add_chunk(self, metrics: dict[str, np.ndarray]) -> None:
        """Take in the metrics ``[S, ticks]`` of a chunk that has just ended."""
        now = time.perf_counter()
        seconds, self.last_s = now - self.last_s, now
        first = self.ticks
        self.ticks += self.plan.ticks_per_chunk
        _check_finite(metrics, first, self.plan, self.env)
        updates = self._updates(first, self.ticks)
        steps = self.plan.ticks_per_chunk * self.plan.steps_per_tick * self.num_seeds
        self.rates.append((seconds, updates))
        row = {
            "kind": "train",
            "env_steps": self.ticks * self.plan.steps_per_tick,
            "updates": self._updates(0, self.ticks) // self.num_seeds,
            "wall_s": self.wall_s(),
            "sampling_hz": steps / seconds,
            "update_hz": updates / seconds,
            "update_frame_hz": updates * self.agent.batch_size / seconds,
            **summarize_metrics(self.graph, metrics, first, self.ticks),
        }
        self._keep(row)
        if self.folder is not None:
            self.folder.add_metrics(row)

    def add_evaluation(self, totals: EpisodeTotals) -> None:
        """Take in an evaluation's totals ``[S, episodes]``."""
        env_steps, wall_s = self.ticks * self.plan.steps_per_tick, self.wall_s()
        self.scores = np.asarray(totals.returns).mean(axis=1)
        self.eval_row = evaluation_row(totals)
        self._keep({"kind": "eval", "env_steps": env_steps, "wall_s": wall_s, **self.eval_row})
        if self.folder is not None:
            self.folder.add_evaluation(env_steps, wall_s, totals)
        self.last_s = time.perf_counter()

    def summary(self) -> Row:
        """The figures of the whole run; steady rates leave compilation and evaluation out."""
        active = [(s, u) for s, u in self.rates if u] or self.rates
        seconds = sum(s for s, _ in active)
        chunk_steps = self.plan.ticks_per_chunk * self.plan.steps_per_tick * self.num_seeds
        update_hz = sum(u for _, u in active) / seconds if seconds else 0.0
        return {
            "num_seeds": self.num_seeds,
            "num_envs": self.env.num_envs,
            "batch_size": self.agent.batch_size,
            "jax_version": jax.__version__,
            "devices": self.devices,
            "env_steps": self.ticks * self.plan.steps_per_tick,
            "updates": self._updates(0, self.ticks) // self.num_seeds,
            "wall_s": self.wall_s(),
            "compile_s": self.compile_s,
            "time_to_first_step_s": self.first_step_s - self.start_s,
            "sampling_hz": len(active) * chunk_steps / seconds if seconds else 0.0,
            "update_hz": update_hz,
            "update_frame_hz": update_hz * self.agent.batch_size,
            **self.eval_row,
        }

    def _keep(self, row: Row) -> None:
        self.history.append(row)
        if self.on_metrics is not None:
            self.on_metrics(row)

    def _updates(self, first: int, last: int) -> int:
        """Gradient updates of all seeds in the ticks ``first .. last - 1``."""
        learner = next(f for f in self.graph.fragments if f.name.startswith("learn"))
        return active_ticks(learner, first, last) * self.agent.updates_per_tick * self.num_seeds


def summarize_metrics(graph: Graph, metrics: dict[str, np.ndarray], first: int, last: int) -> Row:
    """One number a metric: episode statistics are per ended episode, others the mean over active ticks and seeds."""
    episodes = int(metrics["sample/episodes"].sum())
    row: Row = {"episodes": episodes}
    for name in ("episode_return", "episode_length"):
        row[name] = float(metrics[f"sample/{name}_sum"].sum() / episodes) if episodes else None
    for fragment in graph.fragments:
        active = active_ticks(fragment, first, last)
        for name, values in metrics.items():
            if name.startswith(f"{fragment.name}/") and fragment.name != "sample":
                row[name] = float(values.sum() / (active * values.shape[0])) if active else None
    return row


def evaluation_row(totals: EpisodeTotals) -> Row:
    """Mean return and its spread: over episodes for one seed, over seeds (with a 95 % interval) for several."""
    returns = np.asarray(totals.returns)
    scores = returns.mean(axis=1)
    row: Row = {
        "eval_return_mean": float(returns.mean()),
        "eval_return_std": float(scores.std(ddof=1) if len(scores) > 1 else returns.std()),
        "eval_length_mean": float(totals.length.mean()),
        "eval_episodes": int(returns.size),
    }
    if len(scores) > 1:
        row["eval_return_ci95"] = list(bootstrap_interval(scores))
        row["eval_return_seeds"] = [float(s) for s in scores]
    return row


def _check_finite(metrics: dict[str, np.ndarray], first_tick: int, plan: Plan, env: VecEnv) -> None:
    steps = metrics["sample/nonfinite_step"]
    bad = np.argwhere(steps >= 0)
    if bad.size:
        seed, tick = min(bad.tolist(), key=lambda index: index[1])
        step = (first_tick + tick) * (plan.steps_per_tick // env.num_envs) + int(steps[seed, tick]) + 1
        raise NonFiniteError(
            f"environment {env.spec.name} gave a NaN or an infinity (observation or reward) at step {step} of each "
            f"environment, {step * env.num_envs} steps over all {env.num_envs} (tick {first_tick + tick}, seed {seed})"
        )
    for name, values in metrics.items():
        if not np.isfinite(values).all():
            tick = int(np.argwhere(~np.isfinite(values))[0][1])
            raise NonFiniteError(
                f"metric {name} became NaN or infinite in tick {first_tick + tick}: try a smaller algo.learning_rate"
            )
