"""Scores stand beside the best constant answer, and a model that is no better says so."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import wholegrain as wg
from wholegrain.clipping.losses import find_loss
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Classification, MultiLabel, Regression, Task
from wholegrain.federation.round_record import Score
from wholegrain.runs.constant_answer import warn
from wholegrain.runs.evaluation import Scorer
from wholegrain.runs.metrics import LESS_IS_BETTER


@pytest.mark.parametrize("task", [Classification.of(3), MultiLabel(("a", "b")), Regression(0, 9)], ids=str)
def test_no_other_constant_scores_better_in_any_metric(task: Task) -> None:
    targets = task.made_up(31)
    targets[:9] = targets[:1]
    data = SubjectData(np.zeros((31, 1), np.float32), targets, np.arange(31))
    scorer = Scorer.of(task, find_loss(None, task), task.metrics)
    best = scorer.constant(data)
    draws = torch.Generator().manual_seed(0)
    for _ in range(100):
        row = torch.randn(task.outputs, generator=draws)
        other = scorer.of_outputs(row.expand(31, -1), torch.from_numpy(targets))
        assert best.loss <= other.loss + 1e-6
        for name, value in other.metrics.items():
            assert best.metrics[name] <= value + 1e-6 if name in LESS_IS_BETTER else best.metrics[name] >= value - 1e-6


def run_on(signal: float, **keywords: object) -> wg.Run:
    """Two silos whose class depends on the only feature as strongly as `signal` says; three quarters are of class 0."""
    draws = np.random.default_rng(0)
    inputs = draws.normal(size=(600, 1)).astype(np.float32)
    likely = 1 / (1 + np.exp(1.5 - signal * inputs[:, 0]))
    targets = (draws.random(600) < likely).astype(np.int64)
    data = wg.Dataset(
        name="drawn",
        data=SubjectData(inputs, targets, np.arange(600) // 2),
        classes=2,
        silos=np.array(["north", "south"])[np.arange(600) % 2],
    )
    return wg.train(data, policy=wg.fedavg(rate=1.0), **{"rounds": 60, "learning_rate": 1.0, **keywords})


def test_a_model_that_learns_is_not_scolded() -> None:
    run = run_on(signal=4.0)
    assert run.warnings == ()
    assert run.scores["test"].accuracy > run.constant["test"].accuracy


def test_a_model_without_a_signal_says_that_it_is_no_better() -> None:
    run = run_on(signal=0.0)
    assert run.scores["test"].accuracy == run.constant["test"].accuracy
    (sentence,) = run.warnings
    assert "constant answer" in sentence


def test_training_that_diverges_is_told() -> None:
    run = run_on(signal=4.0, learning_rate=3e4, rounds=5)
    (sentence,) = run.warnings
    assert "rounds.learning_rate" in sentence


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (Score(0.4, {"accuracy": 0.9}), None),
        (Score(0.6, {"accuracy": 0.9}), "above the 0.5000 of a constant answer"),
        (Score(0.6, {"accuracy": 0.8}), "NO BETTER THAN A CONSTANT ANSWER"),
        (Score(0.4, {"accuracy": 0.8}), "decides no better"),
        (Score(0.4, {"accuracy": 0.8, "auc": 0.9}), "judge it by auc or brier, or choose another threshold"),
        (Score(0.4, {"accuracy": 0.8, "perplexity": 3.0}), "judge it by perplexity."),
        (Score(0.4, {"accuracy": 0.8, "rmse": 3.0}), "judge it by rmse or r2."),
        (Score(math.inf, {"accuracy": 0.9}), "diverged"),
        (Score(math.nan, {"accuracy": math.nan}), "diverged"),
        (Score(0.6, {"accuracy": math.nan}), "NO BETTER"),
    ],
)
def test_each_kind_of_bad_news_has_its_sentence(score: Score, words: str | None) -> None:
    found = warn({"test": score, "train/north": score}, {"test": Score(0.5, {"accuracy": 0.8})})
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_less_is_better_for_the_error_of_a_number() -> None:
    limit = {"test": Score(0.5, {"mae": 2.0})}
    assert warn({"test": Score(0.4, {"mae": 1.9})}, limit) == ()
    assert "mae on 'test' is 2.1000, and 2.0000" in warn({"test": Score(0.6, {"mae": 2.1})}, limit)[0]


def test_summary_and_report_tell_it(tmp_path: Path) -> None:
    from wholegrain.report.page import page as render
    from wholegrain.report.run_reader import read_run

    run = run_on(signal=0.0, out=tmp_path / "run", rounds=3)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["constant answer (not private)"]["test"]["accuracy"] == pytest.approx(
        run.constant["test"].accuracy, abs=1e-6
    )
    assert summary["warnings (not private)"] == list(run.warnings) != []
    page = render([read_run(tmp_path / "run", "run")])
    assert "test: constant answer" in page
    assert 'class="warning"' in page
