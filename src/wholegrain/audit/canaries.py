"""Canaries: subjects made up to be found, in data that is otherwise real or empty.

A canary's rows are rows like any others: they lie in silos, are held to the silo's bounds by the code that holds
everybody's, are drawn by the policy's sampler, clipped, pooled, noised and averaged. Only their gradients are made up:
far longer than the clip norm, and wholly in a block of parameters behind the model's, which nothing else uses. There a
canary moves what is released by as much as the policy allows anybody to, and disturbs neither the model nor another
canary. What a row is, is told by its target, which is beyond all classes and bounds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.audit.canary_gradients import Codes, ExtendedClippedSum, made_up_targets
from wholegrain.clipping.clipping import ClipPer
from wholegrain.clipping.reference import ClippedSum
from wholegrain.data.dataset import Dataset
from wholegrain.data.sampling import FixedItems
from wholegrain.data.subjects import SubjectData
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.datasets import split_dataset
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.noise import NoiseSource
from wholegrain.silo.training import Silo

Row = tuple[Policy, SiloFacts]

LONG = 100.0
"""How many clip norms long a made-up gradient is; a canary's is so many times longer than those of all companions."""
RARELY = 1e-4
"""How often a batch may do without any companion where one is to be in every batch."""
MOST_COMPANIONS = 1 << 32
SURPLUS = 3
"""Where surplus items are dropped, a canary brings so many times the items that it may have.

Not in a crowd, where the rows of thousands of them would only cost memory.
"""


@dataclass(frozen=True)
class Block:
    """Parameters behind the model's: one for each canary, one for companions, and some that only noise reaches."""

    canaries: int
    spare: int

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.canaries + 1 + self.spare

    @property
    def unused(self) -> slice:
        """Those that nothing but noise reaches."""
        return slice(self.canaries + 1, self.size)


