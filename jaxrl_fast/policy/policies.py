"""A trained policy as a value: parameters, observation statistics and two pure functions; also of a
single agent.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from jax.tree_util import keystr

from jaxrl_fast.algorithms.multi_agent import spec_of_one
from jaxrl_fast.algorithms.registry import declared_named
from jaxrl_fast.core import (
    Actions,
    Box,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    PyTree,
    action_shape,
    require_devices,
)
from jaxrl_fast.learning.acting import Acting, Carry
from jaxrl_fast.learning.algorithm import Agent, AnyAlgorithm, Learned, Part, init_params
from jaxrl_fast.learning.frame_stack import View
from jaxrl_fast.learning.observation_view import acting_of, view_of
from jaxrl_fast.numerics.normalization import RunningStats, init_stats, normalize, with_variances
from jaxrl_fast.policy.space_adapter import ActBatch, PolicyParams, SpaceAdapter, adapter_of
from jaxrl_fast.system import CODE, local_path, names_code, path_of, replace_file

FORMAT_VERSION, BY_POSITION = 3, 1
"""Current file format, and an older one, with numbered arrays; all from 1 on can be read."""
AGENT = "agent"
"""Entry of ``made_by`` with the number of the agent, in a policy of one of several agents."""


@dataclass(frozen=True, eq=False)
class Policy:
    """The greedy policy, in the environment's own observations and actions.

    Calling a feed-forward policy maps one observation, or a batch with any leading axes, to
    actions; a recurrent one is stepped with ``act``. Entries of dictionaries are read by name, and
    only those that select actions are needed. With several agents it is the joint policy;
    ``agent(2)`` is the policy of the third agent.

    It is no NamedTuple, because `jax.jit` takes no tuples.

    Attributes:
        params: Parameters and statistics.
        act: ``(params, carry, obs, first, key) -> (actions, carry)`` of a batch: ``carry``
            ``[E, ...]`` from ``initial_carry`` or the last call (without a memory: any), ``obs``
            ``[E, ...]``, and ``first`` ``[E]``, whether an episode begins.
        initial_carry: ``(num_envs) -> carry`` before the first step, leaves ``[num_envs, ...]``; no
            leaves without a memory.
        spec: Environment on which it was trained.
        made_by: Algorithm and its options, from which its networks can be rebuilt.
        act_arrays: As ``act``, with observations and actions as the arrays of training
            (``spec.obs``, ``spec.action``).
    """

    params: PolicyParams
    act: ActBatch
    initial_carry: Callable[[int], PyTree]
    spec: EnvSpec
    made_by: dict[str, Any]
    act_arrays: ActBatch = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.act_arrays is None:
            object.__setattr__(self, "act_arrays", self.act)

    @property
    def adapter(self) -> SpaceAdapter:
        """Conversion between the environment's own spaces and the arrays of training, made and
        compiled once.
        """
        return adapter_of(self.spec, self.act_arrays, self.initial_carry)

    def __call__(self, obs: PyTree) -> Any:
        """Return the action for an observation, or actions ``[..., *action]`` for observations
        ``[..., *obs]``.

        Args:
            obs: Observations as the environment gives them: NumPy, JAX or plain Python.

        Returns:
            Actions as the environment takes them.

        Raises:
            ValueError: The policy has a memory, or the observation has other shapes or names.
        """
        if jax.tree.leaves(self.initial_carry(1)):
            raise ValueError(
                "this policy has a memory: step it with policy.act and policy.initial_carry"
            )
        return self.adapter.of(obs).first_action(self.params, obs)

    def __repr__(self) -> str:
        return f"Policy({self.spec.name}, {self.made_by.get('algo', 'own')})"

    def _replace(self, **changes: Any) -> "Policy":
        """Return a policy with other fields, as of a NamedTuple."""
        return replace(self, **changes)

    def fast(self) -> Callable[..., Any]:
        """Return the policy as a function for a loop in Python, run by ONNX Runtime in one thread,
        without JAX.

        Returns:
            ``(obs) -> action``, as calling the policy; with a memory
            ``(carry, obs, first) -> (action, carry)``, where ``carry`` is None at the start.

        Raises:
            ValueError: A package is missing, or ONNX cannot express the policy.
        """
        return import_module("jaxrl_fast.policy.exporting").fast(self)

    def agent(self, number: int) -> "Policy":
        """Return one agent's policy, from this agent's observation to its action. It can be
        exported, not saved.

        Args:
            number: Number of the agent, from 0.

        Raises:
            ValueError: There is no such agent, or only one agent.
        """

        return policy_of_agent(self, number)


def make_policy(
    spec: EnvSpec, acting: Acting, params: PolicyParams, made_by: dict[str, Any]
) -> Policy:
    """Build a policy from action selection and parameters.

    Args:
        spec: Environment.
        acting: Action selection.
        params: Parameters and statistics.
        made_by: Algorithm and its options.

    Returns:
        The policy.
    """
    # Some algorithms carry exploration noise, on which greedy actions do not depend.
    remembers = memory_of(acting.greedy_carry(1)) is not None

    def act_arrays(
        params: PolicyParams, carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array
    ) -> tuple:
        inputs = obs if params.obs is None else normalize(params.obs, obs)
        if not remembers:  # any carry is accepted, even ()
            return acting.greedy(params.parts, acting.greedy_carry(1), inputs, first, key)[0], carry
        return acting.greedy(params.parts, carry, inputs, first, key)

    def act(
        params: PolicyParams, carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array
    ) -> tuple:
        adapter = adapter_of(spec, act_arrays, initial_carry).of(obs)
        action, carry = act_arrays(
            params, carry, adapter.to_arrays(*adapter.read(params, obs)), first, key
        )
        return adapter.to_actions(action), carry

    initial_carry = acting.greedy_carry if remembers else lambda num_envs: Carry((), {}, ())
    return Policy(params, act, initial_carry, spec, made_by, act_arrays)


def require_policy(policy: Any, spec: EnvSpec | None = None) -> None:
    """Check that an argument is a policy, and one for an environment.

    Args:
        policy: Argument.
        spec: Environment in which it is to act, if there is one.

    Raises:
        ValueError: It is something else, or reads other observations or gives other actions.
    """
    if not isinstance(policy, Policy):
        raise _no_policy(policy)
    if spec is not None and _interface(policy.spec) != _interface(spec):
        raise ValueError(
            f"the policy was trained on {policy.spec.name}, whose observations or actions have other shapes than those "
            f"in {spec.name}: use an environment as in its training"
        )


def _interface(spec: EnvSpec) -> tuple[Any, ...]:
    paths = jax.tree_util.tree_leaves_with_path(spec.obs)
    sizes = np.asarray(
        getattr(spec.action, "num_actions", getattr(spec.action, "sizes", ()))
    ).tolist()
    return (
        [(keystr(path), x.shape, x.dtype) for path, x in paths],
        type(spec.action),
        action_shape(spec),
        sizes,
    )


def save_policy(policy: Policy, folder: str | Path) -> None:
    """Write ``policy.json`` (the description) and ``params.msgpack`` (the arrays; no code).

    Each file replaces an older one atomically, so no reader sees half a file.

    Args:
        policy: Policy.
        folder: Folder, created if missing.

    Raises:
        ValueError: It is not a policy, or one of several agents.
    """
    if not isinstance(policy, Policy) or AGENT in policy.made_by:
        raise _not_saved(policy)
    folder = local_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    description = {
        "format": FORMAT_VERSION,
        "spec": spec_to_json(policy.spec),
        "made_by": policy.made_by,
    }
    params = serialization.msgpack_serialize(jax.tree.map(np.asarray, by_name(policy.params)))
    replace_file(folder / "params.msgpack", params)
    replace_file(folder / "policy.json", f"{json.dumps(description, indent=2, default=path_of)}\n")


def _no_policy(value: Any) -> ValueError:
    how = (
        "result.policy"
        if hasattr(value, "policy")
        else "a policy, such as jaxrl_fast.load_policy(path)"
    )
    return ValueError(f"policy is a {type(value).__name__}: write {how}")


def _not_saved(policy: Any) -> ValueError:
    if not isinstance(policy, Policy):
        return _no_policy(policy)
    return ValueError(
        f"the policy of agent {policy.made_by[AGENT]} cannot be saved alone: save the joint policy"
    )


OwnAlgorithm = AnyAlgorithm | Callable[..., AnyAlgorithm] | None
"""An algorithm that no package names, or its factory, which gets the ``options`` of
``made_by``.
"""


def load_policy(path: str | Path, *, algorithm: OwnAlgorithm = None) -> Policy:
    """Load a policy saved by a run, without the run's configuration.

    Args:
        path: Folder of a run, or of its policy.
        algorithm: Your algorithm or its factory, if it is not one of this package. Nothing in the
            folder is executed.

    Returns:
        The policy.

    Raises:
        ValueError: The folder contains no policy, or a damaged one, or the algorithm is missing or
            another one.
    """
    folder = local_path(path)
    folder = folder / "policy" if (folder / "policy" / "policy.json").exists() else folder
    description, stored = _read_files(folder)
    require_devices()
    try:
        spec, made_by = spec_from_json(description["spec"]), description["made_by"]
        if algorithm is None and declared_named(made_by["algo"]) is None:
            make = made_by["algo"] if "." in made_by["algo"] else "my_package.make"
            raise ValueError(
                f"this version has no algo={made_by['algo']}, which made the policy: if it is your own, write "
                f"algo.make={make}, or load_policy(path, algorithm=...)"
            )
        options = made_by["options"]
        own_code = " ".join(
            f"algo.{name}={options[name]}" for name in CODE if names_code(options.get(name))
        )
        if algorithm is None and own_code:
            raise ValueError(
                f"its {own_code} is your own, and code that a folder names is not executed: write {own_code} again, or "
                f"load_policy(path, algorithm=jf.{made_by['algo']})"
            )
        agent, view = built_again(spec, made_by, algorithm)
        acting = acting_of(agent, view)
        template = params_template(spec, agent.parts, acting, made_by["normalize_observations"])
    except Exception as error:  # the file may contain anything
        raise ValueError(
            f"{folder}/policy.json cannot be used: {type(error).__name__}: {error}"
        ) from error
    wanted = by_name(template)
    try:
        loaded = serialization.msgpack_restore(stored)
        loaded = with_variances(
            _named_by_position(loaded, wanted) if description["format"] == BY_POSITION else loaded
        )
        leaves: list[Any] = [loaded.get(name) for name in wanted]
    except Exception as error:  # errors of msgpack and flax on damaged bytes vary
        raise ValueError(
            f"{folder}/params.msgpack is damaged: {type(error).__name__}: {error}"
        ) from error
    if difference := _difference(loaded, wanted):
        owner = "they are of different runs" if algorithm is None else _other_networks(algorithm)
        raise ValueError(
            f"{folder}/params.msgpack does not match {folder}/policy.json: {difference}: {owner}"
        )
    params = jax.tree.unflatten(
        jax.tree.structure(template), [jnp.asarray(leaf) for leaf in leaves]
    )
    return make_policy(spec, acting, params, made_by)


def _difference(loaded: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Describe the first array that differs in name, shape or type between a file and the networks."""

    def described(array: Any) -> str:
        return f"{array.dtype}{list(array.shape)}" if hasattr(array, "dtype") else "missing"

    for name in dict.fromkeys([*wanted, *loaded]):
        there, here = described(loaded.get(name)), described(wanted.get(name))
        if there != here or there == "missing":
            return f"{name} is {there} in the file, {here} in the networks"
    return ""


