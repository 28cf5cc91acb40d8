"""The roster: one line for each silo, and what is refused in it; requests, revocation and renewal."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from command import Command
from wholegrain.deploy import membership
from wholegrain.deploy.admission_request import ALGORITHM, AdmissionRequest, read_request
from wholegrain.deploy.certificates import fingerprint, hosts_of, load_private_key, public_line, silo_key
from wholegrain.deploy.scaffold import FederationDraft, join_federation, read_invitation, write_federation
from wholegrain.errors import RunError, SpecError
from wholegrain.runs.roster import Roster, read_roster, write_roster
from wholegrain.runs.spec import load

SIZES = {"items": 4000, "subjects": 900, "items_per_subject": 4}


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    write_federation(FederationDraft(("north",), "fl.example.org", 8443), tmp_path / "f")
    return tmp_path / "f"


def join(federation: Path, name: str = "south", **sizes: int) -> AdmissionRequest:
    folder = federation.parent / f"{name} at home"
    invitation = read_invitation(federation / "invitation.toml")
    join_federation(invitation, name, folder, sizes or SIZES)
    return read_request(folder / f"{name}.request")


def test_a_roster_is_written_as_it_is_read(tmp_path: Path) -> None:
    key, former = public_line(silo_key()), public_line(silo_key())
    roster = Roster({"north": {"key": key, **SIZES}}, {former: 'south, "2026"'})
    write_roster(roster, tmp_path / "roster.toml")
    assert read_roster(tmp_path / "roster.toml") == roster
    lines = (tmp_path / "roster.toml").read_text().splitlines()
    assert [line for line in lines if line.startswith("north = ") and key in line and "900" in line]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("silos = 3", r"needs the section \[silos\]"),
        ("[silos]\nnorth = 3", r"needs the section \[silos\]"),
        ("[silos]\nnorth = {}", "'north' has no key"),
        ('[silos]\nnorth = { key = "a" }\nsouth = { key = "a" }', "two silos have the same key"),
        ('[silos]\nnorth = { key = "a" }\n[revoked]\na = "yesterday"', "the key of 'north' is revoked"),
        ("[others]", "sections other than"),
        ("[", "is not valid"),
    ],
)
def test_a_roster_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "roster.toml").write_text(text)
    with pytest.raises(SpecError, match=said):
        read_roster(tmp_path / "roster.toml")


def test_a_new_key_begins_no_new_run_and_a_new_size_does(federation: Path) -> None:
    server = federation / "server"
    text = (server / "spec.toml").read_text().replace('["FILL IN"]', "[3]").replace('"FILL IN"', "2")
    (server / "spec.toml").write_text(text)
    with pytest.raises(SpecError, match=r"roster\.toml' is unfinished: silos\.north\.items still says 'FILL IN'"):
        load(server / "spec.toml")
    roster = read_roster(server / "roster.toml").with_silo("north", SIZES)
    digests = []
    for line in ({}, {"key": public_line(silo_key())}, {"items": 5000}):
        roster = roster.with_silo("north", line)
        write_roster(roster, server / "roster.toml")
        digests.append(load(server / "spec.toml").digest)
    assert digests[0] == digests[1] != digests[2]
    with (server / "spec.toml").open("a") as file:
        file.write('[[federation.silos]]\nname = "a"\nitems = 1\nsubjects = 1\n')
    with pytest.raises(SpecError, match=r"both federation\.roster and federation\.silos"):
        load(server / "spec.toml")


def test_a_silo_joins_by_a_request_and_its_key_stays_at_home(federation: Path) -> None:
    request = join(federation)
    membership.add_silo(federation / "server", "south", request)
    assert read_roster(federation / "server" / "roster.toml").silos["south"] == {"key": request.key, **SIZES}
    home = federation.parent / "south at home"
    private = (home / "key").read_bytes()
    assert load_private_key(private, "key").public_key() is not None
    assert oct((home / "key").stat().st_mode)[-3:] == "600"
    assert private not in (home / "south.request").read_bytes()
    assert not [path for path in federation.rglob("*") if path.is_file() and private in path.read_bytes()]
    assert (home / "ca.crt").read_bytes() == (federation / "authority" / "ca.crt").read_bytes()


def test_sizes_that_a_request_leaves_open_wait_to_be_filled_in(federation: Path) -> None:
    membership.add_silo(federation / "server", "south", join(federation, items=10))
    line = read_roster(federation / "server" / "roster.toml").silos["south"]
    assert (line["items"], line["subjects"]) == (10, "FILL IN")


@pytest.mark.parametrize("field", ["silo", "key", "sizes", "signature"])
def test_a_request_that_was_changed_on_its_way_is_refused(federation: Path, field: str) -> None:
    join(federation)
    path = federation.parent / "south at home" / "south.request"
    content = json.loads(path.read_text())
    other = {"silo": "north", "key": public_line(silo_key()), "sizes": {"items": 1}, "signature": "00"}
    path.write_text(json.dumps({**content, field: other[field]}))
    with pytest.raises(SpecError, match="is not signed with its own key"):
        read_request(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"silo": 1}', "[" * 99999])
def test_what_is_no_request_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text)
    with pytest.raises(SpecError, match="is no request"):
        read_request(tmp_path / "r")
    with pytest.raises(SpecError, match="cannot be read"):
        read_request(tmp_path / "none")


def test_nobody_takes_the_name_or_the_key_of_another(federation: Path) -> None:
    server = federation / "server"
    before = (server / "roster.toml").read_text()
    impostor = AdmissionRequest.make("north", silo_key(), SIZES)
    with pytest.raises(SpecError, match="has another key of 'north', which has not signed this request"):
        membership.add_silo(server, "north", impostor)
    with pytest.raises(SpecError, match="of the silo 'north', not of 'east'"):
        membership.add_silo(server, "east", impostor)
    own = load_private_key((federation / "north" / "key").read_bytes(), "key")
    with pytest.raises(SpecError, match="is that of 'north'"):
        membership.add_silo(server, "east", AdmissionRequest.make("east", own, SIZES))
    assert (server / "roster.toml").read_text() == before


def test_a_revoked_key_never_comes_back(federation: Path) -> None:
    server = federation / "server"
    request = read_request(federation / "north" / "north.request")
    membership.revoke_silo(server, "north")
    assert read_roster(server / "roster.toml").silos == {}
    with pytest.raises(SpecError, match="was revoked"):
        membership.add_silo(server, "north", request)
    with pytest.raises(SpecError, match="has no silo 'north'"):
        membership.revoke_silo(server, "north")
    membership.add_silo(server, "north", AdmissionRequest.make("north", silo_key(), SIZES))
    assert "north" in read_roster(server / "roster.toml").silos


def signed_as(key: ec.EllipticCurvePrivateKey, silo: str, line: str) -> AdmissionRequest:
    """A request that spells its key in its own way."""
    draft = AdmissionRequest(silo, line, SIZES)
    return replace(draft, signature=key.sign(draft.said, ALGORITHM))


@pytest.mark.parametrize("spelling", ["{} a comment", "{}  ", "{} \t x"])
def test_a_key_that_is_spelled_otherwise_is_the_same_key(federation: Path, tmp_path: Path, spelling: str) -> None:
    server = federation / "server"
    key = load_private_key((federation / "north" / "key").read_bytes(), "key")
    line = spelling.format(public_line(key))
    (tmp_path / "r").write_text(signed_as(key, "east", line).as_json())
    with pytest.raises(SpecError, match="is that of 'north'"):
        membership.add_silo(server, "east", read_request(tmp_path / "r"))
    membership.revoke_silo(server, "north")
    (tmp_path / "r").write_text(signed_as(key, "north", line).as_json())
    with pytest.raises(SpecError, match="was revoked"):
        membership.add_silo(server, "north", read_request(tmp_path / "r"))
    twice = Roster({"north": {"key": public_line(key)}, "east": {"key": line}})
    write_roster(twice, tmp_path / "twice.toml")
    with pytest.raises(SpecError, match="two silos have the same key"):
        read_roster(tmp_path / "twice.toml")
    write_roster(Roster({"north": {"key": line}}, {public_line(key): "stolen"}), tmp_path / "revoked.toml")
    with pytest.raises(SpecError, match="is revoked"):
        read_roster(tmp_path / "revoked.toml")


def test_a_silo_renews_its_key_and_its_former_key_vouches_for_it(federation: Path) -> None:
    server, silo = federation / "server", federation / "north"
    before = read_roster(server / "roster.toml").keys["north"]
    request = read_request(membership.renew_silo(silo))
    membership.add_silo(server, "north", request)
    after = read_roster(server / "roster.toml").keys["north"]
    key = load_private_key((silo / "key").read_bytes(), "key")
    assert after == public_line(key) != before
    assert public_line(load_private_key((silo / "key.former").read_bytes(), "key")) == before


def test_a_server_renews_its_certificate_for_the_same_names(federation: Path) -> None:
    server = federation / "server"
    before = (server / "server.crt").read_bytes(), (server / "server.key").read_bytes()
    mask = os.umask(0)
    try:
        membership.renew_server(server, federation / "authority")
    finally:
        os.umask(mask)
    after = (server / "server.crt").read_bytes(), (server / "server.key").read_bytes()
    assert not set(before) & set(after)
    assert oct((server / "server.key").stat().st_mode)[-3:] == "600"
    assert hosts_of(after[0]) == hosts_of(before[0]) == ("fl.example.org", "localhost", "127.0.0.1")
    authority = x509.load_pem_x509_certificate((federation / "north" / "ca.crt").read_bytes())
    x509.load_pem_x509_certificate(after[0]).verify_directly_issued_by(authority)


def test_a_certificate_is_renewed_by_its_own_authority_alone(federation: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        membership.renew_server(federation / "server", tmp_path / "nowhere")
    other = tmp_path / "other"
    write_federation(FederationDraft((), "h", 1), other)
    (other / "authority" / "ca.crt").write_bytes((federation / "authority" / "ca.crt").read_bytes())
    with pytest.raises(RunError, match="do not belong together"):
        membership.renew_server(federation / "server", other / "authority")


def test_the_commands_tell_both_operators_the_same_fingerprint(
    wholegrain: Command, federation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(federation)
    told = wholegrain("federation", "join", "invitation.toml", "south", "--out", "home", "--items", "10")
    assert told.code == 0
    mark = fingerprint(read_request(Path("home/south.request")).key)
    assert mark in told.out
    told = wholegrain("federation", "add-silo", "south", "home/south.request")
    assert told.code == 0
    assert mark in told.out
    assert wholegrain("federation", "renew", "home").code == 0
    assert wholegrain("federation", "add-silo", "south", "home/south.request").code == 0
    assert wholegrain("federation", "renew", "server").code == 0
    assert wholegrain("federation", "revoke", "south").code == 0
    for arguments, said in (
        (("renew", "."), "is the folder of neither"),
        (("revoke", "south"), "has no silo 'south'"),
        (("join", "server/server.toml", "x"), "is no invitation"),
        (("join", "invitation.toml", "authority", "--out", "new"), "cannot be a silo's name"),
    ):
        told = wholegrain("federation", *arguments)
        assert told.code == 2
        assert said in told.err


@pytest.mark.parametrize(
    "sizes",
    [
        {"items": None},
        {"items": {"a": 1}},
        {"items": [1]},
        {"items": "\ud800"},
        {"items": True},
        {"items": 1.5},
        {"items": 0},
        {"items": -1},
        {"items": 10**30},
        {"items": float("nan")},
    ],
)
def test_a_request_cannot_spoil_the_roster_by_its_sizes(federation: Path, tmp_path: Path, sizes: dict) -> None:
    """Whoever asks to be admitted signs what they like; what is not a size never reaches the server's file."""
    (tmp_path / "r").write_text(AdmissionRequest.make("east", silo_key(), sizes).as_json())
    with pytest.raises(SpecError, match="cannot be meant"):
        read_request(tmp_path / "r")