class CanaryCompany(StrEnum):
    """Who else is in the data. A proof holds whoever is, so an audit may choose."""

    CROWD = "all real rows"
    """As the run would have it."""
    MADE_UP = "made-up companions"
    """Few of them, of no consequence but for a clip of the whole batch, where they pull against the canary. The harder
    test, and the cheaper one: nothing of the model is computed."""
    ONE = "one real row"
    """Nobody is made up, and hardly anybody else is there."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Design:
    """How canaries are planted in the data of a prepared run."""

    prepared: PreparedRun
    unit: Unit
    block: Block
    company: CanaryCompany

    @cached_property
    def homes(self) -> tuple[tuple[str, ...], ...]:
        """Sets of silos, each as many as a unit may be in; the k-th canary lives in the k-th of them, and so on again.

        Silos are taken in the order of what they release; those left over hold none.
        """
        plan = self.prepared.plan
        releases = plan.horizon.releases()
        silos = sorted(self.prepared.silos, key=lambda name: -releases.get(name, 0))
        size = plan.span if self.unit is Unit.SUBJECT else 1
        return tuple(tuple(silos[start : start + size]) for start in range(0, len(silos) - size + 1, size))

    @cached_property
    def home_of(self) -> Mapping[str, int]:
        """The number of each silo's home."""
        return {silo: number for number, home in enumerate(self.homes) for silo in home}

    def rows(self, silo: SiloFacts) -> int:
        """How many rows each canary brings to a silo of its home; the silo may drop some of them."""
        bound = silo.items_per_subject
        if self.unit is Unit.ITEM or bound is None:
            return 1
        return SURPLUS * bound if silo.drops_surplus and self.company is not CanaryCompany.CROWD else bound

    @cached_property
    def lengths(self) -> Tensor:
        """The gradient of each code [code], with its sign: canaries, then companions by home, then siblings."""
        rows = self.prepared.plan.rows
        other = LONG * rows[0][0].clip.norm
        canary = LONG * other * max(1, *(len(self.companions(row)) for row in rows))
        others = len(self.homes) + 1 + self.block.canaries
        return torch.tensor([canary] * self.block.canaries + [-other] * others, dtype=torch.float32)

    @cached_property
    def coordinates(self) -> Tensor:
        """The parameter that each code moves [code]."""
        canaries = list(range(self.block.canaries))
        aside = [self.block.canaries] * (len(self.homes) + 1)
        opposed = self.prepared.plan.rows[0][0].clip.per is ClipPer.BATCH
        company = [*range(len(self.homes)), self.block.canaries] if opposed else aside
        return torch.tensor([*canaries, *company, *canaries])

    def companions(self, row: Row) -> Codes:
        """Items of each made-up companion in a silo.

        One is enough for the batch to have somebody else in it at times. A clip of the whole batch needs one in nearly
        every batch, to turn against; a batch of fixed size needs the silo filled.
        """
        policy, silo = row
        bound = silo.items_per_subject or 1
        if self.company is not CanaryCompany.MADE_UP:
            return np.zeros(0, np.int64)
        if isinstance(policy.sampling, FixedItems):
            return np.ones(self._room(policy.sampling.size, silo), np.int64)
        if policy.clip.per is ClipPer.BATCH:
            misses = np.log1p(-min(policy.sampling.rate, 1 - 1e-9))
            return np.ones(int(np.ceil(np.log(RARELY) / misses)), np.int64)
        return np.array([bound])

    def siblings(self, row: Row) -> int:
        """How many other items the subject of an item canary has, in both worlds, that pull the other way.

        One is turned round by the canary where their subject is clipped; where surplus is dropped, K of them leave no
        room, so that the canary takes a sibling's place.
        """
        policy, silo = row
        if self.unit is not Unit.ITEM or self.company is CanaryCompany.ONE:
            return 0
        if policy.clip.per is ClipPer.ITEM and silo.drops_surplus:
            return silo.items_per_subject or 0
        return int(policy.clip.per is ClipPer.SUBJECT)

    @cached_property
    def start(self) -> Tensor:
        """The model's parameters with the block behind them, at zero."""
        vector = self.prepared.first
        return torch.cat([vector, vector.new_zeros(self.block.size)])

    @cached_property
    def gradients(self) -> ClippedSum:
        """The run's own gradients, and those of the block."""
        real, size = self.prepared.clipped_sum, self.prepared.first.numel()
        return ExtendedClippedSum(real, size, self.coordinates, self.lengths, self.block.size)

    def run(self, silos: Mapping[str, Silo], noise: NoiseSource) -> PreparedRun:
        """The run that was prepared, with the block, on these silos."""
        return replace(self.prepared, silos=silos, clipped_sum=self.gradients, noise=noise)

    def either(self) -> Callable[[NDArray[np.bool_]], Mapping[str, Silo]]:
        """From who is in to silos, for canaries that do not share any: both kinds of each silo are made only once."""
        without, within = (self.silos(np.full(self.block.canaries, present)) for present in (False, True))

        def chosen(present: NDArray[np.bool_]) -> Mapping[str, Silo]:
            inside = {silo for silo, home in self.home_of.items() if present[home]}
            return {name: (within if name in inside else without)[name] for name in without}

        return chosen

    def silos(self, present: NDArray[np.bool_]) -> Mapping[str, Silo]:
        """The silos with these canaries in them, held to their bounds as any data is."""
        plan = self.prepared.plan
        parts = [self._with_canaries(row, present) for row in plan.rows]
        data = SubjectData(*(np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS))
        dataset = Dataset(
            name=self.prepared.data,  # whose coins these are
            data=data,
            task=self.prepared.task,
            silos=np.repeat([silo.name for _, silo in plan.rows], [part.items for part in parts]),
            items_per_subject=plan.rows[0][1].items_per_subject,
        )
        silos = split_dataset(dataset, _label_silos(self.prepared.spec)).silos
        # A crowd's real rows are as the run's own silos see them already, and made-up rows have nothing to be seen.
        return self.prepared.learner.silos(silos) if self.company is CanaryCompany.ONE else silos

    def _with_canaries(self, row: Row, present: NDArray[np.bool_]) -> SubjectData:
        """A silo's rows before its bounds are enforced."""
        real = self._real(row)
        codes, subjects = self._made_up(row, present)
        inputs = np.zeros((len(codes), *real.inputs.shape[1:]), real.inputs.dtype)
        return SubjectData(
            np.concatenate([real.inputs, inputs]),
            np.concatenate([real.targets, made_up_targets(codes, real.targets)]),
            np.concatenate([real.subjects, self._nobody - subjects]),
        )

    def _real(self, row: Row) -> SubjectData:
        """The real rows of a silo that stay."""
        policy, silo = row
        own = self.prepared.silos[silo.name]
        data = own.data
        if self.company is CanaryCompany.CROWD:
            return replace(data, inputs=own.inputs.numpy())
        fewest = self._room(policy.sampling.size, silo) if isinstance(policy.sampling, FixedItems) else 1
        return data.take(np.arange(fewest if self.company is CanaryCompany.ONE else 0))

    def _room(self, batch: int, silo: SiloFacts) -> int:
        """Rows beside a canary's own in a silo of its public size, and a batch of them at least."""
        return max(batch, silo.items - min(self.rows(silo), silo.items_per_subject or 1))

    def _made_up(self, row: Row, present: NDArray[np.bool_]) -> tuple[Codes, Codes]:
        """Codes and subjects of a silo's made-up rows; companions are other subjects in every silo."""
        _, silo = row
        count, homes = self.block.canaries, len(self.homes)
        home, sizes = self.home_of.get(silo.name, homes), self.companions(row)
        first = count + MOST_COMPANIONS * self.prepared.plan.rows.index(row)
        residents = np.arange(home, count, homes) if home < homes else np.zeros(0, np.int64)
        ours = np.repeat(residents[present[residents]], self.rows(silo))
        beside = np.repeat(residents, self.siblings(row))
        codes = [np.full(sizes.sum(), count + home), ours, count + homes + 1 + beside]
        subjects = [np.repeat(first + np.arange(len(sizes)), sizes), ours, beside]
        return np.concatenate(codes), np.concatenate(subjects)

    @cached_property
    def _nobody(self) -> int:
        """A subject code that nobody real has, nor any before it: codes that are hashes leave no room after them."""
        return min(int(silo.data.subjects.min(initial=0)) for silo in self.prepared.silos.values()) - 1


FIELDS = ("inputs", "targets", "subjects")


def _label_silos(spec: RunSpec) -> RunSpec:
    """The spec for data whose silos are known and of which nothing is held out."""
    silos = spec.silos.model_copy(update={"partition": "column"})
    evaluation = spec.evaluation.model_copy(update={"test": 0.0, "validation": 0.0})
    return spec.model_copy(update={"silos": silos, "evaluation": evaluation})
