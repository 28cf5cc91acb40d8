"""From ends to parameters: however a parameter is used, sums are those of single items, and by the cheapest way."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from agreement import Batch, assert_agrees, program_of
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.flows import Flows, Product, Simple
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.traced import TracedGradients
from wholegrain.models.trainable_part import train_part


class Used(nn.Module):
    """A square matrix that is used as a function says, and a last layer."""

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.last, self._use = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 3), use

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self._use(x, self.weight).tanh())


class Tied(nn.Module):
    """A table of tokens that is also the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(5, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found = self.table((x[:, :2].abs() * 2).long().clamp(max=4)).mean(1)
        return linear(self.inner(found).tanh(), self.table.weight)[:, :3]


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.idle, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x)


class Merged(nn.Module):
    """A frozen matrix and an update of low rank that is added to it before it meets items."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.randn(3, 4), requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.base + self.up @ self.down)


def low_rank() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    return train_part(model, "low_rank", rank=2, prefix=1, seed=0)


SIMPLE: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)),
    "transposed": lambda: Used(lambda x, w: x @ w.t()),
    "by hand": lambda: Used(lambda x, w: x @ w),
    "a view": lambda: Used(lambda x, w: x @ w.view(16).view(4, 4)),
    "several uses": lambda: Used(lambda x, w: (x @ w).tanh() @ w),
    "both ways": lambda: Used(lambda x, w: (x @ w).tanh() @ w.t()),
    "tied": Tied,
    "not used": Unused,
    "low rank beside it": low_rank,
}
LINEAR: dict[str, Callable[[], nn.Module]] = {
    "low rank merged": Merged,
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
    "scaled": lambda: Used(lambda x, w: x @ (w * 3)),
    "a half": lambda: Used(lambda x, w: torch.cat([x @ w[:, :2], x[:, 2:]], 1)),
}


def flows_of(model: nn.Module) -> Flows:
    torch.manual_seed(0)
    model, inputs = model.double(), torch.randn(9, 4, dtype=torch.float64)
    engine = BookKeeping(model, cross_entropy)
    batch = Batch(inputs, torch.arange(9) % 3, torch.arange(9) // 2)
    assert_agrees(engine, model, cross_entropy, flatten(model), batch)
    program = program_of(engine)
    assert isinstance(program, TracedGradients), engine.reason
    return program.flows


@pytest.mark.parametrize("name", SIMPLE)
def test_lengths_are_measured_at_the_ends(name: str) -> None:
    flows = flows_of(SIMPLE[name]())
    assert not flows.linear
    assert flows.plans


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_computed_from_parameters_is_formed_for_each_unit(name: str) -> None:
    assert flows_of(LINEAR[name]()).linear


def test_a_parameter_that_is_not_used_has_no_plan() -> None:
    model = Unused()
    named = {slot.name for plan in flows_of(model).plans for slot in _slots(plan)}
    assert named == {"last.weight", "last.bias"}
    assert set(Layout.of(model).names) > named


def _slots(plan: Simple | Product) -> list:
    if isinstance(plan, Simple):
        return list(plan.slots.values())
    return [slot for _, slot in (*plan.weights, *plan.biases)]


def test_a_weight_and_its_bias_are_one_plan_and_uses_of_one_weight_are_several() -> None:
    (plan,) = flows_of(nn.Sequential(nn.Linear(4, 3))).plans
    assert isinstance(plan, Product)
    assert [len(plan.weights), len(plan.biases)] == [1, 1]
    uses = [plan for plan in flows_of(SIMPLE["several uses"]()).plans if {s.name for s in _slots(plan)} == {"weight"}]
    assert len(uses) == 2
