"""Two files that differ by one subject, each loaded by the code that loads the run's own: what neighbours are.

Rows are taken out of the raw data (of a table: before it is encoded), then the cap, the hold-out, the partition and the
public sizes are the loading code's business, with the coins that the run would use. Where it is right, one subject's
rows are gone and everything else is where it was. Subjects are real ones, and made-up ones among them with more rows
than they may have.

Private: all of it.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wholegrain._random import Purpose, generator
from wholegrain.audit.canary_inputs import telling_input
from wholegrain.data.column_values import as_text
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData
from wholegrain.data.table import encode
from wholegrain.data.table_files import table_name
from wholegrain.errors import DataError
from wholegrain.policies.policy import SiloFacts
from wholegrain.runs.datasets import read_table, split_dataset
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.training import Silo

Rows = NDArray[np.int64]
"""Numbers of rows: those of the file first, then those of made-up subjects."""

MADE_UP = 12
"""So many made-up subjects: enough for one to be held out and one not, mostly."""
MOST_ROWS = 240
"""Of one made-up subject."""
SURPLUS = 3
"""It has so many times the rows that a silo keeps."""


@dataclass(frozen=True, eq=False)
class File:
    """All rows that a world may have, and how some of them are loaded, as if there were no others."""

    everyone: Dataset
    real: int
    """The first rows, so many, are those of the file as it is."""
    load: Callable[[Rows], Dataset]
    spec: RunSpec

    @property
    def subjects(self) -> NDArray[np.int64]:
        """[row] whose it is."""
        return self.everyone.data.subjects

    def rows_of(self, subject: int) -> Rows:
        """All rows of a subject."""
        return np.flatnonzero(self.subjects == subject)

    def world(self, rows: Rows) -> "World":
        """What the run would make of a file with these rows."""
        return World(self.load(rows), rows, self.spec)


class World:
    """Where the loading code puts each row, and what is public of the silos."""

    def __init__(self, dataset: Dataset, rows: Rows, spec: RunSpec) -> None:
        parts = split_dataset(_number_rows(dataset, rows), spec)
        self.rows, self.silos = rows, parts.silos
        self._held_out = parts.held_out
        self.codes = np.full(int(rows.max(initial=-1)) + 1, -1)
        """[row] its subject's code: groups of a sum are chosen by it, so it may not depend on others, either."""
        self.codes[rows] = dataset.data.subjects
        self._items, self._numbers = dataset.data, np.full(len(self.codes), -1)
        self._numbers[rows] = np.arange(len(rows))

    @property
    def facts(self) -> Mapping[str, SiloFacts]:
        """What is public of each silo."""
        return {name: silo.facts for name, silo in self.silos.items()}

    @cached_property
    def places(self) -> NDArray[np.object_]:
        """[row] the part that it is in, by name: a silo, something that is held out, or nothing."""
        places = np.full(int(self.rows.max(initial=-1)) + 1, "", np.object_)
        for name, part in self._held_out.items():
            places[_own(row_numbers(part))] = f"held out: {name}"
        for name, silo in self.silos.items():
            places[row_numbers(silo.data)] = f"silo: {name}"
        return places

    def differs(self, other: "World", rows: Rows) -> NDArray[np.bool_]:
        """[row] whether the loading code makes another item of it there, bit by bit."""
        found = np.zeros(len(rows), bool)
        for field in ("inputs", "targets"):
            one, two = (getattr(world._items, field)[world._numbers[rows]] for world in (self, other))
            if one.dtype != two.dtype or one.shape != two.shape:
                return np.ones(len(rows), bool)
            found |= (one != two).reshape(len(rows), -1).any(1)
        return found

    def trains_on(self, subject_rows: Rows) -> bool:
        """Whether any of these rows is trained on."""
        return any(np.isin(row_numbers(silo.data), subject_rows).any() for silo in self.silos.values())


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Two worlds that differ by one subject's rows in the file."""

    who: str
    own: Rows
    within: World
    without: World

    def moved_subjects(self, file: File) -> NDArray[np.int64]:
        """Other subjects of whom anything is another item, in another place, or of another code than without this."""
        common = self.without.rows
        elsewhere = self.within.places[common] != self.without.places[common]
        renamed = self.within.codes[common] != self.without.codes[common]
        changed = self.within.differs(self.without, common)
        return np.unique(file.subjects[common[elsewhere | renamed | changed]])

    @cached_property
    def silos(self) -> tuple[str, ...]:
        """Silos that do not train on the same rows in both worlds."""
        names = sorted({*self.within.silos, *self.without.silos})
        return tuple(
            name for name in names if set(_find_rows(self.within, name)) != set(_find_rows(self.without, name))
        )

    def changed_facts(self) -> Iterator[tuple[SiloFacts | None, SiloFacts | None]]:
        """Silos of which something else is public in one world than in the other."""
        one, other = self.within.facts, self.without.facts
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                yield one.get(name), other.get(name)


