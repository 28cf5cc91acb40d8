"""Which sums are computed in C: the first program that knows a model and its loss."""

from typing import Protocol

import torch
from torch import nn

from wholegrain.clipping.compiled_chain import CompiledChain
from wholegrain.clipping.compiled_encoder import CompiledEncoder
from wholegrain.clipping.reference import ClippedSum, Loss


class Program(Protocol):
    """A program in C for some models: `ClippedSum` of one of them."""

    def __call__(self, model: nn.Module, loss: Loss) -> ClippedSum:
        """The sums of a model that it knows; another is refused in one sentence."""
        ...

    def knows(self, model: nn.Module, loss: Loss) -> bool:
        """Whether it is for this model and this loss."""
        ...


PROGRAMS: tuple[Program, ...] = (CompiledChain, CompiledEncoder)


def find_program(model: nn.Module, loss: Loss) -> ClippedSum | None:
    """The sums of this model in C, or None where there is no program for it."""
    if any(parameter.dtype is not torch.float32 for parameter in model.parameters()):
        return None
    return next((program(model, loss) for program in PROGRAMS if program.knows(model, loss)), None)
