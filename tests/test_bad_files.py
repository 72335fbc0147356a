"""Damaged checkpoints, policies and run folders: each is refused before compilation with one line
that contains the correction, and exit code 2.

Nothing that they contain is executed.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_commands import TRAINED, refused

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.learning.algorithm import Learned, init_params
from jaxrl_fast.numerics.normalization import init_stats
from jaxrl_fast.policy.policies import PolicyParams, make_policy, same_spaces

SMALL = [
    "env=probe",
    "env.id=action_continuous",
    "algo=sac",
    "num_envs=4",
    "total_steps=200",
    "eval.episodes=1",
    "algo.buffer_size=400",
    "algo.warmup_steps=40",
    "algo.updates_per_tick=1",
    "algo.batch_size=8",
    "algo.policy_hidden=[8]",
    "algo.critic_hidden=[8]",
]
OBS = jax.ShapeDtypeStruct((2,), jnp.float32)


@pytest.fixture(scope="module")
def made(commands, tmp_path_factory) -> Path:
    """Make a folder with a tiny run in ``run``; tests copy it and never change it."""
    folder = tmp_path_factory.mktemp("made")
    ended = commands.run(folder, "train", *SMALL, "run_dir=run", trains=True)
    assert (ended.status, ended.err) == (0, "")
    return folder


def test_what_is_not_refused_would_be_trained(commands, made, tmp_path):
    assert commands.run(tmp_path, "train", *SMALL).status == TRAINED
    assert len(list(tmp_path.glob("runs/probe/sac/*/config.yaml"))) == 1
    assert commands.run(made, "evaluate", "run").status == TRAINED


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
        "has format 99, this version of jaxrl_fast reads 2 and 3: resume it with the version that wrote it",
    ),
    "description a folder": (
        "description.json",
        lambda path: (delete(path), path.mkdir()),
        "is damaged",
    ),
    "state truncated": (
        "state",
        lambda path: truncate(largest(path)),
        "is damaged (state/arrays.bin",
    ),
    "state flipped": ("state", lambda path: flip(largest(path)), "is damaged (state/arrays.bin"),
    "the file of state deleted": ("state", lambda path: delete(largest(path)), "No such file"),
    "the file of state another": ("state/arrays.bin", write(b"{"), "is damaged"),
    "state deleted": ("state", delete, "is damaged"),
    "state empty": ("state", lambda path: (delete(path), path.mkdir()), "is damaged"),
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
    ("algo.clip_range=0.1", "it belongs to algo=ippo or algo=mappo or algo=ppo"),
]


def test_a_checkpoint_named_by_a_link_is_the_same_when_the_link_leads_elsewhere(made, tmp_path):
    """As ``runs/latest`` does as soon as the run has a folder."""
    (tmp_path / "latest").symlink_to(made / "run")
    resume = Path(str(compose([f"resume={tmp_path}/latest/checkpoints/200"]).resume))
    (tmp_path / "latest").unlink()
    assert resume.is_dir(), resume


@pytest.mark.parametrize(("words", "expected"), OTHERS, ids=[words for words, _ in OTHERS])
def test_a_checkpoint_of_another_run(commands, made, tmp_path, words: str, expected: str):
    shutil.copytree(made / "run", tmp_path / "run")
    said = refused(commands, tmp_path, "train", "resume=run", "total_steps=400", *words.split())
    assert expected in said


POLICIES = {
    "params truncated": ("policy/params.msgpack", truncate, "params.msgpack is damaged"),
    "params empty": ("policy/params.msgpack", write(b""), "params.msgpack is damaged"),
    "params of something else": (
        "policy/params.msgpack",
        write(b"\x93\x01\x02\x03"),
        "params.msgpack is damaged",
    ),
    "params text": ("policy/params.msgpack", write(b"hello, world"), "params.msgpack is damaged"),
    "params bytes": (
        "policy/params.msgpack",
        write(bytes(range(256))),
        "params.msgpack is damaged",
    ),
    "params too much": (
        "policy/params.msgpack",
        lambda p: p.write_bytes(p.read_bytes() * 2),
        "params.msgpack is damaged",
    ),
    "params a folder": (
        "policy/params.msgpack",
        lambda p: (delete(p), p.mkdir()),
        "holds no policy (Is a directory)",
    ),
    "params deleted": ("policy/params.msgpack", delete, "holds no policy (No such file"),
    "policy deleted": ("policy", delete, "holds no policy"),
    "policy.json truncated": ("policy/policy.json", truncate, "policy.json is damaged"),
    "policy.json no JSON": ("policy/policy.json", write(b"algo: sac"), "policy.json is damaged"),
    "policy.json a list": ("policy/policy.json", write(b"[1]"), "policy.json has format None"),
    "policy.json binary": (
        "policy/policy.json",
        write(bytes(range(256))),
        "policy.json is damaged",
    ),
    "policy.json deep": ("policy/policy.json", write(b"[" * 100_000), "policy.json is damaged"),
    "policy.json without a spec": (
        "policy/policy.json",
        write(b'{"format": 1}'),
        "policy.json cannot be used",
    ),
    "policy.json with an odd spec": (
        "policy/policy.json",
        lambda p: edit(p, spec=3),
        "policy.json cannot be used",
    ),
    "policy.json of another algorithm": (
        "policy/policy.json",
        lambda p: edit(p, made_by={**json.loads(p.read_text())["made_by"], "algo": "a2c"}),
        "this version has no algo=a2c",
    ),
    "policy.json with other networks": (
        "policy/policy.json",
        lambda p: edit(
            p, made_by={**json.loads(p.read_text())["made_by"], "options": {"policy_hidden": [9]}}
        ),
        "does not match",
    ),
    "policy.json with odd options": (
        "policy/policy.json",
        lambda p: edit(
            p, made_by={**json.loads(p.read_text())["made_by"], "options": {"colour": "red"}}
        ),
        "policy.json cannot be used: TypeError",
    ),
    "policy of another version": (
        "policy/policy.json",
        lambda p: edit(p, format=99),
        "has format 99",
    ),
    "config.yaml deleted": ("config.yaml", delete, "as runs of jf.learn may: add its environment"),
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
        "run_dir=run contains a run already: write resume=run, or another run_dir",
    ),
    "a temperature of 0": (
        lambda run: None,
        [*SMALL, "algo.initial_temperature=0"],
        "write a number of at least",
    ),
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
    spec = jf.EnvSpec("toy", obs, jf.Discrete(2))
    agent = bind(algorithm, spec, 5)
    parts = agent.acting.greedy_weights(
        {"actor": Learned(init_params(agent.parts["actor"], jax.random.key(1)))}
    )
    made_by = {
        "algo": "ppo",
        "options": algorithm.options,
        "num_envs": 5,
        "normalize_observations": True,
    }
    policy = make_policy(spec, agent.acting, PolicyParams(parts, init_stats(obs)), made_by)
    jf.save_policy(policy, tmp_path)
    loaded = jf.load_policy(tmp_path)
    assert same_spaces(loaded.spec, spec)
    seen = jax.tree.map(lambda s: jnp.ones((3, *s.shape), s.dtype), obs)
    actions = [
        p.act(p.params, p.initial_carry(3), seen, jnp.zeros(3, bool), jax.random.key(0))[0]
        for p in (policy, loaded)
    ]
    np.testing.assert_array_equal(*actions)
    for ours, theirs in zip(
        jax.tree.leaves(policy.params), jax.tree.leaves(loaded.params), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


RESTORE = """
import builtins, marshal, pathlib, pickle
from jaxrl_fast import load_policy
from jaxrl_fast.training import checkpoints

def restore():
    description = checkpoints.read_description(checkpoints.find(pathlib.Path("run")))
    assert checkpoints.read_arrays(description)
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
    refused(commands, tmp_path, command, *words)  # the folder contains no new file: no "ran"
