"""Plans: what is promised follows the public facts, what cannot be promised is refused, and claims stay claims."""

import math
import re
from dataclasses import replace
from functools import cache

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from effort import examples
from policy_rows import any_row, policies_that_need_a_bound, private_policies
from wholegrain.clipping.clipping import ClipPer
from wholegrain.data.sampling import PoissonSubjects
from wholegrain.errors import AccountingError, BudgetError, SpecError, WholegrainError
from wholegrain.policies.as_printed import Composition, make_printed_plan, user_ldp_condition
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, make_plan, rounds_allowed
from wholegrain.policies.policy import FixedNoise, SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.privacy.accountants import PldAccountant, RdpAccountant
from wholegrain.privacy.definitions import Budget, Standing, Unit

pytestmark = pytest.mark.usefixtures("coarse_prices")

PRIVATE = private_policies()
DELTA = 1e-5
COARSE = PldAccountant(grid=1e-2)
ONE = Budget(1.0, DELTA)


def facts(name, items=1000, subjects=250, bound=4, drops=False):
    return SiloFacts(name=name, items=items, subjects=subjects, items_per_subject=bound, drops_surplus=drops)


def federation_of(count, span=None, **changes):
    return Federation(silos=tuple(facts(f"silo-{n}", **changes) for n in range(count)), span=span)


def plan_of(policy, *, silos=2, span=None, bound=4, rate=0.1, rounds=10, steps=2, cohort=None, cap=2, **goal):
    federation = silos if isinstance(silos, Federation) else federation_of(silos, span, bound=bound)
    names = tuple(silo.name for silo in federation.silos)
    return make_plan(
        policy,
        PolicySettings(rate=rate, group_cap=cap),
        federation,
        Horizon(silos=names, rounds=rounds, steps=steps, cohort_size=cohort, seed=3),
        Goal(**{"epsilon": None, "delta": DELTA, "accountant": COARSE} | goal),
    )


@cache
def printed_plan(policy, *, silos=2, rounds=8, steps=25, batch=50, budget=ONE, bound=4, **changes):
    federation = federation_of(silos, bound=bound)
    names = tuple(silo.name for silo in federation.silos)
    return make_printed_plan(
        policy,
        PolicySettings(batch_size=batch),
        federation,
        Horizon(silos=names, rounds=rounds, steps=steps),
        budget,
        largest_subject=dict.fromkeys(names, 2),
        **{"accountant": COARSE} | changes,
    )


class TestWhatMovesEpsilon:
    """More of anything that a subject takes part in costs more, and more noise costs less."""

    BASE = st.fixed_dictionaries(
        {
            "bound": st.integers(1, 3),
            "rate": st.floats(0.05, 0.3),
            "steps": st.integers(1, 4),
            "silos": st.integers(1, 3),
            "noise_multiplier": st.floats(4.0, 8.0),
        }
    )

    @staticmethod
    def epsilon(policy, facts):
        return plan_of(policy, rounds=1, **facts).guarantee().epsilon

    @pytest.mark.parametrize("policy", PRIVATE)
    @examples(3)
    @given(base=BASE)
    def test_subject_level(self, policy, base):
        before = self.epsilon(policy, base)
        for fact in ("bound", "rate", "steps", "silos", "noise_multiplier"):
            after = self.epsilon(policy, base | {fact: 2 * base[fact]})
            if fact == "noise_multiplier":
                assert after < before
            elif fact == "bound" and isinstance(any_row(policy).sampling, PoissonSubjects):
                assert after == before
            else:
                assert after > before, fact

    @pytest.mark.parametrize("span", [1, 2, 3])
    def test_span_is_what_counts_not_the_number_of_silos(self, span):
        held_by_all = plan_of("subject_dp", silos=span, noise_multiplier=4.0)
        held_by_some = plan_of("subject_dp", silos=5, span=span, noise_multiplier=4.0)
        assert held_by_some.guarantee().epsilon == held_by_all.guarantee().epsilon

    def test_cap_on_groups_costs_less_than_none(self):
        capped, loose, none = (
            plan_of("local_group_dp", cap=1, noise_multiplier=4.0),
            plan_of("local_group_dp", cap=4, noise_multiplier=4.0),
            plan_of("local_item_dp", noise_multiplier=4.0),
        )
        assert capped.guarantee().epsilon < loose.guarantee().epsilon == none.guarantee().epsilon


