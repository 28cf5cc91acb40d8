"""A start that sees all states scores as the one with a code did, and its last layer sees a small constant."""

import sys
from pathlib import Path

import pytest
import torch

from wholegrain.errors import SpecError
from wholegrain.models import model_catalog
from wholegrain.models.backbone import Backbone

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import whole_states

OPTIONS = {"hidden": 12, "embedding": 4, "code": 5}


def coded() -> Backbone:
    torch.manual_seed(0)
    model = model_catalog.build("whitened_lstm", 20, 80, 0, OPTIONS)
    for value in model.state_dict().values():
        value.normal_()
    facts = {"model": "whitened_lstm", "features": 20, "classes": 80, "options": OPTIONS, "public": "", "data": ""}
    return Backbone({name: value.clone() for name, value in model.state_dict().items()}, facts)


def test_scores_stay_and_a_constant_is_left() -> None:
    given, tokens = coded(), torch.randint(80, (200, 20), generator=torch.Generator().manual_seed(0))
    made = whole_states.without_code(given, tokens)
    assert made.facts["options"] == {"hidden": 12, "embedding": 4}
    with torch.no_grad():
        before, model = whole_states.started(given)(tokens), whole_states.started(made)
        assert torch.allclose(before, model(tokens), rtol=1e-3, atol=1e-3)
        seen = model[1](model[0].every_state(tokens)[:, whole_states.FIRST :]).flatten(0, 1)
    assert float(seen.mean(0).norm()) == pytest.approx(whole_states.CONSTANT, rel=1e-2)
    assert float((seen - seen.mean(0)).norm(dim=1).mean()) == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize("changed", [{"model": "whitened_transformer"}, {"options": {"hidden": 12, "embedding": 4}}])
def test_a_start_of_another_kind_is_refused(changed: dict[str, object]) -> None:
    given = coded()
    with pytest.raises(SpecError, match="Only of a whitened_lstm with a code can this be made"):
        whole_states.without_code(Backbone(given.tensors, {**given.facts, **changed}), torch.zeros(1, 20))
