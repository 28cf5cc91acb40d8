"""How a plan looks on a terminal."""

import math
from collections.abc import Mapping

from wholegrain.cli import display
from wholegrain.clipping.devices import USUAL, Compute
from wholegrain.data.sampling import FixedItems, PoissonItems
from wholegrain.models.backbone import PublicStart
from wholegrain.models.train_choice import describe
from wholegrain.policies.plan import Plan, rounds_allowed
from wholegrain.policies.policy import NoiseByLargestGroup, Policy
from wholegrain.policies.policy_catalog import find


def plan(planned: Plan) -> None:
    """The plan in full, before any training."""
    horizon = planned.horizon
    display.out.print(
        f"[bold]{planned.policy}[/bold]: {display.plural(horizon.rounds, 'round')} of"
        f" {display.plural(horizon.steps, 'step')} in {horizon.cohort_count} of"
        f" {display.plural(len(planned.rows), 'silo')}; a subject in {display.plural(planned.span, 'silo')} at most"
    )
    display.out.print(f"Protects {find(planned.policy).protects}.")
    display.out.print(display.guarantees(planned.guarantees))
    releases = horizon.releases()
    rows = [
        (f.name, f.items, f.subjects, f.items_per_subject or "–", releases.get(f.name, 0), sampling(p), noise(p))
        for p, f in planned.rows
    ]
    columns = ("silo", "items", "subjects", "K", "steps", "sampling", "noise multiplier")
    display.out.print(display.table("Silos", columns, rows))
    allowed = rounds_allowed(planned)
    if allowed is not None:
        display.out.print(f"The budget allows {display.plural(allowed, 'round')} with this noise.")


def silo_limits(limits: Mapping[str, float], planned: Plan) -> None:
    """What the silos' charters need, for the whole plan to be paid for."""
    most = max(limits.values())
    if math.isfinite(most):
        again = " Rounds that are played again cost more." if planned.trust is None else ""
        display.out.print(
            f"A silo pays for all rounds if its charter's limit.epsilon is at least {most:g}, for each"
            f" {planned.unit} at δ = {planned.delta:g}.{again}",
            markup=False,
            soft_wrap=True,
        )


def start(public: PublicStart | None) -> None:
    """The public parameters that a run would start from, if any."""
    if public is not None:
        share = f"{public.trained_parameters:,} of {public.parameters:,} parameters"
        display.out.print(f"Starts from the backbone {public.digest}", soft_wrap=True)
        display.out.print(f"and trains {share} ({describe(public.train)}).")


def place(compute: Compute) -> None:
    """Where a run would compute, and in which precision, where that is not usual."""
    if compute != USUAL:
        display.out.print(f"Computes on {compute}.", soft_wrap=True)


def sampling(policy: Policy) -> str:
    """The sampler in one phrase."""
    drawn = policy.sampling
    if isinstance(drawn, FixedItems):
        return f"{drawn.size} items"
    if isinstance(drawn, PoissonItems):
        kept = f", {drawn.most_per_subject} a subject" if drawn.most_per_subject else ""
        return f"items, {drawn.rate:.4g}{kept}"
    kept = f", {drawn.items} items each" if drawn.items else ""
    return f"subjects, {drawn.rate:.4g}{kept}"


def noise(policy: Policy) -> str:
    """The noise multiplier, or the ends of the paper's table."""
    if policy.noise is None:
        return "–"
    if isinstance(policy.noise, NoiseByLargestGroup):
        least, most = policy.noise.by_size(1), policy.noise.by_size(policy.noise.largest)
        return f"{least:.4g} … {most:.4g} by largest group"
    return f"{policy.noise.multiplier:.4g}"
