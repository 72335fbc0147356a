"""How networks read the observations of an environment: single, or stacks where there are images."""

import jax

from jaxrl_fast.core import EnvSpec, is_image
from jaxrl_fast.learning.acting import Acting, make_acting
from jaxrl_fast.learning.algorithm import Agent
from jaxrl_fast.learning.frame_stack import View, make_view, stacked_acting


def view_of(spec: EnvSpec) -> View | None:
    """Return how networks read the images of an observation.

    Args:
        spec: Environment.

    Returns:
        The view; None without images and frame stack.
    """
    images = any(is_image(leaf) for leaf in jax.tree.leaves(spec.obs))
    return make_view(spec) if images or spec.frame_stack != 0 else None


def acting_of(agent: Agent, view: View | None) -> Acting:
    """Build the `Acting` of an agent, on single frames.

    Args:
        agent: Algorithm built for one environment.
        view: How networks read images; None without images.

    Returns:
        The action selection.
    """
    acting = make_acting(agent)
    return acting if view is None or view.stack == 1 else stacked_acting(acting, view)
