"""An unfinished spec is valid TOML, takes nothing from rows, is refused until it is complete, and then trains."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.data.table_columns import Column, ColumnKind
from wholegrain.data.table_files import TextFormat
from wholegrain.errors import SpecError
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.section_files import BLANK
from wholegrain.runs.spec import load
from wholegrain.runs.spec_template import Roles, assign, skeleton, write_skeleton

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
COLUMNS = st.lists(
    st.builds(Column, NAMES, st.sampled_from(ColumnKind)), min_size=3, max_size=8, unique_by=lambda c: c.name
)


def named(*names: str) -> list[Column]:
    return [Column(name, ColumnKind.NAME) for name in names]


@given(COLUMNS, NAMES)
def test_any_column_names_make_valid_toml(found: list[Column], path: str) -> None:
    roles = assign(found, Roles(subject=found[0].name, target=found[1].name))
    table = tomllib.loads(skeleton(path, found, roles))["data"]["table"]
    assert table["path"] == path
    assert table["subject"] == found[0].name
    assert table["target"]["column"] == found[1].name
    features = [c.name for c in found if c.name not in roles.columns and c.kind is not ColumnKind.OTHER]
    assert list(table["features"]) == [name for name in features if name in table["features"]]
    assert all(re.search("id|nbr|no|number|key", name, re.I) for name in set(features) - set(table["features"]))


@pytest.mark.parametrize(
    ("names", "subject", "target", "silo"),
    [
        (["patient", "clinic", "age", "outcome"], "patient", "outcome", "clinic"),
        (["visit_id", "PatientID", "patient_age", "label"], "PatientID", "label", None),
        (["record id", "idcode", "wage"], "idcode", None, None),
        (["hospital_id", "customer.id", "class"], "customer.id", "class", "hospital_id"),
        (["grid", "paid", "valid"], None, None, None),
        (["a", "b", "c"], None, None, None),
        (["patient_nbr", "time_in_hospital", "medical_specialty", "y"], "patient_nbr", "y", "medical_specialty"),
    ],
)
def test_roles_are_guessed_by_names(names: list[str], subject: str, target: str, silo: str) -> None:
    roles = assign(named(*names), Roles())
    assert (roles.subject, roles.target, roles.silo) == (subject, target, silo)
    assert roles.guessed == {name for name in (subject, target, silo) if name}


def test_what_is_asked_for_is_no_guess_and_is_not_given_twice() -> None:
    roles = assign(named("patient", "person", "label"), Roles(target="patient"))
    assert (roles.subject, roles.target, roles.guessed) == ("person", "patient", {"person"})


def test_guesses_are_marked_in_the_text() -> None:
    found = named("patient", "label", "x")
    text = skeleton("t.csv", found, assign(found, Roles(target="label")))
    guessed = [line.split(" ")[0] for line in text.splitlines() if "guess" in line]
    assert guessed == ["subject"]


@pytest.mark.parametrize(
    ("column", "line"),
    [
        (Column("encounter_id", ColumnKind.WHOLE), "# encounter_id is an id"),
        (Column("uuid", ColumnKind.NAME), "# uuid is an id"),
        (Column("admission_type_id", ColumnKind.WHOLE), "admission_type_id = { categories"),
        (Column("age", ColumnKind.WHOLE), "age = { low"),
        (Column("born", ColumnKind.DATE), f'born = {{ low = "{BLANK}", high = "{BLANK}" }}  # dates'),
        (Column("born", ColumnKind.DATE, "%d.%m.%Y"), f'born = {{ low = "{BLANK}", high = "{BLANK}", format = "%d'),
        (Column("born", ColumnKind.DATE, ""), f'born = {{ low = "{BLANK}", high = "{BLANK}", format = "{BLANK}"'),
    ],
)
def test_a_feature_is_begun_by_its_name_and_kind(column: Column, line: str) -> None:
    found = [*named("patient", "label"), column]
    lines = skeleton("t.csv", found, assign(found, Roles())).splitlines()
    assert any(each.startswith(line) for each in lines)


def test_how_a_file_is_written_gets_into_the_spec() -> None:
    text = skeleton("t.csv", named("patient", "label", "x"), Roles(), TextFormat("latin-1", ","))
    table = tomllib.loads(text)["data"]["table"]
    assert (table["encoding"], table["decimal"]) == ("latin-1", ",")


def test_a_column_that_is_not_there_is_refused_with_the_closest() -> None:
    with pytest.raises(SpecError, match="did you mean 'patient'"):
        assign(named("patient", "b", "c"), Roles(subject="patients"))
    with pytest.raises(SpecError, match="three different columns"):
        assign(named("a", "b", "c"), Roles(subject="a", target="a"))


ROWS = "".join(f"{i % 30},{'ns'[i % 2]},{20 + i % 61},{'fm'[i % 2]},{i % 7}.5,{i % 2}\n" for i in range(120))
TABLE = 'patient id,clinic,age in years,"s.e.x ""f/m""",größe,label\n' + ROWS


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


