"""What every metric must keep to; a new row is checked by being there."""

import logging
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import wholegrain as wg
from wholegrain.errors import SpecError
from wholegrain.runs.metrics import METRICS, find_metrics
from wholegrain.runs.summary import read_round, round_facts

every_metric = pytest.mark.parametrize("name", METRICS)
TARGETS = torch.tensor([0, 1, 2, 1, 0, 0])


@every_metric
def test_a_metric_is_a_finite_number_whatever_the_order_of_items(name: str) -> None:
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    value, other = (float(METRICS[name](outputs[order], TARGETS[order])) for order in (slice(None), [3, 1, 5, 0, 2, 4]))
    assert np.isfinite(value)
    assert value == pytest.approx(other)


@every_metric
def test_the_right_answers_score_otherwise_than_wrong_ones(name: str) -> None:
    right = torch.nn.functional.one_hot(TARGETS).float()
    assert float(METRICS[name](right, TARGETS)) != float(METRICS[name](right.roll(1, dims=1), TARGETS))


def trained(metrics: list[str]) -> wg.Run:
    return wg.train(
        wg.clinics(patients=60, clinics=3),
        policy={"name": "fedavg", "rate": 0.5},
        rounds={"count": 1},
        evaluation={"metrics": metrics},
    )


def test_metrics_are_scored_and_kept_in_the_record(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = ModuleType("own_metrics")
    module.largest = lambda outputs, targets: outputs.max()
    module.broken = lambda outputs, targets: outputs.nothing
    monkeypatch.setitem(sys.modules, "own_metrics", module)
    names = [*METRICS, "own_metrics:largest", "own_metrics:broken"]
    with caplog.at_level(logging.WARNING):
        run = trained(names)
    assert "The metric 'own_metrics:broken' cannot be computed" in caplog.text
    score = run.scores["test"]
    assert ["accuracy", *score.further] == names
    assert np.isnan(score.further["own_metrics:broken"])
    kept = read_round(round_facts(run.rounds[-1])).scores["test"]
    assert kept.further == pytest.approx(score.further, abs=1e-6, nan_ok=True)
    assert not trained([]).scores["test"].further


def test_an_unknown_metric_is_refused_with_the_closest() -> None:
    with pytest.raises(SpecError, match=r"Unknown metric 'acuracy'.*did you mean 'accuracy'"):
        find_metrics(["acuracy"])
