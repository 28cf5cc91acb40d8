"""Buffers that outlive a step. A fresh large tensor costs more in page faults than many a layer costs in arithmetic."""

import sys
from collections.abc import Callable, Hashable
from math import prod

import torch
from torch import Tensor

from wholegrain.clipping.lent_memory import LentMemory, aligned_bytes


class Workspace:
    """Reused memory by key: what was taken under a key is overwritten by the next taking under that key.

    Two passes must therefore never overlap, and nothing taken here may be handed to a caller.
    """

    def __init__(self, aligned: bool = False) -> None:
        self.aligned = aligned
        """Whether rows that are multiplied begin at full vectors: see layers.base.matrix_product."""
        self.watcher: Callable[[Tensor], None] | None = None
        """Is shown what every layer makes in a pass, while somebody watches: see gradients.trial."""
        self._lent = LentMemory()
        self._buffers: dict[Hashable, Tensor] = {}
        self._views: dict[Hashable, Tensor] = {}

    def watch(self, *made: Tensor | None) -> None:
        """Show what a layer made, if anybody watches."""
        if self.watcher is not None:
            for each in made:
                if each is not None and each.is_floating_point():
                    self.watcher(each)

    def take(self, key: Hashable, shape: tuple[int, ...], like: Tensor, zero: bool = False) -> Tensor:
        """A contiguous tensor of this shape with the dtype of `like`; its values are whatever was there.

        With `zero`, memory is zero when first made: for buffers of which each use fills the same part.
        """
        view = self._views.get(key)
        if view is not None and view.shape == shape and view.dtype is like.dtype:
            return view
        size = prod(shape)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size or buffer.dtype is not like.dtype:
            buffer = like.new_zeros(size) if zero else like.new_empty(size)
            self._buffers[key] = buffer
        view = self._views[key] = buffer[:size].view(shape)
        return view

    def clear(self) -> int:
        """Forget all memory, and tell how many bytes that was; what is still referred to stays until it is not."""
        held = sum(each.nbytes for each in self._buffers.values()) + self._lent.bytes
        self._lent.forget()
        self._buffers.clear()
        self._views.clear()
        return held

    @torch.inference_mode(False)
    def lend(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A contiguous tensor whose memory is lent again once nothing refers to it: for what may be done with early."""
        block = self._lent.lend(prod(shape) * like.dtype.itemsize)
        return torch.from_numpy(block).view(like.dtype).view(shape)


def fresh(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A contiguous tensor of the host that is used once."""
    return Lease().take(prod(shape), like.dtype).view(shape)


class Lease:
    """A vector that is handed to a caller, and used again once nothing refers to its memory any more."""

    def __init__(self, wanted: int = 0) -> None:
        self._bytes = aligned_bytes(wanted)
        self.bytes = wanted
        """How much memory it has."""

    @property
    def is_free(self) -> bool:
        """Whether nothing else refers to the memory."""
        # This object's own reference, and that of the question.
        return sys.getrefcount(self._bytes) <= 2

    @torch.inference_mode(False)
    def take(self, size: int, kind: torch.dtype) -> Tensor:
        """An ordinary vector, also in inference mode; its values are whatever was there.

        Every tensor that shares its memory, a view or an array among them, keeps a reference to the bytes.
        """
        wanted = size * kind.itemsize
        if self.bytes != wanted or not self.is_free:
            self._bytes, self.bytes = aligned_bytes(wanted), wanted
        return torch.from_numpy(self._bytes).view(kind)
