"""A user's algorithm, outside of the package, in every command:
``algo=custom algo.make=my_algos.awr``.
"""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import yaml
from many_commands import Commands, refused
from random_batches import drawn_batch, drawn_learned

import jaxrl_fast as jf
from jaxrl_fast import train
from jaxrl_fast.assembly import bind
from jaxrl_fast.commands.run_config import compose, make_algorithm
from jaxrl_fast.learning.algorithm import Learned, init_params
from jaxrl_fast.learning.updates import statistics_of
from jaxrl_fast.numerics.optimizers import Linear
from jaxrl_fast.settings.run import flat_settings
from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.settings.signatures import algo_keys
from jaxrl_fast.training.run_folder import read_run
from jaxrl_fast.views.report_page import command_lines

ROOT = Path(__file__).parent.parent
OTHERS = '''

from collections import namedtuple


def awr(rollout_length: int = 64, num_epochs: int = 8, num_minibatches: int = 8, **rates: float):
    """Make it by a function."""
    sizes = dict(rollout_length=rollout_length, num_epochs=num_epochs)
    return Awr(**sizes, num_minibatches=num_minibatches, **rates)


def needs_size(*, size: int):
    """Needs an argument.

    Args:
        size: Size of the network.
    """
    return awr()


def sized(width: int = 32, steps: tuple[int, ...] = (4,), kind="plain", **rates: float):
    return awr(rollout_length=width)._replace(options={})


def wide_ppo(learning_rate=1e-3, width=16):
    import jaxrl_fast

    sizes = dict(rollout_length=8, num_minibatches=2)
    return jaxrl_fast.ppo(learning_rate=learning_rate, policy_hidden=(width,), value_hidden=(width,), **sizes)


def fails():
    raise KeyError("nothing here")


def is_none():
    return None


def lacks_discount():
    return awr()._replace(hyper=namedtuple("H", "rate")(1.0))


def fails_to_build():
    return awr()._replace(build=lambda spec, num_envs: spec.nothing)
'''
SOURCE = (ROOT / "examples" / "own_algorithm.py").read_text().partition("\ndef main(")[0] + OTHERS
OWN = "algo.make=my_algos.awr"
SMALL = [
    "env=cartpole",
    "num_envs=4",
    "total_steps=1024",
    "eval.every=512",
    "eval.episodes=4",
    "algo=custom",
    "algo.rollout_length=16",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a module of algorithms."""
    (tmp_path / "my_algos.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_algos", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def trained(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of algorithms and a run of one of them."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "my_algos.py").write_text(SOURCE)
    ended = commands.run(
        folder, "train", *SMALL, OWN, "algo.temperature=0.7", "run_dir=run", trains=True
    )
    assert ended.status == 0, ended.err
    return folder


@pytest.fixture
def run(folder: Path, trained: Path) -> Path:
    """A copy of that run in the user's folder."""
    shutil.copytree(trained / "run", folder / "run")
    return folder / "run"


def test_keys_of_a_declared_algorithm_are_its_fields(folder: Path):
    keys = algo_keys("my_algos.Awr")
    assert (
        keys["algo.temperature"].text == "Advantage by which the weight of an action grows e-fold."
    )
    assert (keys["algo.learning_rate"].default, keys["algo.num_epochs"].type) == (1e-3, int)
    assert "algo.gae_lambda" in keys and "algo.clip_range" in keys  # of PpoHyper
    words = ["env=cartpole", "algo=custom", "algo.make=my_algos.Awr", "algo.num_epochs=2"]
    assert make_algorithm(compose([*words, "algo.temperature=0.7"])).hyper.temperature == 0.7
    with pytest.raises(ConfigError, match=r"did you mean algo\.temperature"):
        compose([*words, "algo.temprature=1"])
    with pytest.raises(ConfigError, match=r"algo\.temperature=-1: write"):
        compose([*words, "algo.temperature=-1"])


def test_the_command_repeats_a_run_of_the_library_with_a_declared_algorithm(folder: Path):
    from my_algos import Awr

    env = jf.make_env("cartpole", num_envs=4)
    algorithm = Awr(rollout_length=8, num_minibatches=2, temperature=0.7)
    jf.learn(env, algorithm, total_steps=64, eval_every=0, run_dir=folder / "run", log="none")
    run = compose([f"config={folder / 'run' / 'config.yaml'}"])
    assert run.algo == "my_algos.Awr"
    again = make_algorithm(run)
    assert again.hyper == algorithm.hyper and again.options == algorithm.options


def test_keys_follow_from_the_signature_and_the_hyper_parameters(folder: Path):
    keys = algo_keys("my_algos.sized")
    assert {
        "algo.width",
        "algo.steps",
        "algo.kind",
        "algo.temperature",
        "algo.learning_rate",
    } <= set(keys)
    run = compose(
        [
            "env=cartpole",
            "algo=custom",
            "algo.make=my_algos:sized",
            "algo.learning_rate=linear:1e-3:0",
        ]
    )
    assert run.algo == "my_algos.sized" and run.algo_options["learning_rate"] == Linear(1e-3, 0.0)
    assert run.algo_options["steps"] == (4,) and run.algo_options["discount"] == 0.99
    assert make_algorithm(run).options == {"width": 32, "steps": [4], "kind": "plain"}
    with pytest.raises(ConfigError, match=r"algo\.width=x: write a whole number"):
        compose(["env=cartpole", "algo=custom", "algo.make=my_algos.sized", "algo.width=x"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["algo=custom"], "algo=custom needs algo.make: write for example"),
        (
            ["algo=ppo", "algo.make=my_algos.awr"],
            "algo.make=my_algos.awr has no effect with algo=ppo",
        ),
        (["algo=custom", "algo.make=my_algos"], "write the function with its module"),
        (["algo=custom", "algo.make=my_algos.nothing"], "my_algos has no function 'nothing'"),
        (["algo=custom", "algo.make=nowhere.awr"], "cannot import nowhere"),
        (
            ["algo=custom", "algo.make=my_algos.awr", "algo.temprature=1"],
            "did you mean algo.temperature",
        ),
        (["algo=custom", "algo.make=my_algos.awr", "precision=bf16"], "leave precision out"),
        (["algo=custom", "algo.make=my_algos.needs_size"], "needs algo.size: write a value"),
        (
            ["algo=custom", "algo.make=my_algos.fails"],
            "my_algos.fails failed: KeyError: 'nothing here'",
        ),
        (
            ["algo=custom", "algo.make=my_algos.is_none"],
            "returned NoneType: return a jaxrl_fast.Algorithm",
        ),
        (["algo=custom", "algo.make=my_algos.lacks_discount"], "lack discount and reward_scale"),
        (
            ["algo=custom", "algo.make=my_algos.fails_to_build"],
            "fails with CartPole-v1: AttributeError",
        ),
    ],
)
def test_mistakes_end_in_one_line(
    folder: Path, commands: Commands, words: list[str], expected: str
):
    assert expected in refused(commands, folder, "train", "env=cartpole", "total_steps=100", *words)


