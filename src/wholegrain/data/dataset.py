"""A data set as a source gives it: items with subjects, where they live, and what is publicly known of them."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain._html import html_table
from wholegrain.data.schema import TableLayout
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Classification, Task
from wholegrain.errors import DataError


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Dataset:
    """All items before they are split into silos.

    `task` says what is to be predicted; without it, it is one of `classes` classes, called by their numbers.
    `silos` names each item's silo, or is None where a partitioner decides. `items_per_subject` is the public bound K
    that the source itself vouches for (by its design, never by looking), if it does. `test` is a part that is only ever
    scored, where the source has a fixed one; its subject codes need not be comparable with those of `data`. `notes` are
    sentences on how the source was read; they may tell of raw data and are not private. `layout` says how the columns
    of a table became inputs, so that a model can be used on other rows of such a table.
    """

    name: str
    data: SubjectData
    classes: int = 0
    silos: NDArray[np.str_] | None = None
    items_per_subject: int | None = None
    test: SubjectData | None = None
    notes: tuple[str, ...] = ()
    task: Task = None  # type: ignore[assignment]
    layout: TableLayout | None = None
    spans: NDArray[np.int64] | None = None
    """[item] in how many silos the item's subject is, where the source says so."""
    counted_classes: bool = False
    """Whether the number of classes was read off the data, which only a simulation may do."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", cast("Task | None", self.task) or Classification.of(self.classes))
        object.__setattr__(self, "classes", self.task.class_count)
        if self.test is None:
            return
        ours, theirs = self.data.inputs, self.test.inputs
        if ours.dtype != theirs.dtype or ours.shape[1:] != theirs.shape[1:]:
            raise DataError(
                f"The test part of '{self.name}' has inputs of {theirs.dtype} {list(theirs.shape[1:])} and the rest has"
                f" {ours.dtype} {list(ours.shape[1:])}; a model takes one kind."
            )

    def require_targets(self) -> None:
        """Refuse targets, of the test part too, that are none of the task's."""
        for part in (self.data, self.test):
            if part is not None:
                self.task.require_targets(part.targets)

    def __repr__(self) -> str:
        """What is there, for the eyes of whoever holds the data: counts of raw data are not private."""
        count = len(self.silo_names)
        names = "no silos named" if self.silos is None else f"{count} silo{'s' * (count != 1)}"
        data = self.data
        return (
            f"Dataset '{self.name}': {data.items:,} items of {data.subject_count:,} subjects in {names};"
            f" {self.features} features, {self.task}"
        )

    def _repr_html_(self) -> str:
        """The same for a notebook, silo by silo."""
        rows = [(name, *_counts(self.silo(name).data)) for name in self.silo_names]
        rows.append(("all", *_counts(self.data)))
        note = f"{self.features} features, {self.task}. Counts of raw data: not private."
        return html_table(f"Dataset '{self.name}'", ("silo", "items", "subjects", "most items of one"), rows, note)

    @cached_property
    def silo_names(self) -> tuple[str, ...]:
        """The names of the silos, sorted; none where a partitioner decides."""
        return () if self.silos is None else tuple(str(name) for name in np.unique(self.silos))

    def silo(self, name: str) -> "Dataset":
        """What one silo holds, for a loop of one's own.

        >>> from wholegrain import clinics
        >>> clinics(patients=50, clinics=4, visits=6).silo("clinic-0")
        Dataset 'clinics': 31 items of 16 subjects in 1 silo; 10 features, 2 classes
        """
        if self.silos is None:
            raise DataError(f"The data '{self.name}' names no silos; there is none to choose.")
        _check.one_of("silo", str(name), self.silo_names)
        index = np.flatnonzero(self.silos == str(name))
        spans = None if self.spans is None else self.spans[index]
        return replace(self, data=self.data.take(index), silos=self.silos[index], spans=spans)

    @property
    def features(self) -> int:
        """Number of values in one input."""
        return int(np.prod(self.data.inputs.shape[1:]))


def _counts(data: SubjectData) -> tuple[str, str, str]:
    return f"{data.items:,}", f"{data.subject_count:,}", f"{data.largest_subject:,}"
