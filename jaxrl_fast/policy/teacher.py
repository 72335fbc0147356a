"""Teachers: a trained policy corrects a student of any algorithm with a policy.

A teacher is a trained policy. It acts at every observation of the rollouts that the student samples
(DAgger, arXiv 1011.0686), on the observations as sampled, and on the entries that it was trained
on. Its actions are stored with the student's decisions. The student's policy imitates them with a
weight that falls to 0; its own loss has the rest of the weight (kickstarting, arXiv 1803.03835).
Afterwards the student learns from its rewards alone.
"""

from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Actions, Box, EnvSpec, Extras, Metrics, PyTree, Transition
from jaxrl_fast.learning.algorithm import (
    Agent,
    AnyAlgorithm,
    GradientResult,
    Learned,
    OnPolicy,
    Part,
    Peers,
    Replay,
    Transform,
    gradients_of,
    over_replay,
    over_rollout,
)
from jaxrl_fast.learning.critics import imitation_loss, learned_obs
from jaxrl_fast.learning.updates import statistics_of, trainable
from jaxrl_fast.networks.network import STATISTICS
from jaxrl_fast.numerics.optimizers import Linear
from jaxrl_fast.policy.policies import Policy

TEACHER = "teacher"
"""Entry of a decision's extras with the teacher's action."""
WEIGHT = "teacher_weight"
"""Hyper-parameter with the weight of the imitation, 0 to 1."""


