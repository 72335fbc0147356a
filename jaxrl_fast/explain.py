"""``python -m jaxrl_fast.explain env=halfcheetah``: a run's fragments, where they run, and XLA's figures of them."""

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

import envs
from jaxrl_fast.environments.env import VecEnv
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.fragments.build import build_graph
from jaxrl_fast.fragments.callbacks import check_placement, in_graph
from jaxrl_fast.graph import program as programs
from jaxrl_fast.graph.dataflow import Graph
from jaxrl_fast.graph.placements import Placement, place
from jaxrl_fast.inspection.description import Description, describe, plain, run_shapes, trace_shapes
from jaxrl_fast.inspection.drawing import MARK, to_mermaid, to_svg
from jaxrl_fast.inspection.graph_tables import (
    channel_table,
    closing_lines,
    collective_lines,
    fragment_table,
    program_table,
)
from jaxrl_fast.inspection.tables import new_console
from jaxrl_fast.settings import cli, config
from jaxrl_fast.settings.grammar import read_word
from jaxrl_fast.settings.prepare import prepare_run
from jaxrl_fast.settings.run_settings import Run, env_name, graph_options, make_algorithm
from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.training.planning import plan_run
from jaxrl_fast.tuning import auto

FILES = ("graph.svg", "graph.mmd", "graph.json")

HELP = """python -m jaxrl_fast.explain [key=value ...] [out=FOLDER]
Compiles what `train` with the same words would run, and prints its fragments, channels, devices, collectives, FLOPs
and memory. Trains nothing, and looks at a single process.
  key=value   every key of train (python -m jaxrl_fast.train --help)
  out         where graph.svg, graph.mmd (Mermaid) and graph.json (all figures) go;
              default explain/<env>_<algo>_<placement>"""


def explain_run(words: Sequence[str]) -> int:
    """Print and draw the graph that ``train`` would run with these words, in a single process.

    Raises:
        ValueError: one line that says what was wrong and what to write instead.
    """
    out, words = take_out(words)
    asked = dataclasses.replace(config.compose(words), distributed="off", processes=None)
    with prepare_run(auto.resolve(asked, may_measure=False)) as (run, chosen, env):
        return explain_on(env, run, chosen, Path(out or default_folder(run)))


def explain_on(env: VecEnv | HostEnv, run: Run, chosen: str, folder: Path) -> int:
    """As `explain_run`, with environments that are made; ``chosen``: `prepare_run`'s words on the placement."""
    algorithm = make_algorithm(run)
    graph, agent = build_graph(in_graph(env).env, algorithm, graph_options(run))
    placed = place(graph, run.placement, run.devices)
    check_placement(env, placed)
    ticks = plan_run(env, agent, run.total_steps, run.eval_every, run.checkpoints.every).ticks_per_chunk
    program = programs.compile(graph, placed, ticks, run.num_seeds)
    open_folder(folder)
    print(envs.describe(run.env, run.env_options))
    title = f"{env_name(run)}, {run.algo}, placement {run.placement}, overlap {run.overlap}"
    print(f"{title}{f' ({chosen})' if chosen else ''}: compiling ...", flush=True)
    description, facts = look_at(run, graph, placed, program, algorithm.hyper)
    print_tables(description, facts)
    everything = {"source": f"{MARK}.explain", "run": facts, **plain(description)}
    (folder / "graph.svg").write_text(to_svg(description, title))
    (folder / "graph.mmd").write_text(to_mermaid(description, title))
    (folder / "graph.json").write_text(json.dumps(everything, indent=1, allow_nan=False) + "\n")
    print(f"written: {', '.join(str(folder / name) for name in FILES)}")
    return 0


def print_tables(description: Description, facts: dict[str, Any]) -> None:
    """Print the tables and notes."""
    console = new_console()
    for table in (fragment_table, channel_table, program_table):
        console.print(table(description))
    for line in (*collective_lines(description), *closing_lines(description, facts)):
        print(line)


def take_out(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The folder named by ``out=``, and the other words.

    Raises:
        ConfigError: it has no value, or is given twice.
    """
    given = [word for word in words if word.partition("=")[0] == "out"]
    if len(given) > 1:
        raise ConfigError(f"{' '.join(given)}: write one folder")
    folder = str(read_word(given[0])[1]) if given else None
    return folder, [word for word in words if word not in given]


def default_folder(run: Run) -> str:
    """A folder for each kind of run, so that several can be compared."""
    overlap = "" if run.overlap == "none" else f"_overlap_{run.overlap}"
    return f"explain/{env_name(run)}_{run.algo}_{run.placement}{overlap}"


def open_folder(folder: Path) -> None:
    """Make the folder. Files that this command wrote there before may be replaced, and no others.

    Raises:
        ConfigError: it cannot be written to, or holds files of these names that are somebody else's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except OSError as error:
        raise ConfigError(f"cannot write to out={folder} ({error.strerror}): write another folder") from None
    for path in (folder / name for name in FILES):
        if path.exists() and MARK not in path.read_text(errors="replace")[:1000]:
            raise ConfigError(f"{path} was not written by this command: move it, or write another out=...")


def look_at(
    run: Run, graph: Graph, placed: Placement, program: programs.Program, hyper: Any
) -> tuple[Description, dict[str, Any]]:
    """Compile a program and describe it; returns that, and facts about the run and its compilation."""
    keys = jax.random.split(jax.random.key(run.seed), run.num_seeds)
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    begin = time.perf_counter()
    _, compiled = program.ready(keys, hyper)
    compile_s = time.perf_counter() - begin
    from_disk = events.count("/jax/compilation_cache/cache_hits")
    state = jax.eval_shape(program.init, keys, hyper)
    shapes = trace_shapes(graph, state, run_shapes(compiled), run.num_seeds)
    ticks = program.ticks_per_chunk
    facts = {
        "env": run.env,
        "algo": run.algo,
        "placement": run.placement,
        "overlap": run.overlap,
        "num_envs": run.num_envs,
        "num_seeds": run.num_seeds,
        "devices": run.devices,
        "ticks_per_chunk": ticks,
        "compile_s": compile_s,
        "programs_from_disk": from_disk,
        "jax_version": jax.__version__,
    }
    return describe(graph, placed, state, run.num_seeds, shapes=shapes, run=compiled, ticks_per_chunk=ticks), facts


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return cli.main("explain", explain_run, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
