"""Whoever is given only the report can answer ten questions: where each answer stands in the text of the page."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest

import wholegrain.report.page as pages
from run_records import secure
from wholegrain.federation.private_score import Estimate
from wholegrain.policies.score_settings import ScoreSettings
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.trust import SecureSum
from wholegrain.report.advice import advice, not_covered
from wholegrain.report.comparison import comparison_rows, total_rows
from wholegrain.report.dpia import necessity, risks
from wholegrain.report.glance import Answer, badges, budget_alarm, glance, guesses
from wholegrain.report.model_card import model_card
from wholegrain.report.page import page
from wholegrain.report.run_reader import RunRecord, read_run, read_runs
from wholegrain.report.tables import item_note, silo_heads
from wholegrain.report.wording import promise
from wholegrain.runs.setting_origins import Origin
from wholegrain.runs.spec_sections import AboutSpec


@pytest.fixture(scope="module")
def release(proved: Path) -> RunRecord:
    run = secure(read_run(proved, "proved"))
    about = AboutSpec(author="R. Example", purpose="To learn", controller="A hospital")
    return replace(run, spec=run.spec.model_copy(update={"about": about}))


def text_of(html: str) -> str:
    markup = re.sub(r"<(script|style).*?</\1>", " ", html, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def answers(run: RunRecord) -> dict[str, str]:
    return {each.key: " ".join((each.short, *each.details)) for each in glance(run, [run])}


def test_ten_questions_are_answered_by_the_text_of_the_page(release: RunRecord) -> None:
    text = text_of(page([release]))
    assert release.times is not None
    assert release.summary is not None
    score = release.summary.scores["test"].headline[1]
    places = {
        "who": "Who is protected? One person with all records of that person, in every silo.",
        "what": "Release or simulation? A release Its noise comes from the operating system",
        "what for": "From which data, and what for? 'clinics', 3 silos",
        "purpose": "Purpose: To learn.",
        "how much": f"By how much? ε = {release.promise.epsilon:.4g} at δ = 1e-05 Somebody guesses",
        "how good": f"How good is the model? accuracy {score:.1%} A constant answer:",
        "since when": f"When, and by whom? {release.times[0].day} {release.times[0]:%B %Y} Begun at",
        "by whom": "By R. Example.",
        "what is left": "What is spent, and what is left? ε = ",
        "what is not covered": "What is not covered Scores that are marked not private",
        "which trust": "Against whom? Everybody outside a person's own silos",
        "what to do if": "What to do if … This is to be published The model may be",
    }
    assert {question for question, words in places.items() if words not in text} == set()
    order = [text.index(words) for words in places.values() if "?" in words]
    assert max(order) < text.index("What is promised")


def test_ten_questions_are_answered_of_a_simulation_as_of_what_protects_nobody(proved: Path) -> None:
    run = read_run(proved, "proved")
    text = text_of(page([run]))
    assert run.times is not None
    assert run.summary is not None
    score = run.summary.scores["test"].headline[1]
    places = {
        "who": "Who is protected? Nobody In a release: one person, with all records of that person, in every silo.",
        "what": "Release or simulation? A simulation Its noise comes from a seed",
        "what for": "From which data, and what for? 'clinics', 3 silos",
        "purpose": "Purpose: none is named",
        "how much": f"By how much? ε = {run.promise.epsilon:.4g} at δ = 1e-05, if it were a release Somebody guesses",
        "how good": f"How good is the model? accuracy {score:.1%} A constant answer:",
        "since when": f"When, and by whom? {run.times[0].day} {run.times[0]:%B %Y} From",
        "by whom": "By whom: nobody is named",
        "what is left": "What is spent, and what is left? ε = ",
        "what is not covered": "What is not covered Scores that are marked not private",
        "which trust": "Against whom? In a release: everybody outside a person's own silos",
        "what to do if": "What to do if … This is to be published Not this run.",
    }
    assert {question for question, words in places.items() if words not in text} == set()
    assert max(text.index(words) for words in places.values() if "?" in words) < text.index("What is promised")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Takes a box off the head of every page, to see whether the tests above can fail."""

    def take(key: str) -> None:
        def fewer(run: RunRecord, peers: Sequence[RunRecord]) -> list[Answer]:
            return [each for each in glance(run, peers) if each.key != key]

        fewer.__name__ = "glance"
        monkeypatch.setattr(pages, "WORDS", tuple(fewer if word is glance else word for word in pages.WORDS))
        pages.template.cache_clear()

    yield take
    pages.template.cache_clear()


