"""Text as tokens: the 80 characters of the LEAF benchmark, in its order."""

import numpy as np
from numpy.typing import NDArray

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""Token number n stands for the n-th of these."""

SPACE = VOCABULARY.index(" ")


def _table() -> NDArray[np.int8]:
    table = np.full(129, -1, np.int8)  # one place for every ASCII character, and one for all others
    table[[ord(character) for character in VOCABULARY]] = np.arange(len(VOCABULARY))
    return table


_TOKENS = _table()


def tokens(text: str) -> tuple[NDArray[np.int8], int]:
    """One token for each character, and how many characters the vocabulary lacks: they are read as spaces.

    >>> numbers, unknown = tokens("é To!")
    >>> "".join(VOCABULARY[number] for number in numbers), unknown
    ('  To!', 1)
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    found = _TOKENS[np.minimum(codes, 128)]
    missing = found < 0
    found[missing] = SPACE
    return found, int(missing.sum())


def unknown_note(count: int) -> tuple[str, ...]:
    """What a data set says of characters that its vocabulary lacks: nothing where there are none."""
    return (f"characters that the vocabulary lacks, read as spaces: {count:,}",) if count else ()
