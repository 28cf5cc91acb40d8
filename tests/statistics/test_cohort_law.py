"""Cohorts are uniform, independent between rounds, and a pure function of seed and round."""

from collections import Counter
from itertools import combinations, pairwise

import numpy as np
from scipy import stats

from wholegrain.policies.horizon import Horizon

RARE = 1e-7
SILOS = ("a", "b", "c", "d", "e")


def horizon(seed: int = 0) -> Horizon:
    return Horizon(silos=SILOS, rounds=6000, steps=1, cohort_size=2, seed=seed)


def test_every_cohort_is_as_likely_as_any_other() -> None:
    seen = Counter(horizon().cohort(number) for number in range(6000))
    assert set(seen) == set(combinations(SILOS, 2))
    assert stats.chisquare(list(seen.values())).pvalue > RARE


def test_a_rounds_cohort_tells_nothing_of_the_next() -> None:
    cohorts = [horizon().cohort(number) for number in range(6000)]
    pairs = list(combinations(SILOS, 2))
    table = np.zeros((10, 10))
    for before, after in pairwise(cohorts):
        table[pairs.index(before), pairs.index(after)] += 1
    assert stats.chi2_contingency(table).pvalue > RARE


def test_a_cohort_depends_on_seed_and_round_only() -> None:
    forwards = [horizon().cohort(number) for number in range(50)]
    backwards = [horizon().cohort(number) for number in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert forwards == [Horizon(silos=SILOS, rounds=50, steps=9, cohort_size=2).cohort(number) for number in range(50)]
    assert forwards != [horizon(seed=1).cohort(number) for number in range(50)]
