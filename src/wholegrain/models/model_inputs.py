"""What a model is fed. Data sets store small numbers; a batch of them becomes values only when it is used.

The kind of number says what is meant: uint8 are intensities, shown to the model as 0 to 1; other whole numbers are
tokens; floats are values already.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def take_last(outputs: Tensor, present: Tensor) -> Tensor:
    """[item, value] of outputs [item, position, value], at each item's last position that is present [item, position].

    >>> take_last(torch.arange(6.0).view(1, 3, 2), torch.tensor([[True, True, False]]))
    tensor([[2., 3.]])
    """
    places = torch.arange(outputs.shape[1], device=outputs.device) * present
    return outputs.gather(1, places.argmax(1)[:, None, None].expand(-1, 1, outputs.shape[2]))[:, 0]


def are_tokens(kind: np.dtype[Any]) -> bool:
    """Whether stored inputs of this kind are tokens.

    >>> are_tokens(np.dtype("int8")), are_tokens(np.dtype("uint8")), are_tokens(np.dtype("float32"))
    (True, False, False)
    """
    return kind.kind != "f" and kind != np.uint8


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
