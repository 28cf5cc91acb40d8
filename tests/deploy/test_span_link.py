"""Spans in real federations: from a column, and by tokens that nobody can read without the silos' key."""

import json
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr")

from command import Command
from deployment import as_toml
from grids import Clock, within_a_server_app
from summing import SILOS, charter, server_spec, services, simulated, write_tables
from wholegrain.deploy import span_link
from wholegrain.deploy.charter import Charter, load_charter
from wholegrain.deploy.server import serve
from wholegrain.deploy.silo_answers import open_silo
from wholegrain.errors import DataError, RunError, SpecError

LOCAL: dict[str, Any] = {"trust": None, "policy": {"rate": 1.0, "by_span": True}}
SUMMED: dict[str, Any] = {"policy": {"rate": 0.5, "by_span": True}}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return within_a_server_app(monkeypatch)


def charters(folder: Path) -> dict[str, Charter]:
    """Charters of five silos that have not linked yet."""
    write_tables(folder / "data")
    keys = dict.fromkeys(SILOS, "")
    for name in SILOS:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "silo.toml").write_text(as_toml(charter(folder / "data", name, keys, link={"key": "key"})))
    return {name: load_charter(folder / name / "silo.toml") for name in SILOS}


def linked(folder: Path, made: dict[str, Charter]) -> dict[str, dict[str, int]]:
    """What every silo keeps after a link."""
    key = folder / "link.key"
    if not key.exists():
        span_link.make_key(["strip"], key)
    files = [folder / f"{name}.tokens" for name in made]
    for own, path in zip(made.values(), files, strict=True):
        span_link.write_tokens(own, key, path)
    counts = span_link.count_tokens(files, folder / "counts")
    for name, own in made.items():
        span_link.keep_counts(own, key, counts[name])
    return {name: known.spans for name, own in made.items() if (known := span_link.read_spans(own))}


@pytest.mark.parametrize("changes", [LOCAL, SUMMED], ids=["local", "secure sum"])
def test_weights_by_a_column_of_spans_are_those_of_a_simulation_that_counts(
    changes: dict[str, Any], tmp_path: Path, coarse_prices: None
) -> None:
    trust = {"trust": ["local", "secure_sum"]}
    with services(tmp_path, {"*": {"table": {"span": "span"}, "allow": trust}}) as five:
        run = serve(server_spec(**changes), tmp_path / "run", five.grid())
    assert [done.faults for done in run.rounds] == [(), ()]
    assert run.vector.numpy().tobytes() == simulated(tmp_path / "data", **changes)


def test_silos_that_know_no_spans_are_not_asked_for_weights_by_span(tmp_path: Path, coarse_prices: None) -> None:
    with services(tmp_path) as five, pytest.raises(RunError, match="knows_spans = False"):
        serve(server_spec(**SUMMED), tmp_path / "run", five.grid())


def test_a_link_finds_the_spans_that_a_master_index_would(tmp_path: Path) -> None:
    made = charters(tmp_path)
    found = linked(tmp_path, made)
    whole = pl.read_csv(tmp_path / "data" / "all.csv")
    true = dict(whole.group_by("person").agg(pl.col("clinic").n_unique()).iter_rows())
    for name in SILOS:
        people = whole.filter(pl.col("clinic") == name)["person"].unique().to_list()
        assert Counter(found[name].values()) == Counter(true[person] for person in people)
        path = span_link.spans_path(made[name])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not any(person in path.read_text() for person in people)
        assert not any(person in (tmp_path / f"{name}.tokens").read_text() for person in people)


def test_who_leaves_all_files_changes_nobody_elses_span(tmp_path: Path) -> None:
    made = charters(tmp_path)
    before = linked(tmp_path, made)
    for name in ("all", *SILOS):
        path = tmp_path / "data" / f"{name}.csv"
        path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("p003,")))
    after = linked(tmp_path, made)
    gone = [set(before[name]) - set(after[name]) for name in SILOS]
    assert {len(each) for each in gone} <= {0, 1}
    assert any(gone)
    for name in SILOS:
        assert after[name] == {code: span for code, span in before[name].items() if code in after[name]}


def test_the_name_of_a_link_tells_nothing_about_who_was_counted(tmp_path: Path) -> None:
    """It goes into the terms that a server sees. As a digest of tokens, whoever has a silo's key could try people."""
    made = charters(tmp_path)
    linked(tmp_path, made)
    files = [tmp_path / f"{name}.tokens" for name in SILOS]
    names = set()
    for time in range(3):
        counted = span_link.count_tokens(files, tmp_path / f"again{time}")
        (same,) = {json.loads(path.read_text())["link"] for path in counted.values()}
        names.add(same)
    assert len(names) == 3