@pytest.mark.parametrize("key", ["who", "trust", "epsilon", "good", "kind", "data", "when", "left"])
def test_a_question_without_its_box_is_missed(release: RunRecord, without: Callable[[str], None], key: str) -> None:
    (box,) = (each for each in glance(release, [release]) if each.key == key)
    asked = f"{box.question} {box.short}"
    assert asked in text_of(page([release]))
    without(key)
    assert asked not in text_of(page([release]))


def test_guesses_are_told_before_and_after(release: RunRecord) -> None:
    assert re.search(
        r"a person took part: 1% sure before, at most \d+\.\d% after; 50% sure before, at most \d+\.\d% after"
        r" \(by outcomes not rarer than 1%\)\.$",
        answers(release)["epsilon"],
    )


def test_a_guarantee_for_a_record_is_not_told_as_one_for_a_person(release: RunRecord) -> None:
    (item,) = (each for each in release.spent if each.unit == Unit.ITEM)
    assert "a person took part" in guesses(release)
    run = replace(release, spent=(item,), plan=replace(release.plan, unit=Unit.ITEM))
    assert run.promise.unit == Unit.ITEM
    assert "a record was used" in guesses(run)
    assert next(risks(run))[2].startswith("of one record, not of a person who has several: a guess of 1%")
    assert next(risks(release))[2].startswith("a guess of 1%")
    assert next(risks(release))[2].endswith("by outcomes not rarer than 1%")


def test_private_scores_belong_to_what_is_promised_and_nothing_else_is_to_be_taken_out(release: RunRecord) -> None:
    assert release.summary is not None
    raw = "Scores that are marked not private"
    assert "private scores" not in promise(release)
    assert raw in not_covered(release)[0]
    assert "not private" in dict(advice(release))["This is to be published"]
    rounds = tuple(replace(done, scores={}) for done in release.rounds)
    summary = replace(release.summary, scores={}, private={"all silos": {"accuracy": Estimate(0.76, 0.043, 0.121)}})
    paid = replace(release, rounds=rounds, summary=summary, plan=replace(release.plan, scores={"every": 1}))
    assert "every silo's update of every round, its private scores, and the final model" in promise(paid)
    assert not any(raw in sentence for sentence in not_covered(paid))
    assert dict(advice(paid))["This is to be published"] == "The model may be."
    # The interval is that of what somebody wants to know; noise is a part of it.
    good = answers(paid)["good"]
    assert good.startswith("accuracy 76.0% ± 12.1 points 95% interval; noise alone: ± 4.3. Private, and paid for. ")
    assert "accuracy: 76.0% ± 12.1 points (95%; noise alone: ± 4.3), private and paid for" in model_card(paid)
    assert "accuracy 76.0% ± 12.1 points (private)" in next(comparison_rows([paid, release]))
    assert "accuracy 76.0% ± 12.1 points. 95% interval" in dict(necessity(paid))["Use of the model"]
    # Of a simulation, the annex tells the score, too.
    assert dict(necessity(release))["Use of the model"].startswith("accuracy ")


def test_a_simulation_carries_no_badge_of_a_release(proved: Path) -> None:
    run = read_run(proved, "proved")
    assert [badge.words for badge in badges(run)] == ["SIMULATION: protects nobody"]
    html = page([run])
    assert "RELEASE" not in text_of(html)
    assert not re.search(r'class="badge[^"]*">[^<]*PROVED', html)
    assert not re.search(r">PROVED<", html)
    assert answers(run)["who"].startswith("Nobody")


