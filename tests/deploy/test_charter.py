"""silo.toml: read whole or refused in one sentence that names the file."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from deployment import as_toml, charter_tree, write_charter, write_table
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.silo_answers import open_silo
from wholegrain.deploy.silo_service import operator_status, public_facts
from wholegrain.errors import DataError, SpecError


def test_paths_are_taken_from_the_charters_folder(tmp_path: Path) -> None:
    link = {"address": "here:1", "certificates": "certs/ca.crt", "key": "key"}
    models = [{"name": "mlp", "start": "b.safetensors"}]
    changes = {"link": link, "ledger": {"path": "../books/ledger.sqlite"}, "allow": {"models": models}}
    charter = load_charter(write_charter(tmp_path / "north", **changes))
    assert charter.link is not None
    assert charter.data.table is not None
    assert charter.data.table.path == str(tmp_path / "north" / "visits.csv")
    assert charter.link.certificates == str(tmp_path / "north" / "certs" / "ca.crt")
    assert charter.link.key == str(tmp_path / "north" / "key")
    assert charter.ledger.path == str(tmp_path / "books" / "ledger.sqlite")
    assert charter.allow.models[0].start == str(tmp_path / "north" / "b.safetensors")


def test_the_ledger_is_the_machines_unless_the_charter_says_otherwise(tmp_path: Path) -> None:
    """A copy of the folder finds the same account, and not a fresh one beside itself."""
    tree = charter_tree()
    del tree["ledger"]["path"]
    for folder in ("north", "copy"):
        write_charter(tmp_path / folder)
        (tmp_path / folder / "silo.toml").write_text(as_toml(tree))
        assert load_charter(tmp_path / folder / "silo.toml").ledger.path == str(tmp_path / "state" / "ledger.sqlite")


def test_a_charter_whose_data_has_no_name_is_refused(tmp_path: Path) -> None:
    tree = charter_tree()
    del tree["ledger"]["data"]
    path = write_charter(tmp_path)
    path.write_text(as_toml(tree))
    with pytest.raises(SpecError, match=r"gives its data no name: add a section \[ledger\] with data = "):
        load_charter(path)


def test_what_is_not_said_is_the_careful_choice(tmp_path: Path) -> None:
    charter = load_charter(write_charter(tmp_path))
    assert charter.limit.noise == "secure"
    assert charter.limit.unit == "subject"
    assert charter.allow.policies == ("subject_dp",)
    assert charter.allow.scores == ()
    assert charter.held_out == 0
    assert charter.link is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"limit": {"epsilon": 0}}, "limit.epsilon"),
        ({"limit": {"epsilon": -1.0}}, "limit.epsilon"),
        ({"limit": {"epsilon": "much"}}, "limit.epsilon"),
        ({"limit": {"delta": 0}}, "limit.delta"),
        ({"limit": {"delta": 1}}, "limit.delta"),
        ({"limit": {"unit": "person"}}, "limit.unit"),
        ({"limit": {"items_per_subject": 0}}, "limit.items_per_subject"),
        ({"limit": {"smallest_noise": 0}}, "limit.smallest_noise"),
        ({"limit": {"largest_clip": 0}}, "limit.largest_clip"),
        ({"limit": {"most_steps": 0}}, "limit.most_steps"),
        ({"limit": {"noise": "none"}}, "limit.noise"),
        ({"limit": {"accountant": "trust me"}}, "limit.accountant"),
        ({"limit": {"epsilom": 1.0}}, "epsilom"),
        ({"sizes": {"items": 0}}, "sizes.items"),
        ({"sizes": {"items": 10, "subjects": 11}}, "at least as many items as subjects"),
        ({"allow": {"scores": ["gradients"]}}, "allow.scores"),
        ({"allow": {"models": "logistic"}}, "allow.models"),
        ({"allow": {"code": True}}, "allow.code"),
        ({"held_out": 1.0}, "held_out"),
        ({"silo": ""}, "silo"),
        ({"link": {}}, "link.address"),
        ({"trust": True}, "trust"),
    ],
    ids=str,
)
def test_a_fault_is_told_in_one_sentence_that_names_file_and_key(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = write_charter(tmp_path, **changes)
    with pytest.raises(SpecError) as caught:
        load_charter(path)
    assert str(caught.value).startswith(f"In the charter '{path}', ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", ["limit", "allow", "data", "silo"])
def test_a_section_that_is_missing_is_named(tmp_path: Path, section: str) -> None:
    tree = charter_tree()
    del tree[section]
    path = tmp_path / "silo.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(SpecError, match=rf"silo\.json.*{section}"):
        load_charter(path)


@pytest.mark.parametrize(
    "key", ["epsilon", "items_per_subject", "smallest_noise", "largest_clip"], ids=lambda key: f"limit.{key}"
)
def test_no_limit_is_guessed(tmp_path: Path, key: str) -> None:
    tree = charter_tree()
    del tree["limit"][key]
    path = tmp_path / "silo.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(SpecError, match=rf"limit\.{key}"):
        load_charter(path)


@pytest.mark.parametrize("slip", [True, "4"])
@pytest.mark.parametrize("key", ["epsilon", "items_per_subject"])
def test_no_limit_is_a_truth_or_text(tmp_path: Path, key: str, slip: object) -> None:
    with pytest.raises(SpecError, match=rf"limit\.{key}: it should be a valid"):
        load_charter(write_charter(tmp_path, limit={key: slip}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"silo = ", "is not valid"),
        (b"[limit]\nepsilon = 1\nepsilon = 9\n", "is not valid"),
        (b"silo = \xff\xfe", "cannot be read"),
        (b'silo = "FILL IN"\n', "silo still says 'FILL IN'"),
        (b"", "silo is missing"),
    ],
)
def test_a_file_that_is_no_charter_is_refused_by_name(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "silo.toml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_charter(path)
    assert f"he charter '{path}'" in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no charter .*nowhere\.toml"):
        load_charter(tmp_path / "nowhere.toml")


def test_blanks_must_be_filled_wherever_they_are(tmp_path: Path) -> None:
    path = write_charter(tmp_path, limit={"items_per_subject": "FILL IN"}, allow={"models": [{"name": "FILL IN"}]})
    with pytest.raises(SpecError, match=r"limit.items_per_subject still says 'FILL IN' \(and 1 more\)"):
        load_charter(path)


def test_a_policy_that_nobody_knows_is_refused_when_the_silo_opens(tmp_path: Path) -> None:
    charter = load_charter(write_charter(tmp_path, allow={"policies": ["subject_pd"]}))
    with pytest.raises(SpecError, match="did you mean 'subject_dp'"), open_silo(charter):
        pass


def test_data_that_breaks_its_bound_is_refused_where_the_charter_says_so(tmp_path: Path) -> None:
    charter = load_charter(write_charter(tmp_path, limit={"items_per_subject": 2, "surplus": "refuse"}))
    with pytest.raises(DataError, match="more than items_per_subject = 2"), open_silo(charter):
        pass


def test_data_is_held_to_its_bound_otherwise(tmp_path: Path) -> None:
    with open_silo(load_charter(write_charter(tmp_path, limit={"items_per_subject": 2}))) as host:
        assert host.silo.data.largest_subject == 2
        assert host.silo.facts.items_per_subject == 2
        assert host.silo.facts.drops_surplus


def test_held_out_subjects_are_never_trained_on(tmp_path: Path) -> None:
    with open_silo(load_charter(write_charter(tmp_path, held_out=0.25))) as host:
        assert host.held_out is not None
        assert not set(host.held_out.subjects) & set(host.silo.data.subjects)
        assert host.held_out.subject_count + host.silo.data.subject_count == 40


def test_a_charter_declares_sizes_and_the_refusal_says_how(tmp_path: Path) -> None:
    path = write_charter(tmp_path)
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("sizes")))
    with pytest.raises(SpecError, match=r"^The charter of silo 'north' declares no sizes, .* \[sizes\], items = 4000 "):
        load_charter(path)


def test_a_silo_of_a_federation_trains_in_one_process(tmp_path: Path) -> None:
    path = write_charter(tmp_path, compute={"ranks_per_silo": 2})
    with pytest.raises(SpecError, match=r"trains in one process: leave out compute\.ranks_per_silo"):
        load_charter(path)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_what_is_told_of_a_silo_is_what_its_owner_declares(tmp_path: Path, noise: str) -> None:
    """With half of the people, the very same is told; the counts are for the operator alone."""
    path = write_charter(tmp_path, limit={"noise": noise}, sizes={"items": 7000, "subjects": 900})
    told, counted = [], []
    for people in (40, 20):
        write_table(tmp_path / "visits.csv", people)
        with open_silo(load_charter(path)) as host:
            told.append(public_facts(host))
            counted.append(operator_status(host)["counted (not private)"])
    assert told[0] == told[1]
    assert (told[0]["items"], told[0]["subjects"]) == (7000, 900)
    assert counted[0].endswith("of 40 subjects")
    assert counted[1].endswith("of 20 subjects")


def test_the_seed_of_a_charter_decides_nothing_where_noise_is_secure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained_on(seed: int, noise: str, silo: str = "north") -> list[int]:
        path = write_charter(tmp_path, seed=seed, silo=silo, held_out=0.5, limit={"noise": noise})
        with open_silo(load_charter(path)) as host:
            return sorted(set(host.silo.data.subjects.tolist()))

    assert trained_on(1, "seeded") != trained_on(2, "seeded")
    assert trained_on(1, "secure") == trained_on(2, "secure")
    assert trained_on(1, "secure") != trained_on(1, "secure", silo="south")
    here = trained_on(1, "secure")
    monkeypatch.setenv("WHOLEGRAIN_STATE", str(tmp_path / "another machine"))
    assert trained_on(1, "secure") != here