def test_every_command_takes_the_run(run: Path, commands: Commands):
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert settings["algo"]["name"] == "custom" and settings["algo"]["make"] == "my_algos.awr"
    assert settings["algo"]["temperature"] == 0.7 and settings["algo"]["max_weight"] == 20.0
    for command, *words in (
        ["evaluate", "run", OWN, "episodes=4"],
        ["evaluate", "run", OWN, "episodes=4", "sample=true"],
        ["render", "run", OWN, "seconds=1", "width=64"],
        ["export", "run", OWN, "formats=jax"],
        ["train", "resume=run", OWN, "total_steps=1536"],
    ):
        ended = commands.run(run.parent, command, *words, trains=True)
        assert ended.status == 0, (command, ended.err)
    assert (run / "policy" / "policy.jax").exists() and (run / "policy.gif").exists()
    # a file that the user names may name code
    repeated = compose([f"config={run / 'config.yaml'}"])
    assert flat_settings(repeated)["algo.make"] == "my_algos.awr"
    words = dict(command_lines(read_run(run)))
    assert (
        all(OWN in words[name] for name in ("evaluate", "export", "resume"))
        and OWN not in words["repeat"]
    )


def test_a_factory_with_other_arguments_than_the_one_it_calls_is_loaded_again(
    folder: Path, commands: Commands
):
    own = "algo.make=my_algos.wide_ppo"
    words = [
        "env=cartpole",
        "algo=custom",
        own,
        "algo.width=8",
        "total_steps=1024",
        "run_dir=wide",
        "eval.beside=false",
    ]
    for command, *more in (
        ["train", *words],
        ["evaluate", "wide", own, "episodes=4"],
        ["export", "wide", own],
    ):
        ended = commands.run(folder, command, *more, trains=True)
        assert ended.status == 0, (command, ended.err)