def test_data_that_changed_after_the_link_is_refused(tmp_path: Path) -> None:
    made = charters(tmp_path)
    linked(tmp_path, made)
    with (tmp_path / "data" / "north.csv").open("a") as file:
        file.write("p999,1,0.1,0.1,0.1,1\n")
    (tmp_path / "north" / "key").write_bytes(b"")
    own = made["north"].model_copy(update={"link": None})
    with pytest.raises(DataError, match="link again"), open_silo(own):
        pass
    with pytest.raises(DataError, match="link again"):
        span_link.keep_counts(made["north"], tmp_path / "link.key", tmp_path / "counts" / "north.counts")


def test_counts_that_leave_a_silo_out_or_belong_to_another_are_refused(tmp_path: Path) -> None:
    made = charters(tmp_path)
    linked(tmp_path, made)
    fewer = [tmp_path / f"{name}.tokens" for name in SILOS[:4]]
    counts = span_link.count_tokens(fewer, tmp_path / "fewer")
    with pytest.raises(SpecError, match="would make spans too small"):
        span_link.keep_counts(made["east"], tmp_path / "link.key", counts["east"])
    with pytest.raises(SpecError, match="those of the silo 'middle'"):
        span_link.keep_counts(made["east"], tmp_path / "link.key", tmp_path / "counts" / "middle.counts")
    with pytest.raises(SpecError, match="at least two different silos"):
        span_link.count_tokens([fewer[0], fewer[0]], tmp_path / "twice")
    text = json.loads((tmp_path / "counts" / "east.counts").read_text())
    text["counts"] = dict.fromkeys(text["counts"], 6)
    (tmp_path / "east.counts").write_text(json.dumps(text))
    with pytest.raises(SpecError, match="more silos than were counted"):
        span_link.keep_counts(made["east"], tmp_path / "link.key", tmp_path / "east.counts")


def test_ids_are_written_alike_by_the_keys_rules_and_two_ids_of_one_person_are_refused(tmp_path: Path) -> None:
    made = charters(tmp_path)
    span_link.make_key(["strip", "casefold", "unaccent", "alphanumeric", "no_leading_zeros"], tmp_path / "link.key")
    key = span_link.LinkKey.model_validate_json((tmp_path / "link.key").read_text())
    assert key.token(" 007-É a") == key.token("7ea")
    assert key.token("7ea") != key.token("7eb")
    with (tmp_path / "data" / "north.csv").open("a") as file:
        file.write("x1,1,0.1,0.1,0.1,1\nX-1,1,0.1,0.1,0.1,1\n")
    with pytest.raises(DataError, match="two ids"):
        span_link.write_tokens(made["north"], tmp_path / "link.key", tmp_path / "tokens")
    with pytest.raises(SpecError, match="no rule"):
        span_link.make_key(["shuffle"], tmp_path / "other.key")
    with pytest.raises(RunError, match="already exists"):
        span_link.make_key(["strip"], tmp_path / "link.key")


def test_the_link_by_its_commands(tmp_path: Path, wholegrain: Command) -> None:
    charters(tmp_path)
    key = str(tmp_path / "link.key")
    assert wholegrain("link", "key", key).code == 0
    files = [str(tmp_path / f"{name}.tokens") for name in SILOS]
    for name, path in zip(SILOS, files, strict=True):
        own = str(tmp_path / name / "silo.toml")
        assert wholegrain("link", "tokens", path, "--charter", own, "--key", key).code == 0
    assert wholegrain("link", "count", *files, "--out", str(tmp_path / "counts")).code == 0
    own = str(tmp_path / "east" / "silo.toml")
    kept = wholegrain("link", "keep", str(tmp_path / "counts" / "east.counts"), "--charter", own, "--key", key)
    assert kept.code == 0
    assert "(not private)" in kept.out
    wrong = wholegrain("link", "keep", str(tmp_path / "link.key"), "--charter", own, "--key", key)
    assert wrong.code == 2


def test_a_silo_can_be_linked_before_it_has_a_state_folder(tmp_path: Path) -> None:
    state = tmp_path / "state" / "of" / "the silo"
    made = {
        name: own.model_copy(update={"ledger": own.ledger.model_copy(update={"path": str(state / "ledger.sqlite")})})
        for name, own in charters(tmp_path).items()
    }
    assert set(linked(tmp_path, made)) == set(SILOS)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["../above", "{folder}/elsewhere", "a/b", "\x1b[2J", ""])
def test_a_silo_cannot_choose_where_its_counts_are_written(name: str, tmp_path: Path) -> None:
    for number, silo in enumerate(["north", name.format(folder=tmp_path)]):
        (tmp_path / f"{number}.tokens").write_text(json.dumps({"silo": silo, "tokens": ["0" * 64]}))
    with pytest.raises(SpecError, match="is not what `wholegrain link` writes"):
        span_link.count_tokens([tmp_path / "0.tokens", tmp_path / "1.tokens"], tmp_path / "counts" / "here")
    assert not list(tmp_path.rglob("*.counts"))
