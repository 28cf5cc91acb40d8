"""How much is drawn and played: a part in `make test`, all of it in `make test-slow`, which plays these tests again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import settings

from wholegrain.privacy import accountants

USUAL_GRID = accountants.suitable_grid
THOROUGH = os.environ.get("WHOLEGRAIN_TESTS") == "thorough"


def amount(full: int, quick: int) -> int:
    """How many draws, trials or seeds. Mark a test that asks `thorough`, so that it is played in full, too."""
    return full if THOROUGH else quick


@contextmanager
def coarse_grids() -> Iterator[None]:
    """Prices on a grid ten times as coarse, and of few Rényi orders, meanwhile: upper bounds still, far cheaper."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rdp_privacy_accountant, "DEFAULT_RDP_ORDERS", (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256))
        patch.setattr(accountants, "suitable_grid", lambda event: 10 * USUAL_GRID(event))
        yield


def examples(full: int, **others: Any) -> settings:
    """So many examples of hypothesis, a quarter of them in `make test`. Its tests are all `thorough` (conftest.py)."""
    return settings(max_examples=amount(full, quick=max(2, full // 4)), **others)
