"""Gymnasium's Blackjack-v1 (``sab=True``) written in JAX, for `q_learning`.

Cards come from an endless deck, the dealer draws to 17, and a natural wins unless the dealer has
one too.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import jaxrl_fast as jf

DRAWS = 10
"""The largest number of cards that a dealer can draw before 17 (computed by trying all)."""


class Hand(NamedTuple):
    """``total`` with every ace as 1; whether there is an ``ace``; the number of ``cards``."""

    total: jax.Array
    ace: jax.Array
    cards: jax.Array


class Table(NamedTuple):
    """Both hands, and the dealer's visible card."""

    player: Hand
    dealer: Hand
    shown: jax.Array


def draw(key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    """Draw cards from 1 to 10; tens and the three pictures are 10."""
    return jnp.minimum(jax.random.randint(key, shape, 1, 14), 10)


def take(hand: Hand, card: jax.Array) -> Hand:
    """Add a card to a hand."""
    return Hand(hand.total + card, hand.ace | (card == 1), hand.cards + 1)


def usable(hand: Hand) -> jax.Array:
    """Return whether an ace can count 11."""
    return hand.ace & (hand.total + 10 <= 21)


def value(hand: Hand) -> jax.Array:
    """Return the sum, with an ace as 11 where allowed."""
    return hand.total + 10 * usable(hand)


def natural(hand: Hand) -> jax.Array:
    """Return whether the first two cards are an ace and a ten."""
    return (hand.cards == 2) & hand.ace & (hand.total == 11)


def dealt(cards: jax.Array) -> Hand:
    """Build a hand of two cards ``[2]``."""
    return Hand(cards.sum(), (cards == 1).any(), jnp.asarray(2))


def observe(table: Table) -> jax.Array:
    """Return float32 ``[3]``."""
    return jnp.stack([value(table.player), table.shown, usable(table.player)]).astype(jnp.float32)


def play_out(hand: Hand, cards: jax.Array) -> Hand:
    """Let the dealer draw from ``cards [DRAWS]`` until 17."""

    def one(hand: Hand, card: jax.Array) -> tuple[Hand, None]:
        more = value(hand) < 17
        return jax.tree.map(lambda a, b: jnp.where(more, a, b), take(hand, card), hand), None

    return jax.lax.scan(one, hand, cards, unroll=True)[0]


def settle(table: Table, hit: jax.Array, cards: jax.Array) -> tuple[Table, jax.Array, jax.Array]:
    """Return the table after a decision, the reward, and whether the game has ended;
    ``cards [DRAWS]`` are the next ones.
    """
    player = jax.tree.map(
        lambda a, b: jnp.where(hit, a, b), take(table.player, cards[0]), table.player
    )
    bust = value(player) > 21
    dealer = play_out(table.dealer, cards)
    compared = jnp.sign(value(player) - jnp.where(value(dealer) > 21, 0, value(dealer)))
    compared = jnp.where(natural(player) & ~natural(dealer), 1, compared)
    reward = jnp.where(hit, jnp.where(bust, -1, 0), compared)
    return table._replace(player=player), reward.astype(jnp.float32), ~hit | bust


def make() -> jf.Env:
    """Build the environment: action 1 takes a card, 0 ends."""

    def reset(key: jax.Array, params: object) -> tuple[Table, jax.Array]:
        cards = draw(key, (4,))
        table = Table(dealt(cards[:2]), dealt(cards[2:]), cards[2])
        return table, observe(table)

    def step(table: Table, action: jax.Array, key: jax.Array) -> tuple[Table, jf.Timestep]:
        table, reward, over = settle(table, action == 1, draw(key, (DRAWS,)))
        obs = observe(table)
        return table, jf.Timestep(obs, obs, reward, terminated=over, truncated=jnp.zeros((), bool))

    spec = jf.EnvSpec(
        "Blackjack", jax.ShapeDtypeStruct((3,), jnp.float32), jf.Discrete(2), max_episode_steps=100
    )
    return jf.Env(spec, reset, step)
