"""Refused words in docstrings, comments, messages and pages, and the required sections of a public
docstring.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

pytestmark = pytest.mark.text
ROOT = Path(__file__).parent.parent
SKIPPED = {".venv", "build", "results", "node_modules", ".git"}
SOURCES = [
    path
    for folder in ("jaxrl_fast", "envs", "tests", "experiments", "examples", "reference", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not SKIPPED & set(path.parts) and ROOT / "jaxrl_fast" / "envs" not in path.parents
]
PLAIN = [path for path in SOURCES if path != Path(__file__)]  # this file names the refused words
DOCUMENTED = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("jaxrl_fast", "envs")]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

REFUSED = {
    r"worlds?": "environment",
    r"tells?|telling|told|says?|saying|said": "report, print, warn, log, name",
    r"kept|keeps?|keeping": "store, cache, retain",
    r"knows?|known": "name the fact: supports, contains, is given",
    r"hooks?": "callback",
    r"choosing": "action selection, selecting",
    r"folding|seen at once": "n-step returns, frame stack",
    r"experience|what was sampled": "replay buffer, rollout, minibatch",
    r"(?<!not )found|learned": "gradient result, network parameters, trained",
    r"laid|moved|division": "sharding, transfer, all-reduce",
    r"fresh start|true successor": "initial state, terminal observation (`next_obs`)",
    r"would rest|beside|of (?:its|their|his) own": "idle priority, background, next to, separate",
    r"fits?|wants?|wanted|as it is": "supported, required, default",
    r"whoever|by itself|that of|those of|what is": "the noun",
    r"exit status": "exit code",
}
"""Words of the project's private language, and their replacements. Text in backticks and code is
not read.
"""
NAMES = {"as it is", "no kept programs"}
"""Keys of committed result files, which are not prose."""
WORD = re.compile(rf"\b(?:{'|'.join(REFUSED)})\b", re.I)


def refused_words(text: str) -> list[str]:
    """List the refused words of a prose text.

    Args:
        text: Plain text or Markdown; code blocks, backticks, links and quotations are left out.

    Returns:
        The words, in order.
    """
    text = re.sub(r"^( *)(```|~~~).*?^\1\2", "", text, flags=re.M | re.S)
    # names of arguments and fields are not prose
    text = re.sub(r"^ +\*{0,2}\w+:", "", text, flags=re.M)
    # nor are dotted names, options and quoted names
    text = re.sub(r"\b\w+(?:\.\w+)+|\b\w+=\S*|'\w+'", "", text)
    text = re.sub(
        r"``.+?``|`[^`]*`|\]\([^)]*\)|https?://\S+|“[^”]*”|^ *>.*?$", "", text, flags=re.M | re.S
    )
    return WORD.findall(" ".join(text.split()))


def prose_of(path: Path) -> list[tuple[int, str]]:
    """List a file's comments and its strings of more than one word, of a test its docstrings, each
    with its line.
    """
    texts: list[tuple[int, str]] = []
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            texts.append((token.start[0], token.string))
    nodes = list(ast.walk(ast.parse(source)))
    in_f_strings = {
        id(value) for node in nodes if isinstance(node, ast.JoinedStr) for value in node.values
    }
    # other strings of a test are its data, and messages of other packages
    if path.parent == Path(__file__).parent:
        nodes = [node.value for node in nodes if isinstance(node, ast.Expr)]
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "`x`" for v in node.values]
            texts.append((node.lineno, "".join(map(str, parts))))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in in_f_strings
        ):
            texts.append((node.lineno, node.value))
    return [(line, text) for line, text in texts if " " in text.strip() and text not in NAMES]


def test_code_is_documented_in_plain_words():
    texts = [(path, line, text) for path in PLAIN for line, text in prose_of(path)]
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {word!r}"
        for path, line, text in texts
        for word in refused_words(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_pages_use_plain_words():
    wrong = [
        f"{path.relative_to(ROOT)}: {word!r}"
        for path in PAGES
        for word in refused_words(path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def sections(docstring: str) -> dict[str, str]:
    """Split a Google-style docstring into its sections, by title."""
    parts = re.split(r"^(Args|Returns|Raises|Attributes|Source):\s*", docstring, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def missing_sections(function: ast.FunctionDef) -> list[str]:
    """List what a public function's docstring lacks: Args in order, Returns, Raises, a first line
    of one clause.
    """
    docstring = ast.get_docstring(function) or ""
    own, wrong = sections(docstring), []
    arguments = [
        *function.args.posonlyargs,
        *function.args.args,
        function.args.vararg,
        *function.args.kwonlyargs,
    ]
    arguments = [a.arg for a in (*arguments, function.args.kwarg) if a is not None]
    named = re.findall(r"^    \*{0,2}(\w+):", "    " + own.get("Args", "").lstrip(), re.M)
    if named != arguments:
        wrong.append(f"Args are {named}, the arguments {arguments}")
    gives = function.returns is not None and ast.unparse(function.returns) not in (
        "None",
        "NoReturn",
    )
    if gives and "Returns" not in own:
        wrong.append("no Returns")
    raised = [
        node
        for statement in function.body
        for node in own_nodes(statement)
        if isinstance(node, ast.Raise)
    ]
    if any(node.exc is not None for node in raised) and "Raises" not in own:
        wrong.append("no Raises")
    if not docstring.partition("\n\n")[0].endswith("."):
        wrong.append("the first paragraph is no sentence")
    return wrong


def own_nodes(node: ast.AST):
    """Walk a node's statements, without the statements of functions defined in it."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from own_nodes(child)


def test_public_functions_document_arguments_results_and_errors():
    wrong = [
        f"{path.relative_to(ROOT)}: {function.name}: {lack}"
        for path in DOCUMENTED
        for function in ast.parse(path.read_text()).body
        if isinstance(function, ast.FunctionDef) and function.name[0] != "_"
        for lack in missing_sections(function)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_refused_word_and_a_missing_section_are_found():
    assert refused_words("The world tells `kept`.") == ["world", "tells"]
    (function,) = ast.parse('def f(a, b) -> int:\n    """Add."""\n    raise ValueError').body
    assert len(missing_sections(function)) == 3
