"""A JSON text value by value, for files that are larger than memory likes.

The buffer holds little more than the value at hand. What is not JSON is told from what is merely not read yet by where
the decoder stops: within a few characters of the buffer's end, or inside a string that nothing has closed.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

CHUNK = 2**23
LONGEST = 2**27
"""Characters that one value may have; a file that is broken early is not read into memory to its end."""

MARGIN = 64  # longer than any literal or escape, and than what the decoder leaves of a number that is cut
MOST_FLOATS = 4096
SPACE = re.compile(r"[ \t\n\r]*")


class BrokenJsonError(ValueError):
    """The text is not JSON, or ends too early; the message says where and completes 'The file …'."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise BrokenJsonError("holds an object with the same key twice")
    return members


class _Floats(dict[str, float]):
    """Numbers by how they are written: files of images say the same 256 over and over, and a look-up is quicker."""

    def __missing__(self, written: str) -> float:
        if len(self) >= MOST_FLOATS:
            self.clear()
        self[written] = float(written)
        return self[written]


DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_float=_Floats().__getitem__)


class JsonStream:
    """Reads on through a text; every call starts where the last one stopped.

    >>> from io import StringIO
    >>> stream = JsonStream(StringIO('{"a": [1, 2], "b": null}'))
    >>> [(key, stream.value()) for key in stream.members()]
    [('a', [1, 2]), ('b', None)]
    """

    def __init__(self, text: TextIO, chunk: int = CHUNK, longest: int = LONGEST) -> None:
        self._text, self._chunk, self._longest = text, chunk, longest
        self._buffer, self._at = "", 0
        self._passed = 0  # characters before the buffer
        self._ended = False

    def members(self) -> Iterator[str]:
        """Keys of the object that comes next; take each key's value before asking for the next key."""
        self._take("{")
        if self._peek() == "}":
            self._take("}")
            return
        while True:
            if self._peek() != '"':
                raise self._broken("a key in double quotes was expected")
            key: str = self.value()
            self._take(":")
            yield key
            if self._peek() == "}":
                self._take("}")
                return
            self._take(",")

    def value(self) -> Any:
        """The value that comes next, whole."""
        self._peek()
        while True:
            value, end, cut = self._decode()
            # A number that the buffer cuts in two may read as a shorter one.
            if not cut and (self._ended or end + MARGIN <= len(self._buffer)):
                self._at = end
                return value
            self._fill()

    def end(self) -> None:
        """Refuse anything but white space from here on."""
        if self._peek():
            raise self._broken("nothing more was expected")

    def _decode(self) -> tuple[Any, int, bool]:
        """The value at hand, where it ends, and whether more must be read to know it."""
        try:
            value, end = DECODER.raw_decode(self._buffer, self._at)
        except json.JSONDecodeError as error:
            near_end = error.pos >= len(self._buffer) - MARGIN or error.msg.startswith("Unterminated string")
            if near_end and not self._ended:
                return None, self._at, True
            raise self._broken(error.msg, error.pos) from error
        except RecursionError as error:
            raise self._broken("it is nested too deeply") from error
        except BrokenJsonError:
            raise
        except ValueError as error:  # Python reads no whole number of more than 4,300 digits
            raise self._broken("a number has too many digits") from error
        return value, end, False

    def _peek(self) -> str:
        """The next character that is not white space; nothing at the end."""
        while True:
            self._at = SPACE.match(self._buffer, self._at).end()  # type: ignore[union-attr]  # it always matches
            if self._at < len(self._buffer) or self._ended:
                return self._buffer[self._at : self._at + 1]
            self._fill()

    def _take(self, character: str) -> None:
        if self._peek() != character:
            raise self._broken(f"'{character}' was expected")
        self._at += 1

    def _fill(self) -> None:
        """Forget what was taken and read on: at least as much again, so that long values take few tries."""
        kept = self._buffer[self._at :]
        if len(kept) > self._longest:
            raise self._broken(f"one value has more than {self._longest:,} characters")
        try:
            more = self._text.read(max(self._chunk, len(kept)))
        except UnicodeDecodeError as error:
            raise BrokenJsonError("is not text in UTF-8") from error
        self._passed += self._at
        self._buffer, self._at, self._ended = kept + more, 0, not more

    def _broken(self, what: str, position: int | None = None) -> BrokenJsonError:
        position = self._at if position is None else position
        if self._ended and position >= len(self._buffer.rstrip()):
            return BrokenJsonError(f"ends too early, after {self._passed + len(self._buffer):,} characters")
        return BrokenJsonError(f"is not JSON at character {self._passed + position + 1:,}: {_lower(what)}")


def _lower(what: str) -> str:
    return what[:1].lower() + what[1:].rstrip(": ")
