"""Algorithms that others print, and ours beside them: who is clipped as one, what each counts, and the noise of it.

ULDP-NAIVE, ULDP-GROUP, ULDP-SGD, ULDP-AVG and its weighted form are those of Kato et al. (arXiv 2308.12210); DP-FedAvg
clips what a silo sends; example-level DP-SGD becomes user-level by group privacy; central user-level DP has all records
in one trusted place and is the upper line. All of them are full-batch here, so that a round is one Gaussian mechanism
and group privacy is exact: the sum of a person's k clipped records moves by k·C. That favours the rivals, whose papers
price sampling and groups more coarsely.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.sparse import coo_matrix, csr_matrix
from scipy.stats import norm

from wholegrain.data.subjects import rank_within
from wholegrain.policies.policy import SHARE_STEPS

Floats = NDArray[np.floating[Any]]
Numbers = NDArray[np.int64]
LOCAL_STEPS, LOCAL_RATE = 3, 0.5
MANY = 40
"""Records that the owner of a record has on average, from which on owners are taken one by one."""
PART = 1_000
"""Records of a part, about: nobody's are in two parts."""
AT_ONCE = 1_000_000
"""Inner products that are computed at once, few enough for memory."""


@dataclass(frozen=True)
class Bounds:
    """What is public: silos, and how many of them (M) and how many records in all one person can have."""

    silos: int
    span: int
    records: int


@dataclass(frozen=True, eq=False)
class Records:
    """All silos' records: inputs [record, feature] with a constant, targets, and whose and where they are."""

    inputs: Floats
    targets: Floats
    person: Numbers
    silo: Numbers

    @property
    def people(self) -> int:
        return int(self.person.max()) + 1

    @cached_property
    def owners(self) -> Mapping[str, "Owners"]:
        """Who is clipped as one, by kind."""
        return {
            "record": Owners.of(np.arange(len(self.person)), self),
            "silo": Owners.of(self.silo, self, few=True),
            "pair": Owners.of(self.silo * self.people + self.person, self),
            "person": Owners.of(self.person, self),
        }

    @cached_property
    def lengths(self) -> Floats:
        """Of each record's input [record]."""
        return np.sqrt(np.einsum("ij,ij->i", self.inputs, self.inputs))

    @cached_property
    def parts(self) -> tuple["Records", ...]:
        """All records, some people after the others: so few at once that a processor's cache holds their scores."""
        order = np.argsort(self.person, kind="stable")
        ends = np.cumsum(np.bincount(self.person, minlength=self.people))
        number = (ends - 1)[self.person[order]] // PART
        return tuple(self.take(own) for own in np.split(order, np.flatnonzero(np.diff(number)) + 1))

    @cached_property
    def silos(self) -> tuple["Records", ...]:
        """Silo by silo; in how many others a person is, they do not tell."""
        return tuple(self.take(self.silo == each) for each in np.unique(self.silo))

    def divided(self, owner: str) -> tuple["Records", ...]:
        """All records, so that nobody who is clipped as one is in two parts."""
        return self.silos if owner == "silo" else self.parts

    def take(self, kept: NDArray[Any]) -> "Records":
        """Some of the records."""
        return Records(self.inputs[kept], self.targets[kept], self.person[kept], self.silo[kept])

    def without(self, person: int) -> "Records":
        """All but one person's records."""
        return self.take(self.person != person)

    def capped(self, most: int) -> "Records":
        """At most so many records of each person in all: the first ones."""
        return self.take(rank_within(self.person) < most)

    def drawn(self, most: int, draws: np.random.Generator) -> "Records":
        """At most so many records of each person in a silo, drawn at random."""
        order = draws.permutation(len(self.person))
        pairs = (self.silo * self.people + self.person)[order]
        return self.take(np.sort(order[rank_within(pairs) < most]))


