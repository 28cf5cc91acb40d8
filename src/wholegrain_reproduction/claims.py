"""Every claim that the paper's text makes about its evaluation, as a value: where, what, how it is judged.

A claim holds, does not hold, depends on the seed (where repeated runs disagree), or was not measured. The verdict
follows from the results alone. A figure of the paper counts as met within `TOLERANCE`, as points of accuracy or as a
share of it: the paper's "%" may mean either.
"""

import math
from itertools import pairwise

from wholegrain_reproduction.recipes import Kind
from wholegrain_reproduction.results import Result, Results
from wholegrain_reproduction.trials import ALGORITHM_NAMES, PAPER_ALGORITHMS, SUBJECT_ALGORITHMS
from wholegrain_reproduction.verdicts import NOT_MEASURED, Claim, Finding, Verdict

TOLERANCE = 0.05
"""How near a measured figure must come to a printed one, in units of accuracy."""
ALPHAS = (2, 4, 8, 16)
SIGNIFICANT = 0.05
"""By less than this, an accuracy is not "significantly" another one."""
IMAGES, TEXT, BY_ALPHA, COMPOSITION = "femnist", "shakespeare", "distribution", "composition"
PAPER = {IMAGES: "FEMNIST", TEXT: "Shakespeare"}


def all_claims() -> tuple[Claim, ...]:
    """The claims in the paper's order."""
    return (
        *(_claim_best(recipe) for recipe in PAPER),
        _claim_drop(IMAGES, "local_item_dp", "fedavg", 0.08),
        _claim_drop(TEXT, "local_item_dp", "fedavg", 0.22),
        *(_claim_user_cost(recipe) for recipe in PAPER),
        *(_claim_above_user(recipe) for recipe in PAPER),
        _claim_drop(IMAGES, "local_group_dp", "local_item_dp", 0.15),
        _claim_drop(TEXT, "local_group_dp", "local_item_dp", 0.18),
        *(_claim_groups_of_three(recipe) for recipe in PAPER),
        _claim_drop(IMAGES, "higradavg_dp", "local_item_dp", 0.22, place="§1"),
        Claim("§5.1", "HiGradAvgDP is below LocalGroupDP on FEMNIST", IMAGES, _judge_higradavg_below),
        Claim(
            "§1, §5.1",
            "HiGradAvgDP is the worst of all on Shakespeare, below UserLDP",
            TEXT,
            _judge_higradavg_worst,
            close=True,
        ),
        Claim(
            "§5.1",
            "HiGradAvgDP's noise is about an order of magnitude larger than LocalItemDP's",
            IMAGES,
            _judge_noise_on_images,
        ),
        Claim("§5.1", "and by another order of magnitude on Shakespeare", TEXT, _judge_noise_on_text),
        Claim(
            "§5.2",
            "FedAvg, LocalItemDP and UserLDP are not significantly affected by α",
            BY_ALPHA,
            _judge_independence_of_alpha,
        ),
        Claim("§5.2", "LocalGroupDP degrades noticeably as α grows", BY_ALPHA, _judge_degradation),
        Claim("§5.2", "LocalGroupDP is under 50 % at α = 16", BY_ALPHA, _judge_under_half, close=True),
        Claim("§5.2", "the average group grows from 3 at α = 2 to 6 at α = 16", BY_ALPHA, _judge_group_growth),
        Claim("§5.2", "HiGradAvgDP holds up to α = 8 and drops noticeably at 16", BY_ALPHA, _judge_resilience),
        Claim(
            "§5",
            "the first way of horizontal composition (R/√s rounds) beats the second (noise for T·R·s lots)",
            COMPOSITION,
            _judge_composition,
        ),
        *(_claim_guarantee(recipe) for recipe in PAPER),
    )


def percent(value: float) -> str:
    """An accuracy."""
    return f"{100 * value:.1f} %"


def _scores(results: Results, recipe: str, *algorithms: str) -> list[float] | None:
    found = [results.accuracy(recipe, algorithm) for algorithm in algorithms]
    return None if any(value is None for value in found) else [value for value in found if value is not None]


