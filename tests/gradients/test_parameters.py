"""Parameters as one vector, and back."""

import pytest
import torch
from torch import nn

from wholegrain.gradients.parameters import Layout, flatten, load


def model() -> nn.Module:
    """Two layers, of which the first one's weights are frozen."""
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    network[0].weight.requires_grad_(False)
    return network


def test_layout_names_the_trainable_parameters_in_order() -> None:
    layout = Layout.of(model())
    assert layout.names == ("0.bias", "2.weight", "2.bias")
    assert layout.shapes == (torch.Size([4]), torch.Size([2, 4]), torch.Size([2]))
    assert layout.size == 4 + 8 + 2


def test_views_share_the_vectors_memory_and_hold_its_values_in_order() -> None:
    vector = torch.arange(14.0)
    views = Layout.of(model()).views(vector)
    assert torch.equal(views["2.weight"], torch.arange(4.0, 12.0).view(2, 4))
    views["0.bias"].zero_()
    assert torch.equal(vector[:4], torch.zeros(4))


def test_load_then_flatten_gives_the_vector_back_and_leaves_the_frozen_alone() -> None:
    network, vector = model(), torch.arange(14.0)
    frozen = network[0].weight.clone()
    load(network, vector)
    assert torch.equal(flatten(network), vector)
    assert torch.equal(network[0].weight, frozen)
    assert torch.equal(network[2].bias, torch.tensor([12.0, 13.0]))


def test_flatten_is_a_copy() -> None:
    network = model()
    flatten(network).fill_(7.0)
    assert not (network[0].bias == 7.0).any()


def test_load_does_not_tie_the_model_to_the_vector() -> None:
    network, vector = model(), torch.arange(14.0)
    load(network, vector)
    vector.zero_()
    assert float(network[2].bias[1].detach()) == 13.0


def test_a_vector_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(RuntimeError, match="split"):
        load(model(), torch.zeros(13))


def test_a_scalar_parameter_has_its_place() -> None:
    network = nn.Module()
    network.temperature = nn.Parameter(torch.tensor(2.0))
    load(network, torch.tensor([3.0]))
    assert Layout.of(network).size == 1
    assert flatten(network).tolist() == [3.0]
