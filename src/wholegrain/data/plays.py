"""Plays as plain text: a speech is `NAME:` on a line of its own, then its lines, then an empty line.

Subjects are speakers by name: where two plays share a name, they share the subject. A speaker's speeches are joined and
their white space becomes single spaces, as LEAF prepares Shakespeare; an item is `window` characters of that text and
the one that comes next, every `stride` characters. With stride 1 (LEAF's) one character is in up to window + 1 items; a
larger stride makes fewer items of the same text, and so a smaller K for the same protection of a speaker.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.data.characters import VOCABULARY, tokens, unknown_note
from wholegrain.data.data_folder import find_data
from wholegrain.data.dataset import Dataset
from wholegrain.data.every_token import following, text_task
from wholegrain.data.leaf import quote_id
from wholegrain.data.subjects import SubjectData, subject_codes
from wholegrain.errors import DataError

LONGEST = 2**26  # bytes of text; all of Shakespeare is 5.5 million
MOST = 2**31  # bytes of windows

Windows = tuple[NDArray[np.int8], NDArray[np.int64]]
"""Windows [item, position] and the characters that come next [item]."""


def plays(
    *, path: str | Path | None = None, window: int = 80, stride: int = 1, every_position: bool = False
) -> Dataset:
    """Windows of text and their speakers from a text file, or from `tinyshakespeare.txt` in `WHOLEGRAIN_DATA`.

    A speaker who says no more than `window` characters in all has no items. With `every_position`, what follows each
    character of a window is learnt, and not only what follows the last.
    """
    _check.count("data.options.window", window)
    _check.count("data.options.stride", stride)
    _check.flag("data.options.every_position", every_position)
    file = find_data(path, "plays", "tinyshakespeare.txt")
    texts = speeches(_text(file), str(file))
    speakers = [speaker for speaker, text in texts.items() if len(text) > window]
    encoded = [tokens(texts[speaker]) for speaker in speakers]
    parts = [windows(numbers, window, stride) for numbers, _ in encoded]
    if not parts:
        raise DataError(f"Nobody in '{file}' says more than {window} characters; lower data.options.window.")
    require_room(parts, file)
    notes = unknown_note(sum(unknown for _, unknown in encoded))
    if len(texts) > len(parts):
        notes += (f"speakers of no more than {window} characters, left out: {len(texts) - len(parts)}",)
    return Dataset(
        name="plays",
        data=join_speakers(parts, subject_codes(speakers), every_position),
        task=text_task(VOCABULARY, window, every_position),
        notes=notes,
    )


def speeches(text: str, name: str) -> dict[str, str]:
    """What each speaker says in all, in one line, in the order of first appearance."""
    said: dict[str, list[str]] = {}
    for number, block in _blocks(text):
        heading, _, words = block.partition("\n")
        speaker = heading.strip()
        if len(speaker) < 2 or not speaker.endswith(":"):
            raise DataError(
                f"Line {number} of '{name}' starts a speech with {quote_id(speaker)} and not with the speaker's name"
                " and a colon on a line of its own; mend it, or remove the text between the speeches."
            )
        said.setdefault(speaker[:-1].rstrip(), []).extend(words.split())
    return {speaker: " ".join(words) for speaker, words in said.items() if words}


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Runs of lines that are not empty, each with the number of its first line, from 1."""
    lines = text.split("\n")
    for filled, run in groupby(enumerate(lines, 1), key=lambda line: bool(line[1].strip())):
        if filled:
            numbers, block = zip(*run, strict=True)
            yield numbers[0], "\n".join(block)


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > LONGEST:
            raise DataError(f"The file '{file}' is larger than {LONGEST:,} bytes; split it.")
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"The file '{file}' is not text in UTF-8 (byte {error.start}); convert it.") from error
    except OSError as error:
        raise DataError(f"The file '{file}' cannot be read: {_check.reason(error)}.") from error


def windows(numbers: NDArray[np.int8], window: int, stride: int) -> Windows:
    """Windows [item, position] of one speaker's text that have a character after them, and that character [item]."""
    inputs = sliding_window_view(numbers[:-1], window)[::stride]
    return inputs, numbers[window::stride].astype(np.int64)


def require_room(parts: list[Windows], file: Path) -> None:
    """Refuse windows that would fill the memory when they are joined; until then they share their text."""
    size = sum(inputs.size for inputs, _ in parts)
    if size > MOST:
        raise DataError(f"The windows of '{file}' would take {size:,} bytes; raise data.options.stride.")


def join_speakers(parts: list[Windows], codes: NDArray[np.int64], every_position: bool = False) -> SubjectData:
    """The windows of all speakers, each a subject with a code of its own, and what follows their ends or everywhere."""
    inputs, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    counts = [len(targets) for _, targets in parts]
    known = following(inputs, targets) if every_position else targets
    return SubjectData(inputs, known, np.repeat(codes, counts))
