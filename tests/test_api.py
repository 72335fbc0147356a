"""The Python API; every snippet of the design and the README runs."""

import inspect
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_commands import Commands

import jaxrl_fast as jf
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.commands.run_config import compose, make_algorithm, with_defaults
from jaxrl_fast.numerics.losses import clipped_surrogate
from jaxrl_fast.numerics.optimizers import has_choices
from jaxrl_fast.offline.collecting import collect_episodes
from jaxrl_fast.settings.run import of_program, repeated_by
from jaxrl_fast.settings.schema import ConfigError, EvalOptions, read_value
from jaxrl_fast.settings.signatures import algo_keys
from jaxrl_fast.training.run_folder import read_run
from jaxrl_fast.views.report_page import command_lines


@pytest.fixture(scope="module")
def env():
    return jf.make_env("pendulum", num_envs=4)


@pytest.fixture(scope="module")
def algo():
    return small_sac()


def small_sac(**options):
    sizes = dict(
        policy_hidden=(16,),
        critic_hidden=(16,),
        batch_size=16,
        buffer_size=1000,
        updates_per_tick=2,
    )
    return jf.sac(**{**sizes, "warmup_steps": 4, **options})


def test_learn_in_one_call_writes_nothing(env, algo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = []
    result = jf.learn(
        env, algo, total_steps=400, num_seeds=2, eval_episodes=3, on_metrics=rows.append
    )
    assert result.history == rows
    assert {row["kind"] for row in rows} == {"train", "eval"}
    assert result.summary["env_steps"] == 400
    assert result.summary["eval_episodes"] == 6 and len(result.summary["eval_return_seeds"]) == 2
    assert "eval_return_ci95" not in result.summary  # of three seeds and more
    assert result.policy(np.zeros(3, np.float32)).shape == (1,)
    assert list(tmp_path.iterdir()) == []


def test_train_step_jits_scans_and_shows_its_shapes(env, algo):
    init, train_step = jf.make_train_step(env, algo)
    state = jax.eval_shape(init, jax.random.key(0))
    after, metrics = jax.eval_shape(train_step, state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    scan = jax.jit(
        lambda s: jax.lax.scan(lambda s, _: train_step(s), s, length=3), donate_argnums=0
    )
    state, metrics = scan(init(jax.random.key(0)))
    assert int(state.tick) == 3
    assert metrics["learn/critic/critic_loss"].shape == (3,)


def test_seeds_and_learning_rates_in_one_compilation(env, algo):
    init, train_step = jf.make_train_step(env, algo)
    keys = jax.random.split(jax.random.key(0), 3)
    step = jax.jit(jax.vmap(train_step), donate_argnums=0)
    states, _ = step(jax.vmap(init)(keys))
    rates = jnp.array([1e-4, 1e-3, 0.0])
    states = jax.vmap(lambda k, lr: init(k, algo.hyper._replace(learning_rate=lr)))(keys, rates)
    before = jax.tree.map(np.asarray, states.channels["actor"].params["policy"])
    for _ in range(3):
        states, _ = step(states)
    after = states.channels["actor"].params["policy"]
    moved = [bool(np.any(a[i] != b[i])) for i in range(3) for a, b in [first_leaves(before, after)]]
    assert moved == [True, True, False]
    assert step._cache_size() == 1


def first_leaves(*trees):
    return [np.asarray(jax.tree.leaves(tree)[-1]) for tree in trees]


def test_a_loss_of_ones_own_is_used(env):
    seen = []

    def my_critic_loss(q, target):
        seen.append(q.shape)
        return jnp.abs(q - target)

    init, train_step = jf.make_train_step(env, small_sac(critic_loss=my_critic_loss))
    jax.eval_shape(train_step, jax.eval_shape(init, jax.random.key(0)))
    assert set(seen) == {()}


def test_a_world_of_ones_own():
    spec = jf.EnvSpec(
        "walk", jax.ShapeDtypeStruct((1,), jnp.float32), jf.Discrete(2), max_episode_steps=10
    )

    def reset(key, params):
        position = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return position, position

    def step(position, action, key):
        position = position + 0.2 * (2.0 * action - 1.0)
        reward = -jnp.abs(position[0])
        no = jnp.zeros((), bool)
        return position, jf.Timestep(position, position, reward, no, no)

    env = jf.vectorize(jf.Env(spec, reset, step), num_envs=16)
    algo = jf.ppo(rollout_length=20, learning_rate=3e-3, policy_hidden=(32,), value_hidden=(32,))
    result = jf.learn(env, algo, total_steps=20_000, eval_episodes=32)
    returns = jf.evaluate_policy(result.policy, env, jax.random.key(5), episodes=64)
    assert returns.shape == (64,)
    assert returns.mean() > -3.0


@pytest.fixture(scope="module")
def saved(env, algo, tmp_path_factory):
    """Return the folder of a run and its result."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, jf.learn(env, algo, total_steps=80, eval_episodes=2, run_dir=folder)


def test_a_saved_policy_acts_the_same_without_its_run(env, saved):
    folder, result = saved
    policy = jf.load_policy(folder)  # as `evaluate` takes it; `folder / "policy"` is the same
    for obs in np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32):
        np.testing.assert_array_equal(policy(obs), result.policy(obs))
    returns = [
        jf.evaluate_policy(p, env, jax.random.key(1), episodes=4) for p in (policy, result.policy)
    ]
    np.testing.assert_array_equal(*returns)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "policy.json").unlink(), "holds no policy"),
        (lambda folder: (folder / "policy.json").write_text("{"), "is damaged"),
        (lambda folder: (folder / "params.msgpack").write_bytes(b"\x81"), "is damaged"),
    ],
)
def test_a_damaged_policy_is_refused_in_one_line(saved, tmp_path, damage, words):
    shutil.copytree(saved[0] / "policy", tmp_path / "policy")
    damage(tmp_path / "policy")
    with pytest.raises(ValueError, match=words) as error:
        jf.load_policy(tmp_path / "policy")
    assert "\n" not in str(error.value)


def test_setup_after_jax_has_started_fails_clearly():
    code = "import jax, jaxrl_fast as jf; jax.devices(); jf.setup(cpu_devices=2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "before JAX is used" in done.stderr


@pytest.mark.parametrize(("where", "kept"), [("cache", True), ("off", False)])
def test_compiled_programs_are_kept_unless_switched_off(tmp_path, where, kept):
    code = "import jax, jaxrl_fast as jf; jf.setup(); jax.jit(lambda x: x + 1)(1.0)"
    environment = {**os.environ, "JAXRL_FAST_CACHE": where, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert any(tmp_path.glob("cache/xla-*/*")) == kept
    assert kept or list(tmp_path.iterdir()) == []


def test_setup_makes_the_devices_and_importing_changes_nothing():
    code = (
        "import jax; before = dict(jax.config.values)\n"
        "import jaxrl_fast as jf; assert dict(jax.config.values) == before\n"
        "jf.setup(cpu_devices=3, cache=False); print(len(jax.devices()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["3"], done.stderr


@pytest.mark.parametrize(
    "algo", [small_sac(), jf.ppo(recurrent_size=8)], ids=["sac", "recurrent ppo"]
)
def test_many_seeds_start_without_a_decomposition(env, algo):
    """Two LAPACK calls under vmap in one program hang a CPU of two cores (JAX 0.10.2)."""
    init, _ = jf.make_train_step(env, algo)
    program = jax.jit(jax.vmap(init)).lower(jax.random.split(jax.random.key(0), 3)).as_text()
    assert "lapack" not in program


RATES = [
    (name, rate, key)
    for name in ALGORITHMS
    for rate, key in algo_keys(name).items()
    if key.type is Any or key.type is float
]


@pytest.mark.parametrize(
    ("name", "rate", "key"), RATES, ids=[f"{name}-{rate}" for name, rate, _ in RATES]
)
def test_library_and_command_refuse_the_same_numbers_with_the_same_words(name, rate, key):
    least, most = key.minimum, key.maximum
    wrong = ["fast", float("nan"), float("inf"), None, True]
    wrong += (
        []
        if least is None
        else [least - 1, f"linear:{least}:{least - 1}", f"cosine:{least - 1}:{least}"]
    )
    wrong += [] if most is None else [most + 1, f"linear:{most + 1}:{most}"]
    for value in wrong:
        with pytest.raises(ConfigError) as command:
            read_value(rate, value, key)
        with pytest.raises(ValueError) as library:
            ALGORITHMS[name](**{rate.removeprefix("algo."): value})
        said, instead = (str(error.value).partition(": write ")[2] for error in (library, command))
        assert said == instead, (value, said, instead)
    assert (
        least is not None
        or rate == "algo.target_entropy_per_action"
        or rate.startswith("algo.value_")
    )


def test_a_function_of_progress_is_a_schedule(env):
    rows = []
    algo = small_sac(learning_rate=lambda progress: 1e-3 if progress < 0.5 else 1e-4)
    state = jf.learn(
        env, algo, total_steps=4e2, eval_episodes=np.int64(2), on_metrics=rows.append
    ).state
    rates = [row["rate/learning_rate"] for row in rows if row["kind"] == "train"]
    assert (
        rates[0] == pytest.approx(1e-3)
        and rates[-1] == pytest.approx(1e-4)
        and len(set(rates)) <= 3
    )
    assert rows[-1]["env_steps"] == 400 and int(state.tick) == 100
    with pytest.raises(
        ValueError, match=r"learning_rate=function from 1.0 to -1.0.*: write a number of at least 0"
    ):
        small_sac(learning_rate=lambda progress: 1 - 2 * progress)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (dict(total_steps=1.5), "total_steps=1.5: write a whole number"),
        (dict(total_steps="100"), "total_steps='100': write a whole number"),
        (dict(total_steps=True), "total_steps=True: write a whole number"),
        (dict(total_steps=None), "total_steps=None: write a whole number"),
        (dict(total_steps=float("nan")), "total_steps=nan: write a whole number"),
        (dict(total_steps=0), "total_steps=0: write a number of at least 1"),
        (dict(num_seeds=0), "num_seeds=0: write a number of at least 1"),
        (dict(seed=-1), "seed=-1: write a number of at least 0"),
        (dict(seed=2**32), "seed=4294967296: write a number of at most 4294967295"),
        (dict(eval_episodes=0), "eval_episodes=0: write a number of at least 1"),
        (dict(eval_every=-1), "eval_every=-1: write a number of at least"),
        (dict(learners=2.5), "learners=2.5: write a whole number"),
        (dict(devices=0), "devices=0: write a number of at least 1"),
    ],
    ids=str,
)
def test_a_wrong_number_in_a_call_ends_in_one_line(env, algo, wrong, words):
    with pytest.raises(ValueError, match=words):
        jf.learn(env, algo, **{"total_steps": 100, **wrong})


def test_resuming_needs_the_same_options_of_the_environment(tmp_path, algo):
    def train(steps, resume=None, **options):
        env = jf.make_env("pendulum", num_envs=4, **options)
        jf.learn(
            env, algo, total_steps=steps, eval_episodes=1, run_dir=tmp_path / "run", resume=resume
        )

    train(8, g=10.0)
    with pytest.raises(
        ValueError,
        match=r"env.options.g was 10.0 in .* and is 9.0",
    ):
        train(16, tmp_path / "run", g=9.0)
    train(16, tmp_path / "run", g=10.0)


def test_a_path_may_be_a_text(env, algo, tmp_path):
    policy = jf.learn(env, algo, total_steps=4, eval_episodes=1).policy
    jf.save_policy(policy, str(tmp_path / "name"))
    assert jf.load_policy(str(tmp_path / "name")).spec.name == policy.spec.name


CHOICES = [
    ("overlap", "foo", "one of none, sampling, actor_critic, all"),
    ("overlap", None, "one of none, sampling, actor_critic, all"),
    ("average", "params", "one of gradients, parameters, turns"),
    ("nan", "ignore", "one of stop, skip"),
    ("log", "wandbx", "one of tensorboard, wandb, none"),
    ("eval_device", "gpu", "one of cpu, same"),
    ("eval_beside", "yes", "true or false"),
    ("eval_share", 1, "true or false"),
    ("debug", "x", "true or false"),
    ("checkpoints", 5, "Checkpoints(...)"),
    ("on_metrics", "print", "a function"),
    ("should_stop", None, "a function"),
]


@pytest.mark.parametrize(("name", "value", "instead"), CHOICES)
def test_learn_refuses_what_the_command_refuses_before_anything_is_compiled(
    env, algo, name, value, instead
):
    def compiled(*args: Any) -> Any:
        raise AssertionError("compiled")

    words = re.escape(f"{name}={value}: write {instead}")
    with pytest.raises(ValueError, match=words):
        jf.learn(env, algo._replace(build=compiled), total_steps=8, **{name: value})
    if name in ("overlap", "average"):
        with pytest.raises(ValueError, match=words):
            jf.make_train_step(env, algo._replace(build=compiled), **{name: value})
    if name in ("overlap", "average", "nan", "log") and value is not None:
        with pytest.raises(
            ConfigError, match=f"{name}={value}: write {instead.removesuffix(', all')}"
        ):
            compose([f"{name}={value}"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"every": -1}, "checkpoint.every=-1: write a number of at least 1"),
        ({"every": 2.5}, "checkpoint.every=2.5: write a whole number or null"),
        ({"keep": -2}, "checkpoint.keep=-2: write a number of at least 0"),
        ({"replay": "yes"}, "checkpoint.replay=yes: write true or false"),
    ],
)
def test_checkpoints_are_checked_with_the_words_of_the_command(values, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        jf.Checkpoints(**values)
    ((name, value),) = values.items()
    with pytest.raises(ConfigError, match=re.escape(said)):
        compose([f"checkpoint.{name}={value}"])
    assert jf.Checkpoints(every=1e3).every == 1000


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_choice_of_an_algorithm_is_checked_by_command_and_library(name):
    found = 0
    for key, declared in algo_keys(name).items():
        if has_choices(declared.type):
            found += 1
            with pytest.raises(ValueError) as ours:
                ALGORITHMS[name](**{key.removeprefix("algo."): "foo"})
            with pytest.raises(ConfigError) as theirs:
                read_value(key, "foo", declared)
            assert str(theirs.value).removesuffix(" or null") == f"algo.{ours.value}"
    assert found >= 1
    with pytest.raises(ValueError, match="precision=f64: write one of f32, bf16"):
        ALGORITHMS[name](precision="f64")


def test_a_placement_is_a_name_or_a_function(env, algo):
    with pytest.raises(ValueError, match="placement=3: write one of fused"):
        jf.learn(env, algo, total_steps=8, placement=3)


class Simulator(gymnasium.Env):
    """Counts its instances: in all, alive, and most alive at once."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    made = alive = most = 0

    def __init__(self):
        Simulator.made, Simulator.alive = Simulator.made + 1, Simulator.alive + 1
        Simulator.most = max(Simulator.most, Simulator.alive)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        reward = float(self.np_random.uniform())
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), reward, False, self.t >= 5, {}

    def close(self):
        Simulator.alive -= 1


@pytest.mark.parametrize(("every", "made", "most"), [(0, 2, 1), (10, 5, 4)])
def test_a_simulator_of_which_there_is_one_is_made_once_and_evaluations_keep_theirs(
    every, made, most
):
    Simulator.made = Simulator.alive = Simulator.most = 0
    env = jf.make_env("custom", make=Simulator, num_envs=1)
    result = jf.learn(
        env, small_sac(), total_steps=40, eval_every=every, eval_episodes=3, eval_beside=False
    )
    env.close()
    assert (Simulator.made, Simulator.most) == (made, most)
    returns = [row["eval_return_mean"] for row in result.history if row["kind"] == "eval"]
    assert len(returns) == (4 if every else 0)
    # rewards depend on the seed only: each evaluation begins with the same states
    assert len(set(returns)) <= 1
    assert (result.summary["eval_return_mean"] is None) == (every == 0)


@pytest.mark.parametrize(
    ("num_envs", "options"), [(1, {"eval_share": True}), (3, {"eval_share": True}), (3, {})]
)
def test_nothing_makes_another_simulator(num_envs, options, monkeypatch):
    """As many as asked for, after one that has the spaces, is measured where workers may help, and
    is closed.
    """
    # with one core, none helps
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    Simulator.made = Simulator.alive = Simulator.most = 0
    env = jf.make_env("custom", make=Simulator, num_envs=num_envs)
    every = {"eval_every": 12 if options else 0}
    result = jf.learn(env, small_sac(), total_steps=48, eval_episodes=4, **every, **options)
    env.close()
    assert (Simulator.made, Simulator.most, Simulator.alive) == (num_envs + 1, num_envs, 0)
    if options:
        returns = [row["eval_return_mean"] for row in result.history if row["kind"] == "eval"]
        # each evaluation begins with the same states
        assert len(returns) == 4 and len(set(returns)) == 1
        assert result.summary["eval_episodes"] == 4


def test_a_whole_command_makes_no_other_simulator(tmp_path, commands):
    """Neither the kind of actions, nor the workers, nor the command for pictures costs an instance."""
    imports = "import gymnasium\nimport numpy as np\n"
    register = "gymnasium.register('Simulator-v0', 'simulators:Simulator')\n"
    (tmp_path / "simulators.py").write_text(
        f"{imports}\n{inspect.getsource(Simulator)}\n{register}"
    )
    small = [
        "algo.policy_hidden=[4]",
        "algo.critic_hidden=[4]",
        "algo.warmup_steps=8",
        "algo.buffer_size=64",
    ]
    words = [
        "env=gymnasium",
        "env.id=simulators:Simulator-v0",
        "total_steps=32",
        "log=none",
        "algo.batch_size=4",
        *small,
    ]

    def instances(command: str, *line: str) -> tuple[str, list[str]]:
        program = "import os, sys; sys.path.insert(0, '.'); os.sched_getaffinity = lambda process: {0}  # one core\n"
        program += f"from jaxrl_fast import {command} as command"
        lines = [
            program,
            "from simulators import Simulator as S",
            f"assert command.main({list(line)}) == 0",
        ]
        ended = commands.run(
            tmp_path, "python", *lines, "print('instances', S.made, S.most, S.alive)", trains=True
        )
        assert ended.status == 0, ended.err
        out, _, counts = ended.out.partition("instances ")
        return out, counts.split()

    out, counts = instances("train", *words, "eval.every=0", "num_envs=1", "run_dir=one")
    assert counts == ["2", "1", "0"] and "not evaluated (eval.every=0), after 32 steps" in out
    assert "sac (algo not given: chosen for continuous actions)" in out
    out, counts = instances(
        "train", *words, "eval.share=true", "eval.episodes=2", "num_envs=3", "run_dir=three"
    )
    assert (
        counts == ["4", "3", "0"]
        and "running episodes were truncated for evaluations (eval.share)" in out
    )
    assert instances("evaluate", "three", "episodes=3")[1][:2] == ["2", "1"]


def test_a_run_without_evaluations(env, algo, tmp_path):
    def evaluate(params, fresh):
        raise AssertionError("evaluated")

    result = jf.learn(
        env,
        algo,
        total_steps=40,
        num_seeds=2,
        eval_every=0,
        evaluator=evaluate,
        run_dir=tmp_path / "a",
    )
    assert result.summary["eval_episodes"] == 0 and not [
        row for row in result.history if row["kind"] == "eval"
    ]
    assert jf.load_policy(tmp_path / "a").spec.name == env.spec.name
    resumed = jf.learn(
        env,
        algo,
        total_steps=80,
        num_seeds=2,
        eval_every=0,
        resume=tmp_path / "a",
        evaluator=evaluate,
    )
    assert resumed.summary["env_steps"] == 80


RUN = """import sys, jaxrl_fast as jf
sys.path.insert(0, "")
env = jf.make_env({env}, num_envs=4)
algorithm = jf.{algo}
stopped = []
def stop():
    stopped.append(0)
    return {stops} and len(stopped) > 8
jf.learn(env, algorithm, total_steps=960, seed=3, eval_episodes=2, run_dir="{folder}", log="none", should_stop=stop)"""
RUNS = {
    "ppo": (
        "'cartpole'",
        "ppo(rollout_length=16, num_minibatches=2, learning_rate='linear:3e-4:0')",
    ),
    "sac": (
        "'pendulum'",
        "sac(batch_size=16, warmup_steps=100, policy_hidden=(16,), precision='bf16')",
    ),
    "ppo, a world of one's own": (
        "'custom', make=__import__('my_world').make",
        "ppo(rollout_length=16)",
    ),
    "dqn, on the host": (
        "'gymnasium', id='CartPole-v1', pool={'workers': 1}",
        "dqn(warmup_steps=100, batch_size=8)",
    ),
}


def params_of(folder: Path) -> bytes:
    return (folder / "policy" / "params.msgpack").read_bytes()


@pytest.mark.parametrize("name", RUNS)
def test_the_command_repeats_and_resumes_a_run_of_the_library(
    name: str, tmp_path: Path, commands: Commands
):
    env, algo = RUNS[name]
    (tmp_path / "my_world.py").write_text(
        "import jaxrl_fast as jf\ndef make(size=3): return jf.envs.make('probe', id='value')._replace(step_s=size)"
    )
    for folder, stops in (("whole", False), ("cut", True)):
        lines = RUN.format(env=env, algo=algo, folder=folder, stops=stops).splitlines()
        ended = commands.run(tmp_path, "python", *lines, trains=True)
        assert ended.status == 0, ended.err
    for words in (["config=whole/config.yaml", "run_dir=again"], ["resume=cut"]):
        ended = commands.run(tmp_path, "train", *words, trains=True)
        assert ended.status == 0, ended.err
    assert params_of(tmp_path / "again") == params_of(tmp_path / "whole")
    if "host" not in name:  # whose episodes begin anew
        assert params_of(tmp_path / "cut") == params_of(tmp_path / "whole")
    assert [row[1].split()[-1] for row in command_lines(read_run(tmp_path / "whole"))]
    for command in ("evaluate", "render", "export"):
        shorter = {"evaluate": "episodes=2", "render": "seconds=1", "export": "formats=jax"}[
            command
        ]
        if command != "render" or name in ("ppo", "sac"):
            assert commands.run(tmp_path, command, "whole", shorter, trains=True).status == 0


def test_a_resumed_run_of_the_library_needs_its_environment(tmp_path: Path, commands: Commands):
    lines = RUN.format(
        env="'gymnasium', id='CartPole-v1'", algo="ppo(rollout_length=16)", folder="run", stops=True
    ).splitlines()
    assert commands.run(tmp_path, "python", *lines, trains=True).status == 0
    other = commands.run(tmp_path, "train", "resume=run", "env.id=Acrobot-v1").err
    assert (
        "env.id was CartPole-v1 in run/checkpoints/" in other
        and "a resumed run needs the settings" in other
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_config_of_a_run_of_the_library_makes_its_algorithm_again(name: str, tmp_path: Path):
    factory, taken = ALGORITHMS[name], inspect.signature(ALGORITHMS[name]).parameters
    probe = "two_credit" if name in ("ippo", "mappo", "pqn_vdn") else "value"
    env = jf.make_env("probe", id=probe, num_envs=4)
    sizes = {
        "discount": 0.9,
        "learning_rate": jf.Linear(1e-3, 0.0),
        "n_step": 3,
        "layer_norm": True,
    }
    algorithm = factory(**{n: value for n, value in sizes.items() if n in taken})
    file = tmp_path / "config.yaml"
    file.write_text(config_of(env, algorithm, total_steps=1_000))
    run = compose([f"config='{file}'"])
    again = make_algorithm(with_defaults(run, env.spec))
    assert type(again) is type(algorithm) and again.hyper == algorithm.hyper
    assert again.options == {**algorithm.options, **algorithm.sizes(env.num_envs)}
    assert (run.total_steps, run.num_envs, run.eval.episodes) == (1_000, 4, 7)


def config_of(env: jf.VecEnv, algorithm: Any, total_steps: int = 64) -> str:
    run = of_program(
        env,
        algorithm,
        total_steps=total_steps,
        placement="fused",
        eval=EvalOptions(episodes=7),
        checkpoint=jf.Checkpoints(),
    )
    return repeated_by(env, algorithm, run)


def same_losses(*args: Any, **given: Any) -> Any:
    return clipped_surrogate(*args, **given)


@pytest.mark.parametrize(
    "change",
    [
        lambda env, algo: (env._replace(step=lambda *args: env.step(*args)), algo),
        lambda env, algo: (env._replace(spec=env.spec._replace(frame_stack=2)), algo),
        lambda env, algo: (
            env,
            algo._replace(build=lambda spec, num_envs: algo.build(spec, num_envs)),
        ),
        lambda env, algo: (env, jf.ppo(policy_loss=same_losses)),
        lambda env, algo: (env, jf.ppo(network=lambda spec: None)),
        lambda env, algo: (env, jf.ppo(learning_rate=lambda progress: 1e-3 * progress)),
        lambda env, algo: (jf.envs.make_vec("cartpole", num_envs=4), algo),
        lambda env, algo: (
            jf.make_env("custom", make=lambda: jf.envs.make("cartpole"), num_envs=4),
            algo,
        ),
    ],
)
def test_a_run_that_the_command_would_not_repeat_has_no_config(change: Callable[..., Any]):
    made = jf.make_env("cartpole", num_envs=4), jf.ppo()
    assert config_of(*made)
    assert config_of(*change(*made)) == ""


def test_the_config_has_rates_and_options_that_were_replaced():
    env, algo = jf.make_env("cartpole", num_envs=4), jf.ppo()
    changed = algo._replace(hyper=algo.hyper._replace(discount=0.5), num_epochs=3)
    run = config_of(env, changed)
    assert "\n  discount: 0.5\n" in run and "\n  num_epochs: 3\n" in run


class Pole(gymnasium.Wrapper):
    """A class of a user's, as Stable-Baselines3 takes it."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (
            lambda: Pole,
            'env=Pole is not made by jaxrl_fast: write jaxrl_fast.make_env("custom", make=Pole, num_envs=4)',
        ),
        (
            Pole,
            'env=Pole is not made by jaxrl_fast: write jaxrl_fast.make_env("custom", make=Pole, num_envs=4)',
        ),
        (
            lambda: "cartpole",
            "env='cartpole' is a name: write jaxrl_fast.make_env('cartpole', num_envs=64)",
        ),
        (
            lambda: jf.make_env("cartpole", num_envs=1).env,
            "env is a single environment: write jaxrl_fast.vectorize(",
        ),
    ],
)
def test_an_environment_that_is_not_vectorized_is_refused_with_what_to_write(make, what, saved):
    given, policy = make(), saved[1].policy
    calls = (
        lambda: jf.learn(given, jf.ppo(), total_steps=64),
        lambda: jf.make_train_step(given, jf.ppo()),
        lambda: jf.evaluate_policy(policy, given, jax.random.key(0)),
        lambda: jf.defaults("ppo", given, total_steps=64),
        lambda: collect_episodes(policy, given, episodes=1),
    )
    for call in calls:
        with pytest.raises(ValueError, match=re.escape(what)):
            call()


STEP = jf.ppo(rollout_length=8, num_epochs=1, num_minibatches=1)


@pytest.fixture(scope="module")
def step():
    """Environment, ``init``, jitted ``train_step`` and a state after three ticks."""
    env = jf.make_env("cartpole", num_envs=4)
    init, train_step = jf.make_train_step(env, STEP)
    state, compiled = init(jax.random.key(0)), jax.jit(train_step)
    for _ in range(3):
        state, _ = compiled(state)
    return env, init, compiled, state


def test_a_loop_of_ones_own_goes_on_from_a_file_to_the_bit(step, tmp_path):
    _, init, train_step, state = step
    jf.save_state(tmp_path / "state.npz", state)
    again = jf.load_state(tmp_path / "state.npz", init(jax.random.key(7)))
    for one, other in zip(
        *(jax.tree.leaves(train_step(s)[0]) for s in (state, again)), strict=True
    ):
        assert (one == other).all()


def test_a_loop_of_ones_own_has_the_policy_that_learn_returns(step):
    env, _, _, state = step
    key = jax.random.split(jax.random.key(0), 1)[0]  # as the first seed of a run
    init, train_step = jf.make_train_step(env, STEP)
    state = jax.lax.fori_loop(0, 3, lambda _, state: train_step(state)[0], init(key))
    own = jf.trained_policy(env, STEP, state)
    learned = jf.learn(env, STEP, total_steps=96, seed=0, eval_every=0).policy
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), own.params, learned.params
    )
    assert own.made_by == learned.made_by


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda s, init: init(0), "key=0 is not a random key: write jax.random.key(0)"),
        (
            lambda s, init: init(jax.random.split(s.key, 3)),
            "key has the shape [3]: write one key, or map",
        ),
        (
            lambda s, init: init(s.key, {"learning_rate": 1.0}),
            "hyper is a dict: write algorithm.hyper._replace(",
        ),
        (
            lambda s, init: init(s.key, jf.dqn().hyper),
            "hyper is a DqnHyper: write algorithm.hyper._replace(",
        ),
        (
            lambda s, init: init(s.key, STEP.hyper._replace(learning_rate=jf.Linear(0.0, 1.0))),
            "learning_rate of hyper is a schedule: write make_train_step(..., total_steps=...)",
        ),
        (
            lambda s, init: init(s.key, STEP.hyper._replace(learning_rate=np.ones(3))),
            "learning_rate of hyper has the shape [3]: write jax.vmap(init)",
        ),
        (
            lambda s, init: init(s.key, STEP.hyper._replace(learning_rate="x")),
            "learning_rate='x' of hyper: write a",
        ),
        (
            lambda s, init: jf.save_state("no.npz", None),
            "state is a NoneType: write the state that init(key)",
        ),
        (lambda s, init: jf.load_state(__file__, s), "test_api.py is not a file of save_state"),
        (
            lambda s, init: jf.trained_policy(jf.make_env("cartpole", num_envs=4), jf.dqn(), s),
            "the state is not of dqn: it has no 'q'",
        ),
        (
            lambda s, init: jf.trained_policy(
                jf.make_env("cartpole", num_envs=4),
                STEP,
                jax.vmap(init)(jax.random.split(s.key, 2)),
            ),
            "the state is of several seeds: write jax.tree.map(lambda x: x[seed], state)",
        ),
    ],
)
def test_wrong_arguments_of_a_loop_of_ones_own_are_named(call, line, step):
    with pytest.raises(ValueError, match=re.escape(line)):
        call(step[-1], step[1])


@pytest.mark.parametrize(
    ("algorithm", "line"),
    [
        ("ppo", "algorithm='ppo' is a name: write jaxrl_fast.ppo()"),
        (jf.ppo, "algorithm=ppo is a class: write ppo(), which makes the algorithm"),
        (None, "algorithm is a NoneType: write for example jaxrl_fast.ppo()"),
    ],
)
def test_what_is_no_algorithm_is_refused_with_what_to_write(algorithm, line):
    env = jf.make_env("cartpole", num_envs=4)
    calls = (
        lambda: jf.learn(env, algorithm, total_steps=64),
        lambda: jf.make_train_step(env, algorithm),
        lambda: jf.train_population(
            env, algorithm, total_steps=64, rates={"learning_rate": "log:1e-4:1e-2"}
        ),
    )
    for call in calls:
        with pytest.raises(ValueError, match=re.escape(line)):
            call()
    with pytest.raises(ValueError, match="env is an algorithm: write the environment first"):
        jf.learn(jf.ppo(), env, total_steps=64)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_sizes_of_layers_are_checked_by_every_algorithm(algo: str):
    hints = get_type_hints(ALGORITHMS[algo])
    names = [name for name, hint in hints.items() if hint == tuple[int, ...]]
    assert names
    for name, value in itertools.product(names, (64, (0,), (64.0,), "64", (True,))):
        wanted = (
            "whole numbers of at least 1"
            if isinstance(value, tuple)
            else "a list such as [256,256]"
        )
        with pytest.raises(ValueError, match=re.escape(f"{name}={value}: write {wanted}")):
            ALGORITHMS[algo](**{name: value})


def test_a_policy_is_refused_where_it_cannot_act(saved):
    policy, env = saved[1].policy, jf.make_env("acrobot", num_envs=2)
    with pytest.raises(
        ValueError, match="whose observations or actions have other shapes than those in Acrobot-v1"
    ):
        jf.evaluate_policy(policy, env, jax.random.key(0), episodes=2)
    for given, how in (
        (saved[1], "write result.policy"),
        ("runs/latest", r"write a policy, such as .*load_policy"),
    ):
        with pytest.raises(ValueError, match=how):
            jf.evaluate_policy(given, env, jax.random.key(0))
        with pytest.raises(ValueError, match=how):
            jf.save_policy(given, "no")


def test_a_policy_is_evaluated_in_environments_on_the_host():
    env = jf.make_env("custom", make=Pole, num_envs=2, pool={"workers": 0})
    policy = jf.learn(
        env, jf.ppo(rollout_length=8, num_minibatches=1), total_steps=32, eval_every=0
    ).policy
    returns = [
        jf.evaluate_policy(policy, env, jax.random.key(seed), episodes=5) for seed in (1, 1, 2)
    ]
    env.close()
    assert returns[0].shape == (5,) and returns[0].min() >= 8.0, "whole episodes"
    np.testing.assert_array_equal(returns[0], returns[1])
    assert (returns[0] != returns[2]).any(), "the key chooses the initial states"
