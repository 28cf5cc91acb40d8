"""`federation init`: keys for their owners alone, certificates that hold, and templates that wait for knowledge."""

import contextlib
import os
import ssl
import stat
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wholegrain.cli.app import app
from wholegrain.deploy.admission_request import read_request
from wholegrain.deploy.certificates import Authority, load_private_key, load_public_key
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.scaffold import FederationDraft, write_federation
from wholegrain.errors import RunError, SpecError
from wholegrain.policies.guarantees import federation_epsilon
from wholegrain.policies.policy import FixedNoise
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.planning import plan_federation
from wholegrain.runs.roster import read_roster
from wholegrain.runs.spec import load
from wholegrain.runs.spec_sections import ModelSpec

SILOS = ("north", "south", "West_2")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "federation"
    write_federation(FederationDraft(SILOS, "fl.example.org", 8443), folder)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_party_has_its_files_and_no_others(federation: Path) -> None:
    files = {str(path.relative_to(federation)) for path in federation.rglob("*") if path.is_file()}
    server = {"ca.crt", "server.crt", "server.key", "server.toml", "spec.toml", "roster.toml"}
    expected = {"invitation.toml", "authority/ca.crt", "authority/ca.key"} | {f"server/{name}" for name in server}
    own = {f"{silo}/{name}" for silo in SILOS for name in ("ca.crt", "key", "silo.toml", f"{silo}.request")}
    assert files == expected | own


@pytest.mark.parametrize("mask", [0, 0o022])
def test_folders_and_keys_are_closed_to_others_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_federation(FederationDraft(("a", "b"), "localhost", 8443), tmp_path / "f")
    finally:
        os.umask(before)
    assert {mode(path) for path in (tmp_path / "f").rglob("*") if path.is_dir()} == {0o700}
    assert {mode(path) for path in (tmp_path / "f").rglob("key")} == {0o600}
    assert mode(tmp_path / "f" / "server" / "server.key") == 0o600


def test_private_keys_are_for_their_owner_alone(federation: Path) -> None:
    private = {federation / "server" / "server.key", federation / "authority" / "ca.key"}
    private |= {federation / silo / "key" for silo in SILOS}
    for path in private:
        assert mode(path) == 0o600
    for path in federation.rglob("*"):
        if path.is_file() and path not in private:
            assert b"PRIVATE" not in path.read_bytes()


def test_private_keys_are_never_readable_by_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_federation(FederationDraft(("a",), "h", 1), tmp_path / "f")
    finally:
        os.umask(before)
    assert mode(tmp_path / "f" / "a" / "key") == mode(tmp_path / "f" / "server" / "server.key") == 0o600


def test_the_server_knows_each_silos_public_key_and_no_private_one(federation: Path) -> None:
    roster = read_roster(federation / "server" / "roster.toml")
    assert tuple(roster.silos) == SILOS
    for silo in SILOS:
        private = load_private_key((federation / silo / "key").read_bytes(), "key")
        assert load_public_key(roster.keys[silo], silo) == private.public_key()
        assert read_request(federation / silo / f"{silo}.request").key == roster.keys[silo]
    assert len(set(roster.keys.values())) == len(SILOS)


def test_all_silos_trust_the_same_authority_whose_key_only_its_folder_has(federation: Path) -> None:
    authority = (federation / "server" / "ca.crt").read_bytes()
    assert all((federation / silo / "ca.crt").read_bytes() == authority for silo in SILOS)
    key = (federation / "authority" / "ca.key").read_bytes()
    assert Authority.load(authority, key).pem == authority
    assert [path for path in federation.rglob("*") if path.is_file() and path.read_bytes() == key] == [
        federation / "authority" / "ca.key"
    ]


def shake_hands(server: Path, authority: Path, host: str) -> None:
    """A TLS handshake in memory, as strict as the library can be."""
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.verify_flags |= ssl.VERIFY_X509_STRICT
    ours.load_verify_locations(authority)
    theirs.load_cert_chain(server / "server.crt", server / "server.key")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(down, up, server_hostname=host)
    peer = theirs.wrap_bio(up, down, server_side=True)
    for _ in range(3):
        for side in (client, peer):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert client.version() == "TLSv1.3"


