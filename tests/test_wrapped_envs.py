"""Wrapped environments of other libraries: wrappers are called or refused by name, and ends of
episodes stay true.
"""

import types
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.wrappers import (
    FlattenObservationWrapper,
    LegacyStepAPIWrapper,
    LogWrapper,
    StickyActionWrapper,
)
from gymnax.wrappers.purerl import GymnaxWrapper

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.commands.prepare import can_draw
from jaxrl_fast.envs import from_brax
from jaxrl_fast.envs.from_brax import brax_envs
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.views.viewer import draw_policy, watch_bodies

training = brax_envs.training
KEY = jax.random.key(0)


def refusal(make: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        envs.make("custom", make=make, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


class Clock:
    """brax-style: its observation is the number of steps, its reward the action, and it falls at
    ``falls``.
    """

    observation_size, action_size, backend, dt = 1, 1, "none", 0.1

    def __init__(self, falls: int = 1000):
        self.falls, self.unwrapped = falls, self

    def reset(self, rng: jax.Array) -> brax_envs.State:
        zero = jnp.zeros(())
        return brax_envs.State(jnp.zeros(()), jnp.zeros(1), zero, zero, {"reward": zero}, {})

    def step(self, state: brax_envs.State, action: jax.Array) -> brax_envs.State:
        obs = state.obs + 1
        return state.replace(
            obs=obs, reward=action[0], done=(obs[0] >= self.falls).astype(jnp.float32)
        )


class Tripled(training.Wrapper):
    """A user's wrapper of brax's kind."""

    def step(self, state: Any, action: jax.Array) -> Any:
        following = self.env.step(state, action)
        return following.replace(reward=3 * following.reward)


class Negative:
    """A user's wrapper that only delegates."""

    def __init__(self, world: Any):
        self.world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def step(self, state: Any, action: jax.Array) -> Any:
        following = self.world.step(state, action)
        return following.replace(reward=-following.reward)


def played(env: jf.Env, num_steps: int, action: Any) -> jf.Timestep:
    """Play with one action in two environments; return the steps of the first, leaves ``[T, ...]``."""
    vec = jf.vectorize(env, num_envs=2)
    state, _ = vec.reset(KEY)
    bank = vec.draw_fresh(KEY, num_steps)
    actions = jnp.stack([jnp.asarray(action)] * 2)

    def step(state: Any, t: jax.Array) -> Any:
        return vec.step(state, actions, jax.random.fold_in(KEY, t), bank, t)

    return jax.tree.map(
        lambda x: x[:, 0], jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(num_steps)))(state)[1]
    )


def ends(env: jf.Env, num_steps: int, action: Any) -> list[tuple[int, str, float]]:
    """Return the first two ends of episodes: step, kind and terminal observation."""
    step = played(env, num_steps, action)
    done = np.flatnonzero(np.asarray(step.terminated | step.truncated))
    kinds = ["terminated" if step.terminated[t] else "truncated" for t in done]
    return [
        (int(t) + 1, kind, float(step.next_obs[t].ravel()[0]))
        for t, kind in zip(done, kinds, strict=True)
    ][:2]


WRAPPED = {
    "create": lambda falls: training.AutoResetWrapper(training.EpisodeWrapper(Clock(falls), 5, 1)),
    "no reset": lambda falls: training.EpisodeWrapper(Clock(falls), 5, 1),
    "batch": lambda falls: training.wrap(Clock(falls), 5),
    "eval": lambda falls: training.EvalWrapper(training.wrap(Clock(falls), 5)),
    "plain": lambda falls: training.Wrapper(training.wrap(Clock(falls), 5)),
}