def _other_networks(algorithm: OwnAlgorithm) -> str:
    if isinstance(algorithm, AnyAlgorithm):
        return "the algorithm has other networks than then: pass its factory, which gets the options of the run"
    return "the factory makes other networks than then"


def built_again(
    spec: EnvSpec, made_by: dict[str, Any], algorithm: OwnAlgorithm = None
) -> tuple[Agent, View | None]:
    """Rebuild the agent of a policy, and its view of observations.

    Args:
        spec: Environment of the policy.
        made_by: Algorithm and its options.
        algorithm: As in `load_policy`.

    Returns:
        The agent, and how its networks read images (None without images).

    Raises:
        ValueError: The algorithm has no name here, and is not given.
    """
    view = view_of(spec)
    # Sizes such as the batch are not stored and do not matter here; their defaults support 64
    # environments.
    if not isinstance(algorithm, AnyAlgorithm):
        named = declared_named(made_by["algo"])
        factory = named if algorithm is None else algorithm
        if factory is None:
            raise ValueError(f"algo={made_by['algo']} has no name here: hand in the algorithm")
        taken = inspect.signature(
            factory
        ).parameters  # a user's may call one of this package with other options
        every = any(p.kind is p.VAR_KEYWORD for p in taken.values())
        keywords = algorithm.keywords if isinstance(algorithm, partial) else {}
        stored = {**made_by["options"], **keywords}
        options = {
            name: x for name, x in stored.items() if every or name in taken or algorithm is None
        }
        algorithm = factory(
            **{name: tuple(x) if isinstance(x, list) else x for name, x in options.items()}
        )
    return algorithm.build(view.spec if view else spec, 64), view


