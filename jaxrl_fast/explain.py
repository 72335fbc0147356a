"""``python -m jaxrl_fast.explain env=halfcheetah``: show a run's fragments, their devices, and
XLA's figures.
"""

import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxrl_fast import envs
from jaxrl_fast.assembly import make_job
from jaxrl_fast.commands import cli, run_config
from jaxrl_fast.commands.prepare import prepare_run, taught_algorithm
from jaxrl_fast.commands.run_config import env_name
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.settings.run import Run, flat_settings
from jaxrl_fast.settings.schema import GROUPS, ConfigError, read_word, run_keys, written
from jaxrl_fast.system import local_path
from jaxrl_fast.targets.accelerators import THIS, compile_here, parse_target
from jaxrl_fast.targets.compiling import compile_for, placement_for, rounds_of
from jaxrl_fast.targets.cost_tables import (
    band_table,
    compare_here,
    cost_facts,
    cost_lines,
    dump_folder,
    explain_elsewhere,
    launch_table,
)
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.run_folder import read_run
from jaxrl_fast.tuning import auto
from jaxrl_fast.tuning.running import make_folder
from jaxrl_fast.tuning.trial import Ready
from jaxrl_fast.views.description import Description, describe, plain, run_shapes, trace_shapes
from jaxrl_fast.views.graph_picture import MARK, to_mermaid, to_svg
from jaxrl_fast.views.graph_tables import (
    channel_table,
    closing_lines,
    collective_lines,
    fragment_table,
    new_console,
    new_table,
    program_table,
)
from jaxrl_fast.views.report_page import settings_table

FILES = ("graph.svg", "graph.mmd", "graph.json")

HELP = """python -m jaxrl_fast.explain [key=value ...] [out=FOLDER]
Compiles the program that `train` runs with the same words, and prints its fragments, channels, devices, collectives,
FLOPs and memory. Does not train, and assumes a single process.
  key=value   every key of train; python -m jaxrl_fast.train env=cartpole algo=dqn --help lists them
  settings    as the first word: print every setting, its value and its origin instead, without compilation; also
              settings FOLDER, for the run of a folder
  target      compile for other machines: h100, h100:8, h200, tpu-v5e, tpu-v5e:2x4 (make targets installs the
              compilers); num_envs=64,1024,16384 then makes a table by width.
              this: also run some ticks here, and print their measured and predicted time
  out         folder of graph.svg, graph.mmd (Mermaid) and graph.json (all figures);
              default explain/<env>_<algo>_<placement>"""


def explain_run(words: Sequence[str]) -> int:
    """Print and draw the graph that ``train`` would run with these words, in a single process.

    Args:
        words: Words of the command line.

    Returns:
        Exit code.
    """
    if words and words[0] == "settings":
        return explain_settings(words[1:])
    out, words = take_out(words, "out")
    target, words = take_out(words, "target")
    if target not in (None, THIS):
        return explain_target(words, str(target), out)
    requested = dataclasses.replace(run_config.compose(words), distributed="off", processes=None)
    with tempfile.TemporaryDirectory(prefix="jaxrl_fast-target-") as dump:
        if target == THIS:
            os.environ.update(compile_here(Path(dump)))  # read when JAX starts, which happens later
        requested = auto.resolve_overlap(
            auto.resolve(requested, may_measure=False), may_measure=False
        )
        with prepare_run(requested) as (run, chosen, env, _):
            folder = Path(out or default_folder(run))
            return explain_on(env, run, chosen, folder, Path(dump) if target == THIS else None)


ORIGINS = {"config/tuned": "tuned file"}


def explain_settings(words: Sequence[str]) -> int:
    """Print each setting of a run with its value and origin, without starting JAX's devices.

    Args:
        words: Words of the command line, or the folder of a run.

    Returns:
        Exit code.

    Raises:
        ConfigError: A word is wrong, or a folder contains no run.
    """
    folders = [Path(word) for word in words if "=" not in word]
    if folders:
        if len(words) > 1:
            raise ConfigError(
                f"{' '.join(words)}: write one folder, or config={folders[0]}/config.yaml with other words"
            )
        if not (folders[0] / "config.yaml").exists():
            raise ConfigError(
                f"{folders[0]} contains no run: write the path of a run's folder, such as runs/latest"
            )
        rows = settings_table(read_run(folders[0]))
    else:
        rows = rows_of(run_config.compose(words))
    table = new_table("key", "value", "set by")
    for key, value, origin in rows:
        kind = next((kind for prefix, kind in ORIGINS.items() if origin.startswith(prefix)), None)
        table.add_row(key, value, origin if kind is None else f"{kind} ({origin})")
    new_console().print(table)
    return 0


