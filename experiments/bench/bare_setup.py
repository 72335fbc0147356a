"""The environments, networks and settings of `bare_agents`."""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxmarl
import optax
from jaxmarl.environments.smax import map_name_to_scenario

NUM_STEPS, EPOCHS, MINIBATCHES = 128, 4, 4


class Row(NamedTuple):
    """JaxMARL's settings of one run."""

    world: str
    num_envs: int
    learning_rate: float
    entropy_coef: float
    max_grad_norm: float
    central: bool


ROWS = {
    "spread_ippo": Row("MPE_simple_spread_v3", 16, 2.5e-4, 0.01, 0.5, central=False),
    "spread_mappo": Row("MPE_simple_spread_v3", 16, 2e-3, 0.01, 0.5, central=True),
    "smax_3m_mappo": Row("HeuristicEnemySMAX", 128, 2e-3, 0.0, 0.25, central=True),
}


class Dense(nn.Module):
    """IPPO's networks: two layers of 64."""

    out: int
    last_scale: float

    @nn.compact
    def __call__(
        self, memory: jax.Array, x: jax.Array, first: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        for _ in range(2):
            x = nn.tanh(nn.Dense(64, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
        return nn.Dense(self.out, kernel_init=nn.initializers.orthogonal(self.last_scale))(
            x
        ), memory


class Recurrent(nn.Module):
    """MAPPO's networks: 128 units before, in and after the memory."""

    out: int
    last_scale: float
    embeds: bool = True

    @nn.compact
    def __call__(
        self, memory: jax.Array, x: jax.Array, first: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        if self.embeds:
            x = nn.relu(nn.Dense(128, kernel_init=nn.initializers.orthogonal(2**0.5))(x))

        def remember(cell: nn.GRUCell, memory: jax.Array, xs: tuple) -> tuple[jax.Array, jax.Array]:
            seen, begins = xs
            memory, out = cell(jnp.where(begins[:, None], 0.0, memory), seen)
            return memory, out

        scan = nn.scan(remember, variable_broadcast="params", split_rngs={"params": False})
        memory, x = scan(nn.GRUCell(128), memory, (x, first))
        x = nn.relu(nn.Dense(128, kernel_init=nn.initializers.orthogonal(2.0))(x))
        return nn.Dense(self.out, kernel_init=nn.initializers.orthogonal(self.last_scale))(
            x
        ), memory


class Seen(NamedTuple):
    """Observations, ``[N, ...]`` with N environments times agents, the agent first."""

    obs: jax.Array
    central: jax.Array
    allowed: jax.Array
    first: jax.Array


class Setup(NamedTuple):
    """The constants of a run: the environment with the names of its agents, networks and optimizer."""

    row: Row
    world: Any
    names: tuple[str, ...]
    num_actions: int
    policy: nn.Module
    critic: nn.Module
    optimizer: optax.GradientTransformation

    @property
    def smax(self) -> bool:
        """Return whether success is a won battle."""
        return self.row.world == "HeuristicEnemySMAX"


def make(row: Row, iterations: int, *, embeds: bool = True) -> Setup:
    """Return a learning rate that decays to zero over this many iterations."""
    options = {"scenario": map_name_to_scenario("3m")} if row.world == "HeuristicEnemySMAX" else {}
    world = jaxmarl.make(row.world, **options)
    names = tuple(world.agents)
    num_actions = world.action_space(names[0]).n
    network = partial(Recurrent, embeds=embeds) if row.central else Dense
    falling = optax.linear_schedule(row.learning_rate, 0.0, iterations * EPOCHS * MINIBATCHES)
    adam = optax.chain(optax.clip_by_global_norm(row.max_grad_norm), optax.adam(falling, eps=1e-5))
    apart = optax.multi_transform(
        {"policy": adam, "critic": adam}, {"policy": "policy", "critic": "critic"}
    )
    return Setup(
        row,
        world,
        names,
        num_actions,
        network(num_actions, 0.01),
        network(1, 1.0),
        apart if row.central else adam,
    )


def flat(setup: Setup, by_name: Any) -> jax.Array:
    """Stack a dictionary by agent to ``[N, ...]``."""
    stacked = jnp.stack([by_name[name] for name in setup.names])
    return stacked.reshape(-1, *stacked.shape[2:])


def by_name(setup: Setup, action: jax.Array) -> dict[str, jax.Array]:
    """Convert actions ``[N]`` to the environment's dictionary."""
    return dict(zip(setup.names, action.reshape(len(setup.names), -1), strict=True))


def see(setup: Setup, obs: Any, worlds: Any, first: jax.Array) -> Seen:
    """Return the inputs of agents and critic.

    SMAX's critic sees the state and the agent's number; the other critics see all observations.
    """
    own, num_agents = flat(setup, obs), len(setup.names)
    num_envs = own.shape[0] // num_agents
    if not setup.row.central:
        return Seen(own, own, jnp.ones((own.shape[0], setup.num_actions), bool), first)
    if setup.smax:
        number = jnp.repeat(jnp.eye(num_agents), num_envs, axis=0)
        central = jnp.concatenate([jnp.tile(obs["world_state"], (num_agents, 1)), number], axis=1)
        allowed = flat(setup, jax.vmap(setup.world.get_avail_actions)(worlds)).astype(bool)
        return Seen(own, central, allowed, first)
    together = own.reshape(num_agents, num_envs, -1).swapaxes(0, 1).reshape(num_envs, -1)
    allowed = jnp.ones((own.shape[0], setup.num_actions), bool)
    return Seen(own, jnp.tile(together, (num_agents, 1)), allowed, first)


def run(setup: Setup, params: Any, memory: tuple, seen: Seen) -> tuple[jax.Array, jax.Array, tuple]:
    """Compute log-probabilities ``[L, N, actions]``, values ``[L, N]`` and memory."""
    logits, own = setup.policy.apply(params["policy"], memory[0], seen.obs, seen.first)
    value, central = setup.critic.apply(params["critic"], memory[1], seen.central, seen.first)
    return jax.nn.log_softmax(jnp.where(seen.allowed, logits, -1e10)), value[..., 0], (own, central)


def run_once(
    setup: Setup, params: Any, memory: tuple, seen: Seen
) -> tuple[jax.Array, jax.Array, tuple]:
    """Do the same as `run` for one step."""
    log_probs, value, memory = run(setup, params, memory, jax.tree.map(lambda x: x[None], seen))
    return log_probs[0], value[0], memory


def begin(setup: Setup, key: jax.Array, num_envs: int) -> tuple[Any, Seen, tuple]:
    """Reset the environments; return their states, observations and empty memories."""
    obs, worlds = jax.vmap(setup.world.reset)(jax.random.split(key, num_envs))
    rows = num_envs * len(setup.names)
    return (
        worlds,
        see(setup, obs, worlds, jnp.ones(rows, bool)),
        (jnp.zeros((rows, 128)), jnp.zeros((rows, 128))),
    )