@dataclass(frozen=True, eq=False)
class Owners:
    """Groups of records: which they are [owner, record], how many each has, and of whose records which share."""

    members: csr_matrix
    of_record: Numbers
    count: Floats
    span: Floats
    """In how many silos the owner's person is."""
    share: Floats
    """Which share of its person's records the owner has."""
    inputs: Floats
    few: bool
    """Whether they have many records each, and are taken one by one."""

    @classmethod
    def of(cls, codes: Numbers, records: Records, few: bool = False) -> "Owners":
        _, first, owner, count = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
        pairs = np.unique(records.silo * records.people + records.person)
        spans = np.bincount(pairs % records.people, minlength=records.people)
        own = np.bincount(records.person, minlength=records.people)
        person, ones = records.person[first], np.ones(len(owner), np.float32)
        members = csr_matrix((ones, (owner, np.arange(len(owner)))))
        few = few or bool((count**2).sum() > MANY * len(owner))
        return cls(members, owner, count, spans[person], count / own[person], records.inputs, few)

    @cached_property
    def products(self) -> csr_matrix:
        """Inner products of the inputs of one owner's records."""
        pairs = (self.members.T @ self.members).tocoo()
        values = np.empty(pairs.nnz, np.float32)
        for first in range(0, pairs.nnz, AT_ONCE):
            own = slice(first, first + AT_ONCE)
            values[own] = np.einsum("ij,ij->i", self.inputs[pairs.row[own]], self.inputs[pairs.col[own]])
        return coo_matrix((values, (pairs.row, pairs.col)), pairs.shape).tocsr()

    def meet(self, parts: Floats) -> Floats:
        """Each record's input times its owner's combination of inputs, whose factors are `parts` [record, column]."""
        if not self.few:
            return self.products @ parts  # type: ignore[no-any-return]
        met = np.empty_like(parts)
        for own, inputs in self._each:
            met[own] = inputs @ (inputs.T @ parts[own])
        return met

    def squares(self, parts: Floats, added: Callable[[Floats, Floats], Floats]) -> Floats:
        """The squared length of each owner's combination of inputs; products are added up by column [owner, column]."""
        if not self.few:
            return np.maximum(self.members @ added(parts, self.meet(parts)), np.float32(0))
        sums = (inputs.T @ parts[own] for own, inputs in self._each)
        return np.stack([added(each, each).sum(0) for each in sums])

    @cached_property
    def _each(self) -> list[tuple[Numbers | slice, Floats]]:
        """Where each owner's records are, and their inputs; what lies side by side need not be copied."""
        places = np.split(np.argsort(self.of_record, kind="stable"), np.cumsum(self.count)[:-1])
        found = [slice(own[0], own[-1] + 1) if own[-1] - own[0] < len(own) else own for own in places]
        return [(own, self.inputs[own]) for own in found]

    @cached_property
    def _parts(self) -> Floats:
        return (1 / self.count[self.of_record, None]).astype(np.float32)

    def spread(self, parts: Floats, pool: str) -> Floats:
        """What each record counts in its owner's mean, or sum [record, column]."""
        return parts if pool == "sum" else parts * self._parts


Weights = Callable[[Owners, Bounds], Floats]


def _alike(owners: Owners, bounds: Bounds) -> Floats:
    return np.ones(len(owners.span))


def _even(owners: Owners, bounds: Bounds) -> Floats:
    return np.full(len(owners.span), 1 / bounds.silos)


def _by_share(owners: Owners, bounds: Bounds) -> Floats:
    return owners.share


