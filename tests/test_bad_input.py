"""Bad commands, files, environments and checkpoints: each ends in one line that says what to write instead, with status
2, before anything is compiled, and leaves nothing behind."""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import JaxRuntimeError
from many_commands import TRAINED, Commands

import jaxrl_fast as jf
from jaxrl_fast import cli
from jaxrl_fast.normalize import init_stats
from jaxrl_fast.policy import PolicyParams, make_policy, same_spaces

SMALL = [
    "env=probe", "env.id=action_continuous", "algo=sac", "num_envs=4", "total_steps=200", "eval.episodes=1",
    "algo.buffer_size=400", "algo.warmup_steps=40", "algo.updates_per_tick=1", "algo.batch_size=8",
    "algo.policy_hidden=[8]", "algo.critic_hidden=[8]",
]  # fmt: skip
OBS = jax.ShapeDtypeStruct((2,), jnp.float32)
SAC = "env=probe env.id=value algo=sac"
PPO = "env=probe env.id=value algo=ppo"


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("notes")) as commands:
        yield commands


@pytest.fixture(scope="module")
def made(commands, tmp_path_factory) -> Path:
    """A folder with a tiny run in ``run``; never changed, only copied."""
    folder = tmp_path_factory.mktemp("made")
    ended = commands.run(folder, "train", *SMALL, "run_dir=run", trains=True)
    assert (ended.status, ended.err) == (0, "")
    return folder


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refused(commands: Commands, cwd: Path, command: str, *words: str) -> str:
    """What a command said, once it is certain that it was refused as it should be."""
    before = everything(cwd)
    ended = commands.run(cwd, command, *words)
    assert ended.status == 2, ended
    assert ended.out == ""
    assert ended.err.startswith("jaxrl_fast: error: ") and ended.err.count("\n") == 1, ended.err
    assert ended.err.endswith("\n") and len(ended.err) < 700
    assert everything(cwd) == before
    return ended.err


def test_what_is_not_refused_would_be_trained(commands, made, tmp_path):
    assert commands.run(tmp_path, "train", *SMALL).status == TRAINED
    assert len(list(tmp_path.glob("runs/probe/sac/*/config.yaml"))) == 1
    assert commands.run(made, "evaluate", "run").status == TRAINED


