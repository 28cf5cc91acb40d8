"""Validators that name the field they refuse. Each returns the value, so that it can be used inline."""

import math
from collections.abc import Iterable
from difflib import get_close_matches

from wholegrain.errors import SpecError

LEAST_RATE = 1e-9  # below it, accounting meets the limits of floating point
MOST_COUNT = 10**12
MOST_QUOTED = 300
"""Characters of somebody else's words that are repeated."""


def positive(name: str, value: float) -> float:
    """A finite number above zero."""
    if not (_finite(value) and value > 0):
        raise SpecError(f"{name} must be a number above 0, not {_shown(value)}.")
    return value


def non_negative(name: str, value: float) -> float:
    """A finite number, zero allowed."""
    if not (_finite(value) and value >= 0):
        raise SpecError(f"{name} must be 0 or a number above it, not {_shown(value)}.")
    return value


def rate(name: str, value: float) -> float:
    """A sampling probability that is not zero."""
    if not (_finite(value) and LEAST_RATE <= value <= 1):
        raise SpecError(f"{name} is a sampling probability: above 0 and at most 1, not {_shown(value)}.")
    return value


def fraction(name: str, value: float) -> float:
    """A number strictly between zero and one."""
    if not (_finite(value) and 0 < value < 1):
        raise SpecError(f"{name} must lie strictly between 0 and 1, not {_shown(value)}.")
    return value


def share_below_one(name: str, value: float) -> float:
    """A number from zero up to, but not, one."""
    if not (_finite(value) and 0 <= value < 1):
        raise SpecError(f"{name} must be at least 0 and below 1, not {_shown(value)}.")
    return value


def count(name: str, value: int) -> int:
    """A whole number of at least one."""
    if not (_finite(value) and value == int(value) and 1 <= value <= MOST_COUNT):
        raise SpecError(f"{name} must be a whole number of at least 1, not {_shown(value)}.")
    return int(value)


def flag(name: str, value: bool) -> bool:
    """True or false, and nothing that only counts as one of them."""
    if not isinstance(value, bool):
        raise SpecError(f"{name} must be true or false, not {value!r}.")
    return value


def one_of(name: str, value: str, options: Iterable[str]) -> str:
    """One of the options; otherwise the error suggests the closest."""
    options = list(options)
    if value not in options:
        raise SpecError(f"Unknown {name} '{value}'{suggestion(value, options)}; known: {', '.join(options)}.")
    return value


def known_keys(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Only keys that `what` has; otherwise the error suggests the closest."""
    known = list(known)
    for key in given:
        if key not in known:
            raise SpecError(f"In {what}, unknown key '{key}'{suggestion(key, known)}; known here: {', '.join(known)}.")


def suggestion(word: str, options: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing where no option is close."""
    close = get_close_matches(word, list(options), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def reason(error: BaseException) -> str:
    """What an error of another library says, in one line and without its full stop."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def plain_words(message: str) -> str:
    """A fault as pydantic tells it, without its own vocabulary.

    >>> plain_words("Input should be a valid number, unable to parse string as a number")
    'it should be a valid number'
    """
    said, _, _ = message.removeprefix("Value error, ").partition(", unable to parse")
    if "Sequence" in said:
        return "it should be a list"
    return said.replace("Input should", "it should").replace("a valid list", "a list")


def quoted(words: object, most: int = MOST_QUOTED) -> str:
    r"""Somebody else's words, fit for a log, an error and a terminal: short, on one line, and nothing to be obeyed.

    >>> quoted("x\x1b[2J\n2026-01-01 all is well")
    'x [2J 2026-01-01 all is well'
    """
    text = str(words)
    start = text[: 4 * most]  # of megabytes, the rest need not be looked at
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in start).split())
    return line if len(line) <= most and len(start) == len(text) else f"{line[:most]}…"


def _shown(value: object) -> str:
    """A value as a refusal shows it: text in quotes, since "96" is no number for looking like one."""
    return repr(value) if isinstance(value, str) else str(value)


def _finite(value: object) -> bool:
    """Whether this is a number at all, and a finite one; options of a spec come untyped."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False
