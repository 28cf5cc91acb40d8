"""Held-out items by group: by silo, or by a column with categories. Scores of groups are not private."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wholegrain.data.dataset import Dataset
from wholegrain.data.schema import Category
from wholegrain.data.subjects import SubjectData
from wholegrain.data.table import value_names
from wholegrain.errors import SpecError

SILO = "silo"
MISSING = "missing"


def group_items(
    dataset: Dataset,
    parts: Mapping[str, SubjectData],
    silos: Mapping[str, NDArray[np.str_]],
    names: Sequence[str],
) -> dict[str, SubjectData]:
    """Each part's items by each named group: `test/sex = f`. `silos` has the silo of every item, by part."""
    found: dict[str, SubjectData] = {}
    for part, data in parts.items():
        for name in names:
            labels = silos.get(part) if name == SILO else _categories(dataset, data, name)
            if labels is None:
                raise SpecError(
                    f"evaluation.groups: the test part of '{dataset.name}' names no silos; leave out 'silo'."
                )
            for label in np.unique(labels).tolist():
                found[f"{part}/{name} = {label}"] = data.take(np.flatnonzero(labels == label))
    return found


def _categories(dataset: Dataset, data: SubjectData, name: str) -> NDArray[np.str_]:
    """The category of each item in this column, as the model sees it."""
    features = {} if dataset.layout is None else dataset.layout.features
    feature = features.get(name)
    if dataset.layout is None or not isinstance(feature, Category):
        known = [SILO, *(each for each, kind in features.items() if isinstance(kind, Category))]
        raise SpecError(f"evaluation.groups: '{name}' is no column with categories; choose of {', '.join(known)}.")
    first = value_names(dataset.layout).index(f"{name} = {feature.categories[0]}")
    block = data.inputs[:, first : first + len(feature.categories)]
    present = np.ptp(block, axis=1) > 0 if len(feature.categories) > 1 else np.ones(data.items, bool)
    labels: NDArray[np.str_] = np.where(present, np.array(feature.categories)[block.argmax(1)], MISSING)
    return labels
