"""Bad input gets one clear sentence, exit code 2, no traceback, and leaves nothing behind."""

from pathlib import Path

import pytest

from command import Command, Outcome
from data_files import femnist_records, write_leaf


def assert_refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("privacy.delta=1", ["delta", "between 0 and 1"]),
        ("privacy.delta=1.5", ["delta"]),
        ("privacy.delta=1e-20", ["1e-20"]),
        ("privacy.epsilon=0", ["epsilon", "above 0"]),
        ("privacy.epsilon=-1", ["epsilon"]),
        ("privacy.epsilon=nan", ["epsilon"]),
        ("privacy.accountant=magic", ["accountant", "pld"]),
        ("privacy.unit=family", ["privacy.unit"]),
        ("privacy.unit=silo", ["silo", "subject_dp"]),
        ("privacy.noise_multiplier=0.5", ["Not even one round", "add noise"]),
        ("privacy.noise_multiplier=1.9", ["noise_multiplier = 1.9", "it allows 1"]),
        ("privacy.noise_multiplier=-1", ["noise_multiplier"]),
        ("privacy.noise_multiplier=1e-9", ["Not even one round"]),
        ("privacy.noise_multiplier=1e300", ["noise_multiplier"]),
        ("policy.rate=1.5", ["rate", "probability"]),
        ("policy.rate=0", ["rate"]),
        ("policy.batch_size=10", ["rate", "batch_size"]),
        ("policy.name=subjectdp", ["Unknown policy", "did you mean 'subject_dp'"]),
        ("policy.name=local_group_dp", ["group_cap"]),
        ("policy.clip_norm=0", ["clip_norm"]),
        ("policy.clip_norm=1e300", ["clip_norm"]),
        ("policy.items_per_step=0", ["items_per_step"]),
        ("policy.group_cap=-1", ["group_cap"]),
        ("policy.clipnorm=1", ["policy.clipnorm", "did you mean 'clip_norm'"]),
        ("polcy.name=fedavg", ["polcy", "did you mean 'policy'"]),
        ("policy.as_printed=true", ["printed"]),
        ("rounds.cohort=9", ["9", "4", "cohort"]),
        ("rounds.cohort=0", ["cohort"]),
        ("rounds.count=0", ["rounds.count"]),
        ("rounds.steps=0", ["rounds.steps"]),
        ("rounds.learning_rate=0", ["learning_rate"]),
        ("rounds.count=many", ["rounds.count"]),
        ("rounds.count=100000000", ["rounds", "1,000,000"]),
        ("rounds.learning_rate=1e300", ["learning_rate"]),
        ("silos.items_per_subject=0", ["items_per_subject"]),
        ("silos.span=9", ["span"]),
        ("silos.span=1", ["span", "subjects"]),
        ("silos.partition=uniform", ["silos.count"]),
        ("data.source=hospital", ["data source", "clinics"]),
        ("data.options.patient=5", ["patient", "did you mean 'patients'"]),
        ("data.options.span=40", ["span"]),
        ("data.options.patients=x", ["patients"]),
        ("data.options.patients=nan", ["patients"]),
        ("model.options.features=3", ["logistic"]),
        ("model.name=torch.nn:Dropout", ["Dropout"]),
        ("model.name=logstic", ["did you mean 'logistic'"]),
        ("model.name=nowhere:model", ["nowhere"]),
        ("model.options.depth=3", ["logistic", "depth"]),
        ("evaluation.test=1", ["evaluation.test"]),
        ("evaluation.test=0.999999", ["train"]),
        ("evaluation.by=silo", ["evaluation.by", "subject"]),
        ("data.source=femnist", ["'femnist' has no option 'patients'", "path"]),
        ("nonsense", ["section.key=value"]),
    ],
)
@pytest.mark.usefixtures("coarse_prices")
def test_a_spec_that_cannot_be_met(
    wholegrain: Command, clinics: Path, tmp_path: Path, change: str, words: list[str]
) -> None:
    out = tmp_path / "out"
    assert_refused(wholegrain("run", clinics, "--out", out, "--set", change), *words)
    assert not out.exists()


