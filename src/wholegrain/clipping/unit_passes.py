"""Gradients on any device and in any precision: each unit in passes of its own, clipped and summed in double precision.

A unit is what is clipped as one: an item, or a subject with its items in the batch. What is computed of it depends on
its own items and on the parameters alone, so that nothing about kernels has to be known but that they repeat
themselves (devices.py). How exact a gradient is does not matter: whatever vector comes out is measured, and scaled, in
double precision.
"""

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wholegrain import _check
from wholegrain.clipping import devices
from wholegrain.clipping.clip_units import Buckets
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, Pool
from wholegrain.clipping.devices import Compute
from wholegrain.clipping.isolation import Isolated
from wholegrain.clipping.parameters import Layout, compute_at, flatten
from wholegrain.clipping.plain_arithmetic import in_plain_arithmetic
from wholegrain.clipping.reference import Loss, batch_gradient
from wholegrain.clipping.trial_items import TRIAL, make_items, perturb, zero_items
from wholegrain.errors import ModelError
from wholegrain.models.dropout import DropoutCoins

ROWS = 64
"""The most items of a pass; a unit that has more takes several."""

Shape = tuple[torch.Size, torch.Size]
"""Of an item, and of its target."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A batch by units: the order of its items, where each unit begins and ends in it, and what a unit counts."""

    order: NDArray[np.int64]  # [item]
    edges: NDArray[np.int64]  # [unit + 1]
    shares: NDArray[np.float64]  # [unit]

    @staticmethod
    def of(groups: NDArray[np.int64], clip: Clip) -> "Cut":
        """Units of items whose subjects are `groups`; what is not clipped apart goes in passes of any items.

        >>> cut = Cut.of(np.array([7, 3, 7]), Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0))
        >>> cut.order.tolist(), cut.edges.tolist(), cut.shares.tolist()
        ([1, 0, 2], [0, 1, 3], [1.0, 1.0])
        """
        _, subjects, counts = np.unique(groups, return_inverse=True, return_counts=True)
        order, items = np.argsort(subjects, kind="stable"), len(groups)
        edges = {
            ClipPer.ITEM: np.arange(items + 1),
            ClipPer.SUBJECT: np.concatenate([[0], np.cumsum(counts)]),
            ClipPer.BATCH: np.array([0, items]),
            ClipPer.NONE: np.append(np.arange(0, items, ROWS), items),
        }[clip.per]
        averaged = clip.per is ClipPer.ITEM and clip.pool is Pool.MEAN
        return Cut(order, edges, 1 / counts[subjects[order]] if averaged else np.ones(len(edges) - 1))

    def units(self) -> Iterator[tuple[slice, float]]:
        """The items of each unit in the new order, and what it counts."""
        for (start, stop), share in zip(pairwise(self.edges.tolist()), self.shares.tolist(), strict=True):
            yield slice(start, stop), share


