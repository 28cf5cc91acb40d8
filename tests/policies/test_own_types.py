"""Nothing is proved of a row that has a type of its own anywhere: its base classes say nothing of what it does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from wholegrain.clipping.clipping import Clip
from wholegrain.clipping.subject_updates import LocalUpdate
from wholegrain.data.sampling import Batch, FixedItems, PoissonItems, PoissonSubjects, Source
from wholegrain.data.subjects import SubjectIndex
from wholegrain.errors import AccountingError, SpecError
from wholegrain.policies import policy_catalog
from wholegrain.policies.guarantees import obstacles, step_event
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, Plan, make_plan
from wholegrain.policies.policy import FixedNoise, Policy, PublicDivisor, SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicyEntry, PolicySettings
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.privacy.trust import SecureSum

FACTS = tuple(SiloFacts(name=name, items=900, subjects=300, items_per_subject=5) for name in "ab")
GOAL = Goal(epsilon=4.0, delta=1e-5)
HORIZON = Horizon(silos=("a", "b"), rounds=2, steps=1)


@dataclass(frozen=True)
class Everybody(PoissonSubjects):
    """Draws everybody, whatever the rate."""

    def draw(self, index: SubjectIndex, draws: Source) -> Batch:
        return PoissonSubjects(1.0).draw(index, draws)


class Whisper(FixedNoise):
    """A hundredth of the noise."""

    def multiplier_for(self, batch: Batch) -> float:
        return self.multiplier / 100


class Counting(PublicDivisor):
    """A private fact under a public name."""

    def divisor_for(self, batch: Batch) -> float:
        return float(batch.subjects)


class Silent(Policy):
    """Takes its noise back."""

    def noise_multiplier_for(self, batch: Batch) -> float:
        return 0.0


class Rate(float):
    """Another number when it is compared."""

    def __gt__(self, other: float) -> bool:
        return True


def same(kind: type, of: object) -> Any:
    """A subclass that changes nothing, with the settings of a value."""
    return type("Own", (kind,), {})(**vars(of))


def given(value: Any, name: str, what: object) -> Any:
    object.__setattr__(value, name, what)
    return value


def row(settings: PolicySettings, silo: SiloFacts) -> Policy:
    return policy_catalog.subject_dp(settings, silo)


CHANGES: dict[str, Callable[[Policy], Policy]] = {
    "sampling": lambda policy: replace(policy, sampling=Everybody(0.05)),
    "items": lambda policy: replace(policy, sampling=same(PoissonItems, PoissonItems(0.1))),
    "fixed": lambda policy: replace(policy, sampling=same(FixedItems, FixedItems(5))),
    "noise": lambda policy: replace(policy, noise=Whisper(1.0)),
    "divisor": lambda policy: replace(policy, divisor=Counting(1.0)),
    "clip": lambda policy: replace(policy, clip=same(Clip, policy.clip)),
    "local": lambda policy: replace(policy, local=same(LocalUpdate, LocalUpdate(1, 0.1))),
    "trust": lambda policy: replace(policy, trust=same(SecureSum, SecureSum.over(12))),
    "policy": lambda policy: Silent(**{name: getattr(policy, name) for name in policy.__dataclass_fields__}),
    "a rate": lambda policy: replace(policy, sampling=PoissonSubjects(Rate(0.05))),
    "a flag": lambda policy: replace(policy, by_span=[]),  # type: ignore[arg-type]
    "a method": lambda policy: replace(
        policy, sampling=given(PoissonSubjects(0.05), "draw", PoissonSubjects(1.0).draw)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("unit", Unit)
def test_nothing_is_proved_of_a_type_of_ones_own(change: str, unit: Unit) -> None:
    policy = CHANGES[change](row(PolicySettings(rate=0.05), FACTS[0]))
    (reason,) = obstacles(policy, unit)
    assert "nothing is known" in reason or "from outside" in reason
    with pytest.raises(AccountingError, match="Nothing can be proved"):
        step_event(policy if policy.noise else policy.with_noise(1.0), FACTS[0], unit)


def plan(monkeypatch: pytest.MonkeyPatch, made: Callable[[PolicySettings, SiloFacts], Policy]) -> Plan:
    monkeypatch.setitem(CATALOG._rows, "own", PolicyEntry(made, "nobody knows"))
    return make_plan("own", PolicySettings(rate=0.05), Federation(silos=FACTS), HORIZON, GOAL)


@pytest.mark.parametrize("change", [name for name in CHANGES if name not in ("noise", "trust", "a flag")])
def test_a_budget_for_such_a_row_is_refused(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="own cannot promise anything for the unit 'subject'"):
        plan(monkeypatch, lambda settings, silo: CHANGES[change](row(settings, silo)))


def test_noise_of_ones_own_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(monkeypatch, lambda settings, silo: CHANGES["noise"](row(settings, silo)))
    assert {each.standing for each in found.guarantees} == {Standing.NONE}


def test_the_row_of_any_silo_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the first alone."""
    with pytest.raises(SpecError, match="Everybody"):
        plan(
            monkeypatch,
            lambda settings, silo: (
                row(settings, silo) if silo.name == "a" else CHANGES["sampling"](row(settings, silo))
            ),
        )


def test_numbers_of_numpy_are_numbers() -> None:
    policy = row(PolicySettings(rate=0.05), FACTS[0])
    drawn = replace(policy, sampling=PoissonSubjects(np.float64(0.05)), divisor=PublicDivisor(np.float64(15)))
    assert obstacles(drawn, Unit.SUBJECT) == ()
