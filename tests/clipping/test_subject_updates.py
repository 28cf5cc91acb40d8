"""Updates of several local steps: what they are, and that nobody moves the sum by more than C."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.subject_updates import LocalUpdate, SubjectUpdates
from wholegrain.errors import SpecError

CLIP = Clip(ClipPer.SUBJECT, Pool.MEAN, 0.3)
COUNTS = (4, 1, 3, 2, 2)


def batch(seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    groups = torch.repeat_interleave(torch.arange(len(COUNTS)), torch.tensor(COUNTS))
    inputs = torch.randn(len(groups), 3, generator=draws) * scale
    return inputs, torch.randint(2, (len(groups),), generator=draws), groups


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def trained_alone(net: nn.Module, inputs: Tensor, targets: Tensor, local: LocalUpdate) -> Tensor:
    """The oracle: torch's own SGD on one subject's items."""
    start = flatten(net).clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=local.learning_rate)
    for _ in range(local.steps):
        optimizer.zero_grad()
        cross_entropy(net(inputs), targets).backward()
        optimizer.step()
    return (start - flatten(net)) / local.learning_rate


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_sum_of_updates_is_that_of_sgd_on_each_subject_alone(steps: int) -> None:
    local = LocalUpdate(steps, 0.2)
    inputs, targets, groups = batch()
    expected = torch.zeros(flatten(model()).numel())
    for subject in range(len(COUNTS)):
        update = trained_alone(model(), inputs[groups == subject], targets[groups == subject], local)
        expected += update * min(1.0, CLIP.norm / float(update.norm()))
    net = model()
    found = SubjectUpdates(BookKeeping(net, cross_entropy), local)(flatten(net), inputs, targets, groups, CLIP)
    torch.testing.assert_close(found.total.float(), expected, rtol=1e-4, atol=1e-6)
    assert found.zeroed == 0


def test_one_local_step_is_the_clipped_mean_gradient() -> None:
    net = model()
    gradients = BookKeeping(net, cross_entropy)
    inputs, targets, groups = batch()
    one = SubjectUpdates(gradients, LocalUpdate(1, 0.5))(flatten(net), inputs, targets, groups, CLIP).total
    plain = gradients(flatten(net), inputs, targets, groups, CLIP).total
    torch.testing.assert_close(one.float(), plain.float(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e6, 1e18])
@pytest.mark.parametrize("rate", [1e-3, 1.0, 1e4])
def test_who_leaves_moves_the_sum_by_c_at_most_and_nobody_else(scale: float, rate: float) -> None:
    net = model()
    updates = SubjectUpdates(BookKeeping(net, cross_entropy), LocalUpdate(4, rate))
    inputs, targets, groups = batch(1, scale)
    whole = updates(flatten(net), inputs, targets, groups, CLIP).total
    assert torch.isfinite(whole).all()
    for subject in range(len(COUNTS)):
        others = groups != subject
        rest = updates(flatten(net), inputs[others], targets[others], groups[others], CLIP).total
        alone = updates(flatten(net), inputs[~others], targets[~others], groups[~others], CLIP).total
        assert float(alone.norm()) <= CLIP.norm
        assert float((whole - rest).norm()) <= CLIP.norm * (1 + 1e-12)
        torch.testing.assert_close(whole - rest, alone, rtol=1e-9, atol=1e-14)


def test_what_is_not_clipped_as_one_mean_is_refused() -> None:
    net = model()
    updates = SubjectUpdates(BookKeeping(net, cross_entropy), LocalUpdate(2, 0.1))
    with pytest.raises(SpecError, match="clipped as one"):
        updates(flatten(net), *batch(), Clip(ClipPer.ITEM, Pool.SUM, 1.0))
    with pytest.raises(SpecError, match="local_steps"):
        LocalUpdate(10**6, 0.1)
