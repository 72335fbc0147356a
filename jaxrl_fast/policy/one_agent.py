"""The policy of one of several agents, out of that of all."""

import jax

from jaxrl_fast.algorithms.multi_agent import spec_of_one
from jaxrl_fast.core import PyTree
from jaxrl_fast.experience.binding import acting_of, view_of
from jaxrl_fast.numerics.running_stats import RunningStats
from jaxrl_fast.policy.policies import AGENT, Policy, PolicyParams, built_again, make_policy


def policy_of_agent(policy: Policy, number: int) -> Policy:
    """The policy of agent ``number``, from 0: it maps what this agent observes, ``[E, ...]``, to its action, as the
    policy of all agents does.

    Raises:
        ValueError: there is no such agent, or one agent only.
    """
    spec = policy.spec
    if spec.num_agents is None:
        raise ValueError(f"this policy is that of the one agent of {spec.name}: use it as it is")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < spec.num_agents:
        raise ValueError(
            f"agent {number}: {spec.name} has {spec.num_agents}, write a number from 0 to {spec.num_agents - 1}"
        )
    agent, _ = built_again(spec, policy.made_by)
    parts, weights = {}, {}
    for part, name in agent.acts.items():
        of_agent = agent.parts[part].networks[name].of_agent
        assert of_agent is not None  # as those of every algorithm for several agents
        network, weights[part] = of_agent(number, policy.params.parts[part])
        parts[part] = agent.parts[part]._replace(networks={name: network})
    alone = spec_of_one(spec, shared=False)
    acting = acting_of(agent._replace(parts=parts, remembers={}), view_of(alone))
    statistics = None if policy.params.obs is None else _statistics_of_agent(policy.params.obs, alone.obs, number)
    return make_policy(alone, acting, PolicyParams(weights, statistics), {**policy.made_by, AGENT: number})


def _statistics_of_agent(statistics: RunningStats, obs_spec: PyTree, number: int) -> RunningStats:
    def own(tree: PyTree) -> PyTree:
        seen = {key: tree[key] for key in obs_spec} if isinstance(obs_spec, dict) else tree
        return jax.tree.map(lambda leaf: leaf[number], seen)

    return RunningStats(statistics.samples, own(statistics.mean), own(statistics.m2))