@pytest.mark.parametrize("how", WRAPPED)
def test_brax_wrappers_are_taken_apart_and_their_limit_truncates(how: str):
    env = envs.make("custom", make=lambda: WRAPPED[how](1000))
    assert env.spec.max_episode_steps == 5
    assert ends(env, 10, [1.0]) == [(5, "truncated", 5.0), (10, "truncated", 5.0)]
    assert ends(envs.make("custom", make=lambda: WRAPPED[how](3)), 6, [1.0]) == [
        (3, "terminated", 3.0),
        (6, "terminated", 3.0),
    ]
    longer = envs.make("custom", make=lambda: WRAPPED[how](1000), episode_length=7)
    assert ends(longer, 14, [1.0]) == [(7, "truncated", 7.0), (14, "truncated", 7.0)]


def test_what_brax_creates_has_its_limit_and_true_successors():
    env = envs.make("custom", make=lambda: brax_envs.create("fast", episode_length=20))
    step = played(env, 40, [0.5])
    own = brax_envs.get_environment("fast")
    state = own.reset(jax.random.PRNGKey(0))
    for _ in range(20):
        state = own.step(state, jnp.array([0.5]))
    assert env.spec.max_episode_steps == 20
    assert np.flatnonzero(step.truncated).tolist() == [19, 39] and not step.terminated.any()
    np.testing.assert_allclose(step.next_obs[19], state.obs)
    assert not np.allclose(step.obs[19], step.next_obs[19])


def test_an_action_is_repeated_as_in_brax():
    env = envs.make("custom", make=lambda: training.wrap(Clock(), 20, action_repeat=3))
    step = played(env, 14, [2.0])
    assert env.spec.max_episode_steps == 7
    np.testing.assert_array_equal(step.reward, [6.0] * 14)
    assert ends(env, 14, [2.0]) == [(7, "truncated", 21.0), (14, "truncated", 21.0)]


USERS = {
    "outside": lambda: Tripled(training.wrap(Clock(), 5)),
    "inside": lambda: training.wrap(Tripled(Clock()), 5),
    "delegating outside": lambda: Negative(training.wrap(Negative(Tripled(Clock())), 5)),
    "alone": lambda: Tripled(Clock()),
    "delegating alone": lambda: Negative(Negative(Negative(Negative(Tripled(Clock()))))),
}


@pytest.mark.parametrize("where", USERS)
def test_a_users_wrapper_around_brax_is_called(where: str):
    env = envs.make("custom", make=USERS[where])
    step = played(env, 5, [2.0])
    np.testing.assert_array_equal(step.reward, [6.0] * 5)
    np.testing.assert_array_equal(step.next_obs[:, 0], [1, 2, 3, 4, 5])
    assert env.spec.max_episode_steps == (1000 if "alone" in where else 5)


def test_each_episode_samples_a_model_of_domain_randomization():
    def gears(sys: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda x: None, sys).tree_replace({"actuator.gear": 0})
        return sys.tree_replace(
            {"actuator.gear": jnp.arange(1.0, 5)[:, None] * sys.actuator.gear}
        ), axes

    def make() -> Any:
        with from_brax.quiet():
            inner = brax_envs.get_environment("inverted_pendulum", backend="spring")
        return training.wrap(inner, 5, randomization_fn=gears)

    env = envs.make("custom", make=make)
    reset = jax.jit(jax.vmap(lambda key: env.reset(key, ())[0]))
    state = reset(jax.random.split(KEY, 64))
    assert set(np.asarray(state.info["model"]).tolist()) == {0, 1, 2, 3}
    same = jax.tree.map(lambda x: jnp.stack([x[0]] * 4), state)  # one start, four models
    same.info["model"] = jnp.arange(4)
    speeds = jax.jit(jax.vmap(lambda s: env.step(s, jnp.ones(1), KEY)[1].next_obs))(same)[:, 2]
    pushes = np.diff(np.asarray(speeds))
    assert (pushes > 0).all() and pushes == pytest.approx(pushes[0], rel=0.05)


class MyReset(training.AutoResetWrapper):
    """A kind of auto-reset that is not brax's."""