COMMANDS = [
    # names
    ("env=halfchetah", "env=halfchetah is unknown: did you mean halfcheetah?"),
    ("env=CartPole-v1", "did you mean cartpole?"),
    ("env=null", "env=null is unknown"),
    ("env=[cartpole]", "env=[cartpole] is unknown: did you mean cartpole?"),
    (
        "env=gymnasium env.id=CartPole-v1",
        "env=gymnasium is not available yet: write env=brax, env=gymnax or env=custom",
    ),
    ("env=gymnax env.id=cartpole", "env.id=cartpole: gymnax has no such environment; nearest: CartPole-v1"),
    ("env=gymnax env.id=MNISTBandit-bsuite", "it downloads a data set when made"),
    ("env=brax env.id=swimmer", "brax's swimmer does not run on this JAX"),
    ("env=brax env.id=Ant-v5", "env.id=Ant-v5: brax has no such environment; nearest: ant"),
    ("env=brax", "env=brax needs env.id: write for example env=brax env.id=ant"),
    ("env=custom", "env=custom needs env.make: write for example env=custom env.make=my_package.make"),
    ("env=cartpole env.id=ant", "env.id=ant says nothing beside env=cartpole"),
    ("env=pendulum env.backend=mjx", "gymnax Pendulum-v1 has no parameter 'backend': write one of dt, g, l"),
    ("env=pendulum +env.g=abc", "env.g=abc: write a number, such as 10.0"),
    ("env=gymnax env.id=Acrobot-v1 +env.available_torque=[1,2]", "gymnax Acrobot-v1 with these options: step failed"),
    ("env=pendulum +env.max_steps_in_episode=0", "max_episode_steps=0: write a whole number of at least 1"),
    ("env=brax env.id=ant env.backend=foo", "env.backend=foo: write one of generalized, positional, spring, mjx"),
    ("env=brax env.id=ant +env.foo=1", "unexpected keyword argument 'foo': write some of ctrl_cost_weight"),
    ("env=hopper +env.reset_noise_scale=abc", "env.reset_noise_scale=abc: write a number, such as 0.005"),
    ("env=hopper +env.healthy_z_range=1", "brax hopper with these options: step failed"),
    ("algo=pppo", "algo=pppo is unknown: did you mean ppo?"),
    ("algo=null", "algo=null is unknown"),
    ("placement=spread", "placement=spread is unknown: write one of auto, fused, data_parallel"),
    ("total_step=3", "unknown key 'total_step' for algo=sac env=halfcheetah: did you mean total_steps"),
    ("env=cartpole algo.learning_rat=3", "did you mean algo.learning_rate"),
    ("env.name=cartpole", "unknown key 'env.name' for algo=sac env=halfcheetah: did you mean env?"),
    ("algo=sac algo.clip_range=0.1", "it belongs to algo=ppo"),
    ("foo.bar=1", "--help lists the keys"),
    ("env.foo.bar=1", "an option of the environment's own is written +env.foo.bar=..."),
    (f"{PPO} env.options={{a:1}}", "unknown key 'env.options'"),
    (f"{PPO} +env.speed=1", "probe value has no option 'speed': leave it out"),
    # grammar
    ("env", "cannot read 'env': write key=value, for example env=halfcheetah"),
    ("=3", "cannot read '=3': write key=value"),
    ("--fast", "cannot read '--fast': write key=value"),
    ("seed=", "seed= has no value"),
    ("seed=1,2", "seed=1,2: several values are several runs: add --multirun"),
    ("--multirun seed=1,x", "seed=x: write a whole number"),
    ("--multirun seed=1,2 run_dir=here", "several runs would write to run_dir=here: leave run_dir out"),
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
    ("eval.every=-1", "eval.every=-1: write a number of at least 1"),
    ("checkpoint.keep=-1", "checkpoint.keep=-1: write a number of at least 0"),
    ("checkpoint.replay=some", "checkpoint.replay=some: write true or false"),
    ("nan=ignore", "nan=ignore: write one of stop, skip"),
    ("overlap=both", "overlap=both: write one of none, sampling, actor_critic, all"),
    ("precision=f16", "precision=f16: write one of f32, bf16"),
    ("tuned=maybe", "tuned=maybe: write true or false"),
    ("name=a/b", "name=a/b: it is part of a folder's name, so write it without a slash"),
    ("env.episode_length=0", "env.episode_length=0: write a number of at least 1"),
    ("algo.policy_hidden=64", "algo.policy_hidden=64: write a list such as [256,256]"),
    ("algo.policy_hidden=[8,0]", "algo.policy_hidden=[8,0]: write a number of at least 1"),
    ("algo.buffer_size=1e15", "write a number of at most 2147483647"),
    ("algo.activation=sigmoid", "algo.activation=sigmoid: write one of relu, tanh, swish"),
    ("algo.learning_rate=fast", "write a number or a schedule such as linear:3e-4:0 (linear, cosine)"),
    ("algo.learning_rate=linear:3e-4", "algo.learning_rate=linear:3e-4: write a number or a schedule"),
    ("algo.learning_rate=square:1:0", "algo.learning_rate=square:1:0: write a number or a schedule"),
    ("algo.learning_rate=linear:inf:0", "algo.learning_rate=linear:inf:0: write a number or a schedule"),
    # what does not fit together
    (f"{PPO} algo.rollout_length=0", "rollout_length=0: write a positive number"),
    (f"{PPO} algo.num_minibatches=0", "num_minibatches=0: write a positive number"),
    (f"{PPO} num_envs=5 algo.rollout_length=7 algo.num_minibatches=4", "algo.num_minibatches=4 does not divide"),
    (f"{PPO} num_envs=5 algo.recurrent_size=4 algo.num_minibatches=4", "5 sequences of 128 steps"),
    (f"{SAC} algo.batch_size=0", "batch_size=0: write a positive number"),
    (f"{SAC} algo.n_step=0", "n_step=0: write a positive number"),
    (f"{SAC} algo.buffer_size=100 algo.warmup_steps=0", "write a buffer_size of at least 256 or a smaller batch"),
    (f"{SAC} algo.buffer_size=1e3 algo.warmup_steps=2e3", "warmup_steps=2000 exceeds buffer_size=1000"),
    (f"{SAC} num_envs=300 algo.buffer_size=300 algo.warmup_steps=0", "write a buffer_size of at least 600"),
    (f"{SAC} num_envs=8 algo.rollout_length=100 algo.buffer_size=400 algo.warmup_steps=0", "at least 800"),
    ("env=cartpole algo=sac", "algo=sac does not work with the discrete actions of CartPole-v1: write algo=ppo"),
    ("env=probe env.id=action algo=sac", "algo=sac does not work with the discrete actions of probe action"),
    (f"{PPO} devices=99 placement=data_parallel", "divides the 16 environments of 'sample' among 99 devices"),
    (f"{PPO} num_envs=5 algo.num_minibatches=1 devices=2 placement=data_parallel", "divides the 5 environments"),
    (f"{PPO} num_envs=5 algo.num_minibatches=1 devices=2 placement=sharded_sampling", "or placement=fused"),
    # folders
    (f"{PPO} run_dir=taken", "run_dir=taken holds a run already: write resume=taken, or another run_dir"),
    (f"{PPO} run_dir=taken/config.yaml", "taken/config.yaml (File exists): write another run_dir=..."),
    (f"{PPO} run_dir=taken/config.yaml/deeper", "(Not a directory): write another run_dir=..."),
    ("run_dir=[a]", "run_dir=[a]: write a text or null"),
    ("resume=nowhere", "nowhere holds no checkpoint: write the folder of a run, such as runs/latest"),
    ("resume=taken", "taken holds no checkpoint"),
    ("resume=taken/config.yaml", "holds no checkpoint"),
    ("resume=unfinished/checkpoints/7", "unfinished/checkpoints/7 is no complete checkpoint"),
    ("resume=unfinished", "checkpoint unfinished/checkpoints/7 is damaged (description.json is missing)"),
    ("resume=taken config=taken/config.yaml", "resume brings the run's own settings: leave config out"),
    ("resume=auto", "resume=auto needs to know where: write run_dir=<folder> with it"),
    ("resume=true", "resume=true: write a text or null"),
    # evaluate
    ("evaluate", "write the path of one run's folder, such as runs/latest"),
    ("evaluate taken unfinished", "write the path of one run's folder"),
    ("evaluate nowhere", "nowhere holds no run: write the path of a run's folder, such as runs/latest"),
    ("evaluate taken", "taken/policy holds no policy (No such file or directory)"),
    ("evaluate taken episodes=0", "episodes=0: write a whole number from 1 to 2147483647, for example episodes=100"),
    ("evaluate taken episodes=ten", "episodes=ten: write a whole number"),
    ("evaluate taken episodes=²", "episodes=²: write a whole number"),
    ("evaluate taken seed=-1", "seed=-1: write a whole number from 0 to 4294967295, for example seed=0"),
    ("evaluate taken seed=4294967296", "seed=4294967296: write a whole number"),
    ("evaluate taken episode=3", "unknown key 'episode': evaluate knows episodes and seed"),
    ("evaluate --multirun taken", "--multirun is for training: run evaluate once for each run"),
]


