"""Policies as files that run without this package: every kind in every format, and the command that
writes them.
"""

import functools
import os
import pathlib
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.export import main
from jaxrl_fast.learning.algorithm import Learned, init_params
from jaxrl_fast.numerics.normalization import RunningStats
from jaxrl_fast.policy import onnx_export
from jaxrl_fast.policy.exporting import (
    FORMATS,
    NUM_OBSERVATIONS,
    compare,
    describe,
    draw_observations,
    export_policy,
    signature,
)
from jaxrl_fast.policy.onnx_export import to_onnx
from jaxrl_fast.policy.policies import Policy, PolicyParams, make_policy, memory_of, save_policy

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parent.parent
BOX = jf.Box(np.array([-2.0, -1.0], np.float32), np.array([1.0, 3.0], np.float32))
PUSHES = jf.Box(np.full((2, 2), -0.4, np.float32), np.full((2, 2), 0.4, np.float32))
BOARD = {
    "action_mask": ((3,), bool),
    "board": ((3, 3), jnp.int8),
    "where": {"x": ((2,), jnp.float32)},
}


REPLAYED: dict = dict(policy_hidden=(16, 8), critic_hidden=(8,))
SIZES: dict[str, dict] = {
    "ppo": dict(policy_hidden=(16, 8), num_minibatches=1, value_hidden=(8,)),
    "impala": dict(hidden=(16, 8)),
    "pqn": dict(q_hidden=(16, 8), num_minibatches=1),
    "dqn": dict(q_hidden=(16, 8), dueling=True, value_head="categorical", num_atoms=7),
    "sac": REPLAYED,
    "td3": REPLAYED,
    "bc": dict(policy_hidden=(16, 8)),
    "iql": REPLAYED,
    "td3_bc": REPLAYED,
    "fast_td3": REPLAYED,
    "reppo": REPLAYED,
    "flash_sac": dict(policy_hidden=(8, 8), critic_hidden=(4,)),
}


def policy_of(
    obs, action, algo="ppo", *, normalized=True, seed=0, frame_stack=0, **options
) -> Policy:
    """Build an untrained policy whose actions depend on the observation; ``obs``: (shape, dtype),
    or a tree.
    """
    is_leaf = lambda x: isinstance(x, tuple)  # noqa: E731
    spec = jf.EnvSpec(
        "toy",
        jax.tree.map(lambda s: jax.ShapeDtypeStruct(*s), obs, is_leaf=is_leaf),
        action,
        None,
        frame_stack,
    )
    made = getattr(jf, algo)(**SIZES[algo], **options)
    agent, rng = bind(made, spec, 4), np.random.default_rng(seed)

    def numbers(mean: float, deviation: float, like):
        return jax.tree.map(
            lambda s: jnp.asarray(rng.normal(mean, deviation, s.shape), jnp.float32), like
        )

    (part,) = agent.acting.chooses
    learned = jax.eval_shape(
        lambda key: {part: Learned(init_params(agent.parts[part], key))}, jax.random.key(0)
    )
    shapes = agent.acting.greedy_weights(learned)
    parts = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.abs(x) if "'var'" in str(path[-1]) else x, numbers(0.0, 0.7, shapes)
    )
    stats = RunningStats(jnp.int32(50), numbers(3.0, 0.3, spec.obs), numbers(4.0, 0.4, spec.obs))
    stats = stats if normalized else None
    made_by = {
        "algo": algo,
        "options": made.options,
        "num_envs": 4,
        "normalize_observations": normalized,
    }
    return make_policy(spec, agent.acting, PolicyParams(parts, stats), made_by)


