"""From a row to its event: what one step of a policy reveals about an item, a subject or a silo.

The answer depends on the row's structure, never on its name, so that a new combination is priced by the same proofs or
refused. Proofs, with C the clip norm, K the public bound on a subject's items, q or r the rate:

    subject, item-Poisson, clip per item, sum      J ~ Bin(K, q) items move the sum by min(J, Z)·C
    subject, item-Poisson, pooled or clipped once  present with 1−(1−q)^K, moves it by C
    subject, item-Poisson, clip per batch          present with 1−(1−q)^K, moves it by 2C (both may point apart)
    subject, subject-Poisson                       present with r, moves it by C (m items summed: m·C; per batch: 2C)
    subject, fixed size                            J ~ Hypergeometric items leave and as many others enter at most;
                                                   J = K where the silo's exact size is not known, or too small
    item                                           moves the sum by C or 2C, with or without sampling: see `_item_step`
    silo                                           every step; only a clip per batch bounds it, by 2C

By span, a subject in m silos moves each silo's sum by C/√m, in every step. Gaussian steps add up in squares: with S_i
steps at noise σ_i in its silos, Σ S_i/(m·σ_i²) ≤ max S_i / min σ_i², whatever m is. All silos together reveal at most
what the worst of them would reveal of somebody who is in it alone: the subject's reach is 1. By share, C·√w_i stands
for C/√m with Σ w_i ≤ 1, and the same holds: Σ w_i·S_i/σ_i² ≤ max S_i / min σ_i².

Under a secure sum a round opens one vector, the sum over silos, with the noise of `honest` of them at least. What a
subject moves in each of its silos adds up. The silos' coins are independent, so that the moves of M like silos are a
convolution; with different silos, the worst row stands in for each. By span a subject in m silos moves each part by
C/m, and the sum by C at most. A round is one event, whoever of the silos is asked about it: the reach is 1 again.
By share it moves silo i's part by w_i·C, and the sum by C again. That is proved where everybody is in every step: the
law of unequal moves with coins is not the one that is priced.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from dp_accounting import DpEvent, NonPrivateDpEvent

from wholegrain.clipping.clipping import ClipPer, Pool
from wholegrain.data.sampling import FixedItems, PoissonItems, PoissonSubjects
from wholegrain.errors import AccountingError
from wholegrain.policies.own_types import find_own_types
from wholegrain.policies.policy import FixedNoise, Policy, PublicDivisor, SiloFacts
from wholegrain.privacy import events
from wholegrain.privacy.accountants import Accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.pricing import Exposure, Releases, Terms, price

Row = tuple[Policy, SiloFacts]


def obstacles(policy: Policy, unit: Unit) -> tuple[str, ...]:
    """Why nothing can be proved of a row for a unit; empty where something can."""
    if own := find_own_types(policy):
        return own  # whose attributes may be anything
    reasons = []
    if policy.clip.per is ClipPer.NONE:
        reasons.append("gradients are not clipped, so one subject may move the sum without bound")
    if policy.noise is not None and not isinstance(policy.noise, FixedNoise):
        reasons.append("the noise is looked up by the batch's largest group, a private fact")
    if not isinstance(policy.divisor, PublicDivisor):
        reasons.append("the noise is divided by the batch's number of subjects, a private fact")
    if policy.by_span and policy.trust is None and not _adds_up_in_squares(policy):
        reasons.append("weights by span are proved only where every subject, clipped as one, is in every step")
    if policy.by_share and not (policy.by_span and _adds_up_in_squares(policy)):
        reasons.append("weights by share are proved only where every subject, clipped as one, is in every step")
    if policy.by_span and unit is Unit.ITEM:
        reasons.append("one item can decide in how many silos its subject is, and so what the subject counts in each")
    if policy.trust is not None and policy.clip.per is ClipPer.BATCH:
        reasons.append("a clip of the whole batch is no sum over subjects, which is what a secure sum is priced for")
    if policy.trust is not None and isinstance(policy.sampling, FixedItems):
        reasons.append("batches of a fixed size are priced for one silo's release, not for a secure sum")
    if unit is Unit.SILO and policy.clip.per is not ClipPer.BATCH:
        reasons.append("only a clip of the whole batch bounds what a silo contributes")
    return tuple(reasons)


def _adds_up_in_squares(policy: Policy) -> bool:
    """Whether a step is a plain Gaussian one for each subject: no coin, and one clip for all that it contributes."""
    sampling = policy.sampling
    return isinstance(sampling, PoissonSubjects) and sampling.rate == 1 and policy.clip.per is ClipPer.SUBJECT


def step_event(policy: Policy, silo: SiloFacts, unit: Unit) -> DpEvent:
    """The event of one step for this unit, refused where `obstacles` names any."""
    sigma = _fixed_noise(policy, unit)
    if unit is Unit.SILO:
        return events.gaussian(sigma / 2)
    if unit is Unit.ITEM:
        return _item_step(policy, silo, sigma)
    return _subject_step(policy, silo, sigma)


def exposure(rows: Iterable[Row], unit: Unit, span: int) -> Exposure:
    """What the rows' steps reveal about a unit.

    A subject lives in up to `span` silos and pays for each (horizontal composition), unless it counts less in each by
    how many they are; an item or a silo pays in one.
    Where nothing can be proved of a row, its step reveals everything.
    """
    rows = list(rows)
    if rows[0][0].trust is not None:
        return _sum_exposure(rows, unit, span)
    reach = span if unit is Unit.SUBJECT and not all(policy.by_span for policy, _ in rows) else 1
    if _unprovable(rows, unit):
        return Exposure(reach, {silo.name: NonPrivateDpEvent() for _, silo in rows}, NonPrivateDpEvent())
    steps = {silo.name: step_event(policy, silo, unit) for policy, silo in rows}
    worst = step_event(*worst_row(rows, unit), unit) if reach < len(rows) else None
    return Exposure(reach, steps, worst)


def _sum_exposure(rows: list[Row], unit: Unit, span: int) -> Exposure:
    """What one round of a secure sum reveals about a unit; every silo's ledger counts the same rounds."""
    if len({policy.trust for policy, _ in rows}) > 1:
        raise AccountingError("Silos of one secure sum must agree on how many they are, answer and may collude.")
    event: DpEvent = NonPrivateDpEvent()
    if not _unprovable(rows, unit):
        policy, silo = worst_row(rows, unit)
        event = sum_event(policy, silo, span) if unit is Unit.SUBJECT else step_event(policy, silo, unit)
    return Exposure(1, {silo.name: event for _, silo in rows}, event)


