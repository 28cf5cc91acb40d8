"""The paper's bounds, each against its formula written out."""

from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.errors import SpecError
from wholegrain.privacy.definitions import Budget
from wholegrain.privacy.utility_bounds import BoundParameters, higradavg_dp, item_level, local_group_dp, user_ldp

SETTING = BoundParameters(
    budget=Budget(4.0, 1e-5),
    steps=300,
    learning_rate=0.05,
    rate=0.02,
    dimension=40,
    items=2500,
    batch_size=50,
    lipschitz=1.5,
    radius=2.0,
    constant=0.7,
)
# The paper's symbols for it, M being the radius of the parameter space and m the batch size.
M, L, eta, T, d, c2, q, n, m = 2.0, 1.5, 0.05, 300, 40, 0.7, 0.02, 2500, 50
epsilon, delta = 4.0, 1e-5

settings = st.builds(
    BoundParameters,
    budget=st.builds(Budget, st.floats(0.1, 10), st.floats(1e-9, 1e-3)),
    steps=st.integers(1, 5000),
    learning_rate=st.floats(1e-4, 1.0),
    rate=st.floats(1e-3, 0.5),
    dimension=st.integers(1, 10**6),
    items=st.integers(1, 10**5),
    batch_size=st.integers(32, 512),
)


def written_item_level():
    return (
        M**2 / (2 * eta * T)
        + eta * L**2 / 2
        + eta * d * c2**2 * q**2 * T * log(1 / delta) / epsilon**2
        + L**2 * eta * (T + 1) / n
    )


def written_group(k, q):
    return (
        M**2 / (2 * eta * T)
        + eta * L**2 / 2
        + eta * d * c2**2 * k**2 * q**2 / epsilon**2 * T * log(k * exp((k - 1) * epsilon / k) / delta)
        + L**2 * eta * (T + 1) / n
    )


def written_higradavg(k):
    return (
        (k**2 * M**2 + eta**2 * T * L**2) / (2 * k * eta * T)
        + eta * d * c2**2 * k**2 * q**2 / epsilon**2 * T * log(1 / delta)
        + L**2 * eta * (T + 1) / n
    )


def test_item_level_as_written():
    assert item_level(SETTING) == pytest.approx(written_item_level(), rel=1e-12)


def test_user_ldp_as_written():
    assert user_ldp(SETTING) == pytest.approx(written_group(m, 1.0), rel=1e-12)


@pytest.mark.parametrize("k", [1, 2, 7, 20])
def test_local_group_dp_as_written(k):
    assert local_group_dp(SETTING, k) == pytest.approx(written_group(k, q), rel=1e-12)


def test_higradavg_dp_as_written_for_one_item():
    # k = 1: (M² + η²TL²)/(2ηT) is the first two terms of the item level
    assert written_higradavg(1) == pytest.approx(written_item_level(), rel=1e-12)


@pytest.mark.parametrize("k", [1, 2, 7, 20])
def test_higradavg_dp_as_written(k):
    assert higradavg_dp(SETTING, k) == pytest.approx(written_higradavg(k), rel=1e-12)


@given(setting=settings)
def test_one_item_per_subject_is_the_item_level(setting):
    assert local_group_dp(setting, 1) == pytest.approx(item_level(setting), rel=1e-12)
    assert higradavg_dp(setting, 1) == pytest.approx(item_level(setting), rel=1e-12)


@given(setting=settings, k=st.integers(2, 30))
def test_more_items_cost_more_and_a_whole_batch_most(setting, k):
    assert item_level(setting) < local_group_dp(setting, k) < local_group_dp(setting, k + 1) < user_ldp(setting)


@given(setting=settings, k=st.integers(2, 30))
def test_averaging_needs_less_noise_than_groups(setting, k):
    """With the terms of descent made small by a small radius, what is left is the noise, and log k·e^{…} of it."""
    noisy = replace(setting, radius=1e-9, dimension=10**9)
    assert higradavg_dp(noisy, k) < local_group_dp(noisy, k)


@pytest.mark.parametrize(
    ("field", "value"), [("steps", 0), ("dimension", 0), ("learning_rate", 0.0), ("rate", 0.0), ("radius", -1.0)]
)
def test_impossible_settings_are_refused_by_name(field, value):
    with pytest.raises(SpecError, match=field):
        replace(SETTING, **{field: value})
