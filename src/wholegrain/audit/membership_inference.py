"""Subject membership inference, as a person would worry about it [Suri et al. 2022].

Somebody who has other items of a person, none of which was trained on, wants to know whether the person was in the
training. Half of the people are members; of each, half of the items are kept out of the training and are what the
attacker has. The score is by how much the mean loss on them fell, on average over the rounds: it falls for everybody
as the model learns, and further for those whose other items taught it.

What is found here is what a plain attack finds on real data: a picture, not a bound. Not private.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from torch.nn.functional import cross_entropy

from wholegrain._random import Purpose, generator
from wholegrain.audit.confidence_bounds import at_least
from wholegrain.audit.simulate import ignore_updates, simulate_run
from wholegrain.clipping.parameters import Layout, call
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData, rank_within
from wholegrain.errors import DataError
from wholegrain.models.dropout import without_dropout
from wholegrain.models.model_inputs import values
from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.definitions import Guarantee, Unit
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec

FEWEST = 10
"""People on each side without whom there is nothing to say."""
LOOKS = 10
"""Rounds at which losses are taken, at most."""
CHUNK = 1024
RESAMPLES = 999
FALSE_POSITIVE_RATES = (0.01, 0.001)

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Rate:
    """True positives at a false-positive rate, with the ends of their interval; `resolved` if people are enough."""

    false_positives: float
    true_positives: float
    low: float
    high: float
    resolved: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Membership:
    """The attack's scores of members and others, and what they come to."""

    members: Values
    others: Values
    guarantee: Guarantee
    auc: float
    auc_interval: tuple[float, float]
    rates: tuple[Rate, ...]
    confidence: float


@dataclass(frozen=True, eq=False)
class MembershipSplit:
    """Who is trained on and who is asked about: positions of items, and for those kept out whether of a member."""

    trained: NDArray[np.int64]
    kept: NDArray[np.int64]
    of_member: NDArray[np.bool_]


def membership(
    spec: RunSpec, dataset: Dataset, *, pricing: Accountant | None = None, seed: int = 0, confidence: float = 0.95
) -> Membership:
    """Train once, as the spec says, on half of the items of half of the people, and try to tell who they were."""
    cast = split_members(dataset.data, seed)
    prepared = prepare(_without_test_part(spec), dataset=_part(dataset, cast.trained), pricing=pricing)
    kept = dataset.data.take(cast.kept)
    fell = _fall(prepared, kept)
    people, first = np.unique(kept.subjects, return_index=True)
    scores = np.bincount(np.searchsorted(people, kept.subjects), weights=fell) / kept.index.counts
    member = cast.of_member[first]
    return measure_attack(scores[member], scores[~member], prepared.plan.guarantee(Unit.SUBJECT), confidence, seed)


