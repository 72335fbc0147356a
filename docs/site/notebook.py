"""Runs ``examples/tour.ipynb`` and writes it with its outputs: ``python docs/site/notebook.py``
(minutes).
"""

import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "examples" / "tour.ipynb"
CELLS = (
    """# A tour in five minutes

Train, plot, sweep, and write your own environment. All cells ran from top to bottom.""",
    """import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxrl_fast as jf

%config InlineBackend.figure_formats = ["svg"]""",
    """## Train

`jf.make_env` returns a vectorized environment, `jf.ppo` an algorithm, `jf.learn` a trained policy. During training, the
cell plots the returns.""",
    """env = jf.make_env("cartpole", num_envs=32)
algo = jf.ppo(learning_rate=jf.Linear(1e-3, 0.0), rollout_length=64, num_epochs=8, num_minibatches=8)
result = jf.learn(env, algo, total_steps=100_000, num_seeds=4)""",
    "The result displays a summary: four seeds, trained in one program.",
    "result",
    """## Plot

`result.history` has a row for each evaluation and each chunk (one call of the compiled program).""",
    """rows = [row for row in result.history if row["kind"] == "eval"]
steps = [row["env_steps"] for row in rows]
plt.figure(figsize=(6, 3))
plt.plot(steps, [row["eval_return_seeds"] for row in rows])
plt.xlabel("environment steps")
plt.ylabel("greedy return of each seed");""",
    """## The train step is a pure function

So `vmap` sweeps learning rates: 32 trainings in one program, compiled once.""",
    """small = jf.ppo(rollout_length=64, num_minibatches=4)
init, train_step = jf.make_train_step(jf.make_env("cartpole", num_envs=8), small)


def train(key, rate, ticks=40):
    state = init(key, small.hyper._replace(learning_rate=rate))
    _, metrics = jax.lax.scan(lambda state, _: train_step(state), state, length=ticks)
    return metrics["sample/episode_return_sum"] / jnp.maximum(metrics["sample/episodes"], 1)


rates = jnp.logspace(-4, -1.5, 8)
keys = jax.random.split(jax.random.key(0), 4)
curves = jax.jit(jax.vmap(jax.vmap(train, (None, 0)), (0, None)))(keys, rates)  # [seeds, rates, ticks]

plt.figure(figsize=(6, 3))
for rate, curve in zip(np.asarray(rates), np.asarray(curves.mean(axis=0)), strict=True):
    plt.plot(curve, label=f"{rate:.0e}")
plt.xlabel("tick")
plt.ylabel("return while training")
plt.legend(title="learning rate", fontsize="small");""",
    """## Your own environment

A boat must stay near a buoy, in a wind. The code describes one environment, without a batch axis.""",
    """def make_buoy(wind=0.05):
    def reset(key, params):
        x = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return x, x

    def step(x, action, key):
        x = x + 0.2 * action + wind * jax.random.normal(key, (1,))
        lost = jnp.abs(x[0]) > 3.0
        return x, jf.Timestep(x, x, 1.0 - jnp.abs(x[0]), lost, jnp.zeros((), bool))

    box = jf.Box(np.array([-1.0], np.float32), np.array([1.0], np.float32))
    return jf.Env(jf.EnvSpec("buoy", jax.ShapeDtypeStruct((1,), jnp.float32), box, 50), reset, step)


buoys = jf.vectorize(make_buoy(), num_envs=64)
boat = jf.learn(buoys, jf.ppo(learning_rate=1e-3, rollout_length=32), total_steps=200_000)""",
    """returns = jf.evaluate_policy(boat.policy, buoys, jax.random.key(1), episodes=256)
plt.figure(figsize=(6, 3))
plt.hist(np.asarray(returns), bins=30)
plt.xlabel("return of an episode, of 50 at most")
plt.ylabel("episodes");""",
    """## Next

Tutorials are in `docs/tutorials/`. `make docs` builds a site from them, with a reference. The other files of
`examples/` are programs of at most 60 lines each.""",
)
"""Build the cells; texts that begin as code are code cells."""
CODE = ("import", "env =", "result", "rows =", "small =", "def ", "returns =")


def shorten(data: dict[str, str]) -> None:
    """Remove the text of an output that is also shown as a picture or as HTML."""
    if len(data) > 1:
        data["text/plain"] = data["text/plain"][:200]


def main() -> None:
    """Run the cells, and write the notebook with the seconds that it took."""
    make = nbformat.v4
    cells = [
        make.new_code_cell(text) if text.startswith(CODE) else make.new_markdown_cell(text)
        for text in CELLS
    ]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    book = make.new_notebook(cells=cells)
    begin = time.perf_counter()
    NotebookClient(
        book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            shorten(output.get("data", {}))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book.metadata = {"kernelspec": kernel, "seconds": round(time.perf_counter() - begin)}
    nbformat.write(book, PATH)
    print(f"{PATH}: {book.metadata['seconds']} s, {PATH.stat().st_size / 1000:,.0f} kB")


if __name__ == "__main__":
    main()
