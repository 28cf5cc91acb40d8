"""Reading on in pieces gives what reading at once gives, and refuses what reading at once refuses."""

import json
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.data.json_stream import BrokenJsonError, JsonStream

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))
OBJECTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)


def members(text: str, chunk: int) -> dict[str, Any]:
    stream = JsonStream(StringIO(text), chunk)
    found = {key: stream.value() for key in stream.members()}
    stream.end()
    return found


@given(OBJECTS, st.integers(1, 200), st.booleans(), st.sampled_from([None, 1]))
def test_pieces_give_the_whole(tree: dict[str, Any], chunk: int, ascii: bool, indent: int | None) -> None:
    assert members(json.dumps(tree, ensure_ascii=ascii, indent=indent), chunk) == tree


@given(OBJECTS, st.integers(1, 200), st.data())
def test_a_text_that_is_cut_ends_too_early(tree: dict[str, Any], chunk: int, data: st.DataObject) -> None:
    text = json.dumps(tree)
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(BrokenJsonError):
        members(text[:cut], chunk)


@given(st.text(max_size=60), st.integers(1, 70))
def test_any_text_is_read_as_json_reads_it_or_refused(text: str, chunk: int) -> None:
    try:
        found = members(text, chunk)
    except BrokenJsonError:
        return
    assert json.loads(text) == found


@pytest.mark.parametrize("number", ["12345.5e-7", "-0.25", "1E+2", "1234567890123", "true", "-Infinity"])
@pytest.mark.parametrize("chunk", range(1, 25))
def test_a_number_is_never_cut_in_two(number: str, chunk: int) -> None:
    assert members(f'{{"a": {number}, "b": 1}}', chunk) == {"a": json.loads(number), "b": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ends too early, after 0 characters"),
        ('{"a": [1, 2', "ends too early, after 11 characters"),
        ('{"a": "xy', "is not JSON at character 7: unterminated string"),
        ("[1]", "is not JSON at character 1: '{' was expected"),
        ('{"a": 1} {', "character 10: nothing more was expected"),
        ('{"a": 1,}', "character 9: a key in double quotes"),
        ("{1: 2}", "character 2: a key in double quotes"),
        ('{"a" 1}', "character 6: ':' was expected"),
        ('{"a": 1 "b": 2}', "character 9: ',' was expected"),
        ('{"a": [1,, 2]}' + " " * 99, "character 10: expecting value"),
        ('{"a": {"b": 1, "b": 2}}', "the same key twice"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "too many digits"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 7, 2**20])
def test_what_is_wrong_is_told_with_its_place(text: str, words: str, chunk: int) -> None:
    if chunk == 1 and len(text) > 1000:
        return
    with pytest.raises(BrokenJsonError, match=words.replace("[", r"\[").replace("(", r"\(")):
        members(text, chunk)


def test_a_text_that_is_broken_early_is_not_read_to_its_end() -> None:
    text = StringIO('{"a": [1, 2}' + " " * 10_000)
    stream = JsonStream(text, chunk=100)
    assert next(stream.members()) == "a"
    with pytest.raises(BrokenJsonError, match="character 12"):
        stream.value()
    assert text.tell() < 1000


def test_one_value_has_a_greatest_length() -> None:
    stream = JsonStream(StringIO('{"a": "' + "x" * 10_000), chunk=100, longest=1000)
    assert next(stream.members()) == "a"
    with pytest.raises(BrokenJsonError, match="more than 1,000 characters"):
        stream.value()


def test_many_numbers_are_each_themselves() -> None:
    numbers = [number / 7 for number in range(10_000)]
    assert members(json.dumps({"a": numbers}), 100) == {"a": numbers}


def test_bytes_that_are_not_text() -> None:
    stream = JsonStream(TextIOWrapper(BytesIO(b'{"a": "\xff"}'), encoding="utf-8"))
    with pytest.raises(BrokenJsonError, match="UTF-8"):
        next(stream.members())
