"""Synthetic speakers of made-up words, for what needs text by speaker where no play is at hand; nobody real is in it.

Words are syllables put together by the seed, and some are far more frequent than others, as in every language. A
speaker has a taste of their own for some of them, so that items of one speaker are alike. How much speakers say differs
widely, as in plays. Windows are cut as in `plays`. What a speaker says depends on the seed and the speaker's number
alone, not on how many speakers there are.
"""

import numpy as np

from wholegrain import _check
from wholegrain._random import Purpose, generator
from wholegrain.data.characters import VOCABULARY, tokens
from wholegrain.data.dataset import Dataset
from wholegrain.data.plays import join_speakers, windows
from wholegrain.data.tasks import NextToken

SYLLABLES = [consonant + vowel for consonant in "bdfghklmnprstvw" for vowel in "aeiou"]
WORDS = 200
SPREAD = 1.0
"""Of the logarithm of how much a speaker says: some say twenty times as much as others."""
TASTE = 1.0
"""Of the logarithm of how much more often than others a speaker uses a word."""


def babble(*, speakers: int = 660, characters: int = 500, window: int = 80, stride: int = 1, seed: int = 0) -> Dataset:
    """Windows of tokens from `speakers` who say `characters` more than a window each, by their median."""
    for name, value in (("speakers", speakers), ("characters", characters), ("window", window), ("stride", stride)):
        _check.count(f"data.options.{name}", value)
    words = _words(seed)
    parts = []
    for speaker in range(speakers):
        draws = generator(seed, Purpose.SYNTHETIC, "babble", speaker)
        length = window + 1 + int(characters * np.exp(draws.normal(0.0, SPREAD)))
        numbers, _ = tokens(_speech(words, length, draws))
        parts.append(windows(numbers, window, stride))
    return Dataset(name="babble", data=join_speakers(parts, np.arange(speakers)), task=NextToken(tuple(VOCABULARY)))


def _words(seed: int) -> list[str]:
    """The language: words of one to three syllables, the frequent ones first."""
    draws = generator(seed, Purpose.SYNTHETIC, "babble", "words")
    lengths = draws.integers(1, 4, size=WORDS)
    return ["".join(SYLLABLES[number] for number in draws.integers(len(SYLLABLES), size=size)) for size in lengths]


def _speech(words: list[str], length: int, draws: np.random.Generator) -> str:
    """`length` characters in this speaker's taste."""
    weights = np.exp(draws.normal(0.0, TASTE, len(words))) / np.arange(1, len(words) + 1)
    chosen = draws.choice(len(words), size=length // 2 + 1, p=weights / weights.sum())  # each takes 3 or more
    return " ".join(words[number] for number in chosen)[:length]
