import math
from dataclasses import replace

import pytest

from wholegrain.errors import SpecError
from wholegrain.privacy.definitions import Budget, Guarantee, Neighbouring, Standing, Unit


def guarantee(**changes):
    proved = Guarantee(
        unit=Unit.SUBJECT, standing=Standing.PROVED, epsilon=3.99951, delta=1e-5, accountant="pld", because="composed"
    )
    return replace(proved, **changes)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_budget_refuses_epsilon_by_name(epsilon):
    with pytest.raises(SpecError, match="epsilon"):
        Budget(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_budget_refuses_delta_by_name(delta):
    with pytest.raises(SpecError, match="delta"):
        Budget(1.0, delta)


@pytest.mark.parametrize(
    ("unit", "neighbouring"),
    [
        (Unit.ITEM, Neighbouring.ITEM),
        (Unit.SUBJECT, Neighbouring.SUBJECT),
        (Unit.SILO, Neighbouring.SILO),
    ],
)
def test_each_unit_has_its_neighbours(unit, neighbouring):
    assert guarantee(unit=unit).neighbouring is neighbouring


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "subject: ε = 4, δ = 1e-05, PROVED by pld"),
        ({"epsilon": 0.51239}, "subject: ε = 0.5124, δ = 1e-05, PROVED by pld"),
        ({"epsilon": math.inf}, "subject: ε = ∞, δ = 1e-05, PROVED by pld"),
        ({"standing": Standing.CLAIMED, "accountant": "rdp"}, "subject: ε = 4, δ = 1e-05, CLAIMED by rdp"),
        ({"standing": Standing.NONE, "because": "no clip", "unit": Unit.ITEM}, "item: no guarantee (no clip)"),
    ],
)
def test_guarantee_reads_as_one_line(changes, text):
    assert str(guarantee(**changes)) == text


def test_guarantees_are_values():
    assert guarantee() == guarantee()
    with pytest.raises(AttributeError):
        guarantee().epsilon = 0.1
