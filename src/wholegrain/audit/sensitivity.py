"""Without chance: how far one subject's rows move the sum that is to be noised, beside what was priced.

Noise hides a subject because the sum moves by so much and no further. Here the run's own gradients are asked with the
rows and without them; a layer that is not clipped shows at once, however much noise there is.

A proof holds at all parameters, for a server may choose them. So besides the run's own there are parameters, inputs and
clip norms with extreme exponents: activations that are huge where output gradients are tiny, a softmax that is
saturated, clip factors at the end of what single precision can tell. And because errors of a sum grow with its length,
one subject leaves a sum of many.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain._random import Purpose, generator
from wholegrain.audit.canary_inputs import Portrait, candidates, portrait_gradient, some_data, unlikely
from wholegrain.audit.sums import allowed_move, distance, noised_sum_input, within_batch
from wholegrain.clipping.clipping import LEAST_NORM, MOST_NORM
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import Layout
from wholegrain.clipping.reference import ClippedSum
from wholegrain.data.subjects import SubjectData
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.silo.training import Silo

ROWS = (1, 3)
"""Of how many rows the subject consists."""
BESIDE = 4
"""How many real rows are in the batch with it."""

SMALL, LARGE = 1e-11, 1e11
"""Clip norms beside the run's own."""
HEADS = (0, -60, -120)
LAYERS = (
    *((0, head) for head in HEADS),
    (30, -30),
    (60, -60),
    (120, -120),
    (-60, 60),
    (-60, -60),
    (-120, 0),
    (-120, -60),
)
"""Exponents of two by which all layers but the last are multiplied, and by which the last one is."""
SATURATED = (0.0, 52.0, 90.0)
"""The last bias of one class: output gradients of its items are about e to the minus this."""
INPUTS = (0, -60, 60, 100, 120)
"""Exponents of two by which an input is multiplied, where inputs are real numbers."""
SMALLEST = 2.0**-149
"""The smallest single-precision number."""
BADLY_ROUNDED = 0.54
"""Of the smallest number: a clip factor of this size is rounded up to nearly twice itself."""

LEAVERS = 4
"""How many of them leave, one after the other: each time the sum may be off in another direction."""


@dataclass(frozen=True, eq=False)
class SensitivityCase:
    """A subject whose rows are all alike, at some parameters and a clip norm."""

    vector: Tensor
    portrait: Portrait
    rows: int
    norm: float


def largest_move(prepared: PreparedRun, seed: int) -> float:
    """The furthest that any case moves the sum, in units of what is allowed: 1 at most, if all is well."""
    company = Batchmates(prepared)
    return max(company.move(case) for case in (*_usual(prepared, seed), *_extreme(prepared, seed)))


class Batchmates:
    """A few real rows, and what their sum is without the subject that is to be tried."""

    def __init__(self, prepared: PreparedRun) -> None:
        self._prepared = prepared
        self._policy, self._facts = prepared.plan.rows[0]
        real = some_data(prepared)
        count = min(BESIDE, real.items)
        # Everybody with one row: the fast ways are those for subjects that are alike.
        self._beside = SubjectData(real.inputs[:count], real.targets[:count], np.arange(count))
        self._known: tuple[Tensor, float, Tensor] | None = None

    def move(self, case: SensitivityCase) -> float:
        """How far the case's subject moves the sum, in units of what is allowed."""
        policy = replace(self._policy, clip=replace(self._policy.clip, norm=case.norm))
        # Its rows are all of its rows: as many of them are priced.
        allowed = allowed_move(policy, replace(self._facts, items_per_subject=case.rows))
        assert allowed is not None
        data, portrait = self._beside, case.portrait
        within = SubjectData(
            np.concatenate([data.inputs, *[portrait.stored[None]] * case.rows]),
            np.concatenate([data.targets, portrait.repeat_target(case.rows)]),
            np.append(data.subjects, np.full(case.rows, BESIDE)),
        )
        return distance(self._sum(within, policy, case.vector), self._without(policy, case.vector)) / allowed

    def _without(self, policy: Policy, vector: Tensor) -> Tensor:
        known = self._known
        if known is None or known[0] is not vector or known[1] != policy.clip.norm:
            known = self._known = vector, policy.clip.norm, self._sum(self._beside, policy, vector)
        return known[2]

    def _sum(self, data: SubjectData, policy: Policy, vector: Tensor) -> Tensor:
        data = within_batch(data, policy)
        silo = Silo(self._facts, data, spans=np.ones(data.items, np.int64))
        silo = self._prepared.learner.silos({"": silo})[""]
        return noised_sum_input(self._prepared.clipped_sum, silo, policy, vector)


def _usual(prepared: PreparedRun, seed: int) -> Iterator[SensitivityCase]:
    """At the run's own parameters, where all layers learn, and its own clip norm."""
    norm, vector = prepared.plan.rows[0][0].clip.norm, nonzero_parameters(Layout.of(prepared.model), prepared.first)
    for portrait in candidates(prepared, vector, seed):
        for rows in ROWS:
            yield SensitivityCase(vector, portrait, rows, norm)