def filled(text: str) -> str:
    """As somebody who knows the columns would."""
    for declared, known in {
        f'low = "{BLANK}", high = "{BLANK}"': "low = 0, high = 110",
        f'categories = ["{BLANK}"]': 'categories = ["f", "m"]',
        f'classes = ["{BLANK}"]': "classes = [0, 1]",
        f'count = "{BLANK}"': "count = 3",
    }.items():
        text = text.replace(declared, known)
    return text


@pytest.mark.parametrize("silo", ["clinic", None])
def test_from_a_table_to_a_trained_model(table: Path, tmp_path: Path, silo: str | None) -> None:
    if silo is None:
        table.write_text(TABLE.replace("clinic", "week"), encoding="utf-8")
    spec = tmp_path / "visits.toml"
    roles = write_skeleton(table, spec, Roles())
    assert (roles.subject, roles.target, roles.silo) == ("patient id", "label", silo)
    text = filled(spec.read_text(encoding="utf-8"))
    if silo is None:
        text = text.replace('week = { categories = ["f", "m"] }', 'week = { categories = ["n", "s"] }')
    spec.write_text(text, encoding="utf-8")
    prepared = prepare(load(spec, ("rounds.count=2", "privacy.delta=1e-3")))
    with open_guard(prepared, "a run") as guard:
        run = execute(prepared, guard)
    assert run.guarantee.epsilon <= 4
    assert len(run.plan.rows) == (2 if silo else 3)


def test_nothing_of_the_rows_gets_into_the_spec(table: Path, tmp_path: Path) -> None:
    write_skeleton(table, tmp_path / "one.toml", Roles())
    table.write_text(TABLE.replace("20", "77").replace(",f,", ",secret,").replace(",n,", ",hidden,"), encoding="utf-8")
    write_skeleton(table, tmp_path / "other.toml", Roles())
    assert (tmp_path / "one.toml").read_text("utf-8") == (tmp_path / "other.toml").read_text("utf-8")


def test_every_blank_is_named_until_none_is_left(table: Path, tmp_path: Path) -> None:
    spec = tmp_path / "visits.toml"
    write_skeleton(table, spec, Roles())
    places = []
    for _ in range(20):
        try:
            load(spec)
        except SpecError as error:
            places.append(str(error).split(": ")[1].split(" still")[0])
            text = spec.read_text("utf-8")
            value = '"m", "n"' if "categories" in places[-1] or "classes" in places[-1] else str(len(places))
            spec.write_text(text.replace(f'"{BLANK}"', value, 2 if "# A spec" in text else 1).replace("# A spec", "#"))
        else:
            break
    assert len(places) == len(set(places)) == 6
    assert places[0] == "data.table.target.classes"
    assert places[-1] == "data.table.features.größe.high"


def test_a_change_can_fill_a_blank(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f'[rounds]\ncount = "{BLANK}"\n')
    with pytest.raises(SpecError, match=r"rounds\.count"):
        load(tmp_path / "s.toml")
    assert load(tmp_path / "s.toml", ("rounds.count=3",)).rounds.count == 3


def test_the_table_is_found_from_the_specs_folder(table: Path, tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    spec = tmp_path / "specs" / "visits.toml"
    write_skeleton(table, spec, Roles())
    spec.write_text(filled(spec.read_text("utf-8")), encoding="utf-8")
    found = load(spec).data.table
    assert found is not None
    assert Path(found.path) == table


def test_a_file_that_is_there_is_kept(table: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("mine")
    with pytest.raises(SpecError, match="already exists"):
        write_skeleton(table, tmp_path / "mine.toml", Roles())
    assert (tmp_path / "mine.toml").read_text() == "mine"


@pytest.mark.parametrize("out", ["spec.yaml", "no/such/folder/spec.toml"])
def test_a_place_that_cannot_be_written(table: Path, tmp_path: Path, out: str) -> None:
    before = set(tmp_path.iterdir())
    with pytest.raises(SpecError, match=r"spec\."):
        write_skeleton(table, tmp_path / out, Roles())
    assert set(tmp_path.iterdir()) == before
