"""How many speakers the plays of Project Gutenberg have by LEAF's rules, and what is printed of LEAF's own files."""

from dataclasses import dataclass
from pathlib import Path

from wholegrain.data.gutenberg_shakespeare import read_texts, speeches

WINDOW = 80
"""Characters that are read before one is predicted, in LEAF and in the paper."""
LEAST = 64
"""A speaker with fewer windows is left out."""


@dataclass(frozen=True)
class SpeakerCounts:
    """Speakers of plays, with one window at every character."""

    speakers: int
    kept: int
    """Those with `LEAST` windows or more."""
    windows_each: float
    """Of those kept, on average."""


LEAF = SpeakerCounts(speakers=1129, kept=660, windows_each=4484)
"""As printed: all speakers by LEAF, those kept and their windows by the paper, §5."""


def count_speakers(place: Path) -> SpeakerCounts:
    """The counts of the texts at this place; a speaker is one person of one play."""
    said = [text for play in read_texts(place).values() for text in speeches(play).values()]
    kept = [count for text in said if (count := len(text) - WINDOW) >= LEAST]
    return SpeakerCounts(len(said), len(kept), sum(kept) / max(1, len(kept)))
