"""`federation init` and `federation join`: the files with which a federation of several silos begins.

    invitation.toml
    authority/  ca.crt  ca.key
    server/     ca.crt  server.crt  server.key  server.toml  spec.toml  roster.toml
    SILO/       ca.crt  key  silo.toml  SILO.request

A silo's folder is made where the silo is, from the invitation; only its request travels. What nobody but an operator
can know (data, columns, bounds) is a blank that must be filled in.
"""

import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wholegrain import _check
from wholegrain._files import open_private, private_folder, write_whole
from wholegrain.deploy.admission_request import AdmissionRequest
from wholegrain.deploy.certificates import Authority, private_text, silo_key
from wholegrain.errors import RunError, SpecError
from wholegrain.runs.roster import SIZES, Roster
from wholegrain.runs.section_files import BLANK, read_tree

MOST_PORT = 65535
LOOPBACK = ("127.0.0.1", "localhost", "::1")
EPSILON = 4.0
"""In both templates: a silo never loses more than the whole federation does, so that the server's plan fits."""

HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.IGNORECASE)


@dataclass(frozen=True)
class FederationDraft:
    """What is known of a federation before its operators fill in the rest."""

    silos: tuple[str, ...]
    host: str
    port: int

    def __post_init__(self) -> None:
        if len(set(self.silos)) != len(self.silos):
            raise SpecError("A federation needs silos with different names.")
        for silo in self.silos:
            require_name(silo)
        _require_place(self.host, self.port)

    @property
    def address(self) -> str:
        """Where silos reach the server."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Invitation:
    """What an operator needs to join: where the server is, and the authority that vouches for it. All of it is public.

    It must come over a channel that is trusted: whoever changes it can pass for the server. `peers` are the public keys
    of silos that the federation begins with; `federation add-peer` takes later ones.
    """

    address: str
    authority: str
    peers: Mapping[str, str] = field(default_factory=dict)

    def as_toml(self) -> str:
        """The file's text."""
        head = f'address = {json.dumps(self.address)}\nauthority = """\n{self.authority}"""\n'
        return f"{head}\n[peers]\n{peer_lines(self.peers)}"


def peer_lines(peers: Mapping[str, str]) -> str:
    """Public keys by silo, as lines of a section in TOML."""
    return "".join(f"{name} = {json.dumps(key)}\n" for name, key in peers.items())


def read_invitation(path: Path) -> Invitation:
    """Read an invitation, or say that it is none."""
    tree = read_tree(path, "invitation")
    address, authority = tree.get("address"), tree.get("authority")
    if not isinstance(address, str) or not isinstance(authority, str) or "BEGIN CERTIFICATE" not in authority:
        raise SpecError(f"'{path}' is no invitation: `wholegrain federation init` writes one.")
    peers = tree.get("peers", {})
    if not isinstance(peers, dict) or not all(isinstance(key, str) for key in peers.values()):
        raise SpecError(f"The peers of the invitation '{path}' are not keys by silo.")
    host, _, port = address.rpartition(":")
    _require_place(host.removeprefix("[").removesuffix("]"), int(port) if port.isascii() and port.isdigit() else 0)
    return Invitation(address, authority, {require_name(name): key for name, key in peers.items()})


def require_name(silo: str) -> str:
    """A name that can stand in files and folders."""
    if not silo.replace("-", "").replace("_", "").isalnum() or not silo.isascii() or silo in ("server", "authority"):
        raise SpecError(
            f"'{silo}' cannot be a silo's name here: letters, digits, - and _, and neither 'server' nor 'authority'."
        )
    return silo


def write_federation(founding: FederationDraft, folder: Path) -> dict[str, AdmissionRequest]:
    """Write everything into a new folder; the requests of the silos that are on the same machine."""
    _require_new(folder)
    authority = Authority.new("wholegrain federation")
    invitation = Invitation(founding.address, authority.pem.decode())
    try:
        write_file(folder / "authority" / "ca.crt", authority.pem)
        write_file(folder / "authority" / "ca.key", authority.private, secret=True)
        requests = {silo: write_silo(invitation, silo, folder / silo, {}) for silo in founding.silos}
        for silo in founding.silos:
            for peer, request in requests.items():
                if peer != silo:
                    add_peer(folder / silo, request)
        invitation = replace(invitation, peers={silo: made.key for silo, made in requests.items()})
        write_file(folder / "invitation.toml", invitation.as_toml().encode())
        roster = Roster({silo: {"key": made.key, **dict.fromkeys(SIZES, BLANK)} for silo, made in requests.items()})
        _write_server(founding, authority, roster, folder / "server")
    except OSError as error:
        raise RunError(f"The folder '{folder}' cannot be written: {error.strerror}.") from error
    return requests


def join_federation(invitation: Invitation, silo: str, folder: Path, sizes: dict[str, int]) -> AdmissionRequest:
    """Make a silo's folder where the silo is: its key, its charter to be filled in, and its request."""
    _require_new(folder)
    try:
        return write_silo(invitation, require_name(silo), folder, sizes)
    except OSError as error:
        raise RunError(f"The folder '{folder}' cannot be written: {error.strerror}.") from error


def write_silo(invitation: Invitation, silo: str, folder: Path, sizes: dict[str, int]) -> AdmissionRequest:
    """A silo's folder."""
    key = silo_key()
    request = AdmissionRequest.make(silo, key, sizes)
    write_file(folder / "ca.crt", invitation.authority.encode())
    write_file(folder / "key", private_text(key), secret=True)
    peers = {peer: line for peer, line in invitation.peers.items() if peer != silo}
    write_file(folder / "silo.toml", (_charter(invitation.address, silo, sizes) + peer_lines(peers)).encode())
    write_file(folder / f"{silo}.request", request.as_json().encode())
    return request


