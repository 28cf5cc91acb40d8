"""Weights by share: a subject's parts of C add up to C whatever its shares are, and what is not proved is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from effort import examples
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.data.clinics import clinics
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import SpecError, WholegrainError
from wholegrain.models.model_catalog import build
from wholegrain.policies.policy import SHARE_STEPS, SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings, make_row
from wholegrain.privacy.accountants import DEFAULT
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.privacy.trust import SecureSum
from wholegrain.runs.datasets import find_shares, split_dataset
from wholegrain.runs.planning import plan_federation
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.secure_noise import grid
from wholegrain.silo.training import Trainer

MODEL = build("logistic", features=10, classes=2, seed=0).double()
GRADIENTS = BookKeeping(MODEL, cross_entropy)
BY_SHARE = {"name": "subject_dp", "rate": 1.0, "by_span": True, "by_share": True}
FACTS = SiloFacts(name="north", items=400, subjects=200, knows_spans=True, knows_shares=True)
CLINICS = clinics(patients=12, clinics=4, span=4, visits=12, seed=1)


def spec(**sections: object) -> RunSpec:
    return RunSpec.of({"policy": BY_SHARE, "evaluation": {"test": 0.0}, "data": {"source": "clinics"}, **sections})


def without(dataset: Dataset, subject: int) -> Dataset:
    kept = np.flatnonzero(dataset.data.subjects != subject)
    assert dataset.silos is not None
    return replace(dataset, data=dataset.data.take(kept), silos=dataset.silos[kept])


def sums(dataset: Dataset, clip_norm: float, trust: SecureSum | None) -> dict[str, Tensor]:
    """Each silo's sum before noise, for one step from the same parameters."""
    trainer = Trainer(clipped_sum=GRADIENTS, noise=SeededNoise(0), learning_rate=1.0)
    settings = PolicySettings(rate=1.0, by_span=True, by_share=True, clip_norm=clip_norm, trust=trust)
    vector, found = flatten(MODEL), {}
    for name, silo in split_dataset(dataset, spec()).silos.items():
        silo = replace(silo, data=replace(silo.data, inputs=silo.data.inputs.astype(np.float64)))
        policy = make_row("subject_dp", settings, silo.facts).with_noise(0.0)
        if trust is None:
            found[name] = (vector - trainer.train(silo, policy, vector, round=0, steps=1)) * policy.divisor.value  # type: ignore[union-attr]
        else:
            found[name] = trainer.add_to_sum(silo, policy, vector, round=0) * grid(policy.least_norm, len(vector))
    return found


@pytest.mark.parametrize("clip_norm", [1e-3, 100.0], ids=["all are clipped", "none is"])
@pytest.mark.parametrize("trust", [None, SecureSum(silos=4, answers=4, colluding=0)], ids=["local", "sum"])
def test_a_subject_moves_what_is_seen_by_one_clip_norm_at_most(clip_norm: float, trust: SecureSum | None) -> None:
    whole, uneven, longest = sums(CLINICS, clip_norm, trust), 0, 0.0
    assert CLINICS.silos is not None
    for subject in range(12):
        rest = sums(without(CLINICS, subject), clip_norm, trust)
        moves = [whole[name] - rest.get(name, torch.zeros(22)) for name in whole]
        # Releases are one long vector; of a sum, the worst is that all parts point the same way.
        lengths = torch.stack([move.norm() for move in moves]) / clip_norm
        longest = max(longest, float(lengths.norm() if trust is None else lengths.sum()))
        _, counts = np.unique(CLINICS.silos[CLINICS.data.subjects == subject], return_counts=True)
        uneven += len(set(counts.tolist())) > 1
    assert longest <= 1 + 2**-12  # the grid's part of what is proved
    assert uneven > 3  # shares differed from 1/m
    if clip_norm < 1:
        assert longest > 0.97  # rounding down costs little


