"""What scores cost a person who is trained on in some silos and held out in others."""

from dataclasses import replace

import pytest
from dp_accounting import DpEvent

from wholegrain.errors import BudgetError
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.plan import Federation, Goal, Plan, make_plan
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.policies.score_budget import add_scores, calibrate_scores
from wholegrain.policies.score_plan import ScorePlan
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.policies.silo_facts import SiloFacts
from wholegrain.privacy.accountants import DEFAULT
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.events import compose, gaussian, repeat, sampled_gaussian
from wholegrain.privacy.ledger_entries import TermsRecord
from wholegrain.privacy.trust import SecureSum

pytestmark = pytest.mark.usefixtures("coarse_prices")

NAMES = ("north", "south", "west", "east")
ROUNDS = 60
FORM = ScoreForm(noise_multiplier=1.0, measures=("accuracy",))


def plan(rate: float = 0.01, span: int = 4, trust: SecureSum | None = None, by_span: bool = False) -> Plan:
    facts = tuple(SiloFacts(name=name, items=400, subjects=200, knows_spans=by_span, declared=True) for name in NAMES)
    return make_plan(
        "subject_dp",
        PolicySettings(rate=rate, trust=trust, by_span=by_span),
        Federation(silos=facts, span=span),
        Horizon(silos=NAMES, rounds=ROUNDS, steps=1),
        Goal(epsilon=4.0, delta=1e-5),
    )


def with_scores(trained: Plan, *, own_coins: bool, share: float = 1.0) -> Plan:
    form = FORM.model_copy(update={"by_span": trained.trust is not None and trained.rows[0][0].by_span})
    draft = ScorePlan(
        form=form, every=None, part="test", sizes=dict.fromkeys(NAMES, 80), trust=trained.trust, own_coins=own_coins
    )
    return add_scores(trained, calibrate_scores(trained, draft, share))


def divided(found: Plan, trained: int) -> DpEvent:
    """What somebody meets who is trained on in so many of four silos, and held out in the others."""
    assert found.scores is not None
    noise = found.rows[0][0].noise.multiplier  # type: ignore[union-attr]
    step, score = sampled_gaussian(0.01, noise), gaussian(found.scores.form.noise_multiplier)
    return compose([repeat(step, ROUNDS * trained), repeat(score, 4 - trained)])


def test_on_both_sides_a_person_may_pay_more_than_on_either() -> None:
    """The reason for all of this: side by side, the price would be too low."""
    alone = with_scores(plan(), own_coins=False)
    claimed = alone.guarantee().epsilon
    assert claimed <= 4.0
    assert DEFAULT.epsilon(divided(alone, 2), 1e-5) > claimed + 0.02


def test_figures_of_the_page() -> None:
    step, score = sampled_gaussian(0.01, 0.714), gaussian(2.163)
    sides = [repeat(step, 800), repeat(score, 4), compose([repeat(step, 400), repeat(score, 2)])]
    training, scores, both = (DEFAULT.epsilon(each, 1e-5) for each in sides)
    assert training == pytest.approx(4.0, abs=0.02)
    assert scores == pytest.approx(4.0, abs=0.02)
    assert both == pytest.approx(4.07, abs=0.02)
    assert both > max(training, scores) + 0.04


def test_where_silos_toss_coins_of_their_own_every_division_is_within_the_price() -> None:
    found = with_scores(plan(), own_coins=True)
    assert found.guarantee().epsilon <= 4.0
    assert len(found.terms.split) == 3
    for trained in range(5):
        assert DEFAULT.epsilon(divided(found, trained), 1e-5) <= found.guarantee().epsilon * 1.001
    assert "in each silo for one of the two" in found.guarantee().because
    # Terms survive the ledger, and cost the same.
    again = TermsRecord.model_validate_json(TermsRecord.of(found.terms).model_dump_json()).terms
    releases = found.horizon.releases(), found.score_releases
    assert again.event(Unit.SUBJECT, *releases) == found.terms.event(Unit.SUBJECT, *releases)
    assert TermsRecord.of(plan().terms).model_dump().keys() == {"exposures", "through_subject"}


def test_noise_that_is_given_is_refused_where_a_division_exceeds_the_budget() -> None:
    alone, trained = with_scores(plan(), own_coins=False), plan()
    assert alone.scores is not None
    with pytest.raises(BudgetError, match="private scores cost"):
        add_scores(trained, replace(alone.scores, own_coins=True))


@pytest.mark.parametrize("by_span", [False, True])
def test_of_plain_gaussians_all_or_none_of_the_silos_is_the_worst(by_span: bool) -> None:
    one, other = (with_scores(plan(1.0, by_span=by_span), own_coins=own) for own in (False, True))
    assert other.guarantee().epsilon == one.guarantee().epsilon
    assert other.scores is not None
    assert one.scores is not None
    assert other.scores.form == one.scores.form


@pytest.mark.parametrize("by_span", [False, True])
def test_under_a_secure_sum_divisions_are_priced_as_well(by_span: bool) -> None:
    trust = SecureSum.over(4, 4)
    found = with_scores(plan(0.05, trust=trust, by_span=by_span), own_coins=True)
    assert found.guarantee().epsilon <= 4.0
    assert len(found.terms.split) == (6 if by_span else 3)
    releases = found.horizon.releases(), found.score_releases
    whole = DEFAULT.epsilon(found.terms.event(Unit.SUBJECT, *releases), 1e-5)
    for training, scores in found.terms.split:
        both = compose([training.event(releases[0]), scores.event(releases[1])])
        assert DEFAULT.epsilon(both, 1e-5) <= whole * 1.001
    plain = with_scores(plan(1.0, trust=trust, by_span=by_span), own_coins=True)
    assert plain.terms.split == ()
