"""benchmarks/rivals.py: no person moves a sum further than its noise is for, and noise is what the ε asks."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from rivals import METHODS, OURS, Bounds, Records, gaussian_delta, multiplier, proved, total  # noqa: E402

BOUNDS = Bounds(silos=4, span=3, records=6)
CLIP = 0.3


def some(seed: int) -> Records:
    """Few people with few records, so that one of them matters; nobody has more than the bounds allow."""
    draws = np.random.default_rng(seed)
    person = np.repeat(np.arange(8), draws.integers(1, BOUNDS.records + 1, 8))
    silo = (person + draws.integers(0, BOUNDS.span, len(person))) % BOUNDS.silos
    inputs = draws.normal(size=(len(person), 5)).astype(np.float32) * draws.choice([0.1, 10.0], (len(person), 1))
    return Records(inputs.astype(np.float32), draws.integers(0, 2, len(person)).astype(np.float32), person, silo)


def parts(name: str, records: Records, vector: np.ndarray) -> np.ndarray:
    """What is seen: every silo's release, or one sum; as vectors whose lengths are those of whole gradients."""
    method = METHODS[name]
    records = records if method.cap is None else records.capped(method.cap)
    if not method.each:
        return np.sqrt(2) * total(method, records, BOUNDS, vector, CLIP)[0]
    owners = records.owners["pair"] if method.owner == "pair" else None
    seen = []
    for silo in range(BOUNDS.silos):
        own = records.silo == silo
        if owners is None:
            alone = Records(records.inputs[own], records.targets[own], records.person[own], records.silo[own])
            seen.append(total(method, alone, BOUNDS, vector, CLIP)[0] if own.any() else np.zeros(len(vector)))
            continue
        with_others = total(method, records, BOUNDS, vector, CLIP)[0]
        others = Records(records.inputs * ~own[:, None], records.targets, records.person, records.silo)
        seen.append(with_others - total(method, others, BOUNDS, vector, CLIP)[0])
    return np.sqrt(2) * np.concatenate(seen)


@pytest.mark.parametrize("name", METHODS)
def test_nobody_moves_what_is_seen_further_than_is_proved(name: str) -> None:
    worst = 0.0
    for seed in range(6):
        records, vector = some(seed), np.random.default_rng(seed).normal(size=5)
        whole = parts(name, records, vector)
        for person in range(8):
            moved = np.linalg.norm(whole - parts(name, records.without(person), vector)) / CLIP
            worst = max(worst, float(moved))
    assert worst <= METHODS[name].moves(BOUNDS) + 1e-4
    if name not in ("ULDP-NAIVE", "DP-FedAvg, silo"):  # of these it takes an opponent to come near
        assert worst > 0.4 * METHODS[name].moves(BOUNDS) / (
            4 if name in ("ULDP-GROUP-8", "ULDP-SGD", "ULDP-AVG") else 1
        )


def test_one_person_can_move_a_silo_across_its_ball() -> None:
    inputs = np.array([[1.0], [1.0], [-1.0], [-1.0]], np.float32) * np.array([[1], [1], [9], [9]], np.float32)
    person, silo = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    records = Records(inputs, np.zeros(4, np.float32), person, silo)
    bounds = Bounds(2, 2, 2)
    moved = [total(METHODS["ULDP-NAIVE"], r, bounds, np.zeros(1), 0.01)[0] for r in (records, records.without(1))]
    length = np.sqrt(2) * float(np.abs(moved[0] - moved[1]).sum()) / 0.01
    printed = METHODS["ULDP-NAIVE"].printed
    assert printed is not None
    assert length > printed(bounds) + 1
    assert length == pytest.approx(METHODS["ULDP-NAIVE"].moves(bounds), rel=1e-4)


def test_noise_is_what_the_budget_asks() -> None:
    sigma = multiplier(1.0, 1e-5, 20)
    assert gaussian_delta(1.0, sigma / np.sqrt(20)) == pytest.approx(1e-5, rel=1e-6)
    assert METHODS["ULDP-GROUP-2"].noise(sigma, BOUNDS) == pytest.approx(sigma * 2 * 2)
    assert METHODS["ULDP-AVG"].noise(sigma, BOUNDS) == sigma
    assert METHODS["ULDP-NAIVE"].noise(sigma, BOUNDS) == sigma * 8
    assert proved(1.0, 1e-5, 1) == pytest.approx(1.0, rel=1e-6)
    assert proved(1.0, 1e-5, 2) > 2
    assert set(OURS) < set(METHODS)


def test_a_cap_keeps_the_first_records_of_everybody() -> None:
    records = some(0)
    capped = records.capped(2)
    assert np.bincount(capped.person).max() == 2
    assert set(capped.person.tolist()) == set(records.person.tolist())
