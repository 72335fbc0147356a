"""Bad commands and config files: each ends before compilation with one line that contains the
correction and exit code 2, and leaves no files behind.
"""

import pytest
from jax.errors import JaxRuntimeError
from many_commands import TRAINED, Commands, Ended, everything, refusal, refused

from jaxrl_fast.commands import cli

SAC = "env=probe env.id=value algo=sac"
PPO = "env=probe env.id=value algo=ppo"
HOST = "env=gymnasium env.id=CartPole-v1 algo=ppo"
TWO = "distributed.coordinator=localhost:4321 distributed.num_processes=2 distributed.process_id="


COMMANDS = [
    # names
    ("env=halfchetah", "env=halfchetah is unknown: did you mean halfcheetah?"),
    ("env=CartPole-v1", "did you mean cartpole?"),
    ("env=null", "env=null is unknown"),
    ("env=[cartpole]", "env=[cartpole] is unknown: did you mean cartpole?"),
    (
        "env=gymnasium",
        "env=gymnasium needs env.id: write for example env=gymnasium env.id=HalfCheetah-v5",
    ),
    ("env=gymnasium env.id=Nope-v1", "env.id=Nope-v1: Gymnasium: "),
    (
        "env=gymnasium env.id=CartPole-v1 algo=sac",
        "algo=sac does not work with the discrete actions of CartPole-v1",
    ),
    (f"{HOST} pool.workers=40", "a group has 16 environments: write at most 16"),
    (
        f"{HOST} pool.bridge=callback num_seeds=2",
        "num_seeds=2: an ordered callback serves one seed: write pool.bridge",
    ),
    (
        f"{HOST} pool.order=arrival num_seeds=2",
        "num_seeds=2: pool.order=arrival serves one: write pool.order=fixed",
    ),
    (f"{HOST} pool.order=arrival pool.workers=0", "pool.order=arrival needs worker processes"),
    (
        f"{HOST} pool.order=arrival pool.workers=1 pool.bridge=callback",
        "has no fixed order to compile: write pool.bri",
    ),
    (
        f"{HOST} debug=true",
        "debug=true repeats a tick, which environments on the host do not support: leave it out",
    ),
    (f"{HOST} pool.bridge=call", "pool.bridge=call: write one of host, callback"),
    (
        f"{HOST} placement=central_inference num_seeds=0",
        "num_seeds=0: write a number of at least 1",
    ),
    (f"{HOST} num_envs=3 pool.num_groups=2", "num_envs=3 does not divide into pool.num_groups=2"),
    (
        "env=gymnasium env.make=my.make",
        "env.make=my.make has no effect with env=gymnasium: write it with env=custom",
    ),
    (
        "env=cartpole algo=ppo algo.memory=gru",
        "algo.memory=gru needs a size: add algo.recurrent_size=64",
    ),
    (
        "env=cartpole pool.workers=2",
        "pool.workers has no effect with env=cartpole, which is compiled",
    ),
    (
        "env=cartpole algo=ppo placement=central_inference devices=1",
        "central_inference is for environments on the host",
    ),
    (
        "env=cartpole algo=ppo placement=parameter_server devices=2",
        "nothing for a server to average: write learners=2",
    ),
    ("env=cartpole algo=ppo learners=3", "learners=3 cannot share the 8 logical shards"),
    (
        "env=cartpole algo=ppo learners=16",
        "write learners=8, or shards=16 with sizes that 16 divides",
    ),
    ("env=cartpole shards=0", "shards=0: write a number of at least 1"),
    ("env=cartpole shards=many", "shards=many: write a whole number"),
    (
        "env=cartpole algo=ppo placement=actor_critic devices=1",
        "placement=actor_critic needs 2 devices and has 1",
    ),
    ("env=cartpole average=params", "average=params: write one of gradients, parameters, turns"),
    (
        "env=gymnax env.id=cartpole",
        "env.id=cartpole: gymnax has no such environment; nearest: CartPole-v1",
    ),
    ("env=gymnax env.id=MNISTBandit-bsuite", "it downloads a data set when made"),
    ("env=brax env.id=swimmer", "brax's swimmer does not run on this JAX"),
    ("env=brax env.id=Ant-v5", "env.id=Ant-v5: brax has no such environment; nearest: ant"),
    ("env=brax", "env=brax needs env.id: write for example env=brax env.id=ant"),
    (
        "env=custom",
        "env=custom needs env.make: write for example env=custom env.make=my_package.make",
    ),
    ("env=cartpole env.id=ant", "env.id=ant has no effect with env=cartpole"),
    (
        "env=pendulum env.backend=mjx",
        "gymnax Pendulum-v1 has no option 'backend': write one of dt, g, l",
    ),
    ("env=pendulum +env.g=abc", "env.g=abc: write a number, such as 10.0"),
    (
        "env=gymnax env.id=Acrobot-v1 +env.available_torque=[1,2]",
        "gymnax Acrobot-v1 with these options: step failed",
    ),
    (
        "env=pendulum +env.max_steps_in_episode=0",
        "max_episode_steps=0: write a whole number of at least 1",
    ),
    (
        "env=brax env.id=ant env.backend=foo",
        "env.backend=foo: write one of generalized, positional, spring, mjx",
    ),
    (
        "env=brax env.id=ant +env.foo=1",
        "unexpected keyword argument 'foo': write some of ctrl_cost_weight",
    ),
    (
        "env=hopper +env.reset_noise_scale=abc",
        "env.reset_noise_scale=abc: write a number, such as 0.005",
    ),
    ("env=hopper +env.healthy_z_range=1", "brax hopper with these options: step failed"),
    ("algo=pppo", "algo=pppo is unknown: did you mean ppo?"),
    (
        "env=cartpole algo.lr=3",
        "unknown key 'algo.lr' for algo=ppo env=cartpole: did you mean algo.learning_rate?",
    ),
    ("env=cartpole algo.lerning_rate=3", "env=cartpole: did you mean algo.learning_rate?"),
    ("device=2", "did you mean devices?"),
    (
        "env=Acrobot-v1",
        "any other id is env=gymnasium env.id=Acrobot-v1, env=gymnax env.id=... or env=brax",
    ),
    ("algo=null", "algo=null is unknown"),
    ("placement=spread", "placement=spread is unknown: write one of auto, fused, data_parallel"),
    (
        "total_step=3",
        "unknown key 'total_step' for algo=sac env=halfcheetah: did you mean total_steps",
    ),
    ("env=cartpole algo.learning_rat=3", "did you mean algo.learning_rate"),
    ("env.name=cartpole", "unknown key 'env.name' for algo=sac env=halfcheetah: did you mean env?"),
    ("algo=sac algo.clip_range=0.1", "it belongs to algo=ippo or algo=mappo or algo=ppo"),
    ("foo.bar=1", "--help lists the keys"),
    ("env.foo.bar=1", "write +env.foo.bar=... for an option of the environment"),
    (f"{PPO} env.options={{a:1}}", "unknown key 'env.options'"),
    (f"{PPO} +env.speed=1", "probe value has no option 'speed': leave it out"),
    # grammar
    ("env", "cannot read 'env': write key=value, for example env=halfcheetah"),
    ("=3", "cannot read '=3': write key=value"),
    ("--fast", "--fast: write fast=..."),
    ("seed=", "seed= has no value"),
    ("seed=1,2", "seed=1,2: several values start several runs: add --multirun"),
    ("--multirun seed=1,x", "seed=x: write a whole number"),
    (
        "--multirun seed=1,2 run_dir=here",
        "several runs would write to run_dir=here: leave run_dir out",
    ),
    ("~seed", "settings cannot be removed"),
    ("run_dir=a(b", "quote the value"),
    ("seed=${oc.env:HOME}", "seed=${oc.env:HOME}: write a whole number"),
    # types and ranges
    ("seed=abc", "seed=abc: write a whole number"),
    ("seed={a:1}", "seed={a:1}: write a whole number"),
    ("seed=-1", "seed=-1: write a number of at least 0"),
    ("seed=4294967296", "seed=4294967296: write a number of at most 4294967295"),
    ("total_steps=0", "total_steps=0: write a number of at least 1"),
    ("total_steps=1e400", "write a whole number"),
    ("total_steps=null", "total_steps=null: write a whole number"),
    ("num_envs=-4", "num_envs=-4: write a number of at least 1"),
    ("num_envs=1e15", "write a number of at most 2147483647"),
    ("num_seeds=0", "num_seeds=0: write a number of at least 1"),
    ("devices=0", "devices=0: write a number of at least 1"),
    ("devices=1e9", "write a number of at most 1024"),
    ("eval.episodes=0", "eval.episodes=0: write a number of at least 1"),
    ("eval.every=-1", "eval.every=-1: write a number of at least 0"),
    ("checkpoint.keep=-1", "checkpoint.keep=-1: write a number of at least 0"),
    ("checkpoint.replay=some", "checkpoint.replay=some: write true or false"),
    ("nan=ignore", "nan=ignore: write one of stop, skip"),
    ("overlap=both", "overlap=both: write one of none, sampling, actor_critic, all"),
    ("precision=f16", "precision=f16: write one of f32, bf16"),
    # several processes
    ("distributed=on", "distributed=on: write one of auto, off"),
    (
        "distributed.process_id=1",
        "named by three keys: write distributed.coordinator=... and distributed.num_processes",
    ),
    (f"{TWO}2", "distributed.process_id=2: 2 processes are numbered from 0 to 1"),
    (f"{TWO}-1", "distributed.process_id=-1: write a number of at least 0"),
    (
        f"{TWO}1 distributed.num_processes=1",
        "distributed.num_processes=1: a single process needs no distributed.*",
    ),
    (
        f"{TWO}1 distributed.coordinator=node01",
        "distributed.coordinator=node01: write the host of process 0 and a free",
    ),
    (
        f"{TWO}1 distributed.coordinator=node01:0",
        "distributed.coordinator=node01:0: write the host of process 0",
    ),
    (f"{TWO}1 distributed=off", "distributed=off means a single process: leave it out"),
    (
        f"{TWO}1 placement=fused",
        "placement=fused stays within one process: write placement=data_parallel",
    ),
    (
        f"{TWO}1 devices=3",
        "devices=3 cannot be shared evenly by 2 processes: write a multiple of 2",
    ),
    (f"{TWO}1 debug=true", "debug=true works in a single process only, not in 2"),
    ("tuned=maybe", "tuned=maybe: write true or false"),
    ("name=a/b", "name=a/b: it is part of a folder's name, so write it without a slash"),
    ("env.episode_length=0", "env.episode_length=0: write a number of at least 1"),
    ("algo.policy_hidden=64", "algo.policy_hidden=64: write a list such as [256,256]"),
    ("algo.policy_hidden=[8,0]", "algo.policy_hidden=[8,0]: write a number of at least 1"),
    ("algo.buffer_size=1e15", "write a number of at most 2147483647"),
    ("algo.activation=sigmoid", "algo.activation=sigmoid: write one of relu, tanh, swish"),
    (
        "algo.learning_rate=fast",
        "write a number or a schedule such as linear:3e-4:0 (linear, cosine, file)",
    ),
    (
        "algo.learning_rate=linear:3e-4",
        "algo.learning_rate=linear:3e-4: write a number or a schedule",
    ),
    (
        "algo.learning_rate=square:1:0",
        "algo.learning_rate=square:1:0: write a number or a schedule",
    ),
    ("algo.learning_rate=-1", "algo.learning_rate=-1: write a number of at least 0"),
    (
        "algo.learning_rate=linear:1e-3:-1",
        "algo.learning_rate=linear:1e-3:-1: write a number of at least 0",
    ),
    ("algo.learning_rate=inf", "algo.learning_rate=inf: write a number that is finite"),
    ("algo.discount=1.5", "algo.discount=1.5: write a number of at most 1"),
    ("algo.tau=5", "algo.tau=5: write a number of at most 1"),
    (f"{PPO} algo.clip_range=-1", "algo.clip_range=-1: write a number of at least 0"),
    (
        "algo.learning_rate=linear:inf:0",
        "algo.learning_rate=linear:inf:0: write a number or a schedule",
    ),
    # incompatible options
    (f"{PPO} algo.rollout_length=0", "rollout_length=0: write a positive number"),
    (f"{PPO} algo.num_minibatches=0", "num_minibatches=0: write a positive number"),
    (
        f"{PPO} num_envs=5 algo.rollout_length=7 algo.num_minibatches=4",
        "algo.num_minibatches=4 does not divide",
    ),
    (f"{PPO} num_envs=5 algo.recurrent_size=4 algo.num_minibatches=4", "5 sequences of 256 steps"),
    (f"{SAC} algo.batch_size=0", "batch_size=0: write a positive number"),
    (f"{SAC} algo.n_step=0", "n_step=0: write a positive number"),
    (
        f"{SAC} algo.buffer_size=100 algo.warmup_steps=0",
        "write a buffer_size of at least 256 or a smaller batch",
    ),
    (
        f"{SAC} algo.buffer_size=1e3 algo.warmup_steps=2e3",
        "warmup_steps=2000 exceeds buffer_size=1000",
    ),
    (
        f"{SAC} num_envs=300 algo.buffer_size=300 algo.warmup_steps=0",
        "write a buffer_size of at least 600",
    ),
    (
        f"{SAC} num_envs=8 algo.rollout_length=100 algo.buffer_size=400 algo.warmup_steps=0",
        "at least 800",
    ),
    (
        "env=cartpole algo=sac",
        "algo=sac does not work with the discrete actions of CartPole-v1: write algo=sac_discrete",
    ),
    (
        "env=probe env.id=action algo=sac",
        "algo=sac does not work with the discrete actions of probe action",
    ),
    (
        f"{PPO} devices=99 placement=data_parallel",
        "shard the 4 environments of 'sample' evenly over 99 devices",
    ),
    (
        f"{PPO} num_envs=5 algo.num_minibatches=1 devices=2 placement=data_parallel",
        "cannot shard the 5 environments",
    ),
    (
        f"{PPO} num_envs=5 algo.num_minibatches=1 devices=2 placement=sharded_sampling",
        "or placement=fused",
    ),
    # folders
    (
        f"{PPO} run_dir=taken",
        "run_dir=taken contains a run already: write resume=taken, or another run_dir",
    ),
    (
        f"{PPO} run_dir=taken/config.yaml",
        "taken/config.yaml (File exists): write another run_dir=...",
    ),
    (f"{PPO} run_dir=taken/config.yaml/deeper", "(Not a directory): write another run_dir=..."),
    ("run_dir=[a]", "run_dir=[a]: write a text or null"),
    (
        "resume=nowhere",
        "nowhere contains no checkpoint: write the folder of a run, such as runs/latest",
    ),
    ("resume=taken", "taken contains no checkpoint"),
    ("resume=taken/config.yaml", "contains no checkpoint"),
    ("resume=unfinished/checkpoints/7", "unfinished/checkpoints/7 is not a complete checkpoint"),
    (
        "resume=unfinished",
        "checkpoint unfinished/checkpoints/7 is damaged (description.json is missing)",
    ),
    (
        "resume=taken config=taken/config.yaml",
        "resume uses the settings of the run: leave config out",
    ),
    ("resume=auto", "resume=auto needs a folder: write run_dir=<folder> with it"),
    ("resume=true", "resume=true: write a text or null"),
    # evaluate
    ("evaluate", "write the path of one run's folder, such as runs/latest"),
    ("evaluate taken unfinished", "write the path of one run's folder"),
    (
        "evaluate nowhere",
        "nowhere contains no run: write the path of a run's folder, such as runs/latest",
    ),
    ("evaluate taken", "taken/policy holds no policy (No such file or directory)"),
    ("evaluate taken episodes=0", "episodes=0: write a number of at least 1"),
    ("evaluate taken episodes=ten", "episodes=ten: write a whole number"),
    ("evaluate taken episodes=²", "episodes=²: write a whole number"),
    ("evaluate taken seed=-1", "seed=-1: write a number of at least 0"),
    ("evaluate taken seed=4294967296", "seed=4294967296: write a number of at most 4294967295"),
    (
        "evaluate taken episode=3",
        "unknown key 'episode': the keys of evaluate are episodes, seed and sample",
    ),
    ("evaluate --multirun taken", "--multirun is for training: run evaluate once for each run"),
]

