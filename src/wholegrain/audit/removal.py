"""One subject leaves the file: what else changes, how far the sums move that are noised, and what an attacker sees.

Checks compare two worlds without any noise. The attack plays the training in one of them or the other, with fresh noise
each time, and guesses which; its attacker knows the file, the seed and the parameters, and not whether the subject is
in it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.audit.attacks import AttackOutcome, Tick, no_progress, secret_coins
from wholegrain.audit.neighbours import File, Neighbours, World, row_numbers
from wholegrain.audit.scores import NoiseLaw
from wholegrain.audit.sensitivity import nonzero_parameters, scaled_vector
from wholegrain.audit.simulate import NoiseOf, ObservedUpdate, simulate_run
from wholegrain.audit.sums import allowed_move, distance, noised_sum_input, within_batch
from wholegrain.clipping.clipping import ClipPer
from wholegrain.clipping.parameters import Layout
from wholegrain.clipping.reference import ClippedSum
from wholegrain.data.sampling import FixedItems
from wholegrain.data.subjects import SubjectData
from wholegrain.policies.policy import FixedNoise, Policy, SiloFacts
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.silo.training import Silo

SCALES = ((60, -60), (-60, 60))
"""Exponents of two for all layers but the last, and for that one, at which sums are compared besides the first ones."""
BESIDE = 8
"""Subjects that stay where they are, in the batch with those that do not."""
MOST_MOVED = 400
"""Subjects that moved, in the batch."""
WORK = 1e10
"""Item gradients times parameters that the attack may cost, unless the run itself costs more: some seconds."""
CALL = 1e6
"""What asking for a sum costs besides, in the same unit."""
FEWEST = 4


@dataclass(frozen=True, eq=False)
class Move:
    """The furthest that a silo's sum moved when one subject left the file, in clip norms, and what was allowed."""

    pair: Neighbours
    silo: str
    clip_norms: float
    allowed: float

    @property
    def ratio(self) -> float:
        """In units of what is allowed; where nothing is, in clip norms."""
        return self.clip_norms / (self.allowed or 1.0)


def moves(prepared: PreparedRun, file: File, pairs: list[Neighbours]) -> Iterator[Move]:
    """How far each pair's worlds are apart, in each silo, at the first parameters and at extreme ones."""
    layout = Layout.of(prepared.model)
    first = nonzero_parameters(layout, prepared.first)
    vectors = [prepared.first, *(scaled_vector(layout, first, *scales) for scales in SCALES)]
    rows = {facts.name: (policy, facts) for policy, facts in prepared.plan.rows}
    for pair in pairs:
        for name in pair.silos:
            if name not in rows:
                continue  # there is no such silo in the run: other facts than its own are public, which is told apart
            policy, facts = rows[name]
            allowed = _allowed_move(pair, name, policy, facts)
            if allowed is None:
                continue
            both = smallest_pair(prepared, file, pair, name)
            apart = max(distance(*(both.sums(prepared.clipped_sum, policy, vector))) for vector in vectors)
            yield Move(pair, name, apart / policy.clip.norm, allowed / policy.clip.norm)


def _allowed_move(pair: Neighbours, name: str, policy: Policy, facts: SiloFacts) -> float | None:
    """What was priced, if the subject is in this silo at all."""
    silo = pair.within.silos.get(name)
    own = np.zeros(0, np.bool_) if silo is None else np.isin(row_numbers(silo.data), pair.own)
    if silo is None or not own.any():
        return 0.0
    allowed = allowed_move(policy, facts)
    if allowed is None or not policy.by_span or silo.spans is None:
        return allowed
    return allowed * policy.norm_for(int(silo.spans[own][0])) / policy.clip.norm


@dataclass(frozen=True, eq=False)
class SiloPair:
    """A silo with the subject in the file and without it, as far as they differ; None where there is none."""

    within: Silo | None
    without: Silo | None

    def sums(self, gradients: ClippedSum, policy: Policy, vector: Tensor) -> tuple[Tensor, Tensor]:
        """What is handed to the noise in each."""
        one, other = (
            vector.new_zeros(vector.shape, dtype=torch.float64)
            if silo is None
            else noised_sum_input(gradients, silo, policy, vector)
            for silo in (self.within, self.without)
        )
        return one, other


def smallest_pair(prepared: PreparedRun, file: File, pair: Neighbours, name: str) -> SiloPair:
    """The subject, those whose rows differ in this silo, and some others: whoever stays adds the same to both sums."""
    one, other = (_rows(world, name) for world in (pair.within, pair.without))
    differ = np.unique(file.subjects[np.setxor1d(one, other)])
    stay = np.setdiff1d(np.unique(file.subjects[one]), differ)
    own = file.subjects[pair.own[:1]]
    subjects = np.concatenate([own, np.setdiff1d(differ, own)[:MOST_MOVED], stay[:BESIDE]])
    policy = prepared.plan.policy_for(name)
    return SiloPair(
        *(build_silo(prepared, file, world, name, policy, subjects) for world in (pair.within, pair.without))
    )


