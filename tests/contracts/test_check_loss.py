"""What every loss must keep to; a new row is checked by being there, and so is the user's own."""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import nn

from wholegrain.clipping import reference
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.losses import LOSSES, find_loss
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import Loss
from wholegrain.data.tasks import Classification, MultiLabel, Regression, Task
from wholegrain.errors import SpecError

TASKS: tuple[Task, ...] = (Classification.of(3), MultiLabel(("a", "b", "c")), Regression(0.0, 1.0))


def fitting(name: str) -> Iterator[tuple[Task, Loss]]:
    """The tasks that a loss is for."""
    for task in TASKS:
        with contextlib.suppress(SpecError):
            yield task, find_loss(name, task)


@pytest.mark.parametrize("per", [ClipPer.ITEM, ClipPer.SUBJECT, ClipPer.BATCH])
@pytest.mark.parametrize("name", LOSSES)
def test_clipped_gradients_are_those_of_the_reference(name: str, per: ClipPer) -> None:
    fits = list(fitting(name))
    assert fits
    for task, loss in fits:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, task.outputs)).double()
        targets = torch.from_numpy(task.made_up(6))
        targets = targets.double() if targets.is_floating_point() else targets
        batch = torch.rand(6, 3).double(), targets, torch.arange(6) // 2
        clip = Clip(per, Pool.MEAN, 0.05)
        found = BookKeeping(model, loss)(flatten(model), *batch, clip).total
        expected = reference.clipped_sum(model, loss, flatten(model), *batch, clip).total
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_a_right_answer_costs_less_than_a_wrong_one(name: str) -> None:
    for task, loss in fitting(name):
        right = torch.randn(5, task.outputs, generator=torch.Generator().manual_seed(0)) * 5
        wrong = torch.from_numpy(task.opposite(right.numpy()))
        nearer = torch.from_numpy(task.opposite(-right.numpy()))
        assert float(loss(right, nearer)) < float(loss(right, wrong))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("own_losses:total", "not a mean over items"),
        ("own_losses:each", "not a mean over items"),
        ("own_losses:broken", "does not take outputs"),
        ("own_losses:missing", "cannot be imported"),
        ("cross_entrpy", "Unknown loss.*did you mean 'cross_entropy'"),
    ],
)
def test_what_is_no_loss_is_refused(name: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_losses")
    module.total = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="sum")
    module.each = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")
    module.broken = lambda outputs: outputs.mean()
    module.smooth = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)
    monkeypatch.setitem(sys.modules, "own_losses", module)
    with pytest.raises(SpecError, match=sentence):
        find_loss(name)
    assert find_loss("own_losses:smooth") is module.smooth