def _verdict(holds: bool) -> Verdict:
    return Verdict.HOLDS if holds else Verdict.FAILS


def _claim_best(recipe: str) -> Claim:
    def judge(results: Results) -> Finding:
        found = _scores(results, recipe, *PAPER_ALGORITHMS)
        if found is None:
            return NOT_MEASURED
        listed = ", ".join(
            f"{ALGORITHM_NAMES[name]} {percent(value)}" for name, value in zip(PAPER_ALGORITHMS, found, strict=True)
        )
        return Finding(_verdict(found[0] > max(found[1:])), listed)

    return Claim("§5.1", f"FedAvg is best on {PAPER[recipe]}", recipe, judge)


def _claim_drop(recipe: str, lower: str, upper: str, printed: float, place: str = "§5.1") -> Claim:
    def judge(results: Results) -> Finding:
        low, high = results.result(recipe, lower), results.result(recipe, upper)
        if low is None or high is None:
            return NOT_MEASURED
        points = high.accuracy - low.accuracy
        share = points / high.accuracy if high.accuracy else math.nan
        measured = (
            f"{percent(high.accuracy)} → {percent(low.accuracy)}: {-100 * points:+.1f} points, {-100 * share:+.1f} %"
        )
        holds = min(abs(points - printed), abs(share - printed)) <= TOLERANCE
        return Finding(_verdict(holds), measured, "" if holds else _why_not(points, share, printed, low, high))

    says = f"{ALGORITHM_NAMES[lower]} is {100 * printed:.0f} % below {ALGORITHM_NAMES[upper]} on {PAPER[recipe]}"
    return Claim(place, says, recipe, judge)


def _why_not(points: float, share: float, printed: float, low: Result, high: Result) -> str:
    direction = "the order holds, the size does not" if points > 0 else "not even the order holds"
    noise = f"σ = {low.noise:.3g}" + (f" against {high.noise:.3g}" if high.noise else "")
    lost = "more is lost than printed" if points > printed else "less is lost than printed"
    if points < printed < share:  # a share is at least as large as its points
        lost += " in points, and more as a share"
    return f"{direction}: {lost}; {noise}{_after_as_many_rounds(low, high)}"


def _after_as_many_rounds(low: Result, high: Result) -> str:
    """How much of a difference is that of rounds."""
    count = len(low.rounds)
    if count >= len(high.rounds):
        return ""
    return f"; after {count} rounds, which is all that {ALGORITHM_NAMES[low.algorithm]} has, the other is at" + (
        f" {percent(high.scores[count - 1].accuracy)}"
    )


def _claim_user_cost(recipe: str) -> Claim:
    def judge(results: Results) -> Finding:
        runs = [results.result(recipe, name) for name in PAPER_ALGORITHMS]
        user = results.result(recipe, "user_ldp")
        if user is None or any(result is None for result in runs):
            return NOT_MEASURED
        most = max(result.loss for result in runs if result is not None)
        noise = user.rounds[-1].noise
        drowned = f"noise alone moves the model by {noise:.3g} a round, all else by at most η·C·T" if noise else ""
        return Finding(_verdict(user.loss >= most), f"loss {user.loss:.3g}, accuracy {percent(user.accuracy)}", drowned)

    return Claim("§5.1", f"UserLDP's cost is clear on {PAPER[recipe]}: its loss is the highest", recipe, judge)


def _claim_above_user(recipe: str) -> Claim:
    def judge(results: Results) -> Finding:
        found = _scores(results, recipe, "local_group_dp", "user_ldp")
        if found is None:
            return NOT_MEASURED
        group, user = found
        return Finding(_verdict(group - user > SIGNIFICANT), f"{percent(group)} against {percent(user)}")

    return Claim("§5.1", f"LocalGroupDP is significantly above UserLDP on {PAPER[recipe]}", recipe, judge)


