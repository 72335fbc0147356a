"""Training that gets random signals at random moments, and is resumed: is anything lost?

``python experiments/laws/signals.py [signals]`` (default 100; a quarter of an hour) runs a short job
once undisturbed, then with ``run_dir=X resume=auto``, and sends a random signal at a random moment
of each start: while it imports, compiles, trains, evaluates and saves. After a signal that ends a
run, all of its steps must be in its newest checkpoint, its exit code is 128 and the signal's
number, and ``run.json`` has no failure. At the end parameters, tables and the whole last checkpoint
equal the undisturbed run's, bit for bit. The result is written to experiments/results/signals.json.
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions
from kill import JOBS, RESULTS, command, good_steps, number, run, same_end, steps_done

from jaxrl_fast.system import ENDING, SAVING
from jaxrl_fast.training.records import read_status

WORDS = JOBS["sac pendulum"]
STEPS = number(WORDS, "total_steps")
LONGEST_S = 8.0
"""Latest moment of a signal, in seconds after the start."""


def send_once(folder: Path, chance: random.Random) -> dict[str, Any] | None:
    """Start or resume the run and send a signal at a random moment; None if it ended before.

    Raises:
        AssertionError: Something was lost, or the process did not end as documented.
    """
    before, state = steps_done(folder), read_status(folder).get("state")
    process = command(*WORDS, f"run_dir={folder}", "resume=auto")
    time.sleep(chance.uniform(0.05, LONGEST_S))
    asked = chance.random() < 0.2
    if asked:
        process.send_signal(SAVING)
        time.sleep(chance.uniform(0.0, 1.0))
    ending = chance.choice(ENDING)
    process.send_signal(ending)
    errors = process.communicate(timeout=120)[1]
    if process.returncode == 0:
        return None
    after, now = steps_done(folder), read_status(folder).get("state")
    event = {
        "signal": ending.name,
        "saved before": asked,
        "exit code": process.returncode,
        "steps": [before, after],
        "state": now,
    }
    print(event, flush=True)
    early = (-ending, -SAVING) if after == before else ()  # before any handler
    assert process.returncode in (128 + ending, *early), (event, errors)
    assert "Traceback" not in errors, errors
    ended = "done" if after == STEPS else "stopped"
    assert now in (ended, state, None), event
    assert after == before or good_steps(folder) == after, (event, good_steps(folder))
    return event


def main(count: int) -> None:
    """Send signals, and compare the end with the undisturbed run's."""
    chance, events = random.Random(0), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as place:
        whole, stopped = Path(place) / "whole", Path(place) / "stopped"
        run(*WORDS, f"run_dir={whole}")
        while len(events) < count:
            event = send_once(stopped, chance)
            if event is None:  # it ended: start again, so that every signal counts
                assert same_end(whole, stopped)
                stopped = Path(place) / f"stopped-{len(events)}"
                continue
            events.append(event)
        run(*WORDS, f"run_dir={stopped}", "resume=auto")
        assert same_end(whole, stopped)
    result = {
        "command": f"python experiments/laws/signals.py {count}",
        "machine": machine(),
        "versions": versions(),
        "signals": dict(Counter(event["signal"] for event in events)),
        "while it trained": sum(event["steps"][1] > event["steps"][0] for event in events),
        "lost steps": 0,
        "equal to the undisturbed run": True,
        "events": events,
    }
    (RESULTS / "signals.json").write_text(json.dumps(result, indent=1) + "\n")
    print({key: value for key, value in result.items() if key != "events"})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