def build_silo(
    prepared: PreparedRun,
    file: File,
    world: World,
    name: str,
    policy: Policy | None = None,
    subjects: NDArray[np.int64] | None = None,
) -> Silo | None:
    """A silo of a world with its real inputs; of these subjects alone and as much as a batch takes, where asked."""
    numbered = world.silos.get(name)
    if numbered is None:
        return None
    numbers = row_numbers(numbered.data)
    kept = np.arange(len(numbers)) if subjects is None else np.flatnonzero(np.isin(file.subjects[numbers], subjects))
    if policy is not None:
        places = replace(numbered.data.take(kept), inputs=kept[:, None])
        kept = row_numbers(within_batch(places, policy))
    data = SubjectData(
        file.everyone.data.inputs[numbers[kept]], numbered.data.targets[kept], numbered.data.subjects[kept]
    )
    spans = None if numbered.spans is None else numbered.spans[kept]
    return prepared.learner.silos({name: replace(numbered, data=data, spans=spans)})[name]


def _silos(prepared: PreparedRun, file: File, world: World, names: Iterable[str]) -> dict[str, Silo]:
    found = {name: build_silo(prepared, file, world, name) for name in names}
    return {name: silo for name, silo in found.items() if silo is not None}


def _rows(world: World, name: str) -> NDArray[np.int64]:
    silo = world.silos.get(name)
    return np.zeros(0, np.int64) if silo is None else row_numbers(silo.data)


def from_the_file(
    prepared: PreparedRun, file: File, pair: Neighbours, noise: NoiseOf, runs: int, seed: int, tick: Tick = no_progress
) -> AttackOutcome:
    """Trainings on the file with the subject or without it, all other rows in it, and a score of which it was.

    Silos whose rows are the same in both worlds tell nothing and stand still. Where gradients are costly there are
    fewer rounds, or fewer trainings, than the run and the settings have.
    """
    worlds = [
        replace(prepared, silos=_silos(prepared, file, world, pair.silos)) for world in (pair.without, pair.within)
    ]
    trials, rounds = affordable(prepared, worlds[1].silos, runs)
    horizon = replace(prepared.plan.horizon, rounds=rounds)
    both = {name: smallest_pair(prepared, file, pair, name) for name in pair.silos}
    coins, scores = secret_coins(seed, "file", trials), []
    for trial, present in enumerate(coins):
        world = worlds[int(present)]
        score = DirectionWatcher(prepared, both, worlds[0].silos)
        actual = replace(world, plan=replace(prepared.plan, horizon=horizon), noise=noise(2 * runs + trial))
        for _ in simulate_run(actual, prepared.first, score, moving=pair.silos):
            pass
        scores.append(score.sum)
        tick()
    return AttackOutcome(coins, {"level": np.array(scores)}, NoiseLaw())


def affordable(prepared: PreparedRun, silos: Mapping[str, Silo], runs: int) -> tuple[int, int]:
    """How many trainings, of how many rounds each: at most what was asked for and what the run has."""
    rows = {facts.name: policy for policy, facts in prepared.plan.rows}
    horizon, each = prepared.plan.horizon, 0.0
    for name, silo in silos.items():
        items = silo.data.items * (1 + horizon.steps * _rate(rows[name], silo))
        each += items * prepared.first.numel() + (horizon.steps + 3) * CALL
    total = max(horizon.rounds, int(WORK / each))
    trials = max(min(runs, FEWEST), min(runs, total))
    return trials, max(1, min(horizon.rounds, total // trials))


class DirectionWatcher:
    """A watcher that looks how far each update lies on the way from one world's expected sum to the other's."""

    def __init__(self, prepared: PreparedRun, both: Mapping[str, SiloPair], without: Mapping[str, Silo]) -> None:
        self._gradients, self._steps = prepared.clipped_sum, prepared.plan.horizon.steps
        self._both, self._without = both, without
        self.sum = 0.0

    def __call__(self, seen: ObservedUpdate) -> None:
        """Take in one update."""
        policy, facts = seen.row
        if facts.name not in self._both:
            return
        norm, silo = policy.clip.norm, self._without[facts.name]
        one, other = self._both[facts.name].sums(self._gradients, policy, seen.start)
        apart = (one - other) / norm
        # A clip of the whole batch is the same for few items as for many.
        share = 1.0 if policy.clip.per is ClipPer.BATCH else _rate(policy, silo)
        expected = noised_sum_input(self._gradients, silo, policy, seen.start) * (share * self._steps / norm)
        beyond = float((seen.in_clip_norms(seen.moved).double() - expected) @ apart)
        sigma = policy.noise.multiplier if isinstance(policy.noise, FixedNoise) else 0.0
        self.sum += share * (beyond - share * self._steps * float(apart @ apart) / 2) / (sigma or 1.0) ** 2


def _rate(policy: Policy, silo: Silo) -> float:
    """What share of a silo's sum is in a batch, on average."""
    sampling = policy.sampling
    return min(1.0, sampling.size / max(1, silo.data.items)) if isinstance(sampling, FixedItems) else sampling.rate


def widest_pair(found: list[Move]) -> Neighbours | None:
    """The pair whose worlds lie furthest apart, of those that have the same silos; None where none differ."""
    apart: dict[Neighbours, float] = {}
    for move in found:
        if set(move.pair.within.silos) == set(move.pair.without.silos):
            apart[move.pair] = apart.get(move.pair, 0.0) + move.clip_norms**2
    return max(apart, key=lambda pair: apart[pair], default=None)
