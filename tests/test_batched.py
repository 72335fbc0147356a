"""Simulators that step many environments at once: NumPy, PyTorch and JAX, each way to restart,
against one compiled `Env` with the same physics.
"""

import math
from importlib import import_module
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl_fast as jf
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.core import Box, EnvSpec, Timestep
from jaxrl_fast.envs.env import Env, vectorize
from jaxrl_fast.envs.errors import EnvFailed
from jaxrl_fast.envs.from_batched import make_host
from jaxrl_fast.runtime import graph as graphs

NUM_ENVS, LIMIT, FAST = 4, 7, 1.2
ALGORITHMS = {"ppo": lambda: jf.ppo(rollout_length=12), "sac": lambda: jf.sac(rollout_length=12)}
LIBRARIES = ["numpy", "jax", "torch"]
RESTARTS = ["SameStep", "NextStep", "Disabled"]


class Swing(NamedTuple):
    """State of a pendulum."""

    angle: jax.Array
    speed: jax.Array


def compiled() -> Env:
    """A pendulum that starts at the same angle, ends when it is too fast, and is limited to 7
    steps.
    """

    def observe(state):
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.speed])

    def reset(key, params):
        state = Swing(jnp.float32(1.0), jnp.float32(0.0))
        return state, observe(state)

    def step(state, action, key):
        speed = state.speed + 0.2 * jnp.sin(state.angle) + 0.3 * action[0]
        state = Swing(state.angle + 0.2 * speed, speed)
        obs, reward = observe(state), -(state.angle**2) - 0.1 * speed**2
        return state, Timestep(obs, obs, reward, jnp.abs(speed) > FAST, jnp.zeros((), bool))

    spec = EnvSpec(
        "swing", jax.ShapeDtypeStruct((3,), jnp.float32), Box(-np.ones(1), np.ones(1)), LIMIT
    )
    return Env(spec, reset, step)


class Pendulums:
    """The same physics for many at once. Its arrays are overwritten in each step, as simulators do."""

    single_observation_space = spaces.Box(-np.inf, np.inf, (3,))
    single_action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(
        self,
        num_envs=NUM_ENVS,
        library="numpy",
        restart="SameStep",
        finals=True,
        dtype="float32",
        four=False,
    ):
        self.num_envs, self.library, self.autoreset_mode, self.finals, self.four = (
            num_envs,
            library,
            restart,
            finals,
            four,
        )
        self.xp = import_module({"jax": "jax.numpy"}.get(library, library))
        self.dtype = getattr(self.xp, dtype)
        self.closed = False
        self.obs = self.xp.zeros((num_envs, 3), dtype=self.dtype)
        self.reset()

    def write(self, whole, values):
        """Write in place, or as a new array in JAX."""
        if self.library == "jax":
            return values
        whole[...] = values
        return whole

    def rows(self, mask):
        return (
            self.xp.where(mask, self.xp.ones_like(self.speed), self.xp.zeros_like(self.speed)) > 0
        )

    def reset(self, seed=None, options=None):
        xp = self.xp
        if options is None:
            self.angle = xp.ones((self.num_envs,), dtype=self.dtype)
            self.speed, self.time = xp.zeros_like(self.angle), xp.zeros_like(self.angle)
            self.over = self.speed > 1.0
        else:
            self.begin(options["reset_mask"])
        self.obs = self.write(self.obs, self.seen())
        return self.obs, {}

    def seen(self):
        return self.xp.stack([self.xp.cos(self.angle), self.xp.sin(self.angle), self.speed], -1)

    def begin(self, mask):
        one, zero = self.xp.ones_like(self.angle), self.xp.zeros_like(self.angle)
        self.angle = self.xp.where(mask, one, self.angle)
        self.speed, self.time = (
            self.xp.where(mask, zero, self.speed),
            self.xp.where(mask, zero, self.time),
        )

    def step(self, action):
        xp, skipped = self.xp, self.over
        speed = self.speed + 0.2 * xp.sin(self.angle) + 0.3 * action[:, 0]
        self.angle, self.speed, self.time = self.angle + 0.2 * speed, speed, self.time + 1
        reward = -(self.angle**2) - 0.1 * speed**2
        terminated, truncated, info = xp.abs(speed) > FAST, self.time >= LIMIT, {}
        truncated = truncated & ~terminated
        if self.autoreset_mode == "NextStep":
            self.begin(skipped)
            reward = xp.where(skipped, xp.zeros_like(reward), reward)
            terminated, truncated = terminated & ~skipped, truncated & ~skipped
            self.over = terminated | truncated
        elif self.autoreset_mode == "SameStep":
            if self.finals:
                info["final_obs"] = self.seen()
            self.begin(terminated | truncated)
        self.obs = self.write(self.obs, self.seen())
        if self.four:
            return self.obs, reward, terminated | truncated, {"time_outs": truncated}
        return self.obs, reward, terminated, truncated, info

    def close(self):
        self.closed = True


