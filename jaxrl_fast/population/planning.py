"""The plan of a population: how many members at once, how long a segment is, and what all of it
needs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from jaxrl_fast.core import MAX_SIZE
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.population.asking import SamplerName, make_sampler
from jaxrl_fast.population.member_groups import SearchPlan
from jaxrl_fast.population.rules import Exchange, Explore, Halving, rungs_of
from jaxrl_fast.population.search_space import OF_COMMAND, Names, SearchSpace, grid_size
from jaxrl_fast.population.slots import member_bytes
from jaxrl_fast.settings.schema import MAX_SEED, ConfigError, Key, check_fields, keys_of, setting
from jaxrl_fast.training.job import Job

AT_ONCE = {"cpu": 16}
"""Trials at once by platform, as measured (experiments/results/population.json); more only need
more memory.
"""
AT_ONCE_ELSEWHERE = 1024
MEASURED = (1, 4, 16, 64, 256, 1024)
"""Trials at once that ``at_once=measure`` compares."""
MEMORY_SHARE, WORKSPACE = 0.8, 2.0
"""Share of the free memory that members may use, and memory of a member's program as a multiple of
its state.
"""
SEGMENTS = range(5, 21)
"""Segments of a run without rungs; the number that prolongs it least is used."""


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """What a user asks for; the fields are keys of the command.

    Attributes:
        trials: Number of trials; None for every point of a grid, or 32.
        at_once: Trials at once in a program; None for what the memory and the machine advise.
        seeds_per_trial: Learners of each trial, with different seeds; a trial's score is their
            mean.
        sampler: How points are chosen.
        halving: At each rung one of so many trials goes on; 0 for no rungs.
        first_rung: Environment steps until the first rung, None for a share of the run.
        score: Whether trials are compared by returns of training or by evaluations.
        size: Members of a population that copy each other; None for a search.
        every: Environment steps between two exchanges; None for a twentieth of the run.
        explore: How the rates of a copy change.
        quantile: Share of the members that are replaced at an exchange.
        replay: Whether a copy takes over the replay buffer, too.
    """

    trials: int | None = setting(None, "points that are tried; all of a grid, or 32", 1, MAX_SIZE)
    at_once: int | None = setting(None, "trials at once", 1, MAX_SIZE)
    seeds_per_trial: int = setting(
        1, "learners of each trial, whose mean is its score", 1, MAX_SIZE
    )
    sampler: SamplerName = setting(
        "random", "how points are chosen: tpe is Optuna's, gp counts seconds"
    )
    halving: int = setting(0, "at each rung one of so many goes on; 0 none", 0, MAX_SIZE)
    first_rung: int | None = setting(None, "env steps until the first rung", 1, MAX_SIZE)
    score: Literal["training", "evaluation"] = setting(
        "training", "returns by which trials are compared"
    )
    size: int | None = setting(
        None, "members that copy each other: population-based training", 2, MAX_SIZE
    )
    every: int | None = setting(
        None, "env steps between exchanges; a twentieth of the run", 1, MAX_SIZE
    )
    explore: Explore = setting("perturb", "how the rates of a copy change")
    quantile: float = setting(0.25, "share that is replaced, and share that is copied", 0.01, 0.5)
    replay: bool = setting(False, "a copy takes over the replay buffer, too")

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: A value is wrong.
        """
        check_fields(self)


AT_THE_END = {
    "finalists": Key(int, 4, 1, "trials that are evaluated again at the end", 64),
    "final_episodes": Key(int, 128, 1, "episodes of each of them", MAX_SIZE),
}
OF_POPULATION = ("size", "every", "explore", "quantile", "replay")


class Needs(NamedTuple):
    """Memory and files that a population needs, computed before anything is compiled.

    Attributes:
        member_bytes: State of one learner.
        replay_bytes: Replay buffer in it.
        slots: Learners at once in a program.
        waiting: Most trials that wait in the host's memory.
        checkpoint_bytes: Largest checkpoint.
    """

    member_bytes: int
    replay_bytes: int
    slots: int
    waiting: int
    checkpoint_bytes: int


