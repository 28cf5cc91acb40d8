"""Canaries are rows like any others: what they move, and what they leave alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from planted_faults import POLICIES, prepared
from wholegrain.audit.attacks import attack_crowd, attack_each_home, secret_coins
from wholegrain.audit.canaries import Block, CanaryCompany, Design
from wholegrain.audit.canary_gradients import BASE
from wholegrain.audit.canary_inputs import replace_canaries, telling_input
from wholegrain.audit.scores import NoiseLaw
from wholegrain.audit.simulate import ObservedUpdate, final_parameters, ignore_updates, noise_like, simulate_run
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.parameters import flatten
from wholegrain.data.sampling import FixedItems
from wholegrain.privacy.definitions import Unit
from wholegrain.silo.noise import SeededNoise

CLIPS = {
    "local_item_dp": Clip(ClipPer.ITEM, Pool.SUM, 1.0),
    "higradavg_dp": Clip(ClipPer.ITEM, Pool.MEAN, 1.0),
    "subject_dp": Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0),
}


def crowd(policy: str, canaries: int = 16) -> Design:
    return Design(prepared=prepared(policy), unit=Unit.SUBJECT, block=Block(canaries, 8), company=CanaryCompany.CROWD)


def batch_of(design: Design, silo: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All rows of a silo with every canary in it, subjects numbered from 0."""
    found = design.silos(np.ones(design.block.canaries, np.bool_))[silo]
    groups = torch.unique(torch.from_numpy(found.data.subjects), return_inverse=True)[1]
    return found.inputs, found.targets, groups


@pytest.mark.parametrize(
    ("policy", "moves"),
    [pytest.param("local_item_dp", 2.0, marks=pytest.mark.slow), ("higradavg_dp", 1.0), ("subject_dp", 1.0)],
)
def test_a_canary_moves_its_own_coordinate_as_far_as_anybody_may(policy: str, moves: float) -> None:
    design = crowd(policy)
    size = design.prepared.first.numel()
    pooled = design.gradients(design.start, *batch_of(design, design.homes[3][0]), CLIPS[policy])
    block = pooled.total[size:].float()
    ours = torch.zeros(design.block.size)
    ours[3::8][:2] = moves  # the third and the eleventh live in the third home
    torch.testing.assert_close(block, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("policy", CLIPS)
def test_canaries_leave_the_models_sum_alone(policy: str) -> None:
    design, silo = crowd(policy), "clinic-0"
    size, real = design.prepared.first.numel(), design.prepared.silos[silo]
    vector = torch.randn(size + design.block.size, generator=torch.Generator().manual_seed(0))
    groups = torch.unique(torch.from_numpy(real.data.subjects), return_inverse=True)[1]
    alone = design.prepared.clipped_sum(vector[:size], real.inputs, real.targets, groups, CLIPS[policy]).total
    together = design.gradients(vector, *batch_of(design, silo), CLIPS[policy]).total
    torch.testing.assert_close(together[:size], alone, rtol=1e-4, atol=1e-5)


def test_a_clip_of_the_whole_batch_turns_round() -> None:
    """With the canary one way, without it the other: 2C apart."""
    design = attack_each_home(prepared("user_ldp"), Unit.SUBJECT)
    size, clip = design.prepared.first.numel(), Clip(ClipPer.BATCH, Pool.MEAN, 1.0)
    seen = []
    for present in (False, True):
        silo = design.silos(np.full(8, present))["clinic-2"]
        home = design.home_of["clinic-2"]
        groups = torch.arange(silo.data.items)
        total = design.gradients(design.start, silo.inputs, silo.targets, groups, clip).total
        seen.append(float(total[size + home]))
    assert seen == pytest.approx([-1.0, 1.0], abs=1e-4)


def test_a_silo_holds_canaries_to_its_bounds() -> None:
    design = attack_each_home(prepared("higradavg_dp"), Unit.SUBJECT)
    assert design.rows(design.prepared.plan.rows[0][1]) == 6  # three times what it may bring
    silos = design.silos(np.ones(8, np.bool_))
    assert all(silo.data.largest_subject == 2 for silo in silos.values())


def test_nobody_lives_in_more_silos_than_the_span_allows() -> None:
    run = prepared("subject_dp")
    wide = replace(
        run,
        plan=replace(run.plan, span=3),
        spec=run.spec.model_copy(update={"silos": run.spec.silos.model_copy(update={"span": 3})}),
    )
    design = Design(prepared=wide, unit=Unit.SUBJECT, block=Block(4, 1), company=CanaryCompany.CROWD)
    assert [len(home) for home in design.homes] == [3, 3]
    assert len(design.home_of) == 6
    silos = design.silos(np.ones(4, np.bool_))  # refused if anybody were in more
    assert [int((silo.data.targets >= BASE).sum() > 0) for silo in silos.values()] == [1] * 6 + [0] * 2
    assert all(len(home) == 1 for home in replace(design, unit=Unit.ITEM).homes)


def test_a_batch_of_fixed_size_finds_its_silo_full() -> None:
    run = prepared("subject_dp")
    rows = tuple((replace(policy, sampling=FixedItems(5)), silo) for policy, silo in run.plan.rows)
    fixed = replace(run, plan=replace(run.plan, rows=rows))
    design = attack_each_home(fixed, Unit.SUBJECT)
    full, short = (design.silos(np.full(8, present)) for present in (True, False))
    for _, silo in rows:
        assert full[silo.name].data.items == silo.items
        assert short[silo.name].data.items == silo.items - 2


def test_an_item_is_one_row_with_a_sibling_where_its_subject_is_clipped() -> None:
    block = Block(3, 1)
    design = Design(prepared=prepared("subject_dp"), unit=Unit.ITEM, block=block, company=CanaryCompany.CROWD)
    made_up = [silo.data for silo in design.silos(np.array([True, False, False])).values()]
    codes = np.concatenate([data.targets[data.targets >= BASE] - BASE for data in made_up])
    assert sorted(codes) == [0, 3 + 8 + 1, 3 + 8 + 2, 3 + 8 + 3]


def test_an_item_takes_the_place_of_one_of_k_where_surplus_is_dropped() -> None:
    design = Design(
        prepared=prepared("higradavg_dp"), unit=Unit.ITEM, block=Block(400, 1), company=CanaryCompany.MADE_UP
    )
    rows = np.concatenate([silo.data.targets for silo in design.silos(np.ones(400, np.bool_)).values()]) - BASE
    ours, siblings = rows[rows < 400], rows[rows > 400 + 8]
    assert len(ours) + len(siblings) == 400 * 2
    assert abs(len(ours) / 400 - 2 / 3) < 0.1  # four standard deviations
    assert design.siblings(prepared("local_item_dp").plan.rows[0]) == 0


def test_an_audit_is_the_run_it_audits() -> None:
    """Without canaries the silos are the run's own, and the model comes out as the run itself would train it."""
    run = prepared("subject_dp")
    design = Design(prepared=run, unit=Unit.SUBJECT, block=Block(1, 1), company=CanaryCompany.CROWD)
    model, noise = flatten(run.model), SeededNoise(5)
    seen: list[ObservedUpdate] = []
    silos = design.silos(np.zeros(1, np.bool_))
    with_block = final_parameters(simulate_run(design.run(silos, noise), design.start, seen.append))
    assert len(seen) == 2 * 8
    assert with_block.shape == (model.numel() + 3,)
    plain = final_parameters(simulate_run(replace(run, noise=noise), model, ignore_updates))
    assert torch.equal(
        plain, final_parameters(simulate_run(replace(run, silos=silos, noise=noise), model, ignore_updates))
    )


def test_coins_are_fair_and_of_their_own() -> None:
    one, other = secret_coins(1, "crowd", 10_000), secret_coins(1, "alone", 10_000)
    assert abs(one.mean() - 0.5) < 0.02
    assert abs((one == other).mean() - 0.5) < 0.02
    assert (one == secret_coins(1, "crowd", 10_000)).all()


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "user_ldp"])
def test_scores_have_the_law_that_was_priced(policy: str) -> None:
    """E[e^L | out] = 1 and E[e^−L | in] = 1 for a log-likelihood ratio L."""
    run = prepared(policy)
    found = attack_crowd(run, noise_like(run), Unit.SUBJECT, 4000, seed=1)
    level = found.scores["level"]
    assert np.exp(level[~found.coins]).mean() == pytest.approx(1.0, abs=0.2)
    assert np.exp(-level[found.coins]).mean() == pytest.approx(1.0, abs=0.2)
    assert found.noise.p_value() > 1e-3


