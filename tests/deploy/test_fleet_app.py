"""The open port, called without a network: the doorkeeper, the grid behind it, and a silo's line to it."""

import asyncio
import base64
import contextlib
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.main import create_app

from deployment import task, vector, write_charter
from loopback import free_port
from wholegrain.deploy import fleet_app as doors
from wholegrain.deploy import fleet_link, fleet_listener, fleet_protocol
from wholegrain.deploy.admission_request import AdmissionRequest
from wholegrain.deploy.certificates import load_private_key, silo_key
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.fleet_app import MOST_BYTES, PATHS, Doorkeeper
from wholegrain.deploy.fleet_calls import CALLS, answer_call
from wholegrain.deploy.fleet_grid import FleetGrid
from wholegrain.deploy.fleet_server import Admission, ServerDoor, open_door
from wholegrain.deploy.membership import add_silo, revoke_silo
from wholegrain.deploy.scaffold import FederationDraft, write_federation
from wholegrain.deploy.silo_answers import open_silo
from wholegrain.engines.flower import Flower
from wholegrain.federation.messages import RoundTask, SiloUpdate

PRIVATE = silo_key()
KEY = public_key_to_bytes(PRIVATE.public_key())


@pytest.fixture
def state() -> LinkStateFactory:
    return LinkStateFactory(":flwr-in-memory:", NoOpFederationManager(), ObjectStoreFactory())


def call(app: Any, path: str, method: str = "POST", body: list[bytes] | None = None, **headers: str) -> int:
    """The status of one request, and nothing of the body is read where the door stays shut."""
    pieces = [{"type": "http.request", "body": each, "more_body": True} for each in body or []]
    pieces.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return pieces.pop(0) if pieces else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": raw, "query_string": b"",
        "root_path": "", "scheme": "https", "http_version": "1.1", "client": ("203.0.113.9", 1), "server": ("h", 1),
        "app": None,
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    left[:] = pieces
    return int(sent[0]["status"]) if sent else 0


left: list[dict[str, Any]] = []
"""What the last call left unread."""


def presented(key: bytes = KEY, at: datetime | None = None, **other: str) -> dict[str, str]:
    """Headers with a key, and a time that is signed with ours."""
    said = (at or now()).isoformat()
    headers = {
        FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(key).decode(),
        TIMESTAMP_HEADER: said,
        FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(sign_message(PRIVATE, said.encode())).decode(),
    }
    return {name.lower().replace("-", "_"): value for name, value in headers.items()} | other


def every_path() -> list[str]:
    """All that a whole SuperLink of Flower answers on its one port."""
    from fastapi.routing import iter_route_contexts

    found = {str(each.route.path) for each in iter_route_contexts(create_app().routes) if hasattr(each.route, "path")}
    return sorted(found | {"/", "/docs", "/openapi.json", "/metrics", "/v1/fleet/", "//v1/fleet/pull-messages"})


def test_only_the_fleet_api_answers_on_the_open_port(state: LinkStateFactory) -> None:
    """Even a key of the roster opens nothing else: not Flower's control API, nor its runtime API."""
    app = Doorkeeper(state.state(), lambda key: True, lambda key: True)
    paths = every_path()
    assert {"/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/push-messages"} <= set(paths)
    for path in paths:
        for method in ("GET", "POST", "PUT", "OPTIONS"):
            status = call(app, path, method, content_length="0", **presented())
            assert (status != 404) == (path in PATHS and method == "POST"), (method, path, status)


def test_a_stranger_is_turned_away_before_the_body_is_read(
    state: LinkStateFactory, caplog: pytest.LogCaptureFixture
) -> None:
    app = Doorkeeper(state.state(), lambda key: key == KEY, lambda key: True)
    stranger = public_key_to_bytes(silo_key().public_key())
    for headers in ({}, presented(stranger), presented(b""), {"x": "y"}):
        for path in PATHS:
            assert call(app, path, body=[b"x" * 1000], content_length="1000", **headers) == 403
            assert len(left) == 2
    assert "turned away: 203.0.113.9" in caplog.text


