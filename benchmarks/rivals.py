"""Algorithms that others print, and ours beside them, as sums of clipped contributions of a linear model.

ULDP-NAIVE, ULDP-GROUP, ULDP-SGD, ULDP-AVG and its weighted form are those of Kato et al. (arXiv 2308.12210); DP-FedAvg
clips what a silo sends; example-level DP-SGD becomes user-level by group privacy; central user-level DP has all records
in one trusted place and is the upper line. All of them are full-batch here, so that a round is one Gaussian mechanism
and group privacy is exact: the sum of a person's k clipped records moves by k·C. That favours the rivals, whose papers
price sampling and groups more coarsely.

The model has a score for each of two classes, and only their difference is trained: its gradient is twice that of the
second class, its length √2 times as much.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.sparse import csr_matrix
from scipy.special import expit
from scipy.stats import norm

Floats = NDArray[np.floating[Any]]
Numbers = NDArray[np.int64]
LOCAL_STEPS, LOCAL_RATE = 3, 0.5


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
            "silo": Owners.of(self.silo, self),
            "pair": Owners.of(self.silo * self.people + self.person, self),
            "person": Owners.of(self.person, self),
        }

    def without(self, person: int) -> "Records":
        """All but one person's records."""
        kept = self.person != person
        return Records(self.inputs[kept], self.targets[kept], self.person[kept], self.silo[kept])

    def capped(self, most: int) -> "Records":
        """At most so many records of each person: the first ones."""
        order = np.argsort(self.person, kind="stable")
        ordered = self.person[order]
        place = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        kept = np.sort(order[place < most])
        return Records(self.inputs[kept], self.targets[kept], self.person[kept], self.silo[kept])


@dataclass(frozen=True, eq=False)
class Owners:
    """Groups of records: the mean over each [owner, record], whose it is, and how many records it has."""

    means: csr_matrix
    of_record: Numbers
    span: Floats
    """In how many silos the owner's person is."""
    share: Floats
    """Which share of its person's records the owner has."""

    @classmethod
    def of(cls, codes: Numbers, records: Records) -> "Owners":
        _, first, owner, count = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
        share = (1 / count[owner]).astype(np.float32)
        pairs = np.unique(records.silo * records.people + records.person)
        spans = np.bincount(pairs % records.people, minlength=records.people)
        own = np.bincount(records.person, minlength=records.people)
        person = records.person[first]
        return cls(csr_matrix((share, (owner, np.arange(len(owner))))), owner, spans[person], count / own[person])


@dataclass(frozen=True)
class Method:
    """Who is clipped as one, what each counts, and how far one person can move what is seen, as a multiple of C."""

    owner: str
    moves: Callable[[Bounds], float]
    """Proved. Of what is summed where `each` is not set, of all silos' releases as one vector where it is."""
    trust: str
    weight: Callable[[Owners, Bounds], Floats] = lambda owners, bounds: np.ones(len(owners.span))
    steps: int = 1
    cap: int | None = None
    """Records of a person that are used at most."""
    each: bool = False
    """Whether every silo's release is seen and has noise of its own."""
    printed: Callable[[Bounds], float] | None = None
    """How far a person moves it by its paper, where that is less than what can be proved."""

    def noise(self, multiplier: float, bounds: Bounds) -> float:
        """The standard deviation of all noise together, as a multiple of C."""
        return multiplier * self.moves(bounds) * (np.sqrt(bounds.silos) if self.each else 1.0)


def _even(owners: Owners, bounds: Bounds) -> Floats:
    return np.full(len(owners.span), 1 / bounds.silos)


AGGREGATOR = "secure aggregation of all silos; none drops out, none colludes"
COLLUSION = "a secure sum; a sixth of the silos may drop out, one may collude"
METHODS: Mapping[str, Method] = {
    # Whatever a silo sends lies in a ball of radius C: one person can move it across. The paper counts one radius.
    "ULDP-NAIVE": Method("silo", lambda b: 2 * b.silos, AGGREGATOR, steps=3, printed=lambda b: b.silos),
    "DP-FedAvg, silo": Method("silo", lambda b: 2 * b.span, AGGREGATOR, steps=3, printed=lambda b: b.span),
    "ULDP-GROUP-2": Method("record", lambda b: 2, "nobody; whoever caps records knows them all", cap=2, each=True),
    "ULDP-GROUP-8": Method("record", lambda b: 8, "nobody; whoever caps records knows them all", cap=8, each=True),
    "ULDP-SGD": Method("pair", lambda b: 1, AGGREGATOR, _even),
    "ULDP-AVG": Method("pair", lambda b: 1, AGGREGATOR, _even, steps=LOCAL_STEPS),
    "ULDP-AVG-w": Method("pair", lambda b: 1, AGGREGATOR, lambda o, b: o.share, steps=LOCAL_STEPS),
    "DP-SGD, group": Method("record", lambda b: b.records, "one trusted place"),
    "central": Method("person", lambda b: 1, "one trusted place"),
    "ours, local": Method("pair", lambda b: 1, "nobody", lambda o, b: 1 / np.sqrt(o.span), each=True),
    "ours, secure sum": Method("pair", lambda b: 1, COLLUSION, lambda o, b: 1 / o.span),
    "ours, secure sum, local steps": Method("pair", lambda b: 1, COLLUSION, lambda o, b: 1 / o.span, LOCAL_STEPS),
}
OURS = {
    "ours, local": ("subject_dp", "local"),
    "ours, secure sum": ("subject_dp", "secure_sum"),
    "ours, secure sum, local steps": ("uldp_avg", "secure_sum"),
}
"""The library's policy and trust, whose plan says how much noise there is."""


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


def total(method: Method, records: Records, bounds: Bounds, vector: Floats, clip: float) -> tuple[Floats, float]:
    """The sum of clipped contributions, of the second class; and how far it could reach at most, as a multiple of C."""
    if method.owner == "record":
        errors = _errors(records, records.inputs @ vector.astype(np.float32))
        lengths = np.sqrt(2 * np.einsum("ij,ij->i", records.inputs, records.inputs)) * np.abs(errors)
        return (errors * np.minimum(1, clip / np.maximum(lengths, 1e-12))) @ records.inputs, float(len(errors))
    owners = records.owners[method.owner]
    each = _updates(records, owners, vector.astype(np.float32), method.steps)
    weights = method.weight(owners, bounds)
    lengths = np.sqrt(2 * np.einsum("ij,ij->i", each, each))
    return (weights * np.minimum(1, clip / np.maximum(lengths, 1e-12))) @ each, float(weights.sum())


def _errors(records: Records, scores: Floats) -> Floats:
    return expit(scores) - records.targets


def _updates(records: Records, owners: Owners, vector: Floats, steps: int) -> Floats:
    """How far each owner comes in its local steps; of one step, its gradient."""
    mean: Floats = owners.means @ (_errors(records, records.inputs @ vector)[:, None] * records.inputs)
    sum_, own = mean.copy(), vector - np.zeros_like(mean)
    for _ in range(steps - 1):
        own -= LOCAL_RATE * 2 * mean
        scores = np.einsum("ij,ij->i", own[owners.of_record], records.inputs)
        mean = owners.means @ (_errors(records, scores)[:, None] * records.inputs)
        sum_ += mean
    return sum_
