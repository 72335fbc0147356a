"""What a user reads of an algorithm's settings is stored in ``tests/golden``: a change of it is
seen in its diff.

``python tests/test_golden_settings.py`` writes the files again, after a change that CHANGELOG.md
names.
"""

import json
from pathlib import Path

import pytest

import jaxrl_fast as jf
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.commands.cli import keys_help, train_help
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.settings.run import of_program, repeated_by, stored_settings, to_yaml
from jaxrl_fast.settings.schema import Checkpoints, EvalOptions

GOLDEN = Path(__file__).parent / "golden"
AGENTS = "traffic_junction_4"
ENVS = dict.fromkeys(("ippo", "mappo", "pqn_vdn"), AGENTS) | dict.fromkeys(
    ("ppo", "dqn", "pqn", "impala", "sac_discrete"), "cartpole"
)
"""Environment of each algorithm; others have pendulum."""


def as_json(settings: dict) -> str:
    return json.dumps(settings, indent=1, sort_keys=True, ensure_ascii=False, default=str)


def texts_of(name: str) -> dict[str, str]:
    """Return what the command and a program show and store of an algorithm's settings, by title."""
    env_name = ENVS.get(name, "pendulum")
    words = [f"env={env_name}", f"algo={name}", "tuned=false", "num_envs=4", "total_steps=1000"]
    run = compose(words)
    env, algorithm = jf.make_env(env_name, num_envs=4), ALGORITHMS[name]()
    of_learn = of_program(
        env,
        algorithm,
        total_steps=1000,
        placement="fused",
        eval=EvalOptions(),
        checkpoint=Checkpoints(),
    )
    return {
        "--help": keys_help(words).partition("env.*:")[0],
        "config.yaml of the command": to_yaml(run),
        "settings of a checkpoint of the command": as_json(stored_settings(run, env, algorithm)),
        "config.yaml of learn": repeated_by(env, algorithm, of_learn),
        "settings of a checkpoint of learn": as_json(stored_settings(of_learn, env, algorithm)),
        "options in a policy": as_json(dict(algorithm.options)),
    }


def content_of(name: str) -> str:
    if name == "train":
        return train_help() + "\n"
    return "".join(f"=== {title}\n{text.rstrip()}\n\n" for title, text in texts_of(name).items())


@pytest.mark.parametrize("name", ["train", *sorted(ALGORITHMS)])
def test_settings_are_shown_and_stored_as_before(name: str):
    assert content_of(name) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for each in ("train", *sorted(ALGORITHMS)):
        (GOLDEN / f"{each}.txt").write_text(content_of(each), encoding="utf-8")
