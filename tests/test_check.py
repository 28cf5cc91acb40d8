"""Validators name the field, and take anything."""

import math

import numpy as np
import pytest

from wholegrain import _check
from wholegrain.errors import SpecError

NONSENSE = [math.nan, math.inf, -math.inf, -1, "x", None, True, [1]]


@pytest.mark.parametrize("value", NONSENSE)
@pytest.mark.parametrize(
    "check",
    [_check.positive, _check.non_negative, _check.rate, _check.fraction, _check.count],
    ids=lambda f: f.__name__,
)
def test_nonsense_is_refused_by_name(check, value):
    with pytest.raises(SpecError, match="the field"):
        check("the field", value)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (_check.positive, [1e-9, 3], [0]),
        (_check.non_negative, [0, 2.5], []),
        (_check.rate, [1e-9, 1], [0, 1.01]),
        (_check.fraction, [1e-9, 0.99], [0, 1]),
        (_check.count, [1, 7, 3.0], [0, 1.5]),
    ],
)
def test_edges(check, good, bad):
    assert [check("it", value) for value in good] == good
    for value in bad:
        with pytest.raises(SpecError):
            check("it", value)


@pytest.mark.parametrize(
    "check",
    [_check.positive, _check.non_negative, _check.rate, _check.fraction, _check.share_below_one, _check.count],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize(("value", "shown"), [("96", "'96'"), (-1, "-1"), (np.float64(-1.5), "-1.5")])
def test_text_is_told_from_the_number_that_it_looks_like(check, value, shown):
    with pytest.raises(SpecError) as refused:
        check("the field", value)
    assert str(refused.value).endswith(f" not {shown}.")
