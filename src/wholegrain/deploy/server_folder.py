"""The server's folder, as `federation init` makes it: where the server listens, what it trains, and who may take part.

server.toml  spec.toml  roster.toml  ca.crt  server.crt  server.key  heads.json  run/
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cryptography import x509
from pydantic import Field, ValidationError

from wholegrain.deploy.fleet_server import ServerDoor, check_certificate, open_door, read_keys
from wholegrain.deploy.server import prepare_server, serve
from wholegrain.engines.silo_heads import SiloHeads
from wholegrain.errors import RunError, SpecError
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.section_files import Section, explain_fault, read_tree
from wholegrain.runs.spec import RunSpec, load

CONFIG, SPEC, ROSTER, RUN, HEADS = "server.toml", "spec.toml", "roster.toml", "run", "heads.json"
CERTIFICATE, KEY = "server.crt", "server.key"


class ListenSpec(Section):
    """server.toml: the address that silos call; 127.0.0.1 is for this machine alone, 0.0.0.0 for every network."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8443


@dataclass(frozen=True)
class ServerFolder:
    """A server's folder whose files were read."""

    path: Path
    spec: RunSpec
    door: ServerDoor

    def run(self) -> RunResult:
        """Play the run, or what is left of it, for whoever of the roster connects."""
        heads = SiloHeads.open(self.path / HEADS)
        heads.save()  # where it cannot be written, no silo pays first
        with open_door(self.door) as (grid, keys):
            return serve(self.spec, self.path / RUN, grid, keys, heads)


def open_folder(path: Path) -> ServerFolder:
    """Read a server's folder; whatever is wrong with it is said now."""
    tree = read_tree(path / CONFIG, "server's file")
    try:
        listen = ListenSpec.model_validate(tree)
    except ValidationError as error:
        raise SpecError(explain_fault(error, ListenSpec, f"'{path / CONFIG}'")) from error
    door = ServerDoor(listen.host, listen.port, path / CERTIFICATE, path / KEY, path / ROSTER)
    return ServerFolder(path, load(path / SPEC), door)


def server_status(folder: ServerFolder) -> dict[str, Any]:
    """Where the server stands: its plan, its silos and its certificate, checked without opening the port."""
    check_certificate(folder.door)
    keys = read_keys(folder.door.roster)
    prepared = prepare_server(folder.spec)
    missing = {facts.name for _, facts in prepared.plan.rows} - set(keys)
    if missing:
        raise SpecError(f"The roster '{folder.door.roster}' has no key of {', '.join(sorted(missing))}.")
    guarantee = prepared.plan.guarantees[0]
    return {
        "listens on": f"{folder.door.host}:{folder.door.port}",
        "certificate valid until": certificate_end(folder.door.certificate).date().isoformat(),
        "silos": ", ".join(keys),
        "rounds": folder.spec.rounds.count,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": guarantee.unit.value,
        "run": str(folder.path / RUN),
    }


def certificate_end(path: Path) -> datetime:
    """Until when a certificate is valid; one that has expired is an error."""
    try:
        end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise RunError(f"The certificate '{path}' cannot be read: {error}.") from error
    if end <= datetime.now(UTC):
        raise RunError(
            f"The certificate '{path}' has expired on {end.date()}; `wholegrain federation renew` makes one."
        )
    return end