class TestCalibration:
    @pytest.mark.parametrize("policy", PRIVATE)
    def test_budget_is_met_and_spent(self, policy):
        plan = plan_of(policy, epsilon=3.0)
        guarantee = plan.guarantee()
        assert guarantee.standing is Standing.PROVED
        assert 3.0 * (1 - 1e-3) <= guarantee.epsilon <= 3.0
        assert plan.budget == Budget(3.0, DELTA)
        assert guarantee.epsilon == plan.epsilon(plan.horizon.releases()) == COARSE.epsilon(guarantee.event, DELTA)

    @pytest.mark.parametrize("policy", ["local_item_dp", "higradavg_dp", "user_ldp"])
    def test_budget_may_be_an_items(self, policy):
        plan = plan_of(policy, epsilon=3.0, unit=Unit.ITEM)
        assert 3.0 * (1 - 1e-3) <= plan.guarantee(Unit.ITEM).epsilon <= 3.0
        assert plan.guarantee(Unit.ITEM).epsilon < plan.guarantee(Unit.SUBJECT).epsilon

    def test_items_budget_is_spent_where_twice_a_subject_is_the_better_price(self):
        plan = plan_of("subject_dp", epsilon=3.0, unit=Unit.ITEM)
        assert 3.0 * (1 - 1e-3) <= plan.guarantee(Unit.ITEM).epsilon <= 3.0

    def test_budget_may_be_a_silos(self):
        plan = plan_of("user_ldp", epsilon=3.0, unit=Unit.SILO)
        assert 3.0 * (1 - 1e-3) <= plan.guarantee(Unit.SILO).epsilon <= 3.0
        assert plan.guarantee(Unit.SUBJECT).epsilon < plan.guarantee(Unit.SILO).epsilon * 2

    @pytest.mark.parametrize("policy", PRIVATE)
    def test_items_and_subjects_stand_side_by_side(self, policy):
        plan = plan_of(policy, noise_multiplier=5.0)
        assert [g.unit for g in plan.guarantees] == [Unit.SUBJECT, Unit.ITEM, Unit.SILO]
        assert plan.guarantee(Unit.ITEM).standing is plan.guarantee(Unit.SUBJECT).standing is Standing.PROVED

    @pytest.mark.parametrize("unit", [Unit.SUBJECT, Unit.ITEM])
    @pytest.mark.parametrize("policy", PRIVATE)
    def test_event_of_a_guarantee_is_the_one_that_was_priced(self, policy, unit):
        """Or there is none, where the price is not that of one event (an item at twice its subject's)."""
        guarantee = plan_of(policy, noise_multiplier=5.0).guarantee(unit)
        assert guarantee.event is None or COARSE.epsilon(guarantee.event, DELTA) == guarantee.epsilon

    def test_all_silos_have_the_same_noise_and_rates_of_their_own(self):
        silos = Federation(silos=(facts("north", items=500), facts("south", items=2000)))
        plan = make_plan(
            "higradavg_dp",
            PolicySettings(batch_size=50),
            silos,
            Horizon(silos=("north", "south"), rounds=4, steps=2),
            Goal(epsilon=2.0, delta=DELTA, accountant=COARSE),
        )
        north, south = plan.policy_for("north"), plan.policy_for("south")
        assert north.noise == south.noise
        assert (north.sampling.rate, south.sampling.rate) == (0.1, 0.025)

    @pytest.mark.parametrize("cohort", [None, 1, 2])
    def test_every_prefix_of_the_schedule_fits_the_budget(self, cohort):
        plan = plan_of("higradavg_dp", silos=3, cohort=cohort, rounds=12, epsilon=2.0)
        costs = [plan.epsilon(plan.horizon.releases(rounds)) for rounds in range(13)]
        assert costs[0] == 0.0
        assert costs == sorted(costs)
        assert costs[-1] <= 2.0


class TestNoiseGiven:
    def test_without_a_budget_it_is_priced_and_nothing_is_enforced(self):
        plan = plan_of("subject_dp", noise_multiplier=2.0)
        assert plan.budget is None
        assert rounds_allowed(plan) is None
        assert plan.guarantee().epsilon == COARSE.epsilon(plan.guarantee().event, DELTA)

    def test_with_a_budget_that_holds_it_is_kept(self):
        plan = plan_of("subject_dp", noise_multiplier=20.0, epsilon=4.0)
        assert plan.policy_for("silo-0").noise == FixedNoise(20.0)
        assert plan.guarantee().epsilon < 4.0
        assert rounds_allowed(plan) > plan.horizon.rounds

    @pytest.mark.parametrize(
        ("policy", "unit"),
        [
            ("subject_dp", Unit.SUBJECT),
            ("higradavg_dp", Unit.SUBJECT),
            ("user_ldp", Unit.SILO),
            ("subject_dp", Unit.ITEM),
        ],
    )
    def test_with_a_budget_that_it_overspends_the_rounds_it_allows_are_told(self, policy, unit):
        asked = {"noise_multiplier": 6.0, "unit": unit, "rounds": 300}
        with pytest.raises(BudgetError, match=r"300 rounds with noise_multiplier = 6 cost") as refusal:
            plan_of(policy, epsilon=2.0, **asked)
        allowed = int(re.search(r"allows (\d+)", str(refusal.value))[1])
        plan = plan_of(policy, **asked)
        assert plan.epsilon(plan.horizon.releases(allowed)) <= 2.0 < plan.epsilon(plan.horizon.releases(allowed + 1))

    def test_noise_too_small_for_one_round_is_refused(self):
        with pytest.raises(BudgetError, match="Not even one round"):
            plan_of("user_ldp", noise_multiplier=0.5, epsilon=0.1)