def sum_event(policy: Policy, silo: SiloFacts, span: int) -> DpEvent:
    """The event of one opened sum for a subject in up to `span` silos like this one."""
    sigma = _fixed_noise(policy, Unit.SUBJECT)
    return events.sum_over_silos(sigma, _law_of_moves(policy, silo), span, shared=policy.by_span)


def part_of_sum_event(policy: Policy, silo: SiloFacts, silos: int, weight: float) -> DpEvent:
    """The same for a subject that moves exactly so many silos' parts, each with this weight."""
    sigma = _fixed_noise(policy, Unit.SUBJECT)
    return events.sum_of_moves(sigma, _law_of_moves(policy, silo), silos, weight)


def _law_of_moves(policy: Policy, silo: SiloFacts) -> list[float]:
    """P[a subject moves one silo's part of the sum by j·C], for j = 0, 1, …"""
    sampling = policy.sampling
    if isinstance(sampling, PoissonSubjects):
        move = int(_move_of_a_sampled_subject(policy, silo))
        return [1 - sampling.rate, *[0.0] * (move - 1), sampling.rate]
    rate, bound = getattr(sampling, "rate", 1.0), _bound(policy, silo)
    if policy.clip.per is ClipPer.ITEM and policy.clip.pool is Pool.SUM:
        return events.group_by_poisson_law(rate, bound, getattr(sampling, "most_per_subject", None))
    present = events.presence(rate, bound)
    return [1 - present, present]


def terms(rows: Iterable[Row], span: int, units: Iterable[Unit] = Unit) -> Terms:
    """On what terms these rows' releases are priced."""
    rows, units = list(rows), tuple(units)
    # Where an item has a coin of its own, sampling hides it better than its subject's price would.
    shared = any(shares_its_coin(policy, silo) for policy, silo in rows)
    provable = not (_unprovable(rows, Unit.ITEM) or _unprovable(rows, Unit.SUBJECT))
    through = exposure(rows, Unit.SUBJECT, span=1) if shared and provable and Unit.ITEM in units else None
    return Terms({unit: exposure(rows, unit, span) for unit in units}, through)


def federation_event(rows: Iterable[Row], releases: Releases, unit: Unit, span: int) -> DpEvent:
    """What all silos' releases together reveal about one unit."""
    return exposure(rows, unit, span).event(releases)


