"""A column of text: how long its items are, and which public tokenizer cuts it into tokens."""

from dataclasses import dataclass, field
from typing import Any

from wholegrain.errors import SpecError

BUILT_IN = ("characters", "bytes")
"""Tokenizers that need no file: 80 characters of English, or the bytes of UTF-8."""
LONGEST = 10**5


@dataclass(frozen=True)
class Text:
    """A column of text, as `length` tokens: what is longer is cut, what is shorter is padded.

    `tokenizer` is one of `BUILT_IN`, or a file `tokenizer.json` (of the package tokenizers), which takes a sentence in
    `public`: on which public text it was trained. One that was learned from the data would tell of it without noise.
    Where the next token is predicted, every `stride`-th token of a text is a target. A text that is absent is empty
    where `missing` allows it.

    >>> Text(64)
    Text(length=64, tokenizer='characters', public=None, stride=1, missing=False)
    """

    length: int
    tokenizer: str = "characters"
    public: str | None = None
    stride: int = 1
    missing: bool = False
    content: str | None = field(default=None, repr=False)
    """What the file holds, where it is carried along: in a model file."""

    def __post_init__(self) -> None:
        for name, most in (("length", LONGEST), ("stride", LONGEST)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise SpecError(f"The {name} of a text is a whole number from 1 to {most}, not {value!r}.")
        if type(self.tokenizer) is not str or not self.tokenizer:
            raise SpecError(f"A tokenizer is {' or '.join(BUILT_IN)} or the path of a file, not {self.tokenizer!r}.")
        if self.tokenizer in BUILT_IN:
            return
        if type(self.public) is not str or not self.public.strip():
            raise SpecError(
                f"The tokenizer '{self.tokenizer}' needs `public`, a sentence that says on which public text it was"
                " trained: one that was learned from the data would tell of people without noise."
            )


def write_text(text: Text, with_content: bool = False) -> dict[str, Any]:
    """A text as a spec keeps it; as a model file does, with what its tokenizer's file holds."""
    facts: dict[str, Any] = {"tokenizer": text.tokenizer, "length": text.length}
    facts |= {} if text.public is None else {"public": text.public}
    facts |= {} if text.stride == 1 else {"stride": text.stride}
    facts |= {"missing": True} if text.missing else {}
    return facts | ({"content": text.content} if with_content and text.content is not None else {})
