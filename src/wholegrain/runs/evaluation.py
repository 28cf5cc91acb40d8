"""Scores of a model on items. They read raw data and are not private: never to leave a silo in a deployment."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wholegrain.data.subjects import SubjectData
from wholegrain.gradients.parameters import Layout, call
from wholegrain.gradients.reference import Loss
from wholegrain.models.model_inputs import values

CHUNK = 512


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy over items."""

    loss: float
    accuracy: float


def score(model: nn.Module, loss: Loss, vector: Tensor, data: SubjectData) -> Score:
    """The model's score at parameters `vector`."""
    layout = Layout.of(model)
    inputs, targets = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    total, correct = 0.0, 0
    with torch.no_grad():
        for x, y in zip(torch.split(inputs, CHUNK), torch.split(targets, CHUNK), strict=True):
            outputs = call(model, layout, vector, values(x))
            total += float(loss(outputs, y)) * len(y)
            correct += int((outputs.argmax(1) == y).sum())
    return Score(total / data.items, correct / data.items)
