"""A data set as a source gives it: items with subjects, where they live, and what is publicly known of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wholegrain.data.subjects import SubjectData


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """All items before they are split into silos.

    `silos` names each item's silo, or is None where a partitioner decides. `items_per_subject` is the public bound K
    that the source itself vouches for (by its design, never by looking), if it does.
    """

    name: str
    data: SubjectData
    classes: int
    silos: NDArray[np.str_] | None = None
    items_per_subject: int | None = None

    @property
    def features(self) -> int:
        """Number of values in one input."""
        return int(np.prod(self.data.inputs.shape[1:]))
