"""How a model's gradients are computed: by its proved program where there is one, else each unit by itself."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from wholegrain.clipping.batch_invariance import LEAST_ROWS, FixedPlaces, PassSizes
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.kernels import KernelChecks
from wholegrain.clipping.model_watch import ModelWatch
from wholegrain.clipping.parameters import Layout
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.sum_groups import SumGroups
from wholegrain.clipping.tape import NotTraceable
from wholegrain.clipping.traced import TracedGradients


class SlowGradients(UserWarning):
    """Gradients of a model are computed one unit at a time."""


@dataclass(frozen=True, eq=False)
class Backend:
    """A proved program, and in which sizes its kernels are trusted."""

    program: TracedGradients
    most_items: int
    """That memory allows at once."""
    sizes: PassSizes
    terms: Callable[[Units, int], int]
    """How many products a unit of so many items adds to one parameter, in the layer where they are most."""
    steady: Callable[[int, bool], bool]
    """Whether units of so many items (subjects, or single items) come out the same wherever they stand in a pass."""
    watch: ModelWatch
    groupings: dict[tuple[float, float, int, bool], tuple[SumGroups, bool]] = field(default_factory=dict)
    """By what is public of a batch; and whether its units must be in the order of their numbers."""
    pass_sizes: dict[int, int | None] = field(default_factory=dict)
    """What `sizes.fit` has said."""


def prove_backend(
    model: nn.Module, loss: Loss, layout: Layout, inputs: Tensor, targets: Tensor, memory: int = sys.maxsize
) -> Backend | str:
    """The model's program for items of this shape; or why it has none, which is told."""
    try:
        program = TracedGradients(model, loss, layout, inputs, targets)
    except NotTraceable as found:
        warnings.warn(
            f"The model's gradients are computed one unit at a time, which is slower, because {found}.",
            SlowGradients,
            stacklevel=6,
        )
        return str(found)
    most = max(LEAST_ROWS, memory // program.bytes_per_item)
    checks = KernelChecks(program, inputs, targets, most)
    with torch.inference_mode():
        terms = program.count_terms(inputs, targets)
        trusted = checks.fit(LEAST_ROWS) is not None
    sizes: PassSizes = checks if trusted else FixedPlaces()
    # Where rows depend on who is beside them, so does every unit, whatever is made of its rows afterwards.
    steady = checks.steady if trusted else lambda size, subjects: False
    return Backend(program, most, sizes, terms, steady, ModelWatch(model))