SAMPLED = ("ppo", "impala", "sac", "sac_discrete", "ippo", "mappo", "iql", "reppo")
"""Algorithms whose policy is a distribution of actions."""


def with_sampled_actions(policy: Policy, algorithm: OwnAlgorithm = None) -> Policy:
    """Return a policy that draws its actions from its distribution, instead of the most probable
    ones.

    Args:
        policy: Policy.
        algorithm: As in `load_policy`.

    Returns:
        The policy, with the same parameters.

    Raises:
        ValueError: The algorithm has no distribution of actions.
    """
    algo = policy.made_by["algo"]
    if algo not in SAMPLED and (algorithm is None or declared_named(algo) is not None):
        others = ", ".join(SAMPLED)
        raise ValueError(
            f"algo={algo} has no distribution to sample actions from, as {others} have: leave sample=true out"
        )
    agent, view = built_again(policy.spec, policy.made_by, algorithm)

    def decide(
        outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool
    ) -> tuple:
        try:
            return agent.decide(outputs, obs, state, key, hyper, True)
        except AttributeError as error:  # of the hyper-parameters, which there are only in training
            raise ValueError(
                f"algo={algo}: exploration in decide needs hyper: leave sample=true out"
            ) from error

    acting = acting_of(agent._replace(decide=decide), view)
    return make_policy(policy.spec, acting, policy.params, policy.made_by)


