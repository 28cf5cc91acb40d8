"""A data set as a source gives it: items with subjects, where they live, and what is publicly known of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wholegrain.data.subjects import SubjectData
from wholegrain.errors import DataError


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """All items before they are split into silos.

    `silos` names each item's silo, or is None where a partitioner decides. `items_per_subject` is the public bound K
    that the source itself vouches for (by its design, never by looking), if it does. `test` is a part that is only ever
    scored, where the source has a fixed one; its subject codes need not be comparable with those of `data`. `notes` are
    sentences on how the source was read; they may tell of raw data and are not private.
    """

    name: str
    data: SubjectData
    classes: int
    silos: NDArray[np.str_] | None = None
    items_per_subject: int | None = None
    test: SubjectData | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.test is None:
            return
        ours, theirs = self.data.inputs, self.test.inputs
        if ours.dtype != theirs.dtype or ours.shape[1:] != theirs.shape[1:]:
            raise DataError(
                f"The test part of '{self.name}' has inputs of {theirs.dtype} {list(theirs.shape[1:])} and the rest has"
                f" {ours.dtype} {list(ours.shape[1:])}; a model takes one kind."
            )

    @property
    def features(self) -> int:
        """Number of values in one input."""
        return int(np.prod(self.data.inputs.shape[1:]))