def test_noise_is_told_from_noise_that_is_not_as_it_should_be() -> None:
    draws = np.random.default_rng(0)

    def law(noise: np.ndarray) -> NoiseLaw:
        return NoiseLaw.of(len(noise), float((noise**2).sum()), noise.sum(0))

    fresh = draws.normal(size=(20, 1000))
    assert law(fresh).p_value() > 0.01
    assert law(0.9 * fresh).p_value() < 1e-6
    assert law(np.tile(fresh[0], (20, 1))).repetition == pytest.approx(20.0)
    assert law(np.tile(fresh[0], (20, 1))).p_value() < 1e-6
    assert law(fresh[:1]).p_value() > 0.01
    both = law(fresh) + law(draws.normal(size=(20, 1000)))
    assert both.values == 40_000
    assert both.p_value() > 0.01
    assert NoiseLaw().p_value() == 1.0


def test_strength_is_tested_exactly() -> None:
    draws = np.random.default_rng(1)
    chances = []
    for _ in range(300):
        noise = draws.normal(size=(3, 50))
        chances.append(NoiseLaw.of(3, float((noise**2).sum()), noise.sum(0)).p_value())
    assert np.mean(np.array(chances) < 0.1) < 0.16


def test_a_portrait_takes_the_canarys_place() -> None:
    run = prepared("subject_dp", "mlp")
    design = Design(prepared=run, unit=Unit.SUBJECT, block=Block(1, 0), company=CanaryCompany.ONE)
    portrait = telling_input(run, flatten(run.model), seed=0)
    silos = replace_canaries(design.silos(np.ones(1, np.bool_)), portrait)
    for name, silo in silos.items():
        own = 2 if name == design.homes[0][0] else 0
        assert silo.data.items == 1 + own
        assert (silo.data.targets < BASE).all()
        assert (silo.data.inputs == portrait.stored).all(1).sum() == own
