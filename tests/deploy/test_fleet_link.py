"""A silo's line to its server: whatever comes over it, the silo goes on, and says what is wrong."""

import datetime
import gzip
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from wholegrain.deploy import fleet_link
from wholegrain.deploy.certificates import Authority, silo_key
from wholegrain.deploy.charter import LinkSpec
from wholegrain.deploy.fleet_link import FleetClient, FleetLine, UnreadableError, open_client
from wholegrain.errors import RunError

Answer = Callable[[httpx.Request], httpx.Response]
LINK = LinkSpec(address="127.0.0.1:1", key="unused")


@pytest.fixture
def client(tmp_path: Path) -> FleetClient:
    (tmp_path / "ca.crt").write_bytes(Authority.new("x").pem)
    return open_client(LINK.model_copy(update={"certificates": str(tmp_path / "ca.crt")}), silo_key(), 2**20)


def line_to(client: FleetClient, answer: Answer) -> FleetLine:
    """A line at whose other end this function answers."""
    hooks = client._client.event_hooks
    client._client = httpx.Client(transport=httpx.MockTransport(answer), event_hooks=hooks)
    return FleetLine(client, Node(node_id=1), 2**20)


def message(**metadata: object) -> bytes:
    """A response that brings one message with this metadata."""
    sent = MessageProto(metadata=Metadata(**metadata), content=ProtoRecordDict())
    return PullMessagesResponse(messages_list=[sent]).SerializeToString()


def trouble(line: FleetLine) -> str:
    """What the silo says of the line, and tries again."""
    with pytest.raises(httpx.HTTPError) as raised:
        line.next_message()
    return fleet_link._trouble(LINK, raised.value)


@pytest.mark.parametrize("body", [b"garbage", b"\xff" * 1000, b"\n" * 999], ids=["words", "bits", "lines"])
def test_a_response_that_cannot_be_read_does_not_end_the_silo(client: FleetClient, body: bytes) -> None:
    line = line_to(client, lambda request: httpx.Response(200, content=body))
    with pytest.raises(UnreadableError):
        line.next_message()
    assert "its response cannot be read" in trouble(line)


@pytest.mark.parametrize("kind", ["", "x" * 10**5, "train\n", "../train"])
def test_a_message_that_cannot_be_unpacked_does_not_end_the_silo(client: FleetClient, kind: str) -> None:
    line = line_to(client, lambda request: httpx.Response(200, content=message(message_type=kind)))
    assert "sends a message that cannot be read" in trouble(line)


@pytest.mark.parametrize("ttl", [-1.0, 0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("created", [0.0, float("nan"), float("-inf")])
def test_a_message_out_of_time_is_answered_like_any_other(client: FleetClient, ttl: float, created: float) -> None:
    sent = message(message_type="train", ttl=ttl, created_at=created)
    found = line_to(client, lambda request: httpx.Response(200, content=sent)).next_message()
    assert found is not None
    assert not found.content
    assert Message(RecordDict(), reply_to=found).metadata.message_type == "train"


def test_a_response_that_never_ends_is_not_read(client: FleetClient) -> None:
    line = line_to(client, lambda request: httpx.Response(200, content=bytes(2**21)))
    assert "longer than" in trouble(line)


class Bomb(httpx.SyncByteStream):
    """A response of some hundred bytes that unpacks, in two steps, to 256 MiB."""

    packed = gzip.compress(gzip.compress(bytes(2**28), 1))

    def __iter__(self) -> Iterator[bytes]:
        yield self.packed


@pytest.mark.parametrize("encoding", ["gzip, gzip", "gzip", "x-unknown"])
def test_a_packed_response_is_refused_before_it_is_unpacked(client: FleetClient, encoding: str) -> None:
    headers = {"content-encoding": encoding}
    line = line_to(client, lambda request: httpx.Response(200, headers=headers, stream=Bomb()))
    assert len(Bomb.packed) < 20_000
    tracemalloc.start()
    try:
        assert "nothing is unpacked here" in trouble(line)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50e6


def test_a_redirect_is_not_followed(client: FleetClient) -> None:
    asked: list[str] = []

    def elsewhere(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(307, headers={"location": "https://203.0.113.9/steal"})

    trouble(line_to(client, elsewhere))
    assert asked == ["https://127.0.0.1:1/v1/fleet/pull-messages"]


FORGED = "x\x1b[2J\x9b31m\u2028\u202e" + "y" * 60_000
ELSEWHERE = "https://203.0.113.9/x 2030-01-01 all is well\u2028\u202e" + "y" * 60_000


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: httpx.Response(307, headers={"location": ELSEWHERE.encode()}),
        lambda request: httpx.Response(500, extensions={"reason_phrase": FORGED.encode()}),
    ],
    ids=["redirect", "reason"],
)
def test_a_server_cannot_write_lines_or_control_characters_into_a_silos_log(
    client: FleetClient, answer: Answer
) -> None:
    said = trouble(line_to(client, answer))
    assert said.isprintable()
    assert len(said) < 500


def test_a_key_that_is_not_in_the_roster_ends_the_silo_and_a_signature_out_of_time_does_not(
    client: FleetClient,
) -> None:
    """A server that was started anew, or whose clock differs, does not take a signature; both can pass."""
    refused = line_to(client, lambda request: httpx.Response(403))
    with pytest.raises(RunError, match="does not know this silo's key"):
        trouble(refused)
    assert "this machine's clock is more than 5 seconds ahead" in trouble(
        line_to(client, lambda request: httpx.Response(401))
    )


def test_every_request_is_signed_with_the_time(client: FleetClient) -> None:
    seen: list[httpx.Headers] = []

    def keep(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return httpx.Response(200, content=PullMessagesResponse().SerializeToString())

    line = line_to(client, keep)
    assert line.next_message() is None
    line.client.PullMessages(PullMessagesRequest(node=line.node))
    stamps = [next(value for name, value in each.items() if "timestamp" in name) for each in seen]
    assert len({datetime.datetime.fromisoformat(each) for each in stamps}) == 2