LOADING = (
    ["evaluate", "run"],
    ["render", "run"],
    ["export", "run"],
    ["train", "resume=run", "total_steps=2048"],
)


def test_a_folder_is_never_executed(run: Path, commands: Commands):
    (run.parent / "my_algos.py").write_text(
        "from pathlib import Path\nPath('executed').touch()\n" + SOURCE
    )
    for command, *words in LOADING:
        # also leaves the folder as it was
        assert OWN in refused(commands, run.parent, command, *words)


def test_changed_source_is_told_in_one_line(run: Path, commands: Commands):
    (run.parent / "my_algos.py").write_text(SOURCE.replace("hidden=(64, 64)", "hidden=(32,)"))
    for command, *words in LOADING:
        ended = commands.run(run.parent, command, *words, OWN, trains=True)
        (line,) = ended.err.splitlines()
        assert ended.status == 2 and ("other networks" in line or "is incompatible" in line), ended
    (run.parent / "my_algos.py").unlink()
    for command, *words in LOADING:
        assert "cannot import my_algos" in refused(commands, run.parent, command, *words, OWN)


def test_the_library_loads_it_with_a_factory_or_an_algorithm(run: Path):
    from my_algos import awr

    obs = np.array([0.01, 0.2, -0.03, 0.4], np.float32)
    actions = [
        int(jf.load_policy(run, algorithm=algorithm)(obs)) for algorithm in (awr, awr(num_epochs=1))
    ]
    assert actions[0] == actions[1]
    with pytest.raises(ValueError, match=r"algo\.make=my_algos\.awr, or load_policy"):
        jf.load_policy(run)
    with pytest.raises(
        ValueError,
        match=r"is missing in the file, float32\[.*\] in the networks: .* pass its factory",
    ):
        jf.load_policy(run, algorithm=jf.ppo(share_torso=True))


def test_a_resumed_run_reads_its_best_policy(run: Path, commands: Commands):
    """It did not, and wrote a worse one as the best, while only names of this package could be
    loaded.
    """
    shutil.copytree(run / "policy" / "best", run.parent / "before")
    lower = ["algo.learning_rate=0.0", "total_steps=1536"]
    assert commands.run(run.parent, "train", "resume=run", OWN, *lower, trains=True).status == 0
    summary = json.loads((run / "summary.json").read_text())
    assert np.isfinite(summary["best"]["fresh_return_mean"])


def test_a_command_in_another_folder_finds_the_module_there(
    run: Path, tmp_path_factory: pytest.TempPathFactory
):
    words = [
        sys.executable,
        "-m",
        "jaxrl_fast.evaluate",
        str(run),
        "algo.make=my_algos.awr",
        "episodes=2",
    ]
    here = subprocess.run(words, cwd=run.parent, capture_output=True, text=True, timeout=900)
    assert here.returncode == 0, here.stderr
    elsewhere = subprocess.run(
        words, cwd=tmp_path_factory.mktemp("other"), capture_output=True, text=True, timeout=900
    )
    assert elsewhere.returncode == 2 and "run from the folder that holds it" in elsewhere.stderr


