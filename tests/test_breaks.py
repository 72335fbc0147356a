"""The errors of experiments/laws/breaks.py name lines and tests that exist, and the script judges
them rightly.
"""

import ast
import sys
from pathlib import Path

import pytest
import selection
from costs import Cost

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "laws"))

import breaks

ROOT = Path(__file__).parent.parent
BREAKS = breaks.read_breaks()


def functions_of(file: str) -> set[str]:
    return {
        node.name
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("broken", BREAKS, ids=[broken.name for broken in BREAKS])
def test_an_error_changes_one_line_and_names_a_test(broken: breaks.Break):
    """A change of this line or test also changes breaks.toml."""
    breaks.broken_text(broken)
    file, _, name = broken.test.partition("::")
    assert name.partition("[")[0] in functions_of(file)


def test_every_error_is_found_by_make_test():
    recorded, laws = selection.recorded_costs(), set(selection.witnesses())
    names = {broken.test.removeprefix("tests/") for broken in BREAKS}
    dear = {name for name in names if selection.is_dear(recorded.get(name, Cost()))}
    assert {name for name in dear if not selection.matching(name, laws)} == set()


def test_a_text_is_found_in_any_layout():
    pattern = breaks.in_any_layout("f(a, [b]) + g(c)")
    assert pattern.search("x = f(\n    a,\n    [b],\n) + g(c)")
    assert not pattern.search("x = f(a, [b]) + g(d)")


def test_a_text_that_is_not_there_once_or_no_python_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    first = breaks.Break(name="first", file="a.py", old="x = 1", new="x = 2", test="")
    assert breaks.broken_text(first, tmp_path) == "x = 2\ny = 1\n"
    for change, says in (
        (dict(old="= 1"), "2 times"),
        (dict(old="z"), "0 times"),
        (dict(new="x ="), "does not compile"),
    ):
        with pytest.raises(ValueError, match=says):
            breaks.broken_text(first._replace(**change), tmp_path)


@pytest.mark.parametrize(
    ("test", "caught", "note"),
    [
        ("def test_one():\n    assert x == 1", True, ""),
        ("def test_one():\n    assert x > 0", False, "the test passed"),
        (
            "def test_two():\n    assert x == 1",
            False,
            "pytest ended with 4",
        ),  # there is no test_one
        (
            "def test_one():\n    assert x == 1\n1 / 0",
            False,
            "pytest ended with 4",
        ),  # no test is collected
    ],
)
def test_an_error_is_caught_by_its_test_alone(tmp_path, test: str, caught: bool, note: str):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "test_a.py").write_text(f"from a import x\n\n{test}\n")
    broken = breaks.Break(
        name="one", file="a.py", old="x = 1", new="x = 2", test="test_a.py::test_one"
    )
    result = breaks.check(broken, tmp_path)
    assert (result.caught, result.note.partition(":")[0]) == (caught, note)
    assert (tmp_path / "a.py").read_text() == "x = 1\n"


def test_a_commit_selects_an_error():
    assert [breaks.selected([], f"{number:x}")[0] for number in range(len(BREAKS))] == list(BREAKS)
    assert breaks.selected([BREAKS[3].name], None) == [BREAKS[3]]
    with pytest.raises(ValueError, match="there is no error nothing"):
        breaks.selected(["nothing"], None)
