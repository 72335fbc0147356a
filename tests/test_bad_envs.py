"""User environments that break a rule: each is refused before compilation with one line that
contains the correction, and exit code 2.
"""

import re

import pytest
from many_commands import Commands, Ended, everything, refusal

import jaxrl_fast as jf

ENVS = """
import jax, jax.numpy as jnp, numpy as np, jaxrl_fast as jf

OBS = jax.ShapeDtypeStruct((2,), jnp.float32)

def env(
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
    return env()

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
"""A module of valid environments, changed by a test or a class."""

NAMED = [
    ("bad.nothing", "bad has no function 'nothing'"),
    ("bad.OBS", "bad has no function 'OBS'"),
    (
        "nowhere.make",
        "cannot import nowhere: ModuleNotFoundError: No module named 'nowhere'; run from the folder that",
    ),
    ("make", "write the function with its module, for example my_package.make"),
    ("../bad.py:env", "env.make=../bad.py:env: write the function with its module"),
    ("no_python.make", "cannot import no_python: SyntaxError"),
    ("exits.make", "cannot import exits: SystemExit: 3"),
    ("bad.fail", "env.make=bad.fail failed: RuntimeError: no such file"),
    ("bad.exits", "env.make=bad.exits failed: SystemExit: 3"),
    (
        "bad.choosy",
        "env.make=bad.choosy failed: TypeError: choosy() missing 1 required positional argument: 'size'",
    ),
    (
        "bad.GymnaxReset",
        "env.make=bad.GymnaxReset: the GymnaxReset that it returned failed: RuntimeError: no such",
    ),
    (
        "bad.GymnaxSpace",
        "env.make=bad.GymnaxSpace: the GymnaxSpace that it returned failed: RuntimeError: no such",
    ),
    (
        "bad.GymnaxAction",
        "bad.GymnaxAction has actions of kind str; Discrete and Box are supported",
    ),
    ("bad.GymnaxStep", "env.make=bad.GymnaxStep: step failed: RuntimeError: no such"),
    ("bad.GymnaxThree", "step failed: ValueError: not enough values to unpack"),
    ("bad.GymnaxReward", "step failed: TypeError: cannot reshape array of shape (2,)"),
    (
        "bad.GymnaxState",
        "step gives a state GymnaxState(state=float32[1], params=()), but reset has GymnaxState(",
    ),
    ("bad.GymnaxObs", "step gives a next_obs float32[2], but its spec has float32[1]"),
    (
        "bad.BraxReset",
        "env.make=bad.BraxReset: the BraxReset that it returned failed: RuntimeError: no such file",
    ),
    ("bad.BraxSize", "are not supported: write Discrete(n) with n >= 1"),
    ("bad.BraxStep", "env.make=bad.BraxStep: step failed"),
]
"""The value of ``env.make``, in the folder of `ENVS`."""

NAN = 'float("nan")'
NO_ACTION = "are not supported: write Discrete(n) with n >= 1, or Box(low, high) with arrays of bounds below"
NO_OBS = "write jax.ShapeDtypeStruct(shape, dtype)"
MADE = [
    (
        "None",
        "returned NoneType: return a jaxrl_fast.Env, one gymnasium.Env, a gymnax-style environment",
    ),
    ("3", "returned int"),
    ("env().spec", "returned EnvSpec"),
    ("jf.vectorize(env(), num_envs=4)", "returned VecEnv"),
    # the spec
    ("env()._replace(spec=None)", "its spec is NoneType: write a jaxrl_fast.EnvSpec"),
    ("env(action='up')", f"actions 'up' {NO_ACTION}"),
    ("env(action=jf.Discrete(0))", f"actions Discrete(num_actions=0) {NO_ACTION}"),
    ("env(action=jf.Discrete(-2))", NO_ACTION),
    ("env(action=jf.Discrete(2.5))", NO_ACTION),
    ("env(action=jf.Discrete('2'))", NO_ACTION),
    ("env(action=jf.Box(np.array([-np.inf]), np.ones(1)))", NO_ACTION),
    ("env(action=jf.Box(-np.ones(1), np.array([np.nan])))", NO_ACTION),
    ("env(action=jf.Box(np.array([-1e30]), np.array([1e30])))", NO_ACTION),
    ("env(action=jf.Box(-np.ones(1), np.array([np.finfo(np.float32).max])))", NO_ACTION),
    ("env(action=jf.Box(np.ones(1), -np.ones(1)))", NO_ACTION),
    ("env(action=jf.Box(np.zeros(2), np.array([1.0, 0.0])))", NO_ACTION),
    ("env(action=jf.Box(-np.ones(1), np.ones(2)))", NO_ACTION),
    ("env(action=jf.Box(np.zeros(0), np.zeros(0)))", NO_ACTION),
    ("env(action=jf.Box([-1.0], [1.0]))", f"actions Box(low=[-1.0], high=[1.0]) {NO_ACTION}"),
    ("env(action=jf.Box(-1.0, 1.0))", NO_ACTION),
    ("env(action=jf.Box(np.array(['a']), np.array(['b'])))", NO_ACTION),
    ("env(limit=0)", "bad: max_episode_steps=0: write a whole number of at least 1"),
    ("env(limit=-5)", "max_episode_steps=-5: write a whole number"),
    ("env(limit=2.5)", "max_episode_steps=2.5: write a whole number"),
    ("env(limit='50')", "max_episode_steps='50': write a whole number"),
    ("env(shortest_episode=0)", "shortest_episode=0: write a whole number"),
    ("env(spec_obs=(2,))", f"its spec has an observation 2: {NO_OBS}"),
    (
        "env(spec_obs=jax.ShapeDtypeStruct((2,), float))",
        "dtype=float64): write jax.ShapeDtypeStruct",
    ),
    (
        "env(spec_obs=jax.ShapeDtypeStruct((2,), jnp.complex64))",
        "dtype=complex64): write jax.ShapeDtypeStruct",
    ),
    ("env(spec_obs=None)", f"its spec has no numbers to observe: {NO_OBS}"),
    (
        "env(spec_obs={'action_mask': jax.ShapeDtypeStruct((2,), bool)})",
        f"no numbers to observe: {NO_OBS}",
    ),
    ("env(spec_obs=jax.ShapeDtypeStruct((0,), jnp.float32))", f"no numbers to observe: {NO_OBS}"),
    (
        "env(spec_obs={'x': OBS, 'action_mask': jax.ShapeDtypeStruct((3,), bool)})",
        "action_mask has shape [3]: write one",
    ),
    # reset
    ("env(sample_params=fail)", "sample_params failed: RuntimeError: no such"),
    ("env(reset=fail)", "reset failed: RuntimeError: no such"),
    ("env(reset=silent)", "reset failed: AssertionError"),
    ("env(reset=lambda key: (0, jnp.zeros(2)))", "reset failed: TypeError"),
    ("env(reset=lambda key, params: jnp.zeros(2))", "reset must return (state, observation)"),
    ("env(reset=lambda key, params: None)", "reset must return (state, observation)"),
    (
        "env(obs=lambda: jnp.zeros(3))",
        "reset gives an observation float32[3], but its spec has float32[2]",
    ),
    (
        "env(obs=lambda: jnp.zeros(2, jnp.int32))",
        "reset gives an observation int32[2], but its spec has float32[2]",
    ),
    (
        "env(obs=lambda: {'a': jnp.zeros(2)})",
        "reset gives an observation {a: float32[2]}, but its spec",
    ),
    ("env(obs=lambda: 'hello')", "reset failed: TypeError"),
    (f"env(obs=lambda: jnp.full(2, {NAN}))", "reset gives a NaN or an infinity in its observation"),
    ("env(obs=lambda: jnp.array([0.0, jnp.inf]))", "reset gives a NaN or an infinity"),
    # step
    ("env(step=lambda *args: fail())", "step failed: RuntimeError: no such"),
    ("env(after=lambda state: 1 if state > 0 else 2)", "step failed: TracerBoolConversionError"),
    ("env(step=lambda state, action: state)", "step failed: TypeError"),
    ("env(step=lambda *args: 3)", "step must return (state, jaxrl_fast.Timestep)"),
    (
        "env(step=lambda s, a, k: (s, jnp.zeros(2), 0.0, False, {}))",
        "step must return (state, jaxrl_fast.Timestep)",
    ),
    ("env(step=lambda s, a, k: (s, (1, 2)))", "step must return (state, jaxrl_fast.Timestep)"),
    (
        "env(after=lambda state: jnp.zeros(3, jnp.int32))",
        "step gives a state int32[3], but reset has int32[]",
    ),
    ("env(after=lambda state: state + 0.5)", "step gives a state float32[], but reset has int32[]"),
    (
        "env(after=lambda state: (state, state))",
        "step gives a state (int32[], int32[]), but reset has int32[]",
    ),
    (
        "env(next_obs=lambda: jnp.zeros(3))",
        "step gives a next_obs float32[3], but its spec has float32[2]",
    ),
    (
        "env(next_obs=lambda: {'x': jnp.zeros(2)})",
        "step gives a next_obs {x: float32[2]}, but its spec has float32[2]",
    ),
    (
        "env(next_obs=lambda: jnp.zeros(2, bool))",
        "step gives a next_obs bool[2], but its spec has float32[2]",
    ),
    (
        "env(reward=lambda: jnp.zeros(1))",
        "step gives reward float32[1]: write one real number, shape []",
    ),
    (
        "env(reward=lambda: jnp.complex64(0))",
        "step gives reward complex64[]: write one real number",
    ),
    ("env(reward=lambda: jnp.bool_(True))", "step gives reward bool[]: write one real number"),
    ("env(reward=lambda: None)", "step gives reward None: write one real number"),
    ("env(reward=lambda: {'a': 0.0})", "step gives reward {'a': "),
    (
        "env(terminated=lambda: jnp.float32(0))",
        "step gives terminated float32[]: write one bool, shape []",
    ),
    (
        "env(terminated=lambda: jnp.zeros(1, bool))",
        "step gives terminated bool[1]: write one bool, shape []",
    ),
    (
        "env(truncated=lambda: jnp.int32(0))",
        "step gives truncated int32[]: write one bool, shape []",
    ),
    ("env(truncated=lambda: None)", "step gives truncated None: write one bool, shape []"),
    (
        "env()._replace(success=lambda state: state)",
        "success gives int32[]: write one bool, shape []",
    ),
    ("env()._replace(success=lambda state: fail())", "success failed: RuntimeError: no such"),
]
"""The return value of the function of ``env.make``."""


@pytest.fixture(scope="module")
def answers(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Results of training in each bad environment, by the value of ``env.make`` or by the value
    that it returns.
    """
    folder = tmp_path_factory.mktemp("envs")
    makes = "\n".join(
        f"def make_{number}(): return {made}" for number, (made, _) in enumerate(MADE)
    )
    (folder / "bad.py").write_text(f"{ENVS}\n{makes}\n")
    (folder / "no_python.py").write_text("this is no Python\n")
    (folder / "exits.py").write_text("raise SystemExit(3)\n")
    names = {name: name for name, _ in NAMED} | {
        made: f"bad.make_{i}" for i, (made, _) in enumerate(MADE)
    }
    before = everything(folder)
    lines = [
        ["train", "env=custom", f"env.make={name}", "total_steps=1000"] for name in names.values()
    ]
    ended = dict(zip(names, commands.run_all(folder, lines), strict=True))
    assert everything(folder) == before
    return ended