def test_a_run_that_protects_nobody_is_not_proved(printed: Path, release: RunRecord) -> None:
    unproved = secure(read_run(printed, "printed"))
    assert next(badges(unproved)).words == "RELEASE, NOT PROTECTED"
    assert answers(unproved)["who"].startswith("Nobody")
    assert answers(unproved)["epsilon"] == "Not at all: ε = ∞"
    assert next(badges(release)).words == "RELEASE, PROVED"
    broken = replace(release, ledger=replace(release.ledger, whole=False))
    assert "NOT VERIFIED" in next(badges(broken)).words
    assert not broken.protects


def test_a_secure_sum_is_told_as_one(release: RunRecord) -> None:
    trusted = tuple(replace(each, trust=SecureSum.over(12)) for each in release.spent)
    run = replace(release, spent=trusted)
    assert answers(run)["trust"].startswith("The server, also with 1 silo They see sums over at least 10 of 12 silos")
    text = text_of(page([run]))
    assert "every opened sum over silos of every round" in text
    assert "every silo's update" not in text


def test_no_path_of_the_machine_is_on_the_page(proved: Path, tmp_path: Path) -> None:
    run = read_run(proved, "proved")
    table = run.spec.data.model_copy(update={"options": {"path": "/home/somebody/secret/visits.csv"}})
    run = replace(run, spec=run.spec.model_copy(update={"data": table}))
    (tmp_path / "gone").symlink_to(proved)
    text = page([run, read_run(tmp_path / "gone", "gone")])
    assert "/home/somebody" not in text
    assert "visits.csv" in text
    assert str(proved.parent) not in text
    assert str(tmp_path) not in text


def test_why_an_item_may_cost_more_than_its_subject_is_told_where_it_does(proved: Path) -> None:
    run = read_run(proved, "proved")
    epsilons = {each.unit: each.epsilon for each in run.spent}
    assert bool(item_note(run)) is (epsilons["item"] > epsilons["subject"])
    more = tuple(replace(each, epsilon=9.0 if each.unit == "item" else 1.0) for each in run.spent)
    assert "up to 2C" in item_note(replace(run, spent=more))
    less = tuple(replace(each, epsilon=1.0 if each.unit == "item" else 9.0) for each in run.spent)
    assert item_note(replace(run, spent=less)) == ""


def test_one_silo_is_not_called_silos(release: RunRecord) -> None:
    alone = replace(release, plan=replace(release.plan, silos=release.plan.silos[:1], cohort=1, span=1))
    text = text_of(page([alone]))
    assert "1 silos" not in text
    assert "1 rounds" not in text


@pytest.mark.parametrize(("limit", "shared", "kind"), [(8.0, True, None), (4.9, True, "caution"), (4.1, True, "alarm")])
def test_an_alarm_near_the_end_of_a_budget(release: RunRecord, limit: float, shared: bool, kind: str | None) -> None:
    assert release.account is not None
    ledger = release.spec.ledger.model_copy(update={"epsilon": limit})
    run = replace(
        release,
        account=replace(release.account, limit=limit),
        spec=release.spec.model_copy(update={"ledger": ledger}),
    )
    found = budget_alarm(run)
    assert (None if found is None else found.kind) == kind
    assert ('role="alert"' in page([run])) is (kind is not None or bool(run.summary and run.summary.warnings))


def test_scores_of_silos_stand_beside_the_silos(proved: Path) -> None:
    run = read_run(proved, "proved")
    assert run.summary is not None
    assert len(silo_heads(run)) == 6
    silo = run.plan.silos[0].name
    scored = replace(run.summary, scores={**run.summary.scores, f"test/silo = {silo}": run.summary.scores["test"]})
    assert "test score (not private)" in silo_heads(replace(run, summary=scored))


