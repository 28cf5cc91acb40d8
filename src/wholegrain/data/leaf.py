"""Files of the LEAF benchmark: JSON with the items of many subjects, read one subject at a time.

A file holds `{"users": [ids], "num_samples": [counts], "user_data": {id: {"x": [...], "y": [...]}}}`, in any order and
with other keys (`hierarchies`) or without. `num_samples` is not read: a subject has as many items as it has targets.
An id that is in several files is one subject, and its code follows from the id alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.data.cache import Arrays, CacheOrigin, load_cached
from wholegrain.data.characters import unknown_note
from wholegrain.data.dataset import Dataset
from wholegrain.data.json_stream import BrokenJsonError, JsonStream
from wholegrain.data.subjects import SubjectData, subject_codes
from wholegrain.errors import DataError


class MisfitError(ValueError):
    """A record that is not what the data set holds; the message says where in the record, and what to do."""


@dataclass(frozen=True, eq=False)
class Items:
    """One subject's items as arrays, and how many of their characters were unknown."""

    inputs: NDArray[Any]  # [item, ...]
    targets: NDArray[np.int64]  # [item]
    unknown: int = 0


@dataclass(frozen=True, kw_only=True)
class LeafForm:
    """What x and y of a data set are, and how they become items; `version` is raised when that changes."""

    name: str
    version: int
    classes: int
    width: int
    dtype: type[np.generic]
    encode: Callable[[list[Any], list[Any]], Items]


@dataclass(frozen=True)
class LeafFiles:
    """Files to train on, and those of a fixed test part, if there is one."""

    train: tuple[Path, ...]
    test: tuple[Path, ...] = ()


def read(path: Path, form: LeafForm) -> Dataset:
    """The data set in a file, in a folder of files, or in a folder with `train` and `test`."""
    files = find(path)
    origin = CacheOrigin(f"{form.name}-v{form.version}", path, files.train + files.test)
    arrays = load_cached(origin, lambda: _parse(files, form))
    data, test = _part(arrays, "train"), _part(arrays, "test")
    if not data.items:
        raise DataError(f"The LEAF files in '{path}' hold no items to train on; check that it is the right folder.")
    return Dataset(
        name=form.name,
        data=data,
        classes=form.classes,
        test=test if test.items else None,
        notes=unknown_note(int(arrays["unknown"])),
    )


def find(path: Path) -> LeafFiles:
    """The LEAF files at a path, in the order of their names."""
    if path.is_file():
        return LeafFiles((path,))
    if (path / "train").is_dir():
        return LeafFiles(_json_files(path / "train"), _json_files(path / "test") if (path / "test").is_dir() else ())
    inner = path / "all_data"
    return LeafFiles(_json_files(inner if inner.is_dir() and not any(path.glob("*.json")) else path))


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """Every subject's id and record, in the order of the file; the rest of the file is checked on the way."""
    try:
        with path.open(encoding="utf-8-sig") as text:
            yield from _records(JsonStream(text), path)
    except BrokenJsonError as error:
        raise DataError(f"The file '{path}' {error}; fetch or generate it again.") from error
    except OSError as error:
        raise DataError(f"The file '{path}' cannot be read: {_check.reason(error)}.") from error


def quote_id(identifier: str) -> str:
    """An id for a message: in quotes, on one line, and not too long."""
    return repr(identifier if len(identifier) <= 60 else identifier[:57] + "...")


def require_classes(y: list[Any], classes: int) -> NDArray[np.int64]:
    """Targets that are class numbers, or a misfit that names the first that is not."""
    for number, target in enumerate(y):
        if type(target) is not int or not 0 <= target < classes:
            raise MisfitError(f"y[{number}] is {_brief(target)} and should be a class number from 0 to {classes - 1}")
    return np.array(y, np.int64)


