"""How items lie over subjects, silos and batches. Counted from raw data: for its holder's eyes, in no report.

Private: everything that is returned here.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain._random import Purpose, generator
from wholegrain.data.dataset import Dataset
from wholegrain.data.sampling import FixedItems, Sampling
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import DataError
from wholegrain.policies.policy_catalog import find
from wholegrain.runs.datasets import items_bound, load_dataset, make_coins, split_dataset
from wholegrain.runs.declared_sizes import EVERY, round_to_two_digits
from wholegrain.runs.planning import policy_settings
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.training import Silo

BATCHES = 200
"""Drawn in each silo, to see how large a subject's group gets in one."""


def describe(spec: RunSpec) -> dict[str, Any]:
    """Counts of all items that the spec names, none held out; batches are drawn as its policy draws them."""
    dataset = load_dataset(spec)
    silos = split_dataset(dataset, _whole(spec, dataset), make_coins(spec, dataset.name)).silos
    if dataset.silos is None and spec.silos.partition == "column":
        (whole,) = silos.values()
        silos = {"(no silos yet)": whole}
    return {
        "name": dataset.name,
        "private": False,
        "features": dataset.features,
        "classes": dataset.classes,
        "test": _sizes(dataset.test) if dataset.test else None,
        "notes": list(dataset.notes),
        "dropped": _count_dropped(spec, dataset, silos),
        **count(spec, silos).facts(),
        "proposed_sizes": proposed_sizes(spec, dataset),
    }


def _count_dropped(spec: RunSpec, dataset: Dataset, silos: Mapping[str, Silo]) -> dict[str, int] | None:
    """How many items K leaves out of how many; None where no K is declared."""
    bound = items_bound(dataset, spec)
    if bound is None:
        return None
    kept = sum(silo.data.items for silo in silos.values())
    return {"items_per_subject": bound, "items": dataset.data.items - kept, "of": dataset.data.items}


