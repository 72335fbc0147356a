"""Scripts that share a search over jobs of an existing scheduler."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jaxrl_fast.population.sweep_words import SWEEP_FILE, names_own_code
from jaxrl_fast.settings.schema import ConfigError, command_line, read_word

SCRIPT = "sweep.sh"


def write_jobs(
    words: Sequence[str], launcher: Literal["local", "slurm"], jobs: int, name: str
) -> int:
    """Write a script that starts the jobs of a search, each with other seeds and points, and print
    how to start it.

    A job that is started again continues.

    Args:
        words: Words of the command line.
        launcher: ``slurm`` for a job array, ``local`` for processes one after another on this
            machine.
        jobs: Number of jobs.
        name: Name of the jobs.

    Returns:
        Exit code.

    Raises:
        ConfigError: The script would replace another file.
    """
    if Path(SCRIPT).exists() and "jaxrl_fast.sweep" not in Path(SCRIPT).read_text(
        "utf-8", "replace"
    ):
        raise ConfigError(f"{SCRIPT} exists, and no sweep wrote it: move it away")
    job_words = [
        word
        for word in words
        if word.partition("=")[0] not in ("launcher", "jobs", "run_dir", "seed")
    ]
    seeds = [int(read_word(word)[1]) for word in words if word.startswith("seed=")]
    first = seeds[-1] if seeds else 0
    folder = f"{name}-sweep/$JOB"
    begin = f"{command_line(job_words, 'sweep')} seed=$(({first} + 1000 * JOB)) run_dir={folder}"
    go_on = f"{command_line([], 'sweep')} resume={folder} {' '.join(word for word in job_words if names_own_code(word))}"
    share = f"if [ -f {folder}/{SWEEP_FILE} ]; then {go_on.strip()}; else {begin}; fi"
    if launcher == "slurm":
        lines = [
            f"#SBATCH --job-name={name}-sweep",
            f"#SBATCH --array=0-{jobs - 1}",
            "#SBATCH --requeue",
        ]
        lines += ["JOB=$SLURM_ARRAY_TASK_ID", share]
        start = f"sbatch {SCRIPT}"
    else:
        lines, start = (
            [f"for JOB in $(seq 0 {jobs - 1}); do", f"  {share}", "done"],
            f"bash {SCRIPT}",
        )
    Path(SCRIPT).write_text("\n".join(["#!/bin/bash", *lines]) + "\n", "utf-8")
    print(f"wrote {SCRIPT}: start it with {start}, then join the jobs:")
    print(f"python -m jaxrl_fast.report {name}-sweep/* out={name}-sweep.html")
    return 0