def _brief(value: Any) -> str:
    """A value of any size and kind in a few characters."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    text = repr(value) if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."


def _records(stream: JsonStream, path: Path) -> Iterator[tuple[str, Any]]:
    listed: Any = None
    found: set[str] | None = None
    for key in _once(stream.members(), path, "the key"):
        if key == "user_data":
            found = set()
            for subject in _once(stream.members(), path, "the subject"):
                found.add(subject)
                yield subject, _record(stream, subject)
        else:
            value = stream.value()
            listed = value if key == "users" else listed
    stream.end()
    _require_same_subjects(listed, found, path)


def _record(stream: JsonStream, subject: str) -> Any:
    try:
        return stream.value()
    except BrokenJsonError as error:
        raise BrokenJsonError(f"{error} (in the record of subject {quote_id(subject)})") from error


def _once(keys: Iterator[str], path: Path, what: str) -> Iterator[str]:
    seen = set()
    for key in keys:
        if key in seen:
            raise DataError(f"The file '{path}' holds {what} {quote_id(key)} twice; remove or rename one of them.")
        seen.add(key)
        yield key


def _require_same_subjects(listed: Any, found: set[str] | None, path: Path) -> None:
    """Refuse a file whose list of subjects and whose data are not of the same subjects."""
    if found is None or listed is None:
        missing = "user_data" if found is None else "users"
        raise DataError(f"The file '{path}' has no '{missing}', which every LEAF file has; is it one?")
    if not isinstance(listed, list) or not all(isinstance(subject, str) for subject in listed):
        raise DataError(f"In the file '{path}', 'users' should be a list of ids in quotes.")
    if len(set(listed)) < len(listed):
        raise DataError(f"In the file '{path}', 'users' names a subject twice; each may be there once.")
    strays = set(listed) ^ found
    if strays:
        stray = min(strays)
        told = "lists" if stray in listed else "does not list"
        has = "no items" if stray in listed else "items"
        raise DataError(
            f"The file '{path}' {told} the subject {quote_id(stray)} in 'users' and has {has} of it; mend it."
        )


def _parse(files: LeafFiles, form: LeafForm) -> Arrays:
    train, test = _Columns(), _Columns()
    for columns, paths in ((train, files.train), (test, files.test)):
        for path in paths:
            for subject, record in records(path):
                columns.add(_encode_record(path, subject, record, form), subject)
    unknown = np.array(train.unknown + test.unknown)
    codes = subject_codes([*train.ids, *test.ids])  # of both together: two ids with one code are refused
    parts = np.split(codes, [len(train.ids)])
    return {
        **train.concatenate("train", form, parts[0]),
        **test.concatenate("test", form, parts[1]),
        "unknown": unknown,
    }


def _encode_record(path: Path, subject: str, record: Any, form: LeafForm) -> Items:
    """A record's items, or an error that names the file and the subject."""
    try:
        x, y = _pair(record)
        return form.encode(x, y)
    except MisfitError as error:
        raise DataError(
            f"In the file '{path}', subject {quote_id(subject)}: {error}; mend the file, or check that it is"
            f" {form.name}."
        ) from error


def _pair(record: Any) -> tuple[list[Any], list[Any]]:
    if not isinstance(record, dict):
        raise MisfitError("the record should be an object with x and y")
    for key in ("x", "y"):
        if not isinstance(record.get(key), list):
            raise MisfitError(f"{key} is not a list" if key in record else f"{key} is missing")
    if len(record["x"]) != len(record["y"]):
        raise MisfitError(f"x has {len(record['x'])} entries and y {len(record['y'])}")
    return record["x"], record["y"]


@dataclass
class _Columns:
    """Items of subject after subject, joined at the end."""

    inputs: list[NDArray[Any]] = field(default_factory=list)
    targets: list[NDArray[np.int64]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    unknown: int = 0

    def add(self, items: Items, subject: str) -> None:
        self.inputs.append(items.inputs)
        self.targets.append(items.targets)
        self.ids.append(subject)
        self.unknown += items.unknown

    def concatenate(self, part: str, form: LeafForm, codes: NDArray[np.int64]) -> Arrays:
        """Arrays by name. Each subject's inputs are let go once they are copied: there are never two of all."""
        counts = [len(targets) for targets in self.targets]
        inputs = np.empty((sum(counts), form.width), form.dtype)
        at = len(inputs)
        while self.inputs:
            block = self.inputs.pop()
            inputs[at - len(block) : at] = block
            at -= len(block)
        targets = np.concatenate([np.empty(0, np.int64), *self.targets])
        subjects = np.repeat(codes, counts)
        return {f"{part}_inputs": inputs, f"{part}_targets": targets, f"{part}_subjects": subjects}


def _part(arrays: Arrays, part: str) -> SubjectData:
    return SubjectData(arrays[f"{part}_inputs"], arrays[f"{part}_targets"], arrays[f"{part}_subjects"])


def _json_files(folder: Path) -> tuple[Path, ...]:
    files = tuple(sorted(path for path in folder.glob("*.json") if path.is_file()))
    if not files:
        raise DataError(f"The folder '{folder}' holds no .json files; name LEAF's file or folder in data.options.path.")
    return files