SIGNATURE = FLEET_HTTP_SIGNATURE_HEADER.lower().replace("-", "_")
TIME = TIMESTAMP_HEADER.lower().replace("-", "_")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {SIGNATURE: ""},
        {SIGNATURE: "no base64"},
        {SIGNATURE: base64.b64encode(b"forged").decode()},
        {SIGNATURE: base64.b64encode(sign_message(silo_key(), b"x")).decode()},
        {TIME: "2026-01-01T00:00:00+00:00"},
        {TIME: "2026-01-01"},
        {TIME: "now"},
        presented(at=now() - timedelta(hours=1)),
        presented(at=now() + timedelta(hours=1)),
    ],
)
def test_a_roster_key_without_a_signature_of_now_opens_nothing(
    state: LinkStateFactory, headers: dict[str, str]
) -> None:
    """Public keys are known to others: the door is shut before the body is read."""
    app = Doorkeeper(state.state(), lambda key: key == KEY, lambda key: True)
    shown = {**presented(), **headers} if headers else {name: presented()[name] for name in list(presented())[:1]}
    for path in PATHS:
        assert call(app, path, body=[b"x" * 1000], content_length="1000", **shown) == 401
        assert len(left) == 2


def test_a_request_with_two_keys_is_turned_away(state: LinkStateFactory) -> None:
    """Whoever knows a public key of the roster could show it to the doorkeeper, and another key to what is behind."""
    app = Doorkeeper(state.state(), lambda key: key == KEY, lambda key: True)
    other = presented(public_key_to_bytes(silo_key().public_key()))
    twice = {name.replace("_", "-"): value for name, value in other.items() if "key" in name}
    assert call(app, "/v1/fleet/activate-node", content_length="0", **twice, **presented()) == 400


@pytest.mark.parametrize(
    ("length", "status"), [(str(MOST_BYTES + 1), 413), (str(400 * 2**20), 413), ("-1", 413), ("many", 411), ("", 411)]
)
def test_a_message_that_is_too_long_is_not_read(state: LinkStateFactory, length: str, status: int) -> None:
    app = Doorkeeper(state.state(), lambda key: key == KEY, lambda key: True)
    assert call(app, "/v1/fleet/push-object", body=[b"x"], content_length=length, **presented()) == status
    assert len(left) == 2


def test_a_packed_request_is_not_read(state: LinkStateFactory) -> None:
    app = Doorkeeper(state.state(), lambda key: key == KEY, lambda key: True)
    headers = {"content_length": "1", "content_encoding": "gzip", **presented()}
    assert call(app, "/v1/fleet/push-object", body=[b"x"], **headers) == 415
    assert len(left) == 2


def test_a_silo_acts_for_its_own_node_alone(state: LinkStateFactory) -> None:
    """Whoever holds one key of the roster can neither activate, deactivate nor read for another's node."""
    link, other = state.state(), public_key_to_bytes(silo_key().public_key())
    own, others = (link.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0) for key in (KEY, other))
    activate = {
        key: ActivateNodeRequest(public_key=key, heartbeat_interval=30).SerializeToString() for key in (KEY, other)
    }
    assert answer_call("activate-node", KEY, activate[other], link) == (401, b"")
    assert answer_call("activate-node", KEY, activate[KEY], link)[0] == 200
    assert answer_call("activate-node", KEY, activate[KEY], link)[0] >= 400, "it is active already"
    for call, (form, _) in CALLS.items():
        if call == "activate-node":
            continue
        asked = DeactivateNodeRequest(node_id=others) if call == "deactivate-node" else form(node=Node(node_id=others))
        assert answer_call(call, KEY, asked.SerializeToString(), link) == (401, b""), call
        assert answer_call(call, KEY, b"", link) == (401, b""), call
        assert answer_call(call, KEY, b"\xff" * 9, link) == (400, b""), call
    assert answer_call("deactivate-node", KEY, DeactivateNodeRequest(node_id=own).SerializeToString(), link)[0] == 200


def test_a_call_that_fails_does_not_end_the_server(
    state: LinkStateFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    link = state.state()
    node = link.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, KEY, 0)
    monkeypatch.setattr(link, "acknowledge_node_heartbeat", None)
    beat = SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=30).SerializeToString()
    assert answer_call("send-node-heartbeat", KEY, beat, link) == (500, b"")
    assert "a call of 'send-node-heartbeat' failed" in caplog.text


