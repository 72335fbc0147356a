"""Common parts of all commands: ``--help``, ``--version``, ``--multirun``, one-line errors, and
loading of runs.

Exit codes: 0, 2 for settings that cannot be run, 130 after Ctrl-C, 128 and the number after other
signals, others as documented by the command.
"""

import importlib.metadata
import itertools
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, Literal, get_args, get_origin

from jax.errors import JaxRuntimeError

from jaxrl_fast import envs
from jaxrl_fast.algorithms.registry import CUSTOM, declared_named, names_of_algorithms
from jaxrl_fast.commands.layers import read_file, require_named_again
from jaxrl_fast.commands.run_config import (
    chosen_later,
    compose,
    env_keys,
    env_needs,
    make_algorithm,
)
from jaxrl_fast.core import EnvSpec, require_devices
from jaxrl_fast.envs.errors import EnvFailed
from jaxrl_fast.policy.policies import Policy, load_policy, same_spaces
from jaxrl_fast.process import raise_at_ctrl_c
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.settings import schema
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.settings.run import Run, algo_words, flat_settings, may_be_host
from jaxrl_fast.settings.schema import (
    ConfigError,
    Key,
    command_line,
    parse_word,
    read_word,
    run_keys,
    written,
)
from jaxrl_fast.settings.signatures import algo_keys
from jaxrl_fast.system import (
    CODE,
    ENDING,
    SAVING,
    local_path,
    names_code,
    place_of,
)
from jaxrl_fast.training.run_folder import lacking_letters
from jaxrl_fast.training.stop_signals import EXIT_CODES, mute_terminals

WIDTH = 80
ASIDE = ("checkpoint.", "env.", "distributed", "pool.")
"""Sections of which ``--help`` only lists the keys; README and docs describe them."""
TRACEBACK = "HYDRA_FULL_ERROR=1 prints the traceback"

EXAMPLES = (
    ("", "train a cheetah to run"),
    ("env=cartpole algo=ppo seed=3", "select env, algorithm, seed"),
    ("algo.learning_rate=linear:3e-4:0", "change a setting"),
    ("--multirun algo=sac,ppo seed=1,2,3", "six runs, one by one"),
)


def main(
    command: str,
    run: Callable[[list[str]], int | None],
    argv: Sequence[str] | None = None,
    help_text: Callable[[], str] | None = None,
) -> int:
    """Run a command, and convert its errors to one line on stderr and exit code 2.

    ``HYDRA_FULL_ERROR=1`` prints the traceback, too.

    Args:
        command: Name of the command.
        run: ``(words) -> exit code``; None means 0.
        argv: Words of the command line, None for the arguments of the process.
        help_text: Returns the text of ``--help``, None for the text of training.

    Returns:
        The exit code.

    Raises:
        JaxRuntimeError: An error of JAX other than exhausted memory.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    raise_at_ctrl_c()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × or … shows the rest
    try:
        return _dispatch(command, run, without_dashes(words), help_text)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has ended, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, ImportError) as error:
        return fail(error)
    except EnvFailed as error:
        return fail(error, str(error).splitlines()[0].removesuffix(". Its traceback:"))
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return fail(
            error, "out of memory: write a smaller num_envs, num_seeds, batch or buffer_size"
        )
    except (AssertionError, RuntimeError):
        try:
            require_devices()
        except ValueError as missing:
            return fail(missing)
        raise


FLAGS = ("-h", "--help", "--version", "-m", "--multirun")
"""Words with dashes that are no settings."""


def without_dashes(words: Sequence[str]) -> list[str]:
    """Return words with ``--key=value`` written as ``key=value``, as other programs have it.

    Args:
        words: Words of the command line.

    Returns:
        The words.

    Raises:
        ConfigError: Key and value are two words, or a key has no value.
    """
    plain = []
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        if not word.startswith("-") or word in FLAGS:
            plain.append(word)
            continue
        key, equals, value = word.lstrip("-").partition("=")
        key = key.replace("-", "_")
        if not equals:
            shown = after if after and not after.startswith("-") and "=" not in after else "..."
            raise ConfigError(f"{word}: write {key}={shown}")
        plain.append(f"{key}={value}")
    return plain


def _dispatch(
    command: str,
    run: Callable[[list[str]], int | None],
    words: list[str],
    help_text: Callable[[], str] | None,
) -> int:
    """Print the help or the version, or run the command, or its sweep."""
    for word in words:
        if any("\udc80" <= letter <= "\udcff" for letter in word):  # Python could not decode it
            raise ConfigError(f"{word.encode(errors='replace').decode()}: {lacking_letters()}")
    if {"-h", "--help"} & set(words):
        plain_words = [word for word in words if not word.startswith("-")]
        print(help_text() if help_text else train_help(plain_words))
        return 0
    if "--version" in words:
        print(version_line())
        return 0
    if {"-m", "--multirun"} & set(words):
        if command != "train":
            raise ConfigError(f"--multirun is for training: run {command} once for each run")
        return multirun(command, [word for word in words if word not in ("-m", "--multirun")])
    return run(words) or 0


def fail(error: Exception, message: str | None = None) -> int:
    """Print an error in one line.

    Args:
        error: Error.
        message: Text to print, None for the error's text.

    Returns:
        Exit code 2.
    """
    message = message or " ".join(str(error).split()) or type(error).__name__
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        traceback.print_exception(error)
    elif isinstance(error, EnvFailed) or _names_a_place(error, message):
        message += f"; {TRACEBACK}"
    print(f"jaxrl_fast: error: {message}", file=sys.stderr)
    return 2


def _names_a_place(error: BaseException, message: str) -> bool:
    """Check whether a message names the line of a user's code that caused the error."""
    cause = error.__cause__
    place = None if cause is None else place_of(cause)
    return cause is not None and (
        (place is not None and place in message) or _names_a_place(cause, message)
    )


