"""Text that is learnt from every position of a window, for benchmarks/public_starts.py.

A window of 80 characters says 80 times what follows what. A speaker's gradient of its last position alone is mostly
chance; that of all positions points much the same way for one speaker as for another. Scores are of the last position,
after a whole window, as for the task `next token`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import NextToken, Outputs, Targets
from wholegrain.errors import DataError
from wholegrain.models.text import LastState


@dataclass(frozen=True)
class EveryToken(NextToken):
    """The token that follows each of so many positions: outputs [item, position · class], targets [item, position].

    Targets are whole numbers in float32, as data keeps numbers that an item has several of.
    """

    positions: int = 1

    kind: ClassVar[str] = "every token"

    @property
    def outputs(self) -> int:
        """Scores of all classes at the first position, then at the second."""
        return self.positions * len(self.classes)

    def require_targets(self, targets: Targets) -> None:
        """Refuse what is no class number, or not one for each position."""
        if targets.shape[1:] != (self.positions,) or not np.isin(targets, np.arange(len(self.classes))).all():
            raise DataError(f"Targets must be class numbers [item, {self.positions}] of {self}.")

    def made_up(self, items: int) -> Targets:
        """Every class in turn, beginning with another in each item."""
        return ((np.arange(items)[:, None] + np.arange(self.positions)) % len(self.classes)).astype(np.float32)

    def constants(self, targets: Targets) -> Outputs:
        """The shares of the classes, the same at each position."""
        return np.tile(super().constants(targets.ravel()), self.positions)

    def in_units(self, values: Any) -> Any:
        """Of outputs or targets, those of the last position."""
        return values[:, -1].long() if values.shape[1] == self.positions else values[:, -len(self.classes) :]

    def loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over items and positions."""
        return cross_entropy(outputs.reshape(-1, len(self.classes)), targets.long().reshape(-1))


class EveryState(nn.Module):
    """What is left of a window after each of its characters, by the embedding and LSTM of another model."""

    def __init__(self, last: LastState) -> None:
        super().__init__()
        self.embedding, self.lstm = last.embedding, last.lstm

    def forward(self, tokens: Tensor) -> Tensor:
        """States [item, position, hidden]."""
        states: Tensor = self.lstm(self.embedding(tokens))[0]
        return states


def score_every(model: nn.Module) -> nn.Sequential:
    """A `whitened_lstm`, with the same parameters, that scores what follows every position [item, position · class]."""
    assert isinstance(model, nn.Sequential)
    first, *rest = model
    assert isinstance(first, LastState)
    return nn.Sequential(EveryState(first), *rest, nn.Flatten(1))


def every_position(dataset: Dataset, without: NDArray[np.int64]) -> Dataset:
    """The same windows, with a target for each position, of everybody but some subjects."""
    data = dataset.data.take(np.flatnonzero(~np.isin(dataset.data.subjects, without)))
    targets = np.concatenate([data.inputs[:, 1:], data.targets[:, None]], 1)
    assert isinstance(dataset.task, NextToken)
    task = EveryToken(dataset.task.classes, data.inputs.shape[1])
    return Dataset(name=dataset.name, data=SubjectData(data.inputs, targets, data.subjects), task=task)


def accuracy(model: nn.Module, task: EveryToken, data: SubjectData, most: int = 512) -> float:
    """How often a model of every position is right at the last one, on windows with the token that follows."""
    parts = zip(torch.from_numpy(data.inputs).split(most), torch.from_numpy(data.targets).split(most), strict=True)
    with torch.no_grad():
        right = [(task.in_units(model(inputs.long())).argmax(1) == targets).sum() for inputs, targets in parts]
    return float(torch.stack(right).sum()) / data.items