FLOATS = ((5,), jnp.float32)
KINDS = {
    **{
        f"ppo {name}": (FLOATS, jf.Discrete(3), dict(activation=name))
        for name in ("relu", "tanh", "swish", "elu")
    },
    "ppo gelu": (FLOATS, BOX, dict(activation="gelu")),
    "ppo layer norm": (FLOATS, BOX, dict(layer_norm=True)),
    "ppo bf16": (FLOATS, BOX, dict(precision="bf16")),
    "sac": (FLOATS, PUSHES, dict(algo="sac")),
    "sac swish raw": (FLOATS, BOX, dict(algo="sac", activation="swish", normalized=False)),
    "td3": (FLOATS, PUSHES, dict(algo="td3")),
    **{
        name: (FLOATS, PUSHES, dict(algo=name))
        for name in ("bc", "iql", "td3_bc", "fast_td3", "reppo")
    },
    "bc with a mask": (BOARD, jf.Discrete(3), dict(algo="bc")),
    "flash_sac": (FLOATS, PUSHES, dict(algo="flash_sac", normalized=False)),
    "rainbow": (FLOATS, jf.Discrete(3), dict(algo="dqn")),
    "pqn with a mask": (BOARD, jf.Discrete(3), dict(algo="pqn")),
    "impala": (FLOATS, jf.Discrete(3), dict(algo="impala")),
    "dictionary with a mask": (BOARD, jf.Discrete(3), {}),
    "bytes of an image": (((4, 4, 3), jnp.uint8), jf.Discrete(3), dict(normalized=False)),
    "pixels of an image": (((4, 4, 3), jnp.uint8), BOX, dict(normalized=False, cnn="none")),
    "large image": (((36, 38, 2), jnp.uint8), BOX, dict(algo="sac", normalized=False)),
    "stack": (((5, 4, 2), jnp.uint8), BOX, dict(normalized=False, frame_stack=3)),
    "recurrent stack": (
        ((5, 4, 1), jnp.uint8),
        BOX,
        dict(normalized=False, frame_stack=2, recurrent_size=6),
    ),
    "numbers of an image": (((4, 4, 3), jnp.float32), jf.Discrete(3), {}),
    "one whole number": (((), jnp.int32), jf.Discrete(3), {}),
    "truths": (((6,), bool), jf.Discrete(3), {}),
    "recurrent": (FLOATS, jf.Discrete(3), dict(recurrent_size=6, seed=1)),
    "recurrent dictionary": (BOARD, BOX, dict(recurrent_size=6, layer_norm=True)),
}


@functools.cache
def policy_named(kind: str) -> Policy:
    obs, action, options = KINDS[kind]
    return policy_of(obs, action, **options)


def opened(path: Path):
    """Load the file as a user does: return a function of arrays that gives a list of arrays."""
    if path.suffix == ".jax":
        call = jax.jit(jax.export.deserialize(path.read_bytes()).call)
        return lambda *arguments: [np.asarray(x) for x in jax.tree.leaves(call(*arguments))]
    session = onnxruntime.InferenceSession(path)
    names = [tensor.name for tensor in session.get_inputs()]
    return lambda *arguments: session.run(
        None, dict(zip(names, jax.tree.leaves(arguments), strict=True))
    )


def original(policy: Policy, carry, obs, first) -> tuple:
    """Compute the policy's action and memory in this package."""
    return jax.jit(policy.act)(policy.params, carry, obs, jnp.asarray(first), jax.random.key(0))


def some_observations(policy: Policy, size: int):
    return jax.tree.map(lambda x: x[0, :size], draw_observations(policy, np.random.default_rng(5)))