@dataclass(frozen=True)
class Method:
    """Who is clipped as one, what each counts, and how far one person can move what is seen, as a multiple of C."""

    owner: str
    moves: Callable[[Bounds], float]
    """Proved. Of what is summed where `each` is not set, of all silos' releases as one vector where it is."""
    trust: str
    weight: Weights = _alike
    steps: int = 1
    cap: int | None = None
    """Records of a person that are used at most; of our methods, in a silo and drawn anew in each round."""
    each: bool = False
    """Whether every silo's release is seen and has noise of its own."""
    printed: Callable[[Bounds], float] | None = None
    """How far a person moves it by its paper, where that is less than what can be proved."""
    pool: str = "mean"
    """Whether an owner's gradients are averaged or added up before they are clipped."""
    averaged: bool = False
    """Whether records that were clipped are averaged within their person in a silo."""
    policy: str = "subject_dp"
    """The library's name of it, of our methods."""
    sections: Mapping[str, Any] = field(default_factory=dict)
    """The spec's section `trust`, of our methods."""
    by_span: bool = False
    by_share: bool = False
    """Whether silos must know spans, of our methods, and shares."""
    inside: bool = False
    """Whether an owner is clipped to its weight times C, as by the library; else what is clipped to C is weighted."""

    @property
    def sums(self) -> tuple[object, ...]:
        """What its sum depends on: two methods that agree in it and have the same noise are one."""
        return self.owner, self.weight, self.steps, self.cap, self.pool, self.averaged, self.inside

    def noise(self, multiplier: float, bounds: Bounds) -> float:
        """The standard deviation of all noise together, as a multiple of C."""
        return multiplier * self.moves(bounds) * (np.sqrt(bounds.silos) if self.each else 1.0)

    @property
    def draws(self) -> bool:
        """Whether each round draws its records anew: the library does, where a batch holds few of a person's."""
        return self.inside and self.cap is not None

    def used(self, records: Records) -> Records:
        """The records that are trained on."""
        return records if self.cap is None or self.draws else records.capped(self.cap)

    def batch(self, records: Records, draws: np.random.Generator) -> Records:
        """Those of one round."""
        return records.drawn(self.cap, draws) if self.draws and self.cap else records

    def kept_records(self, lengths: Floats, records: Records, bounds: Bounds, clips: Floats) -> Floats:
        """The factor of each record [record, column] where records are clipped by themselves."""
        kept = self.kept(lengths, self.weight(records.owners["record"], bounds), clips)
        return records.owners["pair"].spread(kept, "mean") if self.averaged else kept

    def reach(self, records: Records, bounds: Bounds) -> float:
        """How far a sum of contributions could go at most, as a multiple of C."""
        weights = self.weight(records.owners[self.owner], bounds)[:, None]
        return float((records.owners["pair"].spread(weights, "mean") if self.averaged else weights).sum())

    def kept(self, lengths: Floats, weights: Floats, clips: Floats) -> Floats:
        """The factor of each owner's contribution [owner, column], from its length, for each clip norm [column]."""
        column, norms = weights[:, None].astype(np.float32), np.asarray(clips, np.float32)
        reached = column * norms / np.maximum(lengths, np.float32(1e-12))
        return np.minimum(np.float32(1) if self.inside else column, reached, out=reached)


AGGREGATOR = "secure aggregation of all silos; none drops out, none colludes"
COLLUSION = "a secure sum; a sixth of the silos may drop out, one may collude"
ONE_PLACE = "one trusted place"
CAPPED = "nobody; whoever caps records knows them all"


TRUST: Mapping[str, Mapping[str, Any]] = {
    "nobody": {"model": "local"},
    COLLUSION: {"model": "secure_sum"},
    AGGREGATOR: {"model": "secure_sum", "answers": "all", "colluding": 0},
}


def _ours(trust: str, weight: Weights, steps: int = 1, pool: str = "mean") -> Method:
    made = Method("pair", lambda bounds: 1, trust, weight, steps, each=trust == "nobody", pool=pool)
    policy = "uldp_avg" if steps > 1 else "subject_dp"
    return replace(made, policy=policy, sections=TRUST[trust], by_span=True, inside=True)


def _by_records(policy: str, cap: int | None = None) -> Method:
    """Records are clipped one by one, to C/m; of one person's in a silo the mean counts, or at most so many."""
    made = Method("record", lambda bounds: cap or 1, AGGREGATOR, _by_span, cap=cap, averaged=cap is None)
    return replace(made, policy=policy, sections=TRUST[AGGREGATOR], by_span=True, inside=True)


def _whole_share(owners: Owners, bounds: Bounds) -> Floats:
    """Rounded down, as the library does."""
    return SHARE_STEPS / np.ceil(SHARE_STEPS / owners.share - 1e-6)