def memory_of(carry: Carry) -> PyTree:
    """Return the part of a carry on which actions depend.

    Args:
        carry: Carry of a policy.

    Returns:
        The networks' memory, the frames before the last, or both by name; None without a memory.
    """
    parts = dict(carry.memory) | ({"frames": carry.frames} if jax.tree.leaves(carry.frames) else {})
    return next(iter(parts.values())) if len(parts) == 1 else parts or None


def with_memory(carry: Carry, memory: PyTree) -> Carry:
    """Replace the part of a carry that `memory_of` returns.

    Args:
        carry: Carry of a policy.
        memory: Result of `memory_of`.

    Returns:
        The carry.
    """
    names = [*carry.memory, *(["frames"] if jax.tree.leaves(carry.frames) else [])]
    parts = {names[0]: memory} if len(names) == 1 else memory
    return carry._replace(
        frames=parts.get("frames", carry.frames), memory={n: parts[n] for n in carry.memory}
    )


def same_spaces(one: EnvSpec, other: EnvSpec) -> bool:
    """Return whether two environments have equal observations and actions.

    Args:
        one: Environment.
        other: Another environment.

    Returns:
        True if shapes, types and action spaces are equal.
    """
    a, b = spec_to_json(one), spec_to_json(other)
    return json.dumps([a["obs"], a["action"]], sort_keys=True) == json.dumps(
        [b["obs"], b["action"]], sort_keys=True
    )