@pytest.mark.parametrize(("name", "expected"), NAMED, ids=[name for name, _ in NAMED])
def test_a_bad_name_of_an_environment(answers, name: str, expected: str):
    assert expected in refusal(answers[name])


@pytest.mark.parametrize(("made", "expected"), MADE, ids=[made for made, _ in MADE])
def test_a_bad_environment(answers, made: str, expected: str):
    assert expected in refusal(answers[made])


BEFORE = "returned", "reset gives a NaN", "env.make"
"""Lines about what only ``env.make`` returns, or about numbers, which `jaxrl_fast.vectorize` does
not compute.
"""


@pytest.mark.parametrize(
    ("made", "expected"), [one for one in MADE if not one[1].startswith(BEFORE)]
)
def test_vectorize_refuses_what_the_command_refuses(made: str, expected: str):
    scope: dict = {}
    exec(ENVS, scope)
    env = eval(made, scope)
    with pytest.raises(ValueError, match=re.escape(expected)) as refused:
        jf.vectorize(env, num_envs=2)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            "env",
            'env=env is not made by jaxrl_fast: write jaxrl_fast.make_env("custom", make=env, num_envs=4)',
        ),
        ("jf.vectorize(env(), num_envs=2)", "env is vectorized already"),
        ("Gymnax()", "env=Gymnax is not made by jaxrl_fast"),
    ],
)
def test_vectorize_refuses_what_is_no_env(made: str, expected: str):
    scope: dict = {}
    exec(ENVS, scope)
    with pytest.raises(ValueError, match=re.escape(expected)):
        jf.vectorize(eval(made, scope), num_envs=2)


