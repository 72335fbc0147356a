"""Populations: a member's numbers depend on its seed and rates only; rules of search, halving and
exchange.
"""

import csv
import dataclasses
import json
import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from hypothesis import example, given
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.sac import sac
from jaxrl_fast.assembly import make_job
from jaxrl_fast.numerics.optimizers import Steps, as_rate, plain
from jaxrl_fast.population import slots as places
from jaxrl_fast.population.asking import make_sampler
from jaxrl_fast.population.member_groups import SCORED_EPISODES, scores_of
from jaxrl_fast.population.planning import SearchOptions, at_once_of, check_options
from jaxrl_fast.population.population_run import FOLDER, train_population
from jaxrl_fast.population.record import ancestry, schedules_of
from jaxrl_fast.population.rules import Copy, Exchange, Halving, exchange, promoted, rungs_of
from jaxrl_fast.population.search_space import (
    Draw,
    SearchSpace,
    TrialOutcome,
    make_space,
    random_shares,
    value_of,
)
from jaxrl_fast.population.sweep_words import read_sweep
from jaxrl_fast.population.trials import Book
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.settings.run import of_program
from jaxrl_fast.settings.schema import Checkpoints, ConfigError, EvalOptions, Key
from jaxrl_fast.sweep import settings_of_best
from jaxrl_fast.training.job import Job

PPO = dict(rollout_length=8, num_epochs=2, num_minibatches=2, policy_hidden=(8,), value_hidden=(8,))
SAC = dict(
    rollout_length=2,
    updates_per_tick=2,
    batch_size=8,
    buffer_size=64,
    policy_hidden=(8,),
    critic_hidden=(8,),
)
RATES = (1e-4, 1e-3, 3e-3, 1e-2)


@cache
def job(algo: str, count: int, devices: int = 1, total_steps: int = 320) -> Job:
    algorithm: Any = ppo(**PPO) if algo == "ppo" else sac(**SAC, warmup_steps=24)
    env = tiny.line(discrete=algo == "ppo", num_envs=4)
    placement = "fused" if devices == 1 else "data_parallel"
    run = of_program(
        env,
        algorithm,
        total_steps=total_steps,
        num_seeds=count,
        placement=placement,
        devices=devices,
        eval=EvalOptions(every=0, episodes=4, beside=False),
        checkpoint=Checkpoints(keep=0),
    )
    return make_job(env, algorithm, run, {})


@cache
def compiled(
    algo: str, count: int, own_ticks: bool, devices: int = 1, ticks: int = 2
) -> tuple[Any, Any]:
    slots = places.make_slots(job(algo, count, devices), ticks, own_ticks=own_ticks)
    return slots, places.compile_slots(slots)


def begun(
    algo: str, seeds: list[int], rates: list[float], own_ticks: bool, devices: int = 1
) -> tuple[Any, Any, Any]:
    slots, ready = compiled(algo, len(seeds), own_ticks, devices)
    hyper = slots.job.algorithm.hyper
    return (
        slots,
        ready,
        places.begin(
            slots, ready, seeds, [hyper._replace(discount=0.9, learning_rate=r) for r in rates]
        ),
    )


