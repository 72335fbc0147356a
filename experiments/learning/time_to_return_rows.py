"""The rows of `time_to_return`: the goal, the contenders, and earlier figures."""

from typing import NamedTuple


class Peer(NamedTuple):
    """A worker's words before the seed (`bench/peer_returns.py`), its environment, and its
    ``earlier`` figure: a committed file and the place of the curve in it, until it has run here.
    """

    environment: str
    words: tuple[str, str]
    steps: int
    earlier: tuple[str, str] | None = None


class Ours(NamedTuple):
    """Words of our command, without seed and folder.

    ``warm``: programs are on disk, from the start of the same words just before. ``before``: Python
    that runs first, to leave out a part for which there is no option.
    """

    words: tuple[str, ...]
    warm: bool = False
    before: str = ""


class Row(NamedTuple):
    """``goal``: a mean greedy return; ``every``: environment steps between evaluations, for all
    contenders; ``must`` and ``aim``: ratios to each other library's seconds; ``minutes``: about how
    many a repeat takes, for all contenders together.
    """

    title: str
    goal: float
    every: int
    ours: dict[str, Ours]
    peers: dict[str, Peer]
    must: dict[str, float]
    aim: dict[str, float]
    repeats: int
    minutes: float


def _ours(words: str, warm: bool = False) -> Ours:
    return Ours(tuple(words.split()), warm)


HERE, HOST = ".venv-peers", ".venv-peers-host"
CHEETAH = "env=gymnasium env.id=HalfCheetah-v5"
ROWS = {
    "halfcheetah": Row(
        "brax halfcheetah (spring) to 1,500",
        1_500.0,
        8_000,
        {
            "`algo=sac`": _ours("env=halfcheetah algo=sac"),
            "`algo=sac`, second start": _ours("env=halfcheetah algo=sac", warm=True),
            "`algo=sac placement=actor_critic`": _ours(
                "env=halfcheetah algo=sac placement=actor_critic devices=2"
            ),
            "`algo=flash_sac`": _ours("env=halfcheetah algo=flash_sac"),
        },
        {
            "brax.training SAC": Peer(
                HERE, ("brax", "halfcheetah"), 320_000, ("halfcheetah_brax_training.json", "curve")
            )
        },
        {"brax.training SAC": 0.27},
        {"brax.training SAC": 0.18},
        3,
        20.0,
    ),
    "cartpole": Row(
        "CartPole to 475, one seed",
        475.0,
        8_192,
        {
            "`algo=ppo`": _ours("env=cartpole algo=ppo"),
            "`algo=ppo`, second start": _ours("env=cartpole algo=ppo", warm=True),
        },
        {
            "Rejax PPO": Peer(HERE, ("rejax", "cartpole"), 300_000),
            "Stable-Baselines3 PPO": Peer(HOST, ("sb3", "cartpole"), 100_000),
        },
        {"Rejax PPO": 0.5, "Stable-Baselines3 PPO": 0.5},
        {"Rejax PPO": 0.25, "Stable-Baselines3 PPO": 0.25},
        3,
        3.0,
    ),
    "pendulum": Row(
        "Pendulum to −180",
        -180.0,
        1_000,
        {
            "`algo=sac`": _ours("env=pendulum algo=sac"),
            "`algo=sac`, second start": _ours("env=pendulum algo=sac", warm=True),
        },
        {
            "Rejax SAC": Peer(HERE, ("rejax", "pendulum"), 20_000),
            "Stable-Baselines3 SAC": Peer(HOST, ("sb3", "pendulum"), 20_000),
        },
        {"Rejax SAC": 0.5, "Stable-Baselines3 SAC": 0.5},
        {"Rejax SAC": 0.25, "Stable-Baselines3 SAC": 0.25},
        3,
        4.0,
    ),
    "halfcheetah_v5": Row(
        "HalfCheetah-v5 to 4,000",
        4_000.0,
        5_000,
        {
            "`algo=sac`": _ours(f"{CHEETAH} algo=sac"),
            "`algo=flash_sac`": _ours(f"{CHEETAH} algo=flash_sac"),
        },
        {
            "SBX SAC": Peer(
                HOST,
                ("sbx", "HalfCheetah-v5"),
                150_000,
                ("bench/host_sac.json", "returns.sbx.curve"),
            ),
            "Stable-Baselines3 SAC": Peer(
                HOST,
                ("sb3", "HalfCheetah-v5"),
                150_000,
                ("bench/host_sac.json", "returns.sb3.curve"),
            ),
        },
        {"SBX SAC": 0.5, "Stable-Baselines3 SAC": 0.25},
        {"SBX SAC": 0.27, "Stable-Baselines3 SAC": 0.14},
        3,
        30.0,
    ),
}