def test_help_lists_its_keys(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert (
        train.main(["env=cartpole", "algo=custom", "algo.make=my_algos.needs_size", "--help"]) == 0
    )
    out = capsys.readouterr().out
    assert (
        "algo.size=VALUE" in out
        and "Size of the network" in out
        and "algo.make=my_algos.needs_size" in out
    )


TORSO = '''
import flax.linen as nn
import jax


class Attention(nn.Module):
    """Attention over the numbers of an observation."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        tokens = nn.Dense(self.width)(x[..., None])
        return nn.MultiHeadDotProductAttention(num_heads=1)(tokens, tokens).mean(axis=-2)


def attend(hidden, activation):
    return Attention(hidden[0])


def fails(hidden, activation):
    raise RuntimeError("no such layer")


def is_text(hidden, activation):
    return "no module"


class Whole(nn.Module):
    """Reads the observation, not its features: images of bytes, and an action."""

    width: int
    takes_observation = True

    @nn.compact
    def __call__(self, x):
        parts = [nn.Dense(self.width)(leaf.reshape(len(leaf), -1) / 1.0) for leaf in jax.tree.leaves(x)]
        return sum(map(nn.tanh, parts))


def whole(hidden, activation):
    return Whole(hidden[0])


class Head(nn.Module):
    """A head without a bias."""

    outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.outputs, use_bias=False)(nn.tanh(nn.Dense(8)(x)))


def head(hidden, activation, outputs):
    return Head(outputs)


def short(hidden, activation, outputs):
    return Head(outputs - 1)


class Wrong(nn.Module):
    how: str

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x)
        if self.how == "norm":
            return nn.BatchNorm(use_running_average=True)(x)
        if self.how == "counter":
            self.variable("calls", "count", jax.numpy.zeros, ())
            return x
        if self.how == "dropout":
            return nn.Dropout(0.5, deterministic=False)(x)
        return x[:-1] if self.how == "rows" else nn.Dense("three")(x)


def norm(hidden, activation):
    return Wrong("norm")


def dropout(hidden, activation):
    return Wrong("dropout")


def rows(hidden, activation):
    return Wrong("rows")


def counter(hidden, activation):
    return Wrong("counter")


class Normed(nn.Module):
    """A batch norm that sees when it learns."""

    @nn.compact
    def __call__(self, x, *, learning=False):
        return nn.tanh(nn.BatchNorm(use_running_average=not learning, momentum=0.5)(nn.Dense(8)(x)))


def normed(hidden, activation):
    return Normed()


def text(hidden, activation):
    return Wrong("text")
'''
NETWORK = "algo.network=my_nets.attend"
MAKERS = {
    "ppo": "cartpole",
    "dqn": "cartpole",
    "pqn": "cartpole",
    "impala": "cartpole",
    "sac_discrete": "cartpole",
}
MAKERS |= {"sac": "pendulum", "td3": "pendulum"}


@pytest.fixture
def nets(folder: Path) -> Path:
    (folder / "my_nets.py").write_text(TORSO)
    sys.modules.pop("my_nets", None)
    return folder


ON_POLICY = dict(rollout_length=8, num_minibatches=2)
REPLAY = dict(batch_size=8, buffer_size=64, warmup_steps=8, updates_per_tick=2, rollout_length=8)
SIZES = {
    "ppo": ON_POLICY,
    "impala": ON_POLICY,
    "pqn": ON_POLICY | {"epsilon": 0.1},
    "dqn": REPLAY | {"epsilon": 0.1},
}


@pytest.mark.parametrize(
    ("network", "algo"),
    [
        *(("residual", algo) for algo in MAKERS),
        ("my_nets.normed", "pqn"),
        ("my_nets.normed", "sac"),
    ],
)
def test_batch_norms_learn_in_every_algorithm(nets: Path, algo: str, network: str):
    algorithm = getattr(jf, algo)(network=network, **SIZES.get(algo, REPLAY))
    init, step = jf.make_train_step(tiny.line(discrete=MAKERS[algo] == "cartpole"), algorithm)
    state = jax.jit(init)(jax.random.key(0))
    tick = jax.jit(step)
    after, metrics = tick(tick(state)[0])  # the first may have no updates
    for part in (name for name, learned in state.channels.items() if isinstance(learned, Learned)):
        before, now = state.channels[part].params, after.channels[part].params
        for name in set(before) - {"temperature"}:
            both = list(
                zip(
                    *map(jax.tree.leaves, (statistics_of(before[name]), statistics_of(now[name]))),
                    strict=True,
                )
            )
            assert both and all(np.abs(a - b).max() > 0.0 for a, b in both), (part, name)
            if network == "residual":  # the constraint goes with the network
                held = (
                    algorithm.build(tiny.line(discrete=MAKERS[algo] == "cartpole").spec, 4)
                    .parts[part]
                    .networks[name]
                )
                jax.tree.map(
                    partial(np.testing.assert_allclose, atol=1e-6),
                    held.project(now[name]),
                    now[name],
                )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(metrics))


