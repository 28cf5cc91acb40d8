"""The server's open port: Flower's fleet API over TLS, for the silos of the roster alone, in a thread of this process.

The roster is read again whenever its file changes: a key that was revoked is turned away within seconds, and one that
was added is let in.
"""

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager

from wholegrain.deploy.certificates import load_public_key
from wholegrain.deploy.fleet_app import Doorkeeper
from wholegrain.deploy.fleet_grid import FleetGrid
from wholegrain.deploy.fleet_listener import MOST_CONNECTIONS, FleetServer, open_sockets, require_files
from wholegrain.deploy.fleet_protocol import MOST_STRANGERS, FleetProtocol
from wholegrain.deploy.server import Keys
from wholegrain.errors import RunError, WholegrainError
from wholegrain.runs.roster import read_roster

log = logging.getLogger("wholegrain.server")

LOOK = 1.0
"""Seconds between two looks at the roster."""

STARTING = 30.0
"""Seconds that the port has to open."""

PAUSE = 0.02


@dataclass(frozen=True)
class ServerDoor:
    """Where the server listens, with which certificate, and for whom."""

    host: str
    port: int
    certificate: Path
    key: Path
    roster: Path


@dataclass(eq=False)
class Admission:
    """The roster's keys by silo, as the doorkeeper, Flower's state and the engine know them; they change in place."""

    path: Path
    state: InMemoryLinkState
    keys: dict[str, EllipticCurvePublicKey] = field(default_factory=dict)
    _admitted: frozenset[bytes] = frozenset()
    _stamp: tuple[int, int] | None = None

    def is_admitted(self, key: bytes) -> bool:
        """Whether a key is in the roster now."""
        return key in self._admitted

    def has_mail(self, key: bytes) -> bool:
        """Whether a message waits for the node of a key."""
        node = self.state.node_public_key_to_node_id.get(key)
        return any(
            message.metadata.dst_node_id == node and not message.metadata.delivered_at
            for message in list(self.state.message_ins_store.values())
        )

    def refresh(self) -> None:
        """Admit who is new in the roster, and turn away who is not in it any more."""
        status = self.path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        found = read_keys(self.path)
        wanted = frozenset(map(public_key_to_bytes, found.values()))
        for key in self._admitted - wanted:
            self._forget(key)
        for key in wanted - self._admitted:
            if self.state.get_node_id_by_public_key(key) is None:
                self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
        gone = [name for name, key in self.keys.items() if found.get(name) != key]
        for name in gone:
            log.warning("the key of silo '%s' is not in the roster any more", name)
            del self.keys[name]
        self.keys.update(found)
        self._admitted, self._stamp = wanted, stamp

    def _forget(self, key: bytes) -> None:
        node = self.state.get_node_id_by_public_key(key)
        if node is not None:
            self.state.delete_node(NOOP_FLWR_AID, node)


def read_keys(roster: Path) -> dict[str, EllipticCurvePublicKey]:
    """The public keys of a roster by silo; one that cannot be read is an error."""
    found = read_roster(roster)
    return {name: load_public_key(line, f"silo '{name}' in the roster '{roster}'") for name, line in found.keys.items()}


def check_certificate(door: ServerDoor) -> ssl.SSLContext:
    """A TLS context with the server's certificate and key, or an error that says what is wrong with them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(door.certificate, door.key)
    except OSError as error:  # ssl.SSLError is one
        raise RunError(f"The certificate '{door.certificate}' and its key cannot be used: {error}.") from error
    return context


@contextlib.contextmanager
def open_door(door: ServerDoor) -> Iterator[tuple[FleetGrid, Keys]]:
    """The open port, for as long as the context lasts: the grid behind it, and the roster's keys as they are now."""
    logging.getLogger("flwr").setLevel(logging.WARNING)  # it would tell of every call
    require_files()
    context = check_certificate(door)
    stores = ObjectStoreFactory()
    states = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), stores)
    state = states.state()
    assert isinstance(state, InMemoryLinkState)
    admission = Admission(door.roster, state)
    admission.refresh()
    grid = FleetGrid(state)
    ended = threading.Event()
    config = uvicorn.Config(
        Doorkeeper(state, admission.is_admitted, lambda key: ended.is_set() or admission.has_mail(key)),
        host=door.host,
        port=door.port,
        log_config=None,  # its words go where ours go
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=MOST_CONNECTIONS + MOST_STRANGERS,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
        lifespan="off",
        http=FleetProtocol,
        ws="none",
        loop="asyncio",
        ssl_context_factory=lambda *_: context,
    )
    with _listening(config), _keep_alive(grid, admission, ended):
        log.warning("listening on %s:%d for %s", door.host, door.port, ", ".join(admission.keys) or "nobody yet")
        yield grid, admission.keys


@contextlib.contextmanager
def _listening(config: uvicorn.Config) -> Iterator[None]:
    server, sockets = FleetServer(config), open_sockets(config.host, config.port)
    thread = threading.Thread(target=server.run, args=[sockets], daemon=True)
    thread.start()
    end = time.monotonic() + STARTING
    while not server.started and thread.is_alive() and time.monotonic() < end:
        time.sleep(PAUSE)
    if not server.started:
        raise RunError(f"The server does not answer on {config.host}:{config.port}; its log says why.")
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(5)


@contextlib.contextmanager
def _keep_alive(grid: FleetGrid, admission: Admission, ended: threading.Event) -> Iterator[None]:
    """Keep Flower's run alive, and the roster as its file is."""

    def keep() -> None:
        told = ""
        while not ended.wait(LOOK):
            try:
                grid.beat()
                admission.refresh()
                told = ""
            except (OSError, MemoryError, WholegrainError) as error:  # half written, or mistaken: what was known stays
                if str(error) != told:  # once, however long it lasts
                    log.error("the roster is not taken: %s", error)
                told = str(error)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5)
