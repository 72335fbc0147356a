"""A user's environment, named by a dotted path; and the names that `envs` refuses."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.core import Discrete
from jaxrl_fast.envs.env import Env, vectorize
from jaxrl_fast.learning.rollout import start, unroll
from jaxrl_fast.settings.schema import ConfigError

MY_PACKAGE = '''
import jax, jax.numpy as jnp
from jaxrl_fast.envs.probes import action

def make():
    return action()

def bandit(*, arms=2):
    return action()._replace(shortest_episode=arms)

class Corridor:
    """gymnax-style, written against no base class."""

    default_params = {"length": 3.0}

    def reset_env(self, key, params):
        return jnp.zeros(1), {"x": jnp.zeros(())}

    def step_env(self, key, state, action, params):
        x = state["x"] + 2.0 * action - 1.0
        return x[None], {"x": x}, x, x >= params["length"], {}

    def observation_space(self, params):
        from gymnax.environments import spaces
        return spaces.Box(-jnp.inf, jnp.inf, (1,))

    def action_space(self, params):
        from gymnax.environments import spaces
        return spaces.Discrete(2)

def gymnax_style():
    return Corridor()

def gymnax_pair():
    return Corridor(), {"length": 1.0}

def gymnax_own():
    import gymnax
    return gymnax.make("CartPole-v1")

def brax_own(backend="spring"):
    from jaxrl_fast.envs.from_brax import brax_envs
    return brax_envs.get_environment("fast", backend=backend)

def gymnasium_own(**options):
    import gymnasium
    return gymnasium.make("CartPole-v1", **options)

def several():
    import gymnasium
    return gymnasium.make_vec("CartPole-v1", num_envs=2)

def fails():
    raise RuntimeError("no such\\nfile")

def number():
    return 3
'''


@pytest.fixture
def my_package(tmp_path, monkeypatch):
    """Make a module in the current directory, which is not yet on the path."""
    (tmp_path / "my_package.py").write_text(MY_PACKAGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))]
    )
    yield
    sys.modules.pop("my_package", None)


def first_reward(single: Env, action) -> tuple[float, bool]:
    state, _ = single.reset(jax.random.key(0), single.sample_params(jax.random.key(0)))
    _, timestep = single.step(state, jnp.asarray(action), jax.random.key(0))
    return float(timestep.reward), bool(timestep.terminated)


@pytest.mark.parametrize("path", ["my_package.make", "my_package:make"])
def test_an_env_is_taken_as_it_is(my_package, path):
    single = envs.make("custom", make=path)
    assert first_reward(single, 1) == (1.0, True)


def test_options_reach_the_function(my_package):
    assert envs.make("custom", make="my_package.bandit", arms=5).shortest_episode == 5


def test_an_option_may_have_the_name_of_an_argument():
    received = []

    def make(name: str = "", arms: int = 2) -> Env:
        received.append(name)
        return envs.make("probe", id="value")

    assert isinstance(envs.make("custom", make=make, name="x"), Env)
    jf.make_env("custom", make=make, name="y", num_envs=2)
    assert jf.make_env(name="probe", id="value", num_envs=2).num_envs == 2
    assert received == ["x", "y"]


@pytest.mark.parametrize("name", ["num_envs", "num_seeds", "pool"])
def test_an_option_with_the_name_of_a_setting_is_refused_in_one_line(name):
    with pytest.raises(ConfigError, match=rf"^\+env.{name}: an option of an environment cannot"):
        compose(["env=custom", "env.make=my_package.make", f"+env.{name}=3"])


def test_a_gymnax_style_world_runs(my_package):
    single = envs.make("custom", make="my_package.gymnax_style")
    assert single.spec.action == Discrete(2)
    env = vectorize(single, num_envs=2)

    def right(carry, obs, first, key):
        return jnp.ones(2, jnp.int32), carry, ()

    _, rollout, _ = unroll(env, right, start(env, (), jax.random.key(0)), jax.random.key(0), 6)
    np.testing.assert_array_equal(rollout.reward[:, 0], [1, 2, 3, 1, 2, 3])
    np.testing.assert_array_equal(rollout.terminated[:, 0], [False, False, True] * 2)


def test_a_gymnax_style_world_may_bring_its_parameters(my_package):
    assert first_reward(envs.make("custom", make="my_package.gymnax_style"), 1) == (1.0, False)
    assert first_reward(envs.make("custom", make="my_package.gymnax_pair"), 1) == (1.0, True)


def test_what_gymnax_and_brax_make_is_taken(my_package):
    assert envs.make("custom", make="my_package.gymnax_own").spec.action == Discrete(2)
    assert envs.make("custom", make="my_package.brax_own").spec.obs.shape == (2,)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_gymnasium_environment_is_stepped_on_the_host(my_package, workers):
    pool = {"workers": workers}
    env = jf.make_env(
        "custom", make="my_package.gymnasium_own", num_envs=4, pool=pool, max_episode_steps=7
    )
    assert isinstance(env, jf.HostEnv) and env.spec.action == Discrete(2)
    env.reset(0)
    env.send(np.zeros(2, np.int32), 1)
    assert env.recv(1).reward.tolist() == [1.0, 1.0]
    env.close()


def test_a_closure_of_a_notebook_is_stepped_by_workers():
    length = 7

    def make():
        import gymnasium

        return gymnasium.make("Blackjack-v1", max_episode_steps=length)

    env = jf.make_env("custom", make=make, num_envs=2, pool={"workers": 1})
    assert {name: part.shape for name, part in env.reset(0).items()} == {
        "0": (2, 32),
        "1": (2, 11),
        "2": (2, 2),
    }
    env.close()


def test_agents_that_take_turns_are_refused_in_one_line():
    class Turns:
        possible_agents = ("a", "b")

        def agent_iter(self) -> None: ...

        def last(self) -> None: ...

    with pytest.raises(
        ValueError, match=r"agents take turns: return pettingzoo\.utils\.aec_to_parallel\(env\)"
    ):
        jf.make_env("custom", make=Turns, num_envs=2)


def one_line(name: str, **options) -> str:
    with pytest.raises(ValueError) as caught:
        envs.make(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["needs env.make", "env.make=my_package.make"]),
        ({"make": "make"}, ["env.make=make", "with its module"]),
        ({"make": "my_package.nothing"}, ["my_package has no function 'nothing'"]),
        ({"make": "no_package.make"}, ["cannot import no_package", "No module named 'no_package'"]),
        ({"make": "my_package.fails"}, ["my_package.fails failed: RuntimeError: no such file"]),
        ({"make": "my_package.make", "arms": 2}, ["my_package.make failed: TypeError", "'arms'"]),
        (
            {"make": "my_package.number"},
            ["returned int", "jaxrl_fast.Env", "reset_env", "observation_size"],
        ),
        ({"make": "my_package.several"}, ["is stepped on the host", "write make_env(...)"]),
        ({"make": "my_package.gymnasium_own"}, ["is stepped on the host", "write make_env(...)"]),
    ],
)
def test_mistakes_in_a_custom_world_end_in_one_line(my_package, options, words):
    message = one_line(name="custom", **options)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "halfcheta"}, ["unknown environment 'halfcheta'", "nearest: halfcheetah"]),
        ({"name": "CartPole-v1"}, ["nearest: cartpole"]),
        ({"name": "%%%"}, ["write one of acrobot, ant"]),
        ({"name": "brax"}, ["env=brax needs env.id", "env.id=ant"]),
        ({"name": "gymnax"}, ["env.id=CartPole-v1"]),
        (
            {"name": "gymnax", "id": "cartpole-v1"},
            ["gymnax has no such environment", "nearest: CartPole-v1"],
        ),
        ({"name": "brax", "id": "halfcheeta"}, ["nearest: halfcheetah"]),
        ({"name": "probe", "id": "values"}, ["nearest: value"]),
        ({"name": "probe", "id": "value", "x": 1}, ["no option 'x'"]),
        ({"name": "ant", "id": "hopper"}, ["brax's ant", "write env=brax"]),
        (
            {"name": "gymnasium", "id": "CartPole-v1"},
            ["env=gymnasium is stepped on the host", "make_env"],
        ),
    ],
)
def test_a_wrong_name_ends_in_one_line(options, words):
    message = one_line(**options)
    assert all(word in message for word in words), message


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "jaxrl_fast.envs.from_gymnax", raising=False)
    monkeypatch.setitem(sys.modules, "gymnax", None)
    assert "env=gymnax needs the package 'gymnax': pip install gymnax" in one_line(name="cartpole")


@pytest.mark.parametrize("name", envs.SHORT_NAMES)
def test_every_short_name_names_a_known_environment(name):
    suite, id = envs.SHORT_NAMES[name].suite, envs.SHORT_NAMES[name].id
    module = pytest.importorskip(f"jaxrl_fast.envs.from_{suite}")
    assert id in module.ids()


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        (
            "halfcheetah",
            {},
            "halfcheetah = brax, spring; returns are not comparable with Gymnasium's HalfCheetah-v5",
        ),
        ("halfcheetah", {"backend": "mjx"}, "halfcheetah = brax, mjx; returns are not"),
        ("brax", {"id": "fast"}, "fast = brax, spring"),
        ("cartpole", {}, "cartpole = gymnax, CartPole-v1"),
        ("gymnax", {"id": "Pong-misc"}, "Pong-misc = gymnax"),
        ("custom", {"make": "my_package.make"}, "custom = my_package.make"),
    ],
)
def test_describe(name, options, text):
    assert envs.describe(name, options).startswith(text)


def test_importing_envs_imports_no_suite():
    script = (
        "import sys; from jaxrl_fast import envs; envs.describe('halfcheetah'); "
        "print([m for m in ('brax', 'gymnax') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=900
    )
    assert ran.stdout == "[]\n", ran.stderr


TAKEN = """name make id file num_envs num_seeds pool options env algo seed key spec self cls
episode_length frame_stack max_episode_steps"""
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True) | st.sampled_from(TAKEN.split())


@settings(max_examples=100)
@given(name=NAMES)
def test_an_option_of_any_name_reaches_the_function_or_is_refused_in_one_line(name):
    received = []

    def make(**options) -> Env:
        received.append(options)
        return envs.make("probe", id="value")

    words = ["env=custom", "env.make=my_package.make", f"+env.{name}=3"]
    try:
        run = compose(words)
    except ConfigError as error:
        assert "\n" not in str(error) and name in str(error)
        return
    options = {**run.env_options, "make": make}
    env = envs.make_vec("custom", num_envs=2, **options)
    assert env.num_envs == 2
    limits = ("episode_length", "max_episode_steps")  # and options of every environment
    assert received == [{}] or (name not in limits and received == [{name: 3}])