def version_line() -> str:
    """Return the versions of this package and of packages that affect results.

    Returns:
        A line.
    """
    versions = [
        f"{name} {importlib.metadata.version(name)}"
        for name in ("jaxrl_fast", "jax", "brax", "gymnax")
    ]
    return ", ".join([*versions, f"Python {platform.python_version()}"])


def expand(words: Sequence[str]) -> list[list[str]]:
    """List the jobs of a sweep: every combination of the values separated by commas.

    Args:
        words: Words of the command line.

    Returns:
        Words of each job.

    Raises:
        ConfigError: Invalid word, a sweep without values, or two jobs with the same folder.
    """
    jobs = [list(job) for job in itertools.product(*(_values(word) for word in words))]
    if not jobs:
        raise ConfigError("--multirun: these settings give no run")
    folders = [folder for folder in (compose(job).run_dir for job in jobs) if folder is not None]
    if len(set(folders)) < len(folders):
        raise ConfigError(
            f"--multirun: several runs would write to run_dir={folders[0]}: leave run_dir out"
        )
    return jobs


def multirun(command: str, words: Sequence[str]) -> int:
    """Run the jobs of a sweep one after another, each in a new process.

    Args:
        command: Name of the command.
        words: Words of the command line.

    Returns:
        The highest exit code.

    Raises:
        ConfigError: As `expand`, before any job starts.
    """
    jobs, statuses = expand(words), []
    for number, job in enumerate(jobs, 1):
        print(f"[{number}/{len(jobs)}] {command_line(job, command)}", flush=True)
        statuses.append(_run_job([sys.executable, "-m", f"jaxrl_fast.{command}", *job]))
        if statuses[-1] in EXIT_CODES:
            break
    return max(statuses)


def train_help(words: Sequence[str] = ()) -> str:
    """Build the text of ``--help`` from the registries and schemas.

    Args:
        words: Other words of the command line.

    Returns:
        The text, within 80 x 50 characters; with other words, all keys of their environment and
        algorithm.
    """
    if words:
        return keys_help(words)
    run, keys = compose([]), run_keys()
    aside = [name for name, key in keys.items() if key.aside or name.startswith(ASIDE)]
    return "\n".join(
        [
            "python -m jaxrl_fast.train [key=value ...] [--multirun] [--version] [--help]",
            *(f"  {'train ' + words:<43}{text}" for words, text in EXAMPLES),
            "environments (env=...); any other: env=<suite> env.id=, env=custom env.make=",
            *_environments(),
            *textwrap.wrap(
                f"algo=... of {' '.join(names_of_algorithms())} {CUSTOM}; keys: train env=cartpole --help",
                WIDTH,
            ),
            f"placement={AUTO:<8} The fastest measured placement for env and algo; others:",
            *_described(PLACEMENTS, lambda place: place.__doc__),
            f"keys, with their defaults for env={run.env}",
            *(
                _key_line(name, key, flat_settings(run).get(name, key.default))
                for name, key in keys.items()
                if name not in aside
            ),
            *_listed(aside),
            "tuned=false: untuned; config=<file>: repeats it; HYDRA_FULL_ERROR=1: tracebacks",
        ]
    )


