"""How large a subject's group gets in a batch, by how subjects lie over silos [Marathe, §5.1, §5.2 and Fig. 2].

FEMNIST's geometry: 3,500 subjects of 145 items, 16 silos, batches of 512 items drawn without replacement as the paper
prints it. No images are needed, only whose item is where.

Run: python benchmarks/group_sizes.py
"""

from collections import Counter

import numpy as np

from wholegrain.data import partition
from wholegrain.data.sampling import FixedItems
from wholegrain.data.subjects import Roster, SubjectData

WRITERS, ITEMS, SILOS, BATCH = 3500, 145, 16, 512
BATCHES = 200  # in each silo


def largest_groups(labels: partition.Labels, subjects: np.ndarray, draws: np.random.Generator) -> Counter[int]:
    counts: Counter[int] = Counter()
    for name in np.unique(labels):
        roster = Roster.of(subjects[labels == name])
        counts.update(FixedItems(BATCH).draw(roster, draws).largest_group for _ in range(BATCHES))
    return counts


def main() -> None:
    subjects = np.repeat(np.arange(WRITERS), ITEMS)
    data = SubjectData(np.zeros((len(subjects), 0), np.uint8), subjects, subjects)
    laws = {"uniform": partition.uniform(data, SILOS, seed=0)}
    laws |= {f"α = {alpha}": partition.power(data, SILOS, alpha, seed=0) for alpha in (2, 4, 8, 16)}
    sizes = range(1, 13)
    print(f"{'placement':10}{'mean':>6}   batches whose largest group has so many items")
    print(" " * 19 + "".join(f"{size:6d}" for size in sizes))
    for name, labels in laws.items():
        counts = largest_groups(labels, subjects, np.random.default_rng(0))
        mean = sum(size * count for size, count in counts.items()) / counts.total()
        print(f"{name:10}{mean:6.2f}   " + "".join(f"{counts[size] or '':>6}" for size in sizes))


if __name__ == "__main__":
    main()