def federation_epsilon(
    rows: Iterable[Row], releases: Releases, unit: Unit, span: int, accountant: Accountant, delta: float
) -> float:
    """The smallest ε at δ that can be proved for one unit of the federation."""
    return price([(terms(rows, span, [unit]), releases)], unit, accountant, delta)


def missing_bound(rows: Iterable[Row], unit: Unit) -> str | None:
    """The silo for which K is not declared, where the unit's price depends on it."""
    if unit is not Unit.SUBJECT:
        return None
    return next((silo.name for policy, silo in rows if needs_bound(policy) and silo.items_per_subject is None), None)


def _unprovable(rows: list[Row], unit: Unit) -> bool:
    return any(obstacles(policy, unit) for policy, _ in rows) or missing_bound(rows, unit) is not None


def needs_bound(policy: Policy) -> bool:
    """Whether the policy's subject-level event cannot do without K."""
    if not isinstance(policy.sampling, PoissonSubjects):
        return True
    counts_items = policy.clip.per is ClipPer.ITEM and policy.clip.pool is Pool.SUM
    return counts_items and policy.sampling.items is None


def worst_row(rows: list[Row], unit: Unit) -> Row:
    """A row at least as revealing as each of these: largest rate, K and cap, smallest noise and silo."""
    policies, silos = [policy for policy, _ in rows], [silo for _, silo in rows]
    if len({(type(p.sampling), p.clip.per, p.clip.pool, p.by_span, p.by_share) for p in policies}) > 1:
        raise AccountingError(
            "Silos that follow different algorithms cannot be priced by their worst one;"
            " set span to the number of silos."
        )
    bounds = [silo.items_per_subject for silo in silos]
    silo = replace(
        silos[0],
        name="worst",
        items=min(silo.items for silo in silos),
        items_per_subject=None if None in bounds else max(b for b in bounds if b is not None),
        drops_surplus=any(silo.drops_surplus for silo in silos),
        declared=any(silo.declared for silo in silos),
    )
    least = min(policies, key=lambda policy: _fixed_noise(policy, unit))
    return replace(least, sampling=_worst_sampling(policies, unit)), silo


def _fixed_noise(policy: Policy, unit: Unit) -> float:
    """The noise multiplier of what is seen: a silo's own, or that of the honest silos in a secure sum.

    Refused where nothing can be proved of the row.
    """
    reasons = obstacles(policy, unit)
    if reasons:
        raise AccountingError(f"Nothing can be proved of {policy.name}: {'; '.join(reasons)}.")
    if not isinstance(policy.noise, FixedNoise):
        raise AccountingError(f"The policy '{policy.name}' has no noise yet; make a plan first.")
    own = policy.noise.multiplier
    return own if policy.trust is None else policy.trust.sum_noise(own)


def _worst_sampling(policies: list[Policy], unit: Unit) -> PoissonItems | PoissonSubjects | FixedItems:
    samplings = [policy.sampling for policy in policies]
    poisson = [s for s in samplings if isinstance(s, PoissonItems)]
    if poisson:
        return PoissonItems(max(s.rate for s in poisson), _worst_cap([s.most_per_subject for s in poisson], unit))
    by_subject = [s for s in samplings if isinstance(s, PoissonSubjects)]
    if by_subject:
        return PoissonSubjects(max(s.rate for s in by_subject), _worst_cap([s.items for s in by_subject], unit))
    return FixedItems(max(s.size for s in samplings if isinstance(s, FixedItems)))


def _worst_cap(caps: list[int | None], unit: Unit) -> int | None:
    """The loosest cap is worst for a subject; the tightest for an item, whose place another takes where a cap binds."""
    given = [cap for cap in caps if cap is not None]
    if unit is Unit.ITEM:
        return min(given, default=None)
    return max(given) if len(given) == len(caps) else None


def _subject_step(policy: Policy, silo: SiloFacts, sigma: float) -> DpEvent:
    if isinstance(policy.sampling, PoissonSubjects):
        move = _move_of_a_sampled_subject(policy, silo)
        return events.sampled_gaussian(policy.sampling.rate, sigma / move)
    bound = _bound(policy, silo)
    if isinstance(policy.sampling, FixedItems):
        return _subject_step_of_fixed_size(policy, silo, sigma, bound)
    rate = policy.sampling.rate
    if policy.clip.per is ClipPer.ITEM and policy.clip.pool is Pool.SUM:
        return events.group_by_poisson(rate, bound, sigma, policy.sampling.most_per_subject)
    move = 2.0 if policy.clip.per is ClipPer.BATCH else 1.0
    return events.sampled_gaussian(events.presence(rate, bound), sigma / move)