OF_RUN = """RUN is a run's folder, such as runs/latest. Keys algo.* and env.* replace the run's; write algo.make,
algo.network and algo.memory again if they are your own."""
"""Last lines of the help of commands that take a run and settings."""


def help_of(usage: str, keys: Mapping[str, Key], *more: str) -> str:
    """Build the text of ``--help`` of a command with keys.

    Args:
        usage: Command with its other words, without ``python -m jaxrl_fast.``.
        keys: Keys of the command.
        *more: Lines below the keys.

    Returns:
        The text: usage, a line for each key with its default, and ``more``.
    """
    labels = [
        name if key.default in (None, ()) else f"{name}={written(key.default)}"
        for name, key in keys.items()
    ]
    width = max(map(len, labels))
    texts = [
        f"{key.text} ({choices})" if (choices := _choices(key)) else key.text
        for key in keys.values()
    ]
    lines = (f"  {label:<{width}}  {text}" for label, text in zip(labels, texts, strict=True))
    return "\n".join([f"python -m jaxrl_fast.{usage} [key=value ...]", *lines, *more])


TUNED = "config/tuned/"


def keys_help(words: Sequence[str]) -> str:
    """List the keys of the algorithm, environment and suite of a command line, within 80 characters
    a line.

    Args:
        words: Words of the command line; of a sweep, its first job counts.

    Returns:
        The text. Defaults are those without the given words. A key that is missing, and an
        environment or algorithm of the user's that cannot be imported, are named first.

    Raises:
        ConfigError: A word is wrong.
    """
    first = [_values(word)[0] for word in words]
    missing: list[str] = []
    has_algorithm = True
    try:
        requested = compose(first, complete=False)
    except ValueError as error:
        if f"algo={CUSTOM}" not in first:
            raise
        missing.append(str(error))
        has_algorithm = False
        requested = compose(
            [word for word in first if not word.startswith(("algo=", "algo."))], complete=False
        )
    algo = [
        f"algo{'' if name == 'name' else f'.{name}'}={value}"
        for name, value in algo_words(requested).items()
    ]
    named = [f"env={requested.env}", *algo, f"placement={requested.placement}"]
    named += [
        f"env.{name}='{requested.env_options[name]}'"
        for name in ("id", "make", "file")
        if name in requested.env_options
    ]
    run = compose([*named, *(word for word in words if word.startswith("tuned="))], complete=False)
    of_run, values = run_keys(), flat_settings(run)
    others = [name for name in of_run if not name.startswith(("env.", "algo.", "pool."))]
    of_env: dict[str, Key] = {}
    env_text = f"env={run.env}"
    try:
        of_env = env_keys(run)
        if needed := env_needs(run):
            missing.append(needed)
        else:
            env_text = envs.describe(run.env, run.env_options)
    except ValueError as error:
        missing.append(str(error))
    pool = [name for name in of_run if name.startswith("pool.") and may_be_host(run.env)]
    tuned = [name for name, source in run.sources.items() if source.startswith(TUNED)]
    note = f", * tuned ({run.tuned_file})" if run.tuned_file else ""
    values |= dict.fromkeys(later := chosen_later(run), "(by env)")
    note += ", (by env): chosen for the environment" if later else ""

    def lines(keys: Mapping[str, Key]) -> list[str]:
        shown = {
            name: written(values.get(name.removeprefix("+"), key.default))
            for name, key in keys.items()
        }
        labels = {
            name: f"{name}={value}{' *' if name in tuned else ''}" for name, value in shown.items()
        }
        return [line for name, key in keys.items() for line in _entry(labels[name], key)]

    of_algo = algo_keys(run.algo) if has_algorithm else {}
    shown_algo = algo if has_algorithm else [f"algo={CUSTOM}"]
    return "\n".join(
        [
            f"python -m jaxrl_fast.train env={run.env} {' '.join(shown_algo)} [key=value ...]",
            *(line for text in missing for line in textwrap.wrap(f"missing: {text}", WIDTH)),
            *textwrap.wrap(f"Keys with their defaults{note}; allowed values in brackets.", WIDTH),
            *([f"algo.*: settings of {run.algo}"] if of_algo else []),
            *lines(of_algo),
            *textwrap.wrap(f"env.*: options of {env_text}", WIDTH),
            *lines(of_env),
            *([] if not pool else ["pool.*: environments on the host"]),
            *lines({name: of_run[name] for name in pool}),
            "other keys",
            *lines({name: of_run[name] for name in others}),
        ]
    )


