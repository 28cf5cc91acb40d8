"""A private score: what each person adds, and that nobody can add more."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from wholegrain.clipping.losses import find_loss
from wholegrain.clipping.parameters import flatten
from wholegrain.data.subjects import SubjectData
from wholegrain.data.tasks import Classification, MultiLabel, Regression, Task
from wholegrain.errors import SpecError
from wholegrain.policies.score_settings import ScoreForm, ScoreSettings
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.score_release import STEPS, ScoreMaker, make_form

TWO = Classification(("no", "yes"))
EVERY = ("accuracy", "loss", "histogram")
PEOPLE = np.array([5, 5, 5, 8, 8, 2, 9, 9, 9, 9])


def maker(task: Task = TWO, features: int = 3) -> ScoreMaker:
    torch.manual_seed(0)
    model = nn.Linear(features, task.outputs)
    return ScoreMaker(model=model, loss=find_loss(None, task), task=task, noise=SeededNoise(0))


def items(people: np.ndarray = PEOPLE, seed: int = 0) -> SubjectData:
    draws = np.random.default_rng(seed)
    inputs = draws.normal(size=(len(people), 3)).astype(np.float32)
    return SubjectData(inputs, (draws.random(len(people)) < 0.5).astype(np.int64), people)


def form(*measures: str, **changes: object) -> ScoreForm:
    return ScoreForm.model_validate({"noise_multiplier": 5.0, "measures": measures or EVERY, **changes})


def without(data: SubjectData, person: int) -> SubjectData:
    return data.take(np.flatnonzero(data.subjects != person))


def test_a_person_counts_once_however_many_items_it_has() -> None:
    scorer, data = maker(), items()
    outputs = scorer.model(torch.from_numpy(data.inputs)).argmax(1).numpy()
    right = [(outputs[data.subjects == who] == data.targets[data.subjects == who]).mean() for who in (2, 5, 8, 9)]
    found = scorer.add_up(data, form("accuracy"), flatten(scorer.model))
    assert found[0] / STEPS == pytest.approx(sum(2 * share - 1 for share in right), abs=1e-5)


def test_a_histogram_has_a_mass_of_one_for_each_person() -> None:
    scorer, data = maker(), items()
    cells = scorer.add_up(data, form("histogram"), flatten(scorer.model)) / STEPS
    assert cells.sum() == pytest.approx(4, abs=1e-4)
    assert cells[10:].sum() == pytest.approx(
        sum(data.targets[data.subjects == who].mean() for who in (2, 5, 8, 9)), abs=1e-4
    )


@given(scale=st.sampled_from([1e-30, 1.0, 1e4, 1e18, 3e38, math.inf, math.nan]), who=st.sampled_from([2, 5, 8, 9]))
def test_whoever_leaves_takes_a_part_of_length_one_for_each_measure_whatever_the_parameters(
    scale: float, who: int
) -> None:
    scorer, data, asked = maker(), items(), form(loss_bound=0.5)
    vector = flatten(scorer.model) * scale
    moved = scorer.add_up(data, asked, vector) - scorer.add_up(without(data, who), asked, vector)
    for place in asked.places.values():
        assert math.isqrt(int((moved[place].astype(object) ** 2).sum())) <= STEPS
    alone = scorer.add_up(data.take(np.flatnonzero(data.subjects == who)), asked, vector)
    np.testing.assert_array_equal(moved, alone)  # all others are the same to the last bit


@given(scale=st.sampled_from([1.0, 3e38, math.nan]), who=st.sampled_from([2, 5, 8, 9]), span=st.integers(1, 9))
def test_by_span_whoever_leaves_takes_a_part_as_much_shorter(scale: float, who: int, span: int) -> None:
    scorer, data, asked = maker(), items(), form(loss_bound=0.5).model_copy(update={"by_span": True})
    vector, spans = flatten(scorer.model) * scale, np.where(data.subjects == who, span, 3)
    kept = data.subjects != who
    left = scorer.add_up(without(data, who), asked, vector, spans[kept])
    moved = scorer.add_up(data, asked, vector, spans) - left
    # As often as that person is in a silo, the whole moves as if it were in one; the last value counts people.
    assert math.sqrt(float(((span * moved).astype(float) ** 2).sum())) <= STEPS * asked.reach
    assert moved[-1] == STEPS // span


def test_one_item_moves_every_measure_by_one_at_most() -> None:
    scorer, data, asked = maker(), items(), form(loss_bound=0.1)
    vector = flatten(scorer.model) * 1e3
    whole = scorer.add_up(data, asked, vector)
    for item in range(data.items):
        moved = whole - scorer.add_up(data.take(np.delete(np.arange(data.items), item)), asked, vector)
        for place in asked.places.values():
            assert math.sqrt(float((moved[place].astype(float) ** 2).sum())) <= STEPS * (1 + 2**-10)


def test_an_answer_that_is_not_finite_is_wrong_and_a_loss_that_is_not_costs_its_bound() -> None:
    scorer, data = maker(), items()
    broken = torch.full_like(flatten(scorer.model), math.nan)
    accuracy, loss = scorer.add_up(data, form("accuracy", "loss", loss_bound=3.0), broken)
    assert (accuracy, loss) == (-4 * STEPS, 4 * STEPS)


def test_a_number_is_scored_by_its_error_in_the_declared_range() -> None:
    task = Regression(0.0, 10.0)
    scorer, people = maker(task), items()
    targets = np.linspace(-1, 1, people.items, dtype=np.float32)[:, None]
    data = SubjectData(people.inputs, targets, people.subjects)
    constant = torch.zeros_like(flatten(scorer.model))
    errors = np.abs(targets[:, 0]) / 2
    expected = sum(2 * errors[data.subjects == who].mean() - 1 for who in (2, 5, 8, 9))
    assert scorer.add_up(data, form("mae"), constant)[0] / STEPS == pytest.approx(expected, abs=1e-4)


def test_labels_are_scored_by_the_share_that_is_told_right() -> None:
    task = MultiLabel(("a", "b"))
    scorer, people = maker(task), items()
    data = SubjectData(people.inputs, np.tile([0.0, 1.0], (people.items, 1)).astype(np.float32), people.subjects)
    silent = torch.zeros_like(flatten(scorer.model))  # no label is likely: one of the two is right
    assert scorer.add_up(data, form("accuracy"), silent)[0] == 0


def test_noise_is_that_of_the_form_and_not_that_of_training() -> None:
    scorer, asked = maker(), form("accuracy", noise_multiplier=3.0)
    vector = flatten(scorer.model)
    first = scorer.score("north", None, asked, vector, 4)
    assert torch.equal(first, scorer.score("north", None, asked, vector, 4))
    training = torch.zeros(1, dtype=torch.float64)
    scorer.noise.stream(4, "north").add_to(training, 3.0, 1.0)
    assert abs(float(training) - float(first)) > 1e-3
    assert not torch.equal(first, scorer.score("south", None, asked, vector, 4))


@pytest.mark.parametrize(
    ("measure", "task"), [("mae", TWO), ("accuracy", Regression(0, 1)), ("histogram", MultiLabel(("a", "b")))]
)
def test_a_measure_that_is_not_for_the_task_is_refused(measure: str, task: Task) -> None:
    with pytest.raises(SpecError, match="is not for"):
        make_form(ScoreSettings(measures=(measure,)), task, 1.0)  # type: ignore[arg-type]


def test_the_first_measure_of_a_task_is_its_headline() -> None:
    tasks: list[Task] = [TWO, MultiLabel(("a", "b")), Regression(0, 1)]
    assert [make_form(ScoreSettings(), task, 1.0).measures for task in tasks] == [
        ("accuracy",),
        ("accuracy",),
        ("mae",),
    ]


class Mixing(nn.Module):
    """A model whose pass depends on an item's place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        places = torch.arange(len(inputs), dtype=inputs.dtype)[:, None]
        return inputs @ self.weight.T + places * 1e-3


