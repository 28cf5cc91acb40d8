"""What is signed, and what is published with a model: both say only what they may."""

import json
import math
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from command import Command
from run_records import secure
from wholegrain.errors import SpecError
from wholegrain.report.dpia import dpia_annex
from wholegrain.report.model_card import CARD, model_card, write_card
from wholegrain.report.run_reader import RunRecord, read_run
from wholegrain.report.wording import number
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec_sections import AboutSpec

ABOUT = {
    "author": "R. Example",
    "contact": "privacy@example.org",
    "purpose": "To call patients <early>",
    "controller": "A hospital",
    "recipients": "Three clinics",
    "retention": "Five years",
    "legal_basis": "Art. 9(2)(j)",
    "license": "apache-2.0",
}


def about(run: RunRecord, **words: str) -> RunRecord:
    return replace(run, spec=run.spec.model_copy(update={"about": AboutSpec(**words)}))


@pytest.fixture
def release(proved: Path) -> RunRecord:
    return about(secure(read_run(proved, "proved")), **ABOUT)


def test_a_spec_without_words_keeps_its_digest() -> None:
    assert RunSpec.of({"about": {}}).digest == RunSpec.of({}).digest
    assert "about" not in RunSpec.of({}).model_dump()
    assert RunSpec.of({"about": {"purpose": "x"}}).digest != RunSpec.of({}).digest


@pytest.mark.parametrize("epsilon", [710.0, 5e7, math.inf])
def test_a_large_epsilon_is_told_as_it_is(release: RunRecord, epsilon: float) -> None:
    """A run that trained to its end must not fail when its card is written, nor name smaller odds."""
    run = replace(release, spent=tuple(replace(each, epsilon=epsilon) for each in release.spent))
    told = f"at most e to the power of {number(epsilon)} times as likely"
    assert told in model_card(run)
    assert told in unescape(dpia_annex(run))


@pytest.mark.parametrize("words", ["", "x" * 601, 3])
def test_words_that_fit_no_form_are_refused(words: object) -> None:
    with pytest.raises(SpecError, match=r"about\.purpose"):
        RunSpec.of({"about": {"purpose": words}})


def test_the_annex_of_a_simulation_says_what_could_become_of_a_guess(proved: Path) -> None:
    html = dpia_annex(read_run(proved, "proved"))
    assert "a guess of 1% could become at most" in html
    assert "become would" not in html


def test_the_annex_says_what_article_35_asks_for(release: RunRecord) -> None:
    html = dpia_annex(release)
    text = unescape(html)
    assert all(words in text for key, words in ABOUT.items() if key not in ("author", "license"))
    assert "<early>" not in html
    assert re.findall(r"<h2>\((.)\)", html) == ["a", "b", "c", "d"]
    assert f"ε = {release.promise.epsilon:.4g}" in html
    assert "a guess of 1% can become at most" in html
    assert "For the controller: name, place and date, signature" in html
    assert "one machine read the records of all silos" in html
    assert "<script" not in html


def test_what_nobody_has_said_is_left_to_be_filled_in(release: RunRecord) -> None:
    assert dpia_annex(release).count("to be filled in") == 0
    assert dpia_annex(about(release)).count("to be filled in") == 6


def test_the_annex_names_the_columns_that_are_used(release: RunRecord) -> None:
    assert "all of the source 'clinics'" in unescape(dpia_annex(release))
    features = {f"x{number}": {"low": 0, "high": 1} for number in range(30)}
    target = {"column": "ill", "classes": ["no", "yes"]}
    table = {"path": "visits.csv", "subject": "patient", "target": target, "features": features}
    read = RunSpec.of({"data": {"table": table}}).data
    told = unescape(dpia_annex(replace(release, spec=release.spec.model_copy(update={"data": read}))))
    assert "x0, x1, " in told
    assert "x23 and 6 more (the report's spec lists all); predicted: 'ill'" in told
    assert "patient" not in told.split("Columns used")[1].split("Method")[0]


def test_nobody_can_sign_for_a_simulation(proved: Path, release: RunRecord) -> None:
    for run in (read_run(proved, "proved"), replace(release, summary=None)):
        assert "DRAFT, not to be signed" in dpia_annex(run)
        assert "signature" not in dpia_annex(run).split("DRAFT")[1].split("signed", 1)[1]


