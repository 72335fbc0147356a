"""Policies that version 0.1.0 wrote (numbered arrays, whole parts) act as they did in that version."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast.policy.exporting import export_policy

FOLDERS = sorted((Path(__file__).parent / "old_policies").iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_old_policy_acts_as_it_did(folder: Path):
    policy, expected = jf.load_policy(folder), json.loads((folder / "expected.json").read_text())
    obs, first = np.array(expected["obs"], np.float32), jnp.array(expected["first"])
    carry = policy.initial_carry(first.shape[1])
    for t, want in enumerate(expected["action"]):
        action, carry = policy.act(policy.params, carry, obs[t], first[t], jax.random.key(0))
        np.testing.assert_allclose(action, want, rtol=1e-5, atol=1e-6)


def test_an_old_policy_is_evaluated_saved_by_name_and_exported(tmp_path: Path):
    policy = jf.load_policy(FOLDERS[0])
    env = jf.make_env("pendulum", num_envs=1)
    before = jf.evaluate_policy(policy, env, jax.random.key(0), episodes=2)
    jf.save_policy(policy, tmp_path / "policy")
    again = jf.load_policy(tmp_path / "policy")
    np.testing.assert_array_equal(
        jf.evaluate_policy(again, env, jax.random.key(0), episodes=2), before
    )
    path, _ = export_policy(again, tmp_path, "jax")
    assert path.exists()


def test_an_old_file_with_too_few_arrays_is_refused(tmp_path: Path):
    for name in ("policy.json", "params.msgpack"):
        (tmp_path / name).write_bytes((FOLDERS[0] / name).read_bytes())
    other = json.loads((tmp_path / "policy.json").read_text())
    other["made_by"]["options"]["policy_hidden"] = [4, 4, 4, 4]
    (tmp_path / "policy.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match=r"does not match|is damaged"):
        jf.load_policy(tmp_path)
