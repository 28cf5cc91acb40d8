"""Items and the subjects behind them: the one form in which data enters a silo.

A subject's items are never separated from its code. What is counted here (items per subject, largest subject) is
private unless a function says otherwise.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wholegrain.errors import DataError


@dataclass(frozen=True, eq=False)
class SubjectData:
    """Inputs [item, ...], class numbers [item] and subject codes [item].

    >>> data = SubjectData(np.zeros((3, 2), np.float32), np.array([0, 1, 0]), np.array([7, 7, 9]))
    >>> data.items, data.subject_count, data.largest_subject
    (3, 2, 2)
    """

    inputs: NDArray[np.generic]
    targets: NDArray[np.int64]
    subjects: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.inputs) == len(self.targets) == len(self.subjects):
            raise DataError(
                f"Inputs, targets and subjects differ in length: {len(self.inputs)},"
                f" {len(self.targets)} and {len(self.subjects)}; each item needs all three."
            )
        if np.issubdtype(self.inputs.dtype, np.floating):
            _require_finite(self.inputs)
        if not np.issubdtype(self.subjects.dtype, np.integer):
            raise DataError("Subject codes must be whole numbers; encode ids before building data.")

    @property
    def items(self) -> int:
        """Number of items (public: N_i)."""
        return len(self.targets)

    @cached_property
    def roster(self) -> "Roster":
        """The items of each subject, indexed once."""
        return Roster.of(self.subjects)

    @property
    def subject_count(self) -> int:
        """Number of distinct subjects (public: n_i)."""
        return len(self.roster.counts)

    @property
    def largest_subject(self) -> int:
        """Most items that any one subject has. Private: a policy may use only the declared bound."""
        return int(self.roster.counts.max(initial=0))

    def take(self, index: NDArray[np.int64]) -> "SubjectData":
        """The items at these positions."""
        return SubjectData(self.inputs[index], self.targets[index], self.subjects[index])

    def capped(self, most: int, generator: np.random.Generator) -> "SubjectData":
        """At most `most` items of each subject, the surplus dropped at random.

        Guarantee: which of a subject's items stay depends on no other subject.
        """
        shuffled = generator.permutation(self.items)
        kept = shuffled[rank_within(self.subjects[shuffled]) < most]
        return self.take(np.sort(kept))


@dataclass(frozen=True, eq=False)
class Roster:
    """Which items belong to which subject: `order[starts[a] : starts[a] + counts[a]]` are those of the a-th subject."""

    subjects: NDArray[np.int64]  # [item] subject's number, from 0
    order: NDArray[np.int64]  # [item]
    starts: NDArray[np.int64]  # [subject]
    counts: NDArray[np.int64]  # [subject]

    @staticmethod
    def of(subjects: NDArray[np.int64]) -> "Roster":
        """Index these subject codes."""
        _, numbers, counts = np.unique(subjects, return_inverse=True, return_counts=True)
        order = np.argsort(numbers, kind="stable")
        return Roster(numbers, order, np.cumsum(counts) - counts, counts)

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.order)


def rank_within(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each position, how many earlier positions hold the same group.

    >>> rank_within(np.array([5, 3, 5, 5, 3]))
    array([0, 0, 1, 2, 1])
    """
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.searchsorted(ordered, ordered, side="left")
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - first
    return ranks


def _require_finite(inputs: NDArray[np.generic]) -> None:
    finite = np.isfinite(inputs).all(axis=tuple(range(1, inputs.ndim)))
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise DataError(
            f"{int((~finite).sum())} items have a feature that is NaN or infinite (the first is item"
            f" {row}); fill or remove them, or declare a value for missing ones."
        )
