"""The autotuner's search space, its stored results and their use. Nothing is measured here."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny import line

from jaxrl_fast.assembly import bind
from jaxrl_fast.commands import tuning_cache
from jaxrl_fast.commands.prepare import as_measured, with_workers
from jaxrl_fast.commands.run_config import compose, make_algorithm
from jaxrl_fast.commands.tuning_cache import Device, Finding
from jaxrl_fast.settings import machine
from jaxrl_fast.settings.run import Run, to_yaml
from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.tuning import auto, candidates
from jaxrl_fast.tuning.candidates import (
    at_width,
    batch_size,
    batch_sizes,
    bursts,
    placement_choices,
    pools,
    widths,
)
from jaxrl_fast.tuning.measuring import Row

PPO = [
    "env=cartpole",
    "algo=ppo",
    "num_envs=32",
    "algo.rollout_length=64",
    "algo.num_minibatches=8",
]
SAC = [
    "env=pendulum",
    "algo=sac",
    "num_envs=64",
    "algo.updates_per_tick=32",
    "total_steps=1_000_000",
]
GYM = ["env=gymnasium", "env.id=CartPole-v1", "algo=ppo", "num_envs=16"]
GPU = Device("gpu", "Some GPU", 2)
FINDING = Finding(
    {"num_envs": 256, "algo.rollout_length": 8},
    {"placement": "sharded_sampling", "devices": 2},
    "advantages over 8 steps instead of 64",
    "on 2026-01-01",
    False,
)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a separate cache folder; return the file of the findings."""
    monkeypatch.setenv("JAXRL_FAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "autotune.json"


def samples(run: Run) -> int:
    return run.num_envs * run.algo_options["rollout_length"]


@given(
    num_envs=st.integers(1, 400),
    length=st.integers(1, 200),
    minibatches=st.sampled_from([1, 2, 4, 8]),
    recurrent=st.booleans(),
)
def test_an_on_policy_width_keeps_the_samples_of_an_update(
    num_envs, length, minibatches, recurrent
):
    assume((num_envs if recurrent else num_envs * length) % minibatches == 0)
    words = [
        f"num_envs={num_envs}",
        f"algo.rollout_length={length}",
        f"algo.num_minibatches={minibatches}",
    ]
    asked = compose(
        [*PPO, *words, "total_steps=10_000_000", f"algo.recurrent_size={8 * recurrent}"]
    )
    legal = widths(asked, learns=True)[0]
    assert num_envs in legal and legal == sorted(set(legal))
    for width in legal:
        run = at_width(asked, width).run
        assert samples(run) == samples(asked) and batch_size(run) == batch_size(asked)
        assert run.algo_options["rollout_length"] >= min(8, length)
        assert width % minibatches == 0 or not recurrent
        same = {**run.algo_options, "rollout_length": length}
        assert dataclasses.replace(run, num_envs=num_envs, algo_options=same) == asked


@given(words=st.sampled_from([PPO, SAC]), num_envs=st.integers(1, 300), length=st.integers(1, 200))
def test_any_width_can_sample(words, num_envs, length):
    small = [
        f"algo.{name}_hidden=[2]" for name in ("policy", "value" if words is PPO else "critic")
    ]
    asked = compose([*words, *small, f"num_envs={num_envs}", f"algo.rollout_length={length}"])
    for width in widths(asked, learns=False)[0]:
        run = at_width(asked, width, learns=False).run
        spec = line(discrete=words is PPO).spec
        assert (
            bind(make_algorithm(run), spec, width).rollout_length
            == run.algo_options["rollout_length"]
        )


@given(num_envs=st.integers(1, 300), length=st.integers(1, 8), updates=st.integers(1, 64))
def test_an_off_policy_width_keeps_the_updates_per_step(num_envs, length, updates):
    words = [
        f"num_envs={num_envs}",
        f"algo.rollout_length={length}",
        f"algo.updates_per_tick={updates}",
    ]
    asked = compose([*SAC, *words])
    for width in widths(asked, learns=True)[0]:
        run = at_width(asked, width).run
        assert run.algo_options["updates_per_tick"] * samples(asked) == updates * samples(run)
        assert samples(run) <= max(samples(asked), width)
        assert batch_size(run) == batch_size(asked)


def test_each_width_says_what_it_does_to_learning():
    asked = compose(PPO)
    assert at_width(asked, 32).effect == "none: the requested width"
    assert "advantages over 8 steps instead of 64" in at_width(asked, 256).effect
    assert "takes 768 steps of the run instead of 6,144" in at_width(asked, 256).effect
    sac = compose(SAC)
    assert (
        "sampling uses parameters up to 128 updates old instead of 32" in at_width(sac, 256).effect
    )
    assert "rollouts of 4 steps instead of 1" in at_width(sac, 16).effect
    with pytest.raises(ValueError, match="num_envs=48 changes the 2,048 samples"):
        at_width(asked, 48)


def test_widths_that_are_left_out_are_named_with_the_reason():
    found = widths(compose(PPO), learns=True)
    assert found[0] == [8, 16, 32, 64, 128, 256]
    text = "\n".join(found[1])
    assert "rollouts would be under 8 steps" in text and "48, 56" in text
    short = widths(compose([*SAC, "total_steps=20_000"]), learns=True)
    assert short[0][-1] <= 200 and "fewer than 100 of the run's 20,000 steps" in "\n".join(short[1])
    assert max(widths(compose(PPO), learns=True, max_num_envs=64)[0]) == 64
    assert {40, 48, 4096} <= set(widths(compose(PPO), learns=False)[0])


def test_host_environments_keep_their_groups_and_workers():
    asked = compose([*GYM, "pool.num_groups=4", "pool.workers=2", "algo.rollout_length=128"])
    legal = widths(asked, learns=True)[0]
    assert all(width % 4 == 0 and width // 4 >= 2 for width in legal) and legal[0] == 8
    asked = compose(GYM)
    assert [c.value for c in pools(asked, 4)] == [0, 1, 2, 4, 8]
    assert "2 environments of a group to a worker" in next(
        c.effect for c in pools(asked, 4) if c.value == 4
    )
    assert not list(pools(compose(PPO), 4))


def test_only_placements_that_can_help_are_tried_and_none_touches_learning():
    run = dataclasses.replace(compose([*PPO, "num_envs=36"]), placement="fused", devices=1)
    assert {(c.value, c.run.devices) for c in placement_choices(run, 8)} == {
        ("sharded_sampling", 6),
        ("data_parallel", 6),
    }
    lagging = dataclasses.replace(run, overlap="all")
    assert {"actor_critic", "sampler_learner"} < {c.value for c in placement_choices(lagging, 2)}
    assert not list(placement_choices(run, 1))
    for candidate in placement_choices(lagging, 4):
        assert candidate.effect == candidates.NO_EFFECT
        assert dataclasses.replace(candidate.run, placement="fused", devices=1) == lagging


def test_bursts_keep_the_ratio_and_batches_say_what_they_change():
    sac = compose(SAC)
    for candidate in bursts(sac):
        options = candidate.run.algo_options
        assert options["updates_per_tick"] * samples(sac) == 32 * samples(candidate.run)
    assert not list(bursts(compose(PPO)))
    assert {c.value: batch_size(c.run) for c in batch_sizes(sac)} == {
        c.value: c.value for c in batch_sizes(sac)
    }
    assert all("changes learning" in c.effect for c in batch_sizes(sac))
    assert [c.value for c in batch_sizes(compose([*PPO, "num_envs=128"]))] == [256, 4096, 8192]


def test_what_was_found_is_found_again_and_by_nothing_that_computes_something_else(empty: Path):
    asked = compose(PPO)
    here = tuning_cache.cpu_device()
    tuning_cache.remember(tuning_cache.make_key(asked, here), FINDING)
    for words in ([], ["seed=3"], ["algo.learning_rate=1e-2"], ["total_steps=77"]):
        assert tuning_cache.look_up(tuning_cache.make_key(compose([*PPO, *words]), here)) == FINDING
    others = [
        ["num_envs=64"],
        ["algo.rollout_length=128"],
        ["algo.policy_hidden=[8]"],
        ["overlap=sampling"],
        ["num_seeds=2"],
        ["precision=bf16"],
        ["env=acrobot"],
        ["env.episode_length=10"],
        ["+env.x=1"],
        ["placement=fused"],
        ["devices=1"],
    ]
    for words in others:
        assert tuning_cache.look_up(tuning_cache.make_key(compose([*PPO, *words]), here)) is None, (
            words
        )
    assert tuning_cache.look_up(tuning_cache.make_key(asked, GPU)) is None
    assert tuning_cache.look_up(tuning_cache.make_key(asked, here, "sampling")) is None
    for part, name in (
        ("machine", "jax"),
        ("machine", "jaxrl_fast"),
        ("machine", "cores"),
        ("machine", "kind"),
    ):
        key = tuning_cache.make_key(asked, here)
        changed = json.dumps({**json.loads(getattr(key, part)), name: "other"}, sort_keys=True)
        assert tuning_cache.look_up(key._replace(**{part: changed})) is None


def test_what_does_not_learn_is_found_for_other_sizes_too(empty: Path):
    here = tuning_cache.cpu_device()
    tuning_cache.remember(tuning_cache.make_key(compose(PPO), here), FINDING)
    assert (
        tuning_cache.look_up_free(tuning_cache.make_key(compose([*PPO, "num_envs=64"]), here))
        == FINDING
    )
    assert (
        tuning_cache.look_up_free(
            tuning_cache.make_key(compose([*PPO, "algo.policy_hidden=[8]"]), here)
        )
        is None
    )


def test_a_short_look_does_not_replace_a_whole_sweep(empty: Path):
    key = tuning_cache.make_key(compose(PPO), GPU)
    quick = FINDING._replace(quick=True, found="on 2026-02-02")
    tuning_cache.remember(key, quick)
    assert tuning_cache.look_up(key) == quick
    tuning_cache.remember(key, FINDING)
    tuning_cache.remember(key, quick)
    assert tuning_cache.look_up(key) == FINDING
    assert tuning_cache.clear() == 1 and tuning_cache.look_up(key) is None and not empty.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"findings": 3}',
        '{"findings": [{}]}',
        "\x00\xff",
        '{"findings": [{"key": {"machine": "", "work": "", "sizes": ""}, "finding": {"learning": {"num_envs": "rm"}, '
        '"free": {}, "effect": "", "found": "", "quick": false}}]}',
    ],
)
def test_a_damaged_file_is_told_of_in_one_line_and_taken_to_be_empty(text: str, empty: Path):
    empty.parent.mkdir()
    empty.write_text(text)
    told: list[str] = []
    key = tuning_cache.make_key(compose(PPO), GPU)
    assert tuning_cache.look_up(key, told.append) is None
    assert len(told) == 1 and str(empty) in told[0] and "\n" not in told[0]
    assert tuning_cache.remember(key, FINDING, told.append) == empty
    assert tuning_cache.look_up(key) == FINDING
    assert [path.name for path in empty.parent.iterdir()] == [empty.name]


