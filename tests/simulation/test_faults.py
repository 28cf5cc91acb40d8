"""Simulated federations with faults: the program keeps its promises, and mistakes in it are found."""

import sys
from pathlib import Path

import pytest

from effort import amount

pytest.importorskip("flwr")
pytest.importorskip("greenlet")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from simulation.federation import play
from simulation.oracle import most_information
from simulation.planted import MISTAKES
from wholegrain.deploy.public_reasons import FAILED

QUICK = 25
"""Federations in one test; there are several of them, so that they spread over the workers."""


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(amount(8, quick=1)))
def test_nothing_is_released_that_was_not_paid_for(block: int) -> None:
    outcomes = [play(seed) for seed in range(block * QUICK, (block + 1) * QUICK)]
    assert [(each.seed, each.violation) for each in outcomes if each.violation] == []
    happened = sum((each.happened for each in outcomes), start=outcomes[0].happened.__class__())
    assert happened["releases"] > QUICK
    assert min(happened["kills at a write"], happened["power cuts"], happened["messages doubled"]) > 0
    if block == 0:  # these are rarer
        assert min(happened["scores"], happened["sums opened"], happened["lies of a server"]) > 0


def test_a_seed_always_plays_the_same_history() -> None:
    assert [play(seed) for seed in (3, 8)] == [play(seed) for seed in (3, 8)]


RARE = {
    "price-before-lock": 9,
    "older-ledger-taken": 12,
    "scores-for-nothing": 19,
    "shares-given-again": 34,
    "two-lists-signed": 34,
}
"""Mistakes that few federations show, with one that does; should it not any more, the others are played."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    seeds = (RARE[mistake], *range(1000)) if mistake in RARE else range(30)
    with MISTAKES[mistake]():
        found = next((violation for seed in seeds if (violation := play(seed).violation)), None)
    assert found is not None
    assert FAILED not in found, "the program must go on with the mistake; else nothing is found"


def test_the_oracles_price_is_that_of_the_gaussian_mechanism() -> None:
    """One Gaussian with σ = 1 is (4.377, 1e-5)-private [Balle & Wang 2018]."""
    assert most_information(4.3772, 1e-5) == pytest.approx(1.0, rel=1e-3)
