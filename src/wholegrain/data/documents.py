"""Plain text, cut into windows of characters: public text for a model to start from, or documents by one author each.

Documents are separated by form feeds (U+000C); each is a subject of its own, known by its text. White space becomes
single spaces; windows and vocabulary are those of `plays`, so that what is learnt here fits there.
"""

import gzip
import zlib
from pathlib import Path

from wholegrain import _check
from wholegrain.data.characters import VOCABULARY, tokens, unknown_note
from wholegrain.data.data_folder import find_data
from wholegrain.data.dataset import Dataset
from wholegrain.data.every_token import text_task
from wholegrain.data.plays import LONGEST, join_speakers, require_room, windows
from wholegrain.data.subjects import subject_codes
from wholegrain.errors import DataError

SEPARATOR = "\f"


def documents(
    *, path: str | Path | None = None, window: int = 80, stride: int = 80, every_position: bool = False
) -> Dataset:
    """Windows of text from a file in UTF-8, plain or with gzip; without `path`, `text.txt` in `WHOLEGRAIN_DATA`.

    A document of no more than `window` characters has no items. With `every_position`, what follows each character of a
    window is learnt, and not only what follows the last.
    """
    _check.count("data.options.window", window)
    _check.count("data.options.stride", stride)
    _check.flag("data.options.every_position", every_position)
    file = find_data(path, "documents", "text.txt")
    texts = [" ".join(document.split()) for document in _read(file).split(SEPARATOR)]
    texts = [text for text in texts if len(text) > window]
    if not texts:
        raise DataError(f"No document in '{file}' has more than {window} characters; lower data.options.window.")
    encoded = [tokens(text) for text in texts]
    parts = [windows(codes, window, stride) for codes, _ in encoded]
    require_room(parts, file)
    return Dataset(
        name="documents",
        data=join_speakers(parts, subject_codes(texts), every_position),
        task=text_task(VOCABULARY, window, every_position),
        notes=unknown_note(sum(unknown for _, unknown in encoded)),
    )


def _read(file: Path) -> str:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read(LONGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"The file '{file}' cannot be read: {_check.reason(error)}.") from error
    if len(content) > LONGEST:
        raise DataError(f"The text of '{file}' is longer than {LONGEST:,} bytes; split it.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"The file '{file}' is not text in UTF-8 (byte {error.start}); convert it.") from error