def test_nothing_is_kept_where_the_cache_is_off_or_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    told: list[str] = []
    key = tuning_cache.make_key(compose(PPO), GPU)
    monkeypatch.setenv("JAXRL_FAST_CACHE", "off")
    assert tuning_cache.remember(key, FINDING) is None and tuning_cache.look_up(key) is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXRL_FAST_CACHE", str(tmp_path / "file" / "below"))
    assert tuning_cache.remember(key, FINDING, told.append) is None
    assert len(told) == 1 and "nothing is stored" in told[0]


def test_num_envs_auto_is_read_and_stands_for_the_number_before_it(tmp_path: Path):
    run = compose([*PPO[:2], "num_envs=auto"])
    assert run.auto_width and run.num_envs == compose(PPO[:2]).num_envs
    assert not compose(PPO).auto_width
    file = tmp_path / "mine.yaml"
    file.write_text("num_envs: 128\n")
    asked = compose([*PPO[:2], f"config={file}", "num_envs=auto"])
    assert asked.auto_width and asked.num_envs == 128
    file.write_text("num_envs: auto\n")
    assert compose([*PPO[:2], f"config={file}"]).auto_width
    assert not compose([*PPO[:2], f"config={file}", "num_envs=16"]).auto_width
    with pytest.raises(ConfigError, match="num_envs=aut: write a whole number or auto"):
        compose(["num_envs=aut"])
    with pytest.raises(ConfigError, match="num_envs=0: write a number of at least 1"):
        compose(["num_envs=0"])


