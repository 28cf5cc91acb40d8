"""Who may take part, over the years: silos are added and revoked, keys and certificates renewed.

A server that runs reads its roster again when the file changes. A certificate is read when the server starts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from wholegrain import _check
from wholegrain._files import locked, write_whole
from wholegrain.deploy.admission_request import AdmissionRequest
from wholegrain.deploy.certificates import (
    Authority,
    hosts_of,
    load_private_key,
    load_public_key,
    private_text,
    silo_key,
)
from wholegrain.deploy.scaffold import require_name
from wholegrain.engines.ledger_heads import key_line
from wholegrain.errors import RunError, SpecError
from wholegrain.runs.roster import SIZES, Roster, key_body, read_roster, write_roster
from wholegrain.runs.section_files import BLANK, read_tree

ROSTER = "roster.toml"


def add_silo(server: Path, name: str, request: AdmissionRequest) -> None:
    """Put a silo into the roster, or a new key of one that is there; only its present key can vouch for a new one."""
    if request.silo != require_name(name):
        raise SpecError(f"The request is of the silo '{_check.quoted(request.silo)}', not of '{name}'.")
    with _changing(server / ROSTER):
        roster = read_roster(server / ROSTER)
        line = _line_for(roster, name, request)
        write_roster(roster.with_silo(name, line), server / ROSTER)


def _line_for(roster: Roster, name: str, request: AdmissionRequest) -> dict[str, object]:
    """What a request changes in a silo's line of the roster; a key that may not stand there is refused."""
    if roster.is_revoked(request.key):
        raise SpecError(f"The key of '{name}' was revoked; its operator has to make another.")
    for other, key in roster.keys.items():
        if key_body(key) == key_body(request.key) and other != name:
            raise SpecError(f"The key of '{name}' is that of '{other}'.")
    before = roster.keys.get(name)
    if before is not None and key_body(before) != key_body(request.key) and not request.is_signed_by(before):
        raise SpecError(
            f"The roster has another key of '{name}', which has not signed this request. If that key is lost, revoke it"
            " first."
        )
    sizes = {size: request.sizes[size] for size in SIZES if size in request.sizes}
    blanks = {} if name in roster.silos else dict.fromkeys(SIZES, BLANK)
    key = key_line(load_public_key(request.key, f"silo '{name}'"))  # without whatever was written beside it
    return {"key": key, **blanks, **sizes}


def revoke_silo(server: Path, name: str) -> None:
    """Take a silo out of the roster, for good: its key will not be admitted again."""
    with _changing(server / ROSTER):
        roster = read_roster(server / ROSTER)
        if name not in roster.silos:
            raise SpecError(f"The roster has no silo '{name}'; it has {', '.join(roster.silos) or 'none'}.")
        write_roster(roster.without(name, f"{name}, {datetime.now(UTC).date()}"), server / ROSTER)


@contextmanager
def _changing(roster: Path) -> Iterator[None]:
    """One change of the roster at a time: of two at once, the later would undo the earlier, a revocation even."""
    try:
        with locked(roster):
            yield
    except OSError as error:
        raise RunError(f"The roster '{roster}' cannot be changed: {error.strerror}.") from error


def renew_server(server: Path, authority: Path) -> None:
    """A new key and certificate of the server, for the names of the old one, from the federation's authority."""
    try:
        signer = Authority.load((authority / "ca.crt").read_bytes(), (authority / "ca.key").read_bytes())
        identity = signer.server(hosts_of((server / "server.crt").read_bytes()))
        # The key first: between the two files a crash leaves a pair that does not fit, which a start refuses.
        write_whole(server / "server.key", identity.key, private=True)
        write_whole(server / "server.crt", identity.certificate)
    except OSError as error:
        raise RunError(f"'{error.filename}' cannot be read or written: {error.strerror}.") from error
    except ValueError as error:
        raise RunError(f"The certificate cannot be renewed: {error}.") from error


def renew_silo(folder: Path) -> Path:
    """A new key of a silo, and the request that asks the server to take it in the place of the present one."""
    tree = read_tree(folder / "silo.toml", "charter")
    name = require_name(str(tree.get("silo", "")))
    sizes = _declared_sizes(tree)
    place = folder / f"{name}.request"
    try:
        former = load_private_key((folder / "key").read_bytes(), str(folder / "key"))
        key = silo_key()
        write_whole(folder / "key.former", private_text(former), private=True)
        write_whole(place, AdmissionRequest.make(name, key, sizes, former).as_json().encode())
        write_whole(folder / "key", private_text(key), private=True)
    except OSError as error:
        raise RunError(f"'{error.filename}' cannot be read or written: {error.strerror}.") from error
    return place


def _declared_sizes(tree: dict[str, object]) -> dict[str, int]:
    """The sizes that a charter declares, as far as they are filled in."""
    sizes, limit = tree.get("sizes"), tree.get("limit")
    found = {**(sizes if isinstance(sizes, dict) else {}), **(limit if isinstance(limit, dict) else {})}
    return {name: found[name] for name in SIZES if isinstance(found.get(name), int)}
