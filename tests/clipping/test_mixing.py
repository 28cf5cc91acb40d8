"""Models in which rows of a batch meet, in every way that we know of: nobody moves the sum by more than the clip.

Whether a model is refused or computed unit by unit is for the engine to say. What it may not do is to take all rows at
once: then others' gradients would hang on who is there. That these models do mix is tested, too.
"""

import pytest
import torch

from clipping.mixing_modules import Case, cases, controls
from clipping.mixing_moves import CLIPS, AllAtOnce, History, Moves, find_moves, is_sum_of_parts
from wholegrain.clipping.choice import clipped_sums
from wholegrain.clipping.devices import USUAL
from wholegrain.clipping.reference import ClippedSum, clipped_sum
from wholegrain.clipping.rounding import SLACK
from wholegrain.errors import ModelError

pytestmark = pytest.mark.filterwarnings("ignore")  # notices of what is slow, and of torch about old modules
CASES = {case.name: case for case in cases()}
CONTROLS = {case.name: case for case in controls()}


def make_sum(model: torch.nn.Module, loss: object) -> ClippedSum:
    return clipped_sums(model, loss, USUAL)  # type: ignore[arg-type]


def is_bounded(moves: Moves) -> bool:
    return moves.own <= 1 + SLACK and moves.later <= SLACK


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES.values() if case.meets], ids=lambda case: case.name)
def test_rows_do_meet_in_it(case: Case) -> None:
    """Or else the test below would say nothing: a batch is not the sum of its parts, or one pass breaks the bound."""
    if is_sum_of_parts(case):
        found = find_moves(case, AllAtOnce)
        assert isinstance(found, Moves)
        assert not is_bounded(found)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_nobody_moves_the_sum_by_more_than_the_clip(case: Case) -> None:
    found = find_moves(case, make_sum)
    if isinstance(found, ModelError):
        assert str(found).endswith(".")
        assert "\n" not in str(found)
        return
    assert found.own <= 1 + SLACK
    assert found.later <= SLACK  # of a batch that the subject is not in, and it left no trace
    if case.meets:
        assert all(found.reasons), "taken at once, though rows meet in it"


@pytest.mark.parametrize("case", CONTROLS.values(), ids=lambda case: case.name)
def test_the_same_model_without_it_is_taken_at_once(case: Case) -> None:
    """So that nothing else about these models is what is refused."""
    history, batch, (model, loss) = History.of(case, make_sum), case.batch(), case.make()
    everybody = torch.ones(len(batch.groups), dtype=torch.bool)
    for clip in CLIPS:
        given = model, loss, history.vector, batch.inputs, batch.targets, batch.groups, clip
        off = history(everybody, clip) - clipped_sum(*given).total.double()
        assert float(off.norm()) <= 1e-4 * clip.norm
    assert getattr(history.sums, "reason", None) is None
