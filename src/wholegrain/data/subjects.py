"""Items and the subjects behind them: the one form in which data enters a silo.

A subject's items are never separated from its code, and a code is a function of the subject's own id alone: not of a
position, and not of who else is there. What is counted here (items, subjects, the largest subject) is private; what a
policy may use is declared.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain.data.labels import plain_id
from wholegrain.data.subject_coins import Coins
from wholegrain.data.tasks import Targets
from wholegrain.errors import DataError


@dataclass(frozen=True, eq=False)
class SubjectData:
    """Inputs [item, ...], targets and subject codes [item].

    Targets are class numbers [item], or numbers [item, output] as a task stores them (`data.tasks`). Codes are ids that
    are whole numbers, or what `subject_codes` makes of others. Whole numbers of any type are taken, and kept as int64.

    >>> data = SubjectData(np.zeros((3, 2), np.float32), np.array([0, 1, 0]), np.array([7, 7, 9]))
    >>> data.items, data.subject_count, data.largest_subject
    (3, 2, 2)
    """

    inputs: NDArray[np.generic]
    targets: Targets
    subjects: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.inputs) == len(self.targets) == len(self.subjects):
            raise DataError(
                f"Inputs, targets and subjects differ in length: {len(self.inputs)},"
                f" {len(self.targets)} and {len(self.subjects)}; each item needs all three."
            )
        if np.issubdtype(self.inputs.dtype, np.floating):
            _require_finite("a feature", self.inputs)
        object.__setattr__(self, "targets", _stored_targets(self.targets))
        object.__setattr__(self, "subjects", _whole("Subject codes", self.subjects, "make them with subject_codes"))

    @property
    def items(self) -> int:
        """Number of items. Private: what is public of a silo's size is what its owner declares."""
        return len(self.targets)

    @cached_property
    def index(self) -> "SubjectIndex":
        """The items of each subject, indexed once."""
        return SubjectIndex.of(self.subjects)

    @property
    def subject_count(self) -> int:
        """Number of distinct subjects. Private, as the number of items is."""
        return len(self.index.counts)

    @property
    def largest_subject(self) -> int:
        """Most items that any one subject has. Private: a policy may use only the declared bound."""
        return int(self.index.counts.max(initial=0))

    def take(self, index: NDArray[np.int64]) -> "SubjectData":
        """The items at these positions."""
        return _without_checks(self.inputs[index], self.targets[index], self.subjects[index])

    def shown_as(self, inputs: NDArray[np.generic]) -> "SubjectData":
        """The same items as a model's frozen part sees them; what is not finite there is the model's doing."""
        return _without_checks(inputs, self.targets, self.subjects)

    @property
    def ranks(self) -> NDArray[np.int64]:
        """[item] how many items of the same subject come before: an item's own number, whoever else is there."""
        return rank_within(self.subjects)

    def cap_subjects(self, most: int, coins: Coins) -> "SubjectData":
        """At most `most` items of each subject, the surplus dropped at random: those with the smallest coins stay.

        Guarantee: which of a subject's items stay depends on the key and on that subject's own items alone. Over keys
        it is a uniform choice: with one item more, one that stays is exchanged at most, in law.
        """
        return self.take(self.within_cap(most, coins))

    def within_cap(self, most: int, coins: Coins) -> NDArray[np.int64]:
        """The positions of the items that `cap_subjects` keeps, in their order."""
        order = np.argsort(coins.words(self.subjects, self.ranks)[:, 0], kind="stable")
        return np.sort(order[rank_within(self.subjects[order]) < most])


def _without_checks(inputs: NDArray[np.generic], targets: Targets, subjects: NDArray[np.int64]) -> SubjectData:
    """Items that were checked before, or that must not be: a refusal would tell whose features are not finite."""
    data = object.__new__(SubjectData)
    for name, values in (("inputs", inputs), ("targets", targets), ("subjects", subjects)):
        object.__setattr__(data, name, values)
    return data


@dataclass(frozen=True, eq=False)
class SubjectIndex:
    """Which items belong to which subject: `order[starts[a] : starts[a] + counts[a]]` are those of the a-th subject."""

    subjects: NDArray[np.int64]  # [item] subject's number, from 0
    order: NDArray[np.int64]  # [item]
    starts: NDArray[np.int64]  # [subject]
    counts: NDArray[np.int64]  # [subject]

    @staticmethod
    def of(subjects: NDArray[np.int64]) -> "SubjectIndex":
        """Index these subject codes."""
        _, numbers, counts = np.unique(subjects, return_inverse=True, return_counts=True)
        order = np.argsort(numbers, kind="stable")
        return SubjectIndex(numbers, order, np.cumsum(counts) - counts, counts)

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.order)


def subject_codes(ids: Iterable[str]) -> NDArray[np.int64]:
    """[id] a code of 63 bits for each id, the same wherever and beside whomever the id is found.

    >>> both, one = subject_codes(["p1", "p2"]), subject_codes(["p2"])
    >>> bool(both[1] == one[0])
    True

    Guarantee: two ids never share a code; where their hashes do (once in 10⁶ tables of three million people), or one is
    the other as a floating-point number is written (7 and 7.0), the table is refused.
    """
    ids = list(ids)
    codes = {id: _code(id) for id in dict.fromkeys(ids)}
    if len(set(codes.values())) < len(codes):
        raise DataError(
            "Two subjects' ids have the same hash, or differ as 7 and 7.0 do, so that they would count as one; rename"
            " one of them."
        )
    return np.array([codes[id] for id in ids], np.int64)


def _code(id: str) -> int:
    return int.from_bytes(blake2b(plain_id(id).encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 1


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


def _whole(what: str, numbers: NDArray[Any], remedy: str) -> NDArray[np.int64]:
    """Whole numbers as int64, refused where they are something else or too large for it."""
    if numbers.dtype.kind not in "biu":
        raise DataError(f"{what} must be whole numbers, and these are {numbers.dtype}; {remedy}.")
    if numbers.dtype == np.uint64 and numbers.max(initial=0) > np.iinfo(np.int64).max:
        raise DataError(f"{what} must be below 2⁶³; {remedy}.")
    return numbers.astype(np.int64, copy=False)


def _stored_targets(targets: NDArray[Any]) -> Targets:
    """Class numbers [item] as int64, numbers [item, output] as float32."""
    if targets.ndim != 2 or targets.dtype.kind not in "biuf":
        remedy = "number the classes from 0, or declare the bounds of a number to predict"
        return _whole("Targets", targets, remedy)
    numbers = targets.astype(np.float32, copy=False)
    _require_finite("a target", numbers)
    return numbers


def _require_finite(what: str, values: NDArray[np.generic]) -> None:
    finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise DataError(
            f"{int((~finite).sum())} items have {what} that is NaN or infinite (the first is item"
            f" {row}); fill or remove them, or declare a value for missing ones."
        )