def test_num_envs_auto_takes_what_was_found_says_so_in_a_line_and_the_file_repeats_it(
    empty: Path, tmp_path: Path
):
    tuning_cache.remember(tuning_cache.make_key(compose(PPO), tuning_cache.cpu_device()), FINDING)
    told: list[str] = []
    run = auto.resolve(
        compose([*PPO, "num_envs=auto", f"config={_file(tmp_path)}"]),
        may_measure=False,
        log=told.append,
    )
    assert (run.num_envs, run.algo_options["rollout_length"]) == (256, 8)
    assert (run.placement, run.devices) == ("sharded_sampling", 2)
    assert (
        len(told) == 1
        and "256 environments" in told[0]
        and FINDING.effect in told[0]
        and "2026-01-01" in told[0]
    )
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(run))
    tuning_cache.clear()
    assert compose([f"config={path}"]) == run


def _file(folder: Path) -> Path:
    """Return a file with the requests of `PPO`, so that the word ``num_envs=auto`` gives its
    number.
    """
    path = folder / "asked.yaml"
    path.write_text("num_envs: 32\n")
    return path


def test_num_envs_auto_without_a_finding_and_without_leave_to_measure_changes_nothing(empty: Path):
    told: list[str] = []
    run = auto.resolve(compose([*PPO[:2], "num_envs=auto"]), may_measure=False, log=told.append)
    assert run == compose(PPO[:2])
    assert len(told) == 1 and "no cached measurement on this machine" in told[0]
    assert auto.resolve(run, may_measure=True, log=told.append) is run and len(told) == 1


