"""Records of a run: metrics of chunks and evaluations as rows, rates and a summary."""

import time

import jax
import numpy as np

from jaxrl_fast.core import EpisodeTotals, PyTree
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.episode_metrics import METRIC, mean_of_finite, metric_means
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.acting import TEMPERATURES
from jaxrl_fast.learning.updates import DROPPED
from jaxrl_fast.numerics.intervals import mean_interval
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import Graph, TrainState, active_ticks, tagged
from jaxrl_fast.runtime.placements import LEARNING, SAMPLING
from jaxrl_fast.training.callbacks import RATES, MeanRates, Row
from jaxrl_fast.training.calls import Calls
from jaxrl_fast.training.episodes import (
    Snapshot,
    describe_cut,
    interquartile_mean,
)
from jaxrl_fast.training.job import Job, Plan
from jaxrl_fast.training.run_folder import RunFolder


class NonFiniteError(ValueError):
    """An environment or an update computed a NaN or an infinity; the message names fragment, tick
    and metric.
    """

    def __init__(self, message: str, fragment: str = "", tick: int = 0, seed: int = 0) -> None:
        super().__init__(message)
        self.fragment, self.tick, self.seed = fragment, tick, seed


NOT_EVALUATED: Row = {"eval_return_mean": None, "eval_return_std": None, "eval_episodes": 0}
"""Entries in the summary of a run that was stopped before its first evaluation."""


