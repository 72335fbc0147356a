"""Samplers: how the point of the next trial is chosen from the trials before it."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from jaxrl_fast.population.search_space import (
    LISTS,
    Ask,
    SearchSpace,
    Shares,
    TrialOutcome,
    random_shares,
)

SamplerName = Literal["random", "tpe", "gp"]
STARTS = 4
"""Trials with random points before a model chooses."""
CANDIDATES = 1_000
"""Random points of which the Gaussian process takes the most promising one."""
LENGTHS = (0.1, 0.2, 0.4, 0.8)
"""Length scales in shares of a range, of which the likeliest is used."""
NOISE = 0.1
"""Standard deviation of a score's noise, in standard deviations of all scores."""


def make_sampler(name: SamplerName, space: SearchSpace, seed: int) -> Ask:
    """Make the function that chooses points.

    Args:
        name: ``random``; ``tpe``, Optuna's tree-structured Parzen estimator; or ``gp``, a Gaussian
            process that chooses by expected improvement per second.
        space: Search space.
        seed: Seed of the search.

    Returns:
        The function. It depends on its arguments only, so that a resumed search repeats it.

    Raises:
        ValueError: Optuna is not installed.
    """
    if name == "random":
        return lambda number, outcomes: random_shares(space, seed, number)
    choose = {"gp": by_improvement, "tpe": by_optuna}[name]

    def ask(number: int, outcomes: Sequence[TrialOutcome]) -> Shares:
        cells = {
            key: share
            for key, share in random_shares(space, seed, number).items()
            if key in space.grid
        }
        return choose(space, seed, number, outcomes) | cells

    if name == "gp":
        return ask
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ValueError(
            "sampler=tpe needs Optuna: pip install 'jaxrl_fast[optuna]', or write sampler=gp"
        ) from None
    return ask