class TestHorizon:
    SILOS = tuple("abcdefg")

    def horizon(self, **changes):
        return Horizon(**{"silos": self.SILOS, "rounds": 9, "steps": 4, "cohort_size": 3, "seed": 5} | changes)

    def test_releases_are_counted_from_the_cohorts(self):
        horizon = self.horizon()
        for rounds in (0, 1, 5, 9):
            cohorts = [horizon.cohort(number) for number in range(rounds)]
            expected = {silo: 4 * sum(silo in cohort for cohort in cohorts) for silo in self.SILOS}
            assert {silo: horizon.releases(rounds)[silo] for silo in self.SILOS} == expected
        assert horizon.releases() == horizon.releases(9)
        assert sum(horizon.releases().values()) == 9 * 4 * 3

    def test_everyone_trains_where_there_is_no_cohort(self):
        horizon = self.horizon(cohort_size=None)
        assert horizon.cohort(8) == self.SILOS
        assert horizon.releases() == dict.fromkeys(self.SILOS, 36)

    def test_cohort_depends_on_seed_and_round_alone(self):
        first, second = self.horizon(), self.horizon(rounds=100, steps=1)
        backwards = [second.cohort(number) for number in reversed(range(9))]
        assert [first.cohort(number) for number in range(9)] == backwards[::-1]
        assert len({first.cohort(number) for number in range(9)}) > 1
        assert any(first.cohort(number) != self.horizon(seed=6).cohort(number) for number in range(9))

    def test_plan_prices_the_steps_that_the_schedule_gives(self):
        plan = plan_of("subject_dp", silos=3, cohort=2, rounds=7, steps=5, noise_multiplier=4.0)
        assert plan.guarantee().event.count == 7 * 5 * 2
        alone = plan_of("subject_dp", silos=3, span=1, cohort=2, rounds=7, steps=5, noise_multiplier=4.0)
        assert alone.guarantee().event.count == max(plan.horizon.releases().values())


class TestFedAvg:
    @pytest.mark.parametrize("unit", Unit)
    def test_promises_nothing_and_says_why(self, unit):
        plan = plan_of("fedavg", epsilon=4.0)
        guarantee = plan.guarantee(unit)
        assert guarantee.standing is Standing.NONE
        assert guarantee.epsilon == math.inf
        assert "not clipped" in guarantee.because
        assert "no guarantee" in str(guarantee)

    def test_spends_without_end(self):
        plan = plan_of("fedavg")
        assert plan.budget is None
        assert plan.epsilon({"silo-0": 1}) == math.inf