def _without_spans(trust: str) -> Method:
    return Method("pair", lambda bounds: bounds.span, trust, pool="sum", sections=TRUST[trust], inside=True)


def _by_span(owners: Owners, bounds: Bounds) -> Floats:
    return 1 / owners.span


def _by_root(owners: Owners, bounds: Bounds) -> Floats:
    return 1 / np.sqrt(owners.span)


METHODS: Mapping[str, Method] = {
    # Whatever a silo sends lies in a ball of radius C: one person can move it across. The paper counts one radius.
    "ULDP-NAIVE": Method("silo", lambda b: 2 * b.silos, AGGREGATOR, steps=3, printed=lambda b: b.silos),
    "DP-FedAvg, silo": Method("silo", lambda b: 2 * b.span, AGGREGATOR, steps=3, printed=lambda b: b.span),
    "ULDP-GROUP-2": Method("record", lambda b: 2, CAPPED, cap=2, each=True),
    "ULDP-GROUP-8": Method("record", lambda b: 8, CAPPED, cap=8, each=True),
    # The paper has noise for a move of C; of a person in M silos at most, M of S parts move.
    "ULDP-SGD": Method("pair", lambda b: b.span / b.silos, AGGREGATOR, _even),
    "ULDP-AVG": Method("pair", lambda b: b.span / b.silos, AGGREGATOR, _even, steps=LOCAL_STEPS),
    "ULDP-AVG-w": Method("pair", lambda b: 1, AGGREGATOR, _by_share, steps=LOCAL_STEPS),
    # Not in the paper: the weights of ULDP-AVG-w without its local steps, to tell what each of them is worth.
    "ULDP-SGD-w": Method("pair", lambda b: 1, AGGREGATOR, _by_share),
    "DP-SGD, group": Method("record", lambda b: b.records, ONE_PLACE),
    "central": Method("person", lambda b: 1, ONE_PLACE),
    "ours, local": _ours("nobody", _by_root),
    "ours, local, pooled": _ours("nobody", _by_root, pool="sum"),
    "ours, sum": _ours(COLLUSION, _by_span),
    "ours, sum, pooled": _ours(COLLUSION, _by_span, pool="sum"),
    "ours, full sum": _ours(AGGREGATOR, _by_span),
    "ours, full sum, pooled": _ours(AGGREGATOR, _by_span, pool="sum"),
    "ours, full sum, local steps": _ours(AGGREGATOR, _by_span, LOCAL_STEPS),
    "ours, full sum, by share": replace(_ours(AGGREGATOR, _whole_share, pool="sum"), by_share=True),
    "ours, full sum, records": _by_records("higradavg_dp"),
    "ours, full sum, group-2": _by_records("local_group_dp", cap=2),
    # Where silos know no spans, a person moves a sum in all of M silos, and every record counts.
    "ours, sum, no spans": _without_spans(COLLUSION),
    "ours, full sum, no spans": _without_spans(AGGREGATOR),
}
OURS = {name: each for name, each in METHODS.items() if name.startswith("ours")}


def multiplier(epsilon: float, delta: float, rounds: int) -> float:
    """σ of each of `rounds` Gaussian mechanisms that together are (ε, δ)-private, exactly [Balle and Wang 2018]."""

    def excess(sigma: float) -> float:
        return gaussian_delta(epsilon, sigma) - delta

    return float(brentq(excess, 1e-2, 1e4)) * float(np.sqrt(rounds))


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """δ of one Gaussian mechanism with σ at ε."""
    half = 1 / (2 * sigma)
    return float(norm.cdf(half - epsilon * sigma) - np.exp(epsilon + norm.logcdf(-half - epsilon * sigma)))


def proved(claimed: float, delta: float, ratio: float) -> float:
    """The ε that is proved of noise that was calibrated to `claimed` for moves `ratio` times too small."""
    sigma = multiplier(claimed, delta, 1) / ratio
    return float(brentq(lambda epsilon: gaussian_delta(epsilon, sigma) - delta, 1e-3, 1e4))