def test_batch_norms_of_agents_learn(nets: Path):
    for share in (True, False):
        env = jf.make_env("traffic_junction_4", num_envs=4)
        algorithm = jf.ippo(
            network="residual",
            share_parameters=share,
            policy_hidden=(8,),
            value_hidden=(8,),
            **ON_POLICY,
        )
        init, step = jf.make_train_step(env, algorithm)
        state = jax.jit(init)(jax.random.key(0))
        tick = jax.jit(step)
        after, _ = tick(tick(state)[0])
        before, now = (statistics_of(s.channels["actor"].params["policy"]) for s in (state, after))
        assert all(
            np.abs(a - b).max() > 0.0
            for a, b in zip(*map(jax.tree.leaves, (before, now)), strict=True)
        )


ACTOR_CRITIC = dict(policy_hidden=(4,), critic_hidden=(4,))
NARROW: dict[str, dict] = {
    "ppo": ON_POLICY | dict(policy_hidden=(4,), value_hidden=(4,)),
    "impala": ON_POLICY | dict(hidden=(4,)),
    "pqn": ON_POLICY | dict(q_hidden=(4,)),
    "dqn": REPLAY | dict(q_hidden=(4,)),
    "sac_discrete": REPLAY | ACTOR_CRITIC,
    **dict.fromkeys(("sac", "td3"), REPLAY | ACTOR_CRITIC | dict(num_critics=1)),
}


def torsos_of(params: Any) -> list[Any]:
    """Return the params of a network's torso, or of the torso of each network of an ensemble."""
    return [one["params"]["torso"] for one in (params if isinstance(params, tuple) else (params,))]


@pytest.mark.parametrize("algo", MAKERS)
def test_every_network_of_every_algorithm_learns_its_torso(nets: Path, algo: str):
    """Each has the params of the given module, and the loss has a slope along every weight of them.

    Gradients are enough: that optimizers step along all of them is compared in the tests of each
    algorithm. So is one module: all networks are made by `make_network`, to which the name of any
    torso is passed.
    """
    from my_nets import attend

    env, rng = tiny.line(discrete=MAKERS[algo] == "cartpole"), np.random.default_rng(1)
    agent = bind(getattr(jf, algo)(network=attend, **NARROW[algo]), env.spec, env.num_envs)
    learned, batch = drawn_learned(rng, agent.parts), drawn_batch(rng, env, agent)
    key, x = jax.random.key(0), jnp.zeros((1, 2))
    wanted = jax.tree.map(
        jnp.shape, jax.eval_shape(lambda: attend((4,), jnp.tanh).init(key, x))["params"]
    )
    found = jax.jit(
        lambda: {
            n: p.gradients(learned[n], learned, batch, key, agent.hyper).grads for n, p in parts
        }
    )
    parts = list(agent.parts.items())
    for name, grads in found().items():
        for network in set(agent.parts[name].networks) - {"temperature"}:
            for torso in torsos_of(grads[network]):
                assert jax.tree.map(jnp.shape, torso) == wanted
                kernels = [
                    leaf
                    for path, leaf in jax.tree.leaves_with_path(torso)
                    if path[-1].key == "kernel"
                ]
                assert all(np.abs(kernel).max() > 0.0 for kernel in kernels), (name, network)


def test_a_torso_by_name_replaces_the_default(nets: Path):
    for name, module in {
        "simba": "LayerNorm_0",
        "my_nets.attend": "MultiHeadDotProductAttention_0",
    }.items():
        part = (
            jf.dqn(network=name, q_hidden=(4,))
            .build(tiny.line(discrete=True).spec, 4)
            .parts["critic"]
        )
        (torso,) = torsos_of(
            jax.eval_shape(lambda part=part: init_params(part, jax.random.key(0)))["q"]
        )
        assert module in torso


