"""Parameters as one vector, and back."""

import pytest
import torch
from torch import Tensor, nn

from wholegrain.clipping.parameters import Layout, call, flatten, load, parameter_places
from wholegrain.clipping.reference import batch_gradient


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


@pytest.mark.parametrize("length", [13, 15])
def test_a_vector_of_the_wrong_length_is_refused(length: int) -> None:
    with pytest.raises(RuntimeError, match=f"{length} values was given for 14 parameters"):
        load(model(), torch.zeros(length))
    with pytest.raises(RuntimeError, match=f"sum exactly to {length}"):
        Layout.of(model()).views(torch.zeros(length, requires_grad=True))


@pytest.mark.parametrize("start", [0, 3, 6])
def test_a_vector_may_be_a_slice_of_a_larger_one(start: int) -> None:
    larger = torch.arange(20.0)
    views = Layout.of(model()).views(larger[start : start + 14])
    assert torch.equal(torch.cat([view.ravel() for view in views.values()]), larger[start : start + 14])
    views["2.weight"].fill_(-1.0)
    expected = torch.arange(20.0)
    expected[start + 4 : start + 12] = -1.0
    assert torch.equal(larger, expected)


def test_views_of_a_view_start_where_it_does() -> None:
    """A row of a matrix, sliced once more: offsets add up."""
    row = torch.arange(60.0).view(3, 20)[2]
    assert Layout.of(model()).views(row[5:19])["2.bias"].tolist() == [57.0, 58.0]


def test_views_are_the_same_whether_or_not_gradients_flow() -> None:
    layout, larger = Layout.of(model()), torch.arange(20.0)
    plain, leaf = layout.views(larger[3:17]), layout.views(larger[3:17].clone().requires_grad_())
    assert plain.keys() == leaf.keys()
    assert all(torch.equal(plain[name], leaf[name]) for name in plain)


def test_a_scalar_parameter_has_its_place() -> None:
    network = nn.Module()
    network.temperature = nn.Parameter(torch.tensor(2.0))
    load(network, torch.tensor([3.0]))
    assert Layout.of(network).size == 1
    assert flatten(network).tolist() == [3.0]


# Calling a model at other parameters than its own.


class Tied(nn.Module):
    """Two layers that read one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, items: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(items)))


def twice() -> nn.Module:
    """One layer in two places."""
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


def partly_frozen_tie() -> nn.Module:
    """A weight that two layers share and nobody trains."""
    network = Tied()
    network.first.weight.requires_grad_(False)
    return network


class Within(nn.Module):
    """One weight under two names of one module."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Parameter(torch.eye(3))
        self.out_of = self.into

    def forward(self, items: Tensor) -> Tensor:
        return torch.tanh(items @ self.into) @ self.out_of


NETWORKS = {"plain": model, "module twice": twice, "tied": Tied, "frozen tie": partly_frozen_tie}
INPUTS = torch.linspace(-1.0, 1.0, 12).view(4, 3)

every_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())


def elsewhere(network: nn.Module) -> Tensor:
    """Parameters that are not the model's own."""
    return torch.linspace(-0.8, 0.9, Layout.of(network).size)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


def test_a_module_that_occurs_twice_is_named_once() -> None:
    network = twice()
    assert list(parameter_places(network)) == ["0.weight", "0.bias"]
    assert Layout.of(network).size == 12


def test_a_shared_parameter_is_named_wherever_it_is_read() -> None:
    network = Tied()
    parameters = parameter_places(network)
    assert set(parameters) == {"first.weight", "first.bias", "second.weight", "second.bias"}
    assert parameters["second.weight"] is parameters["first.weight"]
    assert Layout.of(network).names == ("first.weight", "first.bias", "second.bias")


def test_a_models_own_parameter_is_named_without_a_prefix() -> None:
    network = nn.Linear(3, 2)
    assert list(parameter_places(network)) == ["weight", "bias"]
    assert parameter_places(network)["bias"] is network.bias


@every_network
def test_a_call_gives_what_the_model_gives_with_these_parameters(make) -> None:
    network = make()
    vector, own = elsewhere(network), network(INPUTS).detach()
    outputs = call(network, Layout.of(network), vector, INPUTS)
    load(network, vector)
    assert torch.equal(outputs, network(INPUTS))
    assert not torch.allclose(outputs, own)


@every_network
def test_gradients_run_through_every_place_of_a_parameter(make) -> None:
    network = make()
    vector = elsewhere(network)
    targets = torch.zeros_like(network(INPUTS))
    gradient = batch_gradient(network, loss, Layout.of(network), vector, INPUTS, targets)
    load(network, vector)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(loss(network(INPUTS), targets), trained)
    torch.testing.assert_close(gradient, torch.cat([piece.ravel() for piece in expected]))


@every_network
def test_a_call_leaves_the_model_exactly_as_it_was(make) -> None:
    network = make()
    layout, before = Layout.of(network), dict(network.named_parameters(remove_duplicate=False))
    kept, trains = flatten(network), {name: parameter.requires_grad for name, parameter in before.items()}
    outputs = call(network, layout, elsewhere(network).requires_grad_(), INPUTS)
    batch_gradient(network, loss, layout, elsewhere(network), INPUTS, torch.zeros_like(outputs))
    outputs.sum().backward()
    after = dict(network.named_parameters(remove_duplicate=False))
    assert list(after) == list(before)
    for name, parameter in after.items():
        assert parameter is before[name]
        assert isinstance(parameter, nn.Parameter)
        assert parameter.is_leaf
        assert parameter.requires_grad is trains[name]
        assert parameter.grad is None
    assert torch.equal(flatten(network), kept)


@every_network
def test_a_call_that_fails_leaves_the_model_too(make) -> None:
    network = make()
    before = dict(network.named_parameters(remove_duplicate=False))
    with pytest.raises(RuntimeError, match="shapes"):
        call(network, Layout.of(network), elsewhere(network), torch.zeros(4, 5))
    assert all(parameter is before[name] for name, parameter in network.named_parameters(remove_duplicate=False))


def test_a_parameter_under_two_names_of_one_module_is_replaced_under_both() -> None:
    network = Within()
    vector = elsewhere(network)
    outputs = call(network, Layout.of(network), vector, INPUTS)
    load(network, vector)
    torch.testing.assert_close(outputs, network(INPUTS))