def assert_equal(one: places.Arrays, other: places.Arrays) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
@pytest.mark.parametrize("own_ticks", [False, True])
def test_a_member_depends_neither_on_its_slot_nor_on_the_others(algo, own_ticks):
    order = [2, 0, 3, 1]
    slots, ready, state = begun(algo, [0, 1, 2, 3], list(RATES), own_ticks)
    others = [0.0, 1.0, 5e-3, RATES[order[3]]]
    _, _, moved = begun(algo, [7, 8, 9, order[3]], others, own_ticks)
    _, _, permuted = begun(algo, order, [RATES[i] for i in order], own_ticks)
    for _ in range(8):
        state, permuted, moved = (ready.run(one)[0] for one in (state, permuted, moved))
    for slot, member in enumerate(order):
        assert_equal(places.take(slots, permuted, slot), places.take(slots, state, member))
    assert_equal(places.take(slots, moved, 3), places.take(slots, state, order[3]))


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_member_equals_a_run_alone(algo):
    _, ready, state = begun(algo, [0, 1, 2, 3], list(RATES), False)
    slots, alone, one = begun(algo, [2], [RATES[2]], False)
    for _ in range(2 if algo == "ppo" else 5):  # the first with updates is SAC's fourth
        state, one = ready.run(state)[0], alone.run(one)[0]
    ours, theirs = places.take(compiled(algo, 4, False)[0], state, 2), places.take(slots, one, 0)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_member_has_the_key_of_a_run_with_its_seed():
    alone = job("ppo", 1)
    for seed in (0, 3):
        (key,) = make_job(
            alone.env, alone.algorithm, dataclasses.replace(alone.run, seed=seed), {}
        ).keys
        np.testing.assert_array_equal(
            jax.random.key_data(places.member_key(seed)), jax.random.key_data(key)
        )


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_member_that_begins_late_or_waits_computes_the_same(algo):
    slots, ready, state = begun(algo, [0, 1, 2, 3], list(RATES), True)
    hyper = slots.job.algorithm.hyper._replace(discount=0.9)
    late = begun(algo, [4, 4, 4, 4], [RATES[1]] * 4, True)[2]
    whole = late
    for _ in range(6):
        whole = ready.run(whole)[0]
    for _ in range(3):
        state = ready.run(state)[0]
    late = begun(algo, [4, 4, 4, 4], [RATES[1]] * 4, True)[2]
    state = places.merged(slots, state, late, [False, True, False, False])
    state = ready.run(ready.run(state)[0])[0]
    # it waits in the host's memory, and continues in another slot
    waiting = places.take(slots, state, 1)
    state = ready.run(state)[0]
    state = places.put(slots, state, {3: waiting})
    for _ in range(4):
        state = ready.run(state)[0]
    assert_equal(places.take(slots, state, 3), places.take(slots, whole, 1))
    assert hyper.discount == 0.9


@pytest.mark.parametrize("algo", ["ppo", "sac"])
@pytest.mark.parametrize("replay", [False, True])
def test_a_copy_takes_parameters_and_moments_but_no_key_environment_or_rate(algo, replay):
    slots, ready, state = begun(algo, [0, 1, 2, 3], list(RATES), False)
    for _ in range(5):
        state = ready.run(state)[0]
    before = [places.take(slots, state, slot) for slot in range(4)]
    marked = places.copied(slots.job.graph, state, replay=replay)
    after = places.adopt(state, marked, [3, 0], [1, 1])
    rows = [places.take(slots, after, slot) for slot in range(4)]
    assert_equal(rows[1], before[1])
    assert_equal(rows[2], before[2])
    marks = places.named_marks(marked)
    for name, mark in marks.items():
        np.testing.assert_array_equal(rows[3][name], before[1 if mark else 3][name], err_msg=name)
    words = [name for name, mark in marks.items() if mark]
    assert any(".mu" in name or "moments" in name or "opt" in name for name in words), words
    assert not any(name.startswith(("key", "tick", "hyper", "private.sample")) for name in words)
    assert any(name.startswith("private.experience") for name in words) == (
        replay and algo == "sac"
    )
    ready.run(after)


@pytest.mark.parametrize("replay", [False, True])
def test_a_copy_leaves_keys_environments_rates_and_on_request_replay(replay: bool):
    made = job("sac", 1)
    shapes = jax.eval_shape(
        lambda: graphs.init(made.graph, jax.random.key(0), made.algorithm.hyper)
    )
    marks = places.named_marks(places.copied(made.graph, shapes, replay=replay))
    expected = {"private.learn.": True, "channels.actor.": True, "private.sample.": False}
    expected |= {"key": False, "tick": False, "hyper.": False, "private.experience.": replay}
    for beginning, wanted in expected.items():
        own = {name: mark for name, mark in marks.items() if name.startswith(beginning)}
        assert own and set(own.values()) == {wanted}, (beginning, own)
    state, marked = {"a": jnp.arange(4), "b": jnp.arange(4)}, {"a": True, "b": False}
    after = places.adopt(state, marked, [0, 3], [2, 1])
    assert (after["a"].tolist(), after["b"].tolist()) == ([2, 1, 2, 1], [0, 1, 2, 3])