class Hidden(training.Wrapper):
    """It resets itself, as brax does, but has another name."""

    def reset(self, rng: jax.Array) -> Any:
        state = self.env.reset(rng)
        return state.replace(info={**state.info, "first_obs": state.obs})


class Many(training.Wrapper):
    """It makes a batch."""

    def reset(self, rng: jax.Array) -> Any:
        return jax.vmap(self.env.reset)(jax.random.split(rng, 3))


class Bound(training.Wrapper):
    """It calls the function that it got when it was made."""

    def __init__(self, env: Any):
        super().__init__(env)
        self.inside = env.step

    def step(self, state: Any, action: jax.Array) -> Any:
        return self.inside(state, action)


class Pair(training.Wrapper):
    """It has the interface of purejaxrl's BraxGymnaxWrapper."""

    def reset(self, rng: jax.Array) -> Any:
        state = self.env.reset(rng)
        return state.obs, state


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: MyReset(Clock()),
            "MyReset is a subclass of brax's AutoResetWrapper that is not supported: return",
        ),
        (lambda: Hidden(Clock()), "Hidden resets the environment (state.info has 'first_obs')"),
        (lambda: Many(Clock()), "Many makes a batch: a reward has shape [3]"),
        (
            lambda: Bound(training.wrap(Clock(), 5)),
            "Bound stores a function of the environment inside",
        ),
        (lambda: Pair(Clock()), "Pair gives tuple, not a brax State"),
    ],
)
def test_a_wrapper_of_brax_that_cannot_be_taken_apart_is_named(make: Any, words: str):
    assert words in refusal(make)


def test_the_wrappers_of_mujoco_playground_are_known_by_their_names(
    monkeypatch: pytest.MonkeyPatch,
):
    class BraxAutoResetWrapper(Negative):
        """Playground's auto-reset."""

        def reset(self, rng: jax.Array) -> Any:
            raise AssertionError

        step = reset

    class MadronaWrapper(BraxAutoResetWrapper):
        """Playground's renderer of a batch."""

    for cls in (BraxAutoResetWrapper, MadronaWrapper):
        monkeypatch.setattr(cls, "__module__", "mujoco_playground._src.wrapper")
    clock = Clock()
    clock._config = types.SimpleNamespace(episode_length=6)  # Playground's limit of an environment
    env = envs.make("custom", make=lambda: BraxAutoResetWrapper(training.VmapWrapper(clock)))
    assert ends(env, 6, [1.0]) == [(6, "truncated", 6.0)]
    assert "MadronaWrapper" in refusal(lambda: MadronaWrapper(clock))


# gymnax.


def cartpole() -> Any:
    return gymnax.make("CartPole-v1")[0]


class Paid(GymnaxWrapper):
    """A user's wrapper in gymnax's style."""

    def step(self, key: jax.Array, state: Any, action: Any, params: Any = None) -> Any:
        obs, state, reward, *others = self._env.step(key, state, action, params)
        return 2 * obs, state, 3 * reward, *others

    def reset(self, key: jax.Array, params: Any = None) -> Any:
        obs, state = self._env.reset(key, params)
        return 2 * obs, state


class Purejaxrl(GymnaxWrapper):
    """A wrapper for gymnax before 1.0, as in purejaxrl: ``step`` has five results."""

    def step(self, key: jax.Array, state: Any, action: Any, params: Any = None) -> Any:
        obs, state, reward, done, info = self._env.step(key, state, action, params)
        return obs, state, 3 * reward, done, info


