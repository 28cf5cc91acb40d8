"""Damaged checkpoints, at random: the one before, or a clear refusal, but never parameters that nobody wrote."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from damages import Damage, damages
from effort import examples
from wholegrain.errors import RunError
from wholegrain.federation.rounds import State
from wholegrain.runs.checkpoints import Checkpoints

RUN = "0123456789abcdef"
VECTORS = {round: torch.linspace(-round, round, 20) for round in (3, 4)}


@pytest.fixture
def whole(tmp_path: Path) -> dict[Path, bytes]:
    kept = Checkpoints(tmp_path, RUN)
    for round, vector in VECTORS.items():
        kept.add(State(round, vector))
    return {path: path.read_bytes() for path in tmp_path.iterdir()}


@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(newest=damages(), oldest=st.none() | damages())
def test_no_parameters_come_out_that_were_not_put_in(
    whole: dict[Path, bytes], newest: Damage, oldest: Damage | None
) -> None:
    (older, old), (newer, new) = sorted(whole.items())
    older.write_bytes(oldest(old) if oldest else old)
    newer.write_bytes(newest(new))
    try:
        state = Checkpoints(newer.parent, RUN).latest(99, VECTORS[4])
    except RunError:
        assert oldest is not None
    else:
        assert torch.equal(state.vector, VECTORS[state.round])