def _claim_groups_of_three(recipe: str) -> Claim:
    def judge(results: Results) -> Finding:
        here, shape = results.groups.get(recipe), results.geometry[:1] if recipe == IMAGES else ()
        if here is None and not shape:
            return NOT_MEASURED
        sizes = [*([here] if here else []), *shape]
        told = [f"most batches have a largest group of {each.usual} (mean {each.mean:.2f})" for each in sizes]
        if shape:
            told[-1] += " on FEMNIST's geometry"
        return Finding(_verdict(all(each.usual == 3 for each in sizes)), "; ".join(told))

    return Claim("§5.1, Fig. 2", f"group sizes are dominated by 3 on {PAPER[recipe]}", recipe, judge)


def _judge_higradavg_below(results: Results) -> Finding:
    found = _scores(results, IMAGES, "higradavg_dp", "local_group_dp")
    if found is None:
        return NOT_MEASURED
    return Finding(_verdict(found[0] < found[1]), f"{percent(found[0])} against {percent(found[1])}")


def _judge_higradavg_worst(results: Results) -> Finding:
    found = _scores(results, TEXT, "higradavg_dp", *(name for name in PAPER_ALGORITHMS if name != "higradavg_dp"))
    if found is None:
        return NOT_MEASURED
    user = results.accuracy(TEXT, "user_ldp") or 0.0
    return Finding(_verdict(found[0] < min(found[1:])), f"{percent(found[0])} against UserLDP's {percent(user)}")


def _noise_ratio(results: Results, recipe: str) -> float | None:
    low, high = results.result(recipe, "local_item_dp"), results.result(recipe, "higradavg_dp")
    return None if low is None or high is None else high.noise / low.noise


def _judge_noise_on_images(results: Results) -> Finding:
    ratio = _noise_ratio(results, IMAGES)
    if ratio is None:
        return NOT_MEASURED
    return Finding(_verdict(10**0.5 <= ratio <= 10**1.5), f"{ratio:.3g} times as large (within √10 of 10 counts)")


def _judge_noise_on_text(results: Results) -> Finding:
    images, text = _noise_ratio(results, IMAGES), _noise_ratio(results, TEXT)
    if images is None or text is None:
        return NOT_MEASURED
    measured = f"{text:.3g} times as large, {text / images:.3g} times the other's factor (√10 or more counts)"
    holds = text / images >= 10**0.5
    why = "" if holds else "its sampling fraction min(1, kB/|D|) cannot pass 1"
    return Finding(_verdict(holds), measured, why)


def _accuracy_by_alpha(results: Results, algorithm: str, alphas: tuple[int, ...] = ALPHAS) -> list[float] | None:
    found = [results.accuracy(BY_ALPHA, algorithm, Kind.PRINTED, f"alpha-{alpha}") for alpha in alphas]
    return None if any(value is None for value in found) else [value for value in found if value is not None]


def _join_percents(found: list[float]) -> str:
    return " → ".join(percent(value) for value in found)


def _judge_independence_of_alpha(results: Results) -> Finding:
    """At every α if all of them were run, else at the smallest and the largest, which lie furthest apart."""
    names, ends = ("fedavg", "local_item_dp", "user_ldp"), (ALPHAS[0], ALPHAS[-1])
    for alphas, note in ((ALPHAS, ""), (ends, f" (at α = {ends[0]} and {ends[1]} alone)")):
        found = {name: _accuracy_by_alpha(results, name, alphas) for name in names}
        lines = {name: values for name, values in found.items() if values is not None}
        if len(lines) == len(names):
            holds = all(max(values) - min(values) <= SIGNIFICANT for values in lines.values())
            told = "; ".join(f"{ALGORITHM_NAMES[name]} {_join_percents(values)}" for name, values in lines.items())
            return Finding(_verdict(holds), told + note)
    return NOT_MEASURED


def _judge_degradation(results: Results) -> Finding:
    found = _accuracy_by_alpha(results, "local_group_dp")
    if found is None:
        return NOT_MEASURED
    falls = all(later < earlier + 0.01 for earlier, later in pairwise(found))
    return Finding(_verdict(falls and found[0] - found[-1] > SIGNIFICANT), _join_percents(found))


