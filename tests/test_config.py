"""Composition of the configuration: precedence, the file of a run, and refused options."""

import dataclasses
import inspect
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast import Cosine, Linear, envs
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.commands import layers
from jaxrl_fast.commands.layers import CONFIG_DIR
from jaxrl_fast.commands.run_config import compose, make_algorithm, options_of
from jaxrl_fast.envs.pool.batches import PoolOptions
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.numerics.optimizers import plain
from jaxrl_fast.plugins import SUITES
from jaxrl_fast.settings.files import read_yaml
from jaxrl_fast.settings.run import Run, flat_settings, make_graph_options, to_yaml
from jaxrl_fast.settings.schema import Checkpoints, ConfigError, command_line, read_value, run_keys
from jaxrl_fast.settings.signatures import algo_keys

TUNED = sorted((CONFIG_DIR / "tuned").glob("*.yaml"))


def needed(env: str) -> list[str]:
    """Return the options that a family of environments requires."""
    return [f"env.{SUITES[env].selected_by}={SUITES[env].example}"] if env in SUITES else []


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(words)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_default_job_is_halfcheetah_with_the_algorithm_that_the_table_names():
    run = compose([])
    chosen = envs.SHORT_NAMES["halfcheetah"].defaults.algo
    assert (run.env, run.algo, run.placement, run.overlap) == (
        "halfcheetah",
        chosen,
        "auto",
        "none",
    )
    assert run.tuned_file == f"tuned/halfcheetah_{chosen}.yaml"
    assert compose(["env=pendulum"]).algo != compose(["env=cartpole"]).algo


@pytest.mark.parametrize("env", options_of("env"))
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_environment_composes_with_every_algorithm(env: str, algo: str):
    run = compose([f"env={env}", f"algo={algo}", *needed(env)])
    assert (run.env, run.algo) == (env, algo)
    assert make_algorithm(run).name == algo


def test_the_env_group_and_the_environments_are_the_same():
    assert set(options_of("env")) == set(envs.SHORT_NAMES) | set(SUITES)


@pytest.mark.parametrize("path", TUNED, ids=lambda path: path.stem)
def test_every_tuned_file_applies_to_its_environment_and_algorithm(path: Path):
    algo = max((name for name in ALGORITHMS if path.stem.endswith(f"_{name}")), key=len)
    name = path.stem.removesuffix(f"_{algo}")
    family, _, id = name.partition("_")
    words = (
        [f"env={family}", f"env.id={id}"]
        if family in SUITES and id
        else [f"env={name}", *needed(name)]
    )
    run = compose([*words, f"algo={algo}"])
    assert run.tuned_file == f"tuned/{path.name}"
    asked = read_yaml(path)
    algo_options = {key: plain(run.algo_options[key]) for key in asked["algo"]}
    keys = algo_keys(algo)
    assert algo_options == {
        k: plain(read_value(k, v, keys[f"algo.{k}"])) for k, v in asked.pop("algo").items()
    }
    assert asked.pop("env", {}).items() <= run.env_options.items()
    assert asked.pop("eval", {"episodes": run.eval.episodes}) == {"episodes": run.eval.episodes}
    assert asked == {key: getattr(run, key) for key in asked}


def test_a_tuned_file_of_an_id_applies_before_that_of_its_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "tuned").mkdir()
    for stem, seed in (("gymnasium_sac", 1), ("gymnasium_my-World-v0_sac", 2)):
        (tmp_path / "tuned" / f"{stem}.yaml").write_text(f"seed: {seed}\n")
    monkeypatch.setattr(layers, "CONFIG_DIR", tmp_path)
    own, other, neither = (
        compose(["env=gymnasium", *words])
        for words in (
            ["env.id=my/World-v0"],
            ["env.id=Other-v0"],
            ["env.id=my/World-v0", "algo=td3"],
        )
    )
    assert (own.seed, own.tuned_file) == (2, "tuned/gymnasium_my-World-v0_sac.yaml")
    assert (other.seed, other.tuned_file) == (1, "tuned/gymnasium_sac.yaml")
    assert (neither.seed, neither.tuned_file) == (0, None)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(own))
    assert compose([f"config={file}"]).tuned_file == own.tuned_file