def test_a_model_whose_answers_depend_on_the_place_scores_everybody_alone() -> None:
    model, data = Mixing(), items()
    scorer = ScoreMaker(model=model, loss=find_loss(None, TWO), task=TWO, noise=SeededNoise(0))
    vector = flatten(model)
    moved = scorer.add_up(data, form(loss_bound=9.0), vector) - scorer.add_up(
        without(data, 5), form(loss_bound=9.0), vector
    )
    alone = scorer.add_up(data.take(np.flatnonzero(data.subjects == 5)), form(loss_bound=9.0), vector)
    np.testing.assert_array_equal(moved, alone)


class Unable(nn.Module):
    """A linear model that raises at one value."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x[:, 0] > 1000).any()):
            raise ValueError("somebody is here")
        found: Tensor = self.head(x)
        return found


@pytest.mark.parametrize("where", ["model", "loss"])
def test_whoever_the_model_or_the_loss_raises_at_adds_a_part_like_any_other(where: str) -> None:
    data, asked = items(), form()
    model = Unable()
    scorer = ScoreMaker(model=model, loss=find_loss(None, TWO), task=TWO, noise=SeededNoise(0))
    if where == "model":
        data.inputs[data.subjects == 8] = 2000.0
    else:
        data.targets[data.subjects == 8] = 2
    vector = flatten(model)
    moved = scorer.add_up(data, asked, vector) - scorer.add_up(without(data, 8), asked, vector)
    for place in asked.places.values():
        assert math.isqrt(int((moved[place].astype(object) ** 2).sum())) <= STEPS
