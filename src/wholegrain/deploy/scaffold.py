"""`federation init`: the files with which a federation of several silos begins.

    server/   ca.crt  server.crt  server.key  spec.toml  keys/SILO.pub  app/pyproject.toml  flower/config.toml
    SILO/     ca.crt  key  silo.toml

A silo's folder is all that its operator needs; the server's holds public keys only. What nobody but an operator can
know (data, columns, bounds) is a blank that must be filled in.
"""

import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from wholegrain import _check
from wholegrain._files import open_private, private_folder
from wholegrain.deploy.certificates import Authority, silo_key
from wholegrain.errors import RunError, SpecError
from wholegrain.runs.spec import BLANK

FIRST_PORT = 9401
MOST_PORT = 65535
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
        if len(set(self.silos)) != len(self.silos) or not self.silos:
            raise SpecError("A federation needs silos with different names.")
        for silo in self.silos:
            if not silo.replace("-", "").replace("_", "").isalnum() or silo == "server":
                raise SpecError(f"'{silo}' cannot be a silo's name here: letters, digits, - and _, and not 'server'.")
        if _check.count("port", self.port) > MOST_PORT:
            raise SpecError(f"{self.port} is no port: there are {MOST_PORT} of them.")
        if not HOST_NAME.fullmatch(self.host) and not _is_address(self.host):
            raise SpecError(f"'{self.host}' is neither a host's name nor an address.")

    @property
    def address(self) -> str:
        """Where silos reach the server."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def write_federation(founding: FederationDraft, folder: Path) -> None:
    """Write everything into a new folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"'{folder}' already exists and is not empty; choose another folder.")
    authority = Authority.new("wholegrain federation")
    try:
        _write_server(founding, authority, folder / "server")
        for number, silo in enumerate(founding.silos):
            _write_silo(founding, authority, folder, silo, FIRST_PORT + number)
    except OSError as error:
        raise RunError(f"The folder '{folder}' cannot be written: {error.strerror}.") from error


def _write_server(founding: FederationDraft, authority: Authority, folder: Path) -> None:
    names = tuple(dict.fromkeys([founding.host, "localhost", "127.0.0.1"]))
    identity = authority.server(names)
    _write(folder / "ca.crt", authority.pem)
    _write(folder / "server.crt", identity.certificate)
    _write(folder / "server.key", identity.key, secret=True)
    _write(folder / "spec.toml", _server_spec(founding).encode())
    _write(folder / "app" / "pyproject.toml", _app(folder).encode())
    _write(folder / "flower" / "config.toml", _flower(founding, folder).encode())


def _write_silo(founding: FederationDraft, authority: Authority, folder: Path, silo: str, port: int) -> None:
    identity = silo_key()
    _write(folder / silo / "ca.crt", authority.pem)
    _write(folder / silo / "key", identity.key, secret=True)
    _write(folder / "server" / "keys" / f"{silo}.pub", identity.certificate)
    _write(folder / silo / "silo.toml", _charter(founding, silo, port).encode())


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    private_folder(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    handle = open_private(path, flags) if secret else os.open(path, flags, 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _server_spec(founding: FederationDraft) -> str:
    silos = "\n".join(
        f'[[federation.silos]]\nname = "{silo}"\nitems = "{BLANK}"\nsubjects = "{BLANK}"\n'
        f'items_per_subject = "{BLANK}"\n'
        for silo in founding.silos
    )
    return f"""# What the federation trains. The server holds no data: sizes below are what silos declare.
seed = 0

[model]
name = "logistic"
# start = "backbone.safetensors"   # parameters trained on public data; every silo needs a copy of its own
# train = "head"                   # what is trained from there: "head", "low_rank" (with rank = 4) or "all"

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
fewest_silos = {len(founding.silos) // 2 + 1}

[federation]
shape = ["{BLANK}"]     # of one input: the number of features, or [channels, height, width]
classes = "{BLANK}"
patience = 600.0   # seconds that a silo has in a round

{silos}"""


def _charter(founding: FederationDraft, silo: str, port: int) -> str:
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

[limit]
epsilon = {EPSILON}            # the most that one subject may ever lose by this silo's releases from this data
delta = 1e-5
items_per_subject = "{BLANK}"
smallest_noise = 1.0
largest_clip = 1.0
most_steps = 10

[sizes]                  # public: about what is trained on, in round numbers, as the server's spec has them
items = "{BLANK}"
subjects = "{BLANK}"

[ledger]
data = "{BLANK}"       # the data's name, which stays: all that is ever released from it is on one account

[allow]
policies = ["subject_dp"]
models = [{{ name = "logistic" }}]   # or from public parameters, by this silo's own copy of their file:
# models = [{{ name = "upright_cnn", start = "backbone.safetensors", train = "head" }}]
scores = []              # "accuracy", "loss": not private; by default none leaves the silo

[link]
address = "{founding.address}"
certificates = "ca.crt"
key = "key"
port = {port}              # on this machine only, between the silo's own two processes
"""


def _app(folder: Path) -> str:
    return f"""[project]
name = "wholegrain-federation"
version = "1.0.0"
description = "Subject-level differential privacy: the server's half; silos run their own installation"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "federation"

[tool.flwr.app.components]
serverapp = "wholegrain.deploy.server:app"
clientapp = "wholegrain.deploy.client:app"

[tool.flwr.app.config]
spec = {_quote_path(folder / "spec.toml")}
out = {_quote_path(folder / "run")}
"""


def _flower(founding: FederationDraft, folder: Path) -> str:
    return f"""[superlink]
default = "federation"

[superlink.federation]
address = "127.0.0.1:{founding.port}"
root-certificates = {_quote_path(folder / "ca.crt")}
"""


def _quote_path(path: Path) -> str:
    """A path as TOML writes it, which is how JSON does."""
    return json.dumps(str(path.resolve()), ensure_ascii=False)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