@pytest.mark.slow
def test_the_command_writes_the_annex_of_one_run(wholegrain: Command, proved: Path, tmp_path: Path) -> None:
    told = wholegrain("report", proved, "--out", tmp_path / "a.html", "--dpia", tmp_path / "annex.html")
    assert told.code == 0
    assert told.out.endswith(f"Annex: {tmp_path / 'annex.html'}\n")
    assert (tmp_path / "annex.html").read_text().startswith("<!doctype html>")
    told = wholegrain("report", proved, "--out", tmp_path / "a.html", "--dpia", tmp_path / "a.html")
    assert (told.code, "both name" in told.err) == (2, True)
    told = wholegrain("report", proved, proved, "--dpia", tmp_path / "two.html")
    assert (told.code, told.err) == (2, "error: --dpia is about one run, and 2 are given; name one folder.\n")


def test_an_earlier_page_gives_way_and_no_other_file_does(wholegrain: Command, proved: Path, tmp_path: Path) -> None:
    page, spec = tmp_path / "a.html", tmp_path / "visits.toml"
    assert wholegrain("report", proved, "--out", page).out == f"Report: {page}\n"
    assert wholegrain("report", proved, "--out", page).out == f"Report: {page} (in place of an earlier one)\n"
    spec.write_text("[data]\n")
    for told in (
        wholegrain("report", proved, "--out", spec),
        wholegrain("report", proved, "--out", page, "--dpia", spec),
    ):
        sentence = f"error: '{spec}' is there already and is no page of wholegrain; choose another name.\n"
        assert (told.code, told.err) == (2, sentence)
        assert spec.read_text() == "[data]\n"


def front_matter(card: str) -> dict[str, object]:
    """The YAML of a card, whose values are JSON or plain words."""
    _, head, _ = card.split("---\n", 2)
    lines = (line.split(": ", 1) for line in head.splitlines())
    return {key: json.loads(value) if value[0] in '["' else value for key, value in lines}


def test_a_card_says_what_is_declared_and_nothing_else(proved: Path, release: RunRecord) -> None:
    head = front_matter(model_card(release))
    assert head["license"] == "apache-2.0"
    assert head["tags"] == ["differential-privacy", "federated-learning", "subject-level"]
    simulated = front_matter(model_card(read_run(proved, "proved")))
    assert "license" not in simulated
    assert "datasets" not in simulated
    assert "simulation" in str(simulated["tags"])
    assert simulated["metrics"] == ["accuracy"]


def test_a_card_of_a_release_holds_no_score_without_noise_and_no_name_of_a_silo(release: RunRecord) -> None:
    card = model_card(release)
    assert release.summary is not None
    value = release.summary.scores["test"].headline[1]
    assert f"{value:.1%}" not in card
    assert f"{value:.4g}" not in card
    assert not any(silo.name in card for silo in release.plan.silos)
    assert "No score was paid for" in card
    assert "&lt;early>" in card
    assert "Do not publish" not in card


def test_a_card_of_a_simulation_warns(proved: Path) -> None:
    card = model_card(read_run(proved, "proved"))
    assert "**SIMULATION: protects nobody**" in card
    assert "Do not publish this model" in card
    assert "RELEASE" not in card


def test_the_card_lies_beside_the_model(proved: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for file in proved.iterdir():
        (tmp_path / "run" / file.name).symlink_to(file)
    path = write_card(tmp_path / "run")
    assert path == tmp_path / "run" / CARD
    assert path.read_text().startswith("---\n")
    assert (path.parent / "model.safetensors").exists()


def test_resume_writes_the_card_that_a_kill_prevented(proved: Path, tmp_path: Path, wholegrain: Command) -> None:
    """The summary comes first: a run that was killed right after it is finished, and has no card."""
    run = tmp_path / "run"
    shutil.copytree(proved, run)
    (run / CARD).unlink(missing_ok=True)
    (run / f"{CARD}.partial").write_text("---")
    assert wholegrain("resume", run).code == 0
    assert (run / CARD).read_text().startswith("---\n")
    assert not list(run.glob("*.partial"))
    (run / CARD).write_text("edited")
    assert wholegrain("resume", run).code == 0
    assert (run / CARD).read_text() == "edited"
