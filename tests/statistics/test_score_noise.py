"""The noise of private scores has the law that was priced, from the seeded and from the secure source."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from wholegrain.clipping.losses import find_loss
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.rounding import SLACK
from wholegrain.data.tasks import Classification
from wholegrain.federation.private_score import ScoreReader
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.runs.metrics import auc
from wholegrain.silo.noise import NoiseSource, SeededNoise
from wholegrain.silo.score_release import STEPS, ScoreMaker
from wholegrain.silo.secure_noise import SecureNoise

TASK = Classification(("no", "yes"))
FORM = ScoreForm(noise_multiplier=3.0, measures=("accuracy", "histogram"), bins=10)
NUMBERS = ScoreForm(noise_multiplier=3.0, measures=("accuracy", "loss"))
DRAWS = 400


def draw(source: NoiseSource, form: ScoreForm = FORM) -> np.ndarray:
    """Scores of a silo in which nobody is held out: noise alone [draw, value]."""
    model = nn.Linear(2, 2)
    maker = ScoreMaker(model=model, loss=find_loss(None, TASK), task=TASK, noise=source)
    vector = flatten(model)
    return np.stack([maker.score("north", None, form, vector, round).numpy() for round in range(DRAWS)])


@pytest.mark.parametrize(
    ("source", "more"), [(SeededNoise(3), 1.0), (SecureNoise(), 1 + SLACK)], ids=["seeded", "secure"]
)
def test_every_value_has_normal_noise_of_the_stated_size(source: NoiseSource, more: float) -> None:
    found = draw(source)
    spread = FORM.noise_multiplier * FORM.reach * more  # √2 for two measures
    assert stats.kstest(found.ravel() / spread, "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(found.T) - np.eye(FORM.width)).max() < 0.25
    np.testing.assert_array_equal(found * STEPS, np.round(found * STEPS))  # whole steps of the grid, and no more digits


def test_intervals_hold_as_often_as_they_say() -> None:
    people, share, reader = 500, 0.7, ScoreReader(NUMBERS, TASK)
    hits, far = 0, 0
    for noise in draw(SeededNoise(5), NUMBERS):
        sums = noise.copy()
        sums[0] += people * (2 * share - 1)
        estimate = reader.read(sums, people)["accuracy"]
        hits += abs(estimate.value - share) <= estimate.noise
        far += abs(estimate.value - share) > estimate.both
    assert stats.binom(DRAWS, 0.95).cdf(hits) > 1e-4
    assert far < 0.02 * DRAWS


def test_auc_and_calibration_follow_from_cells() -> None:
    exact = ScoreReader(ScoreForm(noise_multiplier=1e-6, measures=("histogram",), bins=4), TASK)
    cells = np.array([30.0, 15.0, 5.0, 0.0, 0.0, 5.0, 15.0, 30.0])  # of what did not come true, and of what did
    found = exact.read(cells, 100)
    probabilities = torch.tensor([0.125] * 30 + [0.375] * 15 + [0.625] * 5 + [0.375] * 5 + [0.625] * 15 + [0.875] * 30)
    targets = torch.tensor([0] * 50 + [1] * 50)
    outputs = torch.stack([torch.zeros(100), torch.logit(probabilities)], dim=1)
    assert found["auc"].value == pytest.approx(auc(outputs, targets), abs=1e-6)
    by_hand = (abs(0 - 0.125 * 30) + abs(5 - 0.375 * 20) + abs(15 - 0.625 * 20) + abs(30 - 0.875 * 30)) / 100
    assert found["calibration_error"].value == pytest.approx(by_hand)
