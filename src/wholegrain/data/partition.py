"""Which silo holds which item. Each function returns one silo name for every item."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain._random import Purpose, generator
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import DataError

Labels = NDArray[np.str_]


def uniform(data: SubjectData, silos: int, seed: int) -> Labels:
    """Each item goes to a silo drawn uniformly, independently of everything else [Marathe, §5.1]."""
    _require_few(silos, data)
    slots = generator(seed, Purpose.PARTITION, "uniform").integers(silos, size=data.items)
    return _names(silos)[slots]


def power(data: SubjectData, silos: int, alpha: float, seed: int) -> Labels:
    """Each item draws x with density αx^{α−1} and goes to slot ⌊silos·x⌋ of its subject's own order of silos.

    The order is a random permutation for each subject: silos stay alike in size while each subject's items gather in
    few of them, the more so the larger α > 1. The last silo of the order gets a share 1 − (1 − 1/silos)^α of them.

    [Marathe, §5.2] does not say how slots are assigned. On FEMNIST's geometry this reading gives the figures that are
    printed there: the largest group in a batch of 512 grows from 3 at α = 2 to 6 at α = 16 (benchmarks/group_sizes.py).
    """
    _require_few(silos, data)
    _check.positive("alpha", alpha)
    draws = generator(seed, Purpose.PARTITION, "power")
    orders = draws.permuted(np.tile(np.arange(silos), (data.subject_count, 1)), axis=1)
    slots = np.minimum((draws.power(alpha, data.items) * silos).astype(np.int64), silos - 1)
    chosen: NDArray[np.int64] = orders[data.roster.subjects, slots]
    return _names(silos)[chosen]


def split(data: SubjectData, labels: Labels, kept: NDArray[np.int64] | None = None) -> Mapping[str, SubjectData]:
    """The silos by name, in the order of their names; of the items at positions `kept` alone, where they are given.

    Items are copied once, into their silo: a data set may fill much of the memory.
    """
    if len(labels) != data.items:
        raise DataError(f"{len(labels)} silo names were given for {data.items} items.")
    kept = np.arange(data.items) if kept is None else kept
    names, numbers = np.unique(labels[kept], return_inverse=True)
    return {str(name): data.take(kept[numbers == number]) for number, name in enumerate(names)}


def by_subject(data: SubjectData, fraction: float, seed: int, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of two parts with disjoint subjects; the second holds about `fraction` of the subjects."""
    draws = generator(seed, Purpose.SPLIT, name).random(data.subject_count)
    held_out = (draws < fraction)[data.roster.subjects]
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def by_item(data: SubjectData, fraction: float, seed: int, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of two parts; each item is in the second with probability `fraction`, whosever it is.

    Guarantee: where an item goes depends on no other item, so that parts of neighbouring data are neighbouring.
    """
    held_out = generator(seed, Purpose.SPLIT, name, "items").random(data.items) < fraction
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _require_few(silos: int, data: SubjectData) -> None:
    if _check.count("silos.count", silos) > data.items:
        raise DataError(f"silos.count = {silos} is more than the {data.items} items there are.")


def _names(silos: int) -> Labels:
    width = len(str(silos - 1))
    return np.array([f"silo-{number:0{width}d}" for number in range(silos)])
