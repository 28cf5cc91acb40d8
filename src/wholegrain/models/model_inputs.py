"""What a model is fed. Data sets store small numbers; a batch of them becomes values only when it is used.

The kind of number says what is meant: uint8 are intensities, shown to the model as 0 to 1; other whole numbers are
tokens; floats are values already.
"""

import torch
from torch import Tensor


def values(stored: Tensor) -> Tensor:
    """Stored inputs [item, ...] as a model takes them.

    >>> values(torch.tensor([[0, 255]], dtype=torch.uint8))
    tensor([[0., 1.]])
    >>> values(torch.tensor([[3, 79]], dtype=torch.int8)).dtype
    torch.int64
    """
    if stored.dtype is torch.uint8:
        return stored.to(torch.float32).mul_(1 / 255)
    return stored if stored.is_floating_point() else stored.long()
