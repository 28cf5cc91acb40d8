"""The page and its figures, without a browser."""

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from run_records import secure
from wholegrain.report.figure_export import export
from wholegrain.report.figures import COLOURS, _ticks, figures, multiples
from wholegrain.report.glance import kinds
from wholegrain.report.live_page import stamp
from wholegrain.report.page import asset, content, page
from wholegrain.report.run_reader import read_runs
from wholegrain.report.tables import score_rows

KEYS = {
    "tradeoff",
    "accuracy",
    "loss",
    "epsilon",
    "noise",
    "seconds",
    "items_per_subject",
    "silos_per_subject",
    "groups",
}


def test_every_figure_has_its_numbers_and_words_for_those_who_do_not_see_it(proved: Path) -> None:
    drawn = list(figures(read_runs([proved])))
    assert {figure.key for figure in drawn} == KEYS
    for figure in drawn:
        assert figure.rows
        assert len(figure.alternative) > len(figure.title)
        assert json.dumps(figure.spec())


def test_numbers_of_a_figure_are_those_of_the_record(proved: Path) -> None:
    (run,) = read_runs([proved])
    (spent,) = [figure for figure in figures([run]) if figure.key == "epsilon"]
    assert [row[3] for row in spent.rows] == [done.epsilon for done in run.rounds]


def test_noise_alone_is_drawn_only_where_public_facts_set_it(proved: Path, printed: Path) -> None:
    parts = {}
    for run in read_runs([proved, printed]):
        (drawn,) = [figure for figure in figures([run]) if figure.key == "noise"]
        parts[run.name] = {row[1] for row in drawn.rows}
    assert parts["proved"] == {"moved", "noise alone (expected)"}
    assert parts["printed"] == {"moved"}  # σ_Z is looked up by a private fact


def test_several_runs_are_drawn_as_multiples_of_their_noise(proved: Path, printed: Path) -> None:
    runs = read_runs([proved, printed])
    (drawn,) = [figure for figure in figures(runs) if figure.key == "noise"]
    assert {row[0] for row in drawn.rows} == {"proved"}  # of the other nobody knows the noise
    first = runs[0].rounds[0]
    assert first.moved is not None
    assert first.noise is not None
    assert drawn.rows[0][3] == pytest.approx(first.moved / first.noise)


def test_page_asks_no_other_machine(proved: Path, printed: Path) -> None:
    text = page(read_runs([proved, printed]))
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", markup)
    assert "@import" not in markup


def test_only_the_script_that_the_page_was_written_with_may_run(proved: Path) -> None:
    text = page(read_runs([proved]))
    (script,) = re.findall(r'<script type="module">(.*?)</script>', text, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="(.*?)">', text)
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in html.unescape(policy)
    assert "unsafe-eval" not in policy
    assert "connect-src 'none'" in html.unescape(policy)
    assert "connect-src 'self'" in html.unescape(page(read_runs([proved]), live="a stamp"))


def test_names_cannot_break_out_of_the_page(proved: Path, tmp_path: Path) -> None:
    evil = tmp_path / "</script><script>alert(1)</script>".replace("/", "⁄")
    evil.symlink_to(proved)
    text = page(read_runs([evil]))
    assert "<script>alert(1)" not in text


def test_comparison_has_claims_and_proofs_side_by_side(proved: Path, printed: Path) -> None:
    text = page(read_runs([proved, printed]))
    assert "ε claimed" in text
    assert "What is promised by printed" in text


@pytest.mark.slow
def test_figures_become_files(proved: Path, tmp_path: Path) -> None:
    export(read_runs([proved]), tmp_path)
    assert {path.stem for path in tmp_path.glob("*.svg")} == KEYS
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "accuracy.svg").read_text().startswith("<svg")


def test_stamp_changes_with_every_round(proved: Path, tmp_path: Path) -> None:
    before = stamp([tmp_path])
    (tmp_path / "rounds.jsonl").write_text("{}\n")
    assert stamp([tmp_path]) != before
    assert stamp([proved]) == stamp([proved])


def test_one_point_or_one_bar_is_no_figure(proved: Path) -> None:
    (run,) = read_runs([proved])
    assert run.counts is not None
    once = replace(run, rounds=run.rounds[:1], counts=replace(run.counts, silos_per_subject={1: 120}))
    assert {figure.key for figure in figures([once])} == {"tradeoff", "items_per_subject", "groups"}


def test_a_legend_names_only_what_is_drawn(proved: Path, printed: Path) -> None:
    one, other = read_runs([proved, printed])
    unscored = replace(other, rounds=tuple(replace(done, scores={}) for done in other.rounds))
    drawn = {
        figure.key: figure.spec()["layer"][0]["encoding"]
        for figure in figures([one, unscored])
        if figure.key in ("accuracy", "seconds")
    }
    assert drawn["accuracy"]["color"]["legend"]["values"] == ["proved"]
    assert drawn["accuracy"]["strokeDash"]["legend"]["values"] == ["proved"]
    assert drawn["seconds"]["color"]["legend"]["values"] == ["proved", "printed"]
    (alone,) = [figure.spec()["layer"][0]["encoding"] for figure in figures([one]) if figure.key == "noise"]
    assert alone["color"]["legend"]["values"] == ["moved", "noise alone (expected)"]


