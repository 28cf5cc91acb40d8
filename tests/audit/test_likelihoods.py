"""The law of a canary's coordinate, against draws of it."""

import numpy as np
import pytest

from planted_faults import prepared
from wholegrain.audit.likelihoods import Law, canary_law
from wholegrain.privacy.definitions import Unit


def test_steps_add_up() -> None:
    law = Law(chances=(0.7, 0.2, 0.1), noise=1.5, steps=4)
    draws = np.random.default_rng(0)
    moves = draws.choice(3, p=[0.7, 0.2, 0.1], size=(4, 200_000)).sum(0)
    out = 1.5 * 2 * draws.normal(size=200_000)
    assert np.exp(law.log_ratio(out)).mean() == pytest.approx(1.0, abs=0.02)
    assert np.exp(-law.log_ratio(out + moves)).mean() == pytest.approx(1.0, abs=0.02)


def test_base_and_unit_place_the_coordinate() -> None:
    plain, turned = Law((0.0, 1.0), 1.0, 2), Law((0.0, 1.0), 1.0, 2, unit=2.0, base=-1.0)
    values = np.linspace(-3, 3, 7)
    assert turned.log_ratio(2 * values - 2) == pytest.approx(plain.log_ratio(values))


@pytest.mark.parametrize(
    ("policy", "chances", "unit", "base"),
    [
        ("local_item_dp", (0.25, 0.5, 0.25), 1.0, 0.0),
        ("local_group_dp", (0.25, 0.75), 1.0, 0.0),
        ("higradavg_dp", (0.25, 0.75), 1.0, 0.0),
        ("user_ldp", (0.25, 0.75), 2.0, -1.0),
        ("subject_dp", (0.5, 0.5), 1.0, 0.0),
    ],
)
def test_each_policys_law_is_its_event(policy: str, chances: tuple[float, ...], unit: float, base: float) -> None:
    row = prepared(policy).plan.rows[0]
    law = canary_law(*row, Unit.SUBJECT, steps=1)
    assert law is not None
    assert law.chances == pytest.approx(chances)
    assert (law.unit, law.base) == (unit, base)


def test_what_was_priced_otherwise_has_no_law() -> None:
    assert canary_law(*prepared("subject_dp").plan.rows[0], Unit.ITEM, steps=1) is None
    assert canary_law(*prepared("higradavg_dp").plan.rows[0], Unit.ITEM, steps=1) is None
    assert canary_law(*prepared("local_item_dp").plan.rows[0], Unit.ITEM, steps=1) is not None
