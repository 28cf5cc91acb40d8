"""Synthetic patients with correlated visits over several clinics; nobody real is in it.

A patient has a hidden frailty and a stable profile; each visit shows the profile with noise, at one of the clinics that
the patient goes to. Visits of one patient are therefore alike: protecting one visit does not protect the patient.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain._random import Purpose, generator
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import SpecError

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
    draws = generator(seed, Purpose.SYNTHETIC, "clinics")
    counts = 1 + draws.binomial(visits - 1, 0.4, patients)
    subjects = np.repeat(np.arange(patients), counts)
    inputs = _visits(draws, subjects, patients, features)
    targets = _outcomes(draws, inputs, subjects, patients)
    places = _places(draws, subjects, patients, clinics, span)
    width = len(str(clinics - 1))
    labels = np.array([f"clinic-{place:0{width}d}" for place in range(clinics)])[places]
    return Dataset(
        name="clinics",
        data=SubjectData(inputs, targets, subjects.astype(np.int64)),
        silos=labels,
        classes=2,
        items_per_subject=visits,
    )


def _visits(draws: np.random.Generator, subjects: NDArray[Any], patients: int, features: int) -> NDArray[Any]:
    profiles = draws.normal(size=(patients, features))
    seen = 0.8 * profiles[subjects] + 0.6 * draws.normal(size=(len(subjects), features))
    visits: NDArray[np.float32] = np.tanh(seen).astype(np.float32)
    return visits


def _outcomes(draws: np.random.Generator, inputs: NDArray[Any], subjects: NDArray[Any], patients: int) -> NDArray[Any]:
    weights = draws.normal(size=inputs.shape[1]) * 3 / np.sqrt(inputs.shape[1])
    frailty = 0.8 * draws.normal(size=patients)
    score = inputs @ weights + frailty[subjects]
    chances = 1 / (1 + np.exp(-2 * score))
    outcomes: NDArray[np.int64] = (draws.random(len(subjects)) < chances).astype(np.int64)
    return outcomes


def _places(draws: np.random.Generator, subjects: NDArray[Any], patients: int, clinics: int, span: int) -> NDArray[Any]:
    """Each patient goes to the first few clinics of an order of their own."""
    orders = draws.permuted(np.tile(np.arange(clinics), (patients, 1)), axis=1)
    reach = 1 + draws.binomial(span - 1, 0.5, patients)
    slots = (draws.random(len(subjects)) * reach[subjects]).astype(np.int64)
    places: NDArray[np.int64] = orders[subjects, slots]
    return places