def build_file(prepared: PreparedRun, dataset: Dataset, seed: int) -> File:
    """The file that a run is trained on, with made-up subjects behind it."""
    spec = prepared.spec
    draws = generator(seed, Purpose.SYNTHETIC, "audit: made-up subjects")
    silos = _homes(prepared, draws)
    if spec.data.table is None:
        everyone = _append_canaries(prepared, dataset, silos, seed)
        return File(everyone, dataset.data.items, lambda rows: take_rows(everyone, rows), spec)
    layout, frame = spec.data.table.layout, read_table(spec.data.table)
    frame = frame.with_columns(as_text(frame[layout.subject]).alias(layout.subject))
    added = [frame[draws.integers(frame.height, size=len(homes)).tolist()] for homes in silos]
    for number, homes in enumerate(silos):
        columns: list[pl.Expr | pl.Series] = [pl.lit(f"made up for an audit {number}").alias(layout.subject)]
        if layout.silo is not None:
            columns.append(pl.Series(layout.silo, homes).cast(frame.schema[layout.silo]))
        added[number] = added[number].with_columns(columns)
    whole, name = pl.concat([frame, *added]), table_name(Path(spec.data.table.path))

    def load(rows: Rows) -> Dataset:
        return encode(whole[rows.tolist()], layout, name)

    return File(load(np.arange(whole.height)), frame.height, load, spec)


def take_rows(dataset: Dataset, rows: Rows) -> Dataset:
    """The data set with these rows alone."""
    silos = None if dataset.silos is None else dataset.silos[rows]
    return replace(dataset, data=dataset.data.take(rows), silos=silos)


def neighbours(file: File, seed: int) -> list[Neighbours]:
    """Neighbours by subjects of different kinds: any, the largest, extreme, in many silos, held out, made up."""
    real = np.arange(file.real)
    base, everyone = file.world(real), file.world(np.arange(len(file.subjects)))
    found = []
    for who, subject in _real(file, base, seed):
        own = file.rows_of(subject)
        with contextlib.suppress(DataError):  # nothing is left: no file that a run could be prepared from
            found.append(Neighbours(who, own, base, file.world(np.setdiff1d(real, own))))
    for who, subject in _made_up(file, everyone):
        own = file.rows_of(subject)
        found.append(Neighbours(who, own, file.world(np.append(real, own)), base))
    return found


def _real(file: File, base: World, seed: int) -> Iterator[tuple[str, int]]:
    """Real subjects, nobody twice."""
    draws = generator(seed, Purpose.SYNTHETIC, "audit: who leaves")
    subjects, counts = np.unique(file.subjects[: file.real], return_counts=True)
    inside = {name: np.unique(file.subjects[row_numbers(silo.data)]) for name, silo in base.silos.items()}
    trained, spans = np.unique(np.concatenate(list(inside.values())), return_counts=True)
    held_out = np.setdiff1d(subjects, trained)
    chosen = {
        int(subjects[counts.argmax()]): "the subject with most rows",
        int(trained[spans.argmax()]): "the subject in most silos",
    }
    chosen.setdefault(_most_extreme(file), "the subject with most extreme values")
    for who, among in (("a subject", trained), ("a subject that is held out", held_out)):
        for subject in draws.choice(among, min(2, len(among)), replace=False):
            chosen.setdefault(int(subject), who)
    yield from ((who, subject) for subject, who in chosen.items())