def simulator(library, **options):
    if library == "torch":
        pytest.importorskip("torch")
    return Pendulums(library=library, **options)


def host(library="numpy", num_envs=NUM_ENVS, **options):
    made = simulator(library, num_envs=num_envs, **options)
    return make_host(
        lambda n: simulator(library, num_envs=n, **options), made, name="swing", num_envs=num_envs
    )


def actions_of(steps, num_envs=NUM_ENVS):
    return np.random.default_rng(0).uniform(-1, 1, (steps, num_envs, 1)).astype(np.float32)


def by_compiled(actions):
    """Step the compiled environment with the given actions; return the steps."""
    vec = vectorize(compiled(), num_envs=actions.shape[1])
    state, obs = vec.reset(jax.random.key(0))
    seen = []
    for action in actions:
        state, step = vec.step(
            state, action, jax.random.key(0), vec.draw_fresh(jax.random.key(0), 1), 0
        )
        seen.append((obs, step))
        obs = step.obs
    return seen


def same(ours, theirs):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("restart", ["SameStep", "Disabled"])
def test_steps_equal_those_of_a_compiled_environment_with_the_same_physics(library, restart):
    env, actions = host(library, restart=restart), actions_of(30)
    first = env.reset(0)
    ended = 0
    for action, (obs, step) in zip(actions, by_compiled(actions), strict=True):
        same(first, obs)
        env.send(action, 0)
        got = env.recv(0)
        jax.tree.map(same, got[:5], tuple(step[:5]))
        same(got.episode_return, step.episode.returns)
        same(got.episode_length, step.episode.length)
        first = got.obs
        ended += int((got.terminated | got.truncated).sum())
    assert ended > 10
    assert env.steps() == 30 * NUM_ENVS


def replayed(rollout, lost):
    """Check a rollout on the device against the compiled environment under its actions, but for
    lost successors.
    """
    for t, (obs, step) in enumerate(by_compiled(np.asarray(rollout.action))):
        same(rollout.obs[t], obs)
        same(rollout.next_obs[t], np.where(lost[t], rollout.obs[t], step.next_obs))
        ours = rollout.reward, rollout.terminated, rollout.truncated
        jax.tree.map(same, tuple(x[t] for x in ours), tuple(step[2:5]))


def sampled(env, name, ticks):
    """Return the joined rollouts of some ticks, and the number of episodes in their metrics."""
    algorithm = ALGORITHMS[name]()
    graph, _ = build_graph(env, algorithm)
    state = graphs.init(graph, jax.random.key(0), algorithm.hyper)
    sample, rollouts, episodes = graph.fragments[0], [], 0
    private, inputs = (
        state.private["sample"],
        {name: state.channels[name] for name in graph.fragments[0].reads},
    )
    for tick in range(ticks):
        private, written, metrics = sample.step(
            private, inputs, algorithm.hyper, jax.random.key(tick)
        )
        rollouts.append(jax.device_get(written["rollout"]._replace(extras=())))
        episodes += int(metrics["episodes"])
    return jax.tree.map(lambda *x: np.concatenate(x), *rollouts), episodes


@pytest.mark.parametrize("library", ["jax", "torch"])
@pytest.mark.parametrize(
    "options", [{}, {"restart": "Disabled"}, {"four": True}, {"dtype": "float64"}]
)
@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_rollout_on_the_device_is_what_the_simulator_did(library, options, algo):
    """Also though it overwrites its arrays. Successors of limits are lost in RSL-RL's form, so only
    rewards count.
    """
    if options.get("dtype") == "float64" and library == "jax":
        pytest.skip("JAX has 32 bits")
    env = host(library, **options)
    assert env.on_device is not None
    rollout, episodes = sampled(env, algo, 3)
    done = rollout.terminated | rollout.truncated
    assert episodes == done.sum() > 5
    same(rollout.first[1:], done[:-1])
    replayed(rollout, done[..., None] & bool(options.get("four")))


