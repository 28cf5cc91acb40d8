"""The experiments with made-up gradients: secret coins, training, scores.

    in a crowd   one training on the real data, with many canaries in it
    alone        many trainings on hardly any data, with one canary in each home or not

Coins are drawn for a purpose of their own, from the audit's seed: no other randomness of a run depends on them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wholegrain._random import Purpose, generator
from wholegrain.audit.canaries import Block, CanaryCompany, Design
from wholegrain.audit.scores import NoiseLaw, Sheet, Values
from wholegrain.audit.simulate import NoiseOf, final_parameters, simulate_run
from wholegrain.clipping.clipping import ClipPer
from wholegrain.data.sampling import FixedItems
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.prepared_run import PreparedRun

SPARE = 2000
"""Coordinates that show nothing but noise: enough to tell its strength within two parts in a hundred."""

Tick = Callable[[], None]
"""Told of each training that is done."""


def no_progress() -> None:
    """The tick that tells nobody."""


@dataclass(frozen=True, eq=False)
class AttackOutcome:
    """The coins, which said who was in, and what attacks made of the updates [trial]; how the noise looked."""

    coins: NDArray[np.bool_]
    scores: Mapping[str, Values]
    noise: NoiseLaw


def secret_coins(seed: int, experiment: str, count: int) -> NDArray[np.bool_]:
    """Fair coins that nothing else is drawn from."""
    draws = generator(seed, Purpose.SYNTHETIC, "audit: secret coins", experiment)
    return draws.integers(2, size=count).astype(np.bool_)


def can_hold_crowd(prepared: PreparedRun) -> bool:
    """Whether many canaries can be in one run without being in each other's way.

    Not where the batch is clipped as a whole, nor where it has a fixed size.
    """
    return all(
        policy.clip.per is not ClipPer.BATCH and not isinstance(policy.sampling, FixedItems)
        for policy, _ in prepared.plan.rows
    )


def attack_crowd(prepared: PreparedRun, noise: NoiseOf, unit: Unit, canaries: int, seed: int) -> AttackOutcome:
    """One training on the real data with about half of the canaries in it."""
    design = Design(prepared=prepared, unit=unit, block=Block(canaries, SPARE), company=CanaryCompany.CROWD)
    coins, sheet = secret_coins(seed, "crowd", canaries), Sheet(design)
    last = final_parameters(simulate_run(design.run(design.silos(coins), noise(-1)), design.start, sheet))
    return AttackOutcome(coins, {"level": sheet.level, "spread": sheet.spread, "final": sheet.final(last)}, sheet.noise)


def attack_each_home(prepared: PreparedRun, unit: Unit) -> Design:
    """As many canaries as do not share a silo, among made-up companions."""
    draft = Design(prepared=prepared, unit=unit, block=Block(1, SPARE), company=CanaryCompany.MADE_UP)
    return replace(draft, block=Block(len(draft.homes), SPARE))


def attack_alone(
    prepared: PreparedRun, noise: NoiseOf, unit: Unit, runs: int, seed: int, tick: Tick = no_progress
) -> AttackOutcome:
    """`runs` trainings with a canary in each home or not, and as little else as makes its presence tell.

    Made-up gradients do not depend on parameters, so that what happens in one home does not reach another's updates:
    each home is a trial. Only the last model is shared, and each canary looks at a coordinate of its own there.
    """
    design = attack_each_home(prepared, unit)
    homes = len(design.homes)
    coins = secret_coins(seed, "alone", runs * homes).reshape(runs, homes)
    choose, whole, rows = design.either(), NoiseLaw(), []
    for run, present in enumerate(coins):
        sheet = Sheet(design)
        last = final_parameters(simulate_run(design.run(choose(present), noise(run)), design.start, sheet))
        rows.append((sheet.level, sheet.spread, sheet.final(last), sheet.strength, -sheet.strength))
        whole += sheet.noise
        tick()
    scores = np.array(rows).transpose(1, 0, 2).reshape(5, -1)
    names = ("level", "spread", "final", "louder", "quieter")
    return AttackOutcome(coins.reshape(-1), dict(zip(names, scores, strict=True)), whole)
