"""What every loss must keep to; a new row is checked by being there, and so is the user's own."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from wholegrain.errors import SpecError
from wholegrain.gradients import reference
from wholegrain.gradients.clipping import Clip, ClipPer, Pool
from wholegrain.gradients.engine import BookKeeping
from wholegrain.gradients.losses import LOSSES, find_loss
from wholegrain.gradients.parameters import flatten


@pytest.mark.parametrize("per", [ClipPer.ITEM, ClipPer.SUBJECT, ClipPer.BATCH])
@pytest.mark.parametrize("name", LOSSES)
def test_clipped_gradients_are_those_of_the_reference(name: str, per: ClipPer) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    batch = torch.rand(6, 3).double(), torch.arange(6) % 3, torch.arange(6) // 2
    clip = Clip(per, Pool.MEAN, 0.05)
    found = BookKeeping(model, find_loss(name))(flatten(model), *batch, clip).total
    expected = reference.clipped_sum(model, find_loss(name), flatten(model), *batch, clip).total
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_a_right_answer_costs_less_than_a_wrong_one(name: str) -> None:
    loss, outputs = find_loss(name), torch.eye(3) * 5
    assert float(loss(outputs, torch.arange(3))) < float(loss(outputs, torch.tensor([1, 2, 0])))


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