def test_a_request_cannot_spoil_the_roster_by_what_stands_beside_its_key(federation: Path, tmp_path: Path) -> None:
    server, key = federation / "server", silo_key()
    line = f'{public_line(key)} \x7f\x1b[31m", x = "'
    (tmp_path / "r").write_text(signed_as(key, "east", line).as_json())
    membership.add_silo(server, "east", read_request(tmp_path / "r"))
    assert read_roster(server / "roster.toml").keys["east"] == public_line(key)


def test_a_roster_with_names_of_any_kind_is_written_as_it_is_read(tmp_path: Path) -> None:
    names = ("north.1", "St. Anna", "a\x7fb", 'quote"', "ñ")
    roster = Roster({name: {"key": public_line(silo_key())} for name in names})
    write_roster(roster, tmp_path / "roster.toml")
    assert read_roster(tmp_path / "roster.toml") == roster


def test_two_changes_of_the_roster_at_once_are_both_made(federation: Path) -> None:
    """Of two who read, change and write the file at once, one would undo what the other did: a revocation, say."""
    server = federation / "server"
    requests = [AdmissionRequest.make(f"silo{number}", silo_key(), SIZES) for number in range(8)]
    tasks = [threading.Thread(target=membership.add_silo, args=(server, each.silo, each)) for each in requests]
    tasks.append(threading.Thread(target=membership.revoke_silo, args=(server, "north")))
    for each in tasks:
        each.start()
    for each in tasks:
        each.join()
    roster = read_roster(server / "roster.toml")
    assert set(roster.silos) == {each.silo for each in requests}
    assert len(roster.revoked) == 1


@pytest.mark.parametrize(
    "address", ['h:1"\n[limit]\nepsilon = 99', "h", "h:0", "h:99999", "h:١", ":1", "a b:1", "h\n:1", "../h:1"]
)
def test_an_invitation_writes_nothing_but_an_address_into_a_charter(federation: Path, address: str) -> None:
    path = federation / "invitation.toml"
    path.write_text(path.read_text().replace('"fl.example.org:8443"', json.dumps(address)))
    with pytest.raises(SpecError, match=r"port|address"):
        read_invitation(path)
