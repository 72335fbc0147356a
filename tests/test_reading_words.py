"""Words and files are read as Hydra 1.3.8 and OmegaConf 2.3.1 read them.

``tests/golden/words.json`` is their result: of words, plus signs, key, and the value or the list of
values of a sweep; of files, the content; null for a refused one. It is not written again.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_fast.settings.files import read_yaml
from jaxrl_fast.settings.schema import ConfigError, parse_word, read_word, written
from jaxrl_fast.settings.words import parts_of

RECORD = json.loads((Path(__file__).parent / "golden" / "words.json").read_text(encoding="utf-8"))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
LETTERS = st.text(st.sampled_from("ab09_-+./:$%*@?|\\ \t,[]{}()='\"#é\n"), max_size=12)


def result_of(word: str) -> list[Any] | None:
    try:
        parts = parts_of(word)
    except ValueError:
        return None
    if parts.several is None:
        return [parts.plus, parts.key, repr(parts.value)]
    values = [repr(parts_of(f"a={text}").value) for text in parts.several]
    return [parts.plus, parts.key, values]


def test_every_word_of_the_record_has_its_value():
    different = {
        word: (was, result_of(word))
        for word, was in RECORD["words"].items()
        if was != result_of(word)
    }
    assert not different
    assert len(RECORD["words"]) > 600


def test_every_file_of_the_record_has_its_content(tmp_path: Path):
    path, different = tmp_path / "mine.yaml", {}
    for text, was in RECORD["files"].items():
        path.write_text(text, encoding="utf-8")
        try:
            result = repr(read_yaml(path))
        except ValueError:
            result = None
        if result != was:
            different[text] = was, result
    assert not different


@pytest.mark.parametrize(
    ("value", "word", "file"),
    [
        ("1e-3", 0.001, 0.001),
        ("1e6", 1e6, 1e6),
        ("1_000", 1000, 1000),
        ("0123", "0123", 83),
        ("1:20", "1:20", 80),
        ("0x1f", "0x1f", 31),
        ("on", "on", True),
        ("off", "off", False),
        ("yes", "yes", True),
        ("no", "no", False),
        ("True", True, True),
        ("null", None, None),
        ("2024-01-01", "2024-01-01", "2024-01-01"),
        ("${a.b}", "${a.b}", "${a.b}"),
        ("linear:3e-4:0", "linear:3e-4:0", "linear:3e-4:0"),
        ("[16,16]", [16, 16], [16, 16]),
        ("{a: 1}", {"a": 1}, {"a": 1}),
        ("{a:1}", {"a": 1}, {"a:1": None}),
    ],
)
def test_where_a_word_and_a_file_differ(tmp_path: Path, value: str, word: object, file: object):
    (tmp_path / "mine.yaml").write_text(f"a: {value}\n")
    found = parts_of(f"a={value}").value, read_yaml(tmp_path / "mine.yaml")["a"]
    assert [(type(one), one) for one in found] == [(type(word), word), (type(file), file)]


@given(TEXTS)
def test_any_text_can_be_quoted(text: str):
    # A backslash is doubled before the quote.
    ended = text.replace("\\", "/")
    escaped = ended.replace("'", "\\'")
    assert parts_of(f"a='{escaped}'").value == ended


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.from_regex(r"[a-z]{4}[a-z0-9_./-]{0,5}", fullmatch=True).filter(
        lambda text: text not in ("true", "null")
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"[b-e]{1,3}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(VALUES)
def test_a_value_that_a_message_writes_can_be_read(value: object):
    assert read_word(f"a={written(value)}") == ("a", value)


@given(TEXTS | LETTERS)
def test_a_word_is_read_or_refused_in_one_line(text: str):
    for word in (text, f"seed={text}"):
        try:
            parts = parse_word(word)
        except ConfigError as error:
            assert str(error).startswith(("cannot read", word))
            continue
        for value in parts.several or ():
            assert parts_of(f"a={value}").several is None


@pytest.mark.parametrize(
    "word",
    [
        "seed=" + "[" * 5000,
        "seed=" + "9" * 5000,
        "seed=range(1,2,0)",
        "seed=range(0,1e9)",
        "seed=range(nan,3)",
        "seed=range(true,3)",
        "seed=range('1',3)",
        "seed=1,range(3)",
        "seed=[range(3)]",
        "seed=shuffle(1,2)",
        "seed=int(3.5)",
    ],
)
def test_a_word_without_a_value_is_answered_with_quotes(word: str):
    with pytest.raises(ConfigError, match=r"^cannot read .*: quote the value"):
        parse_word(word)
