"""The measurements of `gpu` and their sizes: on an accelerator, and in its short form."""

from typing import NamedTuple

from gpu_jobs import Job
from targets import CARTPOLE, ROWS, SAC

BATCHES = (256, 8_192, 32_768)
PREDICTED = ("sac_h100", "sac_8192_h100", "sac_32768_h100", "ppo_cartpole_h100", "ppo_cheetah_h100")
"""Rows of targets.json for one device, whose words are timed here."""
PREDICTED_APART = ("sac_h100x2_split", "sac_h100x2_sampler")
"""The same for two devices."""
PREDICTED_EIGHT = ("ppo_cartpole_h100x8", "ppo_cheetah_h100x8", "sac_h100x8", "ppo_seeds_h100x8")
"""The same for eight."""
SAC_256 = SAC.replace("batch_size=512", "batch_size=256")
PENDULUM = "env=pendulum tuned=false total_steps=100_000"
LAW = {
    "sac pendulum": f"{PENDULUM} algo=sac num_envs=4 algo.rollout_length=4 algo.updates_per_tick=5 "
    "algo.buffer_size=4096",
    "ppo pendulum": f"{PENDULUM} algo=ppo num_envs=16 algo.rollout_length=8 algo.num_epochs=2 algo.num_minibatches=2",
}
"""No contact, so that rounding errors do not grow; 15 and 16 updates in the compared ticks."""
LAW_TICKS = 2
MEMBERS = {
    "ppo cartpole": "env=cartpole algo=ppo tuned=false num_envs=8 total_steps=100_000",
    "sac pendulum": "env=pendulum algo=sac tuned=false num_envs=4 total_steps=100_000 algo.buffer_size=100_000",
}
"""Work of one member of a population."""
DEVICE_TESTS = tuple(
    f"tests/test_{name}.py" for name in ("program", "chain", "placement", "buffers")
)


class ToReturn(NamedTuple):
    """A training with the words of the command until it reaches a ``goal`` (a mean return), or for
    ``limit_s``.
    """

    words: str
    goal: float
    limit_s: float = 240.0


class Plan(NamedTuple):
    """All measurements.

    - ``tests``: arguments of pytest.
    - ``law``: jobs whose first ticks are compared between devices and between processes.
    - ``flagged``: jobs that are timed with and without flags; ``graphed``: more of them for CUDA
      graphs.
    - ``sampling``, ``updates``, ``ticks``, ``members``, ``apart``: jobs of the parts of these
      names.
    - ``returns``: trainings by name.
    - ``explained``: words of a run whose programs are described and timed.
    - ``fresh``: variables of compared processes. With XLA's timing-based choices on disk, two runs
      would agree more than two users' runs do, so everything is compiled without a cache.
    """

    tests: tuple[str, ...]
    law: tuple[Job, ...]
    flagged: tuple[Job, ...]
    graphed: tuple[Job, ...]
    sampling: tuple[Job, ...]
    updates: tuple[Job, ...]
    ticks: tuple[Job, ...]
    members: tuple[Job, ...]
    apart: tuple[Job, ...]
    returns: dict[str, ToReturn]
    explained: str
    fresh: dict[str, str]


def whole(number: int) -> Plan:
    """Return the plan for a machine with this many devices."""
    widths = (64, 1024, 4096, 16_384)
    eight = PREDICTED_EIGHT if number >= 8 else ()
    return Plan(
        DEVICE_TESTS,
        tuple(Job(name, words, repeats=0, ticks=LAW_TICKS) for name, words in LAW.items()),
        (
            Job("sac pendulum, 64 x 512", SAC.replace("halfcheetah", "pendulum")),
            Job("ppo cartpole", CARTPOLE),
        ),
        (Job("sac halfcheetah", SAC),),
        tuple(
            Job(
                f"{env} {width}",
                f"env={env} algo=ppo tuned=false num_envs={width} algo.rollout_length=32",
                "sampling",
            )
            for env in ("halfcheetah", "cartpole")
            for width in widths
        ),
        tuple(
            Job(f"sac {batch}", SAC.replace("batch_size=512", f"batch_size={batch}"), "updates")
            for batch in BATCHES
        ),
        (Job("sac_256", SAC_256), *(Job(name, ROWS[name][0]) for name in PREDICTED)),
        tuple(
            Job(f"{name}, {count} members", f"{words} num_seeds={count}")
            for name, words in MEMBERS.items()
            for count in (1, 16, 64, 256, 1024)
            if count < 1024 or "ppo" in name
        ),
        (
            *(Job(name, f"{ROWS[name][0]} devices=2") for name in PREDICTED_APART),
            Job("sac_fused", SAC),
            Job(
                "ppo_sharded", f"{ROWS['ppo_cheetah_h100'][0]} placement=sharded_sampling devices=2"
            ),
            Job(
                "ppo_data_parallel",
                f"{ROWS['ppo_cheetah_h100'][0]} placement=data_parallel devices=2",
            ),
            Job("ppo_fused", ROWS["ppo_cheetah_h100"][0]),
            *(Job(name, f"{ROWS[name][0]} placement=data_parallel devices=8") for name in eight),
        ),
        {
            "ppo halfcheetah": ToReturn("env=halfcheetah algo=ppo", 1500.0),
            "sac halfcheetah": ToReturn("env=halfcheetah algo=sac", 1500.0),
        },
        SAC,
        {"JAXRL_FAST_CACHE": "off", "JAX_ENABLE_COMPILATION_CACHE": "false"},
    )


def short() -> Plan:
    """Return the same parts in seconds on a CPU: small sizes, no physics."""
    tiny = (
        "env=probe env.id=value tuned=false total_steps=256 num_envs=8 algo=ppo algo.rollout_length=4 "
        "algo.num_epochs=1 algo.num_minibatches=2 algo.policy_hidden=[4] algo.value_hidden=[4]"
    )
    job = Job("ppo probe", tiny, repeats=2, repeat_s=0.0, ticks=2)
    return Plan(
        ("tests/test_placement.py", "-k", "fused_holds"),
        (job,),
        (),
        (),
        (job._replace(name="probe 8", what="sampling"),),
        (job._replace(name="ppo 16", what="updates"),),
        (job,),
        (job._replace(name="ppo probe, 2 members", words=f"{tiny} num_seeds=2"),),
        (job._replace(words=f"{tiny} placement=data_parallel devices=2"),),
        {"ppo probe": ToReturn(f"{tiny} eval.episodes=2 checkpoint.keep=0 log=none", 0.5)},
        f"{tiny} placement=fused",
        {},
    )
