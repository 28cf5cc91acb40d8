"""Data sets by name, as a spec calls them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wholegrain import _check
from wholegrain.data.clinics import clinics
from wholegrain.data.dataset import Dataset
from wholegrain.data.femnist import femnist
from wholegrain.data.glyphs import glyphs
from wholegrain.data.mnist import mnist_writers
from wholegrain.data.nlswork import nlswork
from wholegrain.data.plays import plays
from wholegrain.data.shakespeare import shakespeare
from wholegrain.data.synthetic_speakers import babble
from wholegrain.errors import SpecError


@dataclass(frozen=True)
class Source:
    """A function that makes a data set, and one line on what it is."""

    load: Callable[..., Dataset]
    summary: str


SOURCES: Mapping[str, Source] = {
    "clinics": Source(clinics, "synthetic patients with correlated visits over several clinics"),
    "glyphs": Source(glyphs, "synthetic writers of 62 characters, 28 × 28 images in FEMNIST's geometry"),
    "nlswork": Source(nlswork, "28,193 records of 4,695 working women in 12 industries, 1968–88"),
    "mnist_writers": Source(mnist_writers, "70,000 digits by 836 writers: MNIST with QMNIST's ids, from files"),
    "femnist": Source(femnist, "digits and letters by writer, from LEAF's JSON files"),
    "shakespeare": Source(shakespeare, "80 characters and the next one by speaker, from LEAF's JSON files"),
    "babble": Source(babble, "synthetic speakers of made-up words, 80 characters and the next one"),
    "plays": Source(plays, "80 characters and the next one by speaker, from plays as text"),
}


def load(name: str, options: Mapping[str, Any]) -> Dataset:
    """The named data set with these options; an option that it does not have is refused by name."""
    source = SOURCES[_check.known("data source", name, SOURCES)]
    allowed = list(inspect.signature(source.load).parameters)
    for option in options:
        if option not in allowed:
            near = _check.suggestion(option, allowed)
            raise SpecError(
                f"The data source '{name}' has no option '{option}'{near}; it has {', '.join(allowed) or 'none'}."
            )
    return source.load(**options)
