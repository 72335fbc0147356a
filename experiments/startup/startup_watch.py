"""Runs a command in this process and records the activity of every moment until its first training
step.

``python startup_watch.py OUT BEGAN_S MODULE WORD ...``: as ``python -m MODULE WORD ...``, started
by `startup` at ``BEGAN_S`` (seconds since the epoch). A thread samples every thread's stack about
200 times a second and names the activity of the main thread: a phase by the outermost function in
`PHASES`, and the work within it by the innermost function in `WORK`; where it waits for other
threads, theirs counts. At the first training step it writes JSON to ``OUT`` and ends the process.
For a program of another library, it writes at the end of the longest compilation, and the process
continues.
"""

import json
import os
import runpy
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

INTERVAL_S = 0.005
PHASES = {
    ("run_config.py", "compose"): "settings",
    ("prepare.py", "fill_in"): "devices",
    ("env_cache.py", "make_cached_envs"): "world",
    ("run_config.py", "make_envs"): "world",
    ("assembly.py", "graph_of"): "graph",
    ("evaluator_process.py", "_start"): "evaluator's process",
    ("episodes.py", "make_periodic_evaluation"): "evaluation",
    ("loop.py", "start"): "programs",
    ("graph_picture.py", "draw_run"): "graph.svg",
    ("prepare.py", "new_folder"): "run folder",
    ("prepare.py", "write_facts"): "run folder",
    ("prepare.py", "print_opening"): "run folder",
    ("loop.py", "open_folder"): "run folder",
    ("run_folder.py", "__init__"): "run folder",
}
"""File and function -> the phase of a start."""
WORK = {
    ("compiler.py", "backend_compile_and_load"): "compiling",
    ("compiler.py", "_cache_read"): "programs from disk",
    ("compiler.py", "_cache_write"): "programs to disk",
    ("compiler.py", "compile_or_get_cached"): "programs from disk",
    ("program_store.py", "read"): "programs from disk",
    ("program_store.py", "write"): "programs to disk",
    ("mlir.py", "lower_jaxpr_to_module"): "lowering",
    ("pxla.py", "lower_sharding_computation"): "lowering",
    ("partial_eval.py", "trace_to_jaxpr"): "tracing",
    ("partial_eval.py", "trace_to_jaxpr_nounits"): "tracing",
    ("pjit.py", "_infer_params"): "tracing",
    ("pxla.py", "__call__"): "running",
}
WAITS = {
    ("threading.py", "wait"),
    ("threading.py", "join"),
    ("threading.py", "_wait_for_tstate_lock"),
}
COMPILED = "/jax/core/compile/backend_compile_duration"


def named(frame: FrameType | None) -> tuple[str, str, bool]:
    """Return the phase, the work and whether it waits, of a thread with this innermost frame."""
    waits, work, package, phase, own = False, "", "", "", ""
    first = True
    while frame is not None:
        code: CodeType = frame.f_code
        place = os.path.basename(code.co_filename), code.co_name
        waits |= first and place in WAITS
        first = False
        work = work or WORK.get(place, "")
        phase = PHASES.get(place, phase)
        if code.co_name == "<module>" and not package:
            package = frame.f_globals.get("__name__", "").partition(".")[0]
        if not own and "jaxrl_fast" in code.co_filename:
            own = f"{place[0]}:{place[1]}"
        frame = frame.f_back
    if package not in ("", "__main__") and not work:
        phase, work = "imports", package
    return phase or own or "other", work or "python", waits


class Watch:
    """The sampling thread, which runs from its creation; ``seconds`` by thread, phase and work."""

    def __init__(self, out: Path, began_s: float) -> None:
        self.out, self.began_s, self.main = out, began_s, threading.main_thread().ident
        self.seconds: Counter[tuple[str, str, str]] = Counter()
        self.seconds["main", "python", "until its first line"] = time.time() - began_s
        self.longest_s = 0.0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        own, last = threading.get_ident(), time.perf_counter()
        while True:
            time.sleep(INTERVAL_S)
            now = time.perf_counter()
            frames = sys._current_frames()
            names = {i: named(frame) for i, frame in frames.items() if i != own}
            phase, work, waits = names.get(self.main, ("other", "python", False))
            busy = [
                name
                for i, name in names.items()
                if i != self.main and not name[2] and name[1] != "python"
            ]
            if waits and busy:
                work = busy[0][1]
            self.seconds["main", phase, work] += now - last
            for other in busy:
                self.seconds["others", other[0], other[1]] += now - last
            last = now

    def compiled(self, name: str, seconds: float, **more: Any) -> None:
        """Handle a duration that JAX reports; write at the end of the longest compilation."""
        if name == COMPILED and seconds >= self.longest_s:
            self.longest_s = seconds
            self.write()

    def write(self) -> None:
        """Write all samples until now."""
        rows = [[*key, seconds] for key, seconds in self.seconds.most_common()]
        self.out.write_text(json.dumps({"total_s": time.time() - self.began_s, "rows": rows}))


def main(out: str, began_s: str, module: str, *words: str) -> None:
    """Run the command."""
    watch = Watch(Path(out), float(began_s))
    sys.argv = [module, *words]
    if module.endswith(".py"):
        import jax

        jax.monitoring.register_event_duration_secs_listener(watch.compiled)
        sys.path[0] = os.path.dirname(os.path.abspath(module))
        runpy.run_path(module, run_name="__main__")
        return
    import jaxrl_fast.train
    from jaxrl_fast.training import loop

    def drive(*args: Any) -> None:
        del args
        watch.write()
        os._exit(0)

    loop.drive = drive
    jaxrl_fast.train.run_as_process()


if __name__ == "__main__":
    main(*sys.argv[1:])
