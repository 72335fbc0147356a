"""The search on synthetic surfaces: near the best of a full grid, in a quarter of its time, and
safe at both ends.
"""

import random
from collections.abc import Callable, Sequence
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_fast.tuning.search import Outcome, chosen, finalists, find_option, find_size, rungs
from jaxrl_fast.tuning.width_sweep import STARTS

SIZES = sorted({2**k * part // 4 for k in range(4, 14) for part in (4, 5, 6, 7)} | {2**14})
REPEATS, SCREENING = 5, 3
Surface = Callable[[float], float]


def tent(top: float, slope: float) -> Surface:
    return lambda size: 2 ** (-slope * abs(log2(size) - top))


def hill(top: float, slope: float) -> Surface:
    return lambda size: 2 ** (-0.5 * slope * (log2(size) - top) ** 2)


def plateau(top: float, slope: float) -> Surface:
    return lambda size: min(1.0, 2 ** (3 * slope * (log2(size) - top)))


def saturating(top: float, slope: float) -> Surface:
    return lambda size: 1 / (1 + 2**top / size) / (1 + slope * size / 2 ** (top + 1))


class Bench:
    """Measures a surface with noise and counts the time: a start and compilation cost a fixed time,
    each repeat 1.
    """

    def __init__(
        self, surface: Surface, *, noise: float = 0.0, start: float = 5.0, fails_from: float = 1e9
    ) -> None:
        self.surface, self.noise, self.start, self.fails_from = surface, noise, start, fails_from
        self.random, self.time, self.asked, self.repeats = (
            random.Random(0),
            0.0,
            list[int](),
            dict[int, int](),
        )

    def __call__(self, size: int, go_on: Callable[[Sequence[float]], bool]) -> Outcome:
        self.asked.append(size)
        self.time += self.start
        if size >= self.fails_from:
            return Outcome(larger_fails=True)
        rates: list[float] = []
        while go_on(rates):
            rates.append(self.surface(size) * (1 + self.noise * self.random.uniform(-1, 1)))
            self.time += 1
        self.repeats[size] = len(rates)
        return Outcome(tuple(rates))

    def in_turn(self, sizes: Sequence[int]) -> dict[int, Outcome]:
        """Repeat already compiled candidates, free of drift; the starts of these processes do not
        count.
        """
        repeats = STARTS * SCREENING
        self.time += repeats * len(sizes)
        noise = [1 + self.noise * self.random.uniform(-1, 1) for _ in range(repeats)]
        return {size: Outcome(tuple(self.surface(size) * part for part in noise)) for size in sizes}

    def grid_time(self) -> float:
        return len(SIZES) * (self.start + REPEATS)


surfaces = st.builds(
    lambda shape, top, slope: shape(top, slope),
    st.sampled_from([tent, hill, plateau, saturating]),
    st.floats(4.0, 14.0),
    st.floats(0.02, 0.3),
)


@settings(max_examples=300)
@given(
    surface=surfaces,
    own=st.sampled_from(SIZES),
    noise=st.sampled_from([0.0, 0.01]),
    start=st.floats(0, 30),
)
def test_within_5_percent_of_a_full_grid_in_a_quarter_of_its_time(surface, own, noise, start):
    bench = Bench(surface, noise=noise, start=start)
    results = find_size(bench, SIZES, own, repeats=SCREENING)
    final = bench.in_turn(finalists(results, own))
    best = chosen(final or results, own)
    assert surface(best) >= 0.95 * max(map(surface, SIZES))
    assert bench.time <= bench.grid_time() / 4
    assert bench.asked == list(results) and len(set(bench.asked)) == len(bench.asked)
    assert bench.asked[0] == own


@given(
    surface=surfaces,
    own=st.sampled_from(SIZES),
    drifts=st.lists(st.floats(0.95, 1.05), min_size=len(SIZES), max_size=len(SIZES)),
)
def test_on_a_machine_that_drifts_the_choice_is_of_those_that_took_turns(surface, own, drifts):
    drifting = dict(zip(SIZES, drifts, strict=True))
    bench = Bench(lambda size: surface(size) * drifting[size])
    results = find_size(bench, SIZES, own, repeats=SCREENING)
    bench.surface = surface
    final = bench.in_turn(finalists(results, own))
    best = chosen(final or results, own)
    assert surface(best) >= 0.98 * surface(own)
    assert surface(best) >= 0.98 * max(surface(size) for size in finalists(results, own) or [best])


def test_finalists_are_the_fastest_and_what_was_asked_for_unless_they_are_one():
    results = {
        8: Outcome((70.0,)),
        16: Outcome((99.0,)),
        32: Outcome((100.0,)),
        64: Outcome((95.0,)),
        128: Outcome(),
    }
    assert finalists(results, 8) == [8, 32, 16]
    assert finalists(results, 128) == [32, 16, 64]
    assert finalists({8: Outcome((70.0,)), 32: Outcome((100.0,))}, 32) == []


@given(surface=surfaces, own=st.sampled_from(SIZES), limit=st.sampled_from(SIZES))
def test_where_memory_ends_is_a_result_and_what_fits_below_is_searched(surface, own, limit):
    bench = Bench(surface, fails_from=limit)
    results = find_size(bench, SIZES, own, repeats=REPEATS)
    best = chosen(results, own)
    fits = [size for size in SIZES if size < limit]
    if own >= limit and len(fits) < 3:
        return  # two sizes at most, far below the requested number
    assert best is not None and best < limit
    failed = [size for size in bench.asked if size >= limit]
    assert failed == sorted(failed, reverse=True)  # nothing larger than a failed size is tried
    if own < limit:
        assert surface(best) >= 0.9 * max(map(surface, fits))


@given(surface=surfaces, own=st.sampled_from(SIZES), seed=st.integers(0, 1000))
def test_noise_does_not_prolong_the_search(surface, own, seed):
    bench = Bench(surface, noise=0.3)
    bench.random.seed(seed)
    results = find_size(bench, SIZES, own, repeats=REPEATS)
    assert len(results) <= len(rungs(SIZES, own)) + 4


def test_nothing_runs_and_the_search_ends():
    bench = Bench(tent(8, 0.1), fails_from=1)
    results = find_size(bench, SIZES, 256, repeats=REPEATS)
    assert chosen(results, 256) is None
    crashes = find_size(lambda size, go_on: Outcome(), SIZES, 256, repeats=REPEATS)
    assert chosen(crashes, 256) is None and len(crashes) < 12


def test_a_loser_is_spared_its_repeats_and_a_contender_is_not():
    bench = Bench(tent(8, 0.2))
    find_size(bench, SIZES, 256, repeats=REPEATS)
    assert bench.repeats[256] == REPEATS
    assert {n for size, n in bench.repeats.items() if bench.surface(size) < 0.8} == {1}
    assert {n for size, n in bench.repeats.items() if bench.surface(size) > 0.9} == {REPEATS}


@pytest.mark.parametrize(("own", "taken"), [(16, 16), (64, 64), (1024, 1024)])
def test_of_equally_fast_sizes_the_one_asked_for_is_taken(own: int, taken: int):
    results = find_size(Bench(lambda size: 1.0), SIZES, own, repeats=REPEATS)
    assert chosen(results, own) == taken
    assert len(results) <= 6


def test_the_ladder_holds_what_was_asked_for_and_climbs_by_fours():
    assert rungs(SIZES, 64) == [16, 64, 256, 1024, 4096, 16384]
    assert rungs([5, 20, 25, 100, 400, 1000], 100) == [5, 25, 100, 400, 1000]
    assert rungs([7], 7) == [7]


def test_options_are_measured_against_the_best_so_far():
    rates = {"slow": 0.5, "fast": 2.0, "slower than fast": 1.5}
    repeats: dict[str, int] = {}

    def measure(option: str, go_on: Callable[[Sequence[float]], bool]) -> Outcome:
        seen: list[float] = []
        while go_on(seen):
            seen.append(rates[option])
        repeats[option] = len(seen)
        return Outcome(tuple(seen))

    outcomes = find_option(measure, rates, Outcome((1.0, 1.0)), repeats=3)
    assert [outcome.rate for outcome in outcomes] == [0.5, 2.0, 1.5]
    assert repeats == {"slow": 1, "fast": 3, "slower than fast": 1}