HAS_POLICY = "a run has one from its first evaluation, or when it is stopped and saved"


def best_of_sweep(folder: Path) -> str:
    """Suggest the best member of a sweep, for a folder without a policy.

    Args:
        folder: Folder, or its subfolder of the policy.

    Returns:
        What to write, empty if it is no folder of a sweep.
    """
    bests = [
        each / "best"
        for each in (folder, folder.parent)
        if (each / "best" / "policy" / "policy.json").exists()
    ]
    return f"it is a sweep, write {bests[0]}" if bests else ""


def _read_files(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the content of ``policy.json``, and the bytes of ``params.msgpack``."""
    try:
        description = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
        stored = (folder / "params.msgpack").read_bytes()
    except OSError as error:
        why = f"{folder} holds no policy ({error.strerror})"
        raise ValueError(f"{why}: {best_of_sweep(folder) or HAS_POLICY}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder}/policy.json is damaged: {error}") from error
    version = description.get("format") if isinstance(description, dict) else None
    if version not in range(BY_POSITION, FORMAT_VERSION + 1):
        raise ValueError(
            f"{folder}/policy.json has format {version}, this version of jaxrl_fast reads {FORMAT_VERSION}: use the "
            "version that wrote it"
        )
    return description, stored


def params_template(
    spec: EnvSpec, parts: Mapping[str, Part], acting: Acting, normalized: bool
) -> PolicyParams:
    """Return arrays of the shapes and dtypes of a policy's parameters.

    Args:
        spec: Environment.
        parts: Parts of the algorithm by name.
        acting: Action selection.
        normalized: Whether observations are normalized.

    Returns:
        Parameters of zeros.
    """

    def weights() -> dict[str, PyTree]:
        return acting.greedy_weights(
            {p: Learned(init_params(parts[p], jax.random.key(0))) for p in acting.chooses}
        )

    zeros = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), jax.eval_shape(weights))
    return PolicyParams(zeros, init_stats(spec.obs) if normalized else None)


def by_name(params: PolicyParams) -> dict[str, Any]:
    """Return the leaves of parameters by path.

    Args:
        params: Parameters.

    Returns:
        Leaves by paths such as ``parts/actor/params/Dense_0/kernel``.
    """
    return {
        keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(params)
    }


def from_names(template: PolicyParams, leaves: dict[str, Any]) -> PolicyParams:
    """Restore parameters from `by_name`.

    Args:
        template: Parameters with the same structure.
        leaves: Result of `by_name`.

    Returns:
        The parameters.
    """
    return jax.tree.unflatten(
        jax.tree.structure(template), [leaves[name] for name in by_name(template)]
    )


def _named_by_position(stored: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays of a file of the first format by name.

    They were numbered: the actor's first, the statistics last, and between them parameters that
    select no action (SAC's temperature, the critic of a PPO with a memory).
    """
    leaves = [stored[str(i)] for i in range(len(stored))]
    weights = [name for name in wanted if name.startswith("parts/")]
    statistics = [name for name in wanted if not name.startswith("parts/")]
    return dict(zip(weights, leaves, strict=False)) | dict(
        zip(statistics, leaves[len(leaves) - len(statistics) :], strict=True)
    )


def spec_to_json(spec: EnvSpec) -> dict[str, Any]:
    """Convert an environment's spec for JSON; tuples of observations become lists.

    Args:
        spec: Environment.

    Returns:
        The input of `spec_from_json`.
    """
    action: dict[str, Any]
    if isinstance(spec.action, Box):
        action = {
            "low": np.asarray(spec.action.low).tolist(),
            "high": np.asarray(spec.action.high).tolist(),
        }
    else:
        action = {
            name: list(x) if isinstance(x, tuple) else x
            for name, x in spec.action._asdict().items()
        }
    obs = jax.tree.map(lambda s: {"shape": list(s.shape), "dtype": str(s.dtype)}, spec.obs)
    facts = {
        name: value
        for name, value in spec._asdict().items()
        if name not in ("arguments", "contents", "goal_reward")
    }
    return {
        **facts,
        "obs": obs,
        "action": action,
        "own_sizes": [list(sizes) for sizes in spec.own_sizes],
    }


def spec_from_json(description: dict[str, Any]) -> EnvSpec:
    """Restore the result of `spec_to_json`.

    Args:
        description: Dictionary from JSON.

    Returns:
        The environment.
    """
    action = description["action"]
    space: Actions
    if "num_actions" in action:
        space = Discrete(action["num_actions"])
    elif "sizes" in action:
        space = MultiDiscrete(tuple(action["sizes"]))
    else:
        space = Box(np.asarray(action["low"], np.float32), np.asarray(action["high"], np.float32))

    def is_leaf(x: Any) -> bool:
        return isinstance(x, dict) and set(x) == {"shape", "dtype"}

    obs = jax.tree.map(
        lambda d: jax.ShapeDtypeStruct(tuple(d["shape"]), d["dtype"]),
        description["obs"],
        is_leaf=is_leaf,
    )
    # Policies of older versions lack the entries that are read with a default.
    return EnvSpec(
        name=description["name"],
        obs=obs,
        action=space,
        max_episode_steps=description["max_episode_steps"],
        frame_stack=description.get("frame_stack", 0),
        num_agents=description.get("num_agents"),
        shared_reward=description.get("shared_reward", False),
        own_sizes=tuple((size, number) for size, number in description.get("own_sizes", ())),
        obs_space=description.get("obs_space"),
        action_space=description.get("action_space"),
        metrics=description.get("metrics", {}),
    )


def policy_of_agent(policy: Policy, number: int) -> Policy:
    """Return the policy of one of several agents, which selects the same actions as the joint
    policy.

    Args:
        policy: Policy of all agents.
        number: Number of the agent, from 0.

    Returns:
        A policy from this agent's observation, ``[E, ...]``, to its action.

    Raises:
        ValueError: There is no such agent, or only one agent.
    """
    spec = policy.spec
    if spec.num_agents is None:
        raise ValueError(f"{spec.name} has one agent: use its policy directly")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < spec.num_agents:
        raise ValueError(
            f"agent {number}: {spec.name} has {spec.num_agents}, write a number from 0 to {spec.num_agents - 1}"
        )
    agent, _ = built_again(spec, policy.made_by)
    parts, weights = {}, {}
    for part, name in agent.acts.items():
        of_agent = agent.parts[part].networks[name].of_agent
        assert of_agent is not None  # every algorithm for several agents sets it
        network, weights[part] = of_agent(number, policy.params.parts[part])
        parts[part] = agent.parts[part]._replace(networks={name: network})
    acted = (
        None if spec.action_space is None else list(spec.action_space["spaces"].values())[number]
    )
    alone = spec_of_one(spec, shared=False)._replace(obs_space=None, action_space=acted)
    acting = acting_of(agent._replace(parts=parts, remembers={}), view_of(alone))
    statistics = (
        None
        if policy.params.obs is None
        else _statistics_of_agent(policy.params.obs, alone.obs, number)
    )
    return make_policy(
        alone, acting, PolicyParams(weights, statistics), {**policy.made_by, AGENT: number}
    )


def _statistics_of_agent(statistics: RunningStats, obs_spec: PyTree, number: int) -> RunningStats:
    def own(tree: PyTree) -> PyTree:
        entries = {key: tree[key] for key in obs_spec} if isinstance(obs_spec, dict) else tree
        return jax.tree.map(lambda leaf: leaf[number], entries)

    return RunningStats(statistics.samples, own(statistics.mean), own(statistics.variance))