@pytest.mark.parametrize(
    ("make", "reward", "factor"),
    [
        (lambda: cartpole(), 1.0, 1),
        (lambda: LogWrapper(cartpole()), 1.0, 1),
        (lambda: LogWrapper(FlattenObservationWrapper(cartpole())), 1.0, 1),
        (lambda: StickyActionWrapper(cartpole(), 0.0), 1.0, 1),
        (lambda: Paid(cartpole()), 3.0, 2),
        (lambda: LogWrapper(Paid(cartpole())), 3.0, 2),
        (lambda: Paid(LogWrapper(Paid(cartpole()))), 9.0, 4),
        (lambda: LegacyStepAPIWrapper(cartpole()), 1.0, 1),
        (lambda: Purejaxrl(LegacyStepAPIWrapper(cartpole())), 3.0, 1),
        (lambda: Purejaxrl(cartpole()), 3.0, 1),
    ],
)
def test_a_wrapper_of_gymnax_is_called_and_does_not_reset(make: Any, reward: float, factor: int):
    """Compare with the environment without wrappers: the same ends, and terminal observations."""
    plain, wrapped = (
        played(envs.make("custom", make=cartpole), 24, 1),
        played(envs.make("custom", make=make), 24, 1),
    )
    assert plain.terminated.any()
    np.testing.assert_array_equal(wrapped.terminated, plain.terminated)
    np.testing.assert_array_equal(wrapped.truncated, plain.truncated)
    np.testing.assert_allclose(wrapped.next_obs, factor * plain.next_obs, rtol=1e-6)
    np.testing.assert_array_equal(wrapped.reward, reward * plain.reward)


@pytest.mark.parametrize(
    "make", [cartpole, lambda: LogWrapper(cartpole()), lambda: Purejaxrl(cartpole())]
)
def test_the_limit_of_gymnax_truncates_and_never_terminates(make: Any):
    step = played(envs.make("custom", make=make, episode_length=4), 8, 1)
    assert np.flatnonzero(step.truncated).tolist() == [3, 7] and not step.terminated.any()
    own = cartpole().default_params.replace(max_steps_in_episode=3)
    step = played(envs.make("custom", make=lambda: (make(), own)), 6, 1)
    assert np.flatnonzero(step.truncated).tolist() == [2, 5] and not step.terminated.any()


class Overridden(type(cartpole())):
    """A subclass that overrides the method which resets."""

    def step(self, key: jax.Array, state: Any, action: Any, params: Any = None) -> Any:
        obs, state, reward, *others = super().step(key, state, action, params)
        return obs, state, 3 * reward, *others


class StepEnv(GymnaxWrapper):
    """A wrapper of ``step_env``, which passes over ``step`` of a wrapper inside."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return self._env.step_env(key, state, action, params)


class VecEnv(GymnaxWrapper):
    """purejaxrl's batch."""

    def __init__(self, env: Any):
        super().__init__(env)
        self.reset = jax.vmap(env.reset, in_axes=(0, None))
        self.step = jax.vmap(env.step, in_axes=(0, 0, 0, None))


class NormalizeVecObservation(GymnaxWrapper):
    """purejaxrl's."""


class Forgetful(GymnaxWrapper):
    """Its step does not distinguish the two ends of an episode."""

    def step(self, key: jax.Array, state: Any, action: Any, params: Any = None) -> Any:
        obs, state, reward, done, _ = self._env.step(key, state, action, params)
        return obs, state, reward, done, {}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            Overridden,
            "Overridden overrides step or reset: it resets itself there, and jaxrl_fast calls step_env",
        ),
        (lambda: StepEnv(Paid(cartpole())), "Paid overrides step or reset"),
        (lambda: VecEnv(cartpole()), "VecEnv stores reset of a batch"),
        (
            lambda: LogWrapper(NormalizeVecObservation(cartpole())),
            "write algo.normalize_observations=true instead",
        ),
        (
            lambda: gymnax.wrappers.GymnaxToDmEnvWrapper(cartpole()),
            "GymnaxToDmEnvWrapper gives another library's",
        ),
        (
            lambda: Forgetful(cartpole()),
            "step must return obs, state, reward, terminated, truncated and info",
        ),
    ],
)
def test_a_wrapper_of_gymnax_that_cannot_be_called_is_named(make: Any, words: str):
    assert words in refusal(make)