def test_a_budget_that_no_noise_meets(wholegrain: Command, clinics: Path, tmp_path: Path) -> None:
    changes = ["--set", "privacy.epsilon=1e-12", "--set", "privacy.delta=1e-12"]
    assert_refused(wholegrain("run", clinics, "--out", tmp_path / "out", *changes), "ε = 1e-12", "raise the budget")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (",north,30,f,1", ["patient", "row 61", "subject"]),
        ("  ,north,30,f,1", ["patient", "row 61"]),
        ("NA,north,30,f,1", ["patient", "row 61"]),
        ("NaN,north,30,f,1", ["patient", "row 61"]),
        ("p1,,30,f,1", ["clinic", "row 61"]),
        ("p1,north,,f,1", ["age", "row 61", "missing"]),
        ("p1,north,NaN,f,1", ["age", "row 61"]),
        ("p1,north,30,x,1", ["sex", "'x'", "row 61"]),
        ("p1,north,30,,1", ["sex", "row 61"]),
        ("p1,north,30,f,7", ["ill", "'7'"]),
        ("p1,north,30,f,", ["ill", "row 61"]),
        ("p1,north,old,f,1", ["age"]),
    ],
)
def test_a_table_that_breaks_its_declarations(
    wholegrain: Command, visits: Path, tmp_path: Path, row: str, words: list[str]
) -> None:
    out = tmp_path / "out"
    with (tmp_path / "visits.csv").open("a") as file:
        file.write(row + "\n")
    assert_refused(wholegrain("run", visits, "--out", out), *words)
    assert not out.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.table.subject=patients", ["patients", "did you mean 'patient'"]),
        ("data.table.path=gone.csv", ["gone.csv"]),
        ("data.table.silo=patient", ["different columns"]),
        ("data.table.features.age.low=200", ["age", "low < high"]),
        ("data.table.features.age.lo=0", ["'age'", "'lo'", "did you mean 'low'"]),
        ("data.table.target.threshold=0.5", ["ill", "threshold"]),
        ("data.source=clinics", ["either"]),
        ("policy.name=higradavg_dp", ["rate"]),
        ("data.table.features.age.centred=true", ["'age'", "leave out `centred`"]),
    ],
)
def test_a_table_that_is_described_wrongly(
    wholegrain: Command, visits: Path, tmp_path: Path, change: str, words: list[str]
) -> None:
    changes = ["--set", change, *(["--set", "policy.rate=2"] if "higradavg" in change else [])]
    assert_refused(wholegrain("run", visits, "--out", tmp_path / "out", *changes), *words)


def test_local_item_dp_refuses_a_subject_beyond_its_bound(wholegrain: Command, visits: Path, tmp_path: Path) -> None:
    changes = ["--set", "policy.name=local_item_dp", "--set", "silos.items_per_subject=1"]
    assert_refused(wholegrain("run", visits, "--out", tmp_path / "out", *changes), "items_per_subject = 1", "drop")
    assert not (tmp_path / "out").exists()


def test_local_item_dp_refuses_to_drop(wholegrain: Command, visits: Path) -> None:
    changes = ["--set", "policy.name=local_item_dp", "--set", "silos.surplus=drop"]
    assert_refused(wholegrain("plan", visits, *changes), "local_item_dp", "surplus")


def test_a_policy_that_needs_a_bound_says_so(wholegrain: Command, visits: Path) -> None:
    visits.write_text(visits.read_text().replace("items_per_subject = 4", ""))
    assert_refused(wholegrain("plan", visits, "--set", "policy.name=higradavg_dp"), "items_per_subject")


@pytest.mark.parametrize("text", ["[policy", "\x00", "= 3", '[policy]\nname = "fedavg"\nname = "fedavg"'])
def test_a_spec_that_is_not_toml(wholegrain: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.toml").write_text(text)
    assert_refused(wholegrain("plan", tmp_path / "broken.toml"), "broken.toml")


def test_a_spec_that_is_not_there(wholegrain: Command, tmp_path: Path) -> None:
    assert_refused(wholegrain("plan", tmp_path / "none.toml"), "none.toml")


def test_a_folder_that_is_taken(wholegrain: Command, clinics: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "keep.txt").write_text("mine")
    assert_refused(wholegrain("run", clinics, "--out", tmp_path / "out"), "already exists")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["keep.txt"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "subjectdp", "--rate", "0.1"], ["did you mean 'subject_dp'"]),
        (["--policy", "subject_dp", "--rate", "1.1"], ["--rate"]),
        (["--policy", "subject_dp", "--rate", "0.1", "--delta", "1"], ["delta"]),
        (["--policy", "subject_dp", "--rate", "0.1", "--silos", "0"], ["--silos"]),
        (["--policy", "subject_dp", "--rate", "0.1", "--accountant", "mgf"], ["accountant"]),
        (["--policy", "local_item_dp", "--rate", "0.1"], ["items_per_subject"]),
        (["--policy", "local_group_dp", "--rate", "0.1", "--items-per-subject", "3"], ["group_cap"]),
        (
            ["--policy", "local_item_dp", "--rate", "0.1", "--items-per-subject", "3", "--accountant", "rdp"],
            ["RDP", "pld"],
        ),
    ],
)
@pytest.mark.parametrize("verb", [["account", "--noise", "4"], ["calibrate", "--epsilon", "4"]])
def test_a_price_that_cannot_be_told(
    wholegrain: Command, verb: list[str], arguments: list[str], words: list[str]
) -> None:
    assert_refused(wholegrain(*verb, "--steps", "10", *arguments), *words)


