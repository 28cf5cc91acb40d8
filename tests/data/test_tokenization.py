"""Text becomes tokens by a declared tokenizer, row by row."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from wholegrain.data.declarations import read_features, write_feature
from wholegrain.data.frames import from_frame
from wholegrain.data.schema import Number, Target
from wholegrain.data.text_feature import Text
from wholegrain.data.tokenization import encode_ends, encode_texts, encode_windows, find_tokenizer
from wholegrain.errors import SpecError, WholegrainError

FILE = Path(__file__).parents[2] / "examples" / "own_text" / "tokenizer.json"
WORDS = Text(4, str(FILE), public="a list of words")


def written(text: Text, tokens: Any) -> list[str]:
    names = find_tokenizer(text).tokens
    return ["".join("_" if name == "<padding>" else name for name in map(names.__getitem__, row)) for row in tokens]


def test_the_beginning_of_a_text_is_kept_and_padded_at_its_end() -> None:
    text = Text(5)
    assert written(text, encode_texts(text, ["no fever", "pain", "", None])) == ["no fe", "pain_", "_____", "_____"]


def test_the_end_of_a_text_is_what_a_next_token_follows() -> None:
    text = Text(5)
    assert written(text, encode_ends(text, ["no fever", "pain", ""])) == ["fever", "_pain", "_____"]


@pytest.mark.parametrize(("stride", "targets"), [(1, "bcd"), (2, "bd")])
def test_every_token_from_the_second_on_is_a_target(stride: int, targets: str) -> None:
    text = Text(3, stride=stride)
    names = find_tokenizer(text).tokens
    windows, found, rows = encode_windows(text, ["abcd", "x", "", "yz"])
    assert "".join(names[number] for number in found) == targets + "z"
    assert rows.tolist() == [0] * len(targets) + [3]
    assert written(text, windows)[0] == "__a"
    assert written(text, windows)[-2] == "abc"


def test_bytes_know_every_language() -> None:
    text = Text(4, "bytes")
    assert encode_texts(text, ["é!"]).tolist() == [[0xC3 + 1, 0xA9 + 1, ord("!") + 1, 0]]
    assert len(find_tokenizer(text).tokens) == 257


def test_characters_that_are_unknown_are_spaces() -> None:
    text = Text(3)
    assert written(text, encode_texts(text, ["aéb"])) == ["a b"]


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_tokens_do_not_depend_on_other_rows(kind: str) -> None:
    text, texts = Text(6, kind), ["no fever", "", "a much longer note than the others", "é"]
    whole = encode_texts(text, texts)
    assert all(np.array_equal(encode_texts(text, [each])[0], row) for each, row in zip(texts, whole, strict=True))


def test_a_file_says_which_words_there_are() -> None:
    pytest.importorskip("tokenizers")
    tokenizer = find_tokenizer(WORDS)
    found = encode_texts(WORDS, ["Fever and zebra", "no fever for a week"])
    assert [[tokenizer.tokens[number] for number in row] for row in found] == [
        ["fever", "and", "[UNK]", "[PAD]"],
        ["no", "fever", "for", "a"],
    ]
    assert tokenizer.tokens[tokenizer.padding] == "[PAD]"


def test_what_marks_the_ends_of_a_text_survives_the_cut_and_is_no_target() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer.from_file(str(FILE))
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[UNK] $A [PAD]", special_tokens=[("[UNK]", 1), ("[PAD]", 0)]
    )
    text = Text(4, "other.json", public="a list of words", content=inner.to_str())
    first = encode_texts(text, ["no fever for a week"])[0]
    assert (first[0], first[-1]) == (1, 0)
    assert 0 not in encode_windows(text, ["no fever for a week"])[1]


def test_padding_gets_a_number_where_a_file_has_none() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a")).to_str()
    text = Text(2, "bare.json", public="two words", content=bare)
    assert find_tokenizer(text).padding == 2
    assert encode_texts(text, ["b"]).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("feature", "why"),
    [
        ({"length": 0}, "length of a text is a whole number from 1"),
        ({"length": 8, "stride": 0}, "stride of a text"),
        ({"tokenizer": "characters"}, "'length' is missing"),
        ({"length": 8, "tokenizer": "words.json"}, "needs `public`, a sentence"),
        ({"length": 8, "tokenizer": "words.json", "public": " "}, "needs `public`"),
        ({"length": 8, "tokens": 3}, "unknown key 'tokens'"),
    ],
)
def test_a_bad_declaration_is_refused(feature: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        read_features({"note": feature})


@pytest.mark.parametrize("feature", [Text(8), Text(8, "bytes", stride=3, missing=True), WORDS])
def test_a_declaration_is_read_as_it_is_written(feature: Text) -> None:
    assert read_features({"note": write_feature(feature)})["note"] == feature


NOTES = pl.DataFrame({"who": ["ann", "ann", "bob"], "note": ["no fever", None, "pain"], "ill": [0, 1, 1]})
ILL, NEXT = Target("ill", [0, 1]), Target("note", next_token=True)


@pytest.mark.parametrize(
    ("target", "features", "why"),
    [
        (ILL, {"note": Text(8)}, "1 missing value .*missing = true"),
        (ILL, {"note": Text(8, missing=True), "age": Number(0, 1)}, "the only one then"),
        (ILL, {"note": Text(8, "absent.json", public="nothing", missing=True)}, "There is no tokenizer 'absent.json'"),
        (ILL, {"note": Text(8, "byts", public="nothing", missing=True)}, "did you mean 'bytes'"),
        (NEXT, {"ill": Number(0, 1)}, "predicted from that text"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(target: Target, features: dict[str, Any], why: str) -> None:
    with pytest.raises(WholegrainError, match=why):
        from_frame(NOTES, subject="who", target=target, features=features)


def test_next_tokens_keep_their_subjects() -> None:
    data = from_frame(NOTES, subject="who", target=NEXT, features={"note": Text(4, missing=True)})
    assert str(data.task) == "81 tokens"
    assert data.data.inputs.shape == (7 + 3, 4)
    assert sorted(np.unique(data.data.subjects, return_counts=True)[1].tolist()) == [3, 7]