def with_teacher(algorithm: AnyAlgorithm, teacher: Policy, *, share: float = 0.5) -> AnyAlgorithm:
    """Let a policy teach an algorithm.

    Args:
        algorithm: Algorithm of the student, with continuous actions or a policy of discrete ones.
        teacher: Policy for an environment with the same actions, whose observations are entries
            of the student's.
        share: Share of the run over which the weight of the imitation falls linearly from 1 to 0.

    Returns:
        The algorithm, with one more hyper-parameter, ``teacher_weight``.

    Raises:
        ValueError: ``share`` is not in (0, 1], the teacher is no policy, or the algorithm has a
            teacher already.
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"teacher_share={share}: write a number above 0, at most 1")
    if not hasattr(teacher, "spec") or WEIGHT in algorithm.hyper._fields:
        raise ValueError(
            "with_teacher takes a policy, as of jf.load_policy, and an algorithm without a teacher"
        )
    kind = namedtuple("TaughtHyper", [*algorithm.hyper._fields, WEIGHT])  # type: ignore[misc]  # its own fields and one
    hyper: Any = kind._make([*algorithm.hyper, Linear(1.0, 0.0, share)])

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        agent = algorithm.build(spec, num_envs)
        entries = entries_for(teacher.spec, spec, algorithm.name)
        ((name, network),) = agent.acts.items()
        if not isinstance(spec.action, Box) and agent.outputs_of is None:
            raise ValueError(
                f"teacher: algo={algorithm.name} has values and no policy that could imitate: write algo=ppo, impala "
                "or sac_discrete"
            )
        if agent.transform is not None:
            raise ValueError(
                f"teacher: algo={algorithm.name} changes rollouts already: leave teacher out"
            )
        data = agent.data
        data = data._replace(keep=(*data.keep, TEACHER)) if isinstance(data, Replay) else data
        taught = taught_part(agent, spec.action, name, network)
        transform = Transform(
            lambda: TaughtState(teacher.params, teacher.initial_carry(num_envs)),
            labeling(teacher, entries),
        )
        return agent._replace(parts={**agent.parts, name: taught}, data=data, transform=transform)

    return algorithm._replace(hyper=hyper, build=build)


class TaughtState(NamedTuple):
    """State of a teacher.

    Attributes:
        params: Its parameters, which do not change.
        carry: Its memory and frame stacks before the next rollout, ``[E, ...]``.
    """

    params: PyTree
    carry: PyTree


Entries = Callable[[PyTree], PyTree]
"""(observations of the student) -> observations of the teacher."""


def entries_for(teacher: EnvSpec, student: EnvSpec, name: str) -> Entries:
    """Return how the teacher's observation is taken from the student's.

    Args:
        teacher: Environment of the teacher.
        student: Environment of the student.
        name: Name of the student's algorithm.

    Returns:
        The function.

    Raises:
        ValueError: The actions differ, or an entry of the observation is missing or has another
            shape.
    """
    if student.num_agents is not None or teacher.num_agents is not None:
        raise ValueError("teacher: several agents are not supported: leave teacher out")
    same = jax.tree.map(lambda x: jnp.asarray(x).tolist(), (teacher.action, student.action))
    if type(teacher.action) is not type(student.action) or same[0] != same[1]:
        raise ValueError(
            f"teacher: it acts in {teacher.name}, whose actions differ from those in {student.name}"
        )
    available = student.obs if isinstance(student.obs, dict) else {"": student.obs}
    wanted = teacher.obs if isinstance(teacher.obs, dict) else {"": teacher.obs}
    for key, leaf in wanted.items():
        if jax.tree.map(lambda s: (s.shape, s.dtype), available.get(key)) != jax.tree.map(
            lambda s: (s.shape, s.dtype), leaf
        ):
            raise ValueError(
                f"teacher: it reads {key or 'an observation'} as of {teacher.name}, which {student.name} does not have "
                "in this form: train a teacher on entries of the student's observation"
            )
    if not isinstance(teacher.obs, dict):
        return lambda obs: obs
    return lambda obs: {key: obs[key] for key in wanted}


def labeling(teacher: Policy, entries: Entries) -> Callable[..., tuple[Transition, TaughtState]]:
    """Return the change of rollouts that adds the teacher's actions.

    Args:
        teacher: Policy.
        entries: Takes its observation from the student's.

    Returns:
        `Transform.apply`.
    """
    remembers = bool(jax.tree.leaves(teacher.initial_carry(1)))

    def apply(
        rollout: Transition, parts: Peers, state: TaughtState, hyper: Any, key: jax.Array
    ) -> tuple:
        observed, carry = entries(rollout.obs), state.carry
        if remembers:

            def step(carry: PyTree, xs: tuple) -> tuple[PyTree, jax.Array]:
                obs, first = xs
                action, carry = teacher.act_arrays(state.params, carry, obs, first, key)
                return carry, action

            carry, action = jax.lax.scan(step, carry, (observed, rollout.first))
        else:
            steps, num_envs = rollout.first.shape
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), observed)
            action, _ = teacher.act_arrays(state.params, (), flat, rollout.first.reshape(-1), key)
            action = action.reshape(steps, num_envs, *action.shape[1:])
        extras: Extras = rollout.extras
        stored = extras._replace(decision={**extras.decision, TEACHER: action})
        return rollout._replace(extras=stored), TaughtState(state.params, carry)

    return apply


def taught_part(agent: Agent, space: Actions, name: str, network: str) -> Part:
    """Mix the gradient of a policy with the gradient of its imitation.

    Args:
        agent: Algorithm built for one environment.
        space: Action space.
        name: Part of the policy.
        network: Network of the policy in that part.

    Returns:
        The part.
    """
    part, data = agent.parts[name], agent.data
    policy = part.networks[network]
    # its other heads learn from the start
    alone = sum(len(other.networks) for other in agent.parts.values()) == 1

    def outputs_of(params: PyTree, batch: Any) -> tuple[Any, PyTree]:
        if isinstance(data, OnPolicy):
            return over_rollout(policy, params, batch, name)[0], batch.obs
        return over_replay(data, policy, params, batch, name, learning=False), learned_obs(
            data, policy, batch
        )

    def decided(outputs: Any, obs: PyTree, key: jax.Array) -> Any:
        if not isinstance(space, Box):
            assert agent.outputs_of is not None
            return agent.outputs_of({name: outputs})
        return agent.decide({name: outputs}, obs, agent.init_decide(1), key, None, False)[0]

    def gradients(
        learned: Learned, peers: Peers, batch: Any, key: jax.Array, hyper: Any
    ) -> GradientResult:
        result, weight = part.gradients(learned, peers, batch, key, hyper), getattr(hyper, WEIGHT)

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs, obs = outputs_of(params, batch)
            loss = jnp.mean(
                imitation_loss(space, decided(outputs, obs, key), obs, batch.extras[TEACHER])
            )
            return loss, {"teacher_loss": loss}

        grads, metrics = gradients_of(loss_fn, learned.params[network])
        own_share = 1.0 if alone else 1.0 - weight
        plain, imitating = trainable(result.grads[network]), trainable(grads)
        mixed = jax.tree.map(lambda a, b: own_share * a + weight * b, plain, imitating)
        if jax.tree.leaves(statistics_of(result.grads[network])):
            mixed = {**mixed, STATISTICS: result.grads[network][STATISTICS]}
        return result._replace(
            grads={**result.grads, network: mixed}, metrics={**result.metrics, **metrics}
        )

    return part._replace(gradients=gradients)
