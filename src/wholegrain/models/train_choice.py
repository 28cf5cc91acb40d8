"""What of a model is trained, as specs, charters and tasks say it: a word, or patterns of parameters' names."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from wholegrain import _check

WAYS = {
    "all": "all of it",
    "head": "its last layer",
    "low_rank": "low-rank updates and its last layer",
    "biases": "its biases and its last layer",
    "prefix": "a prefix of every attention layer and its last layer",
}
"""The words, and what each means."""
MOST_PATTERNS = 1000
LONGEST = 200


def read_choice(given: Any) -> str | tuple[str, ...]:
    """A word of `WAYS`, or patterns such as "blocks.3.*"."""
    if isinstance(given, str):
        if given not in WAYS:
            near = _check.suggestion(given, WAYS)
            raise ValueError(f'it is one of {", ".join(WAYS)}{near}, or a list of patterns, as in ["head.*"]')
        return given
    if not isinstance(given, Sequence) or not given or len(given) > MOST_PATTERNS:
        raise ValueError(f"it is one of {', '.join(WAYS)}, or a list of 1 to {MOST_PATTERNS} patterns")
    for pattern in given:
        if not (isinstance(pattern, str) and 1 <= len(pattern) <= LONGEST and pattern.isprintable()):
            raise ValueError(f"a pattern is text of 1 to {LONGEST} printable characters, and {pattern!r} is not")
    return tuple(given)


TrainChoice = Annotated[
    str | tuple[str, ...],
    PlainValidator(read_choice),
    PlainSerializer(lambda choice: choice if isinstance(choice, str) else list(choice)),
]
"""What is trained: a word, or patterns."""


def describe(choice: str | Sequence[str]) -> str:
    """The choice in words.

    >>> describe("head"), describe(("blocks.1.*", "head.*"))
    ('its last layer', 'what is called blocks.1.* or head.*')
    """
    return WAYS[choice] if isinstance(choice, str) else f"what is called {' or '.join(choice)}"