def test_converted_arrays_are_named_once():
    env = host("torch", dtype="float64")
    sampled(env, "sac", 2)
    (line,) = env.events()
    assert "float64" in line
    assert env.events() == []


def test_without_terminal_observations_the_one_before_takes_their_place_and_a_line_says_so():
    env = host(finals=False)
    before = env.reset(0)
    for _ in range(LIMIT):
        env.send(np.full((NUM_ENVS, 1), -0.5, np.float32), 0)
        step = env.recv(0)
        before, last = step.obs, before
    assert step.truncated.all()
    np.testing.assert_array_equal(step.next_obs, last)
    assert "no info['final_obs']" in env.events()[0]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_step_that_only_begins_an_episode_is_not_counted(library):
    """The law of `Restart.NEXT_STEP` where rows cannot be reset: one step more, truncated, of
    length and reward 0.
    """
    env = host(library, restart="NextStep")
    obs, lengths, skipped = env.reset(0), [], 0
    last = np.zeros(NUM_ENVS, bool)
    for action in actions_of(40):
        env.send(action, 0)
        step = env.recv(0)
        done = step.terminated | step.truncated
        skipped += (last & (step.episode_length == 0)).sum()
        assert (step.reward[last] == 0).all() and step.truncated[last].all()
        same(
            step.obs[last],
            np.broadcast_to(np.float32([np.cos(1), np.sin(1), 0]), step.obs[last].shape),
        )
        lengths += step.episode_length[done & ~last].tolist()
        last = done & ~last
        obs = step.obs
    assert max(lengths) == LIMIT and min(lengths) > 0 and skipped > 5
    del obs


def vector(mode, **options):
    wrapped = {"autoreset_mode": gymnasium.vector.AutoresetMode(mode)}
    return gymnasium.make_vec(
        "CartPole-v1", num_envs=3, vectorization_mode="sync", vector_kwargs=wrapped, **options
    )


@pytest.mark.parametrize("mode", RESTARTS)
def test_gymnasiums_vectors_play_the_same_in_every_mode(mode):
    """Their rows are reset at once, so each mode gives the same episodes, with true successors."""
    env = make_host(lambda n: vector(mode), vector(mode), name="cartpole", num_envs=3)
    alone = [gymnasium.make("CartPole-v1") for _ in range(3)]
    env.reset(5)
    obs = [one.reset(seed=5 + i)[0] for i, one in enumerate(alone)]
    rng, ends = np.random.default_rng(0), 0
    for _ in range(40):
        action = rng.integers(2, size=3).astype(np.int32)
        env.send(action, 0)
        step = env.recv(0)
        for i, one in enumerate(alone):
            obs[i], reward, terminated, truncated, _ = one.step(int(action[i]))
            np.testing.assert_array_equal(step.next_obs[i], obs[i])
            assert (step.reward[i], step.terminated[i], step.truncated[i]) == (
                reward,
                terminated,
                truncated,
            )
            ends += terminated
            if terminated:
                one.reset()
    assert ends > 2


class Dictionary(Pendulums):
    """Observations for a policy and a critic, as Isaac Lab's, without spaces."""

    single_observation_space = single_action_space = None
    num_actions = 1

    def reset(self, seed=None, options=None):
        obs, info = super().reset(seed, options)
        return {"policy": obs[:, :2], "critic": obs}, info

    def step(self, action):
        obs, *others = super().step(action)
        return {"policy": obs[:, :2], "critic": obs}, *others


def make_dictionary(num_envs, finals=False):
    return Dictionary(num_envs, finals=finals)


def test_observations_by_name_without_spaces_train_a_policy_and_a_critic():
    env = jf.make_env("custom", make=make_dictionary, num_envs=8)
    assert {name: entry.shape for name, entry in env.spec.obs.items()} == {
        "critic": (3,),
        "policy": (2,),
    }
    result = jf.learn(env, jf.ppo(policy_keys=("policy",), rollout_length=16), total_steps=512)
    assert result.policy(jax.tree.map(lambda x: x[0], env.reset(0))).shape == (1,)
    env.close()


