"""benchmarks/whole_digits.py: FedAvg is FedAvg, its settings come from people held out, and ε is proved."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
pytest.importorskip("altair", reason="benchmarks draw with altair")
import trust_cases  # noqa: E402
import whole_digits  # noqa: E402
from wholegrain.data.dataset import Dataset  # noqa: E402
from wholegrain.data.subjects import SubjectData  # noqa: E402
from wholegrain.models.model_catalog import build  # noqa: E402

TREE = {
    "silos": {"partition": "uniform", "count": 3},
    "policy": {"name": "subject_dp", "rate": 1.0, "clip_norm": 0.03},
    "privacy": {"epsilon": 4.0, "delta": 1e-5},
    "rounds": {"averaging": "subjects"},
}


def people(first: int, count: int) -> SubjectData:
    """Eight items each, whose class is the sign of the first number."""
    draws = np.random.default_rng(first)
    inputs = draws.normal(size=(8 * count, 4)).astype(np.float32)
    return SubjectData(inputs, (inputs[:, 0] > 0).astype(np.int64), np.repeat(np.arange(first, first + count), 8))


DATA = Dataset(name="signs", data=people(0, 60), classes=2, test=people(100, 40))


def test_a_round_is_the_mean_of_what_silos_trained_by_their_items() -> None:
    one, other = people(0, 1), people(1, 3)
    model = build("logistic", 4, 2, 0)
    (found,) = whole_digits.averages(model, [one, other], [0.1], 7)
    draws, alone = torch.Generator().manual_seed(7), []
    for silo in (one, other):
        own = build("logistic", 4, 2, 0)
        whole_digits.local_pass(own, silo, 0.1, draws)
        alone.append(torch.nn.utils.parameters_to_vector(own.parameters()).detach())
    mean = (8 * alone[0] + 24 * alone[1]) / 32
    torch.testing.assert_close(torch.nn.utils.parameters_to_vector(found.parameters()).detach(), mean)


def test_a_rate_falls_to_nothing_after_the_last_round() -> None:
    method = whole_digits.Free(None, (0.1,), look=1, most=4, falling=True)
    assert method.rates_of(0.1) == pytest.approx([0.1, 0.075, 0.05, 0.025])


def test_fedavg_takes_the_rate_that_is_best_on_people_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    measured = whole_digits.accuracy
    monkeypatch.setattr(
        whole_digits, "accuracy", lambda model, part: seen.append(part.subject_count) or measured(model, part)
    )
    row = whole_digits.play_free(
        whole_digits.Free(None, (1e-6, 0.1), look=1, most=3), build("logistic", 4, 2, 0), TREE, DATA, 0
    )
    assert row["rate"] == 0.1
    assert row["accuracy"] > 0.9
    assert seen[-1] == 40  # the test part is looked at once, at the end
    assert all(count < 20 for count in seen[:-1])


def test_a_private_run_is_proved_and_learns() -> None:
    method = whole_digits.Private("all", 4.0, (0.0001, 9.0), 4)
    row = whole_digits.play_private(method, nn.Sequential(build("mlp", 4, 2, 0, {"hidden": [3]})), TREE, DATA)
    assert row["length"] == 9.0
    assert 0 < row["proved"] <= 4.0
    assert row["standing"] == "PROVED"
    assert row["accuracy"] > 0.6


def test_what_is_kept_comes_from_committed_code() -> None:
    for row in trust_cases.read(whole_digits.RESULTS):
        assert "changes" not in row["commit"]
        assert row["name"] in whole_digits.METHODS
        assert "proved" not in row or row["standing"] == "PROVED"
