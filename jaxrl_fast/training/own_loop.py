"""What a training loop around `make_train_step` needs from a state: its policy, and a file to go on from."""

import io
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_fast.core import require_vectorized
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.algorithm import Algorithm
from jaxrl_fast.learning.minibatches import MAX_SHARDS
from jaxrl_fast.learning.run_graph import bind
from jaxrl_fast.numerics.optimizers import schedules
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.settings.schema import EvalOptions
from jaxrl_fast.system import replace_file
from jaxrl_fast.training.checkpoints import CheckpointError, CheckpointFacts, restore, snapshot
from jaxrl_fast.training.episodes import make_periodic_evaluation


def trained_policy(env: VecEnv | HostEnv, algorithm: Algorithm, state: TrainState) -> Policy:
    """Return the policy of a train step's state, for `evaluate_policy`, `save_policy` or a call.

    Args:
        env: Environment of `make_train_step`.
        algorithm: Its algorithm.
        state: State of one seed: of several, as under ``vmap``, write ``jax.tree.map(lambda x: x[seed], state)``.

    Returns:
        The policy, with copies of the state's parameters.

    Raises:
        ValueError: The state is of several seeds, or of another algorithm.
    """
    require_vectorized(env, algorithm)
    check_state(state)
    if state.key.shape:
        raise ValueError("the state is of several seeds: write jax.tree.map(lambda x: x[seed], state) for one of them")
    agent = bind(algorithm, env.spec, env.num_envs, MAX_SHARDS)
    evaluation = make_periodic_evaluation(env, algorithm, agent, state.key[None], EvalOptions())
    try:
        return evaluation.policy_of(evaluation.copy_params(state), 0)
    except KeyError as error:
        raise ValueError(f"the state is not of {algorithm.name}: it has no {error}") from None
    finally:
        evaluation.close()


def save_state(path: str | Path, state: TrainState) -> None:
    """Write a train step's state to a file, completely or not at all.

    The file has all arrays, with the replay buffer, the environments and the random keys: `load_state` goes on to the
    bit. Environments on the host are not in it.

    Args:
        path: File, such as ``state.npz``.
        state: State.

    Raises:
        ValueError: ``state`` is not a state.
        OSError: The file cannot be written.
    """
    check_state(state)
    content = io.BytesIO()
    np.savez(content, **snapshot(state, ()))  # type: ignore[arg-type]
    replace_file(Path(path), content.getvalue())


def load_state(path: str | Path, state: TrainState) -> TrainState:
    """Read a file of `save_state`. Nothing in it is executed.

    Args:
        path: File.
        state: Any state of the same train step, such as ``init(key)``, for its structure.

    Returns:
        The state of the file.

    Raises:
        ValueError: The file is not one of `save_state`, or its arrays are not those of this train step.
        OSError: The file cannot be read.
    """
    check_state(state)
    facts = CheckpointFacts(Path(path), {}, {}, None, {}, {}, {}, [], False)
    content = Path(path).read_bytes()
    try:
        with np.load(io.BytesIO(content if content[:2] == b"PK" else b""), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # errors of zip and NumPy on damaged bytes vary
        raise CheckpointError(f"{path} is not a file of save_state: {type(error).__name__}: {error}") from error
    return jax.tree.map(jax.numpy.asarray, restore(state, facts, arrays))


def check_state(state: object) -> None:
    """Check that an argument is the state of one seed.

    Args:
        state: Argument.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(state, TrainState):
        raise ValueError(f"state is a {type(state).__name__}: write the state that init(key) or train_step returned")


def check_hyper(hyper: Any, own: Any, *, has_end: bool) -> None:
    """Check the hyper-parameters given to ``init``.

    Args:
        hyper: Argument.
        own: Hyper-parameters of the algorithm.
        has_end: Whether the length of the run is known, which schedules need.

    Raises:
        ValueError: They are of another algorithm, not numbers, or schedules without a length.
    """
    if type(hyper) is not type(own):
        raise ValueError(f"hyper is a {type(hyper).__name__}: write algorithm.hyper._replace(learning_rate=...)")
    if (names := ", ".join(schedules(hyper))) and not has_end:
        raise ValueError(f"{names} of hyper is a schedule: write make_train_step(..., total_steps=...)")
    for name, rate in hyper._asdict().items():
        for value in jax.tree.leaves(rate):
            if isinstance(value, str) or not np.issubdtype(jax.numpy.result_type(value), np.number):
                raise ValueError(f"{name}={value!r} of hyper: write a number, or a schedule such as jf.Linear(1e-3, 0)")
            if np.shape(value):
                raise ValueError(
                    f"{name} of hyper has the shape {list(np.shape(value))}: write jax.vmap(init) for several"
                )
