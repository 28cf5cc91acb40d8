"""benchmarks/rivals.py: no person moves a sum further than its noise is for, and noise is what the ε asks."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import field_heads  # noqa: E402
import rivals  # noqa: E402
from field_models import MODELS, UNITS  # noqa: E402
from rivals import (  # noqa: E402
    LOCAL_RATE,
    METHODS,
    OURS,
    Bounds,
    Method,
    Owners,
    Records,
    gaussian_delta,
    multiplier,
    proved,
)

BOUNDS = Bounds(silos=4, span=3, records=6)
CLIP = 0.3


def some(seed: int) -> Records:
    """Few people with few records, so that one of them matters; nobody has more than the bounds allow."""
    draws = np.random.default_rng(seed)
    person = np.repeat(np.arange(8), draws.integers(1, BOUNDS.records + 1, 8))
    silo = (person + draws.integers(0, BOUNDS.span, len(person))) % BOUNDS.silos
    inputs = draws.normal(size=(len(person), 5)).astype(np.float32) * draws.choice([0.1, 10.0], (len(person), 1))
    records = Records(inputs.astype(np.float32), draws.integers(0, 2, len(person)).astype(np.float32), person, silo)
    return records.take(np.argsort(silo, kind="stable"))


def total(method: Method, records: Records, vector: np.ndarray, clip: float, bounds: Bounds = BOUNDS) -> np.ndarray:
    """One sum of the linear model, as a vector whose length is that of the whole gradient: of both classes."""
    return MODELS["linear"].total(method, records, bounds, vector[:, None], np.array([clip]))[:, 0] / np.sqrt(2)


def parts(name: str, records: Records, vector: np.ndarray) -> np.ndarray:
    """What is seen: every silo's release, one after the other, or one sum."""
    method = METHODS[name]
    records = method.used(records)
    whole = total(method, records, vector, CLIP)
    if not method.each:
        return whole
    # What a silo adds is what is missing when its records say nothing; whose records they are stays the same.
    silent = [replace(records, inputs=records.inputs * (records.silo != s)[:, None]) for s in range(BOUNDS.silos)]
    return np.concatenate([whole - total(method, others, vector, CLIP) for others in silent])


@pytest.mark.parametrize("name", METHODS)
def test_nobody_moves_what_is_seen_further_than_is_proved(name: str) -> None:
    worst = 0.0
    for seed in range(6):
        draws = np.random.default_rng(seed)
        records, vector = METHODS[name].batch(some(seed), draws), draws.normal(size=5)
        whole = parts(name, records, vector)
        for person in range(8):
            moved = np.linalg.norm(whole - parts(name, records.without(person), vector)) / CLIP
            worst = max(worst, float(moved))
    assert worst <= METHODS[name].moves(BOUNDS) + 1e-4
    if name not in ("ULDP-NAIVE", "DP-FedAvg, silo"):  # of these it takes an opponent to come near
        assert worst > 0.4 * METHODS[name].moves(BOUNDS) / (4 if name == "ULDP-GROUP-8" else 1)


def test_one_person_can_move_a_silo_across_its_ball() -> None:
    inputs = np.array([[1.0], [1.0], [-1.0], [-1.0]], np.float32) * np.array([[1], [1], [9], [9]], np.float32)
    person, silo = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    records = Records(inputs, np.zeros(4, np.float32), person, silo).take(np.argsort(silo, kind="stable"))
    bounds, method = Bounds(2, 2, 2), METHODS["ULDP-NAIVE"]
    moved = [total(method, each, np.zeros(1), 0.01, bounds) for each in (records, records.without(1))]
    length = float(np.abs(moved[0] - moved[1]).sum()) / 0.01
    assert method.printed is not None
    assert length > method.printed(bounds) + 1
    assert length == pytest.approx(method.moves(bounds), rel=1e-4)


