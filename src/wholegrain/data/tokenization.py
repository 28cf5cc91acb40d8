"""Text into tokens by a declared tokenizer: built in, or of a file that was made from public text.

Guarantee: what becomes of a row's text depends on that text alone. Nothing is counted or learned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.data import characters
from wholegrain.data.text_feature import Text
from wholegrain.errors import DataError, SpecError

Tokens = NDArray[np.signedinteger[Any]]
PADDING = "<padding>"
PADDINGS = ("[PAD]", "<pad>")
"""How tokenizers of others call it."""


class Tokenizer(Protocol):
    """What cuts text into tokens."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """The vocabulary, by number."""
        ...

    @property
    def padding(self) -> int:
        """The number that stands where a text has ended."""
        ...

    def cut(self, text: str, most: int | None) -> Sequence[int]:
        """The text's tokens, as many as there are, or at most so many with what marks its ends."""
        ...


class Characters:
    """The 80 characters of the LEAF benchmark behind the padding; others are read as spaces."""

    tokens, padding = (PADDING, *characters.VOCABULARY), 0

    def cut(self, text: str, most: int | None) -> Sequence[int]:
        """One token for each character."""
        return [int(token) + 1 for token in characters.tokens(text[:most])[0]]


class Bytes:
    """The bytes of UTF-8 behind the padding: any language, and nothing that is unknown."""

    tokens, padding = (PADDING, *(f"0x{number:02x}" for number in range(256))), 0

    def cut(self, text: str, most: int | None) -> Sequence[int]:
        """One token for each byte."""
        return [byte + 1 for byte in text.encode("utf-8", "surrogatepass")[:most]]


@dataclass(frozen=True, eq=False)
class FileTokenizer:
    """A tokenizer of the package tokenizers."""

    inner: Any
    tokens: tuple[str, ...]
    padding: int

    def cut(self, text: str, most: int | None) -> Sequence[int]:
        """By its own rules; with `most`, between the tokens that mark a text's beginning and end."""
        self.inner.no_truncation()
        if most is not None:
            self.inner.enable_truncation(most)
        found: list[int] = self.inner.encode(text, add_special_tokens=most is not None).ids
        return found


def find_tokenizer(text: Text) -> Tokenizer:
    """The tokenizer that a column declares."""
    if text.tokenizer == "characters":
        return Characters()
    if text.tokenizer == "bytes":
        return Bytes()
    return _parse(read_content(text), text.tokenizer)


def read_content(text: Text) -> str:
    """What the tokenizer's file holds, carried along or read now."""
    if text.content is not None:
        return text.content
    try:
        return Path(text.tokenizer).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = _check.suggestion(text.tokenizer, ("characters", "bytes"))
        raise SpecError(
            f"There is no tokenizer '{text.tokenizer}'{near}; name a file tokenizer.json, characters or bytes."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"The tokenizer '{text.tokenizer}' cannot be read: {_check.reason(error)}.") from error


def carry_content(text: Text) -> Text:
    """The column with its tokenizer's file in it, so that it can be used elsewhere."""
    return text if text.tokenizer in ("characters", "bytes") else replace(text, content=read_content(text))


@lru_cache(maxsize=4)
def _parse(content: str, name: str) -> FileTokenizer:
    try:
        import tokenizers
    except ImportError as error:
        raise DataError(
            f"The tokenizer '{name}' needs the package tokenizers: pip install 'wholegrain[text]'."
        ) from error
    try:
        inner = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library has no type of its own for it
        raise SpecError(f"'{name}' is no tokenizer.json: {_check.reason(error)}.") from error
    inner.no_padding()
    numbers: dict[str, int] = inner.get_vocab(with_added_tokens=True)
    names = {number: token for token, number in numbers.items()}
    count = max(names) + 1
    tokens = tuple(names.get(number, f"<{number}>") for number in range(count))
    known = next((numbers[token] for token in PADDINGS if token in numbers), None)
    return FileTokenizer(inner, tokens, known) if known is not None else FileTokenizer(inner, (*tokens, PADDING), count)


def encode_texts(text: Text, values: Sequence[str | None]) -> Tokens:
    """[row, position] the beginning of each text, padded at its end."""
    tokenizer = find_tokenizer(text)
    found = np.full((len(values), text.length), tokenizer.padding, _kind(tokenizer))
    for row, value in enumerate(values):
        tokens = tokenizer.cut(value or "", text.length)[: text.length]
        found[row, : len(tokens)] = tokens
    return found


def encode_ends(text: Text, values: Sequence[str | None]) -> Tokens:
    """[row, position] the end of each text, padded at its beginning: what a next token follows."""
    tokenizer = find_tokenizer(text)
    found = np.full((len(values), text.length), tokenizer.padding, _kind(tokenizer))
    for row, value in enumerate(values):
        tokens = tokenizer.cut(value or "", None)[-text.length :]
        if tokens:
            found[row, -len(tokens) :] = tokens
    return found


def encode_windows(text: Text, values: Sequence[str | None]) -> tuple[Tokens, NDArray[np.int64], NDArray[np.int64]]:
    """Of every `stride`-th token from the second on: what stands before it [item, position], itself, and its row."""
    tokenizer = find_tokenizer(text)
    windows, targets, rows = [], list[int](), list[int]()
    for row, value in enumerate(values):
        cut = tokenizer.cut(value or "", None)
        padded = np.concatenate([np.full(text.length, tokenizer.padding), np.asarray(cut, np.int64)])
        for place in range(1, len(cut), text.stride):
            windows.append(padded[place : place + text.length])
            targets.append(cut[place])
            rows.append(row)
    found = np.array(windows, _kind(tokenizer)).reshape(-1, text.length)
    return found, np.array(targets, np.int64), np.array(rows, np.int64)


def _kind(tokenizer: Tokenizer) -> type[np.signedinteger[Any]]:
    """Wide enough for the vocabulary, which is public; never uint8, which stands for intensities."""
    return np.int16 if len(tokenizer.tokens) < 2**15 else np.int32