class Recorder:
    """Counts a run's ticks, updates and seconds, and computes rows, rates and the summary.

    ``truncated`` is the number of training episodes that evaluations with ``eval.share`` truncated.
    """

    truncated, told_bound, told_cut = 0, False, False

    def __init__(self, job: Job, calls: Calls, folder: RunFolder | None) -> None:
        self.env, self.agent, self.plan, self.graph = job.env, job.agent, job.plan, job.graph
        self.chunk_steps = job.plan.ticks_per_chunk * job.plan.steps_per_tick * job.num_seeds
        self.num_seeds, self.nan, self.empty_until = (
            job.num_seeds,
            job.graph_options.nan,
            job.graph_options.empty_until,
        )
        self.devices = sorted(
            {str(device) for group in job.placement.groups for device in group.devices}
        )
        self.on_metrics, self.on_row, self.tell = (
            calls.on_metrics,
            calls.listeners.on_row,
            calls.tell,
        )
        self.folder, self.history, self.scores = folder, list[Row](), np.zeros(0)
        self.eval_row, self.best = Row(), Row()
        self.start_s = self.last_s = time.perf_counter()
        self.rates = MeanRates()
        self.ticks = self.updates = self.dropped = self.eval_steps = 0
        self.first_step_s = self.compile_s = self.wall_before_s = self.eval_wait_s = self.eval_s = (
            0.0
        )

    def progress(self) -> Row:
        """Return the progress of the run, for a checkpoint."""
        return {
            **dict(
                ticks=self.ticks,
                env_steps=self.env_steps(),
                updates=self.updates,
                dropped=self.dropped,
            ),
            **dict(
                wall_s=self.wall_s(),
                ticks_per_chunk=self.plan.ticks_per_chunk,
                empty_until=self.empty_until,
            ),
            **dict(eval_wait_s=self.eval_wait_s, eval_s=self.eval_s, truncated=self.truncated),
        } | self.evaluated()

    def evaluated(self) -> Row:
        """Return the results of the evaluations so far, for a checkpoint."""
        return dict(
            best=self.best,
            scores=self.scores.tolist(),
            eval_row=self.eval_row,
            eval_steps=self.eval_steps,
        )

    def go_on_from(self, progress: Row) -> None:
        """Continue to count from a checkpoint's progress."""
        self.ticks, self.updates, self.dropped = (
            progress["ticks"],
            progress["updates"],
            progress["dropped"],
        )
        self.wall_before_s, self.eval_wait_s = progress["wall_s"], progress.get("eval_wait_s", 0.0)
        self.eval_s, self.truncated = progress.get("eval_s", 0.0), progress.get("truncated", 0)
        self.best, self.eval_steps = progress.get("best", {}), progress.get("eval_steps", 0)
        self.scores, self.eval_row = np.array(progress["scores"]), progress["eval_row"]

    def compiled(self, since_s: float) -> None:
        """Store the compile time since ``since_s`` (`time.perf_counter`); call directly before the
        first step.
        """
        now = time.perf_counter()
        self.compile_s, self.last_s, self.first_step_s = now - since_s, now, now
        if self.folder is not None:
            self.folder.status.set(state="training", compile_s=self.compile_s)

    def wall_s(self) -> float:
        """Return the seconds of this run, including those before it was resumed."""
        return self.wall_before_s + time.perf_counter() - self.start_s

    def score(self) -> float:
        """Return the mean return of the last evaluation, over seeds and episodes."""
        return float(self.scores.mean())

    def env_steps(self) -> int:
        """Return the environment steps of each seed so far."""
        return self.ticks * self.plan.steps_per_tick

    def add_chunk(self, metrics: dict[str, np.ndarray], rates: dict[str, np.ndarray]) -> None:
        """Record the metrics ``[S, ticks]`` of a chunk that has just ended, and hyper-parameters
        ``[S]``.
        """
        now, first = time.perf_counter(), self.ticks
        seconds, self.last_s = now - self.last_s, now
        self.ticks += self.plan.ticks_per_chunk
        if self.nan == "stop":
            self._check_finite(metrics, first)
        learner = next(f for f in self.graph.fragments if LEARNING in f.tags)
        updates = (
            active_ticks(learner, first, self.ticks) * self.agent.updates_per_tick * self.num_seeds
        )
        self.updates += updates // self.num_seeds
        amounts = self.chunk_steps, updates, updates * self.agent.batch_size
        row = {
            **dict(
                kind="train", env_steps=self.env_steps(), updates=self.updates, wall_s=self.wall_s()
            ),
            **dict(zip(RATES, (n / seconds for n in amounts), strict=True)),
            **summarize_metrics(self.graph, metrics, first, self.ticks),
            **{f"rate/{name}": float(np.mean(values)) for name, values in rates.items()},
        }
        if self.num_seeds > 1:
            row["seeds"] = [
                self._row_of_seed(seed, metrics, rates, first) for seed in range(self.num_seeds)
            ]
        self.dropped += row.get(DROPPED, 0)
        self.rates.add(row)
        if temperatures := [
            values for name, values in metrics.items() if name.endswith("/temperature")
        ]:
            self._tell_bound(np.concatenate(temperatures, axis=None))
        self._keep(row)
        if self.folder is not None:
            self.folder.add_metrics(row)

    def add_evaluation(self, snapshot: Snapshot, totals: EpisodeTotals) -> np.ndarray:
        """Record a snapshot's totals ``[S, episodes]``, and return each seed's mean ``[S]``.

        A late evaluation of an older snapshot does not replace the newest.
        """
        line = describe_cut(totals.length, self.env.spec.max_episode_steps)
        if line and not self.told_cut:
            self.told_cut = True
            self.tell(line)
        scores, row = np.asarray(totals.returns).mean(axis=1), evaluation_row(totals)
        if snapshot.env_steps >= self.eval_steps:
            self.scores, self.eval_row, self.eval_steps = scores, row, snapshot.env_steps
        self._keep(
            {"kind": "eval", "env_steps": snapshot.env_steps, "wall_s": snapshot.wall_s, **row}
        )
        if self.folder is not None:
            self.folder.add_evaluation(snapshot.env_steps, snapshot.wall_s, totals)
        return scores

    def is_best(self, snapshot: Snapshot, seed: int, score: float) -> bool:
        """Check whether ``score`` of ``seed`` in ``snapshot`` is the highest so far, and store it
        if so.
        """
        better = not self.best or score > self.best["return_mean"]
        self.best = (
            {"env_steps": snapshot.env_steps, "seed": seed, "return_mean": score}
            if better
            else self.best
        )
        return better

    def add_fresh_score(self, totals: EpisodeTotals) -> None:
        """Store the result ``[S, episodes]`` of the best policy from initial states not used to
        select it.
        """
        returns = np.asarray(totals.returns)[self.best["seed"]]
        fresh = {
            "mean": float(returns.mean()),
            "std": float(returns.std()),
            "episodes": int(returns.size),
        }
        self.best = {
            **self.best,
            **{f"fresh_return_{name}": value for name, value in fresh.items()},
        }
        if not isinstance(totals.success, tuple):
            self.best["fresh_success_rate"] = float(np.mean(totals.success[self.best["seed"]]))

    def waited(self, since_s: float) -> None:
        """Count the seconds since ``since_s`` (`time.perf_counter`), in which training waited for
        an evaluation.
        """
        self.last_s = time.perf_counter()
        self.eval_wait_s += self.last_s - since_s

    def summary(self) -> Row:
        """Return the results of the whole run; its rates exclude compilation and evaluation."""
        return {
            **dict(
                num_seeds=self.num_seeds,
                num_envs=self.env.num_envs,
                batch_size=self.agent.batch_size,
            ),
            **dict(jax_version=jax.__version__, devices=self.devices, env_steps=self.env_steps()),
            **dict(
                updates=self.updates,
                dropped_updates=self.dropped,
                wall_s=self.wall_s(),
                compile_s=self.compile_s,
            ),
            "time_to_first_step_s": self.first_step_s - self.start_s,
            **dict(eval_wait_s=self.eval_wait_s, eval_s=self.eval_s, best=self.best or None),
            **self.rates.now,
            **(
                NOT_EVALUATED
                | self.eval_row
                | ({"truncated_episodes": self.truncated} if self.truncated else {})
            ),
        }

    def _row_of_seed(
        self, seed: int, metrics: dict[str, np.ndarray], rates: dict[str, np.ndarray], first: int
    ) -> Row:
        own = {name: values[seed : seed + 1] for name, values in metrics.items()}
        return {
            "seed": seed,
            "env_steps": self.env_steps(),
            **summarize_metrics(self.graph, own, first, self.ticks),
            **{f"rate/{name}": float(values[seed]) for name, values in rates.items()},
        }

    def _tell_bound(self, temperatures: np.ndarray) -> None:
        """Report once that a trained temperature of any seed is at its bound; 0 is a tick without
        updates.
        """
        low, high = TEMPERATURES
        beyond = temperatures[
            (temperatures != 0.0) & ~((1.01 * low < temperatures) & (temperatures < 0.99 * high))
        ]
        if (
            beyond.size
            and not self.told_bound
            and any("temperature" in p.networks for p in self.agent.parts.values())
        ):
            self.told_bound = True
            self.tell(
                f"the temperature is at its bound, {beyond[0]:g}: write a target entropy that the policy can have"
            )

    def _keep(self, row: Row) -> None:
        self.history.append(row)
        if self.folder is not None:
            self.folder.status.add(row, self.rates.now)
            self.on_row(self.folder)
        if self.on_metrics is not None:
            self.on_metrics(row)

    def _check_finite(self, metrics: dict[str, np.ndarray], first_tick: int) -> None:
        (sampling,) = tagged(self.graph, SAMPLING)
        steps = metrics[f"{sampling}/nonfinite_step"]
        if (steps >= 0).any():
            raise _nonfinite_step(steps, sampling, first_tick, self.plan, self.env)
        bad = {name: np.argwhere(~np.isfinite(values)) for name, values in metrics.items()}
        if any(places.size for places in bad.values()):
            raise _nonfinite_metric(bad, first_tick)


