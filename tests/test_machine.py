"""Decisions that depend on the machine: the measured placement, and the number of devices, which
divides the work.

The numbers of training do not depend on the machine.
"""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.envs import SHORT_NAMES
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.settings import machine
from jaxrl_fast.settings.machine import TABLE, choose, cpu_cores, largest_divisor
from jaxrl_fast.settings.schema import read_word

ROOT = Path(__file__).parent.parent


def chosen(suite: str, name: str, algo: str, **sizes: int) -> tuple[str, int]:
    choice = choose(suite, name, algo, **{"num_envs": 64, "num_seeds": 1, "devices": 2, **sizes})
    return choice.placement, choice.devices


@pytest.mark.parametrize(
    ("asked", "sizes", "answer"),
    [
        (("brax", "halfcheetah", "ppo"), {}, ("sharded_sampling", 2)),
        (("brax", "halfcheetah", "ppo"), {"devices": 1}, ("fused", 1)),
        (("brax", "halfcheetah", "ppo"), {"num_envs": 65}, ("fused", 1)),
        (("brax", "halfcheetah", "ppo"), {"num_envs": 100, "devices": 8}, ("sharded_sampling", 5)),
        (("brax", "ant", "ppo"), {"devices": 4}, ("sharded_sampling", 4)),
        (("gymnax", "cartpole", "ppo"), {}, ("fused", 1)),
        (("gymnax", "cartpole", "ppo"), {"num_seeds": 8}, ("data_parallel", 2)),
        (("gymnax", "cartpole", "ppo"), {"num_seeds": 6, "devices": 4}, ("data_parallel", 3)),
        (("brax", "halfcheetah", "ppo"), {"num_seeds": 3}, ("sharded_sampling", 2)),
        (("custom", "custom", "ppo"), {}, ("fused", 1)),
    ],
)
def test_the_measured_placement_is_chosen_on_devices_that_come_out_even(asked, sizes, answer):
    assert chosen(*asked, **sizes) == answer


def test_the_table_names_only_what_exists():
    table = yaml.safe_load(TABLE.read_text())
    suites = {short.suite for short in SHORT_NAMES.values()}
    for name, row in table.items():
        assert name in suites | set(SHORT_NAMES)
        assert set(row) <= set(ALGORITHMS)
        assert set(row.values()) <= set(PLACEMENTS)
    assert set(table) >= suites


def test_divisors_and_cores():
    assert [largest_divisor(12, limit) for limit in (1, 2, 5, 8, 100)] == [1, 2, 4, 6, 12]
    assert cpu_cores() >= 1


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "JAXRL_FAST_CACHE"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert machine.cache_root() is None and machine.cache_folder() is None


def test_a_platform_that_is_not_here_is_refused_and_64_bits_are_switched_off_or_refused(
    commands, tmp_path
):
    words = ["env=cartpole", "algo=ppo", "total_steps=1000"]
    no_device = [
        "import jax, jaxrl_fast.train as train",
        "jax.config.update('jax_platforms', 'cuda')",
        f"assert train.main({words}) == 2",
    ]
    wide = [
        "import jax, jaxrl_fast as jf",
        "jax.config.update('jax_enable_x64', True)",
        "for make in (lambda: jf.make_env('cartpole', num_envs=2), lambda: jf.vectorize(None, num_envs=2)):",
        "    try: make()",
        "    except ValueError as error: print(error)",
        "jf.setup()",
        "assert not jax.config.jax_enable_x64",
    ]
    in_program = [
        "import jax, jaxrl_fast as jf",
        "jax.config.update('jax_platforms', 'cuda')",
        "host = jf.make_env('gymnasium', id='CartPole-v1', num_envs=2, pool={'workers': 0})",
        "make = lambda name: lambda: jf.make_env(name, num_envs=2)",
        "learn, step = (lambda: jf.learn(host, jf.ppo(), total_steps=9)), (lambda: jf.make_train_step(host, jf.ppo()))",
        "for call in (make('cartpole'), make('pendulum'), make('halfcheetah'), learn, step):",
        "    try: call()",
        "    except ValueError as error: print(error)",
    ]
    refused = commands.run(tmp_path, "python", *no_device)
    line = "JAX_PLATFORMS=cuda: JAX finds no such device here: write JAX_PLATFORMS=cpu, or install its driver"
    answer = commands.run(tmp_path, "python", *in_program)
    assert (answer.status, answer.out) == (0, f"{line}\n" * 5), answer.err
    for call in ("check.main(['env=cartpole'])", "evaluate.main(['run'])"):
        lines = [
            "import jax",
            "from jaxrl_fast import check, evaluate",
            "jax.config.update('jax_platforms', 'cuda')",
        ]
        ended = commands.run(tmp_path, "python", *lines, f"assert {call} == 2")
        assert (ended.status, ended.err) == (0, f"jaxrl_fast: error: {line}\n")
    assert (refused.status, refused.err.splitlines()[-1]) == (0, f"jaxrl_fast: error: {line}")
    answer = commands.run(tmp_path, "python", *wide)
    assert answer.status == 0, answer.err
    assert (
        answer.out.count("computes in 32 bits, and jax_enable_x64 is on: write jax.config.update(")
        == 2
    )
    assert answer.err == "jax_enable_x64 is switched off: jaxrl_fast computes in 32 bits\n"


ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("word", ["name=é", "run_dir=dé", "run_dir=日本/run"])
def test_other_letters_are_read_and_where_file_names_are_ascii_refused_in_one_line(word, tmp_path):
    key, _, text = word.partition("=")
    assert read_word(word) == (key, text)
    assert compose(["env=cartpole", word.replace("/", "-") if key == "name" else word]) is not None
    variables = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONIOENCODING"},
        "PYTHONPATH": str(ROOT),
        **ASCII,
    }
    command = [sys.executable, "-m", "jaxrl_fast.train", "env=cartpole", "algo=ppo", word]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, timeout=900)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1, done.stderr
    assert b"the system's encoding (ascii) lacks some letter: set PYTHONUTF8=1" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_the_encoding_lacks_is_one_error(tmp_path):
    program = "import pathlib; from jaxrl_fast.training.run_folder import check_unused, locked\n"
    program += "folder = pathlib.Path('d\\u00e9'); check_unused(folder)\n"
    program += "try: locked(folder).__enter__()\nexcept ValueError as error: print(error)"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **ASCII}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        r"run_dir='d\xe9': the system's encoding (ascii) lacks some letter"
    )


def test_a_run_where_the_system_writes_ascii(tmp_path):
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **ASCII}
    (tmp_path / "mine.yaml").write_text("name: é\n", encoding="utf-8")
    words = "env=cartpole algo=ppo tuned=false num_envs=4 total_steps=512 eval.episodes=1 eval.beside=false"
    words += " config=mine.yaml"
    command = [sys.executable, "-m", "jaxrl_fast.train", *words.split(), "run_dir=run"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b" ? " in done.stdout  # for ±
    assert "name: é\n" in (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")