COLUMN = 34
"""First column of the descriptions of keys."""


def _entry(label: str, key: Key) -> list[str]:
    """Describe a key next to its label, or below a long one."""
    allowed = schema.describe_key(key)
    meaning = re.sub(r"\bNone\b", "null", key.text.removesuffix(".").rstrip(":"))
    text = f"{meaning} ({allowed})".strip() if allowed else meaning
    first, *others = textwrap.wrap(text, WIDTH - COLUMN) or [""]
    label, space = f"  {label}", " " * COLUMN
    short = len(label) < COLUMN - 1
    head = [f"{label:<{COLUMN}}{first}"] if short else [label[:WIDTH], space + first]
    return [line.rstrip() for line in (*head, *(space + line for line in others)) if line.strip()]


def _values(word: str) -> list[str]:
    several = parse_word(word).several
    key = word.partition("=")[0]
    return [word] if several is None else [f"{key}={value}" for value in several]


def _run_job(words: list[str]) -> int:
    """Run a process and return its exit code. It gets our signals, each once."""
    # a terminal sends its signals to our session only, and we forward them
    with subprocess.Popen(words, start_new_session=True) as job, _forwarded(job.send_signal):
        status = job.wait()
    return status if status >= 0 else 128 - status


@contextmanager
def _forwarded(send: Callable[[int], Any]) -> Iterator[None]:
    """Forward the signals that end or save a run."""

    def forward(number: int, frame: FrameType | None) -> None:
        send(number)
        if number == signal.SIGHUP:
            mute_terminals()

    before = {number: signal.getsignal(number) for number in (*ENDING, SAVING)}
    handled = [number for number in before if before[number] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, forward)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _environments() -> list[str]:
    """List short names by suite, multi-agent ones together, and all suites but the probes."""
    names: dict[str, list[str]] = {}
    for name, short in envs.SHORT_NAMES.items():
        several = envs.named_suite(short.suite).agents == "several"
        names.setdefault("agents" if several else short.suite, []).append(name)
    suites = [name for name in envs.names_of_suites() if name not in ("probe", "custom")]
    entries = {suite: " ".join(short) for suite, short in {**names, "suites": suites}.items()}
    return [line for suite, text in entries.items() for line in _wrapped(suite, text)]


def _listed(names: Iterable[str]) -> list[str]:
    return textwrap.wrap(" ".join(names), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _wrapped(label: str, text: str) -> list[str]:
    """Wrap a text next to a label."""
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {label:<10} ", subsequent_indent=" " * 13)


def _described(registry: dict[str, Any], doc: Callable[[Any], str | None]) -> list[str]:
    """Format a line for each entry with its name and the first line of its documentation."""
    first = {
        name: (doc(entry) or "").strip().partition("\n")[0] for name, entry in registry.items()
    }
    lines = [f"  {name:<16} {line}" for name, line in first.items()]
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines]


def _key_line(name: str, key: Key, default: Any) -> str:
    shown = (
        "-"
        if default is None
        else str(default).lower()
        if isinstance(default, bool)
        else str(default)
    )
    return f"  {name:<18} {shown:<8} {key.text} {_choices(key)}".rstrip()


def _choices(key: Key) -> str:
    return "|".join(get_args(key.type)) if get_origin(key.type) is Literal else ""


def without_links(path: Path) -> Path:
    """Return the real path of a folder, such as the newest run's for ``runs/latest``.

    Args:
        path: Path.

    Returns:
        The path; relative to the current folder if it lies there.
    """
    here, target = Path.cwd().resolve(), path.resolve()
    if target == here / path:
        return path
    return target.relative_to(here) if target.is_relative_to(here) else target