def rows_of(run: Run) -> list[list[str]]:
    """List the settings of a run that has not started.

    Args:
        run: Settings of the run.

    Returns:
        Rows of key, value and origin, sorted by section.
    """
    short = envs.resolve(run.env, dict(run.env_options))[1]
    values = {f"env.{name}": value for name, value in short.items() if f"env.{name}" in run_keys()}
    origins = dict.fromkeys(values, f"env={run.env}") | run.sources
    values |= {name: getattr(run, name) for name, key in run_keys().items() if "." not in name}
    values |= flat_settings(run)
    values |= {
        name: AUTO
        for name, auto in (("num_envs", run.auto_width), ("overlap", run.auto_overlap))
        if auto
    }
    later = dict.fromkeys(run_config.chosen_later(run), f"{run_config.CHOSEN}the environment")
    values, origins = values | dict.fromkeys(later, AUTO), origins | later
    names = sorted(
        values,
        key=lambda name: (name not in GROUPS, name.partition(".")[0] if "." in name else "", name),
    )
    origins |= (
        {} if run.tuned_file or "tuned" in run.sources else {"tuned": "no file for env and algo"}
    )
    rows = [[name, written(values[name]), origins.get(name, "default")] for name in names]
    return [[name.replace("env.options.", "+env."), *others] for name, *others in rows]


def explain_target(words: Sequence[str], target: str, out: str | None) -> int:
    """Explain a run for devices that are not on this machine, in a process with their compiler.

    Args:
        words: Words of the command line without ``out`` and ``target``.
        target: Machine, such as ``h100:8``.
        out: Folder to write, None for the default.

    Returns:
        Exit code.
    """
    dump = dump_folder()
    if dump is None:
        many = [word for word in words if word.startswith("num_envs=") and "," in word]
        # Errors are reported before a process starts.
        run = run_config.compose([word for word in words if word not in many])
        where = out or f"{default_folder(run)}_{target.replace(':', '_')}"
        return explain_elsewhere(words, target, Path(where))
    run = run_config.compose(words)
    machine = parse_target(target)
    folder = Path(out or default_folder(run))
    open_folder(folder)
    on = f", {machine.num_devices} {machine.chip.title}"
    title = title_of(run, placement_for(run, machine)) + on
    print(f"{title}: compiling ...", flush=True)
    program = compile_for(run, machine, dump)
    shapes = trace_shapes(program.graph, program.state, run_shapes(program.compiled), run.num_seeds)
    description = describe(
        program.graph,
        program.placed,
        program.state,
        run.num_seeds,
        shapes=shapes,
        run=program.compiled,
        ticks_per_chunk=program.ticks_per_chunk,
    )
    tables = (fragment_table(description), channel_table(description), launch_table(program.costs))
    for table in (*tables, band_table(program.costs, program.rounds, machine)):
        new_console().print(table)
    print("\n".join(["", *cost_lines(program), f"compiled in {program.compile_s:.0f} s"]))
    costs = cost_facts(program.costs, program.rounds, machine)
    costs |= {"room": plain(program.room), "compile_s": program.compile_s}
    write_files(
        folder, title, description, {"run": facts_of(run, program.placed.name), "target": costs}
    )
    return 0


def explain_on(
    env: VecEnv | HostEnv, run: Run, chosen: str, folder: Path, measured_in: Path | None = None
) -> int:
    """Explain a run whose environments are made.

    Args:
        env: Environments of the run.
        run: Settings of the run.
        chosen: Reason of the placement.
        folder: Folder to write.
        measured_in: Folder with XLA's dump; if given, some chunks are run and compared with it.

    Returns:
        Exit code.
    """
    job = make_job(env, taught_algorithm(run)[0], dataclasses.replace(run, resume=None), {})
    open_folder(folder)
    print(envs.describe(run.env, run.env_options))
    title = title_of(run, run.placement_name)
    print(f"{title}{f' ({chosen})' if chosen else ''}: compiling ...", flush=True)
    ready, description, facts = look_at(run, job)
    for table in (fragment_table, channel_table, program_table):
        new_console().print(table(description))
    print("\n".join([*collective_lines(description), *closing_lines(description, facts)]))
    everything: dict[str, Any] = {"run": facts}
    if measured_in is not None:
        rounds = rounds_of(job.graph, job.agent, job.plan.steps_per_tick)
        warmup = job.agent.warmup_ticks
        everything["target"] = compare_here(
            ready, job.placement, rounds, measured_in, warmup_ticks=warmup
        )
    write_files(folder, title, description, everything)
    return 0