def test_a_wrapper_of_step_env_is_called():
    class Doubled(GymnaxWrapper):
        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            obs, state, reward, *others = self._env.step_env(key, state, action, params)
            return obs, state, 2 * reward, *others

    assert (
        played(envs.make("custom", make=lambda: Doubled(cartpole())), 3, 1).reward.tolist()
        == [2.0] * 3
    )
    assert (
        played(envs.make("custom", make=lambda: Paid(Doubled(cartpole()))), 3, 1).reward.tolist()
        == [6.0] * 3
    )


# The time limit.


def test_the_limit_is_passed_to_a_make_that_takes_it_and_else_set():
    taken = []

    def takes(episode_length: int = 9) -> Any:
        taken.append(episode_length)
        return training.EpisodeWrapper(Clock(), episode_length, 1)

    assert envs.make(
        "custom", make=takes, episode_length=4
    ).spec.max_episode_steps == 4 and taken == [4]
    env = from_brax.adapt(Clock(), name="own", max_episode_steps=50)
    for key in ("episode_length", "max_episode_steps"):
        assert envs.make("custom", make=lambda: env, **{key: 4}).spec.max_episode_steps == 4
    assert envs.make("custom", make=lambda: env).spec.max_episode_steps == 50
    assert "episode_length=0: write a whole number" in refusal(lambda: env, episode_length=0)
    assert "are both the time limit" in refusal(lambda: env, episode_length=3, max_episode_steps=3)


class Line(gymnasium.Env):
    """On the host: its observation is the number of steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(
    "wrap", [lambda env: env, lambda env: gymnasium.wrappers.TimeLimit(env, 9)]
)
def test_the_limit_holds_on_the_host(wrap: Any):
    host = jf.make_env(
        "custom",
        make=lambda: wrap(Line()),
        num_envs=2,
        episode_length=3,
        pool={"workers": 0, "num_groups": 1},
    )
    assert host.spec.max_episode_steps == 3
    host.reset(0)
    cut = []
    for _ in range(6):
        host.send(np.zeros(2, np.int32), 0)
        cut.append(host.recv(0).truncated.tolist())
    assert cut == [[False] * 2, [False] * 2, [True] * 2] * 2
    host.close()


# Pictures.

HINGE = """
<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 1"><joint name="hinge" type="hinge" axis="0 1 0"/>
<geom type="capsule" size="0.1 0.3"/><body pos="0 0 0.5"><joint name="slide" type="slide" axis="1 0 0"/>
<geom type="sphere" size="0.2"/></body></body></worldbody>
<actuator><motor joint="hinge" gear="900"/></actuator></mujoco>
"""


def a_policy(spec: jf.EnvSpec) -> Any:
    def act(
        params: Any, carry: Any, obs: jax.Array, first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any]:
        return jnp.ones((obs.shape[0], 1)), carry

    return Policy(jnp.zeros(()), act, lambda num_envs: (), spec, {"algo": "ppo"})


def pipeline_env() -> Any:
    """Make an environment of a user's with brax's physics."""
    with from_brax.quiet():
        from brax.io import mjcf

        class Hinge(brax_envs.PipelineEnv):
            def reset(self, rng: jax.Array) -> Any:
                state = self.pipeline_init(self.sys.init_q, jnp.zeros(self.sys.qd_size()))
                return brax_envs.State(state, state.q, jnp.zeros(()), jnp.zeros(()))

            def step(self, state: Any, action: jax.Array) -> Any:
                following = self.pipeline_step(state.pipeline_state, action)
                return state.replace(pipeline_state=following, obs=following.q, reward=action[0])

        return Hinge(mjcf.loads(HINGE), backend="spring", n_frames=5)


class Playground:
    """It has the interface of a MuJoCo Playground environment, with MJX's state."""

    action_size, observation_size, dt = 1, 2, 0.02

    def __init__(self) -> None:
        with from_brax.quiet():
            import mujoco
            from mujoco import mjx

            self.mjx, self.mj_model = mjx, mujoco.MjModel.from_xml_string(HINGE)
            self.mjx_model = mjx.put_model(self.mj_model)

    def reset(self, rng: jax.Array) -> Any:
        data = self.mjx.make_data(self.mjx_model)
        return PlaygroundState(data, data.qpos, jnp.zeros(()), jnp.zeros(()), {}, {})

    def step(self, state: Any, action: jax.Array) -> Any:
        data = self.mjx.step(self.mjx_model, state.data.replace(ctrl=action))
        return state.replace(data=data, obs=data.qpos, reward=action[0])