def _move_of_a_sampled_subject(policy: Policy, silo: SiloFacts) -> float:
    """How far, in units of C, a subject that was sampled moves the sum."""
    if policy.clip.per is ClipPer.BATCH:
        return 2.0
    if policy.clip.per is ClipPer.SUBJECT or policy.clip.pool is Pool.MEAN:
        return 1.0
    bounds = (getattr(policy.sampling, "items", None), silo.items_per_subject)
    known = [bound for bound in bounds if bound is not None]
    return float(min(known)) if known else float(_bound(policy, silo))


def _subject_step_of_fixed_size(policy: Policy, silo: SiloFacts, sigma: float, bound: int) -> DpEvent:
    """A batch of B items out of N: without the subject, other items take the places of its J.

    How large J gets depends on the silo's exact N, a private fact. With a declared size, which may be a round number,
    and where a batch is not to be had without the subject (N − K < B), all K items are taken to be in every batch.
    """
    size = getattr(policy.sampling, "size", silo.items)
    batch = min(size, silo.items)
    certain = silo.declared or silo.items - bound < batch
    bound = min(bound, size if certain else silo.items)
    if policy.clip.per is ClipPer.BATCH:
        if certain:
            return events.gaussian(sigma / 2)
        present = events.presence_without_replacement(batch, silo.items, bound)
        return events.sampled_gaussian(present, sigma / 2)
    if policy.clip.per is ClipPer.SUBJECT:
        own, per_item = 1.0, 2.0  # an item that enters can turn another subject's clipped mean or sum round
    elif policy.clip.pool is Pool.MEAN:
        own, per_item = 1.0, 1.0  # an item that enters moves another subject's mean by C at most
    else:
        own, per_item = 0.0, 2.0  # one item leaves, one enters
    if certain:
        return events.gaussian(sigma / (own + per_item * bound))
    return events.group_without_replacement(batch, silo.items, bound, sigma, own=own, per_item=per_item)


def _item_step(policy: Policy, silo: SiloFacts, sigma: float) -> DpEvent:
    """One item more or less.

    It moves the sum by C where its own clipped gradient simply leaves: items summed, or averaged within a subject (of n
    items, the mean moves by 2C/n at most, and by C if it was alone). It moves it by 2C where another item takes its
    place (a fixed size, a group cap that binds, surplus items dropped for K) or where removing it turns a clipped
    mean or sum round; by 4C where both happen to two subjects (a fixed size, clipped per subject).

    Sampling hides it only if it does not share its coin; a step that does is priced without amplification.
    """
    if silo.items_per_subject == 1 and not silo.drops_surplus:
        return _subject_step(policy, silo, sigma)  # then an item is a subject
    sampling = policy.sampling
    replaced = silo.drops_surplus or _cap_may_bind(policy, silo)
    turned = policy.clip.per in (ClipPer.SUBJECT, ClipPer.BATCH)
    fixed = isinstance(sampling, FixedItems)
    move = 2.0 if replaced or turned or fixed else 1.0
    if fixed and policy.clip.per is ClipPer.SUBJECT:
        move = 4.0
    noise = sigma / move
    if shares_its_coin(policy, silo) or (fixed and silo.declared):  # how rare it is to be drawn depends on the exact N
        return events.gaussian(noise)
    rate = min(1.0, sampling.size / silo.items) if isinstance(sampling, FixedItems) else sampling.rate
    return events.sampled_gaussian(rate, noise)


def shares_its_coin(policy: Policy, silo: SiloFacts) -> bool:
    """Whether, without the item, something else answers to the coin that decided about it.

    So it is where subjects are sampled (the rest of its subject stays) and where surplus is dropped (another item takes
    its place). The step without it is then not the step in which it was not drawn, and sampling does not hide it.
    """
    return silo.drops_surplus or isinstance(policy.sampling, PoissonSubjects)


def _cap_may_bind(policy: Policy, silo: SiloFacts) -> bool:
    """Whether a cap within the batch can let another item of the subject in."""
    cap = getattr(policy.sampling, "most_per_subject", None) or getattr(policy.sampling, "items", None)
    return cap is not None and cap < (silo.items_per_subject or math.inf)


def _bound(policy: Policy, silo: SiloFacts) -> int:
    if silo.items_per_subject is None:
        raise AccountingError(
            f"{policy.name} needs items_per_subject, the public bound K on one subject's items in"
            f" silo '{silo.name}'; without it nothing can be proved for a subject."
        )
    return silo.items_per_subject