def loss(model: str, vector: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over records, written as one would in torch."""
    if model == "linear":
        classes = vector.view(2, -1)
        return torch.nn.functional.cross_entropy(inputs @ classes.T, targets.long())
    first, last = vector[: -UNITS - 1].view(UNITS, -1), vector[-UNITS - 1 :]
    outputs = torch.tanh(inputs @ first.T) @ last[:-1] + last[-1]
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets.double())


def averaged(method: Method, records: Records, record: int) -> float:
    """What a clipped record counts in the mean of its person in a silo, where a method takes one."""
    same = (records.person == records.person[record]) & (records.silo == records.silo[record])
    return 1 / float(same.sum()) if method.averaged else 1.0


def slowly(model: str, method: Method, records: Records, start: np.ndarray) -> np.ndarray:
    """The sum of clipped contributions by autograd, one owner after the other."""
    owners = None if method.owner == "record" else records.owners[method.owner]
    of_record = np.arange(len(records.person)) if owners is None else owners.of_record
    weights = method.weight(records.owners[method.owner], BOUNDS)
    sum_ = np.zeros_like(start)
    for owner in range(of_record.max() + 1):
        inputs, targets = (torch.from_numpy(x[of_record == owner]).double() for x in (records.inputs, records.targets))
        vector = begun = torch.from_numpy(start)
        for _ in range(method.steps):
            own = vector.clone().requires_grad_()
            (slope,) = torch.autograd.grad(loss(model, own, inputs, targets), own)
            vector = vector - LOCAL_RATE * slope * (len(inputs) if method.pool == "sum" else 1)
        update = ((begun - vector) / LOCAL_RATE).numpy()
        most = CLIP * (weights[owner] if method.inside else 1.0)
        clipped = update * min(1.0, most / np.linalg.norm(update))
        sum_ += averaged(method, records, owner) * (clipped if method.inside else weights[owner] * clipped)
    return sum_


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "name",
    [
        "ULDP-NAIVE",
        "ULDP-AVG-w",
        "DP-SGD, group",
        "central",
        "ours, full sum, local steps",
        "ours, sum, pooled",
        "ours, full sum, records",
        "ours, full sum, group-2",
    ],
)
def test_models_add_up_what_autograd_does(model: str, name: str) -> None:
    records, method = some(1), METHODS[name]
    start = MODELS[model].start(5, 3) + np.random.default_rng(0).normal(size=len(MODELS[model].start(5, 3))) / 3
    found = MODELS[model].total(method, records, BOUNDS, np.stack([start, start], 1), np.array([CLIP, 1e3]))[:, 0]
    if model == "linear":
        two = slowly(model, method, records, np.concatenate([np.zeros(5), start]))
        expected = two[5:] - two[:5]  # the difference of the two classes is what is trained
    else:
        expected = slowly(model, method, records, start)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def of_classes(method: Method, records: Records, start: np.ndarray) -> np.ndarray:
    """The sum of clipped contributions of softmax regression by autograd, one owner after the other."""
    owners = None if method.owner == "record" else records.owners[method.owner]
    of_record = np.arange(len(records.person)) if owners is None else owners.of_record
    weights = method.weight(records.owners[method.owner], BOUNDS)
    total_ = np.zeros_like(start)
    for owner in range(of_record.max() + 1):
        inputs = torch.from_numpy(records.inputs[of_record == owner]).double()
        targets = torch.from_numpy(records.targets[of_record == owner]).long()
        vector = begun = torch.from_numpy(start)
        for _ in range(method.steps):
            own = vector.clone().requires_grad_()
            slope = torch.autograd.grad(torch.nn.functional.cross_entropy(inputs @ own, targets), own)[0]
            vector = vector - LOCAL_RATE * slope * (len(inputs) if method.pool == "sum" else 1)
        update = ((begun - vector) / LOCAL_RATE).numpy()
        most = CLIP * (weights[owner] if method.inside else 1.0)
        clipped = update * min(1.0, most / np.linalg.norm(update))
        total_ += averaged(method, records, owner) * (clipped if method.inside else weights[owner] * clipped)
    return total_


@pytest.mark.parametrize("most", [1, 10**6])
@pytest.mark.parametrize("name", METHODS)
def test_last_layers_add_up_what_autograd_does(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_heads, "MOST_SCORES", most)
    monkeypatch.setattr(rivals, "PART", most)
    monkeypatch.setattr(rivals, "MANY", most)
    draws, method = np.random.default_rng(5), METHODS[name]
    records = some(3)
    records = replace(records, targets=draws.integers(0, 3, len(records.targets)).astype(np.float32))
    first, other = draws.normal(size=(2, 5, 3)) / 3
    model = field_heads.Softmax(first)
    columns = np.stack([model.start(5, 0), other.ravel()], 1)
    found = model.total(method, records, BOUNDS, columns, np.array([CLIP, CLIP]))
    for column, start in enumerate((first, other)):
        expected = of_classes(method, records, start)
        np.testing.assert_allclose(found[:, column].reshape(5, 3), expected, rtol=2e-4, atol=2e-5)
    inputs = torch.from_numpy(records.inputs).double()
    np.testing.assert_allclose(
        model.outputs(records.inputs, columns)[:, 1], inputs @ torch.from_numpy(other), rtol=1e-4, atol=1e-4
    )


def test_owners_who_are_few_are_taken_one_by_one_with_the_same_result() -> None:
    records = some(2)
    parts_ = np.random.default_rng(0).normal(size=(len(records.person), 3)).astype(np.float32)
    few, many = (Owners.of(records.silo, records, few=few).meet(parts_) for few in (True, False))
    np.testing.assert_allclose(few, many, rtol=1e-4, atol=1e-3)


def test_noise_is_what_the_budget_asks() -> None:
    sigma = multiplier(1.0, 1e-5, 20)
    assert gaussian_delta(1.0, sigma / np.sqrt(20)) == pytest.approx(1e-5, rel=1e-6)
    assert METHODS["ULDP-GROUP-2"].noise(sigma, BOUNDS) == pytest.approx(sigma * 2 * 2)
    assert METHODS["ULDP-AVG"].noise(sigma, BOUNDS) == sigma * 3 / 4
    assert METHODS["ULDP-AVG-w"].noise(sigma, BOUNDS) == sigma
    assert METHODS["ULDP-NAIVE"].noise(sigma, BOUNDS) == sigma * 8
    assert proved(1.0, 1e-5, 1) == pytest.approx(1.0, rel=1e-6)
    assert proved(1.0, 1e-5, 2) > 2
    assert set(OURS) < set(METHODS)


def test_a_cap_keeps_the_first_records_of_everybody() -> None:
    records = some(0)
    capped = records.capped(2)
    assert np.bincount(capped.person).max() == 2
    assert set(capped.person.tolist()) == set(records.person.tolist())


def test_a_batch_holds_few_records_of_a_person_in_a_silo_and_is_drawn_anew() -> None:
    records, method, draws = some(0), METHODS["ours, full sum, group-2"], np.random.default_rng(0)
    whole, found = np.bincount(records.silo * 8 + records.person), np.zeros(len(records.person))
    for _ in range(300):
        batch = method.batch(method.used(records), draws)
        assert (np.bincount(batch.silo * 8 + batch.person, minlength=len(whole)) == np.minimum(whole, 2)).all()
        found += (records.inputs[:, None] == batch.inputs).all(2).any(1)
    expected = np.minimum(1, 2 / whole[records.silo * 8 + records.person])
    assert np.abs(found / 300 - expected).max() < 0.15
    assert METHODS["ours, full sum"].batch(records, draws) is records