def test_members_divided_over_devices_compute_the_same_and_an_exchange_moves_only_the_copied():
    slots, ready, state = begun("ppo", [0, 1, 2, 3], list(RATES), False, 2)
    one, alone, other = begun("ppo", [0, 1, 2, 3], list(RATES), False)
    state, other = ready.run(state)[0], alone.run(other)[0]
    for slot in range(4):
        ours, theirs = places.take(slots, state, slot), places.take(one, other, slot)
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)
    marked = places.copied(slots.job.graph, state, replay=False)
    leaves = [
        x for x, mark in zip(jax.tree.leaves(state), jax.tree.leaves(marked), strict=True) if mark
    ]
    text = places._adopt.lower(leaves, np.array([3]), np.array([0])).compile().as_text()
    assert "all-gather" not in text  # it would move every member to every device
    after = places.adopt(state, marked, [3], [0])
    ready.run(after)


DRAWS = {"algo.learning_rate": "log:1e-4:1e-2", "algo.discount": "uniform:0.9:0.99"}
KEYS = {name: Key(Any, None) for name in (*DRAWS, "algo.gae_lambda")} | {"algo.size": Key(int, 8)}
SPACE = make_space(DRAWS, KEYS, list(KEYS)[:3])


@given(
    st.floats(0.0, 1.0),
    st.sampled_from(["log", "uniform"]),
    st.floats(0.01, 1.0),
    st.floats(1.1, 9.0),
)
def test_a_draw_covers_its_range_and_its_shares_are_inverse(share, kind, low, ratio):
    draw = Draw(kind, (low, low * ratio))
    value = draw.at(share)
    assert low * (1 - 1e-9) <= value <= low * ratio * (1 + 1e-9)
    assert math.isclose(draw.share_of(value), share, abs_tol=1e-6)


def test_a_trials_point_does_not_depend_on_the_number_of_trials_and_a_grid_is_complete():
    space = make_space(
        {"algo.gae_lambda": "grid:0.9,0.95,1.0", **DRAWS, "algo.size": "grid:4,8"},
        KEYS,
        list(KEYS)[:3],
    )
    points = [value_of(space, random_shares(space, 0, i)) for i in range(6)]
    assert {(p["algo.gae_lambda"], p["algo.size"]) for p in points} == {
        (a, b) for a in (0.9, 0.95, 1.0) for b in (4, 8)
    }
    assert random_shares(SPACE, 3, 5) == random_shares(SPACE, 3, 5) != random_shares(SPACE, 4, 5)


SCORES = st.one_of(st.floats(-100, 100), st.just(-math.inf))


@given(st.dictionaries(st.integers(0, 40), SCORES, max_size=40), st.integers(2, 4))
@example({0: 1.0, 1: -math.inf, 2: -math.inf, 3: -math.inf}, 2)
def test_one_in_so_many_goes_on_and_never_a_worse_one(scores, keep):
    rule = Halving(keep, (1, keep, keep * keep))
    chosen = promoted(rule, scores, (), complete=False)
    assert len(chosen) == min(
        len(scores) // keep, sum(score > -math.inf for score in scores.values())
    )
    assert all(scores[n] > -math.inf for n in chosen)
    left = [scores[n] for n in scores if n not in chosen]
    assert not chosen or not left or min(scores[n] for n in chosen) >= max(left)
    assert promoted(rule, scores, chosen, complete=False) == []


@given(st.integers(1, 500), st.integers(2, 5))
def test_rungs_grow_by_the_factor_and_cover_the_run(ticks, keep):
    segment, rungs = rungs_of(ticks, keep)
    assert rungs[-1] * segment >= ticks and (rungs[-1] - 1) * segment < ticks
    assert list(rungs) == sorted(set(rungs)) and all(b == a * keep for a, b in pairwise(rungs[:-1]))


