"""The experiments: secret coins, training, scores.

    in a crowd   one training on the real data, with many canaries in it
    alone        many trainings on hardly any data, with one canary in it or not
    by input     many trainings with one canary whose gradients are the model's own: see `inputs`

Coins are drawn for a purpose of their own, from the audit's seed: no other randomness of a run depends on them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wholegrain._random import Purpose, generator
from wholegrain.audit.canaries import Block, Company, Design, Extended, extended
from wholegrain.audit.playing import NoiseOf, play
from wholegrain.audit.scores import NoiseLaw, Sheet, Values
from wholegrain.data.sampling import FixedItems
from wholegrain.gradients.parameters import flatten
from wholegrain.gradients.pooling import ClipPer
from wholegrain.privacy.units import Unit
from wholegrain.runs.runner import Prepared

SPARE = 2000
"""Coordinates that show nothing but noise: enough to tell its strength within two parts in a hundred."""

Tick = Callable[[], None]
"""Told of each training that is done."""


def silent() -> None:
    """The tick that tells nobody."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The coins, which said who was in, and what attacks made of the updates [trial]; how the noise looked."""

    coins: NDArray[np.bool_]
    scores: Mapping[str, Values]
    noise: NoiseLaw


def secret_coins(seed: int, experiment: str, count: int) -> NDArray[np.bool_]:
    """Fair coins that nothing else is drawn from."""
    draws = generator(seed, Purpose.SYNTHETIC, "audit: secret coins", experiment)
    return draws.integers(2, size=count).astype(np.bool_)


def bears_a_crowd(prepared: Prepared) -> bool:
    """Whether many canaries can be in one run without being in each other's way.

    Not where the batch is clipped as a whole, nor where it has a fixed size.
    """
    return all(
        policy.clip.per is not ClipPer.BATCH and not isinstance(policy.sampling, FixedItems)
        for policy, _ in prepared.plan.rows
    )


def one_in_each_home(prepared: Prepared, unit: Unit, company: Company, spare: int) -> Design:
    """As many canaries as do not share a silo."""
    draft = Design(prepared=prepared, unit=unit, block=Block(1, spare), company=company)
    return replace(draft, block=Block(len(draft.homes), spare))


def in_a_crowd(prepared: Prepared, noise: NoiseOf, unit: Unit, canaries: int, seed: int) -> Outcome:
    """One training on the real data with about half of the canaries in it."""
    design = Design(prepared=prepared, unit=unit, block=Block(canaries, SPARE), company=Company.CROWD)
    coins = secret_coins(seed, "crowd", canaries)
    model = flatten(prepared.model)
    sheet, gradients = Sheet(design), Extended(design, model.numel())
    last = play(prepared, extended(model, design.block), design.silos(coins), gradients, noise(-1), sheet)
    return Outcome(coins, {"level": sheet.level, "spread": sheet.spread, "final": sheet.final(last)}, sheet.noise)


def alone(prepared: Prepared, noise: NoiseOf, unit: Unit, runs: int, seed: int, tick: Tick = silent) -> Outcome:
    """`runs` trainings with a canary in each home or not, and as little else as makes its presence tell.

    What happens in one home does not reach another's updates, so that each is a trial.
    """
    design = one_in_each_home(prepared, unit, Company.MADE_UP, SPARE)
    homes = len(design.homes)
    coins = secret_coins(seed, "alone", runs * homes).reshape(runs, homes)
    without, within = (design.silos(np.full(homes, present)) for present in (False, True))
    model = flatten(prepared.model)
    gradients, start = Extended(design, model.numel()), extended(model, design.block)
    whole, rows = NoiseLaw(), []
    for run in range(runs):
        sheet = Sheet(design)
        present = {silo for silo, home in design.home_of.items() if coins[run, home]}
        silos = {name: within[name] if name in present else without[name] for name in without}
        last = play(prepared, start, silos, gradients, noise(run), sheet)
        rows.append((sheet.level, sheet.spread, sheet.final(last), sheet.strength, -sheet.strength))
        whole += sheet.noise
        tick()
    scores = np.array(rows).transpose(1, 0, 2).reshape(5, -1)
    names = ("level", "spread", "final", "louder", "quieter")
    return Outcome(coins.reshape(-1), dict(zip(names, scores, strict=True)), whole)