def by_optuna(
    space: SearchSpace, seed: int, number: int, outcomes: Sequence[TrialOutcome]
) -> Shares:
    """Choose a point with Optuna's TPE sampler, from a study that is made of the trials so far.

    Args:
        space: Search space.
        seed: Seed of the search.
        number: Number of the trial.
        outcomes: The trials before it.

    Returns:
        The point.

    Source: Bergstra et al. (2011); Akiba et al. (2019), arXiv 1907.10902.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranges: dict[str, Any] = {
        key: optuna.distributions.FloatDistribution(0.0, 1.0) for key in space.draws
    }
    for key, draw in space.draws.items():
        if draw.kind in LISTS:
            ranges[key] = optuna.distributions.CategoricalDistribution(
                [str(value) for value in draw.values]
            )

    def named(shares: Shares) -> dict[str, Any]:
        return {
            key: str(draw.at(shares[key])) if draw.kind in LISTS else shares[key]
            for key, draw in space.draws.items()
        }

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its constant liar is marked as experimental
        sampler = optuna.samplers.TPESampler(
            seed=seed + number, n_startup_trials=STARTS, constant_liar=True
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        worst = min(
            (one.score for one in outcomes if one.score is not None and math.isfinite(one.score)),
            default=0.0,
        )
        for one in outcomes:
            running = one.score is None
            state = optuna.trial.TrialState.RUNNING if running else optuna.trial.TrialState.COMPLETE
            # one that diverged
            value = one.score if running or math.isfinite(one.score or 0.0) else worst
            study.add_trial(
                optuna.trial.create_trial(
                    params=named(one.shares), distributions=ranges, value=value, state=state
                )
            )
        chosen = study.ask(ranges).params
    return {
        key: draw.share_of(next(v for v in draw.values if str(v) == chosen[key]))
        if draw.kind in LISTS
        else chosen[key]
        for key, draw in space.draws.items()
    }


def by_improvement(
    space: SearchSpace, seed: int, number: int, outcomes: Sequence[TrialOutcome]
) -> Shares:
    """Choose the point with the highest expected improvement per second.

    Two Gaussian processes over the points model the score at the end of a run, from the scores of
    all trials at their last rung, and the logarithm of the seconds of a whole run. Trials without a
    score count with the mean that the model expects there, so that points that are asked for at the
    same time differ.

    Args:
        space: Search space.
        seed: Seed of the search.
        number: Number of the trial.
        outcomes: The trials before it.

    Returns:
        The point.

    Source: Snoek et al. (2012), arXiv 1206.2944, section 3.2.
    """
    scored = [one for one in outcomes if one.score is not None]
    if number < STARTS or len(scored) < STARTS or len({one.score for one in scored}) == 1:
        return random_shares(space, seed, number)
    rng = np.random.default_rng([seed, number, 1])
    keys = list(space.draws)
    drawn = [random_shares(space, seed + 1, int(rng.integers(2**31))) for _ in range(CANDIDATES)]
    candidates = np.array([[shares[key] for key in keys] for shares in drawn])
    points = np.array([[one.shares[key] for key in keys] for one in scored])
    scores = standardized(scored)
    waiting = [[one.shares[key] for key in keys] for one in outcomes if one.score is None]
    running = np.array(waiting).reshape(-1, len(keys))
    if len(running):
        expected, _ = posterior(points, scores, running)
        points, scores = np.concatenate([points, running]), np.concatenate([scores, expected])
    mean, deviation = posterior(points, scores, candidates)
    gain = expected_improvement(mean, deviation, scores.max())
    timed = [one for one in scored if one.steps > 0 and one.seconds > 0.0]
    if len(timed) >= STARTS:
        logs = np.log([one.seconds / one.steps for one in timed])
        at = np.array([[one.shares[key] for key in keys] for one in timed])
        spread = max(float(logs.std()), 1e-6)
        cost, _ = posterior(at, (logs - logs.mean()) / spread, candidates)
        gain = gain / np.exp(cost * spread)
    return drawn[int(np.argmax(gain))]


def standardized(scored: Sequence[TrialOutcome]) -> np.ndarray:
    """Return scores with mean 0 and deviation 1, by rank, so that one disaster does not hide the
    differences above it.

    A trial that was stopped early counts with its last score, a diverged one as the worst.

    Args:
        scored: Trials with a score.

    Returns:
        Numbers ``[n]``.
    """
    scores = np.array([one.score for one in scored], float)
    worst = np.min(scores[np.isfinite(scores)], initial=0.0)
    scores = np.where(np.isfinite(scores), scores, worst)
    low = np.quantile(scores, 0.25)
    scores = np.maximum(scores, low - (scores.max() - low))
    return (scores - scores.mean()) / max(float(scores.std()), 1e-9)


def posterior(
    points: np.ndarray, values: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and deviation of a Gaussian process with the likeliest of `LENGTHS`.

    Args:
        points: Where values are given, ``[n, d]``.
        values: Values with mean 0 and deviation 1, ``[n]``.
        at: Where to predict, ``[m, d]``.

    Returns:
        Mean and standard deviation, ``[m]``.

    Source: Rasmussen and Williams (2006), algorithm 2.1, with the Matern kernel of smoothness 5/2.
    """
    best: tuple[float, Any] = (-math.inf, None)
    for length in LENGTHS:
        factor = np.linalg.cholesky(kernel(points, points, length) + NOISE**2 * np.eye(len(points)))
        weights = np.linalg.solve(factor.T, np.linalg.solve(factor, values))
        likelihood = float(-0.5 * values @ weights - np.log(np.diag(factor)).sum())
        if likelihood > best[0]:
            best = likelihood, (length, factor, weights)
    length, factor, weights = best[1]
    across = kernel(at, points, length)
    reduced = np.linalg.solve(factor, across.T)
    return across @ weights, np.sqrt(np.maximum(1.0 - (reduced**2).sum(axis=0), 1e-12))


def kernel(a: np.ndarray, b: np.ndarray, length: float) -> np.ndarray:
    """Compute the Matern kernel of smoothness 5/2.

    Args:
        a: Points ``[n, d]``.
        b: Points ``[m, d]``.
        length: Length scale.

    Returns:
        Covariances ``[n, m]``.
    """
    distance = math.sqrt(5.0) * np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=-1)) / length
    return (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)


def expected_improvement(mean: np.ndarray, deviation: np.ndarray, best: float) -> np.ndarray:
    """Compute the expected improvement over the best value.

    Args:
        mean: Mean ``[m]``.
        deviation: Standard deviation ``[m]``.
        best: Best value so far.

    Returns:
        Expected improvements ``[m]``.

    Source: Jones et al. (1998), equation 15.
    """
    gap = mean - best
    z = gap / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    below = 0.5 * (1.0 + np.array([math.erf(x / math.sqrt(2.0)) for x in z]))
    return gap * below + deviation * density