class TestRefusals:
    @pytest.mark.parametrize("policy", [name for name in PRIVATE if any_row(name).clip.per is not ClipPer.BATCH])
    def test_silo_is_protected_by_user_ldp_alone(self, policy):
        with pytest.raises(SpecError, match=f"{policy} cannot promise anything for the unit 'silo'"):
            plan_of(policy, epsilon=4.0, unit=Unit.SILO)

    @pytest.mark.parametrize("policy", policies_that_need_a_bound())
    @pytest.mark.parametrize("noise", [None, 4.0])
    def test_bound_that_is_missing_is_asked_for(self, policy, noise):
        with pytest.raises(AccountingError, match="needs items_per_subject"):
            plan_of(policy, bound=None, epsilon=4.0, noise_multiplier=noise)

    def test_subject_dp_needs_no_bound(self):
        assert plan_of("subject_dp", bound=None, epsilon=4.0).guarantee().standing is Standing.PROVED

    @pytest.mark.parametrize("policy", ["local_item_dp", "user_ldp"])
    def test_item_level_plan_without_a_bound_promises_subjects_nothing(self, policy):
        silos = Federation(silos=(facts("north"), facts("south", bound=None)))
        plan = plan_of(policy, silos=silos, epsilon=4.0, unit=Unit.ITEM)
        assert plan.guarantee(Unit.ITEM).standing is Standing.PROVED
        assert plan.guarantee(Unit.SUBJECT).standing is Standing.NONE
        assert "'south'" in plan.guarantee(Unit.SUBJECT).because

    def test_what_cannot_be_proved_for_want_of_a_bound_costs_infinity(self):
        plan = plan_of("local_item_dp", bound=None, noise_multiplier=4.0)
        assert plan.guarantee(Unit.SUBJECT).standing is Standing.NONE
        assert plan.epsilon(plan.horizon.releases(), Unit.SUBJECT) == math.inf

    def test_mixture_needs_pld(self):
        with pytest.raises(AccountingError, match="'pld'"):
            plan_of("local_item_dp", epsilon=4.0, accountant=RdpAccountant())

    @pytest.mark.parametrize(
        ("asked", "reason"),
        [
            ({"policy": "subject_pd", "epsilon": 4.0}, "did you mean 'subject_dp'"),
            ({"policy": "subject_dp"}, "needs epsilon"),
            ({"policy": "subject_dp", "noise_multiplier": 0.0}, "noise_multiplier must be"),
            ({"policy": "subject_dp", "noise_multiplier": -1.0}, "noise_multiplier must be"),
            ({"policy": "subject_dp", "epsilon": -1.0}, "epsilon must be"),
            ({"policy": "subject_dp", "epsilon": 1.0, "delta": 0.0}, "delta must lie"),
            ({"policy": "subject_dp", "epsilon": 1.0, "rate": 0.0}, "rate is a sampling probability"),
            ({"policy": "subject_dp", "epsilon": 1.0, "silos": 2, "span": 3}, "span = 3 is more than the 2 silos"),
            ({"policy": "subject_dp", "epsilon": 1.0, "span": 0}, "span must be"),
            ({"policy": "subject_dp", "epsilon": 1.0, "silos": 2, "cohort": 3}, "cohort of 3 silos"),
            ({"policy": "subject_dp", "epsilon": 1.0, "rounds": 0}, "rounds must be"),
            ({"policy": "local_group_dp", "epsilon": 1.0, "cap": None}, "group_cap"),
            ({"policy": "subject_dp", "epsilon": 1.0, "bound": 0}, "items_per_subject must be"),
        ],
    )
    def test_what_cannot_be_meant_is_named(self, asked, reason):
        with pytest.raises(SpecError, match=re.escape(reason)):
            plan_of(**asked)

    @pytest.mark.parametrize("given", [{}, {"rate": 0.1, "batch_size": 10}])
    def test_settings_take_a_rate_or_a_size(self, given):
        with pytest.raises(SpecError, match="either rate or batch_size"):
            PolicySettings(**given)

    def test_federation_without_silos(self):
        with pytest.raises(SpecError, match="at least one silo"):
            Federation(silos=())

    def test_unit_that_a_plan_says_nothing_about(self):
        plan = replace(plan_of("subject_dp", noise_multiplier=4.0), guarantees=())
        with pytest.raises(SpecError, match="says nothing about the unit 'subject'"):
            plan.guarantee()


CLAIMS = {
    "local_item_dp": Unit.ITEM,
    "local_group_dp": Unit.SUBJECT,
    "higradavg_dp": Unit.SUBJECT,
    "user_ldp": Unit.SUBJECT,
}
PRIVATE_SCALE = {"local_group_dp": "largest group", "higradavg_dp": "number of subjects"}