def _extreme(prepared: PreparedRun, seed: int) -> Iterator[SensitivityCase]:
    """At parameters that a server could choose, for inputs that somebody could have."""
    own, layout = prepared.plan.rows[0][0].clip.norm, Layout.of(prepared.model)
    first = nonzero_parameters(layout, prepared.first)
    plain = candidates(prepared, first, seed)[0]
    exponents = INPUTS if np.issubdtype(plain.stored.dtype, np.floating) else INPUTS[:1]
    places = ((*at, exponent) for at in extreme_vectors(layout, first) for exponent in exponents)
    for number, (vector, certain, exponent) in enumerate(places):
        stored = _scale(plain.stored, exponent)
        portrait = Portrait(stored, prepared.task.made_up(1))
        if not certain:
            portrait = unlikely(prepared, layout, vector, stored)
        length = float(portrait_gradient(prepared, layout, vector, portrait).double().norm())
        for norm in _norms((own, LARGE)[number % 2], length):
            yield SensitivityCase(vector, portrait, ROWS[0], norm)


def extreme_vectors(layout: Layout, first: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """Parameters with extreme exponents, and whether they make class 0 all but certain."""
    biased = len(layout.shapes[-1]) == 1
    for body, last in LAYERS if set(layout.names) - _head(layout) else LAYERS[: len(HEADS)]:
        for certain in SATURATED if biased else SATURATED[:1]:
            vector = scaled_vector(layout, first, body, last)
            if certain:
                layout.views(vector)[layout.names[-1]].zero_()[0] = certain
            yield vector, bool(certain)


def nonzero_parameters(layout: Layout, first: Tensor) -> Tensor:
    """The first parameters, with draws for those that begin at zero.

    Behind a last layer of zeros no other layer has a gradient, and zero times any power of two is zero.
    """
    vector, draws = first.clone(), torch.Generator().manual_seed(0)
    for view in layout.views(vector).values():
        if not view.any():
            view.normal_(0, max(view.shape[-1], 1) ** -0.5, generator=draws)
    return vector


def scaled_vector(layout: Layout, first: Tensor, body: int, last: int) -> Tensor:
    """Parameters times powers of two: one for the last layer, another for all layers before it."""
    vector, head = first.clone(), _head(layout)
    for name, view in layout.views(vector).items():
        view.copy_(_scaled_tensor(view, last if name in head else body))
    return vector


def _head(layout: Layout) -> set[str]:
    """The last weight, and the bias behind it."""
    place = max((k for k, shape in enumerate(layout.shapes) if len(shape) > 1), default=0)
    return set(layout.names[place:])


def _norms(usual: float, length: float) -> Iterator[float]:
    """A usual one, a small one, and one whose clip factor falls between the smallest numbers."""
    yield usual
    yield SMALL
    worst = length * SMALLEST * BADLY_ROUNDED
    if LEAST_NORM < worst < MOST_NORM:
        yield worst


def _scale(stored: NDArray[np.generic], exponent: int) -> NDArray[np.generic]:
    if not exponent:
        return stored
    scaled = np.ldexp(stored.astype(np.float64), exponent)
    most = float(np.finfo(stored.dtype).max)  # type: ignore[type-var]
    return np.clip(scaled, -most, most).astype(stored.dtype)


def _scaled_tensor(values: Tensor, exponent: int) -> Tensor:
    most = torch.finfo(values.dtype).max
    return torch.ldexp(values.double(), torch.tensor(exponent)).clamp(-most, most).to(values.dtype)


def move_among_many(policy: Policy, seed: int, subjects: int) -> float:
    """The furthest that one of so many subjects moves the sum of them all, in units of what is allowed.

    Of a model as small as there is, by the gradients that train any other. Everybody pulls in nearly the same
    direction, so that the sum is as long as it can be, and the first in the batch leave, so that all others are added
    up in another order.
    """
    draws = generator(seed, Purpose.SYNTHETIC, "audit: many subjects")
    inputs = (1 + draws.normal(0, 0.1, (subjects, 1))).astype(np.float32)
    data = SubjectData(inputs, np.zeros(subjects, np.int64), np.arange(subjects))
    facts = SiloFacts(name="many", items=subjects, subjects=subjects, items_per_subject=1)
    gradients: ClippedSum = BookKeeping(nn.Linear(1, 2), cross_entropy)
    vector = torch.zeros(4)
    # A norm that everybody's gradient exceeds, and no power of two, which would be summed without an error.
    policy = replace(policy, clip=replace(policy.clip, norm=0.3), by_span=False, by_share=False)
    allowed = allowed_move(policy, facts)
    assert allowed is not None
    everybody = np.arange(subjects)
    sums = [
        noised_sum_input(gradients, Silo(facts, data.take(everybody[gone:])), policy, vector)
        for gone in range(1 + LEAVERS)
    ]
    return max(distance(one, other) for one, other in pairwise(sums)) / allowed