def contrast(colour: str, ground: str) -> float:
    """As WCAG reckons it."""

    def light(text: str) -> float:
        parts = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(colour), light(ground)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_of_a_line_is_seen_on_both_grounds() -> None:
    bright = dict(re.findall(r'"(#[0-9a-f]{6})": "(#[0-9a-f]{6})"', asset("report.js")))
    light, dark = re.findall(r"--raised: (#[0-9a-f]{6})", asset("report.css"))[:2]
    assert list(bright) == COLOURS
    assert min(contrast(colour, light) for colour in COLOURS) >= 3
    assert min(contrast(colour, dark) for colour in bright.values()) >= 4.5


def test_scores_stand_below_each_other(proved: Path) -> None:
    (run,) = read_runs([proved])
    assert run.summary is not None
    own = run.summary.scores["test"]
    wild = replace(run, summary=replace(run.summary, scores={"test": replace(own, loss=4.849e7)}))
    for row in score_rows([run]):
        assert {len(str(cell).partition(".")[2]) for cell in row[1:]} == {4}
    assert "4.849e+07" in next(score_rows([wild]))


def test_a_comparison_says_at_its_head_who_is_protected(proved: Path, printed: Path) -> None:
    runs = [*read_runs([proved, printed]), replace(secure(read_runs([proved])[0]), name="release")]
    found = {badge.words: names for badge, names in kinds(runs).items()}
    assert found["SIMULATION: protects nobody"] == ["proved", "printed"]
    assert found["RELEASE, PROVED"] == ["release"]
    assert found["CLAIMED by its paper"] == ["printed"]
    head = page(runs).split("</header>")[0]
    assert re.search(r"RELEASE, PROVED</span> release</p>", head)
    assert re.search(r"protects nobody</span> proved, printed</p>", head)


def test_small_charts_have_one_scale(proved: Path, printed: Path) -> None:
    drawn = list(multiples(read_runs([proved, printed])))
    assert [figure.title for figure in drawn] == ["proved", "printed"]
    scales = {json.dumps(layer["encoding"]["y"]["scale"]) for figure in drawn for layer in figure.spec()["layer"]}
    assert len(scales) == 1
    assert not list(multiples(read_runs([proved])))


def test_a_run_that_has_not_ended_and_one_that_has_not_begun_have_a_page(proved: Path) -> None:
    (run,) = read_runs([proved])
    going = replace(run, summary=None, worked_on=True)
    assert 'data-state="running"' in content([going])
    assert 'data-state="stopped"' in content([replace(going, worked_on=False)])
    assert 'data-state="waiting"' in content([], ["later"])
    assert "data-state" not in content([run])
    assert "stopped before its end" in page([replace(going, worked_on=False), run])


@pytest.mark.parametrize("live", ["a stamp", None])
def test_only_a_live_page_asks_its_server(proved: Path, live: str | None) -> None:
    assert ('<html lang="en" data-live="a stamp">' in page(read_runs([proved]), live=live)) is bool(live)


def test_a_run_has_one_colour_and_rounds_are_whole_in_every_chart(proved: Path, printed: Path) -> None:
    drawn = [figure for figure in figures(read_runs([proved, printed])) if "round" in figure.columns]
    assert len(drawn) >= 4
    for figure in drawn:
        for layer in figure.spec()["layer"]:
            encoding = layer.get("layer", [layer])[0]["encoding"]
            if "color" in encoding:
                assert encoding["color"]["scale"]["domain"] == ["proved", "printed"]
                assert encoding["x"]["axis"]["values"] == [1, 2, 3]


def test_lines_are_told_apart_by_colour_and_by_dashes(proved: Path, printed: Path) -> None:
    runs = read_runs([proved, printed])
    for several, field in ((runs, "run"), (runs[:1], "part")):
        drawn = {figure.key: figure for figure in figures(several)}
        lines, dots = drawn["noise"].spec()["layer"]
        assert lines["encoding"]["strokeDash"]["field"] == lines["encoding"]["color"]["field"] == field
        assert "strokeDash" not in dots["encoding"]
        _, curves = drawn["tradeoff"].spec()["layer"]
        assert curves["encoding"]["strokeDash"]["field"] == field


def test_a_page_knows_how_long_the_names_in_a_legend_are(proved: Path, printed: Path) -> None:
    (loss,) = (figure for figure in figures(read_runs([proved, printed])) if figure.key == "loss")
    assert loss.spec()["usermeta"] == {"longest_label": len("printed")}


@pytest.mark.parametrize(
    ("rounds", "ticks"),
    [
        (1, [1]),
        (8, [*range(1, 9)]),
        (15, [*range(1, 16, 2)]),
        (100, [1, *range(20, 101, 20)]),
        (25, [1, *range(5, 26, 5)]),
    ],
)
def test_ticks_are_whole_rounds(rounds: int, ticks: list[int]) -> None:
    assert _ticks(rounds) == ticks