def _judge_under_half(results: Results) -> Finding:
    first, last = (results.accuracy(BY_ALPHA, "local_group_dp", Kind.PRINTED, f"alpha-{each}") for each in (2, 16))
    if last is None:
        return NOT_MEASURED
    already = f"{percent(first)} at α = 2 already" if first is not None and first < 0.5 else ""
    return Finding(_verdict(last < 0.5), percent(last), already)


def _judge_group_growth(results: Results) -> Finding:
    here = [results.groups.get(f"{BY_ALPHA}/alpha-{alpha}") for alpha in (2, 16)]
    shape = [each for each in results.geometry if each.alpha in (2, 16)]
    pairs = [pair for pair in ([each for each in here if each], shape) if len(pair) == 2]
    if not pairs:
        return NOT_MEASURED
    told = [f"{low.mean:.2f} → {high.mean:.2f}" for low, high in pairs]
    if len(shape) == 2:
        told[-1] += " on FEMNIST's geometry"
    holds = all(round(low.mean) == 3 and round(high.mean) == 6 for low, high in pairs)
    return Finding(_verdict(holds), "; ".join(told))


def _judge_resilience(results: Results) -> Finding:
    found = _accuracy_by_alpha(results, "higradavg_dp")
    if found is None:
        return NOT_MEASURED
    flat, drops = max(found[:3]) - min(found[:3]) <= SIGNIFICANT, min(found[:3]) - found[3] > SIGNIFICANT
    falls = "" if flat and drops else "σ grows with α only until min(1, kB/|D|) is 1, and not from there on"
    return Finding(_verdict(flat and drops), _join_percents(found), falls)


def _judge_composition(results: Results) -> Finding:
    pairs = []
    for name in SUBJECT_ALGORITHMS:
        first, second = results.accuracy(IMAGES, name), results.accuracy(COMPOSITION, name, Kind.MORE_LOTS)
        if first is not None and second is not None:
            pairs.append((name, first, second))
    told = "; ".join(
        f"{ALGORITHM_NAMES[name]} {percent(first)} against {percent(second)}" for name, first, second in pairs
    )
    holds = all(first > second for _, first, second in pairs)
    if holds and len(pairs) < len(SUBJECT_ALGORITHMS):  # "consistently": one exception is enough, its absence is not
        return NOT_MEASURED
    why = "the first way spends more than it claims (R/√s rounds where R/s would be right), so the two are not at one ε"
    return Finding(_verdict(holds), told, why)


def _claim_guarantee(recipe: str) -> Claim:
    def judge(results: Results) -> Finding:
        runs = [results.result(recipe, name) for name in SUBJECT_ALGORITHMS]
        if any(result is None or result.true_epsilon is None for result in runs):
            return NOT_MEASURED
        told, kept = [], True
        for result in runs:
            if result is None or result.true_epsilon is None or result.epsilon is None:
                continue
            kept = kept and result.true_epsilon.subject <= result.epsilon
            told.append(f"{ALGORITHM_NAMES[result.algorithm]} {epsilon_in_words(result)}")
        why = (
            "rounds cut by √s instead of s; sensitivity 2C; groups of the batch instead of the silo; noise that private"
            " facts set"
        )
        return Finding(_verdict(kept), "; ".join(told), "" if kept else why)

    says = f"UserLDP, LocalGroupDP and HiGradAvgDP keep to a subject-level ε = 4 over all silos on {PAPER[recipe]}"
    return Claim("§5.1, Fig. 1", says, recipe, judge)


def epsilon_in_words(result: Result) -> str:
    """What is proved for a subject, and what would be were noise public, in one phrase."""
    found = result.true_epsilon
    if found is None:
        return "–"
    if math.isfinite(found.subject):
        return f"ε = {found.subject:.3g}"
    return f"ε = ∞ (granted a public scale of noise, {_number(found.granted)})"


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"