@struct.dataclass
class PlaygroundState:
    """Playground's state."""

    data: Any
    obs: Any
    reward: Any
    done: Any
    metrics: Any
    info: Any


@pytest.mark.parametrize(
    "make", [pipeline_env, lambda: training.wrap(pipeline_env(), 6), Playground]
)
def test_ones_own_physics_is_drawn(make: Any, tmp_path: Path):
    env = envs.make("custom", make=make, episode_length=6)
    assert env.bodies is not None
    scene = env.bodies.scene()
    assert [(geom.kind, geom.body) for geom in scene.geoms] == [
        ("plane", -1),
        ("capsule", 0),
        ("sphere", 1),
    ]
    assert scene.step_s == pytest.approx(0.02 if make is Playground else 0.01)
    policy = a_policy(env.spec)
    motion, _ = watch_bodies(policy, env, KEY)
    assert motion.positions.shape == (7, 2, 3) and motion.rewards.tolist() == [1.0] * 6
    assert np.ptp(motion.positions[:, 1]) > 1e-3, "the sphere moves"
    assert make is not Playground or draw_policy(policy, jf.vectorize(env, num_envs=2), 0, tmp_path)


def test_the_command_for_pictures_is_printed_only_if_there_are_pictures(
    capsys: pytest.CaptureFixture[str],
):
    def draws(make: Any) -> bool:
        return can_draw(
            jf.make_env(
                "custom", make=make, num_envs=2, **({"pool": {"workers": 0}} if host else {})
            )
        )

    host = False

    assert draws(Playground)
    assert not draws(Clock)
    assert draws(
        lambda: from_brax.adapt(Clock(), name="clock")._replace(
            draw=lambda state: np.zeros((2, 2, 3), np.uint8)
        )
    )
    host = True
    assert not draws(Line)
    assert draws(Seen) and draws(Named) and draws(lambda: Named("rgb_array"))
    assert not draws(lambda: Named()), "its function takes no render_mode"
    assert not draws(Told)


class Seen(Line):
    """An environment on the host with pictures."""

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def render(self) -> np.ndarray:
        return np.zeros((2, 2, 3), np.uint8)


class Named(Seen):
    metadata: ClassVar = {"render_modes": ["rgb_array"]}


class Told(Seen):
    metadata: ClassVar = {"render_modes": ["human"]}


# Wrappers with statistics, and old interfaces, on the host.


class Own(gymnasium.wrappers.NormalizeObservation):
    """A user's subclass."""


class Around(gymnasium.Wrapper):
    """A user's wrapper."""


def host(make: Any, **options: Any) -> None:
    jf.make_env("custom", make=make, num_envs=2, **options).close()


OBS, REWARD = (
    "algo.normalize_observations=true (the default without images)",
    "algo.normalize_rewards=true (with on-policy",
)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: gymnasium.wrappers.NormalizeObservation(Line()),
            f"NormalizeObservation has running statistics|{OBS}",
        ),
        (
            lambda: Around(gymnasium.wrappers.NormalizeReward(Around(Line()))),
            f"NormalizeReward has|{REWARD}",
        ),
        (lambda: Around(Own(Line())), f"Own has running statistics|{OBS}"),
    ],
)
def test_a_wrapper_with_statistics_is_refused_also_inside(make: Any, words: str):
    with pytest.raises(ValueError) as caught:
        host(make)
    assert all(word in str(caught.value) for word in words.split("|"))