def split_members(data: SubjectData, seed: int) -> MembershipSplit:
    """A coin for each person, and of each person with two items or more half of them, drawn at random.

    Guarantee: whether a person is a member depends on nothing but the coin.
    """
    draws = generator(seed, Purpose.SYNTHETIC, "audit: members")
    member = draws.integers(2, size=data.subject_count).astype(np.bool_)[data.index.subjects]
    order = draws.permutation(data.items)
    ranks = np.empty(data.items, np.int64)
    ranks[order] = rank_within(data.subjects[order])
    counts = data.index.counts[data.index.subjects]
    kept = (counts >= 2) & (ranks < counts // 2)
    if min(np.unique(data.subjects[kept & of]).size for of in (member, ~member)) < FEWEST:
        raise DataError(
            f"Membership of fewer than {FEWEST} people on each side says nothing; it takes people with two items or"
            " more, half of whom are held out."
        )
    return MembershipSplit(np.flatnonzero(member & ~kept), np.flatnonzero(kept), member[kept])


def measure_attack(members: Values, others: Values, guarantee: Guarantee, confidence: float, seed: int) -> Membership:
    """AUC with a bootstrap interval, and true positives at low false-positive rates with exact ones."""
    found = stats.bootstrap(
        (members, others),
        auc,
        n_resamples=RESAMPLES,
        vectorized=True,
        confidence_level=confidence,
        method="percentile",
        rng=generator(seed, Purpose.SYNTHETIC, "audit: bootstrap"),
    ).confidence_interval
    return Membership(
        members=members,
        others=others,
        guarantee=guarantee,
        auc=float(auc(members, others)),
        auc_interval=(float(found.low), float(found.high)),
        rates=tuple(true_positive_rate(members, others, rate, confidence) for rate in FALSE_POSITIVE_RATES),
        confidence=confidence,
    )


def auc(members: Values, others: Values, axis: int = -1) -> Values:
    """The chance that a member's score is above another's; a tie counts half.

    >>> float(auc(np.array([3.0, 2.0]), np.array([1.0, 2.0])))
    0.875
    """
    together = np.concatenate([members, others], axis=axis)
    n, m = members.shape[axis], others.shape[axis]
    ranks = np.take(stats.rankdata(together, axis=axis), np.arange(n), axis=axis)
    area: Values = (ranks.sum(axis) - n * (n + 1) / 2) / (n * m)
    return area


def true_positive_rate(members: Values, others: Values, false_positives: float, confidence: float) -> Rate:
    """True positives above the lowest line with so few false ones.

    >>> true_positive_rate(np.array([3.0, 1.0]), np.arange(0.0, 2.0, 0.01), 0.01, 0.95).true_positives
    0.5
    """
    allowed = int(false_positives * len(others))
    line = np.sort(others)[::-1][allowed]
    hits, count, tail = int((members > line).sum()), len(members), (1 - confidence) / 2
    return Rate(
        false_positives=false_positives,
        true_positives=hits / count,
        low=at_least(hits, count, tail),
        high=1 - at_least(count - hits, count, tail),
        resolved=allowed > 0,
    )


def _fall(prepared: PreparedRun, kept: SubjectData) -> Values:
    """By how much each item's loss fell, on average over the rounds that are looked at [item]."""
    start, last = prepared.first, prepared.plan.horizon.rounds
    every = max(1, last // LOOKS)
    looks = [
        item_losses(prepared, vector, kept)
        for round, vector in enumerate(simulate_run(prepared, start, ignore_updates), start=1)
        if round % every == 0 or round == last
    ]
    fall: Values = item_losses(prepared, start, kept) - np.mean(looks, axis=0)
    return fall


def item_losses(prepared: PreparedRun, vector: Tensor, data: SubjectData) -> Values:
    """The loss on each item [item]; one that is not finite counts as very large."""
    return np.concatenate(list(_losses(prepared, vector, data)))


def _losses(prepared: PreparedRun, vector: Tensor, data: SubjectData) -> Iterator[Values]:
    layout, inputs = Layout.of(prepared.model), torch.from_numpy(data.inputs)
    targets = torch.from_numpy(data.targets)
    with torch.no_grad(), without_dropout(prepared.model):
        for x, y in zip(torch.split(inputs, CHUNK), torch.split(targets, CHUNK), strict=True):
            losses = _each(prepared, call(prepared.model, layout, vector, values(x)), y)
            yield losses.nan_to_num(1e6, 1e6).to(torch.float64).numpy()


def _each(prepared: PreparedRun, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each item [item]: one call where the loss is the usual one of classes, else one for each."""
    if prepared.loss is cross_entropy:
        return cross_entropy(outputs, targets, reduction="none")
    return torch.stack([prepared.loss(outputs[k : k + 1], targets[k : k + 1]) for k in range(len(targets))])


def _part(dataset: Dataset, index: NDArray[np.int64]) -> Dataset:
    return Dataset(
        name=dataset.name,
        data=dataset.data.take(index),
        task=dataset.task,
        silos=None if dataset.silos is None else dataset.silos[index],
        items_per_subject=dataset.items_per_subject,
    )


def _without_test_part(spec: RunSpec) -> RunSpec:
    """The spec with nothing held out: who is scored was held out already."""
    evaluation = spec.evaluation.model_copy(update={"test": 0.0, "validation": 0.0, "train": False})
    return spec.model_copy(update={"evaluation": evaluation})
