"""Does a test fail for each of these one-line errors?

``python experiments/laws/breaks.py [NAME ...]`` copies the tree once, and checks that the tests
that breaks.toml names pass in the copy. Then it makes one error after another there, and runs the
one test that must fail with it. It prints a line for each error, and the exit code is 1 if a test
did not fail.

``--list`` prints the errors and makes none. ``--one HASH`` makes one of them, selected by the hash
of a commit. ``--suite NAME ...`` runs for each named error all tests of ``make test``, and prints
which of them fail with it. ``--write`` writes the results to experiments/results/breaks.json.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine, versions

BREAKS = Path(__file__).with_name("breaks.toml")
RESULT = ROOT / "experiments" / "results" / "breaks.json"
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rfE")
ONE_TEST_S, ALL_TESTS_S = 300.0, 7200.0
"""Seconds after which the tests of an error are ended; the error is then not caught."""


class Break(NamedTuple):
    """A one-line error.

    Attributes:
        name: Its name.
        file: File, relative to the root of the repository.
        old: Text that it replaces, which the file has once.
        new: Text in its place.
        test: Identifier of the test that must fail with it.
    """

    name: str
    file: str
    old: str
    new: str
    test: str


class Result(NamedTuple):
    """What happened with an error.

    Attributes:
        caught: Whether a test failed.
        seconds: Duration of the tests.
        failed: The tests that failed.
        note: Why the run does not count, or the empty string.
    """

    caught: bool
    seconds: float
    failed: tuple[str, ...] = ()
    note: str = ""


def read_breaks() -> tuple[Break, ...]:
    """Read breaks.toml.

    Returns:
        The errors, in order.
    """
    listed = tomllib.loads(BREAKS.read_text(encoding="utf-8"))
    return tuple(Break(name=name, **facts) for name, facts in listed.items())


def copy_tree(folder: Path) -> Path:
    """Copy the files that git tracks or would add.

    Args:
        folder: Folder for the copy, which must not exist.

    Returns:
        The folder.
    """
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_symlink() or source.is_file():  # a file may be deleted and still tracked
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target, follow_symlinks=False)
    # Python takes a compiled file for current by time and size, which an error and its repair may
    # have in common.
    compiling = [
        sys.executable,
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode",
        "checked-hash",
        "jaxrl_fast",
        "envs",
    ]
    subprocess.run(compiling, cwd=folder, check=True)
    return folder


def in_any_layout(code: str) -> re.Pattern[str]:
    """Return the pattern of a piece of code, however its lines are broken.

    Args:
        code: Part of an expression or of a statement.

    Returns:
        A pattern that allows any space between two letters, and a comma before a bracket; space at
        the ends of ``code`` is matched exactly.
    """
    middle = code.strip()
    before, _, after = code.partition(middle)
    letters = ((r",?\s*" if c in ")]}" else "") + re.escape(c) for c in "".join(middle.split()))
    return re.compile(re.escape(before) + r"\s*".join(letters) + re.escape(after))


def broken_text(broken: Break, tree: Path = ROOT) -> str:
    """Return the text of a file with an error.

    Args:
        broken: Error.
        tree: Folder of the repository.

    Returns:
        The text, which compiles.

    Raises:
        ValueError: The file does not have the line exactly once, or the error is no Python.
    """
    text = (tree / broken.file).read_text(encoding="utf-8")
    places = list(in_any_layout(broken.old).finditer(text))
    if len(places) != 1:
        raise ValueError(
            f"{broken.name}: {broken.file} has {len(places)} times, not once: {broken.old}"
        )
    changed = text[: places[0].start()] + broken.new + text[places[0].end() :]
    try:
        compile(changed, broken.file, "exec")
    except SyntaxError as error:
        raise ValueError(
            f"{broken.name}: with it, {broken.file} does not compile: {error}"
        ) from error
    return changed


@contextmanager
def made(broken: Break, tree: Path) -> Iterator[None]:
    """Make an error in a copy of the tree, and undo it at the end.

    Args:
        broken: Error.
        tree: The copy.
    """
    path = tree / broken.file
    right = path.read_text(encoding="utf-8")
    path.write_text(broken_text(broken, tree), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(right, encoding="utf-8")


def run_tests(tree: Path, words: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """Run tests in a copy of the tree.

    Args:
        tree: The copy, whose modules the tests and their processes import.
        words: Further arguments of pytest.
        limit_s: Seconds after which they are ended.

    Returns:
        Exit code of pytest, None if it was ended, and its output.
    """
    started = subprocess.Popen(
        [*PYTEST, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = started.communicate(timeout=limit_s)
        return started.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()


def failed_tests(output: str) -> tuple[str, ...]:
    """List the tests that failed.

    Args:
        output: Output of pytest with ``-rfE``.

    Returns:
        Identifiers of tests, also of tests whose fixtures failed; without files that could not be
        collected.
    """
    marks = "FAILED ", "ERROR "
    lines = [line.split(" ", 1)[1] for line in output.splitlines() if line.startswith(marks)]
    return tuple(line.split(" - ")[0] for line in lines if "::" in line.split(" - ")[0])


def check(broken: Break, tree: Path) -> Result:
    """Run the test of an error.

    Args:
        broken: Error.
        tree: Copy of the tree.

    Returns:
        The result.
    """
    begin = time.perf_counter()
    with made(broken, tree):
        code, output = run_tests(tree, ["-x", broken.test], ONE_TEST_S)
    failed, seconds = failed_tests(output), time.perf_counter() - begin
    if code == 1 and broken.test in failed:
        return Result(True, seconds, failed)
    notes = {None: "the test did not end", 0: "the test passed"}
    last = output.strip().splitlines()[-1:] or [""]
    return Result(False, seconds, failed, notes.get(code, f"pytest ended with {code}: {last[0]}"))


def check_suite(broken: Break, tree: Path, failing: frozenset[str]) -> Result:
    """Run all tests of ``make test`` with an error.

    Args:
        broken: Error.
        tree: Copy of the tree.
        failing: Tests that fail in the copy without it.

    Returns:
        The result.
    """
    begin = time.perf_counter()
    with made(broken, tree):
        code, output = run_tests(tree, suite_words(), ALL_TESTS_S)
    failed = tuple(test for test in failed_tests(output) if test not in failing)
    note = "the tests did not end" if code is None else ""
    return Result(bool(failed), time.perf_counter() - begin, failed, note)


def suite_words() -> list[str]:
    """Return the arguments of pytest for the tests of ``make test``."""
    return ["-m", "not long", "-n", str(os.cpu_count() or 1), "--dist", "worksteal"]


def selected(names: Sequence[str], commit_hash: str | None) -> list[Break]:
    """Select errors.

    Args:
        names: Names of errors; empty for all.
        commit_hash: Hash of a commit, which selects one of them, or None.

    Returns:
        The errors.

    Raises:
        ValueError: There is no error of a name, or the hash is no hexadecimal number.
    """
    by_name = {broken.name: broken for broken in read_breaks()}
    if unknown := [name for name in names if name not in by_name]:
        raise ValueError(f"there is no error {unknown[0]}: write names of --list")
    chosen = [by_name[name] for name in names] or list(by_name.values())
    return chosen if commit_hash is None else [chosen[int(commit_hash, 16) % len(chosen)]]


def describe(broken: Break, result: Result) -> str:
    """Write the line of an error.

    Args:
        broken: Error.
        result: Its result.

    Returns:
        The line.
    """
    verdict = "caught" if result.caught else "NOT CAUGHT"
    note = f"  {result.note}" if result.note else ""
    return f"{broken.name:48}{verdict:12}{result.seconds:6.1f} s{note}"


def write(results: dict[str, Result]) -> None:
    """Write the result file.

    Args:
        results: Results by name.
    """
    rows: dict[str, Any] = {}
    for broken in read_breaks():
        if broken.name in results:
            result = results[broken.name]
            facts = {"file": broken.file, "test": broken.test, "caught": result.caught}
            rows[broken.name] = {**facts, "seconds": round(result.seconds, 1)}
    document = {"commit": commit(), "machine": machine(), "versions": versions(), "breaks": rows}
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main(words: Sequence[str]) -> int:
    """Make the errors, and print a line for each.

    Args:
        words: Arguments of the command line.

    Returns:
        The exit code: 1 if an error was not caught, 2 if a test fails without an error.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--one", metavar="HASH")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--suite", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(words)
    try:
        chosen = selected(given.names, given.one)
        for broken in chosen:
            broken_text(broken)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if given.list:
        print("\n".join(f"{broken.name:48}{broken.file}  {broken.test}" for broken in chosen))
        return 0
    # ends the tests and removes the copy
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="jaxrl_fast-breaks-") as name:
        return make_all(chosen, copy_tree(Path(name) / "tree"), given)


def make_all(chosen: Sequence[Break], tree: Path, given: argparse.Namespace) -> int:
    """Check that the tests pass, then make one error after another.

    Args:
        chosen: Errors.
        tree: Copy of the tree.
        given: Arguments of the command line.

    Returns:
        The exit code, as of `main`.
    """
    tests = sorted({broken.test for broken in chosen})
    code, output = run_tests(tree, suite_words() if given.suite else tests, ALL_TESTS_S)
    failing = frozenset(failed_tests(output))
    if code and not given.suite:
        print(
            f"without an error, these tests do not pass: {', '.join(failing) or output}",
            file=sys.stderr,
        )
        return 2
    results: dict[str, Result] = {}
    for broken in chosen:
        result = check_suite(broken, tree, failing) if given.suite else check(broken, tree)
        results[broken.name] = result
        print(describe(broken, result), flush=True)
        if given.suite:
            print("".join(f"    {test}\n" for test in result.failed), end="")
    number = sum(result.caught for result in results.values())
    print(f"{number} of {len(results)} caught")
    if given.write:
        write(results)
    return int(number < len(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