def test_a_budget_of_nothing(wholegrain: Command) -> None:
    arguments = ["--policy", "subject_dp", "--rate", "0.1", "--steps", "10"]
    assert_refused(wholegrain("calibrate", *arguments, "--epsilon", "0"), "epsilon")


def test_bounds_over_nonsense(wholegrain: Command) -> None:
    arguments = "--steps 10 --learning-rate 0.1 --rate 0.1 --dimension 5 --items 100 --batch-size 10".split()
    assert_refused(wholegrain("bounds", *arguments, "--k", "1,x"), "--k")


@pytest.mark.parametrize("source", ["clinic", "visits.csv"])
def test_describing_what_is_not_a_source(wholegrain: Command, visits: Path, source: str) -> None:
    name = visits.parent / source if source.endswith("csv") else source
    assert_refused(wholegrain("data", "describe", name), source)


@pytest.mark.parametrize(
    "source", ["femnist", "shakespeare", "mnist_writers", "plays", "documents", "gutenberg_shakespeare"]
)
def test_describing_a_source_whose_files_are_not_there(
    wholegrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.delenv("WHOLEGRAIN_DATA", raising=False)
    assert_refused(wholegrain("data", "describe", source), source, "data.options.path", "WHOLEGRAIN_DATA")
    away = f"data.options.path={tmp_path / 'away'}"
    assert_refused(wholegrain("data", "describe", source, "--set", away), source, "away")


def test_a_file_that_is_broken_is_named_with_its_subject(wholegrain: Command, tmp_path: Path) -> None:
    file = write_leaf(tmp_path / "a.json", femnist_records(writers=2, images=2))
    file.write_text(file.read_text()[:-2000])
    words = ("a.json", "ends too early", "f0001_00")
    assert_refused(wholegrain("data", "describe", "femnist", "--set", f"data.options.path={file}"), *words)


def test_fedavg_has_nothing_to_calibrate(wholegrain: Command) -> None:
    arguments = ["--policy", "fedavg", "--rate", "0.1", "--steps", "10"]
    assert_refused(wholegrain("calibrate", *arguments, "--epsilon", "4"), "fedavg", "no noise")


def test_a_fault_of_ours_is_one_line_too(wholegrain: Command, clinics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholegrain.cli.run_commands.prepare", lambda *a, **k: {}["missing"])
    assert_refused(wholegrain("plan", clinics), "KeyError", "WHOLEGRAIN_DEBUG=1")


def test_names_that_look_like_markup_are_names(wholegrain: Command, visits: Path, tmp_path: Path) -> None:
    table = tmp_path / "visits.csv"
    table.write_text(table.read_text().replace("north", "[/north]"))
    outcome = wholegrain("plan", visits)
    assert outcome.code == 0
    assert "[/north]" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.csv"], ["There is no file", "gone.csv"]),
        (["visits.toml"], ["table format"]),
        (["visits.csv"], ["visits.toml", "already exists", "--out"]),
        (["visits.csv", "--out", "new.yaml"], [".toml"]),
        (["visits.csv", "--out", "new.toml", "--subject", "patiant"], ["did you mean 'patient'"]),
        (["visits.csv", "--out", "new.toml", "--subject", "age", "--target", "age"], ["three different columns"]),
    ],
)
def test_a_table_that_no_spec_can_be_begun_for(
    wholegrain: Command, visits: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(visits.parent)
    before = {path: path.read_bytes() for path in visits.parent.iterdir() if path.is_file()}
    assert_refused(wholegrain("data", "init", *arguments), *words)
    assert {path: path.read_bytes() for path in visits.parent.iterdir() if path.is_file()} == before
