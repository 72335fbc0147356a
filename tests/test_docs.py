"""README and docs contain only tested content: code blocks, command lines, links, figures and
tables.
"""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import jax
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent / "docs" / "site"))
sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "bench"))
sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "gpu"))
sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "learning"))
sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "startup"))
import docs_measured
import docs_other
import docs_run
import docs_tables
import learning_page
import population
import scaling
import startup
import startup_watch
import targets
from docs_text import (
    ROOT,
    Figure,
    broken_links,
    command_lines,
    figures,
    missing_scripts,
    name_of,
    pages,
    python_blocks,
    scripts,
    shows,
    texts,
)

PAGES = {name_of(path): path for path in pages()}
WITH_BLOCKS = [name for name, path in PAGES.items() if python_blocks(path)]


@pytest.fixture(scope="session")
def trained(tmp_path_factory, commands) -> Path:
    """Make a folder in which ``runs/latest`` is a short run of Pendulum."""
    folder = tmp_path_factory.mktemp("docs")
    ended = commands.run(folder, "train", *docs_run.TRAINED, trains=True)
    assert ended.status == 0, ended
    return folder


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_the_python_of_a_page_runs(
    name: str, tmp_path: Path, request, monkeypatch: pytest.MonkeyPatch
):
    blocks = python_blocks(PAGES[name])
    reads_a_run = any("runs/latest" in block.code for block in blocks)
    folder = request.getfixturevalue("trained") if reads_a_run else tmp_path
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    docs_run.run_page(blocks, folder)


