"""Gradients summed parameter by parameter, which the trial of a program is held against."""

import pytest
import torch
from torch import Tensor, nn

from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.reference import batch_gradient, summed_gradients


class Offsets(nn.Module):
    """Two parameters with the very same gradient, one whose gradient is a single value spread out, and an idle one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
        self.level, self.idle = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(2))

    def forward(self, items: Tensor) -> Tensor:
        return torch.tanh(items + (self.one + self.other)) * self.level.sum()


def read_twice() -> nn.Module:
    """One layer in two places."""
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


@pytest.mark.parametrize("make", [Offsets, read_twice])
@pytest.mark.parametrize("items", [1, 2, 4])
def test_the_sum_is_that_of_the_items_gradients(make, items: int) -> None:
    network = make()
    layout, vector = Layout.of(network), torch.linspace(-0.8, 0.9, Layout.of(network).size)
    inputs, targets = torch.linspace(-1, 1, 3 * items).view(items, 3), torch.linspace(1, 2, 3 * items).view(items, 3)
    alone = [batch_gradient(network, loss, layout, vector, inputs[k : k + 1], targets[k : k + 1]) for k in range(items)]
    summed = summed_gradients(network, loss, layout, vector, inputs, targets)
    assert [part.shape for part in summed] == list(layout.shapes)
    torch.testing.assert_close(torch.cat([part.ravel() for part in summed]), sum(alone))


def test_model_and_vector_stay_as_they_were() -> None:
    network = read_twice()
    own, vector = flatten(network), torch.linspace(-0.8, 0.9, Layout.of(network).size)
    before = vector.clone()
    summed_gradients(network, loss, Layout.of(network), vector, torch.ones(2, 3), torch.zeros(2, 3))
    assert torch.equal(flatten(network), own)
    assert torch.equal(vector, before)
    assert not vector.requires_grad
    assert all(p.grad is None for p in network.parameters())
