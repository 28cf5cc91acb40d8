"""By how much one subject moves a clipped sum: in one batch, and by what it leaves behind for the next."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from clipping.mixing_modules import SUBJECTS, Batch, Case
from clipping.mixing_values import Loss
from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, Pool, pool_gradients
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.reference import ClippedSum
from wholegrain.errors import ModelError

CLIPS = [Clip(per, Pool.MEAN, norm) for per in (ClipPer.ITEM, ClipPer.SUBJECT) for norm in (0.05, 0.5)]
"""Under which all gradients are clipped, so that where they point decides; and only some, so that lengths do, too."""
UNTOLD = "an engine that does not say"
LOUD = 0
"""The subject whose items let it be seen that rows meet."""
MakeSum = Callable[[nn.Module, Loss], ClippedSum]


@dataclass(frozen=True)
class Moves:
    """In clip norms: the most that a subject moves the sum of a batch, and the sum of a batch that it is not in."""

    own: float
    later: float
    reasons: tuple[str | None, ...]
    """Why sums are computed unit by unit, where an engine says so; None where it takes all rows at once."""


def find_moves(case: Case, make_sum: MakeSum) -> Moves | ModelError:
    """Two histories: in one, the loud subject is in the first batch. Then each subject leaves in turn.

    What is refused is refused at once, and whoever is there. Then the error is handed over.
    """
    groups = case.batch().groups
    everybody, others = torch.ones(len(groups), dtype=torch.bool), groups != LOUD
    begun, refused = _begin(case, make_sum, everybody)
    second, refused_too = _begin(case, make_sum, others)
    assert (begun is None) == (second is None), f"refused by who is there: {refused}, {refused_too}"
    if begun is None or second is None:
        assert refused is not None
        return refused
    found = [_moves_under(clip, groups, begun, second) for clip in CLIPS]
    own, later = (torch.stack([each for some in parts for each in some]) for parts in zip(*found, strict=True))
    reasons = tuple(getattr(history.sums, "reason", UNTOLD) for history in (begun, second))
    return Moves(float(own.norm(dim=1).max()), float(later.norm(dim=1).max()), reasons)


def _begin(case: Case, make_sum: MakeSum, left: Tensor) -> "tuple[History, None] | tuple[None, ModelError]":
    """A history after its first batch, of those who are there; or why there is none."""
    try:
        history = History.of(case, make_sum)
        history.first = history(left, CLIPS[0])
        return history, None
    except ModelError as error:
        return None, error


def _moves_under(clip: Clip, groups: Tensor, begun: "History", second: "History") -> tuple[list[Tensor], list[Tensor]]:
    everybody, others = torch.ones(len(groups), dtype=torch.bool), groups != LOUD
    first = begun.first - second.first if clip is CLIPS[0] else begun(everybody, clip) - second(others, clip)
    later = begun(others, clip) - second(others, clip)
    whole = begun(everybody, clip)
    own = [first, second(everybody, clip) - second(others, clip)]
    own += [whole - begun(groups != left, clip) for left in range(SUBJECTS)]
    return [each / clip.norm for each in own], [later / clip.norm]


@dataclass
class History:
    """A model made anew, its clipped sum, and a batch of which some rows are given."""

    sums: ClippedSum
    vector: Tensor
    batch: Batch
    first: Tensor = field(default_factory=lambda: torch.zeros(0))
    """The first sum."""

    @staticmethod
    def of(case: Case, make_sum: MakeSum) -> "History":
        model, loss = case.make()
        return History(make_sum(model, loss), flatten(model), case.batch())

    def __call__(self, left: Tensor, clip: Clip) -> Tensor:
        some, given = self.batch.rows(left), self.vector.clone()
        items = left.nonzero()[:, 0].numpy()
        table = scatter_codes(self.batch.groups.numpy().astype(np.int64))
        buckets = Buckets(table, items, float(SUBJECTS), float(len(table)), largest=3)
        total = self.sums(given, some.inputs.clone(), some.targets.clone(), some.groups, clip, buckets).total
        assert torch.equal(given, self.vector), "the caller's parameters were changed"
        return total.double()


RULED = (nn.Linear, nn.Conv2d, nn.Embedding)


class AllAtOnce:
    """What is to be refused: gradients of rows from one pass over all of them, as if rows did not meet."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self._model, self._loss = model, loss
        self._seen: list[tuple[nn.Module, Tensor, list[Tensor]]] = []
        for module in model.modules():
            if isinstance(module, RULED):
                module.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
        if out.requires_grad:
            self._seen.append((module, given[0].detach(), found := []))
            out.register_hook(lambda gradient: found.append(gradient.detach()))
        return out.clone()  # so that hooks of the model's own come first in the backward pass

    def __call__(
        self,
        vector: Tensor,
        inputs: Tensor,
        targets: Tensor,
        groups: Tensor,
        clip: Clip,
        buckets: Buckets | None = None,
    ) -> ClippedTotal:
        self._seen.clear()
        own_losses(self._loss, self._model(inputs), targets).sum().backward()
        return pool_gradients(torch.stack([self._row(k, len(inputs)) for k in range(len(inputs))]), groups, clip)

    def _row(self, k: int, rows: int) -> Tensor:
        parameters = dict(self._model.named_parameters())
        found = {id(p): torch.zeros_like(p) for p in parameters.values()}
        for module, given, gradients in self._seen:
            own = [p for p in module.parameters(recurse=False) if p.requires_grad]
            if own and len(given) % rows == 0:  # others are places, which are everybody's
                out = type(module).forward(module, _row_of(k, rows, given))
                for p, each in zip(own, torch.autograd.grad(out, own, _row_of(k, rows, gradients[0])), strict=True):
                    found[id(p)] += each
        return torch.cat([found[id(parameters[name])].flatten() for name in Layout.of(self._model).names])


def _row_of(k: int, rows: int, values: Tensor) -> Tensor:
    return values.reshape(rows, -1, *values.shape[1:])[k]


def own_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.stack([loss(outputs[k : k + 1], targets[k : k + 1]) for k in range(len(outputs))])


def is_sum_of_parts(case: Case) -> bool:
    """Whether the gradient of a batch is the sum of its subjects' own, each taken with a model made anew."""

    def gradient(batch: Batch) -> Tensor:
        model, loss = case.make()
        total = own_losses(loss, model(batch.inputs), batch.targets).sum()
        found = torch.autograd.grad(total, [p for p in model.parameters() if p.requires_grad], materialize_grads=True)
        return torch.cat([each.flatten() for each in found])

    batch = case.batch()
    try:
        parts = [gradient(batch.rows(batch.groups == subject)) for subject in range(SUBJECTS)]
    except ValueError:  # a model that takes no single row
        return False
    return torch.allclose(gradient(batch), torch.stack(parts).sum(0), rtol=1e-2, atol=1e-3)