def split_words(
    words: Sequence[str], command: str, keys: Mapping[str, Key]
) -> tuple[list[Path], dict[str, Any]]:
    """Parse the words of a command that takes folders.

    Args:
        words: Words of the command line.
        command: Name of the command in error messages.
        keys: Keys of the command by name.

    Returns:
        The folders, and the values by key.

    Raises:
        ConfigError: Unknown key, or a value of another type or out of range.
    """
    found, folders = {name: key.default for name, key in keys.items()}, []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or "/" in name:
            folders.append(without_links(local_path(word)))
        elif name not in keys:
            known = " and ".join(", ".join(keys).rsplit(", ", 1))
            raise ConfigError(f"unknown key '{name}': the keys of {command} are {known}")
        else:
            found[name] = (
                value
                if keys[name].type is str
                else schema.read_value(name, read_word(word)[1], keys[name])
            )
    for name in (name for name, key in keys.items() if key.path and found[name] is not None):
        local_path(found[name], name)
    return folders, found


POLICIES = {"newest": "policy", "best": "policy/best"}
"""Subfolder of each policy of a run."""
RUN_KEYS = "algo.", "env.", "algo=", "env="
"""Beginnings of a run's settings that the commands for one run take."""


def read_words(
    words: Sequence[str],
    command: str,
    keys: Mapping[str, Key],
    settings: tuple[str, ...] = RUN_KEYS,
) -> tuple[Path, dict[str, Any]]:
    """Parse the words of a command that takes one run's folder.

    Args:
        words: Words of the command line.
        command: Name of the command in error messages.
        keys: Keys of the command by name.
        settings: Beginnings of settings of the run that may be given again.

    Returns:
        The folder, and the values by key; the words of settings as ``settings``.

    Raises:
        ConfigError: No folder, several folders, or as `split_words`.
    """
    given = [word for word in words if word.startswith(settings) and "=" in word]
    folders, found = split_words([word for word in words if word not in given], command, keys)
    if len(folders) != 1:
        raise ConfigError("write the path of one run's folder, such as runs/latest")
    return folders[0], {**found, "settings": given}


def open_run(
    folder: Path, policy: str = "policy", settings: Sequence[str] = ()
) -> tuple[Run, Policy]:
    """Load a run's settings and policy.

    Args:
        folder: Folder of the run.
        policy: Subfolder of the policy.
        settings: Words of settings that replace the run's, such as ``algo.make=my_package.make``;
            of a run without ``config.yaml``, as runs of `jaxrl_fast.learn` may be, its environment.

    Returns:
        The settings and the policy.

    Raises:
        ConfigError: The folder contains no run, or names an algorithm that ``settings`` do not name
            again.
        ValueError: The run has no readable policy.
    """
    require_devices()
    config_file = folder / "config.yaml"
    given = dict(map(read_word, settings))
    if config_file.exists():
        require_named_again(folder, read_file(config_file).values, given)
        run = compose([f"config='{config_file}'", *settings])
    elif not (folder / policy / "policy.json").exists():
        raise ConfigError(
            f"{folder} contains no run: write the path of a run's folder, such as runs/latest"
        )
    elif "env" not in given:
        raise ConfigError(
            f"{folder} has no config.yaml, as runs of jf.learn may: add its environment, such as env=cartpole"
        )
    else:
        run = compose(settings)
    own = declared_named(run.algo) is None or any(
        names_code(run.algo_options.get(name)) for name in CODE
    )
    return run, load_policy(folder / policy, algorithm=make_algorithm(run) if own else None)


def check_spaces(policy: Policy, spec: EnvSpec, folder: Path) -> None:
    """Check that a policy was trained on environments like the one in its run's settings.

    Args:
        policy: Policy.
        spec: Spec of the environment.
        folder: Folder of the run.

    Raises:
        ConfigError: Observations or actions differ.
    """
    if not same_spaces(policy.spec, spec):
        raise ConfigError(
            f"{folder}/policy was trained on {policy.spec.name}, whose observations or actions differ from the "
            f"{spec.name} in {folder / 'config.yaml'}: use the files of one run"
        )