class TestPrinted:
    @pytest.mark.parametrize("policy", CLAIMS)
    def test_claim_stands_beside_what_is_proved_and_is_never_taken_for_it(self, policy):
        plan = printed_plan(policy)
        assert plan.claimed.standing is Standing.CLAIMED
        assert (plan.claimed.unit, plan.claimed.epsilon, plan.claimed.delta) == (CLAIMS[policy], 1.0, DELTA)
        assert plan.claimed.because.startswith("as printed")
        assert plan.budget is None
        for unit in Unit:
            assert plan.guarantee(unit).standing is not Standing.CLAIMED

    @pytest.mark.parametrize("policy", ["local_item_dp", "user_ldp"])
    def test_public_scale_lets_something_be_proved(self, policy):
        plan = printed_plan(policy)
        for unit in (Unit.SUBJECT, Unit.ITEM):
            guarantee = plan.guarantee(unit)
            assert guarantee.standing is Standing.PROVED
            assert guarantee.because
            assert guarantee.epsilon == COARSE.epsilon(guarantee.event, DELTA)

    @pytest.mark.parametrize(("policy", "reason"), PRIVATE_SCALE.items())
    def test_private_scale_lets_nothing_be_proved(self, policy, reason):
        plan = printed_plan(policy)
        for unit in Unit:
            assert plan.guarantee(unit).standing is Standing.NONE
            assert reason in plan.guarantee(unit).because
        assert plan.epsilon(plan.horizon.releases()) == math.inf

    def test_fedavg_claims_nothing(self):
        plan = printed_plan("fedavg")
        assert plan.claimed is None
        assert plan.guarantee().standing is Standing.NONE

    def test_without_a_bound_nothing_is_proved_and_the_account_can_still_be_kept(self):
        plan = printed_plan("local_item_dp", bound=None)
        assert plan.guarantee().standing is Standing.NONE
        assert "no public bound" in plan.guarantee().because
        assert plan.epsilon(plan.horizon.releases()) == math.inf  # what the guard asks for in every round

    @pytest.mark.parametrize(
        ("budget", "text"),
        [
            (Budget(4.0, 1e-5), "is not met by σ = "),  # asks for 182.7
            (Budget(8.0, 1e-3), "is met by σ = "),  # asks for 0.0167
        ],
    )
    def test_condition_of_user_ldp_is_told(self, budget, text):
        plan = printed_plan("user_ldp", budget=budget)
        assert f"σ > {user_ldp_condition(budget):.4g} {text}" in plan.claimed.because

    def test_events_of_batches_of_fixed_size(self):
        """50 of 1000 items, 4 of them a subject's, in 8 rounds of 25 steps."""
        drawn = stats.hypergeom(1000, 4, 50)
        item = printed_plan("local_item_dp", silos=1)
        sigma = item.policy_for("silo-0").noise.multiplier
        step = item.guarantee(Unit.SUBJECT).event.event
        assert item.guarantee(Unit.SUBJECT).event.count == 200
        assert step.standard_deviation == sigma
        assert step.sensitivities == (0, 2, 4, 6, 8)
        assert step.sampling_probs == pytest.approx(drawn.pmf(range(5)))
        assert item.guarantee(Unit.ITEM).event.event == PoissonSampledDpEvent(0.05, GaussianDpEvent(sigma / 2))

        user = printed_plan("user_ldp", silos=1)
        sigma = user.policy_for("silo-0").noise.multiplier
        step = user.guarantee(Unit.SUBJECT).event.event
        assert step.sampling_probability == pytest.approx(1 - drawn.pmf(0))
        assert step.event == GaussianDpEvent(sigma / 2)
        assert user.guarantee(Unit.SILO).event.event == GaussianDpEvent(sigma / 2)

    def test_first_way_trains_fewer_rounds_with_the_same_noise(self):
        alone = printed_plan("user_ldp", silos=1, rounds=100, steps=2)
        plan = printed_plan("user_ldp", silos=16, rounds=100, steps=2, composition=Composition.FEWER_ROUNDS)
        assert plan.horizon.rounds == 25
        assert plan.policy_for("silo-0").noise == alone.policy_for("silo-0").noise
        assert "fewer_rounds" in plan.claimed.because

    def test_second_way_trains_all_rounds_with_noise_for_more_lots(self):
        plan = printed_plan("user_ldp", silos=16, rounds=100, steps=2, composition=Composition.MORE_LOTS)
        longer = printed_plan("user_ldp", silos=1, rounds=1600, steps=2)
        assert plan.horizon.rounds == 100
        assert plan.policy_for("silo-0").noise == longer.policy_for("silo-0").noise
        assert "more_lots" in plan.claimed.because

    @pytest.mark.parametrize("composition", Composition)
    def test_item_level_does_not_compose_over_silos(self, composition):
        plan = printed_plan("local_item_dp", composition=composition)
        assert plan.horizon.rounds == 8
        assert plan.policy_for("silo-0").noise == printed_plan("local_item_dp", silos=1).policy_for("silo-0").noise

    def test_batch_is_at_most_the_silo(self):
        plan = printed_plan("local_item_dp", batch=5000)
        assert plan.policy_for("silo-0").sampling.size == 1000

    @pytest.mark.parametrize(
        ("asked", "reason"),
        [
            ({"policy": "subject_dp"}, "Unknown printed policy 'subject_dp'"),
            ({"policy": "user_ldp", "silos": 4, "rounds": 1}, "leave none to train"),
        ],
    )
    def test_what_the_paper_does_not_print_is_refused(self, asked, reason):
        with pytest.raises(WholegrainError, match=re.escape(reason)):
            printed_plan(**asked)
