"""Training under secure sums: the same to the bit as adding up in the open, and no subject moves a sum too far."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from effort import amount
from wholegrain.clipping.rounding import SLACK
from wholegrain.data.clinics import clinics
from wholegrain.data.dataset import Dataset
from wholegrain.engines.secure_sum_engine import SecureSums
from wholegrain.engines.simulated_sum import SumSilos
from wholegrain.errors import RunError, SpecError
from wholegrain.federation.messages import RoundTask, SiloFault, SumUpdate
from wholegrain.federation.sum_scale import SumScale
from wholegrain.policies.policy_catalog import CATALOG
from wholegrain.privacy.definitions import Standing
from wholegrain.runs.runner import execute, in_process, open_guard, prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.secure_noise import SecureNoise

pytestmark = pytest.mark.usefixtures("coarse_prices")

SILOS = 6
CLIP = 0.1
"""Shorter than most gradients, so that people move a sum as far as they may."""
SUMMED = [name for name, entry in CATALOG.items() if name not in ("fedavg", "user_ldp")]


def spec(name="subject_dp", *, by_span=False, rate=1.0, noise=None, **changes):
    return RunSpec.of(
        {
            "data": {"source": "clinics"},
            "silos": {"items_per_subject": 4},
            "policy": {"name": name, "rate": rate, "by_span": by_span, "group_cap": 2, "clip_norm": CLIP},
            "privacy": {"epsilon": None, "noise_multiplier": noise or 30.0},
            "trust": {"model": "secure_sum"},
            "rounds": {"count": 3, "learning_rate": 1.0},
            "evaluation": {"test": 0.0},
            **changes,
        }
    )


def people(count=40) -> Dataset:
    return clinics(patients=count, clinics=SILOS, span=3, visits=4)


def without(dataset: Dataset, subject: int) -> Dataset:
    kept = np.flatnonzero(dataset.data.subjects != subject)
    return replace(dataset, data=dataset.data.take(kept), silos=dataset.silos[kept])


def opened(prepared, task) -> SumUpdate:
    engine = in_process(prepared)
    assert isinstance(engine, SecureSums)
    (answer,) = engine.run(task)
    return answer


def task_for(prepared, round=0) -> RoundTask:
    return RoundTask(round, tuple(prepared.silos), 1, prepared.first)


@pytest.mark.parametrize("by_span", [False, True])
@pytest.mark.parametrize("policy", SUMMED)
def test_the_masked_sum_is_the_open_one_to_the_bit(policy, by_span, coarse_prices):
    prepared = prepare(spec(policy, by_span=by_span, rate=0.5), dataset=people())
    task = task_for(prepared)
    trainer = in_process(prepared).post.trainer
    parts = [
        trainer.add_to_sum(silo, prepared.plan.policy_for(name), task.vector, 0)
        for name, silo in prepared.silos.items()
    ]
    scale = SumScale.of(prepared.plan.rows, task.vector.numel())
    expected = scale.move(task.vector, torch.stack(parts).sum(0).numpy(), prepared.plan.rows, trainer.learning_rate)
    answer = opened(prepared, task)
    assert answer.silos == tuple(prepared.silos)
    assert torch.equal(answer.vector, expected)


class NoNoise(SeededNoise):
    """Coins as ever, and no noise: to look at the sum itself."""

    def stream(self, round, silo):
        return self

    def add_to(self, total, multiplier, clip_norm, least_norm=None):
        pass

    def add_steps_to(self, total, multiplier, clip_norm, step):
        total.div_(step).round_()


@pytest.mark.thorough
@pytest.mark.parametrize("by_span", [False, True])
@pytest.mark.parametrize("policy", SUMMED)
def test_one_subject_removed_from_all_files_moves_the_sum_by_what_was_priced(policy, by_span, coarse_prices):
    """Sizes are declared, so that the plan, the grid and the divisor stay."""
    sizes = {"*": {"items": 40, "subjects": 15}}
    asked = spec(policy, by_span=by_span, silos={"items_per_subject": 4, "sizes": sizes})
    whole = people()
    first = replace(prepare(asked, dataset=whole), noise=NoNoise(0))
    spans = {subject: len(set(whole.silos[whole.data.subjects == subject])) for subject in whole.data.subjects}
    size = first.first.numel()
    scale, task = SumScale.of(first.plan.rows, size), task_for(first)
    divisor = sum(row.divisor.value for row, _ in first.plan.rows)
    per_silo = {"local_item_dp": 4, "local_group_dp": 2}.get(policy, 1)
    moved = []
    for subject, span in list(spans.items())[: amount(12, quick=2)]:
        other = replace(prepare(asked, dataset=without(whole, subject)), noise=NoNoise(0), first=first.first)
        assert [row for row, _ in other.plan.rows] == [row for row, _ in first.plan.rows]
        step = (opened(first, task).vector.double() - opened(other, task).vector.double()) * divisor
        moved.append(float(step.norm()))
        allowed = CLIP * per_silo * (1.0 if by_span else span)
        assert moved[-1] <= allowed * (1 + SLACK) + span * scale.step * math.sqrt(size) + 1e-4
    assert max(moved) > 0.9 * CLIP


@pytest.mark.parametrize("policy", ["subject_dp", "uldp_avg"])
def test_a_server_that_shows_every_silo_other_parameters_moves_a_subject_no_further(policy, coarse_prices):
    """Nothing binds the parameters of silos together: the bound holds for whatever each of them is shown."""
    asked = spec(policy, by_span=True, silos={"items_per_subject": 4, "sizes": {"*": {"items": 40, "subjects": 15}}})
    whole, draws = people(), torch.Generator().manual_seed(1)
    first = replace(prepare(asked, dataset=whole), noise=NoNoise(0))
    size = first.first.numel()
    scale = SumScale.of(first.plan.rows, size)
    shown = {name: 3 * torch.randn(size, generator=draws) for name in first.silos}

    def total(prepared) -> torch.Tensor:
        trainer = in_process(prepared).post.trainer
        parts = [
            trainer.add_to_sum(silo, prepared.plan.policy_for(name), shown[name], 0)
            for name, silo in prepared.silos.items()
        ]
        return torch.stack(parts).sum(0).double() * scale.step

    moved = []
    for subject in np.unique(whole.data.subjects)[:6].tolist():
        span = len(set(whole.silos[whole.data.subjects == subject]))
        other = replace(prepare(asked, dataset=without(whole, subject)), noise=NoNoise(0))
        moved.append(float((total(first) - total(other)).norm()))
        assert moved[-1] <= CLIP * (1 + SLACK) + span * scale.step * math.sqrt(size)
    assert max(moved) > 0.5 * CLIP


def test_the_noise_of_a_sum_has_the_variance_that_was_planned():
    asked = spec(noise=4.0)
    prepared = prepare(asked, dataset=people())
    trust = prepared.plan.trust
    own = prepared.plan.rows[0][0].noise.multiplier
    assert trust.sum_noise(own) == pytest.approx(4.0)
    size, source = 20_000, SecureNoise()
    step, draws = 2.0**-20, []
    for silo in range(SILOS):
        total = torch.zeros(size, dtype=torch.float64)
        source.stream(0, str(silo)).add_steps_to(total, own, 1.0, step)
        assert torch.equal(total, total.round())
        draws.append(total.numpy() * step)
    honest = np.sum(draws[: trust.honest], axis=0)
    # Paid for rounding, the noise is a little larger than was planned, and never smaller.
    assert honest.std() * (1 + 4 / math.sqrt(2 * size)) > 4.0
    assert honest.std() < 4.0 * (1 + SLACK) * 1.03
    assert stats.kstest(honest / honest.std(), "norm").pvalue > 1e-6
    independent = np.corrcoef(draws)
    assert np.abs(independent - np.eye(SILOS)).max() < 6 / math.sqrt(size)


def test_a_sum_does_not_wrap_and_one_that_would_is_refused():
    prepared = prepare(spec(), dataset=people())
    scale = SumScale.of(prepared.plan.rows, 20)
    assert scale.bits < 64
    with pytest.raises(SpecError, match="64 bits"):
        SumScale.of([(row, replace(facts, items=10**12, subjects=10**12)) for row, facts in prepared.plan.rows], 10**9)


def test_a_silo_that_fails_does_not_stop_the_others_and_too_few_open_nothing():
    prepared = prepare(spec(), dataset=people())
    broken = dict(prepared.silos)
    task = task_for(prepared)
    for count, name in enumerate(list(prepared.silos)[:2], 1):
        broken[name] = None
        plan, trainer = prepared.plan, in_process(prepared).post.trainer
        engine = SecureSums(SumSilos(broken, plan, trainer, plan.trust), plan, plan.trust, trainer.learning_rate)
        answers = list(engine.run(task))
        faults = [answer for answer in answers if isinstance(answer, SiloFault)]
        if count == 1:
            assert [fault.silo for fault in faults] == [name]
            assert len(answers[-1].silos) == SILOS - 1
        else:
            assert len(faults) == SILOS
            assert "was not opened" in faults[-1].reason


def test_a_run_under_secure_sums_spends_what_its_plan_says(coarse_prices):
    prepared = prepare(spec(privacy={"epsilon": 2.0}), dataset=people())
    local = prepare(spec(privacy={"epsilon": 2.0}, trust={"model": "local"}), dataset=people())
    with open_guard(prepared, "0" * 16) as guard:
        run = execute(prepared, guard)
    assert run.guarantee.standing is Standing.PROVED
    assert run.guarantee.epsilon == prepared.plan.guarantee().epsilon <= 2.0
    assert "only sums of at least 5 of 6 silos are seen" in run.guarantee.because
    assert "under secure sums" in str(run.guarantee)
    # The honest sum needs M times the noise of one silo's release, and not √M: but four silos share it.
    of_a_silo = [plan.rows[0][0].noise.multiplier for plan in (prepared.plan, local.plan)]
    assert of_a_silo[0] == pytest.approx(of_a_silo[1] * math.sqrt(SILOS / prepared.plan.trust.honest), rel=0.05)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rounds": {"steps": 2}}, "rounds.steps = 2"),
        ({"rounds": {"cohort": 3}}, "rounds.cohort"),
        ({"rounds": {"averaging": "plain"}}, "rounds.averaging"),
        ({"trust": {"model": "secure_sum", "answers": 3}}, "trust.answers = 3"),
        ({"policy": {"name": "user_ldp", "rate": 0.5}}, "no sum over subjects"),
        ({"policy": {"name": "fedavg", "rate": 0.5}}, "protect nobody"),
        ({"trust": {"answers": 5}}, "secure_sum"),
    ],
)
def test_what_is_no_sum_is_refused_in_one_sentence(changes, why):
    with pytest.raises(SpecError, match=why):
        prepare(spec(**changes), dataset=people())


def test_too_few_answers_fail_the_round_and_three_in_a_row_the_run(coarse_prices):
    prepared = prepare(spec(rounds={"count": 5}), dataset=people())
    prepared = replace(prepared, silos=dict.fromkeys(prepared.silos))
    with open_guard(prepared, "0" * 16) as guard:
        with pytest.raises(RunError, match="failed one after the other"):
            execute(prepared, guard)
        assert guard.ledger.state.runs["0" * 16].has_spent