def test_a_body_that_is_longer_than_announced_is_cut_off(
    state: LinkStateFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "MOST_BYTES", 1000)
    app = Doorkeeper(state.state(), lambda key: True, lambda key: True)
    body = [b"x" * 600] * 5
    assert call(app, "/v1/fleet/push-object", body=body, content_length="600", **presented()) == 0
    assert len(left) == 4


def test_a_look_for_messages_is_held_until_there_is_one(
    state: LinkStateFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "PAUSE", 0.001)
    looks = iter([False, False, True])
    app = Doorkeeper(state.state(), lambda key: True, lambda key: next(looks))
    call(app, doors.PULL, content_length="0", **presented())
    assert list(looks) == []
    monkeypatch.setattr(doors, "HOLD", 0.01)
    never = Doorkeeper(state.state(), lambda key: True, lambda key: False)
    call(never, doors.PULL, content_length="0", **presented())


# A silo and a server in one process, over TLS on loopback.


@pytest.fixture
def door(tmp_path: Path) -> Iterator[tuple[Flower, ServerDoor, Path]]:
    """A server's open port whose roster has north, and the engine behind it."""
    write_federation(FederationDraft(("north",), "127.0.0.1", port := free_port()), tmp_path / "f")
    server = tmp_path / "f" / "server"
    opened = ServerDoor("127.0.0.1", port, server / "server.crt", server / "server.key", server / "roster.toml")
    with open_door(opened) as (grid, keys):
        yield Flower(grid, {"north": task()}, 20.0, keys=keys), opened, tmp_path / "f" / "north"


@pytest.fixture
def silo(door: tuple[Flower, ServerDoor, Path]) -> Iterator[None]:
    """A silo that answers in a thread."""
    _, opened, folder = door
    link = {"address": f"127.0.0.1:{opened.port}", "certificates": "ca.crt", "key": "key"}
    path = write_charter(folder, link=link)
    ended = threading.Event()

    def work() -> None:
        with open_silo(load_charter(path)) as host:
            assert host.charter.link is not None
            with fleet_link._connect(host.charter.link, host) as line:
                while not ended.wait(0.02):
                    message = line.next_message()
                    if message is not None:
                        line.send(fleet_link.answer(message, host))

    thread = threading.Thread(target=work)
    thread.start()
    yield
    ended.set()
    thread.join(600)


def test_a_round_over_tls_within_one_process(door: tuple[Flower, ServerDoor, Path], silo: None) -> None:
    engine, *_ = door
    assert engine.wait_for({"north"}, 600) == {"north"}
    (update,) = engine.run(RoundTask(0, ("north",), 2, vector(1.0)))
    assert isinstance(update, SiloUpdate)
    assert update.vector.shape == vector().shape


def test_the_roster_is_read_again_when_its_file_changes(tmp_path: Path, state: LinkStateFactory) -> None:
    write_federation(FederationDraft(("north",), "h", 1), tmp_path / "f")
    server, link = tmp_path / "f" / "server", state.state()
    assert isinstance(link, InMemoryLinkState)
    admission = Admission(server / "roster.toml", link)
    admission.refresh()
    north = public_key_to_bytes(load_private_key((tmp_path / "f" / "north" / "key").read_bytes(), "k").public_key())
    keys, south = admission.keys, silo_key()
    assert admission.is_admitted(north)
    revoke_silo(server, "north")
    add_silo(server, "south", AdmissionRequest.make("south", south, {}))
    admission.refresh()
    assert not admission.is_admitted(north)
    assert admission.is_admitted(public_key_to_bytes(south.public_key()))
    assert set(keys) == {"south"}
    assert link.get_node_id_by_public_key(north) is None