def write_files(folder: Path, title: str, description: Description, facts: dict[str, Any]) -> None:
    """Draw the graph and write all figures.

    Args:
        folder: Folder to write.
        title: Title of the picture.
        description: Description of the graph.
        facts: Other entries of ``graph.json``.
    """
    everything = {"source": f"{MARK}.explain", **facts, **plain(description)}
    (folder / "graph.svg").write_text(to_svg(description, title), encoding="utf-8")
    (folder / "graph.mmd").write_text(to_mermaid(description, title), encoding="utf-8")
    (folder / "graph.json").write_text(
        json.dumps(everything, indent=1, allow_nan=False) + "\n", encoding="utf-8"
    )
    print(f"written: {', '.join(str(folder / name) for name in FILES)}")


def take_out(words: Sequence[str], name: str) -> tuple[str | None, list[str]]:
    """Separate the word ``name=`` from the other words.

    Args:
        words: Words of the command line.
        name: Key.

    Returns:
        Its value or None, and the other words.

    Raises:
        ConfigError: The key is given twice.
    """
    matching = [word for word in words if word.partition("=")[0] == name]
    if len(matching) > 1:
        raise ConfigError(f"{' '.join(matching)}: write one {'folder' if name == 'out' else name}")
    value = str(read_word(matching[0])[1]) if matching else None
    if value is not None and name == "out":
        local_path(value, name)
    return value, [word for word in words if word not in matching]


def default_folder(run: Run) -> str:
    """Return a folder by kind of run, so that several runs can be compared.

    Args:
        run: Settings of the run.

    Returns:
        Path.
    """
    overlap = "" if run.overlap == "none" else f"_overlap_{run.overlap}"
    return f"explain/{env_name(run)}_{run.algo}_{run.placement}{overlap}"


def open_folder(folder: Path) -> None:
    """Make a folder, and check that only files of this command would be replaced.

    Args:
        folder: Folder to write.

    Raises:
        ConfigError: The folder is not writable, or contains files of these names from another
            source.
    """
    make_folder(folder)
    for path in (folder / name for name in FILES):
        if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace")[:1000]:
            raise ConfigError(
                f"{path} was not written by this command: move it, or write another out=..."
            )


def look_at(run: Run, job: Job) -> tuple[Ready, Description, dict[str, Any]]:
    """Compile and describe a program.

    Args:
        run: Settings of the run.
        job: The run, assembled.

    Returns:
        First state and compiled program, description, and facts about run and compilation.
    """
    keys, hyper, program = job.keys, job.algorithm.hyper, job.program
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    begin = time.perf_counter()
    init, compiled = program.ready(keys, hyper)
    compile_s = time.perf_counter() - begin
    from_disk = events.count("/jax/compilation_cache/cache_hits")
    state = jax.eval_shape(program.init, keys, hyper)
    shapes = trace_shapes(job.graph, state, run_shapes(compiled), run.num_seeds)
    ticks = program.ticks_per_chunk
    facts = facts_of(run, run.placement_name, devices=run.devices, ticks_per_chunk=ticks)
    facts |= {"compile_s": compile_s, "programs_from_disk": from_disk}
    placed = job.graph, job.placement, state
    description = describe(
        *placed, run.num_seeds, shapes=shapes, run=compiled, ticks_per_chunk=ticks
    )
    return Ready(lambda: init(keys, hyper), compiled, ticks, compile_s), description, facts


def title_of(run: Run, placement: str) -> str:
    """Return the title of the picture.

    Args:
        run: Settings of the run.
        placement: Name of the placement.

    Returns:
        Text.
    """
    return f"{env_name(run)}, {run.algo}, placement {placement}, overlap {run.overlap}"


def facts_of(run: Run, placement: str, **others: Any) -> dict[str, Any]:
    """Return the entries of ``graph.json`` about the run.

    Args:
        run: Settings of the run.
        placement: Name of the placement.
        **others: Other entries.

    Returns:
        Entries by name.
    """
    names = ("env", "algo", "overlap", "num_envs", "num_seeds")
    return {
        **{name: getattr(run, name) for name in names},
        "placement": placement,
        **others,
        "jax_version": jax.__version__,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("explain", explain_run, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