class UnitPasses(DropoutCoins):
    """`ClippedSum` for one model and loss, one unit after the other.

    Guarantee: removing the items of one subject moves the sum by at most what the clip allows, times 1 + SLACK, for all
    finite parameters, inputs and targets, if the device repeats itself. A unit's gradient is a function of its own
    items. Its length is off by γ_d of double precision, for d parameters; a sum of n units by n²·2⁻⁵³ C at most.
    """

    def __init__(self, model: nn.Module, loss: Loss, compute: Compute) -> None:
        """The model is copied to the device, with what is frozen in it as it is now."""
        self.model, self._loss, self.compute = model, loss, compute
        self._layout = Layout.of(model)
        self._isolated = Isolated(model, loss, compute.device)
        self._tried = set[Shape]()

    @property
    def place(self) -> torch.device:
        """Where parameters are best given; what is given on the host, is summed there in the end."""
        return self.compute.place

    @in_plain_arithmetic
    def __call__(
        self,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None = None,
    ) -> ClippedTotal:
        """Pool the gradients, at parameters `vector`, of a batch whose item i belongs to subject `groups[i]`.

        The batch is given on the host and goes to the device at once. The total is where `vector` was given, in double
        precision; no group of it has to be kept apart.
        """
        if not inputs.shape[0]:
            return ClippedTotal(torch.zeros_like(vector, dtype=torch.float64), 0)
        with self.compute.settings():
            self._require_repeats(inputs, targets)
            cut = Cut.of(groups.numpy(), clip)
            order = torch.from_numpy(cut.order)
            x, y = inputs[order].to(self.compute.device), targets[order].to(self.compute.device)
            total, zeroed = self._add_up(vector.detach().to(self.compute.device), x, y, cut, clip)
        total = total if total.device == vector.device else devices.to_host(total)
        return ClippedTotal(total, int(devices.to_host(zeroed)))

    def _add_up(self, vector: Tensor, inputs: Tensor, targets: Tensor, cut: Cut, clip: Clip) -> tuple[Tensor, Tensor]:
        """The sum over all units, and how many were not finite."""
        total = torch.zeros(self._layout.size, dtype=torch.float64, device=self.place)
        zeroed = torch.zeros((), dtype=torch.int64, device=self.place)
        finite = torch.isfinite(vector).all().to(self.place)  # the same for everybody
        for items, share in cut.units():
            gradient = self._gradient(vector, inputs[items], targets[items], clip)
            zeroed += ~_add_clipped(total, gradient, clip, share, finite)
        return total, zeroed

    def _gradient(self, vector: Tensor, inputs: Tensor, targets: Tensor, clip: Clip) -> Tensor:
        """The sum or mean of a unit's gradients, in double precision."""
        total = torch.zeros(self._layout.size, dtype=torch.float64, device=self.place)
        for x, y in zip(torch.split(inputs, ROWS), torch.split(targets, ROWS), strict=True):
            # A copy of its own begins at an address like any other's.
            found = self._mean_gradient(vector, x.clone(), y.clone())
            total.add_(found.to(self.place).double().mul_(len(x) / self.compute.scale))
        averaged = clip.pool is Pool.MEAN and clip.per in (ClipPer.SUBJECT, ClipPer.BATCH)
        return total.div_(len(inputs)) if averaged else total

    def _mean_gradient(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean of the gradients of these items' own losses, times the scale."""
        leaf, scale = vector.detach().clone().requires_grad_(), self.compute.scale / len(inputs)

        def differentiate(placed: nn.Module, loss: Loss) -> Tensor:
            with self.compute.narrow():
                outputs = placed(inputs)
            if not outputs.requires_grad:
                return torch.zeros_like(leaf)
            wide = outputs.detach().to(torch.promote_types(outputs.dtype, torch.float32))
            outward = _outward_gradient(loss, wide, targets) * scale
            return torch.autograd.grad(outputs, leaf, outward.to(outputs.dtype))[0]

        with torch.enable_grad(), self._isolated.fresh() as (copy, loss):
            return compute_at(copy, self._layout.views(leaf), partial(differentiate, loss=loss))

    def _require_repeats(self, inputs: Tensor, targets: Tensor) -> None:
        """Refuse a model whose passes differ from call to call: tried on this device, once for each shape of items."""
        shape = inputs.shape[1:], targets.shape[1:]
        if shape in self._tried:
            return
        # Near the model's own parameters: those that are given may be a server's that has a trial's result in mind.
        vector = perturb(flatten(self.model))
        x, y = self._make_up(vector, inputs, targets)
        try:
            same = self._repeats(*(each.to(self.compute.device) for each in (vector, x, y)))
        except ModelError:
            raise
        except Exception as error:  # the model is the user's own code
            raise ModelError(
                f"The model cannot compute the gradient of one unit by itself: {_check.reason(error)}."
            ) from error
        if not bool(devices.to_host(same)):
            remedy = "set compute.device to 'cpu' and compute.precision to 'float32'"
            if not self.compute.needs_passes:
                remedy = "a model must be a function of its parameters and its items"
            raise ModelError(
                f"The model's gradients differ from call to call on {self.compute}, so that nobody's influence on"
                f" others can be bounded; {remedy}."
            )
        self._tried.add(shape)

    def _make_up(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Items that the model can take: some know no token 1, or no class 1.

        Tried on the host: a GPU that was given a token that is not there does nothing more in this process.
        """
        for x in make_items(inputs):
            for y in make_items(targets):
                with suppress(Exception), self._isolated.fresh() as (copy, loss):
                    batch_gradient(deepcopy(copy).cpu(), loss, self._layout, vector, x, y)
                    return x, y
        return zero_items(inputs), zero_items(targets)

    def _repeats(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Whether one item and several give the same bits again, when others were computed in between."""
        sizes = [1, TRIAL, 1, 2, TRIAL]
        found = [self._mean_gradient(vector, inputs[:size].clone(), targets[:size].clone()) for size in sizes]
        return _same_bits(found[0], found[2]) & _same_bits(found[1], found[4])


def _outward_gradient(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Gradient of each item's own loss with respect to its outputs.

    One item at a time, and not the mean of all: with class weights or ignored targets that is another mean, in which
    one item changes the weight of the others.
    """
    if outputs.shape[0] != targets.shape[0]:
        raise ModelError("The model's outputs, or its targets, do not have an item in each row.")
    found = []
    for output, target in zip(outputs, targets, strict=True):
        leaf = output[None].clone().requires_grad_()
        found.append(torch.autograd.grad(loss(leaf, target[None]), leaf)[0])
    return torch.cat(found)


def _same_bits(one: Tensor, other: Tensor) -> Tensor:
    return (one.view(torch.int32) == other.view(torch.int32)).all()


def _add_clipped(total: Tensor, gradient: Tensor, clip: Clip, share: float, finite: Tensor) -> Tensor:
    """Add a unit's clipped gradient, which is overwritten; whether it is finite. Nothing is read."""
    length = torch.linalg.vector_norm(gradient)
    finite = finite & torch.isfinite(length)
    if clip.per is not ClipPer.NONE:
        gradient.mul_((clip.norm / length).clamp_(max=1.0))  # of a gradient of zeros, inf and then 1
    # `where`, not a product: 0·inf is not 0.
    total.add_(torch.where(finite, gradient.mul_(share), 0.0))
    return finite