@pytest.mark.parametrize(
    "wrapper",
    ["NormalizeObservation", {"NormalizeReward": {"gamma": 0.9}}, "vector.NormalizeReward"],
)
def test_a_named_wrapper_with_statistics_is_refused(wrapper: Any):
    name = wrapper if isinstance(wrapper, str) else next(iter(wrapper))
    with pytest.raises(
        ValueError, match=r"wrappers: Normalize\w+ has running .* write algo.normalize_"
    ) as caught:
        jf.make_env("gymnasium", id="CartPole-v1", wrappers=[wrapper], num_envs=2)
    assert name.rpartition(".")[2] in str(caught.value)


def test_an_id_whose_registration_has_statistics_is_refused():
    def make() -> gymnasium.Env:
        return gymnasium.wrappers.NormalizeReward(Line())

    gymnasium.register("Normalized-v0", entry_point=make)
    try:
        with pytest.raises(
            ValueError, match=r"Normalized-v0: NormalizeReward has running statistics"
        ):
            jf.make_env("gymnasium", id="Normalized-v0", num_envs=2)
    finally:
        del gymnasium.registry["Normalized-v0"]


def test_evaluation_returns_the_environments_own_reward():
    """Check that a reward is not changed between the environment and the reported return."""
    env = jf.make_env("custom", make=lambda: gymnasium.wrappers.TimeLimit(Line(), 4), num_envs=2)
    algo = jf.ppo(rollout_length=4, num_minibatches=1, normalize_rewards=True)
    assert jf.learn(env, algo, total_steps=8, eval_episodes=2).summary["eval_return_mean"] == 4.0
    env.close()


class Old(Line):
    """The interface of Gym before 0.26: ``step`` has four results."""

    def step(self, action: Any) -> Any:
        return super().step(action)[0], 1.0, False, {}


class OldReset(Line):
    """Only an observation of ``reset``."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32)


class Seedless(Line):
    """No seed of ``reset``."""

    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(1, np.float32), {}


class NoGym:
    """Gym's interface without its class."""

    observation_space, action_space, reset, step = (
        Line.observation_space,
        Line.action_space,
        Line.reset,
        Line.step,
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            Old,
            "step returns 4 values: return obs, reward, terminated, truncated, info, as in Gymnasium",
        ),
        (
            lambda: gymnasium.wrappers.TimeLimit(Old(), 9),
            "step returns 4 values: return obs, reward, terminated",
        ),
        (
            lambda: gymnasium.wrappers.OrderEnforcing(OldReset()),
            "reset must be reset(self, *, seed=None, options=None)",
        ),
        (Seedless, "reset must be reset(self, *, seed=None, options=None) and return (obs, info)"),
        (
            NoGym,
            "returned NoGym, which is no gymnasium.Env: derive it from gymnasium.Env; reset returns (obs, info)",
        ),
    ],
)
def test_the_interface_of_old_gym_is_named(make: Any, words: str):
    with pytest.raises(ValueError) as caught:
        host(make, pool={"workers": 0})
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_delegating_wrapper_of_a_parallel_environment_is_called():
    from parallel_envs import Leaving

    class Tenfold:
        """A user's wrapper in PettingZoo's style."""

        def __init__(self, inside: Any):
            self.inside = inside

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inside, name)

        def step(self, actions: Any) -> Any:
            obs, reward, *others = self.inside.step(actions)
            return obs, {agent: 10 * one for agent, one in reward.items()}, *others

    made = jf.make_env(
        "custom", make=lambda: Tenfold(Leaving()), num_envs=2, pool={"workers": 0, "num_groups": 1}
    )
    made.reset(0)
    made.send(np.zeros((2, 3), np.int32), 0)
    assert made.recv(0).reward.tolist() == [[0.0, 100.0, 200.0]] * 2
    made.close()