def _most_extreme(file: File) -> int:
    """Whose row alone has the largest or the smallest value of most features: a scale that was observed hangs on it."""
    inputs = file.everyone.data.inputs[: file.real].reshape(file.real, -1)
    alone = np.zeros(file.real, np.int64)
    for most in (inputs.max(0), inputs.min(0)):
        holds = inputs == most
        alone += (holds & (holds.sum(0) == 1)).sum(1)
    return int(file.subjects[alone.argmax()])


def _made_up(file: File, everyone: World) -> Iterator[tuple[str, int]]:
    """Of the made-up subjects one that is trained on and one that is held out, as far as there are such."""
    subjects = np.unique(file.subjects[file.real :]).tolist()
    for trained, who in ((True, "a made-up subject"), (False, "a made-up subject that is held out")):
        same = [subject for subject in subjects if everyone.trains_on(file.rows_of(subject)) is trained]
        yield from ((who, subject) for subject in same[:1])


def _homes(prepared: PreparedRun, draws: np.random.Generator) -> list[list[str]]:
    """The silo of each row of each made-up subject: as many as it may be in, and more rows in each than it may have.

    Where a partition decides on silos, the names are ignored, and only their number counts.
    """
    silos, plan, names = prepared.spec.silos, prepared.plan, sorted(prepared.silos)
    facts, most = plan.rows[0][1], MOST_ROWS
    if silos.partition != "column" and silos.span is not None:
        most = silos.span  # all of its rows could be in different silos
    elif silos.partition != "column" and not facts.drops_surplus:
        most = facts.items_per_subject or most  # or all in one
    each = (facts.items_per_subject or 1) * (SURPLUS if facts.drops_surplus else 1)
    span = min(plan.span, len(names))
    return [np.repeat(draws.choice(names, span, replace=False), each).tolist()[:most] for _ in range(MADE_UP)]


def _append_canaries(prepared: PreparedRun, dataset: Dataset, silos: list[list[str]], seed: int) -> Dataset:
    """The data set with made-up subjects behind it, whose inputs are such as tell most."""
    data, sizes = dataset.data, [len(homes) for homes in silos]
    portrait = telling_input(prepared, prepared.first, seed)
    nobody = int(data.subjects.min(initial=0)) - 1
    added = SubjectData(
        np.repeat(portrait.stored[None], sum(sizes), axis=0),
        portrait.repeat_target(sum(sizes)),
        np.repeat(nobody - np.arange(len(sizes)), sizes),
    )
    labels = None if dataset.silos is None else np.append(dataset.silos, [name for homes in silos for name in homes])
    joined = (np.concatenate([getattr(each, field) for each in (data, added)]) for field in FIELDS)
    return replace(dataset, data=SubjectData(*joined), silos=labels)


FIELDS = ("inputs", "targets", "subjects")


def _number_rows(dataset: Dataset, rows: Rows) -> Dataset:
    """The data set with the number of each row for its input: where rows go depends on no input."""
    test = dataset.test
    return replace(
        dataset,
        data=replace(dataset.data, inputs=rows[:, None]),
        test=None if test is None else replace(test, inputs=np.full((test.items, 1), -1)),
    )


def row_numbers(data: SubjectData) -> Rows:
    """The rows that are there, of data that holds numbers of rows."""
    return data.inputs[:, 0].astype(np.int64)


def _own(numbers: Rows) -> Rows:
    """Without what a source holds out by itself, which is no part of the file."""
    return numbers[numbers >= 0]


def _find_rows(world: World, name: str) -> list[int]:
    silo: Silo | None = world.silos.get(name)
    return [] if silo is None else row_numbers(silo.data).tolist()
