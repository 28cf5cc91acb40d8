"""Synthetic patients with correlated visits over several clinics; nobody real is in it.

A patient has a hidden frailty and a stable profile; each visit shows the profile with noise, at one of the clinics that
the patient goes to. Visits of one patient are therefore alike: protecting one visit does not protect the patient.

What is drawn for a patient depends on the seed and the patient's number alone, not on how many patients there are.
"""

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain._random import Purpose, generator
from wholegrain.data.dataset import Dataset
from wholegrain.data.subject_coins import Coins
from wholegrain.data.subjects import SubjectData, rank_within
from wholegrain.errors import SpecError

Numbers = NDArray[np.int64]

MOST_NUMBERS = 10**9  # values in one array, beyond which no machine that we know holds it


def clinics(
    *,
    patients: int = 2000,
    clinics: int = 8,
    span: int = 3,
    visits: int = 12,
    features: int = 10,
    seed: int = 0,
) -> Dataset:
    """`patients` who each visit 1 to `span` of the `clinics`, 1 to `visits` times in all.

    >>> small = clinics(patients=50, clinics=4, visits=6)
    >>> small.data.subject_count, small.items_per_subject, len(set(small.silos))
    (50, 6, 4)
    """
    for name, value in (("patients", patients), ("clinics", clinics), ("features", features)):
        _check.count(name, value)
    _check.count("visits", visits)
    if _check.count("span", span) > clinics:
        raise SpecError(f"span = {span} is more than the {clinics} clinics there are.")
    if patients * max(clinics, visits * features) > MOST_NUMBERS:
        raise SpecError(f"{patients} patients with so many visits, features or clinics do not fit in memory.")
    people = np.arange(patients)
    coins = Coins.seeded(seed)
    counts = 1 + _heads(coins.of(Purpose.SYNTHETIC, "clinics", "visits"), 0.4, visits - 1, people)
    subjects = np.repeat(people, counts)
    inputs = _visits(coins, subjects, features)
    weights = generator(seed, Purpose.SYNTHETIC, "clinics", "weights").normal(size=features) * 3 / np.sqrt(features)
    targets = _outcomes(coins, inputs, subjects, weights)
    places = _places(coins, subjects, people, clinics, span)
    width = len(str(clinics - 1))
    labels = np.array([f"clinic-{place:0{width}d}" for place in range(clinics)])[places]
    return Dataset(
        name="clinics",
        data=SubjectData(inputs, targets, subjects),
        silos=labels,
        classes=2,
        items_per_subject=visits,
    )


def _heads(coins: Coins, chance: float, tosses: int, people: Numbers) -> Numbers:
    """Binomial: how many of so many coins of each person fall on heads."""
    found: Numbers = coins.below(chance, people[:, None], np.arange(tosses)).sum(axis=1)
    return found


def _visits(coins: Coins, subjects: Numbers, features: int) -> NDArray[np.float32]:
    own, seen = (coins.of(Purpose.SYNTHETIC, "clinics", name) for name in ("profiles", "measured"))
    ranks = rank_within(subjects)
    visits = np.empty((len(subjects), features), np.float32)
    for feature in range(features):  # one after the other, to hold few numbers of double precision at once
        profile = own.normals(subjects, feature)
        visits[:, feature] = np.tanh(0.8 * profile + 0.6 * seen.normals(subjects, ranks * features + feature))
    return visits


def _outcomes(
    coins: Coins, inputs: NDArray[np.float32], subjects: Numbers, weights: NDArray[np.float64]
) -> NDArray[np.int64]:
    frailty = 0.8 * coins.of(Purpose.SYNTHETIC, "clinics", "frailty").normals(subjects)
    score = (inputs * weights).sum(axis=1) + frailty  # row by row: a matrix product may round by how many there are
    drawn = coins.of(Purpose.SYNTHETIC, "clinics", "outcomes").uniforms(subjects, rank_within(subjects))
    outcomes: NDArray[np.int64] = (drawn < 1 / (1 + np.exp(-2 * score))).astype(np.int64)
    return outcomes


def _places(coins: Coins, subjects: Numbers, people: Numbers, clinics: int, span: int) -> Numbers:
    """Each patient goes to the first few clinics of an order of their own."""
    orders = coins.of(Purpose.SYNTHETIC, "clinics", "orders").orders(people, clinics, span)
    reach = 1 + _heads(coins.of(Purpose.SYNTHETIC, "clinics", "reach"), 0.5, span - 1, people)
    drawn = coins.of(Purpose.SYNTHETIC, "clinics", "places").uniforms(subjects, rank_within(subjects))
    places: Numbers = orders[subjects, (drawn * reach[subjects]).astype(np.int64)]
    return places
