"""Layers that no engine can be right about are refused before there is one."""

import pytest
from torch import nn

from wholegrain.errors import ModelError
from wholegrain.models.model_catalog import check_model


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.SyncBatchNorm(4), nn.InstanceNorm1d(4, track_running_stats=True)]
)
def test_layers_that_mix_items(layer: nn.Module) -> None:
    with pytest.raises(ModelError, match="mixes the items of a batch"):
        check_model(nn.Sequential(nn.Linear(4, 4), layer))


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(4, 4, num_layers=2, dropout=0.1),
        nn.GRU(4, 4, num_layers=2, dropout=0.1),
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.TransformerEncoderLayer(4, 2, 4, dropout=0.1),
        nn.RReLU(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_draw_random_numbers(layer: nn.Module) -> None:
    with pytest.raises(ModelError, match="draws random numbers"):
        check_model(nn.Sequential(nn.Linear(4, 4), layer))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.1),
        nn.LSTM(4, 4, num_layers=2),
        nn.GRU(4, 4, num_layers=2),
        nn.MultiheadAttention(4, 2),
        nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_the_same_layers_without_are_accepted(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer)
    assert check_model(model) is model