def test_an_id_of_a_family_may_have_an_algorithm_of_its_own_unless_one_is_named(tmp_path: Path):
    row = SUITES["gymnasium"]
    for id, algo in row.algo_of_id.items():
        words = ["env=gymnasium", f"env.id={id}"]
        run = compose(words)
        assert (run.algo, run.tuned_file) == (
            algo,
            f"tuned/gymnasium_{id}_{algo}.yaml",
        ) and algo != row.defaults.algo
        assert (
            compose([*words, "algo=td3"]).algo == "td3"
            and compose([*words, "tuned=false"]).algo == algo
        )
        (tmp_path / "config.yaml").write_text(to_yaml(compose([*words, "algo=sac"])))
        assert compose([f"config={tmp_path / 'config.yaml'}"]).algo == "sac"
    assert compose(["env=gymnasium", "env.id=Hopper-v5"]).algo == row.defaults.algo


def test_precedence_is_schema_then_tuned_then_file_then_command_line(tmp_path: Path):
    tuned = read_yaml(CONFIG_DIR / "tuned" / "pendulum_sac.yaml")["algo"]
    schema = {key: value.default for key, value in algo_keys("sac").items()}
    assert tuned["batch_size"] != 64
    assert tuned["learning_rate"] != schema["algo.learning_rate"]
    file = tmp_path / "mine.yaml"
    file.write_text("algo:\n  learning_rate: 0.5\n  batch_size: 32\n")

    words = ["env=pendulum", "algo=sac"]
    layers = [
        [*words, "tuned=false"],
        words,
        [*words, f"config={file}"],
        [*words, "algo.learning_rate=0.25", f"config={file}"],
    ]
    rates = [compose(layer).algo_options["learning_rate"] for layer in layers]
    assert rates == [schema["algo.learning_rate"], tuned["learning_rate"], 0.5, 0.25]
    assert compose(layers[0]).tuned_file is None
    assert compose(layers[-1]).algo_options["batch_size"] == 32


def test_the_command_line_chooses_groups_over_the_file_and_leaves_its_sections_behind(
    tmp_path: Path,
):
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(compose(["env=pendulum", "algo=sac", "algo.tau=0.5", "seed=7"])))
    run = compose([f"config={file}", "algo=ppo"])
    assert (run.env, run.algo, run.seed) == ("pendulum", "ppo", 7)
    assert "tau" not in run.algo_options


@given(
    seed=st.integers(0, 2**31),
    rate=st.one_of(
        st.floats(1e-8, 1.0),
        st.builds(Linear, st.floats(0, 1), st.floats(0, 1), st.sampled_from([1.0, 0.3])),
        st.just(Cosine(1.0, 0.0)),
    ),
    hidden=st.lists(st.integers(1, 512), min_size=1, max_size=4),
    words=st.sampled_from(
        [
            ["env=brax", "env.id=ant", "env.backend=mjx", "algo=ppo"],
            [
                "env=gymnax",
                "env.id=Pendulum-v1",
                "algo=sac",
                "+env.g=9.81",
                "env.episode_length=100",
            ],
            ["env=custom", "env.make=my.make", "+env.size=[1,2]", "+env.mode='a b'"],
            [
                "env=cartpole",
                "tuned=false",
                "name=first",
                "devices=2",
                "precision=bf16",
                "overlap=all",
            ],
        ]
    ),
)
def test_the_file_of_a_run_repeats_it(
    tmp_path: Path, seed: int, rate: object, hidden: list[int], words: list[str]
):
    run = compose([*words, f"seed={seed}", f"algo.policy_hidden={hidden}"])
    run = dataclasses.replace(run, algo_options={**run.algo_options, "learning_rate": rate})
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(run))
    assert compose([f"config={file}"]) == run