@given(
    st.lists(st.one_of(st.floats(-10, 10), st.just(-math.inf)), min_size=2, max_size=12),
    st.integers(0, 99),
)
def test_an_exchange_replaces_the_worst_by_the_best_within_the_range(scores, seed):
    points = {i: random_shares(SPACE, 0, i) for i in range(len(scores))}
    by_number = dict(enumerate(scores))
    copies = exchange(
        Exchange(0.25, "perturb"), SPACE, points, by_number, np.random.default_rng(seed)
    )
    alive = [s for s in scores if s > -math.inf]
    for one in copies:
        assert by_number[one.source] > by_number[one.target]
        assert one.target != one.source and one.diverged == (by_number[one.target] == -math.inf)
        new, old = (value_of(SPACE, shares) for shares in (one.shares, points[one.source]))
        for key, draw in SPACE.rates.items():
            assert draw.values[0] * (1 - 1e-9) <= new[key] <= draw.values[1] * (1 + 1e-9)
            if draw.kind == "uniform":
                new[key], old[key] = (
                    1.0 + (new[key] - old[key]) / (draw.values[1] - draw.values[0]),
                    1.0,
                )
            ratio = new[key] / old[key]
            inside = draw.values[0] < new[key] * 0.999 and new[key] * 1.001 < draw.values[1]
            assert not inside or min(abs(ratio - 0.8), abs(ratio - 1.2)) < 1e-6
    if alive and len(set(scores)) > 1:
        quarter, order = (
            max(1, len(scores) // 4),
            sorted(by_number, key=lambda number: -scores[number]),
        )
        best = [number for number in order if scores[number] > -math.inf][:quarter]
        worst = {number for number in order[-quarter:] if scores[number] < scores[best[-1]]}
        assert {one.source for one in copies} <= set(best)
        assert {one.target for one in copies} == worst | {
            i for i, s in by_number.items() if s == -math.inf
        }


def search(tmp: Path | None = None, **options: Any) -> Any:
    lines: list[str] = []
    told = dict(tell=lines.append, finalists=2, final_episodes=8)
    rates = options.pop("rates", {"learning_rate": "log:1e-4:1e-1"})
    algorithm = options.pop("algorithm", ppo(**PPO))
    env = tiny.line(discrete=True)
    return train_population(
        env, algorithm, rates=rates, run_dir=tmp, **{**told, **dict(total_steps=320), **options}
    )


def scores_by_trial(result: Any) -> dict[int, list]:
    return {number: trial.scores for number, trial in result.book.trials.items()}


def test_trials_in_turns_equal_trials_at_once():
    whole, turns = (search(trials=4, at_once=n, seeds_per_trial=2) for n in (4, 2))
    for number, scores in scores_by_trial(whole).items():
        np.testing.assert_allclose(scores, scores_by_trial(turns)[number], rtol=1e-4)
    assert (
        whole.book.trials[0].seeds == [0, 1]
        and len(whole.book.trials) == 4
        and whole.policy is not None
    )
    assert len(repr(whole)) < 200
    sweep = read_sweep(
        ["env=cartpole", "algo=ppo", "sample.algo.learning_rate=log:1e-4:1e-1", "seeds_per_trial=2"]
    )
    seeds = [settings_of_best(sweep, whole._replace(learner=n), {}).seed for n in (0, 1)]
    assert seeds == whole.book.trials[whole.best].seeds, "of the learner whose policy is stored"


def test_halving_trains_few_to_the_end_and_each_as_without_it():
    result, whole = (search(trials=9, at_once=3, halving=n, total_steps=9 * 32) for n in (3, 0))
    lengths = sorted((t.segments for t in result.book.trials.values()), reverse=True)
    assert lengths[0] == result.book.segments and sum(lengths) < 0.6 * result.book.segments * len(
        lengths
    )
    assert {t.status for t in result.book.trials.values()} == {"finished", "stopped"}
    finished = [n for n, t in result.book.trials.items() if t.status == "finished"]
    assert finished and set(result.returns) <= set(finished)
    assert whole.book.trials[finished[0]].shares == result.book.trials[finished[0]].shares


@pytest.mark.parametrize("trials, keep", [(2, 2), (3, 4), (5, 2), (9, 3), (12, 4)])
def test_somebody_reaches_the_end_of_every_halving(trials, keep):
    book = Book(SPACE, 8, 32, Halving(keep, (1, 2, 4, 8)))
    for number in range(trials):
        book.start(random_shares(SPACE, 0, number), [number])
    rng = np.random.default_rng(0)
    while training := [n for n, t in book.trials.items() if t.status == "training"]:
        for number in training[:3]:
            book.trials[number].add([float(rng.random())], 1.0)
            book.settle(number)
        for number in book.next_waiting(all_started=True):
            book.go_on(number)
    lengths = [t.segments for t in book.trials.values()]
    assert max(lengths) == 8 and {"finished"} <= {t.status for t in book.trials.values()}
    assert sum(n >= 2 for n in lengths) <= max(1, -(-trials // keep) + 1)


def test_a_member_that_diverges_scores_lowest_and_the_others_go_on():
    rates = {"learning_rate": "choice:1e-3,1e30"}
    result = search(trials=8, rates=rates)
    status = {
        t.status
        for n, t in result.book.trials.items()
        if result.book.point(n)["algo.learning_rate"] > 1
    }
    assert status == {"diverged"} and result.best is not None
    assert result.book.point(result.best)["algo.learning_rate"] == 1e-3


@pytest.mark.parametrize("at_once", [None, 2])
def test_a_population_copies_its_best_members_and_replaces_the_diverged(at_once):
    rates = {"learning_rate": "log:1e-4:1e30"}
    result = search(size=4, every=64, rates=rates, at_once=at_once)
    book = result.book
    assert {t.segments for t in book.trials.values()} == {book.segments}
    copies = [row for row in book.lineage if row.parent is not None]
    assert copies and result.best is not None
    assert all(np.isfinite(t.score) or t.status == "diverged" for t in book.trials.values())
    changes = ancestry(book, result.best)
    assert changes[0][0] == 0 and [s for s, _ in changes] == sorted(s for s, _ in changes)
    for rows in schedules_of(book, result.best).values():
        text = "steps:" + ",".join(f"{share:.6g}={value:.6g}" for share, value in rows)
        assert isinstance(as_rate(text), Steps) and plain(as_rate(text)).startswith("steps:0=")


STOPPED = [
    dict(trials=6, at_once=2, halving=2),
    dict(size=4, at_once=2, every=64),
    dict(trials=4, at_once=2),
]


def test_a_population_in_turns_continues_from_between_two_turns(tmp_path):
    options = dict(size=4, at_once=2, every=64)
    lines: list[str] = []

    def end_at_third(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            raise RuntimeError("the process ends")

    with pytest.raises(RuntimeError, match="the process ends"):
        search(tmp_path, tell=end_at_third, **options)
    again, whole = search(tmp_path, resume=tmp_path, **options), search(None, **options)
    assert scores_by_trial(again) == scores_by_trial(whole) and again.best == whole.best


@pytest.mark.parametrize(
    ("chunks", "options"), [*((1, options) for options in STOPPED), (4, STOPPED[1])]
)
def test_a_population_that_is_stopped_continues_to_the_bit(options, chunks, tmp_path):
    calls: list[int] = []
    whole = search(None, **options)
    stopped = search(
        tmp_path, should_stop=lambda: calls.append(0) or len(calls) > chunks, **options
    )
    assert not stopped.complete and stopped.policy is None
    again = search(tmp_path, resume=tmp_path, **options)
    assert scores_by_trial(again) == scores_by_trial(whole) and again.best == whole.best
    assert [tuple(row) for row in again.book.lineage] == [tuple(row) for row in whole.book.lineage]
    for ours, theirs in zip(
        jax.tree.leaves(again.policy.params), jax.tree.leaves(whole.policy.params), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "options", [dict(trials=9, at_once=3, halving=3), dict(size=4, at_once=2, every=64)]
)
def test_a_population_compiles_once(options, monkeypatch: pytest.MonkeyPatch):
    compiled_slots, compile_once = [], places.compile_slots
    monkeypatch.setattr(
        places, "compile_slots", lambda slots: compiled_slots.append(slots) or compile_once(slots)
    )
    search(**options)
    assert len(compiled_slots) == 1


def test_members_in_turns_exchange_as_members_at_once():
    whole, turns = (search(size=4, every=64, at_once=n) for n in (4, 2))
    assert [tuple(row) for row in whole.book.lineage] == [tuple(row) for row in turns.book.lineage]
    for number, scores in scores_by_trial(whole).items():
        np.testing.assert_allclose(scores, scores_by_trial(turns)[number], rtol=1e-4)


def test_a_schedule_from_a_file_equals_the_steps(tmp_path):
    (tmp_path / "rate.csv").write_text("progress,value\n0,0.01\n0.5,0.001\n")
    schedule = as_rate(f"file:{tmp_path / 'rate.csv'}")
    assert plain(schedule) == "steps:0=0.01,0.5=0.001"
    assert [float(schedule.at(np.float32(x))) for x in (0.0, 0.49, 0.5, 1.0)] == pytest.approx(
        [0.01, 0.01, 0.001, 0.001]
    )
    rate = np.float32(0.25)
    assert float(jax.jit(lambda p: schedule.at(p))(rate)) == pytest.approx(0.01)


def test_a_search_continues_only_with_the_arguments_that_began_it(tmp_path):
    search(tmp_path / "run", trials=2)
    with pytest.raises(ValueError, match="trials=2, and not 3"):
        search(trials=3, resume=tmp_path / "run")
    assert search(trials=2, resume=tmp_path / "run").complete


def test_files_of_a_population(tmp_path):
    result = search(tmp_path / "run", size=4, every=64)
    rows = list(csv.DictReader((tmp_path / "run" / "trials.csv").read_text().splitlines()))
    assert len(rows) == 4 * result.book.segments and rows[-1]["status"] == "finished"
    stored = json.loads((tmp_path / "run" / "members.json").read_text())
    others = [number for number in result.book.ranking() if number != result.best]
    assert [one["number"] for one in stored["members"]] == [result.best, *others]
    assert (tmp_path / "run" / FOLDER).is_dir()
    policy = jf.load_policy(tmp_path / "run" / "best" / "policy")
    assert policy.spec.name == "line"


@pytest.mark.parametrize(
    "texts, words",
    [
        ({"algo.speed": "log:1:2"}, "no such setting"),
        ({"algo.learning_rate": "log:1e-2:1e-4"}, "write log:0.0001:0.01"),
        ({"algo.learning_rate": "log:0:1"}, "above 0"),
        ({"algo.learning_rate": "normal:0:1"}, "write log:"),
        ({"algo.size": "uniform:4:8"}, "each of its values is a group"),
        ({"algo.discount": "choice:0.9,0.9"}, "write each once"),
        ({"algo.discount": "choice:a,b"}, "write a number"),
        ({"algo.discount": "choice:0.9,"}, "a value is missing"),
        ({"algo.size": "choice:[8],[8"}, "a bracket is missing"),
        ({"algo.discount": "uniform:0.9:0.9"}, "write algo.discount=0.9 without sample."),
        ({"seed": "choice:1,2"}, "write seeds_per_trial=3"),
    ],
)
def test_a_wrong_space_is_refused_in_one_line(texts, words):
    with pytest.raises(ConfigError, match=words) as caught:
        make_space(texts, KEYS, list(KEYS)[:3])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(size=4, every=1_000), "not below total_steps"),
        (dict(size=1), "at least 2"),
        (dict(replay=True), "population.size=16"),
        (dict(halving=2, trials=1), "nothing to compare"),
        (dict(halving=1), "2 or more"),
        (dict(every=100), "population.size"),
        (dict(first_rung=10), "halving=4"),
        (dict(size=4, trials=3), "leave trials out"),
        (dict(size=4, halving=2), "train to the end"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        check_options(SearchOptions(**options), SPACE, 1_000)


def test_as_many_at_once_as_memory_and_devices_allow():
    of = dict(devices=1, platform="cpu", measured=None)
    assert at_once_of(SearchOptions(), 32, 10**6, 10**12, **of) == 16
    assert at_once_of(SearchOptions(), 20, 10**6, 10**12, **of) == 10  # equal turns
    assert at_once_of(SearchOptions(), 64, 10**9, 10**10, **of) == 4
    assert at_once_of(SearchOptions(at_once=5), 5, 10**6, 10**12, **(of | {"devices": 2})) == 6
    with pytest.raises(ConfigError, match="a member needs"):
        at_once_of(SearchOptions(), 64, 10**11, 10**10, **of)


def test_members_without_an_ended_episode_are_neither_replaced_nor_copied():
    points = {i: random_shares(SPACE, 0, i) for i in range(8)}
    copies = exchange(
        Exchange(0.25, "perturb"),
        SPACE,
        points,
        {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0},
        np.random.default_rng(0),
    )
    assert {one.target for one in copies} == {0, 1} and {one.source for one in copies} <= {2, 3}
    book = Book(SPACE, 4, 32, None)
    trial = book.start(points[0], [0, 1])
    assert trial.score is None
    trial.add([3.0, None], 1.0)
    trial.add([None, 5.0], 1.0)
    assert trial.score_at(1) == 3.0 and trial.score == 4.0 and trial.status == "training"
    trial.since = 2  # it becomes a copy
    assert trial.score is None
    trial.add([None, 7.0], 1.0)
    assert trial.score == 7.0


def test_a_score_is_of_the_last_episodes():
    rng, ticks = np.random.default_rng(0), 12
    episodes = rng.integers(0, 30, (5, ticks))
    episodes[2], episodes[3] = 0, 1  # no episode, and fewer than a score takes
    metrics = {
        "sample/episodes": episodes,
        "sample/episode_return_sum": rng.normal(size=(5, ticks)) * episodes,
    }
    metrics["sample/nonfinite_step"] = np.full((5, ticks), -1)
    metrics["sample/nonfinite_step"][4, 3] = 7
    for slot, score in enumerate(scores_of(metrics, "sample")):
        count, total = 0, 0.0
        for tick in reversed(range(ticks)):
            if count < SCORED_EPISODES:
                count += episodes[slot, tick]
                total += metrics["sample/episode_return_sum"][slot, tick]
        assert score == (
            -math.inf if slot == 4 else pytest.approx(total / count) if count else None
        )


def test_a_population_whose_members_all_diverge_ends():
    result = search(size=3, every=64, rates={"learning_rate": "log:1e37:1e38"})
    assert (
        result.complete
        and result.best is None
        and {t.status for t in result.book.trials.values()} == {"diverged"}
    )


@pytest.mark.parametrize(
    "options",
    [dict(trials=24, halving=2, at_once=2, seed=1), dict(trials=10, halving=3, at_once=3)],
)
def test_no_trial_that_may_go_on_is_lost(options):
    result = search(total_steps=512, seeds_per_trial=1, **options)
    assert result.complete and result.best is not None


def test_a_trial_that_diverged_counts_at_the_rung_that_it_missed_only():
    book = Book(SPACE, 8, 32, Halving(2, (1, 2, 4, 8)))
    for number in range(8):
        book.start(random_shares(SPACE, 0, number), [number])
        book.trials[number].add([-math.inf if number < 4 else float(number)], 1.0)
        book.settle(number)
    assert len(book.at_rung(1)) == 8 and book.at_rung(2) == {}


@given(st.integers(1, 40), st.integers(2, 40), st.integers(1, 64))
def test_a_members_schedule_changes_in_the_tick_of_its_exchange(
    segment_ticks, segments, steps_per_tick
):
    book = Book(SPACE, segments, segment_ticks * steps_per_tick, None)
    for number in range(2):
        book.start(random_shares(SPACE, 0, number), [number])
    changed = segments // 2
    for trial in book.trials.values():
        for _ in range(changed):
            trial.add([1.0], 1.0)
    book.copy([Copy(0, 1, random_shares(SPACE, 0, 9), False)], changed)
    rows = schedules_of(book, 0, steps_per_tick)["algo.learning_rate"]
    schedule = as_rate("steps:" + ",".join(f"{share:.6g}={value:.6g}" for share, value in rows))
    total = segments * segment_ticks
    values = np.asarray(
        jax.vmap(schedule.at)(np.arange(total, dtype=np.float32) / np.float32(total))
    )
    assert (values[: changed * segment_ticks] == values[0]).all()
    assert (values[changed * segment_ticks :] == values[-1]).all() and values[0] != values[-1]


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(sampler="foo"), "random, tpe, gp"),
        (dict(score="foo"), "training, evaluation"),
        (dict(size=4, quantile=0.9), "at most 0.5"),
        (dict(at_once=0), "at least 1"),
        (dict(halving=-2), "at least 0"),
        (dict(rates={"lr": "log:1e-4:1e-2"}), "rates: lr: there is no such setting"),
        (dict(rates={"discount": "uniform:1:2"}), "at most 1"),
        (dict(rates={"max_kl": "log:0.01:0.1"}), "made without it"),
        (dict(rates={"learning_rate": "choice:1e-3,linear:1e-3:0"}), "not schedules"),
        (dict(rates={"algo.discount": "uniform:0.9:1"}), "write the name alone: discount"),
        (dict(rates=["discount"]), "write how rates vary"),
        (dict(rates={}), "write how rates vary"),
        (dict(rates={"rollout_length": "choice:8,16"}), "desired_kl$"),
        (dict(total_steps=-5), "total_steps=-5"),
        (dict(total_steps="1000"), "total_steps='1000'"),
        (dict(seed=-1), "seed=-1"),
        (dict(finalists="4"), "finalists='4'"),
        (dict(final_episodes=0), "final_episodes=0"),
        (dict(eval_episodes=0, score="evaluation"), "eval_episodes=0"),
        (dict(tell="print"), "tell=print: write a function"),
        (dict(size=4, copy_replay="yes"), "copy_replay=yes"),
        (dict(every=100), "^every is for a population: write size=16"),
        (dict(size=4, copy_replay=True), "^copy_replay: ppo has no replay buffer"),
        (dict(size=4, total_steps=1), "nothing would be compared"),
        (dict(halving=2, total_steps=1), "nothing would be compared"),
    ],
)
def test_wrong_arguments_of_the_function_are_refused(options, words):
    with pytest.raises(ValueError, match=words) as caught:
        search(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_samplers_choose_near_what_was_good_and_try_the_whole_grid(sampler):
    pytest.importorskip("optuna" if sampler == "tpe" else "numpy")
    space = make_space({**DRAWS, "algo.gae_lambda": "grid:0.9,0.95"}, KEYS, list(KEYS)[:3])
    ask = make_sampler(sampler, space, 0)
    outcomes: list[TrialOutcome] = []
    for number in range(24):
        shares = ask(number, outcomes)
        score = None if number == 23 else -abs(shares["algo.learning_rate"] - 0.7)
        outcomes.append(TrialOutcome(shares, score, 100, 1.0, score is not None))
    again = ask(23, outcomes[:23])
    assert again == outcomes[23].shares  # a resumed search repeats it
    assert {value_of(space, one.shares)["algo.gae_lambda"] for one in outcomes} == {0.9, 0.95}
    late = [abs(one.shares["algo.learning_rate"] - 0.7) for one in outcomes[12:]]
    assert np.median(late) < 0.15


def test_the_book_survives_its_file():
    book = Book(SPACE, 4, 32, Halving(2, (1, 2, 4)))
    for number in range(3):
        book.start(random_shares(SPACE, 0, number), [number])
        book.trials[number].add([-math.inf if number == 1 else float(number)], 1.0)
        book.settle(number)
    again = Book(SPACE, 4, 32, book.halving)
    again.go_on_from(json.loads(json.dumps(book.as_json())))
    assert again.as_json() == book.as_json() and again.next_waiting(all_started=True) == [2]
    assert isinstance(again.trials[1].score, float) and again.trials[1].status == "diverged"


def test_a_space_without_draws_is_refused():
    with pytest.raises(ConfigError, match="nothing varies"):
        check_options(SearchOptions(), SearchSpace({}, {}), 100)
