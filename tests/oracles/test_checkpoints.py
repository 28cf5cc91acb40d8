"""Models that compute parts of themselves again in the backward pass (torch.utils.checkpoint)."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import wholegrain as wg
from agreement import Batch, assert_agrees, assert_same, item_gradients, slow
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.errors import ModelError

WIDTH, CLASSES = 10, 2


class Deep(nn.Module):
    """Blocks beside shortcuts, each with a checkpoint or without."""

    def __init__(self, norm: type[nn.Module], reentrant: bool | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(norm(WIDTH), nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH)) for _ in range(2)
        )
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self._reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + (
                block(x) if self._reentrant is None else checkpoint(block, x, use_reentrant=self._reentrant)  # type: ignore[operator]
            )
        return self.last(x)


def made(norm: type[nn.Module]) -> tuple[nn.Module, nn.Module, Tensor, Batch]:
    torch.manual_seed(0)
    marked, plain = Deep(norm, reentrant=False).double(), Deep(norm).double()
    batch = Batch(torch.randn(9, WIDTH).double(), torch.arange(9) % CLASSES, torch.arange(9) // 3)
    # Elsewhere than where the model was built: what is computed again must be so at these parameters.
    return marked, plain, flatten(marked) + torch.randn(flatten(marked).shape).double(), batch


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_the_reference_computes_again_at_the_same_parameters(norm: type[nn.Module]) -> None:
    marked, plain, vector, batch = made(norm)
    found = item_gradients(marked, cross_entropy, vector, batch)
    torch.testing.assert_close(found, item_gradients(plain, cross_entropy, vector, batch))


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_what_is_computed_twice_is_proved(norm: type[nn.Module]) -> None:
    marked, plain, vector, batch = made(norm)
    engine = BookKeeping(marked, cross_entropy)
    assert slow(lambda: assert_agrees(engine, marked, cross_entropy, vector, batch)) == []
    assert engine.reason is None
    clip = Clip(ClipPer.SUBJECT, Pool.MEAN, 0.1)
    arguments = (vector, batch.inputs, batch.targets, batch.groups, clip)
    assert_same(engine(*arguments), BookKeeping(plain, cross_entropy)(*arguments))


@pytest.mark.usefixtures("coarse_prices")
def test_the_old_kind_is_refused_before_anything_is_spent() -> None:
    data = wg.clinics(patients=40, clinics=2, span=2)
    with pytest.raises(ModelError, match="use_reentrant=False"):
        wg.train(data, Deep(nn.LayerNorm, reentrant=True), policy=wg.subject_dp(rate=0.5), epsilon=4, rounds=1)