BAD = [
    (dict(num_envs=5), "made 4 environments: write num_envs=4"),
    (dict(num_seeds=2), "serves one seed: leave num_seeds out"),
    (dict(pool={"workers": 2}), "has no pool: leave pool out"),
    (dict(episode_length=5), "sets its limit: leave env.episode_length out"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_what_a_simulator_does_not_support_is_one_line(options, message):
    given = {"num_envs": NUM_ENVS} | options
    with pytest.raises(ValueError, match=message) as error:
        jf.make_env("custom", make=fixed, **given)
    assert "\n" not in str(error.value)


def fixed():
    return Pendulums()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: setattr(made, "single_action_space", None), "has no single_action_space"),
        (
            lambda made: setattr(made, "autoreset_mode", "Sometimes"),
            "autoreset_mode=Sometimes: write one of SameStep",
        ),
        (lambda made: setattr(made, "single_observation_space", spaces.Text(3)), "Text"),
    ],
)
def test_a_simulator_that_cannot_be_read_is_one_line(change, message):
    made = Pendulums()
    change(made)
    with pytest.raises(ValueError, match=message):
        make_host(lambda n: made, made, name="swing", num_envs=NUM_ENVS)


def test_a_step_of_another_form_is_one_line():
    made = Pendulums()
    env = make_host(lambda n: made, made, name="swing", num_envs=NUM_ENVS)
    made.step = lambda action: made.obs
    env.reset(0)
    env.send(actions_of(1)[0], 0)
    with pytest.raises(ValueError, match="step returned ndarray: return"):
        env.recv(0)


@pytest.mark.parametrize("library", LIBRARIES)
def test_training_evaluation_and_overlap(library, tmp_path):
    """The command's way: evaluation makes another simulator of as many environments as episodes."""
    if library == "torch":
        pytest.importorskip("torch")
    env = jf.make_env("custom", make=make_of, library=library, num_envs=NUM_ENVS)
    options = {"total_steps": 400, "overlap": "sampling", "eval_every": 200, "eval_episodes": 6}
    result = jf.learn(
        env, jf.sac(rollout_length=4, batch_size=16), run_dir=tmp_path / "run", **options
    )
    assert np.isfinite(result.summary["eval_return_mean"])
    env.close()


def make_of(num_envs, library):
    return Pendulums(num_envs, library)


def test_check_finds_what_is_outside_of_its_space():
    lines = []
    jf.check_env(
        lambda: jf.make_env("custom", make=small_space, num_envs=2), num_steps=50, tell=lines.append
    )
    assert any(line.startswith("wrong") and "not within -0.5 to 0.5" in line for line in lines), (
        lines
    )
    lines.clear()
    assert not jf.check_env(
        lambda: jf.make_env("custom", make=make_of, library="numpy", num_envs=2), tell=lines.append
    ).wrong


class SmallSpace(Pendulums):
    single_observation_space = spaces.Box(-0.5, 0.5, (3,))


def small_space(num_envs):
    return SmallSpace(num_envs)


def test_devices_of_their_own_for_sampling_and_learning():
    """A simulator stays with the group that samples; rollouts move to the learner."""
    env = jf.make_env("custom", make=make_of, library="jax", num_envs=NUM_ENVS)
    options = {
        "total_steps": 200,
        "placement": "sampler_learner",
        "devices": 2,
        "overlap": "sampling",
    }
    result = jf.learn(env, jf.sac(rollout_length=4, batch_size=16), **options)
    assert result.summary["env_steps"] >= 200
    env.close()


def test_pytorchs_arrays_are_read_where_they_lie():
    made = simulator("torch", restart="Disabled")
    env = make_host(lambda n: made, made, name="swing", num_envs=NUM_ENVS)
    env.on_device.reset(0)
    step = env.on_device.step(jnp.zeros((NUM_ENVS, 1)))
    assert step.obs.unsafe_buffer_pointer() == made.obs.data_ptr()
    assert env.events() == []


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("bounds", [(-2.0, 3.0), (-math.inf, math.inf)])
def test_boxes_of_other_libraries_are_read(batched, bounds):
    """mjlab's have bounds that are one number, and Isaac Lab's have none; both also as spaces of
    all environments.
    """
    made = Pendulums()
    for name, space in (
        ("observation", Foreign((3,), -math.inf, math.inf)),
        ("action", Foreign((1,), *bounds)),
    ):
        whole = Foreign((NUM_ENVS, *space.shape), space.low, space.high)
        setattr(made, f"single_{name}_space", None if batched else space)
        setattr(made, f"{name}_space", whole)
    env = make_host(lambda n: made, made, name="swing", num_envs=NUM_ENVS)
    assert env.spec.obs.shape == (3,)
    wanted = bounds if math.isfinite(bounds[0]) else (-1.0, 1.0)
    np.testing.assert_array_equal(np.ravel(env.spec.action), wanted)


