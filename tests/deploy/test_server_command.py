"""`wholegrain server --check`: where a server stands, before any port is opened; exit codes that tell the truth."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from command import Command
from wholegrain.deploy.certificates import Authority
from wholegrain.deploy.scaffold import FederationDraft, write_federation
from wholegrain.runs.roster import read_roster, write_roster

SIZES = {"items": 4000, "subjects": 900, "items_per_subject": 4}


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A server's folder whose blanks are filled in."""
    write_federation(FederationDraft(("north", "south"), "127.0.0.1", 8443), tmp_path / "f")
    folder = tmp_path / "f" / "server"
    spec = folder / "spec.toml"
    spec.write_text(spec.read_text().replace('["FILL IN"]', "[3]").replace('"FILL IN"', "2"))
    roster = read_roster(folder / "roster.toml")
    write_roster(roster.with_silo("north", SIZES).with_silo("south", SIZES), folder / "roster.toml")
    return folder


def test_a_server_says_where_it_stands(wholegrain: Command, server: Path) -> None:
    told = wholegrain("server", server, "--check", "--json")
    assert told.code == 0, told.err
    facts = json.loads(told.out)
    assert facts["listens on"] == "127.0.0.1:8443"
    assert facts["silos"] == "north, south"
    assert 0 < facts["epsilon"] <= 4
    assert not (server / "run").exists()


def test_what_could_never_work_is_found_by_a_check(wholegrain: Command, server: Path) -> None:
    def refused(said: str) -> None:
        told = wholegrain("server", server, "--check")
        assert told.code == 2
        (line,) = told.err.splitlines()
        assert said in line

    authority = server.parent / "authority"
    signer = Authority.load((authority / "ca.crt").read_bytes(), (authority / "ca.key").read_bytes())
    certificate, listen = (server / "server.crt").read_bytes(), (server / "server.toml").read_text()
    expired = signer.server(("127.0.0.1",), valid=timedelta(minutes=-1))
    (server / "server.crt").write_bytes(expired.certificate)
    refused("cannot be used")  # it is of another key
    key = (server / "server.key").read_bytes()
    (server / "server.key").write_bytes(expired.key)
    refused("expired on")
    (server / "server.crt").write_bytes(certificate)
    (server / "server.key").write_bytes(key)
    (server / "server.toml").write_text("port = 0\n")
    refused("port")
    (server / "server.toml").write_text(listen)
    roster = (server / "roster.toml").read_text()
    (server / "roster.toml").write_text(roster.replace("ecdsa-sha2-nistp384 ", "ssh-rsa ", 1))
    refused("The public key of silo 'north'")
    (server / "roster.toml").unlink()
    refused("There is no roster")
