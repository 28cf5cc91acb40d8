"""Chooses a model's backend: the fastest that agrees with the reference, item by item, on made-up items.

The trial sees shapes and kinds of numbers, never the data. It catches what no rule can see from inside: a parameter
that is read past its layer, items that change places, an output that depends on other items.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wholegrain.clipping.backends import Program
from wholegrain.clipping.batch_invariance import LEAST_ROWS, AnySize, FixedPlaces, PassSizes
from wholegrain.clipping.candidates import (
    Candidate,
    MakeCandidate,
    play_one_by_one,
    use_aligned_rules,
    use_rules,
    use_vmap,
)
from wholegrain.clipping.dense_chain import DenseChain
from wholegrain.clipping.parameters import Layout, call, flatten
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.released_memory import release_memory
from wholegrain.clipping.sum_groups import SumGroups
from wholegrain.clipping.trial import BackendTrial, Terms
from wholegrain.clipping.trial_items import TRIAL, make_items, perturb, zero_items
from wholegrain.clipping.value_decisions import find_decision

TRIALS = 2
# Sizes of batches in which a model is watched for items that depend on each other.
MIXING = (3, 8, 16, 50, 128)


class SlowGradients(UserWarning):
    """Some gradients of a model are computed in a slower way than the rest."""


@dataclass(frozen=True, eq=False)
class Backend:
    """A program that agrees with the reference, what it needs for an item, and in which sizes it is trusted."""

    program: Program
    attach: Callable[[Tensor], None]
    most_items: int
    """That memory allows at once."""
    sizes: PassSizes
    terms: Terms
    steady: Callable[[int, bool], bool]
    """Whether units of so many items (subjects, or single items) come out the same wherever they stand in a pass."""
    dense: DenseChain | None = None
    """The same program in one function, where it is a small dense model."""
    groupings: dict[tuple[float, float, int, bool], tuple[SumGroups, bool]] = field(default_factory=dict)
    """By what is public of a batch; and whether its units must be in the order of their numbers."""
    pass_sizes: dict[int, int | None] = field(default_factory=dict)
    """What `sizes.fit` has said."""


def select_backend(
    model: nn.Module,
    loss: Loss,
    layout: Layout,
    vector: Tensor,
    inputs: Tensor,
    targets: Tensor,
    memory: int = sys.maxsize,
) -> Backend:
    """The first of the programs, from fast to slow, that passes the trial; the slowest needs none.

    The activations of what it runs at once take so many bytes of memory at the most.
    """
    # Near the model's own parameters: those that are given may come from a server that has a trial's result in mind.
    elsewhere = perturb(flatten(model).to(vector))
    trials = list(islice(_trials(model, loss, layout, elsewhere, inputs, targets), TRIALS))
    if not trials:
        trials = [BackendTrial(model, loss, layout, elsewhere, zero_items(inputs), zero_items(targets))]
    trials[0].refusal = find_decision(partial(call, model, layout, elsewhere), trials[0].inputs)
    # What mixes items is computed item by item: vmap and the reference show a model nothing else.
    ways = () if trials[0].refusal else (use_vmap,) if trials[0].mixes_items() else (use_rules, use_vmap)
    for make in ways:
        if all(trial.passes(make) for trial in trials):
            return _find_steadiest(trials[0], make, memory)
        # The notice of what is used instead says why.
        trials[0].refusal = next((trial.refusal for trial in trials if trial.refusal), None)
    measured = _measure(trials[0], play_one_by_one, memory)
    return _adopt(trials[0], measured, trials[0].make(play_one_by_one), AnySize())


def _find_steadiest(trial: BackendTrial, make: MakeCandidate, memory: int) -> Backend:
    """A correct backend, in the first way of running it in which its rows do not depend on each other."""
    # Of what vmap makes inside nothing is seen, so that it is trusted in fixed places alone.
    for way in (make, use_aligned_rules) if make is use_rules else ():
        measured = _measure(trial, way, memory)
        # No pass has fewer rows: less would be filled up.
        measured = measured._replace(most_items=max(measured.most_items, LEAST_ROWS))
        made = trial.make(way)
        sizes = trial.find_sizes(made, measured.most_items)
        if sizes is not None:
            return _adopt(trial, measured, made, sizes)
    return _adopt(trial, _measure(trial, make, memory), trial.make(make), FixedPlaces())


class _Measured(NamedTuple):
    """What is known of a program after a few passes."""

    most_items: int
    """That memory allows at once."""
    terms: Terms
    notice: str | None


def _measure(trial: BackendTrial, make: MakeCandidate, memory: int) -> _Measured:
    """By passes of a copy, whose buffers are its own and gone when it was measured."""
    copy = trial.make(make)
    most = max(1, memory // trial.measure_bytes_per_item(copy))
    measured = _Measured(most, trial.count_terms(copy), copy.notice())
    release_memory(copy.workspace)
    return measured


def _adopt(trial: BackendTrial, measured: _Measured, candidate: Candidate, sizes: PassSizes) -> Backend:
    """A program for use, with a notice where it is slow."""
    if measured.notice:
        reason = f" ({trial.refusal})" if trial.refusal else ""
        warnings.warn(measured.notice + reason, SlowGradients, stacklevel=6)
    steady, dense = trial.watch_subjects(candidate, sizes), trial.find_dense(candidate)
    return Backend(candidate.program, candidate.attach, measured.most_items, sizes, measured.terms, steady, dense)


def mixes_items(model: nn.Module, inputs: Tensor) -> bool:
    """Whether an item's output depends on the others in its batch, as far as made-up items of this shape can show."""
    return any(_mixes(model, batch, size) for batch in make_items(inputs) for size in MIXING)


def _mixes(model: nn.Module, batch: Tensor, size: int) -> bool:
    """Whether made-up items, repeated up to a batch of this size, give other outputs than each alone."""
    number = torch.arange(size) % TRIAL
    with torch.no_grad():
        together = model(batch[number].clone())
        alone = torch.cat([model(batch[k : k + 1].clone()) for k in range(TRIAL)])[number]
    return together.shape != alone.shape or not torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True)


def _trials(
    model: nn.Module, loss: Loss, layout: Layout, vector: Tensor, inputs: Tensor, targets: Tensor
) -> Iterator[BackendTrial]:
    """Made-up batches whose gradients are finite: some models cannot take every number."""
    for values in make_items(inputs):
        for classes in make_items(targets):
            try:
                trial = BackendTrial(model, loss, layout, vector, values, classes)
            except (IndexError, RuntimeError):
                continue
            if trial.tells:
                yield trial
                break
