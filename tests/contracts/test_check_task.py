"""Every task: targets that fit it, a usual loss, gradients, a best constant answer, predictions, and a round trip."""

import json

import numpy as np
import pytest
import torch

from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.losses import find_loss
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import clipped_sum
from wholegrain.data.dataset import Dataset
from wholegrain.data.every_token import EveryToken
from wholegrain.data.subjects import SubjectData
from wholegrain.data.task_facts import KINDS, read_task
from wholegrain.data.tasks import Classification, MultiLabel, NextToken, Regression, Task
from wholegrain.errors import DataError, SpecError
from wholegrain.models.model_catalog import build

TASKS: tuple[Task, ...] = (
    Classification(("no", "yes")),
    Classification.of(5),
    NextToken(("a", "b", "c")),
    EveryToken(("a", "b", "c"), 5),
    MultiLabel(("cough", "fever", "rash")),
    Regression(-3.0, 12.5),
)
EVERY = pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.kind}: {task}")


def test_every_kind_is_tried() -> None:
    assert {task.kind for task in TASKS} == set(KINDS)


def some_outputs(task: Task, items: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(items, task.outputs, generator=torch.Generator().manual_seed(seed))


@EVERY
def test_its_own_targets_fit_and_are_kept_as_they_are(task: Task) -> None:
    made = task.made_up(7)
    task.require_targets(made)
    data = SubjectData(np.zeros((7, 2), np.float32), made, np.arange(7))
    assert data.targets.dtype == made.dtype
    assert (data.targets == made).all()
    dataset = Dataset(name="made up", data=data, task=task, test=data)
    dataset.require_targets()
    assert dataset.classes == task.class_count


@EVERY
def test_targets_of_another_form_are_refused(task: Task) -> None:
    for wrong in (task.made_up(3) + 100, task.made_up(3).astype(np.float64), np.zeros((3, 9), np.float32)):
        with pytest.raises(DataError):
            task.require_targets(wrong)


@EVERY
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_its_usual_loss_gives_the_gradients_of_the_reference(task: Task, model: str) -> None:
    net, items = build(model, features=4, classes=task.outputs, seed=0), 9
    loss, vector = find_loss(None, task), flatten(net)
    inputs = torch.randn(items, 4, generator=torch.Generator().manual_seed(1))
    batch = inputs, torch.from_numpy(task.made_up(items)), torch.arange(items) // 2
    clip = Clip(ClipPer.SUBJECT, Pool.MEAN, 0.3)
    expected = clipped_sum(net, loss, vector, *batch, clip)
    found = BookKeeping(net, loss)(vector, *batch, clip)
    torch.testing.assert_close(found.total.to(expected.total), expected.total, rtol=1e-4, atol=1e-6)
    assert not found.zeroed


@EVERY
def test_no_constant_loses_less_than_its_best_one(task: Task) -> None:
    """In the usual loss, whatever the shares of the targets are."""
    targets = task.made_up(13)
    targets[:6] = targets[:1]
    loss, best = find_loss(None, task), torch.from_numpy(task.constants(targets)).float()

    def of(constant: torch.Tensor) -> float:
        return float(loss(constant.expand(13, -1), torch.from_numpy(targets)))

    least = min(of(candidate) for candidate in best)
    for seed in range(50):
        assert least <= of(best[0] + 0.3 * some_outputs(task, 1, seed)[0]) + 1e-6


@EVERY
def test_the_opposite_costs_most(task: Task) -> None:
    loss, outputs = find_loss(None, task), some_outputs(task, 20)
    opposite = task.opposite(outputs.numpy())
    task.require_targets(opposite)
    for row, target in zip(outputs, opposite, strict=True):
        others = torch.from_numpy(task.made_up(6))
        worst = float(loss(row[None], torch.from_numpy(np.asarray(target)[None])))
        assert all(worst >= float(loss(row[None], other[None])) - 1e-5 for other in others)


@EVERY
def test_predictions_are_columns_of_the_tables_own_words(task: Task) -> None:
    outputs = some_outputs(task, 11).numpy()
    columns = task.predictions(outputs)
    assert all(len(column) == 11 for column in columns.values())
    assert next(iter(columns)).startswith("prediction")
    likely = [column for name, column in columns.items() if name.startswith("probability")]
    assert all(((column >= 0) & (column <= 1)).all() for column in likely)
    assert np.isfinite(outputs).all()


def test_the_most_likely_class_is_predicted() -> None:
    task = Classification(("a", "b", "c"))
    outputs = some_outputs(task, 50).numpy()
    columns = task.predictions(outputs)
    assert columns["prediction"].tolist() == [task.classes[k] for k in outputs.argmax(1)]
    shares = np.stack([columns[f"probability: {name}"] for name in task.classes], axis=1)
    np.testing.assert_allclose(shares, torch.from_numpy(outputs).double().softmax(1).numpy(), rtol=1e-12)


def test_classes_that_are_numbers_are_predicted_as_numbers() -> None:
    """Else no prediction would equal any value of a table whose target is 0 and 1, or a truth value."""
    outputs = np.array([[-1.0, 2.0], [1.0, 0.0]])
    assert Classification(("0", "1")).predictions(outputs)["prediction"].tolist() == [1, 0]
    assert Classification(("-1", "10")).predictions(outputs)["prediction"].tolist() == [10, -1]
    for codes in (("07", "08"), ("1", "2.5"), ("1", "yes")):
        assert Classification(codes).predictions(outputs)["prediction"].tolist() == [codes[1], codes[0]]


def test_labels_are_predicted_each_by_itself() -> None:
    task = MultiLabel(("x", "y"))
    columns = task.predictions(np.array([[-1.0, 2.0], [800.0, -800.0]]))
    assert columns["prediction: x"].tolist() == [False, True]
    assert columns["probability: y"].tolist() == pytest.approx([1 / (1 + np.exp(-2)), 0.0])


def test_a_number_comes_back_in_its_own_units_and_within_its_bounds() -> None:
    task, values = Regression(-3.0, 12.5), np.array([-3.0, 0.0, 7.25, 12.5])
    np.testing.assert_allclose(task.predictions(task.scale(values))["prediction"], values, atol=1e-5)
    assert task.predictions(np.array([[99.0], [-99.0]]))["prediction"].tolist() == [12.5, -3.0]
    assert task.scale(np.array([1e300, -1e300])).ravel().tolist() == [1.0, -1.0]


@EVERY
def test_it_is_read_back_from_its_facts(task: Task) -> None:
    assert read_task(json.loads(json.dumps(task.facts()))) == task


@pytest.mark.parametrize("facts", [{}, {"kind": "prophecy"}, {"kind": "regression", "low": 1}])
def test_what_describes_no_task_is_refused(facts: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="no task"):
        read_task(facts)


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Classification(("one",)),
        lambda: Classification(("one", "one")),
        lambda: MultiLabel(()),
        lambda: Regression(1.0, 1.0),
        lambda: Regression(0.0, float("inf")),
        lambda: Regression(-1e308, 1e308),
    ],
)
def test_an_impossible_task_is_refused(declare: object) -> None:
    with pytest.raises(SpecError):
        declare()  # type: ignore[operator]


def test_numbers_that_are_not_finite_are_refused() -> None:
    for value in (np.nan, np.inf, 1e300):
        with np.errstate(over="ignore"), pytest.raises(DataError, match="a target that"):
            SubjectData(np.zeros((2, 1), np.float32), np.array([[0.0], [value]]), np.arange(2))
