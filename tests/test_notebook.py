"""A run in a real notebook kernel: its plot grows in the cell, and result and graph have rich
displays.
"""

from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from tiny import line

import jaxrl_fast as jf
from jaxrl_fast.api import live_plot_in_notebook
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.views.notebook import history_svg, result_html

CELLS = (
    """
import sys; sys.path.insert(0, "tests")
import jaxrl_fast as jf
from tiny import line
algorithm = jf.ppo(rollout_length=8, num_minibatches=1, policy_hidden=(8,), value_hidden=(8,))
result = jf.learn(line(discrete=True), algorithm, total_steps=256, eval_every=64, eval_episodes=3, tell=print)
""",
    "result",
)


def algorithm() -> jf.Algorithm:
    return jf.ppo(rollout_length=8, num_minibatches=1, policy_hidden=(8,), value_hidden=(8,))


def test_a_cell_shows_a_plot_and_a_result_shows_itself(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(KernelSpecManager, "ensure_native_kernel", True)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    NotebookClient(
        book, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(Path.cwd())}}
    ).execute()
    plot = [
        output["data"]["text/html"]
        for output in book.cells[0].outputs
        if output["output_type"] == "display_data"
    ]
    assert len(plot) == 1 and "<svg" in plot[0] and "256 steps" in plot[0]
    (shown,) = [output["data"]["text/html"] for output in book.cells[1].outputs]
    assert "<svg" in shown and "eval_return_mean" in shown


def test_outside_of_a_notebook_nothing_is_drawn():
    assert live_plot_in_notebook() is None
    import IPython  # noqa: F401

    assert live_plot_in_notebook() is None


def test_a_plot_of_nothing_is_nothing():
    assert history_svg([]) == ""
    assert "<table>" in result_html(
        [], {"env_steps": 5, "sampling_hz": 3.0, "eval_return_mean": None}
    )


def test_a_graph_shows_its_fragments():
    graph, _ = build_graph(line(discrete=True), algorithm(), GraphOptions())
    page = graph._repr_html_()
    assert all(f"<td>{fragment.name}</td>" in page for fragment in graph.fragments)
    assert "statistics (a tick old)" in page


def test_names_are_escaped():
    graph, _ = build_graph(line(discrete=True), algorithm(), GraphOptions())
    renamed = graph._replace(fragments=tuple(f._replace(name="<b>") for f in graph.fragments[:1]))
    assert "&lt;b&gt;" in renamed._repr_html_()