ALONE = "devices="
"""Errors that must be reported before JAX starts: such a command runs in a separate process, the
others share one.
"""


@pytest.fixture(scope="module")
def answers(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Result of each bad command. All run in one folder, which stays unchanged."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "taken").mkdir()
    (folder / "taken" / "config.yaml").write_text("env: cartpole\n")
    (folder / "unfinished" / "checkpoints" / "7").mkdir(parents=True)
    before = everything(folder)
    lines = {
        line: line.split() if line.startswith("evaluate") else ["train", *line.split()]
        for line, _ in COMMANDS
    }
    shared = {line: words for line, words in lines.items() if ALONE not in line}
    ended = dict(zip(shared, commands.run_all(folder, list(shared.values())), strict=True))
    ended |= {line: commands.run(folder, *words) for line, words in lines.items() if ALONE in line}
    assert everything(folder) == before
    return ended


@pytest.mark.parametrize(
    ("line", "expected"), COMMANDS, ids=[line.replace("/", "|") for line, _ in COMMANDS]
)
def test_a_bad_command(answers, line: str, expected: str):
    assert expected in refusal(answers[line])


def test_a_width_that_the_devices_do_not_divide_is_refused_only_where_the_placement_is_named(
    commands, tmp_path
):
    ended = commands.run(
        tmp_path, "train", *PPO.split(), "num_envs=5", "algo.num_minibatches=1", "devices=2"
    )
    assert ended.status == TRAINED
    assert "placement fused on 1 device" in ended.out


FILES = {
    "missing": (
        None,
        "config=mine.yaml: No such file or directory; write the path of a config.yaml",
    ),
    "a directory": (
        "directory",
        "config=mine.yaml: Is a directory; write the path of a config.yaml",
    ),
    "no YAML": (b"a: [1\nb: 2\n", "config=mine.yaml is not YAML"),
    "binary": (bytes(range(256)), "config=mine.yaml is not YAML"),
    "too deep": (b"a: " + b"[" * 2000 + b"]" * 2000, "config=mine.yaml is not YAML"),
    "a key twice": (b"seed: 1\nseed: 2\n", "duplicate key seed: write it once"),
    "code": (b"seed: !!python/object/apply:os.mkdir [ran]\n", "config=mine.yaml is not YAML"),
    "a list": (b"- 1\n", "config=mine.yaml: write keys and values, such as seed: 3"),
    "a number": (b"3\n", "config=mine.yaml: write keys and values, such as seed: 3"),
    "words": (b"env=cartpole\n", "mine.yaml: unknown key 'env=cartpole'"),
    "no key": (b"null: 3\n", "config=mine.yaml"),
    "unknown key": (
        b"env: probe\nseeds: 3\n",
        "mine.yaml: unknown key 'seeds' for algo=ppo env=probe: did you mean",
    ),
    "unknown key in a section": (
        b"algo:\n  learning_rat: 3\n",
        "mine.yaml: unknown key 'algo.learning_rat'",
    ),
    "unknown section": (b"algorithm:\n  learning_rate: 3\n", "did you mean algo.learning_rate?"),
    "number for a section": (
        b"eval: 3\n",
        "unknown key 'eval' for algo=sac env=halfcheetah: write one of eval.every",
    ),
    "section for a number": (
        b"seed:\n  a: 1\n",
        "unknown key 'seed.a' for algo=sac env=halfcheetah: did you mean seed?",
    ),
    "wrong type": (b"seed: x\n", "mine.yaml: seed=x: write a whole number"),
    "wrong type in a section": (
        b"algo:\n  policy_hidden: 8\n",
        "mine.yaml: algo.policy_hidden=8: write a list such as",
    ),
    "nothing for an environment": (b"env: null\n", "env=null is unknown"),
    "unknown environment": (b"env:\n  name: nowhere\n", "env=nowhere is unknown"),
    "unknown algorithm": (b"algo: a2c\n", "algo=a2c is unknown"),
    "no value": (b"seed: ???\n", "mine.yaml: seed=???: write a whole number"),
    "reference to nothing": (
        b"seed: ${nowhere}\n",
        "mine.yaml: seed=${nowhere}: write a whole number",
    ),
    "resume": (
        b"resume: somewhere\n",
        "mine.yaml: resume works on the command line only: write it there",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_config_file(commands, tmp_path, name: str):
    content, expected = FILES[name]
    if isinstance(content, bytes):
        (tmp_path / "mine.yaml").write_bytes(content)
    elif content == "directory":
        (tmp_path / "mine.yaml").mkdir()
    assert expected in refused(commands, tmp_path, "train", "config=mine.yaml")


def test_what_does_not_fit_into_memory(capsys):
    def run(words: list[str]) -> int:
        raise JaxRuntimeError(words[0])

    assert cli.main("train", run, ["RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."]) == 2
    assert "out of memory: write a smaller num_envs" in capsys.readouterr().err
    with pytest.raises(JaxRuntimeError):
        cli.main("train", run, ["INTERNAL: a bug"])