class Foreign(NamedTuple):
    shape: tuple
    low: float
    high: float


class Undeclared(gymnasium.vector.VectorEnv):
    """ManiSkill's form: a `VectorEnv` that declares no mode, and restarts in the same step."""

    single_observation_space, single_action_space = (
        Pendulums.single_observation_space,
        Pendulums.single_action_space,
    )

    def __init__(self, num_envs):
        self.num_envs, self.inner = num_envs, Pendulums(num_envs)

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.inner.step(action)
        info = {"final_observation": info["final_obs"]} if (terminated | truncated).any() else {}
        return obs, reward, terminated, truncated, info


class LikeIsaacLab(gymnasium.Env):
    """A `gymnasium.Env` of many, which ``gymnasium.make`` wraps."""

    def __init__(self, num_envs):
        self.num_envs, self.inner = num_envs, Pendulums(num_envs, "jax", four=False)
        self.single_observation_space = Pendulums.single_observation_space
        self.single_action_space = Pendulums.single_action_space
        self.observation_space = spaces.Box(-np.inf, np.inf, (num_envs, 3))
        self.action_space = spaces.Box(-1.0, 1.0, (num_envs, 1))
        self.max_episode_length = float(LIMIT)

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed)

    def step(self, action):
        return self.inner.step(action)


gymnasium.register("LikeIsaacLab-v0", LikeIsaacLab, disable_env_checker=True)


@pytest.mark.parametrize(
    "make", [Undeclared, lambda num_envs: gymnasium.make("LikeIsaacLab-v0", num_envs=num_envs)]
)
def test_simulators_as_their_users_make_them(make):
    env, actions = (
        jf.make_env("custom", make=lambda num_envs: make(num_envs), num_envs=NUM_ENVS),
        actions_of(30),
    )
    assert env.spec.max_episode_steps in (None, LIMIT)
    env.reset(0)
    for action, (_, step) in zip(actions, by_compiled(actions), strict=True):
        env.send(action, 0)
        got = env.recv(0)
        jax.tree.map(same, got[:5], tuple(step[:5]))
        same(got.episode_length, step.episode.length)


def changed(**changes):
    """A simulator whose results are changed."""

    class Changed(Pendulums):
        def reset(self, seed=None, options=None):
            return changes.get("reset", lambda result: result)(super().reset(seed, options))

        def step(self, action):
            return changes.get("step", lambda result: result)(super().step(action))

    return lambda: Changed()


def columns(result):
    obs, *ends, info = result
    return obs, *(x[:, None] for x in ends), info