def assert_same_actions(policy: Policy, actual: np.ndarray, expected: np.ndarray) -> None:
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    tolerance = 1e-2 if policy.made_by["options"]["precision"] == "bf16" else 1e-5
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=0 if actual.dtype == np.int32 else 4 * tolerance
    )
    assert len(np.unique(actual)) > 1, "a policy that always does the same tests nothing"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if "recurrent" not in kind and "stack" not in kind]
)
def test_a_file_acts_as_its_policy_on_batches_of_any_size(tmp_path, kind, name):
    policy = policy_named(kind)
    path, difference = export_policy(policy, tmp_path, name)
    assert "differ from the policy's" in difference
    obs = some_observations(policy, 60)
    expected, _ = original(policy, policy.initial_carry(60), obs, np.ones(60, bool))
    act = opened(path)
    (actual,) = act(obs)
    assert_same_actions(policy, actual, np.asarray(expected))
    (one,) = act(jax.tree.map(lambda x: x[:1], obs))
    np.testing.assert_allclose(one, actual[:1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["recurrent", "recurrent dictionary", "stack", "recurrent stack"])
def test_a_file_carries_the_memory_of_its_policy(tmp_path, kind, name):
    policy = policy_named(kind)
    path, _ = export_policy(policy, tmp_path, name)
    act, carry = opened(path), policy.initial_carry(20)
    theirs = jax.tree.map(np.asarray, memory_of(carry))
    observations = draw_observations(policy, np.random.default_rng(5))
    for t in range(4):
        obs = jax.tree.map(lambda x, t=t: x[t, :20], observations)
        first = np.arange(20) < (20 if t == 0 else t)
        expected, carry = original(policy, carry, obs, first)
        actual, *theirs = act(theirs, obs, first)
        assert_same_actions(policy, actual, np.asarray(expected))
        wanted = memory_of(carry)
        theirs = jax.tree.unflatten(jax.tree.structure(wanted), theirs)
        jax.tree.map(
            lambda got, want: np.testing.assert_allclose(got, want, atol=1e-5), theirs, wanted
        )


@pytest.mark.parametrize("kind", ["td3", "flash_sac"])
def test_exploration_noise_is_no_memory_of_a_policy(kind):
    policy = policy_named(kind)
    obs = some_observations(policy, 4)
    actions, carry = policy.act(policy.params, (), obs, jnp.ones(4, bool), jax.random.key(0))
    assert carry == () and not jax.tree.leaves(policy.initial_carry(4))
    np.testing.assert_allclose(policy(obs[0]), actions[0], atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_a_masked_action_is_never_taken(tmp_path, name):
    policy = policy_named("dictionary with a mask")
    path, _ = export_policy(policy, tmp_path, name)
    obs, act = some_observations(policy, 60), opened(path)
    (free,) = act({**obs, "action_mask": np.ones((60, 3), bool)})
    (masked,) = act({**obs, "action_mask": np.arange(3) != free[:, None]})
    assert (masked != free).all()


def test_the_jax_file_needs_jax_alone_and_runs_on_every_platform(tmp_path):
    policy = policy_named("sac")
    path, _ = export_policy(policy, tmp_path, "jax")
    code = f"""
import sys, jax
exported = jax.export.deserialize(open({str(path)!r}, "rb").read())
print(exported.platforms, exported.call(jax.numpy.full((2, 5), 3.0)).tolist())
assert not {{"jaxrl_fast", "flax"}} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    platforms, _, action = done.stdout.partition(") ")
    assert platforms == "('cpu', 'cuda', 'tpu'", done.stderr
    expected = np.asarray(policy(np.full(5, 3.0)))
    np.testing.assert_allclose(np.array(eval(action)), [expected, expected], atol=1e-5)


def test_the_onnx_file_says_what_it_is(tmp_path):
    path, _ = export_policy(policy_named("recurrent dictionary"), tmp_path, "onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    told = {entry.key: entry.value for entry in model.metadata_props}
    assert (told["env"], told["algo"]) == ("toy", "ppo")
    # no mask: a Box
    assert told["observation"] == "obs.board int8[batch, 3, 3], obs.where.x float32[batch, 2]"
    assert told["action"] == "action float32[batch, 2] from [-2.0, -1.0] to [1.0, 3.0]"
    assert told["memory"].startswith("carry float32[batch, 6], zeros at the start")
    inputs = ["carry", "obs.board", "obs.where.x", "first"]
    assert [tensor.name for tensor in model.graph.input] == inputs
    assert [tensor.name for tensor in model.graph.output] == ["action", "next_carry"]
    assert {tensor.type.tensor_type.shape.dim[0].dim_param for tensor in model.graph.input} == {
        "batch"
    }


@pytest.mark.parametrize(
    "formula", ["bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bij,bij->b", "bij,jik->bk", "bi,jk->bijk"]
)
def test_a_product_over_any_axes_is_exported(formula):
    rng, sizes = np.random.default_rng(0), dict(q=2, h=3, d=4, k=5, i=2, j=3, l=4)
    left, right = (
        [sizes.get(letter, 6) for letter in part] for part in formula.partition("->")[0].split(",")
    )
    x, w = rng.normal(size=left).astype(np.float32), rng.normal(size=right).astype(np.float32)
    names = ["x", "w"] if formula.partition(",")[2].startswith("b") else ["x"]
    (batch,) = jax.export.symbolic_shape("batch")
    shapes = [
        jax.ShapeDtypeStruct((batch, *array.shape[1:]), np.float32)
        for array in (x, w)[: len(names)]
    ]
    content = to_onnx(
        lambda *given: jnp.einsum(formula, *given, *(x, w)[len(given) :]),
        shapes,
        names,
        ["y"],
        {"env": "toy"},
    )
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, dict(zip(names, (x, w), strict=False)))
    np.testing.assert_allclose(found, np.einsum(formula, x, w), rtol=1e-5, atol=1e-5)


def test_a_primitive_without_a_form_is_named_in_one_line():
    (batch,) = jax.export.symbolic_shape("batch")
    obs = jax.ShapeDtypeStruct((batch, 3), jnp.float32)
    with pytest.raises(
        ValueError, match=r"^the ONNX export does not support 'sort' of this policy$"
    ):
        to_onnx(lambda x: jnp.sort(x, axis=-1), (obs,), ["obs"], ["action"], {"env": "toy"})


def test_a_policy_that_onnx_cannot_express_is_named_with_what_to_use(monkeypatch, tmp_path):
    monkeypatch.delitem(onnx_export.RULES, "dot_general")
    with pytest.raises(
        ValueError, match=r"does not support 'dot_general' of this policy: call the policy itself$"
    ):
        policy_named("sac").fast()
    with pytest.raises(
        ValueError, match=r"does not support 'dot_general' of this policy: use formats=jax$"
    ):
        export_policy(policy_named("sac"), tmp_path, "onnx")


@pytest.mark.parametrize("kind", ["ppo tanh", "sac", "recurrent"])
def test_a_file_that_does_not_act_as_the_policy_is_not_left_behind(tmp_path, monkeypatch, kind):
    policy = policy_named(kind)
    export_policy(policy, tmp_path, "jax")
    honest = FORMATS["jax"]
    raw = policy._replace(params=policy.params._replace(obs=None))
    monkeypatch.setitem(FORMATS, "jax", honest._replace(write=lambda _: honest.write(raw)))
    with pytest.raises(
        ValueError, match=r"policy\.jax was not written: .*actions differ from the policy's"
    ):
        export_policy(policy, tmp_path, "jax")
    assert list(tmp_path.iterdir()) == []


def test_what_an_onnx_runtime_cannot_take_is_one_line(tmp_path):
    policy = policy_of(((5,), jnp.bfloat16), jf.Discrete(3))
    with pytest.raises(ValueError, match=r"policy\.onnx was not written: .*can't be converted"):
        export_policy(policy, tmp_path, "onnx")
    assert list(tmp_path.iterdir()) == []


def test_only_a_tie_excuses_another_discrete_action():
    policy = policy_of(FLOATS, jf.Discrete(3))
    last = policy.params.parts["actor"]["params"]["Dense_2"]
    last["kernel"] = last["kernel"].at[:, 1].set(last["kernel"][:, 0])
    last["bias"] = last["bias"].at[:2].set(5.0).at[2].set(-5.0)

    def always(action: int):
        return lambda carry, obs, first: (np.full(len(obs), action, np.int32), carry)

    assert compare(policy, always(0)) == "0 actions differ from the policy's"
    assert (
        compare(policy, always(1))
        == "1000 actions differ from the policy's, each a tie within rounding"
    )
    with pytest.raises(ValueError, match="1000 of 1,000 actions differ"):
        compare(policy, always(2))


def test_rounding_excuses_a_continuous_action_and_no_more():
    policy = policy_named("sac")
    act = jax.jit(
        lambda obs: policy.act(policy.params, (), obs, jnp.ones(len(obs), bool), jax.random.key(0))[
            0
        ]
    )
    compare(policy, lambda carry, obs, first: (act(obs) + 4e-6, carry))
    for change in (1e-3, np.nan):
        with pytest.raises(ValueError, match="of their range, more than by rounding"):
            compare(policy, lambda carry, obs, first, change=change: (act(obs) + change, carry))


def test_a_policy_that_rounding_moves_further_is_given_more():
    policy = policy_of(((16, 16, 3), jnp.uint8), BOX, "sac", normalized=False)
    act = jax.jit(
        lambda params, obs: policy.act(
            params, (), obs, jnp.ones(len(obs), bool), jax.random.key(0)
        )[0]
    )
    key = jax.random.key(1)

    def changed(change: float):
        params = jax.tree.map(
            lambda x: x * (1.0 + change * jax.random.normal(key, x.shape)), policy.params
        )
        return lambda carry, obs, first: (act(params, obs), carry)

    told = compare(policy, changed(2.0**-23))
    assert float(told.split("at most ")[1].split()[0]) > 1e-5
    with pytest.raises(ValueError, match="more than by rounding"):
        compare(policy, changed(2.0**-14))


def test_observations_are_drawn_as_the_policy_may_meet_them():
    rng = np.random.default_rng(0)
    board = draw_observations(policy_named("dictionary with a mask"), rng)
    assert board["action_mask"].any(axis=-1).all() and not board["action_mask"].all()
    assert board["board"].dtype == np.int8 and 2 < board["board"].mean() < 3.5
    x = board["where"]["x"]
    assert x.dtype == np.float32 and x[..., 0].size == NUM_OBSERVATIONS
    assert abs(x.mean() - 3.0) < 1.0 and abs(x.std() - 2.0) < 0.7
    numbers = policy_of(
        {"action_mask": ((3,), jnp.int32), "x": ((40,), jnp.uint16)}, jf.Discrete(3)
    )
    drawn = draw_observations(numbers, rng)
    assert drawn["action_mask"].dtype == np.int32 and set(np.unique(drawn["action_mask"])) == {0, 1}
    assert drawn["x"].dtype == np.uint16 and drawn["x"].max() < 20
    image = draw_observations(policy_named("bytes of an image"), rng)
    assert image.dtype == np.uint8 and (image.min(), image.max()) == (0, 255)
    raw = draw_observations(policy_named("sac swish raw"), rng)
    assert abs(raw.mean()) < 0.1 and abs(raw.std() - 1.0) < 0.1


def command(folder: Path, *words: str, without_onnx: bool = False) -> tuple[int, str, str]:
    (folder / "sitecustomize.py").write_text(
        "import sys; sys.modules['onnx'] = None\n" if without_onnx else ""
    )
    paths = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl_fast.export", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("kind", ["sac", "recurrent dictionary"])
def test_the_command_writes_both_files_and_says_how_to_use_them(tmp_path, kind):
    policy = policy_named(kind)
    save_policy(policy, tmp_path / "run" / "policy")
    status, out, err = command(tmp_path, "run")
    assert (status, err) == (0, "")
    assert out.startswith(
        f"run/policy: toy, {policy.made_by['algo']}\nobservation  {describe(policy)['observation']}\n"
    )
    assert out.count("1,000 observations: actions differ from the policy's by at most ") == 2
    for name in FORMATS:
        path = Path("run/policy", f"policy.{name}")
        assert f"\npolicy.{name}" in out and all(
            line in out for line in FORMATS[name].usage(signature(policy), path)
        )
        obs, first = some_observations(policy, 9), np.ones(9, bool)
        arguments = (obs,) if kind == "sac" else (np.zeros((9, 6), np.float32), obs, first)
        expected, _ = original(policy, policy.initial_carry(9), obs, first)
        assert_same_actions(policy, opened(tmp_path / path)(*arguments)[0], np.asarray(expected))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["sac", "dictionary with a mask", "recurrent dictionary"])
def test_the_lines_it_prints_run(tmp_path, kind, name):
    policy = policy_named(kind)
    path, _ = export_policy(policy, tmp_path, name)
    obs, first = some_observations(policy, 9), np.ones(9, bool)
    names = dict(
        jax=jax,
        pathlib=pathlib,
        onnxruntime=onnxruntime,
        obs=obs,
        first=first,
        carry=np.zeros((9, 6), "f4"),
    )
    exec("\n".join(FORMATS[name].usage(signature(policy), path)), names)
    expected, _ = original(policy, policy.initial_carry(9), obs, first)
    assert_same_actions(policy, np.asarray(names["action"]), np.asarray(expected))


def test_without_the_onnx_packages_jax_is_written_and_the_rest_is_told(tmp_path):
    folder = tmp_path / "policy"
    save_policy(policy_named("ppo tanh"), folder)
    status, out, err = command(tmp_path, "policy", without_onnx=True)
    assert (status, err) == (0, "")
    assert out.endswith(
        "policy.onnx  not written: pip install onnx onnxruntime, then export again\n"
    )
    assert {path.name for path in folder.iterdir()} == {
        "policy.json",
        "params.msgpack",
        "policy.jax",
    }
    status, _, err = command(tmp_path, "policy", "formats=jax,onnx", without_onnx=True)
    assert status == 2
    assert err.startswith(
        "jaxrl_fast: error: formats=onnx needs two packages: pip install onnx onnxruntime"
    )


@pytest.mark.parametrize("file", ["policy.json", "params.msgpack"])
def test_a_damaged_policy_is_one_line(tmp_path, file):
    save_policy(policy_named("ppo tanh"), tmp_path / "run" / "policy")
    damaged = tmp_path / "run" / "policy" / file
    damaged.write_bytes(damaged.read_bytes()[:100])
    status, out, err = command(tmp_path, "run")
    assert (status, out) == (2, "")
    assert (
        err.startswith(f"jaxrl_fast: error: run/policy/{file} is damaged") and err.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["runs/nowhere"],
            "runs/nowhere contains no policy: write the path of a run's folder, such as runs/latest",
        ),
        ([], "write the path of one run's folder, such as runs/latest"),
        (["a", "b"], "write the path of one run's folder, such as runs/latest"),
        (
            ["a", "episodes=3"],
            "unknown key 'episodes': the keys of export are formats, agent, algo.make, algo.network and algo.memory",
        ),
        (["a", "agent=x"], "agent=x: write a whole number"),
        (["a", "formats=jax,pt"], "formats=jax,pt: 'pt' is not one of jax, onnx"),
    ],
)
def test_a_bad_word_is_one_line(capsys, words, line):
    assert main(words) == 2
    assert capsys.readouterr().err == f"jaxrl_fast: error: {line}\n"