def test_num_envs_auto_is_refused_where_several_processes_share_a_run():
    words = [
        "distributed.coordinator=localhost:1234",
        "distributed.num_processes=2",
        "distributed.process_id=0",
    ]
    with pytest.raises(ValueError, match="num_envs=auto is for a single process: write a number"):
        auto.resolve(compose([*PPO[:2], "num_envs=auto", *words]), may_measure=True)


def test_overlap_auto_is_read_and_nothing_lags_until_it_is_resolved(tmp_path: Path):
    run = compose([*SAC, "overlap=auto"])
    assert run.auto_overlap and dataclasses.replace(run, auto_overlap=False) == compose(SAC)
    assert "overlap: none" in to_yaml(run)
    file = tmp_path / "mine.yaml"
    file.write_text("overlap: auto\n")
    assert compose([*SAC, f"config={file}"]).auto_overlap
    assert not compose([*SAC, f"config={file}", "overlap=all"]).auto_overlap
    with pytest.raises(
        ConfigError, match="overlap=aut: write one of none, sampling, actor_critic, all, auto"
    ):
        compose(["overlap=aut"])
    words = [
        "distributed.coordinator=localhost:1234",
        "distributed.num_processes=2",
        "distributed.process_id=0",
    ]
    with pytest.raises(
        ValueError, match="overlap=auto is for a single process: write one of none, sampling"
    ):
        auto.resolve_overlap(compose([*SAC, "overlap=auto", *words]), may_measure=True)


def test_what_could_lag_comes_with_a_placement_that_runs_it_at_the_same_time():
    found = [(way.value, way.run.placement, way.run.devices) for way in auto.ways(compose(SAC), 4)]
    assert found == [
        ("actor_critic", "actor_critic", 2),
        ("all", "actor_critic", 2),
        ("sampling", "sampler_learner", 4),
    ]
    assert not list(auto.ways(compose(SAC), 1))
    named = auto.ways(compose([*SAC, "placement=sampler_learner", "devices=4"]), 4)
    assert [way.value for way in named] == ["sampling"]
    on_host = compose([*GYM, "placement=fused"])
    assert [(way.value, way.run.placement) for way in auto.ways(on_host, 1)] == [
        ("sampling", "fused")
    ]


def _measured(rates: dict[str, list[float]]) -> list[Row]:
    """Build rows like `measure_in_turn`'s, with the ticks/s of each round; no rates mean that it
    did not run.
    """
    ways = {way.value: way for way in auto.ways(compose(SAC), 2)}
    facts = {"platform": "cpu"}
    rows = [
        Row(
            "overlap",
            "none",
            "",
            compose(SAC),
            "training",
            "measured",
            "",
            facts,
            tuple(rates["none"]),
            None,
            0,
            1,
        )
    ]
    for name, own in rates.items():
        if name != "none":
            row = rows[0]._replace(
                value=name, effect=ways[name].effect, run=ways[name].run, tick_hz=tuple(own)
            )
            rows.append(row._replace(status="measured" if own else "refused"))
    return rows