def test_a_network_of_ones_own_goes_through_every_command(nets: Path, commands: Commands):
    words = [word for word in SMALL if word != "algo=custom"] + [
        "algo=ppo",
        "algo.num_minibatches=2",
        NETWORK,
    ]
    assert commands.run(nets, "train", *words, "run_dir=run", trains=True).status == 0
    for command, *words in LOADING:
        assert NETWORK in refused(commands, nets, command, *words)
        # flax's attention is not in our ONNX export
        words += ["formats=jax"] if command == "export" else []
        ended = commands.run(nets, command, *words, NETWORK, trains=True)
        assert ended.status == 0, (command, ended.err)
    with pytest.raises(ValueError, match=r"algo\.network=my_nets\.attend again"):
        jf.load_policy("run")
    assert jf.load_policy("run", algorithm=jf.ppo)(np.zeros(4, np.float32)) in (0, 1)
    assert NETWORK in dict(command_lines(read_run(nets / "run")))["evaluate"]


def test_a_function_in_python_is_a_network_and_its_path_is_stored(nets: Path):
    from my_nets import attend

    env, algo = (
        jf.make_env("cartpole", num_envs=4),
        jf.ppo(network=attend, rollout_length=16, num_minibatches=2),
    )
    jf.learn(env, algo, total_steps=64, eval_episodes=2, eval_every=64, run_dir="run")
    assert (
        json.loads(Path("run/policy/policy.json").read_text())["made_by"]["options"]["network"]
        == "my_nets.attend"
    )
    assert jf.load_policy("run", algorithm=algo)(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (dict(network="simbaa"), "network=simbaa: write mlp, residual, simba or my_package.make"),
        (dict(network="my_nets.nothing"), "my_nets has no function 'nothing'"),
        (dict(network="my_nets.fails"), "my_nets.fails failed: RuntimeError: no such layer"),
        (dict(network="my_nets.is_text"), "returned str: return a module of flax.linen"),
        (dict(network="simba", q_hidden=(64, 32)), "write at least one size, all equal"),
        (
            dict(network="simba", noisy=True),
            "network=simba has no noise, no dropout and no implicit quantiles",
        ),
        (
            dict(network="residual", value_head="implicit", num_atoms=8),
            "network=residual has no noise, no dropout",
        ),
        (
            dict(network="my_nets.attend", value_head="implicit", num_atoms=8),
            "my_nets.attend has no noise, no dropout",
        ),
        (
            dict(network="residual", noisy=True),
            "network=residual has no noise, no dropout and no implicit quantiles",
        ),
    ],
)
def test_a_wrong_network_is_one_line(nets: Path, options: dict, expected: str):
    with pytest.raises(ValueError, match=re.escape(expected)):
        jf.dqn(**options).build(jf.make_env("cartpole", num_envs=4).spec, 4)


def test_commands_take_a_run_of_the_library_with_an_environment_of_ones_own(
    folder: Path, commands: Commands
):
    from my_algos import awr

    env = jf.envs.make_vec("cartpole", num_envs=4)  # of which nobody recorded how it was made
    for name, algorithm in (
        ("plain", jf.ppo(rollout_length=16, num_minibatches=2)),
        ("own", awr(rollout_length=16)),
    ):
        jf.learn(env, algorithm, total_steps=64, eval_every=64, eval_episodes=2, run_dir=name)
    assert command_lines(read_run(folder / "plain")) == []  # none that would fail
    assert "such as env=cartpole" in refused(commands, folder, "evaluate", "plain")
    assert (
        "observations or actions differ"
        in commands.run(folder, "evaluate", "plain", "env=pendulum").err
    )
    for words in (
        ["evaluate", "plain", "env=cartpole", "episodes=2"],
        ["render", "plain", "env=cartpole", "seconds=1", "width=64"],
        ["export", "plain", "formats=jax"],
        ["evaluate", "own", "env=cartpole", "algo=custom", OWN, "episodes=2"],
        ["export", "own", OWN, "formats=jax"],
    ):
        ended = commands.run(folder, *words, trains=True)
        assert ended.status == 0, (words, ended.err)


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (
            "norm",
            "my_nets.Wrong has batch norms that cannot see when they learn: write __call__(self, x, *, learning=",
        ),
        ("counter", "my_nets.Wrong has a state (calls), which losses do not update: leave it out"),
        (
            "dropout",
            'my_nets.Wrong fails with inputs (1, 4): InvalidRngError: Dropout_0 needs PRNG for "dropout"',
        ),
        ("rows", "my_nets.Wrong returns (0, 4): write (1, any size), a row for each of the input"),
        ("short", "my_nets.Head returns (1, 1): write (1, 2), a row for each of the input"),
        ("text", "my_nets.Wrong fails with inputs (1, 4): TypeError: Shapes must be 1D sequences"),
    ],
)
def test_a_module_that_fails_is_one_line(nets: Path, network: str, expected: str):
    with pytest.raises(ValueError, match=re.escape(expected)):
        parts = (
            jf.ppo(network=f"my_nets.{network}")
            .build(jf.make_env("cartpole", num_envs=4).spec, 4)
            .parts
        )
        policy = parts["actor"].networks["policy"]
        policy.apply(
            policy.init(jax.random.key(0)),
            (),
            np.zeros((1, 1, 4), np.float32),
            np.zeros((1, 1), bool),
        )