def check_options(
    options: SearchOptions, space: SearchSpace, total_steps: int, names: Names = OF_COMMAND
) -> None:
    """Check options that contradict each other.

    Args:
        options: Options.
        space: Search space.
        total_steps: Environment steps of a run.
        names: Names in messages.

    Raises:
        ConfigError: They do.
    """
    if not space.draws:
        raise ConfigError(
            f"nothing varies: write for example {names.varying('algo.learning_rate')}=log:1e-4:1e-2"
        )
    if options.size is not None:
        _check_population(options, space, total_steps, names)
    for name in () if options.size is not None else OF_POPULATION:
        if getattr(options, name) != keys_of(SearchOptions)[name].default:
            raise ConfigError(
                f"{names.option(name)} is for a population: write {names.option('size')}=16 with it"
            )
    if options.halving == 1:
        raise ConfigError(
            "halving=1: write 2 or more, of which one trial goes on, or 0 for no rungs"
        )
    if options.halving and number_of_trials(options, space) == 1:
        raise ConfigError(
            f"trials=1: nothing to compare at a rung: write trials={4 * options.halving} or halving=0"
        )
    if options.first_rung is not None and not options.halving:
        raise ConfigError("first_rung is for successive halving: write halving=4 with it")
    if options.first_rung is not None and options.first_rung >= total_steps:
        raise ConfigError(
            f"first_rung={options.first_rung}: write fewer steps than total_steps={total_steps}"
        )
    most = grid_size(space)
    if (
        options.trials is not None
        and options.trials > most
        and space.grid.keys() == space.draws.keys()
    ):
        raise ConfigError(f"trials={options.trials}: the grid has {most} points: leave trials out")
    if options.trials is not None and options.trials < most and options.size is None:
        raise ConfigError(
            f"trials={options.trials}: the grid has {most} points: write trials={most} or leave it out"
        )


def _check_population(
    options: SearchOptions, space: SearchSpace, total_steps: int, names: Names
) -> None:
    size, every = names.option("size"), options.every
    if space.sizes:
        key = next(iter(space.sizes))
        raise ConfigError(
            f"{names.varying(key)}: members of a population copy each other and need equal sizes: leave it out"
        )
    if options.halving:
        raise ConfigError(
            f"halving: all members of a population train to the end: leave it or {size} out"
        )
    if options.trials is not None:
        raise ConfigError(
            f"trials={options.trials}: a population has {size}={options.size} members: leave trials out"
        )
    if options.sampler != "random":
        raise ConfigError(f"sampler={options.sampler} is for a search: leave it or {size} out")
    if every is not None and every >= total_steps:
        raise ConfigError(
            f"{names.option('every')}={every:,} is not below total_steps={total_steps:,}: write fewer steps"
        )


def number_of_trials(options: SearchOptions, space: SearchSpace) -> int:
    """Return the number of trials, or members.

    Args:
        options: Options.
        space: Search space.

    Returns:
        The number.
    """
    points = grid_size(space)
    return options.size or options.trials or (points if points > 1 else 32)