@pytest.mark.parametrize("host", ["fl.example.org", "localhost", "127.0.0.1"])
def test_the_servers_certificate_holds_for_its_host_and_for_this_machine(federation: Path, host: str) -> None:
    shake_hands(federation / "server", federation / "north" / "ca.crt", host)


@pytest.mark.parametrize("host", ["other.example.org", "example.org", "127.0.0.2"])
def test_the_servers_certificate_holds_for_nobody_else(federation: Path, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(federation / "server", federation / "north" / "ca.crt", host)


def test_another_federations_authority_is_not_trusted(federation: Path, tmp_path: Path) -> None:
    write_federation(FederationDraft(("north",), "fl.example.org", 8443), tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(federation / "server", tmp_path / "other" / "north" / "ca.crt", "fl.example.org")


@pytest.mark.parametrize("host", ["::1", "192.0.2.7", "a" * 63 + "." + "b" * 63 + ".example.org"])
def test_a_server_may_be_reached_by_address_or_by_a_long_name(tmp_path: Path, host: str) -> None:
    write_federation(FederationDraft(("a",), host, 8443), tmp_path / "f")
    shake_hands(tmp_path / "f" / "server", tmp_path / "f" / "a" / "ca.crt", host)
    address = tomllib.loads((tmp_path / "f" / "a" / "silo.toml").read_text())["link"]["address"]
    assert address == ("[::1]:8443" if host == "::1" else f"{host}:8443")


def test_templates_are_refused_until_their_blanks_are_filled(federation: Path) -> None:
    for silo in SILOS:
        with pytest.raises(SpecError, match=r"silo\.toml' is unfinished: data\.table\.path still says 'FILL IN'"):
            load_charter(federation / silo / "silo.toml")
    with pytest.raises(SpecError, match=r"spec\.toml' is unfinished: .* still says 'FILL IN'"):
        load(federation / "server" / "spec.toml")


def test_a_template_with_its_blanks_filled_is_a_careful_charter(federation: Path, tmp_path: Path) -> None:
    text = (federation / "north" / "silo.toml").read_text()
    for blank in ("low", "high"):
        text = text.replace(f'{blank} = "FILL IN"', f"{blank} = {3 if blank == 'high' else 0}")
    for blank in ("items_per_subject", "items", "subjects"):
        text = text.replace(f'\n{blank} = "FILL IN"', f"\n{blank} = 5")
    text = text.replace('classes = ["FILL IN"]', 'classes = ["no", "yes"]').replace("FILL IN", "known")
    (tmp_path / "silo.toml").write_text(text)
    charter = load_charter(tmp_path / "silo.toml")
    assert charter.silo == "north"
    assert charter.limit.noise == "secure"
    assert charter.allow.scores == ()
    assert charter.link is not None
    assert charter.link.key == str(tmp_path / "key")


def test_the_templates_show_how_to_start_from_public_parameters(federation: Path) -> None:
    """The lines that wait to be uncommented are about the same file, and of the form that is read."""
    server, silo = ((federation / name).read_text() for name in ("server/spec.toml", "north/silo.toml"))
    for text in (server, silo):
        assert "backbone.safetensors" in text
    asked = tomllib.loads(server.replace("# start", "start").replace("# train", "train"))["model"]
    assert ModelSpec.model_validate(asked).train == "head"
    plain = 'models = [{ name = "logistic" }]'
    (model,) = tomllib.loads(silo.replace(plain, "").replace("# models", "models"))["allow"]["models"]
    assert ModelSpec.model_validate(model).start == asked["start"]


def test_every_silo_calls_the_same_server(federation: Path) -> None:
    links = [tomllib.loads((federation / silo / "silo.toml").read_text())["link"] for silo in SILOS]
    assert {link["address"] for link in links} == {"fl.example.org:8443"}


@pytest.mark.parametrize(("host", "listens"), [("fl.example.org", "0.0.0.0"), ("127.0.0.1", "127.0.0.1")])
def test_a_server_for_this_machine_alone_listens_on_loopback(tmp_path: Path, host: str, listens: str) -> None:
    write_federation(FederationDraft((), host, 9000), tmp_path / "f")
    assert tomllib.loads((tmp_path / "f" / "server" / "server.toml").read_text()) == {"host": listens, "port": 9000}


def test_a_majority_of_silos_makes_a_round(federation: Path) -> None:
    assert "fewest_silos = 2\n" in (federation / "server" / "spec.toml").read_text()


@pytest.mark.parametrize("content", ["file in it", "is a file"])
def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "f"
    if content == "is a file":
        folder.write_text("mine")
    else:
        folder.mkdir()
        (folder / "mine").touch()
    with pytest.raises(RunError, match="already exists and is not empty"):
        write_federation(FederationDraft(("a",), "h", 1), folder)
    assert folder.is_file() or [path.name for path in folder.iterdir()] == ["mine"]


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    write_federation(FederationDraft(("a",), "h", 1), tmp_path)
    assert (tmp_path / "a" / "key").exists()


@pytest.mark.parametrize(
    "silos",
    [
        ("a", "a"),
        ("server",),
        ("authority",),
        ("ä",),
        ("a b",),
        ("",),
        ("../a",),
        ("a/b",),
        (".a",),
        ("-",),
        ("a\n",),
        ('a"',),
    ],
)
def test_bad_names_are_refused(silos: tuple[str, ...]) -> None:
    with pytest.raises(SpecError):
        FederationDraft(silos, "h", 8443)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_bad_ports_are_refused(port: int) -> None:
    with pytest.raises(SpecError, match="port"):
        FederationDraft(("a",), "h", port)


@pytest.mark.parametrize("host", ["", "a b", 'x"y', "a\nb", "ü.de", "-a", "a..b", "a.", "h:1", "a" * 254, "[::1]"])
def test_bad_hosts_are_refused(host: str) -> None:
    with pytest.raises(SpecError, match="neither a host's name nor an address"):
        FederationDraft(("a",), host, 8443)


def test_the_command_says_who_gets_what(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    done = CliRunner().invoke(app, ["federation", "init", str(folder), "--silo", "a", "--silo", "b", "--host", "h"])
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0] == f"Server:     {folder / 'server'} (fill in spec.toml and roster.toml)"
    assert lines[3:] == [f"Silo:       {folder / silo} (fill in silo.toml)" for silo in "ab"]


def test_the_templates_fit_each_other(federation: Path, tmp_path: Path) -> None:
    """A silo that keeps the template's limit can pay for all that the template's spec asks of it."""
    charter = tomllib.loads((federation / "north" / "silo.toml").read_text())
    for name in ("spec.toml", "roster.toml"):
        text = (federation / "server" / name).read_text().replace('["FILL IN"]', "[3]").replace('"FILL IN"', "50")
        (tmp_path / name).write_text(text)
    spec = load(tmp_path / "spec.toml")
    assert spec.federation is not None
    assert spec.ledger.path == str(tmp_path / "ledger.sqlite")
    plan = plan_federation(spec, spec.federation, accountant("pld"))
    (policy, facts), *_ = plan.rows
    assert isinstance(policy.noise, FixedNoise)
    assert policy.noise.multiplier >= charter["limit"]["smallest_noise"]
    assert spec.rounds.steps <= charter["limit"]["most_steps"]
    steps = plan.horizon.releases()[facts.name]
    limit = charter["limit"]["epsilon"]
    as_it_comes = plan.accountant.as_filter(limit)  # a silo does not know what will be asked of it
    alone = federation_epsilon([(policy, facts)], {facts.name: steps}, Unit.SUBJECT, 1, as_it_comes, plan.delta)
    assert alone <= limit
