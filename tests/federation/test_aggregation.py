"""The server's average is a weighted mean of what can be used, by public weights, taken as updates arrive."""

import math
import re
from collections.abc import Iterable, Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from wholegrain.federation.aggregation import Averaging, average, weights
from wholegrain.federation.messages import SiloFault, SiloUpdate
from wholegrain.policies.policy import SiloFacts

SILOS = [
    SiloFacts(name="a", items=30, subjects=3),
    SiloFacts(name="b", items=10, subjects=5),
    SiloFacts(name="c", items=60, subjects=2),
]


SIZE = 7


def updates(count: int = 3, seed: int = 0) -> list[SiloUpdate]:
    draws = torch.Generator().manual_seed(seed)
    return [SiloUpdate(name, torch.randn(SIZE, generator=draws, dtype=torch.float64)) for name in "abc"[:count]]


def mean(answers: Iterable[SiloUpdate], by: Mapping[str, float]) -> Tensor:
    """The average where every answer can be used."""
    found = average(answers, by, SIZE, torch.float64)
    assert found.vector is not None
    assert found.faults == ()
    assert found.answered == found.used
    return found.vector


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
    torch.testing.assert_close(mean(iter(updates()), given_weights), shares @ stacked, rtol=1e-12, atol=1e-12)


@given(order=st.permutations([0, 1, 2]))
def test_the_order_of_arrival_does_not_matter(order: list[int]) -> None:
    sent, by_items = updates(), weights(SILOS, Averaging.ITEMS)
    arrived = mean((sent[number] for number in order), by_items)
    torch.testing.assert_close(arrived, mean(sent, by_items), rtol=1e-12, atol=1e-12)


def test_only_those_who_trained_count() -> None:
    sent = updates(count=2)
    expected = (30 * sent[0].vector + 10 * sent[1].vector) / 40
    torch.testing.assert_close(mean(sent, weights(SILOS, Averaging.ITEMS)), expected, rtol=1e-12, atol=1e-12)


def test_one_update_is_its_own_average() -> None:
    sent = updates(count=1)
    torch.testing.assert_close(mean(sent, weights(SILOS, Averaging.ITEMS)), sent[0].vector)


def test_updates_are_left_as_they_were() -> None:
    sent = updates()
    before = [update.vector.clone() for update in sent]
    result = mean(sent, weights(SILOS, Averaging.PLAIN))
    result.zero_()
    assert all(torch.equal(update.vector, kept) for update, kept in zip(sent, before, strict=True))


def test_no_update_at_all_has_no_mean() -> None:
    nobody = average(iter([]), weights(SILOS, Averaging.PLAIN), SIZE)
    assert nobody.vector is None
    assert (nobody.answered, nobody.used, nobody.faults) == ((), (), ())


def test_those_who_answered_are_told_in_the_order_of_arrival() -> None:
    found = average(reversed(updates()), weights(SILOS, Averaging.PLAIN), SIZE, torch.float64)
    assert found.answered == found.used == ("c", "b", "a")


UNUSABLE = {
    "not a number": (torch.full((SIZE,), math.nan, dtype=torch.float64), "not all finite"),
    "one value infinite": (torch.tensor([0.0] * (SIZE - 1) + [-math.inf], dtype=torch.float64), "not all finite"),
    "too short": (torch.zeros(SIZE - 1), r"shape \[6\], not \[7\]"),
    "too long": (torch.zeros(SIZE + 1), r"shape \[8\], not \[7\]"),
    "one more axis": (torch.zeros(1, SIZE), r"shape \[1, 7\], not \[7\]"),
    "no axis": (torch.tensor(1.0), r"shape \[\], not \[7\]"),
    "empty": (torch.zeros(0), r"shape \[0\], not \[7\]"),
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("vector", "reason"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_update_that_cannot_be_used_is_left_out_and_told(vector: Tensor, reason: str, place: int) -> None:
    """It arrived all the same: what it reveals has left the silo."""
    sent, by_items = updates(), weights(SILOS, Averaging.ITEMS)
    sent[place] = SiloUpdate("abc"[place], vector)
    found = average(sent, by_items, SIZE, torch.float64)
    others = [update for update in sent if update.silo != "abc"[place]]
    assert torch.equal(found.vector, mean(others, by_items))
    assert found.answered == ("a", "b", "c")
    assert found.used == tuple(update.silo for update in others)
    (fault,) = found.faults
    assert fault.silo == "abc"[place]
    assert re.search(reason, fault.reason)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_silo_that_failed_is_left_out_and_has_not_answered(place: int) -> None:
    fault, by_items = SiloFault("abc"[place], "out of memory"), weights(SILOS, Averaging.ITEMS)
    sent: list[SiloUpdate | SiloFault] = list(updates())
    sent[place] = fault
    found = average(sent, by_items, SIZE, torch.float64)
    others = [answer for answer in sent if isinstance(answer, SiloUpdate)]
    assert torch.equal(found.vector, mean(others, by_items))
    assert found.answered == found.used == tuple(update.silo for update in others)
    assert found.faults == (fault,)


def test_updates_that_are_finite_have_a_mean_that_is() -> None:
    """Three vectors of 3·10³⁸ are finite as float32, and so is their mean; their sum is not."""
    sent = [SiloUpdate(name, torch.full((SIZE,), 3e38)) for name in "abc"]
    found = average(sent, weights(SILOS, Averaging.ITEMS), SIZE)
    assert found.vector is None or bool(torch.isfinite(found.vector).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_an_update_of_another_type_does_not_change_that_of_the_mean(dtype: torch.dtype) -> None:
    sent = [SiloUpdate("a", torch.ones(SIZE, dtype=dtype)), SiloUpdate("b", torch.ones(SIZE))]
    assert average(sent, weights(SILOS, Averaging.PLAIN), SIZE).vector.dtype is torch.float32


def test_nothing_usable_has_no_mean() -> None:
    sent = [SiloUpdate("a", torch.full((SIZE,), math.inf)), SiloFault("b", "gone")]
    found = average(sent, weights(SILOS, Averaging.PLAIN), SIZE)
    assert found.vector is None
    assert (found.answered, found.used, len(found.faults)) == (("a",), (), 2)