def test_a_torso_may_end_with_the_heads(nets: Path):
    parts = jf.ppo(network="my_nets.head").build(jf.make_env("cartpole", num_envs=4).spec, 4).parts
    for part, outputs in (("actor", 2), ("critic", 1)):
        ((_, network),) = parts[part].networks.items()
        params = network.init(jax.random.key(0))
        shapes = {str(jax.tree.map(np.shape, x)) for x in params["params"]["torso"].values()}
        assert str({"kernel": (8, outputs)}) in shapes and set(params["params"]) == {"torso"}
        found, _ = network.apply(
            params, (), np.zeros((3, 2, 4), np.float32), np.zeros((3, 2), bool)
        )
        assert jax.tree.leaves(found)[0].shape == (3, 2, outputs)


@pytest.mark.parametrize(("env", "algo"), [("catch", "ppo"), ("catch", "dqn"), ("pendulum", "sac")])
def test_a_torso_may_read_the_whole_observation(nets: Path, env: str, algo: str):
    made, options = jf.make_env(env, num_envs=4), dict(warmup_steps=8, batch_size=8, buffer_size=64)
    options = dict(rollout_length=8, num_minibatches=2) if algo == "ppo" else options
    factory = getattr(jf, algo)
    algorithm = factory(network="my_nets.whole", **options)
    init, step = jf.make_train_step(made, algorithm, total_steps=1_000)
    state = init(jax.random.key(0))
    before = jax.tree.map(np.asarray, state.channels)
    for _ in range(4):
        state, metrics = jax.jit(step)(state)
    losses = [np.asarray(x) for name, x in metrics.items() if "loss" in name]
    assert losses and all(np.isfinite(x).all() for x in losses)
    assert not all(
        np.array_equal(a, b)
        for a, b in zip(*map(jax.tree.leaves, (before, state.channels)), strict=True)
    )
    names = str(jax.tree_util.tree_structure(state.private["learn"]))
    assert "torso" in names and "Convolution" not in names
    with pytest.raises(
        ValueError, match=r"my_nets\.Whole takes the observation: write recurrent_size=0"
    ):
        factory(network="my_nets.whole", recurrent_size=4, **options).build(made.spec, 4)


def test_a_path_with_a_colon_is_code_too(nets: Path, commands: Commands):
    """``os:system`` has no dot; a folder that names it executed it."""
    (nets / "my_nets.py").write_text("from pathlib import Path\nPath('executed').touch()\n" + TORSO)
    words = [word for word in SMALL if word != "algo=custom"] + [
        "algo=ppo",
        "algo.num_minibatches=2",
    ]
    assert commands.run(nets, "train", *words, "run_dir=run", trains=True).status == 0
    description = nets / "run" / "policy" / "policy.json"
    made = json.loads(description.read_text())
    made["made_by"]["options"]["network"] = "my_nets:attend"
    description.write_text(json.dumps(made))
    config = nets / "run" / "config.yaml"
    config.write_text(config.read_text().replace("network: mlp", "network: my_nets:attend"))
    for command in ("evaluate", "render", "export"):
        assert "algo.network=my_nets:attend again" in refused(commands, nets, command, "run")