def at_once_of(
    options: SearchOptions,
    trials: int,
    member: int,
    free: int,
    *,
    devices: int,
    platform: str,
    measured: int | None,
) -> int:
    """Choose how many trials train at once in a program.

    Args:
        options: Options.
        trials: Number of trials.
        member: Bytes of a learner's state.
        free: Bytes of free memory, on all devices.
        devices: Devices that share the learners.
        platform: Platform of the devices.
        measured: Number at which a member cost least, as measured on this machine; None if it was
            not.

    Returns:
        The number: equal turns, and if possible a multiple of the devices.

    Raises:
        ConfigError: The memory is too small for one trial.
    """
    each = options.seeds_per_trial
    fitting = int(MEMORY_SHARE * free / (WORKSPACE * member * each))
    if fitting < 1:
        raise ConfigError(
            f"a member needs {member / 1e9:.2f} GB and {free / 1e9:.2f} GB are free: write a smaller num_envs or "
            "algo.buffer_size"
        )
    wanted = options.at_once or measured or AT_ONCE.get(platform, AT_ONCE_ELSEWHERE)
    most = max(1, min(wanted, trials, fitting))
    turns = -(-trials // most)
    width = most if options.halving else -(-trials // turns)
    if devices > 1 and (width * each) % devices:
        upwards = width + (-width) % devices
        width = (
            upwards
            if upwards <= min(fitting, trials + devices - 1)
            else max(devices, width - width % devices)
        )
    return width


def make_plan(
    options: SearchOptions,
    space: SearchSpace,
    job: Job,
    *,
    at_once: int,
    seed: int,
    total_steps: int,
    names: Names = OF_COMMAND,
) -> SearchPlan:
    """Plan a search or population.

    Args:
        options: Options.
        space: Search space.
        job: Job of one learner, of the group with the longest ticks.
        at_once: Trials at once in a program.
        seed: Seed of the search, and the first seed of the learners.
        total_steps: Environment steps of a run.
        names: Names in messages.

    Returns:
        The plan.

    Raises:
        ConfigError: The run is too short for a comparison before its end, or has no replay buffer
            to copy.
    """
    steps_per_tick, trials = job.plan.steps_per_tick, number_of_trials(options, space)
    ticks = -(-total_steps // steps_per_tick)
    halving, exchange = None, None
    if options.size is not None:
        every = options.every or max(1, total_steps // 20)
        segment = min(ticks, max(1, round(every / steps_per_tick)))
        exchange = Exchange(options.quantile, options.explore)
    elif options.halving:
        first = options.first_rung and max(1, round(options.first_rung / steps_per_tick))
        segment, rungs = rungs_of(ticks, options.halving, first)
        halving = Halving(options.halving, rungs)
    else:
        count = min(SEGMENTS, key=lambda n: (-(-ticks // n) * n, abs(n - 10)))
        segment = -(-ticks // count)
    segments = -(-ticks // segment)
    if segments == 1 and (exchange or halving):
        raise ConfigError(
            f"total_steps={total_steps:,}: in ticks of {steps_per_tick:,} steps nothing would be compared before the "
            f"end: write total_steps={(segment + 1) * steps_per_tick} or more"
        )
    if options.replay and not member_bytes(job)[1]:
        raise ConfigError(
            f"{names.option('replay')}: {job.algorithm.name} has no replay buffer: leave it out"
        )
    return SearchPlan(
        space=space,
        trials=trials,
        at_once=at_once,
        seeds=seeds_of(options, seed),
        segment_steps=segment * steps_per_tick,
        segments=segments,
        halving=halving,
        exchange=exchange,
        copy_replay=options.replay,
        score=options.score,
        seed=seed,
        ask=make_sampler(options.sampler, space, seed),
    )


def seeds_of(options: SearchOptions, seed: int) -> Callable[[int], list[int]]:
    """Return the seeds of the learners of each trial.

    Trials of a search have the same seeds, so that they differ in their settings only; members of a
    population differ in their seeds, too, since a copy would otherwise repeat the other's episodes.

    Args:
        options: Options.
        seed: First seed.

    Returns:
        ``(number of the trial) -> seeds``.
    """
    each = options.seeds_per_trial

    def seeds(number: int) -> list[int]:
        first = seed + (number * each if options.size is not None else 0)
        return [(first + i) % (MAX_SEED + 1) for i in range(each)]

    return seeds


def needs_of(plan: SearchPlan, options: SearchOptions, job: Job) -> Needs:
    """Compute what a population needs.

    Args:
        plan: Plan.
        options: Options.
        job: Job of one learner, of the group with the largest state.

    Returns:
        The needs.
    """
    member, replay = member_bytes(job)
    slots = plan.at_once * options.seeds_per_trial
    waiting = 0
    if plan.halving is not None:
        waiting = -(-plan.trials // plan.halving.keep_one_in)
    elif plan.exchange is not None and plan.trials > plan.at_once:
        waiting = plan.trials
    return Needs(
        member_bytes=member,
        replay_bytes=replay,
        slots=slots,
        waiting=waiting,
        checkpoint_bytes=member * (slots + waiting * options.seeds_per_trial),
    )


MAX_POOL_ENVS = 1_024
"""Most environments on the host that members of a population may step at the same time."""


def check_host(env: Any, options: SearchOptions, trials: int, num_envs: int) -> None:
    """Check that environments on the host can serve the members.

    Args:
        env: Environment.
        options: Options.
        trials: Number of trials.
        num_envs: Environments of each learner.

    Raises:
        ConfigError: The trials would need to begin at different times, or have turns that copy each
            other.
    """
    if not isinstance(env, HostEnv):
        return
    if options.halving:
        raise ConfigError(
            f"halving={options.halving}: environments on the host are reset for all members at once, so trials cannot "
            "begin at different times: leave halving out, or write an environment that is compiled"
        )
    if options.size is not None and options.at_once is not None and options.at_once < trials:
        raise ConfigError(
            f"at_once={options.at_once}: members of a population step their environments on the host at the same time: "
            f"leave it out, or write population.size={options.at_once}"
        )
    needed = trials * options.seeds_per_trial * num_envs
    if options.size is not None and needed > MAX_POOL_ENVS:
        most = MAX_POOL_ENVS // (num_envs * options.seeds_per_trial)
        raise ConfigError(
            f"population.size={trials}: its members would step {needed:,} environments on the host at once, and a pool "
            f"serves {MAX_POOL_ENVS:,}: write population.size={max(2, most)} or a smaller num_envs"
        )