def summarize_metrics(graph: Graph, metrics: dict[str, np.ndarray], first: int, last: int) -> Row:
    """Reduce the metrics of a chunk to one number each.

    Episode statistics and the environment's metrics are means over ended episodes, dropped updates
    are sums, and others are means over active ticks and seeds.

    Args:
        graph: Graph of the run.
        metrics: Metrics by name, ``[S, ticks]``.
        first: First tick.
        last: Tick after the last one.

    Returns:
        Row of numbers; None for no episodes or no active ticks.
    """
    (sampling,) = tagged(graph, SAMPLING)
    episodes = int(metrics[f"{sampling}/episodes"].sum())
    row: Row = {"episodes": episodes}
    for name in ("episode_return", "episode_length"):
        row[name] = float(metrics[f"{sampling}/{name}_sum"].sum() / episodes) if episodes else None
    row |= (
        metric_means(metrics, sampling)
        if any(name.startswith(f"{sampling}/{METRIC}") for name in metrics)
        else {}
    )
    dropped = [name for name in metrics if name.endswith(DROPPED)]
    row |= {DROPPED: int(sum(metrics[name].sum() for name in dropped))} if dropped else {}
    for fragment in graph.fragments:
        active = active_ticks(fragment, first, last)
        for name, values in metrics.items():
            if (
                name.startswith(f"{fragment.name}/")
                and fragment.name != sampling
                and name not in dropped
            ):
                row[name] = float(values.sum() / (active * values.shape[0])) if active else None
    return row