def test_no_reply_arrives_between_the_look_for_its_parts_and_its_taking(
    state: LinkStateFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken without its parts and deleted, and its silo would count as failed."""
    link = state.state()
    assert isinstance(link, InMemoryLinkState)
    grid, could_arrive = FleetGrid(link), []

    def look(id: str) -> bool:
        other = threading.Thread(target=lambda: could_arrive.append(link.lock.acquire(blocking=False)))
        other.start()
        other.join()
        return False

    monkeypatch.setattr(grid, "_is_whole", look)
    assert list(grid.pull_messages(["a", "b"])) == []
    assert could_arrive == [False, False]


# Strangers who can open connections, and nothing more.


def connect(opened: ServerDoor) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=opened.certificate.parent / "ca.crt")
    line = socket.create_connection((opened.host, opened.port), timeout=60)
    return context.wrap_socket(line, server_hostname=opened.host)


def status(line: ssl.SSLSocket) -> bytes:
    """What the door says to a request without a key."""
    line.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
    return line.recv(100).split(b" ")[1]


@pytest.mark.parametrize("start", [b"POST /", b"POST / HTTP/1.1\r\nx: "])
def test_a_stranger_cannot_fill_the_memory_with_a_request_that_does_not_end(
    door: tuple[Flower, ServerDoor, Path], start: bytes
) -> None:
    with connect(door[1]) as line:
        line.sendall(start)
        with pytest.raises(OSError, match=r"."):
            line.sendall(b"a" * 2**26)


def test_connections_that_stay_silent_keep_nobody_out(
    door: tuple[Flower, ServerDoor, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_protocol, "MOST_STRANGERS", 8)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(door[1])) for _ in range(40)]
        assert status(stack.enter_context(connect(door[1]))) == b"403"
        assert status(silent[-1]) == b"403", "the youngest are still there"
        assert silent[0].recv(1) == b"", "the oldest were closed"


def knock(opened: ServerDoor) -> socket.socket:
    """A connection that does not even begin a TLS handshake."""
    return socket.create_connection((opened.host, opened.port), timeout=60)


def test_connections_without_a_handshake_keep_nobody_out_and_take_no_descriptors(
    door: tuple[Flower, ServerDoor, Path],
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(knock(door[1])) for _ in range(300)]
        assert status(stack.enter_context(connect(door[1]))) == b"403"
        assert silent[0].recv(1) == b"", "the oldest were closed"
        held = len(os.listdir("/proc/self/fd")) - before - len(silent)
        assert held <= fleet_protocol.MOST_STRANGERS + 10


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01"])
def test_a_handshake_that_does_not_end_is_ended(
    door: tuple[Flower, ServerDoor, Path], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(fleet_protocol, "SILENCE", 0.05)
    with knock(door[1]) as line:
        line.settimeout(20)
        line.sendall(sent)
        assert line.recv(1) == b""


def test_a_stranger_who_was_turned_away_and_does_not_hang_up_is_closed(
    door: tuple[Flower, ServerDoor, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fleet_protocol, "MOST_STRANGERS", 4)
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            assert status(stack.enter_context(connect(door[1]))) == b"403"
        assert len(os.listdir("/proc/self/fd")) - before - 40 <= 10


def test_a_server_without_descriptors_for_a_connection_goes_on_accepting(
    door: tuple[Flower, ServerDoor, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet_listener, "AGAIN", 0.02)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as line:
        line.settimeout(60)
        used = max(map(int, os.listdir("/proc/self/fd"))) + 1
        spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(used - len(os.listdir("/proc/self/fd")))]
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
        try:
            line.connect((door[1].host, door[1].port))
            end = time.monotonic() + 60
            while "connections cannot be accepted" not in caplog.text and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(0.2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for each in spare:
                os.close(each)
        assert caplog.text.count("connections cannot be accepted") == 1
        with connect(door[1]) as other:
            assert status(other) == b"403"


def test_a_connection_that_stays_silent_is_closed(
    door: tuple[Flower, ServerDoor, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_protocol, "SILENCE", 0.05)
    with connect(door[1]) as line:
        line.sendall(b"POST / HTTP/1.1\r\n")  # and never the rest
        assert line.recv(1) == b""


def test_a_roster_that_cannot_be_read_is_told_once_and_changes_nothing(
    door: tuple[Flower, ServerDoor, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, opened, _ = door
    before = dict(engine.keys or {})
    opened.roster.write_text("[silos")
    end = time.monotonic() + 60
    while "the roster is not taken" not in caplog.text and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(2.5)
    assert caplog.text.count("the roster is not taken") == 1
    assert engine.keys == before
