"""Canaries whose gradients are the model's own: an input made up for long gradients in every layer, with a target that
does not fit.

They go all the way through the run's own gradients, so that they find what a made-up gradient cannot: a layer that is
not clipped. The attacker knows the parameters of every round, computes the canary's gradient there, and looks for it in
the update, in all parameters and in each one by itself; or only looks at the last model's loss on it. All silos move
these parameters, so that a run has one canary, and is one trial.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wholegrain._random import Purpose, generator
from wholegrain.audit.attacks import AttackOutcome, Tick, no_progress, secret_coins
from wholegrain.audit.canaries import Block, CanaryCompany, Design
from wholegrain.audit.canary_gradients import made_up_codes
from wholegrain.audit.scores import NoiseLaw, Values, known_law
from wholegrain.audit.simulate import NoiseOf, ObservedUpdate, final_parameters, simulate_run
from wholegrain.clipping.clipping import ClipPer
from wholegrain.clipping.parameters import Layout, call
from wholegrain.clipping.reference import batch_gradient
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Targets
from wholegrain.models.dropout import without_dropout
from wholegrain.models.model_inputs import values
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.silo.training import Silo

SCALES = (1.0, 3.0, 10.0, 100.0)
CANDIDATES = 6
NOTHING = 1e-12


@dataclass(frozen=True, eq=False)
class Portrait:
    """An input and a target as data sets store them."""

    stored: NDArray[np.generic]
    target: Targets

    @property
    def inputs(self) -> Tensor:
        """As the model takes it, alone in a batch."""
        return values(torch.from_numpy(self.stored[None]))

    @property
    def targets(self) -> Tensor:
        """Its target, alone in a batch."""
        return torch.from_numpy(self.repeat_target(1))

    def repeat_target(self, rows: int) -> Targets:
        """The target of so many rows that are all alike."""
        return np.repeat(self.target, rows, axis=0)


def attack_input(
    prepared: PreparedRun, noise: NoiseOf, unit: Unit, runs: int, seed: int, tick: Tick = no_progress
) -> AttackOutcome:
    """`runs` trainings with such a canary in the first home or not, and hardly anything else."""
    design = Design(prepared=prepared, unit=unit, block=Block(1, 0), company=CanaryCompany.ONE)
    coins, start = secret_coins(seed, "input", runs), prepared.first
    portrait = telling_input(prepared, start, seed)
    without, within = (replace_canaries(design.silos(np.array([present])), portrait) for present in (False, True))
    rows = []
    for run, present in enumerate(coins):
        actual = replace(prepared, silos=within if present else without, noise=noise(runs + run))
        projections = Projections(design, portrait)
        last = final_parameters(simulate_run(actual, start, projections))
        with without_dropout(prepared.model):
            outputs = call(prepared.model, projections.layout, last, portrait.inputs)
        rows.append((projections.best, -float(prepared.loss(outputs, portrait.targets))))
        tick()
    level, final = np.array(rows).T
    return AttackOutcome(coins, {"level": level, "final": final}, NoiseLaw())


class Projections:
    """A watcher that looks for the canary's gradient in every update, in all parameters and in each by itself."""

    def __init__(self, design: Design, portrait: Portrait) -> None:
        self._design, self._portrait, self._steps = design, portrait, design.prepared.plan.horizon.steps
        self.layout = Layout.of(design.prepared.model)
        self._sums = np.zeros(1 + len(self.layout.names))
        self._round, self._directions = -1, torch.zeros(0)

    def __call__(self, seen: ObservedUpdate) -> None:
        """Take in one update."""
        policy, silo = seen.row
        if silo.name not in self._design.homes[0]:
            return
        if seen.round != self._round:
            self._round = seen.round
            self._directions = portrait_gradient(self._design.prepared, self.layout, seen.start, self._portrait)
        found = self._project(seen.in_clip_norms(seen.moved))
        law = None if policy.clip.per is ClipPer.BATCH else known_law(policy, silo, self._design.unit, self._steps)
        self._sums += found if law is None else law.log_ratio(found)

    @property
    def best(self) -> float:
        """The best score over all parameters and each by itself."""
        return float(self._sums.max())

    def _project(self, moved: Tensor) -> Values:
        """How far the update goes along the gradient, in clip norms: of all parameters, then of each."""
        gradients, moves = self.layout.views(self._directions), self.layout.views(moved)
        lengths = np.array([float(gradient.norm()) for gradient in gradients.values()])
        products = np.array([float((moves[name] * gradient).sum()) for name, gradient in gradients.items()])
        each = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
        whole = float(np.linalg.norm(lengths))
        return np.append(products.sum() / whole if whole else 0.0, each)


def portrait_gradient(prepared: PreparedRun, layout: Layout, vector: Tensor, portrait: Portrait) -> Tensor:
    """The portrait's gradient of the whole model at these parameters; what is not finite counts as zero."""
    gradient = batch_gradient(prepared.model, prepared.loss, layout, vector, portrait.inputs, portrait.targets)
    return gradient.nan_to_num_(0.0, 0.0, 0.0)


def telling_input(prepared: PreparedRun, vector: Tensor, seed: int) -> Portrait:
    """The candidate whose gradients are the longest before training, in all parameters alike."""
    layout = Layout.of(prepared.model)

    def length(portrait: Portrait) -> float:
        parts = layout.views(portrait_gradient(prepared, layout, vector, portrait)).values()
        return sum(math.log(max(float(part.norm()), NOTHING)) for part in parts)

    return max(candidates(prepared, vector, seed), key=length)


def candidates(prepared: PreparedRun, vector: Tensor, seed: int) -> list[Portrait]:
    """Inputs whose values come from different real ones, some of them larger, each with its least likely target."""
    draws = generator(seed, Purpose.SYNTHETIC, "audit: input")
    real = some_data(prepared).inputs
    layout, found = Layout.of(prepared.model), []
    for scale in SCALES if np.issubdtype(real.dtype, np.floating) else SCALES[:1]:
        for _ in range(CANDIDATES):
            mixed = draws.permuted(real[draws.integers(len(real), size=16)], axis=0)[0]
            mixed = (mixed * scale).astype(real.dtype) if scale != 1 else mixed
            found.append(unlikely(prepared, layout, vector, mixed))
    return found


def unlikely(prepared: PreparedRun, layout: Layout, vector: Tensor, stored: NDArray[np.generic]) -> Portrait:
    """An input with the target that fits the model's output least."""
    portrait = Portrait(stored, prepared.task.made_up(1))
    with torch.no_grad(), without_dropout(prepared.model):
        outputs = call(prepared.model, layout, vector, portrait.inputs).nan_to_num(0.0)
    return replace(portrait, target=prepared.task.opposite(outputs.numpy()))


def some_data(prepared: PreparedRun) -> SubjectData:
    """The data of the silo that has most."""
    return max((silo.data for silo in prepared.silos.values()), key=lambda data: data.items)


def replace_canaries(silos: Mapping[str, Silo], portrait: Portrait) -> Mapping[str, Silo]:
    """The silos with the canary's rows replaced by the portrait; what was dropped stays dropped."""
    result = {}
    for name, silo in silos.items():
        data = silo.data
        ours = made_up_codes(data.targets) >= 0
        inputs, targets = data.inputs.copy(), data.targets.copy()
        inputs[ours], targets[ours] = portrait.stored, portrait.repeat_target(int(ours.sum()))
        result[name] = replace(silo, data=replace(data, inputs=inputs, targets=targets))
    return result