def evaluation_row(totals: EpisodeTotals) -> Row:
    """Compute the statistics of an evaluation.

    Standard deviation and interquartile mean are over episodes for one seed, and over seeds for
    several; three and more get a 95 % interval. The success rate is included if the environment reports
    success, and the means of its metrics.

    Args:
        totals: Totals ``[S, episodes]``.

    Returns:
        Row of numbers.
    """
    returns = np.asarray(totals.returns)
    scores = returns.mean(axis=1)
    row: Row = {
        "eval_return_mean": float(returns.mean()),
        "eval_return_iqm": interquartile_mean(scores if len(scores) > 1 else returns[0]),
        "eval_return_std": float(scores.std(ddof=1) if len(scores) > 1 else returns.std()),
        **dict(eval_length_mean=float(totals.length.mean()), eval_episodes=int(returns.size)),
    }
    row |= (
        {}
        if isinstance(totals.success, tuple)
        else {"eval_success_rate": float(np.mean(totals.success))}
    )
    row |= (
        {"eval_metrics": {name: mean_of_finite(x) for name, x in totals.metrics.items()}}
        if totals.metrics
        else {}
    )
    if len(scores) > 1:
        row |= {
            "eval_return_seeds": scores.tolist(),
        }
    if (interval := mean_interval(scores)) is not None:
        row |= {"eval_return_ci95": list(interval)}
    return row


def _nonfinite_step(
    steps: np.ndarray, sampling: str, first_tick: int, plan: Plan, env: VecEnv | HostEnv
) -> NonFiniteError:
    """Make the error of the first non-finite environment step; ``steps`` ``[S, ticks]`` is -1 in
    ticks without one.
    """
    seed, tick = min(np.argwhere(steps >= 0).tolist(), key=lambda index: index[1])
    step = (first_tick + tick) * (plan.steps_per_tick // env.num_envs) + int(steps[seed, tick]) + 1
    return NonFiniteError(
        f"environment {env.spec.name} gave a NaN or an infinity (observation or reward) at step {step} of an "
        f"environment, {step * env.num_envs} steps over all {env.num_envs} (fragment {sampling}, tick "
        f"{first_tick + tick}, seed {seed}): python -m jaxrl_fast.check may show which",
        sampling,
        first_tick + tick,
        seed,
    )


ADVICE = "try a smaller algo.learning_rate, or nan=skip"


def _nonfinite_metric(bad: dict[str, np.ndarray], first_tick: int) -> NonFiniteError:
    """Make the error of the first non-finite metric; ``bad``: places ``[n, 2]`` (seed, tick) by
    name.
    """
    first = {
        name: min(found.tolist(), key=lambda index: index[1])
        for name, found in bad.items()
        if found.size
    }
    name = min(first, key=lambda n: first[n][1])
    seed, tick = first[name]
    fragment, _, metric = name.partition("/")
    return NonFiniteError(
        f"metric {metric} of fragment {fragment} became NaN or infinite in tick {first_tick + tick}, "
        f"seed {seed}: {ADVICE}",
        fragment,
        first_tick + tick,
        seed,
    )


def check_start(state: TrainState, graph: Graph, env: VecEnv | HostEnv) -> None:
    """Check that the first observation is finite.

    Args:
        state: First state.
        graph: Graph of the run.
        env: Environment, for its name.

    Raises:
        NonFiniteError: The observation is not finite.
    """
    for leaf in jax.tree.leaves(current_observations(state, graph)):
        if not np.isfinite(np.asarray(leaf, np.float32)).all():
            raise NonFiniteError(
                f"environment {env.spec.name} gave a NaN or an infinity in its first observation"
            )


def current_observations(state: TrainState, graph: Graph) -> PyTree:
    """Return the observations from which the next actions are computed.

    Args:
        state: State of a run.
        graph: Graph of the run.

    Returns:
        Arrays ``[..., E, *obs]`` in the host's memory.
    """
    (sampling,) = tagged(graph, SAMPLING)
    return hosts.to_host(state.private[sampling].obs)


LARGE = 1e10
"""Observations above are no measurements: `describe_large` names them."""


def describe_large(state: TrainState, graph: Graph) -> str:
    """Describe an observation with very large values, which hide all others when normalized.

    Args:
        state: State of a run.
        graph: Graph of the run.

    Returns:
        A line; "" without such values.
    """
    for path, leaf in jax.tree.leaves_with_path(current_observations(state, graph)):
        if not np.issubdtype(leaf.dtype, np.floating):
            continue
        sizes = np.abs(np.nan_to_num(np.asarray(leaf, np.float32), posinf=0.0, neginf=0.0))
        if sizes.size and sizes.max() > LARGE:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            # without the axes of seeds and environments
            entry = np.unravel_index(int(np.argmax(sizes)), sizes.shape)[state.key.ndim + 1 :]
            what = f"observation '{name}'" if name else "an observation"
            where = f"{what} reaches {sizes.max():g} at {list(map(int, entry))}"
            return (
                f"{where}: such a value hides all others of its entry; clip it in the environment, as by "
                "gymnasium.wrappers.TransformObservation"
            )
    return ""
