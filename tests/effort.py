"""How much is drawn and played: a part in `make test`, all of it in `make test-slow`, which plays these tests again."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import common
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import settings
from scipy import special

from wholegrain.privacy import accountants

USUAL_GRID, USUAL_BOUNDS = accountants.suitable_grid, common.compute_self_convolve_bounds
THOROUGH = os.environ.get("WHOLEGRAIN_TESTS") == "thorough"


def amount(full: int, quick: int) -> int:
    """How many draws, trials or seeds. Mark a test that asks `thorough`, so that it is played in full, too."""
    return full if THOROUGH else quick


@contextmanager
def coarse_grids() -> Iterator[None]:
    """Prices on a grid ten times as coarse, and of few orders, meanwhile: upper bounds still, far cheaper."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rdp_privacy_accountant, "DEFAULT_RDP_ORDERS", (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256))
        patch.setattr(accountants, "suitable_grid", lambda event: 10 * USUAL_GRID(event))
        patch.setattr(common, "compute_self_convolve_bounds", _few_bounds)
        # The same values as scipy's normal law has, without its checks of every argument.
        patch.setattr(gaussian_mechanism, "_norm", SimpleNamespace(logcdf=special.log_ndtr))
        yield


def _few_bounds(losses: Sequence[float], times: int, tail: float = 0) -> tuple[int, int]:
    """Where a convolution may be cut, by the Chernoff bound of 6 orders in place of 40."""
    return USUAL_BOUNDS(losses, times, tail, [order / len(losses) for order in (-20, -6, -2, 2, 6, 20)])


def examples(full: int, **others: Any) -> settings:
    """So many examples of hypothesis, a fifth of them in `make test`. Its tests are all `thorough` (conftest.py)."""
    return settings(max_examples=amount(full, quick=max(2, full // 5)), **others)