@pytest.mark.parametrize("trust", [None, SecureSum(silos=4, answers=4, colluding=0)], ids=["local", "sum"])
def test_the_grid_is_as_fine_as_by_span(trust: SecureSum | None) -> None:
    """Every silo rounds its sum once, whatever a subject's share is in it."""
    row = make_row("subject_dp", PolicySettings(rate=1.0, by_span=True, by_share=True, trust=trust), FACTS)
    assert row.by_share
    assert row.least_norm == replace(row, by_share=False).least_norm
    assert row.least_norm == row.clip.norm / (32 if trust is None else 4)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.lists(st.integers(0, 40), min_size=6, max_size=6))
@examples(50)
def test_shares_of_one_subject_add_up_to_one_and_belong_to_it_alone(own: list[int], other: list[int]) -> None:
    def parts(first: list[int], second: list[int]) -> dict[str, SubjectData]:
        codes = [np.repeat([7, 9], pair) for pair in zip(first, second, strict=False)]
        return {f"s{k}": SubjectData(np.zeros((len(c), 1)), np.zeros(len(c), np.int64), c) for k, c in enumerate(codes)}

    both, alone = parts(own, other), parts(own, [0] * 6)
    numbers, same = (find_shares(each, CLINICS) for each in (both, alone))
    met = [int(numbers[name][data.subjects == 7][0]) for name, data in both.items() if (data.subjects == 7).any()]
    assert 0.98 * bool(met) <= sum(SHARE_STEPS / number for number in met) <= 1 + 1e-12
    assert met == [int(same[name][0]) for name, data in alone.items() if data.items]


def test_it_costs_what_weights_by_span_cost() -> None:
    for trust in ({}, {"trust": {"model": "secure_sum"}}):
        found = []
        for policy in (BY_SHARE, {**BY_SHARE, "by_share": False}):
            plan = prepare(spec(policy=policy, privacy={"epsilon": 2.0}, **trust)).plan
            promised = plan.guarantee(Unit.SUBJECT)
            assert promised.standing is Standing.PROVED
            found.append((promised.epsilon, plan.rows[0][0].noise))
        assert found[0] == found[1]


@pytest.mark.parametrize("trust", ["local", "secure_sum"])
def test_what_is_not_proved_is_refused(trust: str) -> None:
    sections = {"trust": {"model": trust}, "privacy": {"epsilon": 2.0}}
    with pytest.raises(SpecError, match="every step"):
        prepare(spec(policy={**BY_SHARE, "rate": 0.5}, **sections))
    with pytest.raises(SpecError, match="set by_span"):
        prepare(spec(policy={**BY_SHARE, "by_span": False}, **sections))
    with pytest.raises(WholegrainError, match="by_share"):
        prepare(spec(evaluation={"test": 0.2, "private": {"noise_multiplier": 5.0}}, **sections))


def test_a_column_of_spans_counts_silos_and_no_items() -> None:
    stated = replace(CLINICS, spans=np.full(CLINICS.data.items, 4))
    with pytest.raises(SpecError, match="column of spans"):
        split_dataset(stated, spec())


def test_a_federation_whose_silos_know_no_shares_is_refused() -> None:
    silos = [{"name": name, "items": 100, "subjects": 20, "items_per_subject": 3} for name in ("a", "b")]
    asked = RunSpec.of({"policy": BY_SHARE, "federation": {"shape": [3], "classes": 2, "silos": silos}})
    assert asked.federation is not None
    with pytest.raises(SpecError, match="no shares"):
        plan_federation(asked, asked.federation, DEFAULT)


def test_a_silo_that_knows_spans_alone_refuses_it() -> None:
    facts = SiloFacts(name="a", items=100, subjects=20, items_per_subject=9, knows_spans=True)
    with pytest.raises(SpecError, match="know shares"):
        make_row("subject_dp", PolicySettings(rate=1.0, by_span=True, by_share=True), facts)
