"""How a batch is drawn. Each law is exact, because the accountant prices exactly this law.

A sampler holds public facts only; the data's index and what is drawn from are call arguments. A draw never fails: what
cannot be had of a small silo is done without.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.data.draws import Draws, as_draws
from wholegrain.data.subjects import SubjectIndex, rank_within

Source = Draws | np.random.Generator


class BatchDraws(Draws, Protocol):
    """Draws that can make whole batches of items or subjects that are each in with one probability."""

    def draw_batch(
        self, index: SubjectIndex, rate: float, by_subject: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """The items and groups of a batch, or None where they are to be drawn as from any other draws."""
        ...


@dataclass(eq=False)  # not frozen: one is made for each step, and freezing triples its cost
class Batch:
    """Positions of the drawn items, and for each the number of its subject within the batch, from 0.

    Private: all of it, sizes included.
    """

    items: NDArray[np.int64]  # [item]
    groups: NDArray[np.int64]  # [item]

    @cached_property
    def group_sizes(self) -> NDArray[np.int64]:
        """Items of each subject in the batch."""
        return np.bincount(self.groups)

    @property
    def subjects(self) -> int:
        """Distinct subjects in the batch."""
        return len(self.group_sizes)

    @property
    def largest_group(self) -> int:
        """Items of the subject with most items in the batch [Marathe, Alg. 2: LrgGrpCnt]; 0 if empty."""
        return int(self.group_sizes.max(initial=0))


@dataclass(frozen=True)
class PoissonItems:
    """Each item with probability `rate`, independently; of one subject at most `most_per_subject` are kept."""

    rate: float
    most_per_subject: int | None = None

    def __post_init__(self) -> None:
        _check.rate("rate", self.rate)
        if self.most_per_subject is not None:
            _check.count("group_cap", self.most_per_subject)

    def draw(self, index: SubjectIndex, draws: Source) -> Batch:
        """A batch; it may be empty.

        Guarantee: which items of one subject are drawn depends on no other subject.
        """
        return self.draw_whole(index, draws) or _batch(self.draw_items(index, as_draws(draws)), index)

    def draw_whole(self, index: SubjectIndex, draws: Source) -> Batch | None:
        """The batch, where these draws make whole ones."""
        return _whole_batch(draws, index, self.rate, False) if self.most_per_subject is None else None

    def draw_items(self, index: SubjectIndex, draws: Draws) -> NDArray[np.int64]:
        """The items of a batch, in any order."""
        items = draws.subset(index.items, self.rate, shuffled=True)
        if self.most_per_subject is not None:
            items = items[rank_within(index.subjects[items]) < self.most_per_subject]
        return items


@dataclass(frozen=True)
class PoissonSubjects:
    """Each subject with probability `rate`, independently; then at most `items` of its items, drawn uniformly."""

    rate: float
    items: int | None = None

    def __post_init__(self) -> None:
        _check.rate("rate", self.rate)
        if self.items is not None:
            _check.count("items_per_step", self.items)

    def draw(self, index: SubjectIndex, draws: Source) -> Batch:
        """A batch; it may be empty.

        Guarantee: whether a subject is drawn, and with which items, depends on no other subject.
        """
        return self.draw_whole(index, draws) or _batch(self.draw_items(index, as_draws(draws)), index)

    def draw_whole(self, index: SubjectIndex, draws: Source) -> Batch | None:
        """The batch, where these draws make whole ones."""
        return _whole_batch(draws, index, self.rate, True) if self.items is None else None

    def draw_items(self, index: SubjectIndex, draws: Draws) -> NDArray[np.int64]:
        """The items of a batch, in any order."""
        items = _select_items(draws.subset(len(index.counts), self.rate, shuffled=False), index)
        if self.items is not None and len(items):
            items = draws.shuffle(items)
            items = items[rank_within(index.subjects[items]) < self.items]
        return items


@dataclass(frozen=True)
class FixedItems:
    """Exactly `size` items, without replacement: as the paper prints it, and not what Poisson accounting prices.

    A silo that has fewer gives all of them.
    """

    size: int

    def __post_init__(self) -> None:
        _check.count("batch_size", self.size)

    def draw(self, index: SubjectIndex, draws: Source) -> Batch:
        """A batch of `size` items, or of all where there are fewer: who is missing must not show by a failure."""
        return _batch(self.draw_items(index, as_draws(draws)), index)

    def draw_whole(self, index: SubjectIndex, draws: Source) -> Batch | None:
        """No draws make whole ones."""
        return None

    def draw_items(self, index: SubjectIndex, draws: Draws) -> NDArray[np.int64]:
        """The items of a batch, in any order."""
        return draws.choose(index.items, min(self.size, index.items))


Sampling = PoissonItems | PoissonSubjects | FixedItems
OURS = (PoissonItems, PoissonSubjects, FixedItems)


def draw_batches(sampling: Sampling, index: SubjectIndex, draws: Source, count: int) -> list[Batch]:
    """The next `count` batches: those that as many calls of `draw` would give.

    Together they take a fraction of the time: all of them are put in order at once, and small silos spend more on
    drawing than on gradients otherwise.
    """
    # A sampling of one's own may only have `draw`.
    if count == 1 or type(sampling) not in OURS:
        return [sampling.draw(index, draws) for _ in range(count)]
    if (first := sampling.draw_whole(index, draws)) is not None:
        return [first, *(sampling.draw(index, draws) for _ in range(count - 1))]
    source = as_draws(draws)
    return _batches([sampling.draw_items(index, source) for _ in range(count)], index)


def _whole_batch(draws: Source, index: SubjectIndex, rate: float, by_subject: bool) -> Batch | None:
    """What draws make that can make whole batches."""
    if not hasattr(draws, "draw_batch"):  # not by `isinstance`: to ask a protocol takes as long as to draw
        return None
    found = cast(BatchDraws, draws).draw_batch(index, rate, by_subject)
    return None if found is None else Batch(*found)


def _select_items(chosen: NDArray[np.int64], index: SubjectIndex) -> NDArray[np.int64]:
    """All items of the chosen subjects."""
    counts = index.counts[chosen]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    positions: NDArray[np.int64] = np.repeat(index.starts[chosen], counts) + within
    return index.order[positions]


def _batch(items: NDArray[np.int64], index: SubjectIndex) -> Batch:
    # By size of the group, then subject, then item: the same set of items always sums in the same order, and groups of
    # one size lie side by side, which is how gradients of subjects are fastest.
    items = np.sort(items)
    subjects = index.subjects[items]
    if (subjects[1:] < subjects[:-1]).any():
        by_subject = np.argsort(subjects, kind="stable")
        items, subjects = items[by_subject], subjects[by_subject]
    counts = _count_neighbours(subjects)
    order = np.argsort(np.repeat(counts, counts), kind="stable")
    return Batch(items[order], np.repeat(np.arange(len(counts)), np.sort(counts)))


def _batches(drawn: Sequence[NDArray[np.int64]], index: SubjectIndex) -> list[Batch]:
    """Each of these sets of items as `_batch` makes it: the same, with the number of the batch before all else."""
    sizes = np.array([len(items) for items in drawn])
    batch = np.repeat(np.arange(len(drawn)), sizes)
    items = np.sort(batch * index.items + np.concatenate(drawn)) - batch * index.items
    owners = batch * len(index.counts) + index.subjects[items]
    if (owners[1:] < owners[:-1]).any():
        by_subject = np.argsort(owners, kind="stable")
        items, owners = items[by_subject], owners[by_subject]
    counts = _count_neighbours(owners)
    firsts = np.cumsum(counts) - counts
    of_group = batch[firsts]  # [group] its batch
    sized = _small(of_group * (counts.max(initial=0) + 1) + counts)
    order = np.argsort(np.repeat(sized, counts), kind="stable")
    by_size = np.argsort(sized, kind="stable")
    groups_before = np.cumsum(np.bincount(of_group, minlength=len(drawn)))
    within = np.arange(len(counts)) - np.concatenate([[0], groups_before[:-1]])[of_group]
    items, groups = items[order], np.repeat(within, counts[by_size])
    ends = np.cumsum(sizes)
    return [Batch(items[start:end], groups[start:end]) for start, end in zip(ends - sizes, ends, strict=True)]


def _small(numbers: NDArray[np.int64]) -> NDArray[Any]:
    """The same in 16 bits where they fit, which are sorted several times faster."""
    return numbers.astype(np.uint16) if numbers.max(initial=0) < 1 << 16 else numbers


def _count_neighbours(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each value comes, of values that are in order. `np.diff` and `np.append` take twice as long.

    >>> _count_neighbours(np.array([3, 3, 5]))
    array([2, 1])
    """
    if not len(values):
        return values
    changes = (values[1:] != values[:-1]).nonzero()[0]
    counts = np.empty(len(changes) + 1, np.int64)
    counts[:-1], counts[-1] = changes, len(values) - 1
    counts[1:] -= changes
    counts[0] += 1
    return counts