def add_peer(folder: Path, request: AdmissionRequest) -> None:
    """Put another silo's key into a silo's charter, at its end, where the section [link.peers] stands."""
    path, name = folder / "silo.toml", require_name(request.silo)
    tree = read_tree(path, "charter")
    peers = tree.get("link", {}).get("peers", {}) if isinstance(tree.get("link", {}), dict) else {}
    if tree.get("silo") == name:
        raise SpecError(f"The request is of the silo '{name}' itself.")
    if peers.get(name) == request.key:
        return
    if name in peers:
        raise SpecError(
            f"The charter '{path}' has another key of '{name}'; if it was renewed, change that line by hand."
        )
    text = path.read_text(encoding="utf-8")
    text += ("" if text.endswith("\n") else "\n") + peer_lines({name: request.key})
    if _peers_in(text).get(name) != request.key:
        raise SpecError(f"The charter '{path}' does not end with the section [link.peers]; add the key by hand.")
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise RunError(f"The charter '{path}' cannot be written: {error.strerror}.") from error


def _peers_in(text: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(text)["link"]["peers"]
    except (KeyError, TypeError, tomllib.TOMLDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def write_file(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Write a new file, in a folder of its owner's alone."""
    private_folder(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    handle = open_private(path, flags) if secret else os.open(path, flags, 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def server_names(host: str) -> tuple[str, ...]:
    """The names that a server's certificate is for: its own, and those of its machine."""
    return tuple(dict.fromkeys([host, "localhost", "127.0.0.1"]))


def _require_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"'{folder}' already exists and is not empty; choose another folder.")


def _write_server(founding: FederationDraft, authority: Authority, roster: Roster, folder: Path) -> None:
    identity = authority.server(server_names(founding.host))
    write_file(folder / "ca.crt", authority.pem)
    write_file(folder / "server.crt", identity.certificate)
    write_file(folder / "server.key", identity.key, secret=True)
    write_file(folder / "server.toml", _listen(founding).encode())
    write_file(folder / "spec.toml", _server_spec(founding).encode())
    write_file(folder / "roster.toml", roster.as_toml().encode())


def _listen(founding: FederationDraft) -> str:
    host = "127.0.0.1" if founding.host in LOOPBACK else "0.0.0.0"
    return f"""# The one port that the server opens. 127.0.0.1 is this machine alone, 0.0.0.0 all of its networks.
host = "{host}"
port = {founding.port}
"""


def _server_spec(founding: FederationDraft) -> str:
    return f"""# What the federation trains. The server holds no data; roster.toml has the sizes that silos declare.
seed = 0

[model]
name = "logistic"
# start = "backbone.safetensors"   # parameters trained on public data; every silo needs a copy of its own
# train = "head"                   # what is trained from there: "head", "low_rank" (with rank = 4), "biases" or "all"

[policy]
name = "subject_dp"
rate = 0.5

[privacy]
epsilon = {EPSILON}      # for a subject who may be in all silos
delta = 1e-5
noise = "secure"   # made in the silos

[ledger]
path = "ledger.sqlite"   # the server's own account of what it was given; a new `budget = "name"` begins anew

[rounds]
count = 10
steps = 2
learning_rate = 0.5
fewest_silos = {max(2, len(founding.silos) // 2 + 1)}

[federation]
roster = "roster.toml"
shape = ["{BLANK}"]     # of one input: the number of features, or [channels, height, width]
classes = "{BLANK}"
patience = 600.0   # seconds that a silo has in a round
"""


def _charter(address: str, silo: str, sizes: dict[str, int]) -> str:
    items, subjects, most = (sizes.get(name, f'"{BLANK}"') for name in SIZES)
    return f"""# What this silo agrees to. Nothing that the server sends can change it.
silo = "{silo}"

[data]
source = "table"

[data.table]
path = "{BLANK}"       # CSV or Parquet, relative to this file
subject = "{BLANK}"    # the column that says whose an item is

[data.table.target]
column = "{BLANK}"
classes = ["{BLANK}"]

[data.table.features]    # bounds or categories from knowledge, not from the data
age = {{ low = "{BLANK}", high = "{BLANK}" }}
# sex = {{ categories = ["f", "m"] }}   # one line for each column that the model may use

[limit]
epsilon = {EPSILON}            # the most that one subject may ever lose by this silo's releases from this data
delta = 1e-5
items_per_subject = {most}
smallest_noise = 1.0
largest_clip = 1.0
most_steps = 10

[sizes]                  # public: about what is trained on, in round numbers, as the server's roster has them
items = {items}
subjects = {subjects}

[ledger]
data = "{BLANK}"       # the data's name, which stays: all that is ever released from it is on one account

[allow]
policies = ["subject_dp"]
trust = ["local"]        # or "secure_sum": then nobody sees less than a sum over this silo and its peers
models = [{{ name = "logistic" }}]   # or from public parameters, by this silo's own copy of their file:
# models = [{{ name = "upright_cnn", start = "backbone.safetensors", train = "head" }}]
scores = []              # "accuracy", "loss": not private; by default none leaves the silo

[link]
address = "{address}"
certificates = "ca.crt"
key = "key"              # never leaves this machine

[link.peers]             # public keys of the other silos; `wholegrain federation add-peer` adds one at the end
"""


def _require_place(host: str, port: int) -> None:
    """Where a server can be: what is written into a charter is nothing else."""
    if _check.count("port", port) > MOST_PORT:
        raise SpecError(f"{port} is no port: there are {MOST_PORT} of them.")
    if not HOST_NAME.fullmatch(host) and not _is_address(host):
        raise SpecError(f"{host!r} is neither a host's name nor an address.")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
