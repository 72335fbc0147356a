"""The fragment ``sample`` of environments on the host, of the kind that they need."""

from jaxrl_fast.core import Transition
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.hosts.sampling import arrival_sample_fragment, host_sample_fragment
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.runtime.graph import Fragment


def host_sampler(env: HostEnv, agent: BoundAgent, rollout_shapes: Transition) -> Fragment:
    """Build the fragment ``sample`` for host environments, of the kind that the environments need.

    Args:
        env: Host environments.
        agent: Algorithm bound to them.
        rollout_shapes: Shapes of a rollout of one seed, ``[T, E, ...]``.

    Returns:
        The fragment.
    """
    make_sample = host_sample_fragment if env.recv_any is None else arrival_sample_fragment
    if env.bridge == "worker":
        # needs gymnasium
        from jaxrl_fast.hosts.worker_sampling import worker_sample_fragment as make_sample

    return make_sample(env, agent, rollout_shapes)