def test_the_search_with_optuna_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`test_the_python_of_a_page_runs` leaves a block without its package out."""
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    page = PAGES["docs/callbacks.md"]
    blocks = [block for block in python_blocks(page) if "import optuna" in block.code]
    assert len(blocks) == 1 and not docs_run.lacks_a_package(blocks[0])
    docs_run.run_page([blocks[0]._replace(first="import jaxrl_fast as jf")], tmp_path)


def new_lines() -> list[str]:
    """Command lines that must be run and that the record of `docs/site/docs_run.py` lacks."""
    lines = {line for path in PAGES.values() for line in command_lines(path)}
    return sorted(
        {line for line in lines if docs_run.reason_not_run(line) is None} - set(docs_run.record())
    )


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """Make a folder with the files that command lines read."""
    folder = tmp_path_factory.mktemp("commands")
    docs_run.prepare(folder)
    return folder


@pytest.mark.parametrize("line", new_lines())
def test_a_command_line_that_is_not_in_the_record_runs(line: str, prepared: Path, tmp_path: Path):
    """`python docs/site/docs_run.py` runs each command line once and records it."""
    docs_run.run_command(
        line, Path(shutil.copytree(prepared, tmp_path, symlinks=True, dirs_exist_ok=True))
    )


def test_the_record_has_many_lines_and_a_line_that_fails_is_found(tmp_path: Path):
    assert len(docs_run.record()) > 20
    with pytest.raises(SystemExit, match="no such command"):
        docs_run.run_command("python -c 'raise SystemExit(\"no such command\")'", tmp_path)


def test_long_commands_are_run_short():
    words = docs_run.short_words(
        "python -m jaxrl_fast.train env=ant num_envs=4096 total_steps=5_000  # long"
    )
    assert {"num_envs=8", "total_steps=1", "eval.episodes=2"} < set(words) and "#" not in words


@pytest.mark.text
@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str):
    assert broken_links(PAGES[name]) == []


@pytest.mark.text
def test_every_script_that_a_text_names_exists():
    named = {name_of(path): path.read_text(errors="replace") for path in texts()}
    assert len(set().union(*map(scripts, named.values()))) > 40
    missing = {name: missing_scripts(text) for name, text in named.items()}
    assert {name: lost for name, lost in missing.items() if lost} == {}


@pytest.mark.text
@pytest.mark.parametrize(
    "gone", ["python experiments/{}.py", "env.make=experiments.{}.make", "make: docs/site/{}.py"]
)
def test_a_script_that_moved_is_found(gone: str):
    assert missing_scripts(gone.format("moved_away"))


def test_the_watch_of_a_start_names_functions_that_exist():
    folders = (ROOT / "jaxrl_fast", ROOT / "envs", Path(jax.__file__).parent)
    named = {*startup_watch.PHASES, *startup_watch.WORK}
    texts = {
        file: [path.read_text() for folder in folders for path in folder.rglob(file)]
        for file, _ in named
    }
    defined = {  # JAX 0.11 wraps some functions: ``name = decorator(function)``
        (file, name)
        for file, name in named
        if re.search(rf"def {name}\(|^{name} = ", "\n".join(texts[file]), re.M)
    }
    assert named - defined == set()


@pytest.mark.text
def test_figures_are_those_of_the_results():
    found = [figure for path in PAGES.values() for figure in figures(path)]
    assert len(found) > 10
    assert [figure for figure in found if not shows(figure)] == []


@pytest.mark.text
def test_a_figure_that_changed_is_found():
    assert shows(Figure("", "1,067", "", 1067.4)) and shows(Figure("", "−2.5", "", -2.46))
    assert not shows(Figure("", "1,067", "", 1068.4)) and not shows(Figure("", "1.51", "", 1.516))


@pytest.mark.text
@pytest.mark.parametrize(
    "name", [name for name, path in PAGES.items() if "<!-- end -->" in path.read_text()]
)
def test_tables_are_as_the_code_has_them(name: str):
    """`python docs/site/docs_tables.py` writes them."""
    assert docs_tables.filled(PAGES[name].read_text()) == PAGES[name].read_text()


def changed(value: object) -> object:
    """Change the numbers of a result; texts, names and counts stay."""
    if isinstance(value, dict):
        return {key: changed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [changed(inner) for inner in value]
    return 1.5 * value + 1 if isinstance(value, float) else value


@pytest.mark.text
@pytest.mark.parametrize("name", docs_measured.MEASURED)
def test_a_result_that_changed_changes_its_table(name: str, monkeypatch: pytest.MonkeyPatch):
    before, read = docs_measured.MEASURED[name](), docs_measured.read
    assert any(f"<!-- table: {name} -->" in path.read_text() for path in PAGES.values())
    monkeypatch.setattr(docs_measured, "read", lambda file: changed(read(file)))
    assert docs_measured.MEASURED[name]() != before


WRITERS = {
    learning_page: lambda: learning_page.write_page(docs_measured.RESULTS),
    population: population.write_page,
    targets: lambda: targets.main(["--page"]),
    scaling: lambda: scaling.write_page(scaling.by_line(docs_measured.read("scaling.json"))),
    startup: lambda: startup.write_page(docs_measured.read("startup.json")),
}
"""Scripts that write a whole page, or its tables."""


@pytest.mark.text
@pytest.mark.parametrize("module", WRITERS, ids=lambda module: module.__name__)
def test_a_page_is_what_its_script_writes(module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = Path(shutil.copy(module.PAGE, tmp_path))
    monkeypatch.setattr(module, "PAGE", page)
    committed = page.read_text()
    WRITERS[module]()
    assert page.read_text() == committed


@pytest.mark.text
def test_what_is_in_other_languages_is_what_was_run():
    """`python docs/site/docs_other.py` runs it."""
    ran = docs_measured.read("docs_other.json")["blocks"]
    assert {file: docs_other.digest(body) for file, body in docs_other.blocks().items()} == {
        file: row["digest"] for file, row in ran.items()
    }


@pytest.mark.text
def test_extras_and_targets_of_make_exist():
    text = "\n".join(path.read_text() for path in PAGES.values())
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra
        for extras in re.findall(r"(?:jaxrl_fast|['\"]\.)\[([\w,]+)\]", text)
        for extra in extras.split(",")
    }
    assert named and named <= set(known)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    asked = set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.M))
    assert asked and asked <= targets


@pytest.mark.text
def test_every_page_of_the_navigation_is_there_and_others_join_it():
    import assemble

    nav = yaml.safe_load((ROOT / "docs" / "site" / "mkdocs.yml").read_text())["nav"]
    pages = {
        *assemble.sources().values(),
        *(page for page in assemble.named_in(nav) if page.startswith("reference/")),
    }
    assert assemble.named_in(assemble.navigation(nav, {*pages, "new.md"})) == {*pages, "new.md"}
    with pytest.raises(SystemExit, match=r"start\.md"):
        assemble.navigation(nav, pages - {"start.md"})


@pytest.mark.text
def test_a_page_of_the_site_leads_to_pages_and_copies(tmp_path: Path):
    import assemble

    page = ROOT / "docs" / "tutorials" / "world.md"
    known = {page: "tutorials/world.md", ROOT / "README.md": "index.md"}
    assert assemble.spaced("one\n- two\n- three\n") == "one\n\n- two\n- three\n"
    assert assemble.spaced(f"| a | `{'x' * 60}` |").endswith(
        "`{.long} |"
    ) and "long" not in assemble.spaced("| `x` |")
    there = "[own_world.py](../files/examples/own_world.py.txt)"
    assert there in assemble.relinked(page, known[page], tmp_path, known)
    assert (tmp_path / "files" / "examples" / "own_world.py.txt").exists()


@pytest.mark.text
def test_the_reference_says_what_every_key_means():
    from reference_pages import reference_pages

    rows = [
        line
        for text in reference_pages().values()
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    assert len(rows) > 300
    assert [
        row
        for row in rows
        if row.startswith(("| `algo.", "| `eval.", "| `env.")) and row.endswith("|  |")
    ] == []


def test_the_page_on_run_folders_names_every_file(trained: Path):
    page = PAGES["docs/run_folder.md"].read_text().partition("<!-- files -->")[2]
    named = [
        re.escape(name).replace(r"\*", ".*").rstrip("/")
        for name in re.findall(r"`([\w.*/]+)`", page)
    ]
    left = [path.name for path in (trained / "runs" / "latest").iterdir()]
    assert (
        left
        and [name for name in left if not any(re.fullmatch(pattern, name) for pattern in named)]
        == []
    )


@pytest.mark.text
def test_pages_are_short():
    assert {
        name: n for name, path in PAGES.items() if (n := len(path.read_text().splitlines())) > 250
    } == {}


@pytest.mark.text
def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
