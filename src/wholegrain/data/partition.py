"""Which silo holds which item, and which items are held out.

Guarantee: where an item goes depends on the coins' key, on its subject and on its rank among that subject's items. So
parts and silos of neighbouring data are neighbouring: a subject that leaves takes its own items along, and no others
move.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain._random import Purpose
from wholegrain.data.subject_coins import Coins
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import DataError, SpecError

Labels = NDArray[np.str_]

MOST_SILOS = 100_000


def uniform(data: SubjectData, silos: int, coins: Coins) -> Labels:
    """Each item goes to a silo drawn uniformly, independently of everything else [Marathe, §5.1]."""
    names = silo_names(silos)
    drawn = coins.of(Purpose.PARTITION, "uniform").uniforms(data.subjects, data.ranks)
    return names[_slots(drawn, silos)]


def power(data: SubjectData, silos: int, alpha: float, coins: Coins) -> Labels:
    """Each item draws x with density αx^{α−1} and goes to slot ⌊silos·x⌋ of its subject's own order of silos.

    The order is a random permutation for each subject: silos stay alike in size while each subject's items gather in
    few of them, the more so the larger α > 1. The last silo of the order gets a share 1 − (1 − 1/silos)^α of them.

    [Marathe, §5.2] does not say how slots are assigned. On FEMNIST's geometry this reading gives the figures that are
    printed there: the largest group in a batch of 512 grows from 3 at α = 2 to 6 at α = 16 (benchmarks/group_sizes.py).
    """
    names = silo_names(silos)
    _check.positive("alpha", alpha)
    people = data.subjects[data.index.order[data.index.starts]]
    orders = coins.of(Purpose.PARTITION, "power", "orders").orders(people, silos)
    drawn = coins.of(Purpose.PARTITION, "power", "slots").uniforms(data.subjects, data.ranks)
    chosen: NDArray[np.int64] = orders[data.index.subjects, _slots(drawn ** (1 / alpha), silos)]
    return names[chosen]


def split(
    data: SubjectData, labels: Labels, kept: NDArray[np.int64] | None = None, also: Sequence[str] = ()
) -> Mapping[str, SubjectData]:
    """The silos by name, in the order of their names; of the items at positions `kept` alone, where they are given.

    Those in `also` are there even if no item is theirs. Items are copied once, into their silo: a data set may fill
    much of the memory.
    """
    if len(labels) != data.items:
        raise DataError(f"{len(labels)} silo names were given for {data.items} items.")
    kept = np.arange(data.items) if kept is None else kept
    names, numbers = np.unique(np.append(labels[kept], np.array(also, np.str_)), return_inverse=True)
    return {str(name): data.take(kept[numbers[: len(kept)] == number]) for number, name in enumerate(names)}


def split_by_subject(
    data: SubjectData, fraction: float, coins: Coins, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of two parts with disjoint subjects; the second holds about `fraction` of the subjects."""
    held_out = coins.of(Purpose.SPLIT, name).below(fraction, data.subjects)
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def split_by_item(
    data: SubjectData, fraction: float, coins: Coins, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of two parts; each item is in the second with probability `fraction`, whosever it is."""
    held_out = coins.of(Purpose.SPLIT, name, "items").below(fraction, data.subjects, data.ranks)
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def silo_names(silos: int) -> Labels:
    """What the silos of a synthetic partition are called: public, for it follows from their number."""
    if _check.count("silos.count", silos) > MOST_SILOS:
        raise SpecError(f"silos.count = {silos} is more than the {MOST_SILOS:,} that a partition can have.")
    width = len(str(silos - 1))
    return np.array([f"silo-{number:0{width}d}" for number in range(silos)])


def _slots(drawn: NDArray[np.float64], silos: int) -> NDArray[np.int64]:
    """From numbers between 0 and 1 to one of so many slots."""
    return np.minimum((drawn * silos).astype(np.int64), silos - 1)
