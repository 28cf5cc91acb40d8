"""A model that raises at one person's value: a run's record must not tell that the person is there."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wholegrain as wg
from wholegrain.api.finished_run import Run
from wholegrain.data.dataset import Dataset

PEOPLE, ITEMS, WHO = 60, 4, 7
pytestmark = pytest.mark.usefixtures("coarse_prices")


class Lookup(nn.Module):
    """An embedding that is looked up by two columns together, and has no row for one pair of values."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.embedding(x[:, 0] * (4 - x[:, 1])))
        return found


class Features(nn.Module):
    """The same without its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.embedding(x[:, 0] * (4 - x[:, 1]))
        return found


def frozen_lookup() -> nn.Module:
    """A model whose frozen part raises."""
    return nn.Sequential(Features(), nn.Linear(4, 2))


def people(odd: bool) -> Dataset:
    """Everybody's values are in the table; WHO's are not, where it is odd."""
    subjects = np.repeat(np.arange(PEOPLE), ITEMS)
    inputs = np.stack([subjects % 3, 2 + subjects % 3], 1)
    inputs[:2] = [[0, 0], [4, 4]]
    if odd:
        inputs[subjects == WHO] = [4, 0]
    return wg.from_torch(
        (torch.from_numpy(inputs), torch.from_numpy(subjects % 2)), subjects=subjects, silos=subjects % 2, classes=2
    )


def train(odd: bool, net: nn.Module, **more: object) -> Run:
    torch.manual_seed(0)
    return wg.train(people(odd), net=net, policy=wg.subject_dp(rate=0.9), epsilon=4, rounds=3, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [1, 2])
def test_no_round_tells_that_a_model_raised(steps: int, caplog: pytest.LogCaptureFixture) -> None:
    told = {}
    for odd in (False, True):
        caplog.clear()
        run = train(odd, Lookup(), steps=steps, test=0.0)
        told[odd] = [(done.faults, done.cohort, done.failed) for done in run.rounds], caplog.messages
    assert told[True] == told[False]
    assert not any(done.faults for done in run.rounds)


def test_a_frozen_part_that_raises_tells_nothing_either() -> None:
    run = train(True, frozen_lookup(), model={"train": "head"}, test=0.0)
    assert not any(done.faults for done in run.rounds)


@pytest.mark.parametrize("private", [{}, {"every": 1}])
@pytest.mark.parametrize(("net", "part"), [(Lookup, {}), (frozen_lookup, {"train": "head"})])
def test_whoever_is_scored_may_be_whom_a_model_raises_at(
    net: Callable[[], nn.Module], part: dict[str, str], private: dict[str, int]
) -> None:
    run = train(True, net(), model=part, test=0.9, private=private)
    (last,) = run.rounds[-1:]
    assert not last.faults
    assert last.private if private else last.scores
