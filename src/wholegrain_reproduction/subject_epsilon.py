"""The true ε of the paper's algorithms as printed, for a subject over all silos.

For LocalGroupDP and HiGradAvgDP as printed nothing can be proved: private facts set the scale of their noise. *Granted*
that nobody learns that scale from a release, their steps are priced as if it were fixed and public: at the noise of the
most frequent group size, and at any public divisor. This is no guarantee; it says how far the rest of the claim is off.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from wholegrain._json_numbers import finite
from wholegrain.errors import SpecError
from wholegrain.policies.guarantees import Row, obstacles, step_event, worst_row
from wholegrain.policies.plan import Plan
from wholegrain.policies.policy import FixedNoise, NoiseByLargestGroup, PublicDivisor
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.events import repeat
from wholegrain.runs.data_description import count
from wholegrain.runs.prepared_run import PreparedRun

BATCHES = 20


@dataclass(frozen=True)
class TrueEpsilon:
    """The proved ε for an item and for a subject over all silos, and a subject's if noise is taken as public."""

    item: float
    subject: float
    granted: float
    noise: float
    """The noise multiplier in the first silo; the most frequent one where batches decide."""

    def epsilon(self, unit: Unit) -> float:
        """The ε at which a sound policy is compared with the run: the proved one if finite, else the granted one."""
        if unit is Unit.ITEM:
            return self.item
        return self.subject if math.isfinite(self.subject) else self.granted

    def facts(self) -> dict[str, Any]:
        """As JSON; null means that there is no bound."""
        return {name: finite(value) for name, value in asdict(self).items()}

    @staticmethod
    def of(facts: Mapping[str, Any]) -> "TrueEpsilon":
        """From its facts."""
        return TrueEpsilon(**{name: math.inf if value is None else value for name, value in facts.items()})


def price_printed_plan(plan: Plan, bound: int, usual: int) -> TrueEpsilon:
    """The true ε of a printed plan if a subject has at most `bound` items in a silo, and usually `usual` in a batch.

    All silos are priced as the worst of them: an upper bound, at the cost of one price instead of sixteen.
    """
    rows = [_fix_noise(row, bound, usual) for row in plan.rows]
    provable = plan.policy != "fedavg" and not obstacles(plan.rows[0][0], Unit.SUBJECT)
    granted = math.inf if plan.policy == "fedavg" else _price_rows(plan, rows)
    first = rows[0][0].noise
    return TrueEpsilon(
        item=plan.guarantee(Unit.ITEM).epsilon,
        subject=granted if provable else math.inf,
        granted=granted,
        noise=first.multiplier if isinstance(first, FixedNoise) else math.nan,
    )


def price_printed_run(prepared: PreparedRun, bound: int) -> TrueEpsilon:
    """The same for a run. Private: it reads how large groups get, as the printed algorithms do."""
    most = max(silo.data.largest_subject for silo in prepared.silos.values())
    if most > bound:
        raise SpecError(f"A subject has {most} items in a silo; set silos.items_per_subject = {most} in the recipe.")
    batches = count(prepared.spec, prepared.silos, BATCHES).batches
    sizes = {} if batches is None else batches.largest_group
    return price_printed_plan(prepared.plan, bound, max(sizes, key=lambda size: sizes[size]))


def _price_rows(plan: Plan, rows: list[Row]) -> float:
    releases = sum(plan.horizon.releases().values())
    event = repeat(step_event(*worst_row(rows, Unit.SUBJECT), Unit.SUBJECT), releases)
    return plan.accountant.epsilon(event, plan.delta)


def _fix_noise(row: Row, bound: int, usual: int) -> Row:
    """The row with K declared, and noise and divisor fixed and public."""
    policy, facts = row
    if isinstance(policy.noise, NoiseByLargestGroup):
        policy = policy.with_noise(policy.noise.by_size(min(usual, policy.noise.largest)))
    if not isinstance(policy.divisor, PublicDivisor):
        policy = replace(policy, divisor=PublicDivisor(1.0))
    return policy, replace(facts, items_per_subject=bound)