USERS = """import gymnasium, jax, jax.numpy as jnp, numpy as np, jaxrl_fast as jf

class Robot(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return self.sense()

    def sense(self):
        return {}["lidar"]

class Burnt(Robot):
    def sense(self):
        raise RuntimeError("motor\\nburnt")

class Leaves(Robot):
    def sense(self):
        raise SystemExit("bye")

class Text(Robot):
    reward = "1"
    def sense(self):
        return np.zeros(2, np.float32), self.reward, False, False, {}

class Nothing(Text):
    reward = None

class Row(Text):
    reward = np.ones(1)

def traced(state, action, key):
    return state if state[0] > 0 else state + 1

def compiled():
    spec = jf.EnvSpec("robot", jax.ShapeDtypeStruct((1,), np.float32), jf.Discrete(2), 100)
    return jf.Env(spec, lambda key, params: (jnp.zeros(1), jnp.zeros(1)), traced)
"""


def test_an_error_in_a_users_code_is_named_with_file_and_line(commands, tmp_path):
    """In a package that fails on import, in a step on the host, and in one that is traced: the
    innermost such line.
    """
    files = {"syntax": "import os\ndef make(:\n", "inner": "from numpy import nothing_there\n"}
    files |= {
        "lacking": "\nimport lidar_driver\n",
        "raises": "raise RuntimeError('no licence')\n",
        "users": USERS,
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    places = {
        "syntax": ("SyntaxError: invalid syntax", 2),
        "inner": ("ImportError: cannot import name", 1),
    }
    places |= {"lacking": ("ModuleNotFoundError: No module named 'lidar_driver'", 2)}
    places |= {"raises": ("RuntimeError: no licence", 1)}
    asked = {(f"env=custom env.make={name}.make"): (name, *place) for name, place in places.items()}
    asked |= {
        (f"env=gymnasium env.id={name}:Env-v0"): (name, *place) for name, place in places.items()
    }
    asked["env=custom env.make=users.Robot"] = ("users", "KeyError: 'lidar'", 14)
    asked["env=custom env.make=users.Burnt"] = ("users", "RuntimeError: motor burnt", 18)
    asked["env=custom env.make=users.Leaves"] = ("users", "SystemExit: bye", 22)
    asked["env=custom env.make=users.compiled"] = (
        "users",
        "step failed: TracerBoolConversionError",
        36,
    )
    lines = [["train", *words.split(), "algo=ppo", "total_steps=1000"] for words in asked]
    ended = commands.run_all(tmp_path, lines)
    for (name, error, number), answer in zip(asked.values(), ended, strict=True):
        line = refusal(answer)
        assert error in line and f"{tmp_path / name}.py, line {number}" in line, line
        assert line.endswith("; HYDRA_FULL_ERROR=1 prints the traceback\n")


def test_a_reward_that_is_not_a_number_is_named_before_training(commands, tmp_path):
    (tmp_path / "users.py").write_text(USERS)
    rewards = {"Text": "'1'", "Nothing": "None", "Row": "array([1.])"}
    lines = [
        ["train", "env=custom", f"env.make=users.{name}", "algo=ppo", "total_steps=1000"]
        for name in rewards
    ]
    for (name, reward), answer in zip(
        rewards.items(), commands.run_all(tmp_path, lines), strict=True
    ):
        assert (
            f"users.{name}: step returns the reward {reward}: write one number, such as float("
            in refusal(answer)
        )


def test_the_traceback_on_request(commands, tmp_path):
    (tmp_path / "bad.py").write_text(ENVS + "def make(): fail()")
    ended = commands.run(tmp_path, "train", "env=custom", "env.make=bad.make", HYDRA_FULL_ERROR="1")
    assert ended.status == 2
    assert ended.err.startswith("Traceback")
    assert 'raise RuntimeError("no such\\nfile")' in ended.err
    place = f"({tmp_path}/bad.py, line {ENVS.splitlines().index('def fail(*args):') + 2})"
    line = f"jaxrl_fast: error: env.make=bad.make failed: RuntimeError: no such file {place}"
    assert ended.err.splitlines()[-1] == line