def test_a_comparison_tells_noise_trust_unit_and_total(proved: Path, printed: Path, release: RunRecord) -> None:
    runs = [*read_runs([proved, printed]), replace(release, name="release")]
    rows = {row[0]: row for row in comparison_rows(runs)}
    assert rows["proved"][1] == "seeded (simulation)"
    assert rows["release"][1] == "secure (release)"
    assert {row[-2] for row in rows.values()} == {"local"}
    assert "PROVED, if it were released" in rows["proved"]
    (total,) = total_rows(runs[::2])
    # One ledger: they are the same run, which is paid for once.
    assert float(str(total[3])) == pytest.approx(release.promise.epsilon, rel=1e-3)
    (apart,) = total_rows(runs[:2])
    assert "basic composition" in str(apart[4])
    assert apart[3] == "∞"


def test_fedavg_on_the_same_data_is_told_beside_the_score(release: RunRecord) -> None:
    peer = replace(release, name="plain", plan=replace(release.plan, policy="fedavg"))
    (good,) = [each for each in glance(release, [release, peer]) if each.key == "good"]
    assert any(line.startswith("FedAvg, without privacy (plain): ") for line in good.details)


def test_how_long_a_release_or_a_tuning_took_is_not_told(release: RunRecord) -> None:
    assert release.times is not None
    late = replace(release, times=(release.times[0], release.times[0] + timedelta(hours=5)))
    ended = f"{late.times[1]:%H:%M}" if late.times else ""
    assert ended not in answers(late)["when"]
    privacy = late.spec.privacy.model_copy(update={"noise": "seeded"})
    simulated = replace(late, spec=late.spec.model_copy(update={"privacy": privacy}))
    assert ended in answers(simulated)["when"]
    tuned = replace(simulated, origins={"rounds.learning_rate": Origin.PAID})
    assert ended not in answers(tuned)["when"]


@pytest.mark.parametrize(("part", "rest"), [("test", "."), ("validation", "; those of the test part are not.")])
def test_a_tuned_run_says_that_the_score_it_was_chosen_by_flatters_it(release: RunRecord, part: str, rest: str) -> None:
    scored = release.spec.evaluation.model_copy(update={"private": ScoreSettings(part=part)})
    spec = release.spec.model_copy(update={"evaluation": scored})
    tuned = replace(release, spec=spec, origins={"rounds.learning_rate": Origin.PAID})
    sentence = f"Chosen among several trials by its {part} score: scores of that part are too high on average{rest}"
    assert sentence in answers(tuned)["good"]
    assert sentence in model_card(tuned)
    # A spec that has its settings from an earlier tuning chose nothing by this run's score.
    again = spec.model_copy(update={"origin": {"rounds": {"learning_rate": "paid"}}})
    assert "too high" not in answers(replace(tuned, spec=again))["good"]
    assert "too high" not in answers(replace(release, spec=spec))["good"]


def test_records_of_people_who_were_trained_on_are_not_called_people_held_out(release: RunRecord) -> None:
    assert "On people who were held out" in answers(release)["good"]
    by_item = release.spec.evaluation.model_copy(update={"by": "item"})
    run = replace(release, spec=release.spec.model_copy(update={"evaluation": by_item}))
    assert "On other records of the same people" in answers(run)["good"]


def test_private_scores_say_that_they_count_on_declared_sizes(release: RunRecord) -> None:
    assert release.summary is not None
    private = {"all silos": {"accuracy": Estimate(0.7, 0.03, 0.1)}}
    declared = tuple(replace(each, counted_sizes=False) for each in release.spent)
    run = replace(release, summary=replace(release.summary, private=private), spent=declared)
    assert "They count on declared sizes" in text_of(page([run]))
    counted = tuple(replace(each, counted_sizes=True) for each in release.spent)
    assert "They count on declared sizes" not in text_of(page([replace(run, spent=counted)]))


def test_a_model_no_better_than_a_constant_answer_is_told_in_its_box(release: RunRecord) -> None:
    assert release.summary is not None
    told = "No better than a constant answer: do not rely on it."
    worse = replace(release.summary, constant=release.summary.scores)
    assert told in answers(replace(release, summary=worse))["good"]
    assert told not in answers(release)["good"]