def proposed_sizes(spec: RunSpec, dataset: Dataset) -> dict[str, dict[str, int]]:
    """Lines that an owner might write under `silos.sizes`: what would be trained on, rounded to two digits.

    One line stands for all silos of a synthetic partition, which are alike. Private, until the owner publishes them.
    """
    if dataset.silos is None and spec.silos.partition == "column":
        return {}
    counted = _whole(spec, dataset).model_copy(update={"evaluation": spec.evaluation})
    try:
        silos = split_dataset(dataset, counted, make_coins(spec, dataset.name)).silos
    except DataError:  # nobody is left to train on: then there is nothing to propose, and still much to see
        return {}
    sizes = {name: {"items": silo.data.items, "subjects": silo.data.subject_count} for name, silo in silos.items()}
    if spec.silos.partition != "column":
        mean = {what: sum(size[what] for size in sizes.values()) // len(sizes) for what in ("items", "subjects")}
        sizes = {EVERY: mean}
    return {name: {what: round_to_two_digits(number) for what, number in size.items()} for name, size in sizes.items()}


Histogram = Mapping[int, int]
"""How often each value occurs."""


@dataclass(frozen=True)
class BatchCounts:
    """Batches that were drawn as a policy draws them, and the largest group of one subject in each."""

    policy: str
    drawn_in_each_silo: int
    mean_items: float
    mean_largest_group: float
    largest_group: Histogram


@dataclass(frozen=True)
class DataCounts:
    """How items lie over subjects, silos and batches.

    Private: all of it.
    """

    items: int
    subjects: int
    silos: Mapping[str, Mapping[str, int]]
    items_per_subject: Histogram
    items_per_subject_and_silo: Histogram
    silos_per_subject: Histogram
    batches: BatchCounts | None
    """None where the spec does not say how to draw one."""

    def facts(self) -> dict[str, Any]:
        """The counts as JSON has them, whose keys are text."""
        return asdict(self)

    @staticmethod
    def read(facts: Mapping[str, Any]) -> "DataCounts":
        """The counts that `facts` wrote."""
        content = {field.name: facts[field.name] for field in fields(DataCounts)}
        for key in ("items_per_subject", "items_per_subject_and_silo", "silos_per_subject"):
            content[key] = _read_histogram(facts[key])
        if drawn := facts["batches"]:
            content["batches"] = BatchCounts(**{**drawn, "largest_group": _read_histogram(drawn["largest_group"])})
        return DataCounts(**content)


def _read_histogram(facts: Mapping[str, int]) -> Histogram:
    return {int(value): often for value, often in facts.items()}


def count(spec: RunSpec, silos: Mapping[str, Silo], batches: int = BATCHES) -> DataCounts:
    """How the items of these silos lie over subjects, silos and batches."""
    members = np.concatenate([np.unique(silo.data.subjects) for silo in silos.values()])
    within = np.concatenate([silo.data.index.counts for silo in silos.values()])
    numbers, spans = np.unique(members, return_counts=True)
    totals = np.bincount(np.searchsorted(numbers, members), weights=within).astype(np.int64)
    return DataCounts(
        items=int(within.sum()),
        subjects=len(numbers),
        silos={name: _sizes(silo.data) for name, silo in silos.items()},
        items_per_subject=histogram(totals),
        items_per_subject_and_silo=histogram(within),
        silos_per_subject=histogram(spans),
        batches=_batches(spec, silos, batches),
    )


def histogram(values: NDArray[np.int64]) -> dict[int, int]:
    """How often each value occurs.

    >>> histogram(np.array([3, 1, 3]))
    {1: 1, 3: 2}
    """
    sizes, counts = np.unique(values, return_counts=True)
    return {int(size): int(count) for size, count in zip(sizes, counts, strict=True)}


def _whole(spec: RunSpec, dataset: Dataset) -> RunSpec:
    """The same, so that any data can be seen: nobody held out, surplus dropped, one silo where none are named.

    Sizes are counted, so that it is no release; its coins may still be those of one.
    """
    policy = spec.policy.model_copy(update={"name": "subject_dp"})
    held_out = spec.evaluation.model_copy(update={"test": 0.0, "validation": 0.0})
    silos = spec.silos.model_copy(update={"sizes": {}, "surplus": None})
    if dataset.silos is None and silos.partition == "column":
        silos = silos.model_copy(update={"partition": "uniform", "count": 1})
    privacy = spec.privacy.model_copy(update={"noise": "seeded"})
    return spec.model_copy(update={"evaluation": held_out, "policy": policy, "silos": silos, "privacy": privacy})


def _sizes(data: SubjectData) -> dict[str, int]:
    return {"items": data.items, "subjects": data.subject_count, "largest_subject": data.largest_subject}


def _batches(spec: RunSpec, silos: Mapping[str, Silo], count: int) -> BatchCounts | None:
    """The largest group of each batch that was drawn; None where the spec does not say how to draw one."""
    if spec.policy.rate is None and spec.policy.batch_size is None:
        return None
    largest: list[int] = []
    sizes: list[int] = []
    for name, silo in silos.items():
        draws = generator(spec.seed, Purpose.SAMPLING, "describe", name)
        sampling = _sampling(spec, silo)
        for _ in range(count):
            batch = sampling.draw(silo.data.index, draws)
            largest.append(batch.largest_group)
            sizes.append(len(batch.items))
    return BatchCounts(
        policy=spec.policy.name,
        drawn_in_each_silo=count,
        mean_items=float(np.mean(sizes)),
        mean_largest_group=float(np.mean(largest)),
        largest_group=dict(sorted(Counter(largest).items())),
    )


def _sampling(spec: RunSpec, silo: Silo) -> Sampling:
    settings = policy_settings(spec)
    if spec.policy.as_printed and settings.batch_size is not None:
        return FixedItems(min(settings.batch_size, silo.data.items))
    return find(spec.policy.name).row(settings, silo.facts).sampling