def test_a_run_repeated_from_its_file_goes_to_a_folder_of_its_own(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(to_yaml(compose([f"run_dir={tmp_path}"])))
    assert compose([f"config={tmp_path}/config.yaml"]).run_dir is None


def test_shards_are_written_down_only_by_who_asks_for_other_than_the_default():
    assert "shards" not in flat_settings(compose(["env=cartpole"]))
    run = compose(["env=cartpole", "shards=64"])
    assert flat_settings(run)["shards"] == make_graph_options(run).shards == 64
    assert "shards: 64" in to_yaml(run)


def test_values_are_read_as_the_types_of_their_keys():
    run = compose(
        [
            "total_steps=2e5",
            "num_envs=1_000",
            "eval.every=1e4",
            "name=3",
            "algo=ppo",
            "algo.discount=1",
            "algo.learning_rate=linear:3e-4:0",
            "algo.clip_range=cosine:1:0",
            "algo.policy_hidden=[8,8.0]",
            "algo.layer_norm=true",
        ]
    )
    assert (run.total_steps, run.num_envs, run.name, run.eval.every) == (200_000, 1000, "3", 10_000)
    assert type(run.total_steps) is int
    expected = {
        "learning_rate": Linear(3e-4, 0.0),
        "clip_range": Cosine(1.0, 0.0),
        "discount": 1.0,
        "policy_hidden": (8, 8),
        "layer_norm": True,
    }
    assert {key: run.algo_options[key] for key in expected} == expected


def test_the_schema_of_an_algorithm_is_the_signature_of_its_factory():
    for name, factory in ALGORITHMS.items():
        run = compose([f"algo={name}", "tuned=false"])
        assert make_algorithm(run).hyper == factory().hyper
        assert "precision" not in run.algo_options
        assert not any(callable(value) for value in run.algo_options.values())


def test_a_tenth_of_the_run_lies_between_evaluations_unless_told():
    assert compose(["total_steps=5000"]).eval.every == 500
    assert compose(["total_steps=3"]).eval.every == 1


def test_options_of_an_environment_pass_through():
    run = compose(["env=gymnax", "env.id=Pendulum-v1", "+env.g=9.81", "env.options.m=2"])
    assert run.env_options == {"id": "Pendulum-v1", "g": 9.81, "m": 2}


def test_composition_is_repeatable_and_leaves_the_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert compose(["seed=3"]) == compose(["seed=3"])
    assert Path.cwd() == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_survives_a_shell():
    words = ["env=cartpole", "name='a b'", "algo.policy_hidden=[8,8]"]
    assert shlex.split(command_line(words)) == ["python", "-m", "jaxrl_fast.train", *words]


REFUSED = [
    # unknown names, with suggestions
    ("env=halfchetah", "env=halfchetah is unknown: did you mean halfcheetah?"),
    ("env=HalfCheetah-v5", "did you mean halfcheetah?"),
    ("env=zzzz", "write one of acrobot, ant"),
    ("algo=pppo", "algo=pppo is unknown: did you mean ppo?"),
    (
        "placement=spread",
        "placement=spread is unknown: write one of auto, fused, data_parallel, sharded_sampling",
    ),
    ("total_step=3", "unknown key 'total_step'"),
    ("total_step=3", "did you mean total_steps"),
    ("learning_rate=3", "did you mean algo.learning_rate?"),
    ("algo.learning_rat=3", "did you mean algo.learning_rate"),
    ("algo=sac algo.clip_range=0.1", "it belongs to algo=ippo or algo=mappo or algo=ppo"),
    ("eval.evry=3", "did you mean eval.every"),
    ("env.bakend=mjx", "did you mean env.backend"),
    ("env.bakend=mjx", "+env.bakend=..."),
    ("qqqq=1", "--help lists the keys"),
    # types and ranges
    ("overlap=some", "overlap=some: write one of none, sampling, actor_critic, all"),
    ("precision=f16", "precision=f16: write one of f32, bf16"),
    ("seed=abc", "seed=abc: write a whole number"),
    ("num_envs=2.5", "num_envs=2.5: write a whole number"),
    ("total_steps=inf", "total_steps=inf: write a whole number"),
    ("total_steps=null", "total_steps=null: write a whole number"),
    ("num_envs=true", "num_envs=true: write a whole number"),
    ("algo.learning_rate=abc", "write a number or a schedule such as linear:3e-4:0"),
    ("algo.learning_rate=linear:1", "write a number or a schedule"),
    ("algo.learning_rate=square:1:0", "write a number or a schedule"),
    ("algo.learning_rate=linear:a:b", "write a number or a schedule"),
    ("algo.discount=nan", "algo.discount=nan: write a number"),
    ("algo.policy_hidden=256", "write a list such as [256,256]"),
    ("algo.policy_hidden=[a]", "write a list such as [256,256]"),
    ("algo.activation=rel", "write one of relu"),
    ("algo.normalize_observations=1", "write true or false"),
    ("tuned=maybe", "tuned=maybe: write true or false"),
    ("num_envs=0", "num_envs=0: write a number of at least 1"),
    ("total_steps=-5", "total_steps=-5: write a number of at least 1"),
    ("eval.episodes=0", "eval.episodes=0: write a number of at least 1"),
    ("checkpoint.every=0", "checkpoint.every=0: write a number of at least 1"),
    ("num_seeds=0", "num_seeds=0: write a number of at least 1"),
    ("devices=0", "devices=0: write a number of at least 1"),
    ("algo=sac algo.batch_size=-1", "algo.batch_size=-1: write a number of at least 0"),
    # required options of an environment
    ("env=brax", "env=brax needs env.id: write for example env=brax env.id=ant"),
    ("env=gymnax", "env=gymnax needs env.id"),
    (
        "env=custom",
        "env=custom needs env.make: write for example env=custom env.make=my_package.make",
    ),
    ("env.id=ant", "env.id=ant has no effect with env=halfcheetah: write it with env=brax"),
    # grammar
    ("seed=", "seed= has no value"),
    ("seed", "cannot read 'seed': write key=value"),
    ("--fast", "cannot read '--fast'"),
    ("seed=1,2", "seed=1,2: several values start several runs: add --multirun"),
    ("run_dir=/a(b)", "quote the value"),
    ("~algo", "settings cannot be removed"),
    ("algo@x=sac", "write key=value, without '@'"),
    ("config=/nowhere.yaml", "config=/nowhere.yaml: No such file or directory"),
]


@pytest.mark.parametrize(("words", "expected"), REFUSED)
def test_a_bad_word_is_refused_in_one_line_that_says_what_to_write(words: str, expected: str):
    assert expected in refusal(*words.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("algo:\n  learning_rat: 3\n", "mine.yaml: unknown key 'algo.learning_rat'"),
        ("seed: x\n", "mine.yaml: seed=x: write a whole number"),
        ("a: [1\nb: 2\n", "mine.yaml is not YAML"),
        ("- 1\n", "write keys and values"),
        ("env: nowhere\n", "env=nowhere is unknown"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, expected: str):
    (tmp_path / "mine.yaml").write_text(text)
    assert expected in refusal(f"config={tmp_path}/mine.yaml")


def test_a_run_is_a_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        compose([]).seed = 1  # type: ignore[misc]
    assert isinstance(compose([]), Run)


def test_the_keywords_of_learn_have_the_defaults_that_the_keys_declare():
    """``total_steps`` is required; ``eval_beside`` follows from ``between_chunks`` unless it is
    given.
    """
    declared = {name.replace(".", "_"): key.default for name, key in run_keys().items()}
    declared |= {
        "checkpoints": Checkpoints(),
        "total_steps": inspect.Parameter.empty,
        "eval_beside": None,
    }
    parameters = inspect.signature(jf.learn).parameters
    shared = {name: parameter.default for name, parameter in parameters.items() if name in declared}
    assert shared == {name: declared[name] for name in shared}
    assert {"seed", "overlap", "shards", "eval_every", "checkpoints", "nan"} <= shared.keys()


def test_every_key_without_a_section_and_every_option_of_the_graph_is_a_field_of_a_run():
    fields = {field.name: field.default for field in dataclasses.fields(Run)}
    assert {name for name in run_keys() if "." not in name} <= fields.keys()
    derived = {"empty_until", "joined", "recorded", "total_steps"}
    for name, default in GraphOptions()._asdict().items():
        assert name in derived or fields[name] == default


def test_the_keys_of_the_pool_have_its_defaults():
    keys = {name: run_keys()[f"pool.{name}"].default for name in PoolOptions._fields}
    assert PoolOptions(**{**keys, "workers": "auto"}) == PoolOptions()


@pytest.mark.parametrize(
    ("words", "algo", "why"),
    [
        ("env.id=CartPole-v1", "ppo", "chosen for discrete actions"),
        ("env.id=MountainCar-v0 env.episode_length=50", "ppo", "chosen for discrete actions"),
        ("env.id=Pendulum-v1 +env.g=9.0", "sac", "chosen for continuous actions"),
        ("env.id=CartPole-v1 algo=dqn", "dqn", "command line"),
        ("env.id=HalfCheetah-v5", "flash_sac", "environment's defaults"),
    ],
)
def test_the_kind_of_actions_selects_the_algorithm(words, algo, why):
    run = compose(["env=gymnasium", *words.split()])
    assert (run.algo, run.sources.get("algo")) == (algo, why)
    assert compose(["env=gymnasium", *words.split(), f"algo={algo}"]) == run