@pytest.mark.parametrize(
    ("rates", "overlap"),
    [
        (
            {
                "none": [10, 8, 12],
                "actor_critic": [13, 11, 15],
                "all": [12, 10, 13],
                "sampling": [],
            },
            "actor_critic",
        ),
        (
            {
                "none": [10, 8, 12],
                "actor_critic": [11, 9, 13],
                "all": [14, 12, 17],
                "sampling": [9, 8, 11],
            },
            "all",
        ),
        (
            {"none": [10, 10, 10], "actor_critic": [10.4, 10.4, 10.4]},
            "none",
        ),  # too little to lag for
        ({"none": [10, 10, 10], "actor_critic": [13, 13, 9.9]}, "none"),  # not in every round
        ({"none": [10, 10, 10], "actor_critic": [], "all": [], "sampling": []}, "none"),
    ],
)
def test_something_lags_only_where_that_is_clearly_faster_and_is_remembered(
    empty: Path, rates, overlap
):
    finding = auto.conclude_overlap(compose(SAC), _measured(rates))
    assert finding is not None and finding.learning == {"overlap": overlap}
    assert finding.free == (
        {} if overlap == "none" else {"placement": "actor_critic", "devices": 2}
    )
    told: list[str] = []
    run = auto.resolve_overlap(compose([*SAC, "overlap=auto"]), may_measure=False, log=told.append)
    assert (run.overlap, run.placement) == (
        overlap,
        "auto" if overlap == "none" else "actor_critic",
    )
    assert len(told) == 1 and told[0].startswith(f"overlap=auto: {overlap}")
    # not the autotuner's
    assert (
        tuning_cache.look_up_free(tuning_cache.make_key(compose(SAC), tuning_cache.cpu_device()))
        is None
    )


def test_overlap_auto_without_a_finding_and_without_leave_to_measure_changes_nothing(empty: Path):
    told: list[str] = []
    run = auto.resolve_overlap(compose([*SAC, "overlap=auto"]), may_measure=False, log=told.append)
    assert (
        run == compose(SAC)
        and len(told) == 1
        and "no cached measurement on this machine: no overlap" in told[0]
    )
    assert auto.resolve_overlap(run, may_measure=True, log=told.append) is run and len(told) == 1
    assert auto.conclude_overlap(compose(SAC), _measured({"none": [], "all": [1.0]})) is None


def test_a_placement_that_was_found_is_used_where_it_comes_out_even():
    run = compose(PPO)
    choice = as_measured(run, FINDING)
    assert (
        choice is not None
        and choice[:2] == ("sharded_sampling", 2)
        and "2026-01-01" in choice.reason
    )
    assert as_measured(run, None) is None
    assert as_measured(compose([*PPO, "num_envs=33", "algo.rollout_length=8"]), FINDING) is None
    assert as_measured(compose([*PPO, "devices=2"]), FINDING) is None
    parallel = FINDING._replace(free={"placement": "data_parallel", "devices": 2})
    assert as_measured(run, parallel) is None


def test_workers_that_were_found_are_used_where_they_fit_and_none_were_asked_for():
    found = FINDING._replace(free={"pool.workers": 4})
    assert with_workers(compose(GYM), found).pool["workers"] == 4
    assert with_workers(compose([*GYM, "pool.workers=1"]), found).pool["workers"] == 1
    assert with_workers(compose([*GYM, "num_envs=4"]), found).pool["workers"] is None


def test_the_machine_tells_what_this_process_takes_of_it():
    before = machine.busy_seconds()
    if before is None:
        pytest.skip("needs Linux")
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = machine.busy_seconds()
    assert after[1] - before[1] > 0.1 and after[0] - before[0] > 0.1


def test_what_a_child_took_is_still_counted_when_it_has_ended():
    if machine.busy_seconds() is None:
        pytest.skip("needs Linux")
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    child = subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    before = machine.busy_seconds()
    child.communicate(b"\n")
    assert machine.busy_seconds()[1] >= before[1]


def test_free_memory_is_what_the_machine_has():
    assert 1e8 < machine.free_memory_bytes() < 1e14
    assert machine.processor()
