"""What every metric must keep to; a new row is checked by being there."""

import logging
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import wholegrain as wg
from wholegrain.data.tasks import Classification, MultiLabel, NextToken, Regression, Task
from wholegrain.errors import SpecError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.runs.metrics import LESS_IS_BETTER, METRICS, find_metrics, fits

TASKS: tuple[Task, ...] = (
    Classification.of(2),
    Classification.of(3),
    NextToken(tuple("abcdefgh")),
    MultiLabel(("a", "b", "c")),
    Regression(-2.0, 5.0),
)
FITTING = [(name, task) for name, metric in METRICS.items() for task in TASKS if fits(metric, task)]
every_metric = pytest.mark.parametrize(("name", "task"), FITTING, ids=lambda value: str(value))
ITEMS = 9


def some(task: Task, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    outputs = torch.randn(ITEMS, task.outputs, generator=torch.Generator().manual_seed(seed))
    return task.in_units(outputs), task.in_units(torch.from_numpy(task.made_up(ITEMS)))


def test_every_metric_is_for_some_task_and_every_task_has_usual_ones() -> None:
    assert {name for name, _ in FITTING} == set(METRICS)
    assert all((name, task) in FITTING for task in TASKS for name in (task.headline, *task.metrics))
    assert all(task.metrics[0] == task.headline for task in TASKS)


@every_metric
def test_a_metric_is_a_finite_number_whatever_the_order_of_items(name: str, task: Task) -> None:
    outputs, targets = some(task)
    order = np.random.default_rng(0).permutation(ITEMS)
    value, other = float(METRICS[name](outputs, targets)), float(METRICS[name](outputs[order], targets[order]))
    assert np.isfinite(value)
    assert value == pytest.approx(other)


@every_metric
def test_right_answers_score_better_than_wrong_ones(name: str, task: Task) -> None:
    outputs = 6 * torch.randn(ITEMS, task.outputs, generator=torch.Generator().manual_seed(1))
    wrong = task.opposite(outputs.numpy())
    right = task.opposite(-outputs.numpy())
    found = [
        float(METRICS[name](task.in_units(outputs), task.in_units(torch.from_numpy(targets))))
        for targets in (right, wrong)
    ]
    if np.isfinite(found).all():  # all items of one class have no order, say
        assert found[0] < found[1] if name in LESS_IS_BETTER else found[0] > found[1]


@pytest.mark.parametrize(
    ("name", "count"),
    [("auc", 2), ("log_loss", 2), ("brier", 2), ("balanced_accuracy", 3), ("log_loss", 3), ("accuracy", 3)],
)
def test_it_is_what_scikit_learn_computes(name: str, count: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    draws = torch.Generator().manual_seed(3)
    outputs = torch.randn(200, count, generator=draws).round(decimals=1)  # with ties
    targets = torch.randint(count, (200,), generator=draws)
    likely, guess = outputs.double().softmax(1).numpy(), outputs.argmax(1).numpy()
    expected = {
        "auc": lambda: metrics.roc_auc_score(targets, likely[:, 1]),
        "log_loss": lambda: metrics.log_loss(targets, likely),
        "brier": lambda: metrics.brier_score_loss(targets, likely[:, 1]),
        "balanced_accuracy": lambda: metrics.balanced_accuracy_score(targets, guess),
        "accuracy": lambda: metrics.accuracy_score(targets, guess),
    }[name]()
    assert float(METRICS[name](outputs, targets)) == pytest.approx(expected, abs=1e-9)


def test_errors_of_a_number_are_in_its_own_units() -> None:
    outputs, targets = torch.tensor([[10.0], [20.0], [40.0]]), torch.tensor([[13.0], [20.0], [36.0]])
    assert METRICS["mae"](outputs, targets) == pytest.approx(7 / 3)
    assert METRICS["rmse"](outputs, targets) == pytest.approx((25 / 3) ** 0.5)
    assert METRICS["r2"](targets.mean().expand(3, 1), targets) == pytest.approx(0.0, abs=1e-9)


def test_a_metric_of_another_task_is_refused() -> None:
    with pytest.raises(SpecError, match="metric 'mae' is not for 2 classes; usual are accuracy"):
        find_metrics(["mae"], Classification.of(2))
    with pytest.raises(SpecError, match="metric 'auc' is not for a number"):
        find_metrics(["auc"], Regression(0, 1))


def test_calibrated_probabilities_have_no_calibration_error_and_sure_ones_do() -> None:
    targets = torch.arange(1000) % 4 // 3  # a quarter is 1
    honest = torch.tensor([0.75, 0.25]).log().expand(1000, 2)
    assert METRICS["calibration_error"](honest, targets) == pytest.approx(0.0, abs=1e-6)
    sure = torch.tensor([0.0, 9.0]).expand(1000, 2)
    assert METRICS["calibration_error"](sure, targets) == pytest.approx(0.75, abs=1e-3)


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
    own = ["own_metrics:largest", "own_metrics:broken"]
    names = [name for name, metric in METRICS.items() if fits(metric, Classification.of(2))] + own
    with caplog.at_level(logging.WARNING):
        run = trained(names)
    assert "The metric 'own_metrics:broken' cannot be computed" in caplog.text
    score = run.scores["test"]
    assert set(score.metrics) == set(names)
    assert np.isnan(score.metrics["own_metrics:broken"])
    kept = RoundRecord.read(run.rounds[-1].line()).scores["test"]
    assert kept.metrics == pytest.approx({name: score.metrics[name] for name in kept.metrics}, abs=1e-6, nan_ok=True)
    plain = trained([])
    assert list(plain.rounds[-1].scores["test"].metrics) == ["accuracy"]
    assert list(plain.scores["test"].metrics) == list(plain.task.metrics)


def test_an_unknown_metric_is_refused_with_the_closest() -> None:
    with pytest.raises(SpecError, match=r"Unknown metric 'acuracy'.*did you mean 'accuracy'"):
        find_metrics(["acuracy"])