FORMS = {
    "columns": changed(step=columns),
    "no info": changed(step=lambda result: (*result[:4], None)),
    "only observations": changed(reset=lambda result: result[0]),
    "privileged": changed(
        step=lambda r: (
            r[0],
            r[0],
            r[1],
            r[2] | r[3],
            {"time_outs": r[3], "final_obs": r[4]["final_obs"]},
        )
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_give_the_same_steps(form):
    env, actions = jf.make_env("custom", make=FORMS[form], num_envs=NUM_ENVS), actions_of(20)
    env.reset(0)
    for action, (_, step) in zip(actions, by_compiled(actions), strict=True):
        env.send(action, 0)
        got = env.recv(0)
        jax.tree.map(same, (got.obs, *got[2:5]), (step.obs, *step[2:5]))


def test_columns_on_the_device():
    made = simulator("torch")
    own = made.step
    made.step = lambda action: columns(own(action))
    env = make_host(lambda n: made, made, name="swing", num_envs=NUM_ENVS)
    rollout, _ = sampled(env, "sac", 2)
    replayed(rollout, np.zeros((*rollout.reward.shape, 1), bool))


def test_numpy_rewards_beside_jax_observations():
    made = simulator("jax")
    own = made.step
    made.step = lambda action: (lambda o, r, *rest: (o, np.asarray(r, np.float64), *rest))(
        *own(action)
    )
    env = make_host(lambda n: made, made, name="swing", num_envs=NUM_ENVS)
    rollout, _ = sampled(env, "sac", 2)
    replayed(rollout, np.zeros((*rollout.reward.shape, 1), bool))


def fail(result):
    raise RuntimeError("the cable is out")


def test_an_error_of_the_simulator_is_one_line_and_its_traceback():
    with pytest.raises(ValueError, match="failed: RuntimeError: the cable is out") as error:
        jf.make_env("custom", make=changed(reset=fail), num_envs=NUM_ENVS)
    assert "\n" not in str(error.value)
    env = jf.make_env("custom", make=changed(step=fail), num_envs=NUM_ENVS)
    env.reset(0)
    env.send(actions_of(1)[0], 0)
    with pytest.raises(EnvFailed, match="step failed: RuntimeError: the cable is out"):
        env.recv(0)


def test_an_observation_that_does_not_fit_its_space_is_one_line():
    made = Pendulums()
    made.single_observation_space = spaces.Box(-1.0, 1.0, (1, 3))
    with pytest.raises(
        ValueError, match=r"observes shape \[3\] in each environment: its space has \[1, 3\]"
    ):
        make_host(lambda n: made, made, name="swing", num_envs=NUM_ENVS)


@pytest.mark.parametrize("num_envs", [4, 8])
def test_spaces_of_all_environments_are_told_apart_by_the_observations(num_envs):
    """Also images whose height is the number of environments, and dictionaries."""

    class Camera:
        def __init__(self, whole):
            self.num_envs, shape = num_envs, ((num_envs,) if whole else ()) + (8, 8, 3)
            self.observation_space = spaces.Dict({"camera": spaces.Box(0, 255, shape, np.uint8)})
            self.action_space = spaces.Box(-1.0, 1.0, ((num_envs, 2) if whole else (2,)))

        def reset(self):
            return {"camera": np.zeros((num_envs, 8, 8, 3), np.uint8)}, {}

        def step(self, action):
            return *self.reset()[:1], *np.zeros((3, num_envs), bool), {}

    for whole in (False, True):
        made = Camera(whole)
        spec = make_host(lambda n, made=made: made, made, name="camera", num_envs=num_envs).spec
        assert (spec.obs["camera"].shape, spec.obs["camera"].dtype) == ((8, 8, 3), np.uint8)
        assert spec.action.low.shape == (2,)


def test_a_simulator_of_a_fixed_size_is_evaluated():
    env = jf.make_env("custom", make=fixed, num_envs=NUM_ENVS)
    result = jf.learn(
        env, jf.sac(rollout_length=4, batch_size=16), total_steps=200, eval_episodes=10
    )
    assert np.isfinite(result.summary["eval_return_mean"])


class Counting(gymnasium.Env):
    """Counts its steps, with a dictionary of observations and numbers that do not begin at 0."""

    observation_space = spaces.Dict(
        {"steps": spaces.Box(-9.0, 9.0, (2,)), "kind": spaces.Discrete(3, start=1)}
    )
    action_space = spaces.Discrete(2, start=5)

    def seen(self):
        return {"steps": np.full(2, self.time, np.float32), "kind": 1 + self.time % 3}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def step(self, action):
        assert action in self.action_space
        self.time += 1
        return self.seen(), 1.0, False, self.time >= 4, {}


@pytest.mark.parametrize("mode", RESTARTS)
def test_dictionaries_and_numbers_of_gymnasiums_vectors(mode):
    made = gymnasium.vector.SyncVectorEnv(
        [Counting] * 3, autoreset_mode=gymnasium.vector.AutoresetMode(mode)
    )
    env = make_host(lambda n: made, made, name="counting", num_envs=3)
    env.reset(0)
    for step in range(1, 10):
        env.send(np.arange(3, dtype=np.int32) % 2, 0)
        got, time = env.recv(0), (step - 1) % 4 + 1
        np.testing.assert_array_equal(got.next_obs["steps"], np.full((3, 2), time))
        np.testing.assert_array_equal(got.next_obs["kind"], np.eye(3)[[time % 3] * 3])
        np.testing.assert_array_equal(got.obs["steps"], np.full((3, 2), time % 4))
        assert got.truncated.tolist() == [time == 4] * 3
    assert env.events() == []
