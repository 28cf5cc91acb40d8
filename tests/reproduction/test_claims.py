"""Each claim's verdict follows from what was measured: it can hold, fail, and be left open."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from wholegrain.federation.round_record import RoundRecord, Score
from wholegrain_reproduction.claims import all_claims
from wholegrain_reproduction.group_sizes import GroupSizes
from wholegrain_reproduction.recipes import Kind
from wholegrain_reproduction.results import Result, Results
from wholegrain_reproduction.subject_epsilon import TrueEpsilon
from wholegrain_reproduction.trials import PAPER_ALGORITHMS, SUBJECT_ALGORITHMS, trial_key
from wholegrain_reproduction.verdicts import Claim, Verdict

# What the paper's text says, in figures that would make every claim hold.
IMAGES = {"fedavg": 0.80, "local_item_dp": 0.72, "user_ldp": 0.05, "local_group_dp": 0.57, "higradavg_dp": 0.50}
TEXT = {"fedavg": 0.50, "local_item_dp": 0.28, "user_ldp": 0.04, "local_group_dp": 0.10, "higradavg_dp": 0.01}
ALPHA = {
    "fedavg": (0.80, 0.80, 0.79, 0.80),
    "local_item_dp": (0.72, 0.71, 0.72, 0.70),
    "user_ldp": (0.05, 0.04, 0.05, 0.05),
    "local_group_dp": (0.57, 0.55, 0.52, 0.45),
    "higradavg_dp": (0.50, 0.49, 0.48, 0.30),
}
NOISE = {"fedavg": 0.0, "local_item_dp": 1.8, "user_ldp": 82.0, "local_group_dp": 5.3, "higradavg_dp": 18.0}
SECOND = {"user_ldp": 0.04, "local_group_dp": 0.3, "higradavg_dp": 0.2}
CLAIMS = {f"{number}: {claim.says}": claim for number, claim in enumerate(all_claims())}


def scored(accuracy: float, loss: float, noise: float | None = None) -> RoundRecord:
    """A round as far as claims look at it."""
    scores = {"test": Score(loss, {"accuracy": accuracy})}
    return RoundRecord(round=0, cohort=(), spent=1.0, seconds=1.0, moved=1.0, noise=noise, scores=scores)


def result(name: str, accuracy: float, noise: float, subject: float = 4.0, kind: Kind = Kind.PRINTED) -> Result:
    return Result(
        algorithm=name,
        kind=kind,
        rounds=(scored(accuracy, loss=10.0 * (name == "user_ldp") + 1.0 - accuracy, noise=1.0),),
        epsilon=4.0,
        true_epsilon=TrueEpsilon(item=4.0, subject=subject, granted=subject, noise=noise),
        noise=noise,
    )


def make_results(
    images: Mapping[str, float] = IMAGES,
    text: Mapping[str, float] = TEXT,
    alpha: Mapping[str, tuple[float, ...]] = ALPHA,
    second: Mapping[str, float] = SECOND,
    *,
    noise: float = 10.0,
    subject: float = 4.0,
    usual: int = 3,
    most: int = 6,
) -> Results:
    results = {trial_key("femnist", "", n, Kind.PRINTED): result(n, a, NOISE[n], subject) for n, a in images.items()}
    for n, a in text.items():
        sigma = NOISE[n] * (noise if n == "higradavg_dp" else 1.0)
        results[trial_key("shakespeare", "", n, Kind.PRINTED)] = result(n, a, sigma, subject)
    for n, a in second.items():
        results[trial_key("composition", "", n, Kind.MORE_LOTS)] = result(n, a, NOISE[n], kind=Kind.MORE_LOTS)
    for n, scores in alpha.items():
        for number, a in zip((2, 4, 8, 16), scores, strict=True):
            results[trial_key("distribution", f"alpha-{number}", n, Kind.PRINTED)] = result(n, a, NOISE[n])
    sizes = {a: GroupSizes(f"α = {a}", a, {3 if a < 16 else most: 9, 2: 1}) for a in (2, 4, 8, 16)}
    uniform = GroupSizes("uniform", None, {usual: 9, 2: 1})
    groups = {"femnist": uniform, "shakespeare": uniform} | {f"distribution/alpha-{a}": s for a, s in sizes.items()}
    return Results(results, (uniform, *sizes.values()), groups)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_every_claim_holds_on_the_papers_own_figures(claim: Claim) -> None:
    finding = claim.judge(make_results())
    assert finding.verdict is Verdict.HOLDS, finding


FAILING = make_results(
    images=dict.fromkeys(PAPER_ALGORITHMS, 0.5),
    text=dict.fromkeys(PAPER_ALGORITHMS, 0.5),
    alpha=dict.fromkeys(PAPER_ALGORITHMS, (0.9, 0.6, 0.9, 0.9)),
    second=dict.fromkeys(SUBJECT_ALGORITHMS, 0.9),
    noise=0.1,
    subject=math.inf,
    usual=2,
    most=3,
)
STILL_HOLD = ("HiGradAvgDP's noise is about an order", "UserLDP's cost is clear")


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_every_claim_can_fail(claim: Claim) -> None:
    measured = FAILING
    if claim.says.startswith(STILL_HOLD):
        better = {"user_ldp": 0.9} | dict.fromkeys(("fedavg", "local_item_dp", "local_group_dp"), 0.1)
        worse = {name: result(name, better.get(name, 0.1), 2.0) for name in PAPER_ALGORITHMS}
        losing = {
            name: Result(name, Kind.PRINTED, (scored(0.5, 2.0 - (name == "user_ldp")),), noise=2.0) for name in worse
        }
        measured = Results({trial_key(claim.recipe, "", name, Kind.PRINTED): found for name, found in losing.items()})
    assert claim.judge(measured).verdict is Verdict.FAILS


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_every_claim_is_left_open_without_its_runs(claim: Claim) -> None:
    assert claim.judge(Results()).verdict is Verdict.OPEN


def test_a_printed_figure_is_met_as_points_or_as_a_share() -> None:
    says = "LocalItemDP is 8 % below FedAvg on FEMNIST"
    claim = next(claim for claim in all_claims() if claim.says == says)
    for item, verdict in ((0.72, "holds"), (0.50, "does not hold"), (0.80, "does not hold"), (0.736, "holds")):
        assert claim.judge(make_results(images=IMAGES | {"local_item_dp": item})).verdict == verdict


def test_why_tells_an_order_that_is_kept_from_one_that_is_not() -> None:
    claim = next(claim for claim in all_claims() if claim.says.startswith("LocalGroupDP is 15 %"))
    assert "the order holds" in claim.judge(make_results(images=IMAGES | {"local_group_dp": 0.3})).why
    assert "after 1 rounds" not in claim.judge(make_results(images=IMAGES | {"local_group_dp": 0.3})).why
    assert "not even the order" in claim.judge(make_results(images=IMAGES | {"local_group_dp": 0.9})).why


def test_a_loss_is_called_smaller_in_points_and_larger_as_a_share_where_it_is_both() -> None:
    claim = next(claim for claim in all_claims() if claim.says.startswith("LocalItemDP is 22 %"))
    found = {
        item: claim.judge(make_results(text=TEXT | {"fedavg": 0.35, "local_item_dp": item})).why
        for item in (0.25, 0.3, 0.05)
    }
    assert "less is lost than printed in points, and more as a share" in found[0.25]
    assert "less is lost than printed;" in found[0.3]
    assert "more is lost than printed;" in found[0.05]


def test_what_is_proved_is_not_confused_with_what_is_granted() -> None:
    claim = next(claim for claim in all_claims() if "keep to a subject-level" in claim.says)
    finding = claim.judge(make_results(subject=math.inf))
    assert finding.verdict is Verdict.FAILS
    assert "ε = ∞" in finding.measured


def test_what_fewer_rounds_cost_is_told_apart() -> None:
    claim = next(claim for claim in all_claims() if claim.says.startswith("LocalGroupDP is 15 %"))
    item = Result("local_item_dp", Kind.PRINTED, (scored(0.6, 1.0), scored(0.9, 1.0)), noise=1.0)
    group = Result("local_group_dp", Kind.PRINTED, (scored(0.5, 1.0),), noise=3.0)
    measured = Results({trial_key("femnist", "", found.algorithm, Kind.PRINTED): found for found in (item, group)})
    assert "the other is at 60.0 %" in claim.judge(measured).why


def test_one_exception_refutes_what_is_consistent() -> None:
    claim = next(claim for claim in all_claims() if claim.says.startswith("the first way"))
    assert claim.judge(make_results(second={"local_group_dp": 0.9})).verdict is Verdict.FAILS
    assert claim.judge(make_results(second={"local_group_dp": 0.1})).verdict is Verdict.OPEN


@pytest.mark.parametrize(
    ("again", "verdict"),
    [((0.44, 0.46), Verdict.HOLDS), ((0.44, 0.52), Verdict.SEED), ((0.51, 0.52), Verdict.SEED), ((), Verdict.HOLDS)],
)
def test_a_verdict_that_seeds_do_not_share_is_none(again: tuple[float, ...], verdict: Verdict) -> None:
    claim = next(claim for claim in all_claims() if "under 50 %" in claim.says)
    run = trial_key("distribution", "alpha-16", "local_group_dp", Kind.PRINTED)
    others = {seed: {run: result("local_group_dp", accuracy, 5.3)} for seed, accuracy in enumerate(again, 1)}
    finding = claim.over_seeds(replace(make_results(), repeats=others))
    assert finding.verdict is verdict
    assert all(f"{100 * accuracy:.1f} %" in finding.measured for accuracy in (0.45, *again))


def test_other_seeds_are_told_where_it_is_close_or_they_disagree() -> None:
    best = next(claim for claim in all_claims() if claim.says == "FedAvg is best on FEMNIST")
    assert not best.close
    for accuracy, verdict in ((0.51, Verdict.HOLDS), (0.9, Verdict.SEED)):
        run = {trial_key("femnist", "", "higradavg_dp", Kind.PRINTED): result("higradavg_dp", accuracy, 18.0)}
        finding = best.over_seeds(replace(make_results(), repeats={1: run}))
        assert finding.verdict is verdict
        assert ("other seeds" in finding.measured) == (verdict is Verdict.SEED)


def test_what_is_under_half_at_every_alpha_is_said_to_be() -> None:
    claim = next(claim for claim in all_claims() if "under 50 %" in claim.says)
    assert claim.judge(make_results()).why == ""
    low = claim.judge(make_results(alpha=ALPHA | {"local_group_dp": (0.32, 0.32, 0.31, 0.30)}))
    assert low.why == "32.0 % at α = 2 already"


@pytest.mark.parametrize(("last", "verdict"), [(0.88, Verdict.HOLDS), (0.8, Verdict.FAILS)])
def test_what_does_not_depend_on_alpha_is_judged_by_the_ends_where_others_are_missing(
    last: float, verdict: Verdict
) -> None:
    claim = next(claim for claim in all_claims() if "not significantly affected" in claim.says)
    whole = make_results(alpha=ALPHA | {"fedavg": (0.9, 0.9, 0.9, last)})
    missing = trial_key("distribution", "alpha-4", "fedavg", Kind.PRINTED)
    ends = replace(whole, by_key={key: found for key, found in whole.by_key.items() if key != missing})
    assert "alone" not in claim.judge(whole).measured
    finding = claim.judge(ends)
    assert finding.verdict is verdict
    assert finding.measured.endswith("(at α = 2 and 16 alone)")
    without = replace(ends, by_key={key: f for key, f in ends.by_key.items() if "alpha-16/fedavg" not in key})
    assert claim.judge(without).verdict is Verdict.OPEN
