"""The task of a text of which every position is learnt from, and not only what follows its end.

A window of 80 characters says 80 times what follows what. A person's gradient of the last position alone is mostly
chance; that of all positions points much the same way for one person as for another, and less of it drowns in noise. An
item is still one window, and a person is protected with all windows: no guarantee changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wholegrain.data.tasks import Columns, NextToken, Outputs, Targets, Task
from wholegrain.errors import DataError, SpecError


@dataclass(frozen=True)
class EveryToken(Task):
    """The token that follows each of so many positions. Targets are token numbers [item, position].

    Outputs are logits [item, position · token]: of all tokens at the first position, then at the second. Metrics and
    predictions are those of the last position, as of `NextToken`; the loss is the mean over all positions. Targets are
    in float32, as all numbers are of which an item has several; it holds every token number below 2²⁴.
    """

    classes: tuple[str, ...]
    positions: int

    kind: ClassVar[str] = "every token"
    loss: ClassVar[str] = "cross_entropy_of_positions"
    headline: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        _ = self._last  # which refuses tokens that are no vocabulary
        if self.positions < 1:
            raise SpecError(f"A text needs one or more positions, not {self.positions}.")

    def __str__(self) -> str:
        return f"{self._last} after each of {self.positions} positions"

    @property
    def _last(self) -> NextToken:
        """The same task of the last position alone."""
        return NextToken(self.classes)

    @property
    def outputs(self) -> int:
        """One logit for each token at each position."""
        return self.positions * len(self.classes)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of the last position."""
        return self._last.metrics

    def require_targets(self, targets: Targets) -> None:
        """Refuse what is no token number, or not one for each position."""
        if targets.dtype != np.float32 or targets.shape[1:] != (self.positions,):
            form = f"{targets.dtype} {list(targets.shape)}"
            raise DataError(f"The task is to predict {self}: targets are float32 [item, {self.positions}], not {form}.")
        if not ((targets >= 0) & (targets < len(self.classes)) & (targets == np.floor(targets))).all():
            raise DataError(f"The targets of {self} are numbers of tokens, and some are not; number the tokens from 0.")

    def made_up(self, items: int) -> Targets:
        """Every token in turn, beginning with another in each item."""
        return ((np.arange(items)[:, None] + np.arange(self.positions)) % len(self.classes)).astype(np.float32)

    def constants(self, targets: Targets) -> Outputs:
        """The shares of tokens at each position: no other constant loses less."""
        return np.concatenate([self._last.constants(column) for column in targets.T], 1)

    def opposite(self, outputs: Outputs) -> Targets:
        """The least likely token of each position."""
        by_position = outputs.reshape(len(outputs), self.positions, len(self.classes))
        return np.asarray(by_position.argmin(2).astype(np.float32))

    def predictions(self, outputs: Outputs) -> Columns:
        """The most likely token after the last position, and the probability of each."""
        return self._last.predictions(self.in_units(outputs))

    def in_units(self, values: Any) -> Any:
        """Of outputs those of the last position; of targets its token numbers, as whole numbers."""
        if values.shape[1] != self.positions:
            return values[:, -len(self.classes) :]
        last = values[:, -1]
        return last.astype(np.int64) if isinstance(last, np.ndarray) else last.long()


def following(inputs: NDArray[Any], targets: NDArray[np.int64]) -> NDArray[np.float32]:
    """What follows each position [item, position] of windows [item, position], and their targets [item] at the end."""
    return np.concatenate([inputs[:, 1:], targets[:, None]], 1, dtype=np.float32)


def text_task(tokens: Sequence[str], window: int, every_position: bool) -> NextToken | EveryToken:
    """What is learnt of windows of text."""
    return EveryToken(tuple(tokens), window) if every_position else NextToken(tuple(tokens))
