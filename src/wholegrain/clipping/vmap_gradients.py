"""All items at once by `torch.func.vmap`; the per-item gradients [item, parameter] are held in memory, whole.

Chunks bound what vmap needs besides. A model whose per-item gradients do not fit needs smaller batches.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.func import grad, vmap

from wholegrain.clipping.parameters import Layout, call
from wholegrain.clipping.reference import Loss

# 2²⁶ values: 256 MB of float32 per-item gradients made at a time.
MOST_VALUES = 1 << 26


def item_gradients(
    model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor
) -> Tensor:
    """Each item's gradient [item, parameter]."""

    def item_loss(parameters: Tensor, item: Tensor, target: Tensor) -> Tensor:
        return loss(call(model, layout, parameters, item[None].clone()), target[None])

    chunk = max(1, MOST_VALUES // max(1, layout.size))
    with silence_vmap():
        many = vmap(grad(item_loss), in_dims=(None, 0, 0), chunk_size=chunk)
        gradients: Tensor = many(vector.detach(), inputs, targets)
    return gradients


@contextmanager
def silence_vmap() -> Iterator[None]:
    """Vmap warns of every operation that it has no rule for; whoever chose it knows that it is slow."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield
