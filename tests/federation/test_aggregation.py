"""The server's average is a weighted mean, by public weights, taken as updates arrive."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.errors import RunError
from wholegrain.federation.aggregation import Averaging, average, weights
from wholegrain.federation.messages import SiloUpdate
from wholegrain.policies.policy import SiloFacts

SILOS = [
    SiloFacts(name="a", items=30, subjects=3),
    SiloFacts(name="b", items=10, subjects=5),
    SiloFacts(name="c", items=60, subjects=2),
]


def updates(count: int = 3, seed: int = 0) -> list[SiloUpdate]:
    draws = torch.Generator().manual_seed(seed)
    return [SiloUpdate(name, torch.randn(7, generator=draws, dtype=torch.float64)) for name in "abc"[:count]]


@pytest.mark.parametrize(
    ("averaging", "expected"),
    [
        (Averaging.PLAIN, {"a": 1, "b": 1, "c": 1}),
        (Averaging.ITEMS, {"a": 30, "b": 10, "c": 60}),
        (Averaging.SUBJECTS, {"a": 3, "b": 5, "c": 2}),
    ],
)
def test_average_is_the_weighted_mean_of_all_updates(averaging: Averaging, expected: dict[str, int]) -> None:
    given_weights = weights(SILOS, averaging)
    assert given_weights == expected
    shares = torch.tensor([expected[name] for name in "abc"], dtype=torch.float64) / sum(expected.values())
    stacked = torch.stack([update.vector for update in updates()])
    torch.testing.assert_close(average(iter(updates()), given_weights), shares @ stacked, rtol=1e-12, atol=1e-12)


@given(order=st.permutations([0, 1, 2]))
def test_the_order_of_arrival_does_not_matter(order: list[int]) -> None:
    sent, by_items = updates(), weights(SILOS, Averaging.ITEMS)
    arrived = average((sent[number] for number in order), by_items)
    torch.testing.assert_close(arrived, average(sent, by_items), rtol=1e-12, atol=1e-12)


def test_only_those_who_trained_count() -> None:
    sent = updates(count=2)
    expected = (30 * sent[0].vector + 10 * sent[1].vector) / 40
    torch.testing.assert_close(average(sent, weights(SILOS, Averaging.ITEMS)), expected, rtol=1e-12, atol=1e-12)


def test_one_update_is_its_own_average() -> None:
    sent = updates(count=1)
    torch.testing.assert_close(average(sent, weights(SILOS, Averaging.ITEMS)), sent[0].vector)


def test_updates_are_left_as_they_were() -> None:
    sent = updates()
    before = [update.vector.clone() for update in sent]
    result = average(sent, weights(SILOS, Averaging.PLAIN))
    result.zero_()
    assert all(torch.equal(update.vector, kept) for update, kept in zip(sent, before, strict=True))


def test_no_update_at_all_is_an_error() -> None:
    with pytest.raises(RunError, match="No silo returned"):
        average(iter([]), weights(SILOS, Averaging.PLAIN))