@pytest.mark.parametrize(("line", "expected"), COMMANDS, ids=[line.replace("/", "|") for line, _ in COMMANDS])
def test_a_bad_command(commands, tmp_path, line: str, expected: str):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.yaml").write_text("env: cartpole\n")
    (tmp_path / "unfinished" / "checkpoints" / "7").mkdir(parents=True)
    command, *words = line.split() if line.startswith("evaluate") else ("train", *line.split())
    assert expected in refused(commands, tmp_path, command, *words)


FILES = {
    "missing": (None, "config=mine.yaml: No such file or directory; write the path of a config.yaml"),
    "a directory": ("directory", "config=mine.yaml: Is a directory; write the path of a config.yaml"),
    "no YAML": (b"a: [1\nb: 2\n", "config=mine.yaml is not YAML"),
    "binary": (bytes(range(256)), "config=mine.yaml is not YAML"),
    "too deep": (b"a: " + b"[" * 2000 + b"]" * 2000, "config=mine.yaml is not YAML"),
    "a key twice": (b"seed: 1\nseed: 2\n", "found duplicate key seed"),
    "code": (b"seed: !!python/object/apply:os.mkdir [ran]\n", "config=mine.yaml is not YAML"),
    "a list": (b"- 1\n", "config=mine.yaml: write keys and values, such as seed: 3"),
    "a number": (b"3\n", "config=mine.yaml: write keys and values, such as seed: 3"),
    "words": (b"env=cartpole\n", "mine.yaml: unknown key 'env=cartpole'"),
    "no key": (b"null: 3\n", "config=mine.yaml"),
    "unknown key": (b"env: probe\nseeds: 3\n", "mine.yaml: unknown key 'seeds' for algo=ppo env=probe: did you mean"),
    "unknown key in a section": (b"algo:\n  learning_rat: 3\n", "mine.yaml: unknown key 'algo.learning_rat'"),
    "unknown section": (b"algorithm:\n  learning_rate: 3\n", "did you mean algo.learning_rate?"),
    "number for a section": (b"eval: 3\n", "unknown key 'eval' for algo=sac env=halfcheetah: write one of eval.every"),
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
    "reference to nothing": (b"seed: ${nowhere}\n", "mine.yaml: seed=${nowhere}: write a whole number"),
    "resume": (b"resume: somewhere\n", "mine.yaml: resume stands on the command line: write it there"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_config_file(commands, tmp_path, name: str):
    content, expected = FILES[name]
    if isinstance(content, bytes):
        (tmp_path / "mine.yaml").write_bytes(content)
    elif content == "directory":
        (tmp_path / "mine.yaml").mkdir()
    assert expected in refused(commands, tmp_path, "train", "config=mine.yaml")


WORLDS = """
import jax, jax.numpy as jnp, numpy as np, jaxrl_fast as jf

OBS = jax.ShapeDtypeStruct((2,), jnp.float32)

def world(
    spec_obs=OBS, action=jf.Discrete(2), limit=50, obs=lambda: jnp.zeros(2), after=lambda state: state + 1,
    next_obs=lambda: jnp.zeros(2), reward=lambda: 0.0, terminated=lambda: jnp.bool_(False),
    truncated=lambda: jnp.bool_(False), **more,
):
    def step(state, action, key):
        return after(state), jf.Timestep(next_obs(), next_obs(), reward(), terminated(), truncated())

    spec = jf.EnvSpec("bad", spec_obs, action, limit)
    return jf.Env(spec, lambda key, params: (jnp.int32(0), obs()), step)._replace(**more)

def fail(*args):
    raise RuntimeError("no such\\nfile")

def silent(*args):
    assert False

def exits():
    raise SystemExit(3)

def choosy(size):
    return world()

class Gymnax:
    default_params = {"length": 3.0}
    def reset_env(self, key, params): return jnp.zeros(1), jnp.zeros(())
    def step_env(self, key, state, action, params): return state[None], state, state, state > 3, {}
    def observation_space(self, params):
        from gymnax.environments import spaces
        return spaces.Box(-1.0, 1.0, (1,))
    def action_space(self, params):
        from gymnax.environments import spaces
        return spaces.Discrete(2)

class GymnaxReset(Gymnax):
    reset_env = fail
class GymnaxSpace(Gymnax):
    observation_space = fail
class GymnaxAction(Gymnax):
    def action_space(self, params): return "up"
class GymnaxStep(Gymnax):
    step_env = fail
class GymnaxThree(Gymnax):
    def step_env(self, key, state, action, params): return state[None], state, state
class GymnaxReward(Gymnax):
    def step_env(self, key, state, action, params): return state[None], state, jnp.zeros(2), state > 3, {}
class GymnaxState(Gymnax):
    def step_env(self, key, state, action, params): return state[None], state[None], state, state > 3, {}
class GymnaxObs(Gymnax):
    def step_env(self, key, state, action, params): return jnp.zeros(2), state, state, state > 3, {}

class BraxReset:
    observation_size, action_size = 2, 1
    reset = step = fail
class BraxSize(BraxReset):
    action_size = 0
    def reset(self, key):
        from brax.envs import State
        return State(None, jnp.zeros(2), jnp.zeros(()), jnp.zeros(()))
class BraxStep(BraxSize):
    action_size = 1
    def step(self, state, action): return 3
"""
"""A module of good worlds, but for what a test or a class changes."""

NAMED = [
    ("bad.nothing", "bad has no function 'nothing'"),
    ("bad.OBS", "bad has no function 'OBS'"),
    ("nowhere.make", "cannot import nowhere: ModuleNotFoundError: No module named 'nowhere'; run from the folder that"),
    ("make", "write the function with its module, for example my_package.make"),
    ("no_python.make", "cannot import no_python: SyntaxError"),
    ("exits.make", "cannot import exits: SystemExit: 3"),
    ("bad.fail", "env.make=bad.fail failed: RuntimeError: no such file"),
    ("bad.exits", "env.make=bad.exits failed: SystemExit: 3"),
    ("bad.choosy", "env.make=bad.choosy failed: TypeError: choosy() missing 1 required positional argument: 'size'"),
    ("bad.GymnaxReset", "env.make=bad.GymnaxReset: the GymnaxReset that it returned failed: RuntimeError: no such"),
    ("bad.GymnaxSpace", "env.make=bad.GymnaxSpace: the GymnaxSpace that it returned failed: RuntimeError: no such"),
    ("bad.GymnaxAction", "bad.GymnaxAction has actions of kind str; Discrete and Box are supported"),
    ("bad.GymnaxStep", "env.make=bad.GymnaxStep: step failed: RuntimeError: no such"),
    ("bad.GymnaxThree", "step failed: ValueError: not enough values to unpack"),
    ("bad.GymnaxReward", "step failed: TypeError: cannot reshape array of shape (2,)"),
    ("bad.GymnaxState", "step gives a state GymnaxState(world=float32[1], params=()), but reset has GymnaxState("),
    ("bad.GymnaxObs", "step gives a next_obs float32[2], but its spec has float32[1]"),
    ("bad.BraxReset", "env.make=bad.BraxReset: the BraxReset that it returned failed: RuntimeError: no such file"),
    ("bad.BraxSize", "are not supported: write Discrete(n) with n >= 1"),
    ("bad.BraxStep", "env.make=bad.BraxStep: step failed"),
]
"""What ``env.make`` names, in the folder of `WORLDS`."""

NAN = 'float("nan")'
NO_ACTION = "are not supported: write Discrete(n) with n >= 1, or Box(low, high) with arrays of finite bounds"
NO_OBS = "write jax.ShapeDtypeStruct(shape, dtype)"
MADE = [
    ("None", "returned NoneType: return a jaxrl_fast.Env, a gymnax-style world"),
    ("3", "returned int"),
    ("world().spec", "returned EnvSpec"),
    ("jf.vectorize(world(), num_envs=4)", "returned VecEnv"),
    # the spec
    ("world()._replace(spec=None)", "its spec is NoneType: write a jaxrl_fast.EnvSpec"),
    ("world(action='up')", f"actions 'up' {NO_ACTION}"),
    ("world(action=jf.Discrete(0))", f"actions Discrete(num_actions=0) {NO_ACTION}"),
    ("world(action=jf.Discrete(-2))", NO_ACTION),
    ("world(action=jf.Discrete(2.5))", NO_ACTION),
    ("world(action=jf.Discrete('2'))", NO_ACTION),
    ("world(action=jf.Box(np.array([-np.inf]), np.ones(1)))", NO_ACTION),
    ("world(action=jf.Box(-np.ones(1), np.array([np.nan])))", NO_ACTION),
    ("world(action=jf.Box(np.ones(1), -np.ones(1)))", NO_ACTION),
    ("world(action=jf.Box(np.zeros(2), np.array([1.0, 0.0])))", NO_ACTION),
    ("world(action=jf.Box(-np.ones(1), np.ones(2)))", NO_ACTION),
    ("world(action=jf.Box(np.zeros(0), np.zeros(0)))", NO_ACTION),
    ("world(action=jf.Box([-1.0], [1.0]))", f"actions Box(low=[-1.0], high=[1.0]) {NO_ACTION}"),
    ("world(action=jf.Box(-1.0, 1.0))", NO_ACTION),
    ("world(action=jf.Box(np.array(['a']), np.array(['b'])))", NO_ACTION),
    ("world(limit=0)", "bad: max_episode_steps=0: write a whole number of at least 1"),
    ("world(limit=-5)", "max_episode_steps=-5: write a whole number"),
    ("world(limit=2.5)", "max_episode_steps=2.5: write a whole number"),
    ("world(limit='50')", "max_episode_steps='50': write a whole number"),
    ("world(shortest_episode=0)", "shortest_episode=0: write a whole number"),
    ("world(spec_obs=(2,))", f"its spec has an observation 2: {NO_OBS}"),
    ("world(spec_obs=jax.ShapeDtypeStruct((2,), float))", "dtype=float64): write jax.ShapeDtypeStruct"),
    ("world(spec_obs=jax.ShapeDtypeStruct((2,), jnp.complex64))", "dtype=complex64): write jax.ShapeDtypeStruct"),
    ("world(spec_obs=None)", f"its spec has no numbers to observe: {NO_OBS}"),
    ("world(spec_obs={'action_mask': jax.ShapeDtypeStruct((2,), bool)})", f"no numbers to observe: {NO_OBS}"),
    ("world(spec_obs=jax.ShapeDtypeStruct((0,), jnp.float32))", f"no numbers to observe: {NO_OBS}"),
    (
        "world(spec_obs={'x': OBS, 'action_mask': jax.ShapeDtypeStruct((3,), bool)})",
        "action_mask has shape [3]: write one",
    ),
    # reset
    ("world(sample_params=fail)", "sample_params failed: RuntimeError: no such"),
    ("world(reset=fail)", "reset failed: RuntimeError: no such"),
    ("world(reset=silent)", "reset failed: AssertionError"),
    ("world(reset=lambda key: (0, jnp.zeros(2)))", "reset failed: TypeError"),
    ("world(reset=lambda key, params: jnp.zeros(2))", "reset must return (state, observation)"),
    ("world(reset=lambda key, params: None)", "reset must return (state, observation)"),
    ("world(obs=lambda: jnp.zeros(3))", "reset gives an observation float32[3], but its spec has float32[2]"),
    ("world(obs=lambda: jnp.zeros(2, jnp.int32))", "reset gives an observation int32[2], but its spec has float32[2]"),
    ("world(obs=lambda: {'a': jnp.zeros(2)})", "reset gives an observation {a: float32[2]}, but its spec"),
    ("world(obs=lambda: 'hello')", "reset failed: TypeError"),
    (f"world(obs=lambda: jnp.full(2, {NAN}))", "reset gives a NaN or an infinity in its observation"),
    ("world(obs=lambda: jnp.array([0.0, jnp.inf]))", "reset gives a NaN or an infinity"),
    # step
    ("world(step=lambda *args: fail())", "step failed: RuntimeError: no such"),
    ("world(after=lambda state: 1 if state > 0 else 2)", "step failed: TracerBoolConversionError"),
    ("world(step=lambda state, action: state)", "step failed: TypeError"),
    ("world(step=lambda *args: 3)", "step must return (state, jaxrl_fast.Timestep)"),
    ("world(step=lambda s, a, k: (s, jnp.zeros(2), 0.0, False, {}))", "step must return (state, jaxrl_fast.Timestep)"),
    ("world(step=lambda s, a, k: (s, (1, 2)))", "step must return (state, jaxrl_fast.Timestep)"),
    ("world(after=lambda state: jnp.zeros(3, jnp.int32))", "step gives a state int32[3], but reset has int32[]"),
    ("world(after=lambda state: state + 0.5)", "step gives a state float32[], but reset has int32[]"),
    ("world(after=lambda state: (state, state))", "step gives a state (int32[], int32[]), but reset has int32[]"),
    ("world(next_obs=lambda: jnp.zeros(3))", "step gives a next_obs float32[3], but its spec has float32[2]"),
    (
        "world(next_obs=lambda: {'x': jnp.zeros(2)})",
        "step gives a next_obs {x: float32[2]}, but its spec has float32[2]",
    ),
    ("world(next_obs=lambda: jnp.zeros(2, bool))", "step gives a next_obs bool[2], but its spec has float32[2]"),
    ("world(reward=lambda: jnp.zeros(1))", "step gives reward float32[1]: write one real number, shape []"),
    ("world(reward=lambda: jnp.complex64(0))", "step gives reward complex64[]: write one real number"),
    ("world(reward=lambda: jnp.bool_(True))", "step gives reward bool[]: write one real number"),
    ("world(reward=lambda: None)", "step gives reward None: write one real number"),
    ("world(reward=lambda: {'a': 0.0})", "step gives reward {'a': "),
    ("world(terminated=lambda: jnp.float32(0))", "step gives terminated float32[]: write one bool, shape []"),
    ("world(terminated=lambda: jnp.zeros(1, bool))", "step gives terminated bool[1]: write one bool, shape []"),
    ("world(truncated=lambda: jnp.int32(0))", "step gives truncated int32[]: write one bool, shape []"),
    ("world(truncated=lambda: None)", "step gives truncated None: write one bool, shape []"),
]
"""What the function of ``env.make`` returns."""


def write_worlds(folder: Path, made: str = "world()") -> None:
    (folder / "bad.py").write_text(f"{WORLDS}\ndef make(): return {made}\n")
    (folder / "no_python.py").write_text("this is no Python\n")
    (folder / "exits.py").write_text("raise SystemExit(3)\n")


@pytest.mark.parametrize(("name", "expected"), NAMED, ids=[name for name, _ in NAMED])
def test_a_bad_name_of_a_world(commands, tmp_path, name: str, expected: str):
    write_worlds(tmp_path)
    assert expected in refused(commands, tmp_path, "train", "env=custom", f"env.make={name}", "total_steps=1000")


@pytest.mark.parametrize(("made", "expected"), MADE, ids=[made for made, _ in MADE])
def test_a_bad_world(commands, tmp_path, made: str, expected: str):
    write_worlds(tmp_path, made)
    assert expected in refused(commands, tmp_path, "train", "env=custom", "env.make=bad.make", "total_steps=1000")


def newest(folder: Path) -> Path:
    return max((folder / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name))


def largest(folder: Path) -> Path:
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda path: path.stat().st_size)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def write(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


DAMAGES = {
    "description truncated": ("description.json", truncate, "is damaged"),
    "description no JSON": ("description.json", write(b"steps = 200"), "is damaged"),
    "description empty": ("description.json", write(b""), "is damaged"),
    "description a list": ("description.json", write(b"[1]"), "is damaged"),
    "description binary": ("description.json", write(bytes(range(256))), "is damaged"),
    "description too deep": ("description.json", write(b"[" * 100_000), "is damaged"),
    "description flipped": ("description.json", flip, "is damaged"),
    "description of another version": (
        "description.json",
        lambda path: edit(path, format=99),
        "has format 99, this version of jaxrl_fast reads format 1: resume it with the version that wrote it",
    ),
    "description a folder": ("description.json", lambda path: (delete(path), path.mkdir()), "is damaged"),
    "state truncated": ("state", lambda path: truncate(largest(path / "d")), "is damaged (state/d/"),
    "state flipped": ("state", lambda path: flip(largest(path / "d")), "is damaged (state/d/"),
    "a file of state deleted": ("state", lambda path: delete(largest(path / "d")), "No such file"),
    "state deleted": ("state", delete, "is damaged"),
    "state empty": ("state", lambda path: (delete(path), path.mkdir()), "is damaged"),
    "state's manifest deleted": ("state/manifest.ocdbt", delete, "is damaged"),
    "state's metadata no JSON": ("state/_METADATA", write(b"{"), "is damaged"),
    "state's metadata deleted": ("state/_METADATA", delete, "is damaged"),
    "replay flipped": ("replay", lambda path: flip(largest(path)), "is damaged (replay/"),
    "replay truncated": ("replay", lambda path: truncate(largest(path)), "is damaged (replay/"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint(commands, made, tmp_path, name: str):
    part, damage, expected = DAMAGES[name]
    shutil.copytree(made / "run", tmp_path / "run")
    damage(newest(tmp_path) / part)
    said = refused(commands, tmp_path, "train", "resume=run", "total_steps=400")
    assert expected in said
    assert "run/checkpoints/200" in said
    assert "has format" in said or "resume another, such as resume=run/checkpoints/180" in said


OTHERS = [
    ("algo=ppo", "algo was sac in run/checkpoints/200 and is ppo"),
    ("env.id=reward", "env.id was action_continuous in run/checkpoints/200 and is reward"),
    ("env=pendulum", "env was probe in run/checkpoints/200 and is pendulum"),
    ("env=cartpole algo=ppo", "env was probe in run/checkpoints/200 and is cartpole"),
    ("num_envs=8", "num_envs was 4 in run/checkpoints/200 and is 8"),
    ("num_seeds=2", "num_seeds was 1 in"),
    ("seed=3", "seed was 0 in"),
    ("overlap=sampling", "overlap was none in"),
    ("precision=bf16", "precision was f32 in"),
    ("algo.policy_hidden=[16]", "algo.policy_hidden was [8] in run/checkpoints/200 and is [16]"),
    ("algo.critic_hidden=[8,8]", "algo.critic_hidden was [8] in run/checkpoints/200 and is [8, 8]"),
    ("algo.buffer_size=800", "algo.buffer_size was 400 in"),
    ("algo.clip_range=0.1", "it belongs to algo=ppo"),
]


@pytest.mark.parametrize(("words", "expected"), OTHERS, ids=[words for words, _ in OTHERS])
def test_a_checkpoint_of_another_run(commands, made, tmp_path, words: str, expected: str):
    shutil.copytree(made / "run", tmp_path / "run")
    said = refused(commands, tmp_path, "train", "resume=run", "total_steps=400", *words.split())
    assert expected in said


POLICIES = {
    "params truncated": ("policy/params.msgpack", truncate, "params.msgpack is damaged"),
    "params empty": ("policy/params.msgpack", write(b""), "params.msgpack is damaged"),
    "params of something else": ("policy/params.msgpack", write(b"\x93\x01\x02\x03"), "params.msgpack is damaged"),
    "params text": ("policy/params.msgpack", write(b"hello, world"), "params.msgpack is damaged"),
    "params bytes": ("policy/params.msgpack", write(bytes(range(256))), "params.msgpack is damaged"),
    "params too much": (
        "policy/params.msgpack",
        lambda p: p.write_bytes(p.read_bytes() * 2),
        "params.msgpack is damaged",
    ),
    "params a folder": ("policy/params.msgpack", lambda p: (delete(p), p.mkdir()), "holds no policy (Is a directory)"),
    "params deleted": ("policy/params.msgpack", delete, "holds no policy (No such file"),
    "policy deleted": ("policy", delete, "holds no policy"),
    "policy.json truncated": ("policy/policy.json", truncate, "policy.json is damaged"),
    "policy.json no JSON": ("policy/policy.json", write(b"algo: sac"), "policy.json is damaged"),
    "policy.json a list": ("policy/policy.json", write(b"[1]"), "policy.json has format None"),
    "policy.json binary": ("policy/policy.json", write(bytes(range(256))), "policy.json is damaged"),
    "policy.json deep": ("policy/policy.json", write(b"[" * 100_000), "policy.json is damaged"),
    "policy.json without a spec": ("policy/policy.json", write(b'{"format": 1}'), "policy.json cannot be used"),
    "policy.json with an odd spec": ("policy/policy.json", lambda p: edit(p, spec=3), "policy.json cannot be used"),
    "policy.json of another algorithm": (
        "policy/policy.json",
        lambda p: edit(p, made_by={**json.loads(p.read_text())["made_by"], "algo": "a2c"}),
        "this version has no algo=a2c",
    ),
    "policy.json with other networks": (
        "policy/policy.json",
        lambda p: edit(p, made_by={**json.loads(p.read_text())["made_by"], "options": {"policy_hidden": [9]}}),
        "does not fit",
    ),
    "policy.json with odd options": (
        "policy/policy.json",
        lambda p: edit(p, made_by={**json.loads(p.read_text())["made_by"], "options": {"colour": "red"}}),
        "policy.json cannot be used: TypeError",
    ),
    "policy of another version": ("policy/policy.json", lambda p: edit(p, format=99), "has format 99"),
    "config.yaml deleted": ("config.yaml", delete, "run holds no run"),
    "config.yaml no YAML": ("config.yaml", write(b"a: [1\n"), "is not YAML"),
    "config.yaml of another environment": (
        "config.yaml",
        lambda p: p.write_text(p.read_text().replace("action_continuous", "dictionary")),
        "run/policy was trained on probe action_continuous",
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_damaged_policy(commands, made, tmp_path, name: str):
    part, damage, expected = POLICIES[name]
    shutil.copytree(made / "run", tmp_path / "run")
    damage(tmp_path / "run" / part)
    assert expected in refused(commands, tmp_path, "evaluate", "run", "episodes=2")


RUN_FOLDERS = {
    "checkpoints without config.yaml": (
        lambda run: [delete(run / "config.yaml"), delete(run / "metrics.csv")],
        [*SMALL, "run_dir=run"],
        "run_dir=run holds a run already: write resume=run, or another run_dir",
    ),
    "a temperature of 0": (lambda run: None, [*SMALL, "algo.initial_temperature=0"], "write a positive number"),
    "metrics.csv of another kind": (
        lambda run: write(b"a,b\n1,2\n")(run / "metrics.csv"),
        ["resume=run", "total_steps=400"],
        "metrics.csv is not the table that a run writes",
    ),
    "metrics.csv binary": (
        lambda run: write(bytes(range(256)))(run / "metrics.csv"),
        ["resume=run", "total_steps=400"],
        "metrics.csv is not the table that a run writes",
    ),
    "evals.csv of another kind": (
        lambda run: write(b"hello\n")(run / "evals.csv"),
        ["resume=run", "total_steps=400"],
        "evals.csv is not the table that a run writes",
    ),
}


@pytest.mark.parametrize("name", RUN_FOLDERS)
def test_a_damaged_run_folder(commands, made, tmp_path, name: str):
    damage, words, expected = RUN_FOLDERS[name]
    shutil.copytree(made / "run", tmp_path / "run")
    damage(tmp_path / "run")
    assert expected in refused(commands, tmp_path, "train", *words)


def test_what_does_not_fit_into_memory(capsys):
    def run(words: list[str]) -> int:
        raise JaxRuntimeError(words[0])

    assert cli.main("train", run, ["RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."]) == 2
    assert "does not fit into memory: write a smaller num_envs" in capsys.readouterr().err
    with pytest.raises(JaxRuntimeError):
        cli.main("train", run, ["INTERNAL: a bug"])


@pytest.mark.parametrize(
    ("algorithm", "obs"),
    [
        (jf.ppo(policy_hidden=(4,) * 5), OBS),
        (jf.ppo(recurrent_size=4, num_minibatches=1), OBS),
        (jf.ppo(policy_hidden=(4,)), (OBS, OBS)),
    ],
    ids=["deep", "recurrent", "tuple"],
)
def test_a_good_policy_is_not_refused(tmp_path, algorithm: jf.Algorithm, obs: Any):
    spec = jf.EnvSpec("world", obs, jf.Discrete(2))
    agent = algorithm.build(spec, 5)
    parts = {name: agent.parts[name].init(jax.random.key(1)).params for name in agent.acting_parts}
    made_by = {"algo": "ppo", "options": algorithm.options, "num_envs": 5, "normalize_observations": True}
    policy = make_policy(spec, agent, PolicyParams(parts, init_stats(obs)), made_by)
    jf.save_policy(policy, tmp_path)
    loaded = jf.load_policy(tmp_path)
    assert same_spaces(loaded.spec, spec)
    seen = jax.tree.map(lambda s: jnp.ones((3, *s.shape), s.dtype), obs)
    actions = [
        p.act(p.params, p.initial_carry(3), seen, jnp.zeros(3, bool), jax.random.key(0))[0] for p in (policy, loaded)
    ]
    np.testing.assert_array_equal(*actions)
    for ours, theirs in zip(jax.tree.leaves(policy.params), jax.tree.leaves(loaded.params), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_traceback_on_request(commands, tmp_path):
    (tmp_path / "bad.py").write_text(WORLDS + "def make(): fail()")
    ended = commands.run(tmp_path, "train", "env=custom", "env.make=bad.make", HYDRA_FULL_ERROR="1")
    assert ended.status == 2
    assert ended.err.startswith("Traceback")
    assert 'raise RuntimeError("no such\\nfile")' in ended.err
    assert ended.err.splitlines()[-1] == "jaxrl_fast: error: env.make=bad.make failed: RuntimeError: no such file"


RESTORE = """
import builtins, marshal, pathlib, pickle
from jaxrl_fast import checkpoint_files, checkpointing, load_policy

def restore():
    description = checkpoint_files.read_description(checkpointing.find(pathlib.Path("run")))
    assert checkpoint_files.read_arrays(description)
    load_policy("run/policy")

def refuse(*args, **kwargs):
    raise AssertionError("code was read")

restore()  # imports what it needs, which is code
pickle.load = pickle.loads = pickle.Unpickler = pickle._loads = marshal.load = marshal.loads = refuse
builtins.eval = builtins.exec = builtins.compile = refuse
restore()
print("restored")
"""


def test_loading_executes_nothing(commands, made):
    ended = commands.run(made, "python", RESTORE)
    assert (ended.status, ended.out) == (0, "restored\n"), ended.err


class Bomb:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("ran",)


BOMBS = [
    ("train", "run/checkpoints/200/description.json"),
    ("train", "run/checkpoints/200/state/_METADATA"),
    ("train", "run/checkpoints/200/state/manifest.ocdbt"),
    ("train", "run/checkpoints/200/state/largest"),
    ("train", "run/checkpoints/200/replay/largest"),
    ("evaluate", "run/policy/policy.json"),
    ("evaluate", "run/policy/params.msgpack"),
    ("evaluate", "run/config.yaml"),
]


@pytest.mark.parametrize(("command", "name"), BOMBS)
def test_a_pickle_in_place_of_a_file_is_not_run(commands, made, tmp_path, command: str, name: str):
    shutil.copytree(made / "run", tmp_path / "run")
    path = tmp_path / name
    path = largest(path.parent) if path.name == "largest" else path
    assert path.exists()
    path.write_bytes(pickle.dumps(Bomb()))
    words = ["resume=run", "total_steps=400"] if command == "train" else ["run", "episodes=2"]
    refused(commands, tmp_path, command, *words)  # nothing is in the folder that was not there: no "ran"
