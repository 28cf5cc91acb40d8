"""`wholegrain silo`: one process that calls the server, takes its messages and answers them.

It speaks the fleet API of Flower's SuperLink with Flower's own client and needs no SuperNode. Flower would have a
SuperNode fetch a bundle of code and run it; here nothing is fetched but messages, and nothing that arrives is executed.
What a server sends may be refused, but it does not end the silo: a server that is gone is tried again.
"""

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from wholegrain import _check
from wholegrain.clipping.parameters import Layout
from wholegrain.deploy.certificates import load_private_key
from wholegrain.deploy.charter import Charter, LinkSpec, require_files
from wholegrain.deploy.silo_answers import answer, open_silo, watch_silo
from wholegrain.deploy.silo_monitor import serve_figures
from wholegrain.deploy.silo_service import SiloService
from wholegrain.errors import RunError, SpecError

log = logging.getLogger("wholegrain.silo")

PAUSE = 0.05
"""Seconds between two looks for a message; the server holds each of them until there is one, or for two seconds."""

AGAIN = 2.0
"""Seconds before a server that cannot be reached is tried again."""

BEAT = 5.0
"""Seconds between two signs of life."""

HEARTBEAT_INTERVAL = 15.0
"""What the server is told of them: after twice that without any, it takes the silo to be gone."""

OBJECT_OVERHEAD = 2**20
"""Bytes of a message beside its parameters; a longer one is not read."""

UNKNOWN_KEY, NOT_SIGNED = 403, 401
"""What the doorkeeper says to a key that is not in the roster, and Flower to a signature that does not hold."""

TAKEN = "the server still holds an earlier connection of this silo; it is given up after some seconds"

NOT_NOW = (
    "the server does not take this silo's signature: it was started anew, or this machine's clock is more than 5"
    " seconds ahead of the server's, or 5 minutes behind it"
)


class TooLongError(httpx.HTTPError):
    """A message that is longer than any that this silo could agree to."""


class PackedError(httpx.HTTPError):
    """A response with a content encoding: a few bytes of one unpack to gigabytes, and nobody here sends any."""


class UnreadableError(httpx.HTTPError):
    """A response that is not of the fleet API's form."""


class FleetClient(FleetHttpClient):
    """Flower's client of the fleet API, for which a response that cannot be read is one more trouble with the line."""

    def _unary_unary(self, **call: Any) -> Any:
        try:
            return super()._unary_unary(**call)
        except ValueError as error:
            raise UnreadableError(f"its response cannot be read: {_check.quoted(error)}") from error


def run_silo(charter: Charter, figures: int | None = None) -> None:
    """Answer the server's messages until the process is stopped, by Ctrl-C or SIGTERM.

    With a port for `figures`, serve them on loopback meanwhile.
    """
    link = require_link(charter)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.ExitStack() as stack:
        host, monitor = watch_silo(stack.enter_context(open_silo(charter)))
        if figures is not None:
            stack.enter_context(serve_figures(monitor, figures))
        log.warning("silo '%s' is ready", charter.silo)
        told = ""
        while True:
            try:
                with _connect(link, host) as line:
                    log.warning("connected to %s", link.address)
                    told = ""
                    _answer_messages(line, host)
            except (httpx.HTTPError, OSError, MemoryError) as error:
                trouble = _trouble(link, error)
                if trouble != told:  # once, however long it lasts
                    log.warning("%s; trying again", trouble)
                told = trouble
            time.sleep(AGAIN)


def require_link(charter: Charter) -> LinkSpec:
    """The link of a charter that is fit to be used."""
    link = charter.link
    if link is None:
        raise SpecError("The charter says nothing of the server: it needs the section [link].")
    require_files(link)
    if link.certificates is None or link.key is None:
        raise SpecError("The charter's [link] needs certificates and key.")
    return link


def _trouble(link: LinkSpec, error: httpx.HTTPError | OSError | MemoryError) -> str:
    """What is wrong with the line, in words; what trying again cannot mend is an error."""
    said = _check.quoted(error)
    if not isinstance(error, httpx.HTTPError):  # no descriptor, no memory: on this machine, and for a while
        return f"this machine cannot reach {link.address} now: {type(error).__name__}: {said}"
    if isinstance(error, httpx.HTTPStatusError):
        if error.response.status_code == NOT_SIGNED:
            return f"{link.address}: {NOT_NOW}"
        if error.response.status_code == UNKNOWN_KEY:
            raise RunError(
                f"The server at {link.address} does not know this silo's key: it was not admitted"
                " (`wholegrain federation add-silo`), or it was revoked."
            ) from None
        return TAKEN if error.request.url.path.endswith("activate-node") else f"{link.address}: {said}"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise RunError(
            f"The server at {link.address} has no valid certificate of this federation: {said}. Nothing was sent."
        ) from None
    return f"{link.address} cannot be reached: {said}"


@dataclass(frozen=True, eq=False)
class FleetLine:
    """A silo's line to the fleet API: messages in, answers out."""

    client: FleetClient
    node: Node
    longest: int
    """Bytes of the longest message that is read."""

    def next_message(self) -> Message | None:
        """The next message, if one waits; one that cannot be read has no content, and will be refused for that."""
        found = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return None
        envelope = _envelope(found.messages_list[0])
        run, id = envelope.metadata.run_id, envelope.metadata.message_id
        message: object = envelope
        try:
            message = inflate_object_from_contents(id, self._pull(run, found.message_object_trees[0]))
        except TooLongError as error:
            log.warning("a message was not read: %s", error)
        except httpx.HTTPError:
            raise
        except Exception as error:  # Flower unpacks what the server sent, and says in many ways that it cannot
            log.warning("a message could not be read: %s", _check.quoted(repr(error)))
        received = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=id)
        self.client.ConfirmMessageReceived(received)
        message = message if isinstance(message, Message) else envelope
        message.metadata.__dict__["_message_id"] = id
        return message

    def _pull(self, run: int, tree: ObjectTree) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        length = 0
        for part in iterate_object_tree(tree):
            request = PullObjectRequest(node=self.node, run_id=run, object_id=part.object_id)
            contents[part.object_id] = self.client.PullObject(request).object_content
            length += len(contents[part.object_id])
            if length > self.longest:
                raise TooLongError(f"it is longer than {self.longest} bytes, which any agreed model needs at most")
        return contents

    def send(self, reply: Message) -> None:
        """Hand an answer over."""
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            parts, tree = get_all_nested_objects(reply), get_object_tree(reply)
            envelope = message_to_proto(remove_content_from_message(reply) if reply.has_content() else reply)
            request = PushMessagesRequest(node=self.node, messages_list=[envelope], message_object_trees=[tree])
            asked = self.client.PushMessages(request)
            for id in asked.objects_to_push:
                self.client.PushObject(
                    PushObjectRequest(
                        node=self.node,
                        run_id=reply.metadata.run_id,
                        object_id=id,
                        object_content=parts[id].deflate(),
                        session_id=asked.session_id,
                    )
                )


def _envelope(found: MessageProto) -> Message:
    """Who asks what, before its content is fetched."""
    try:
        return message_from_proto(found)
    except Exception as error:  # as below: Flower unpacks what the server sent
        raise UnreadableError(f"it sends a message that cannot be read: {_check.quoted(repr(error))}") from error


def _answer_messages(line: FleetLine, host: SiloService) -> None:
    """Answer one message after the other, for as long as the line holds."""
    while True:
        message = line.next_message()
        if message is None:
            time.sleep(PAUSE)
            continue
        reply = answer(message, host)
        try:
            line.send(reply)
        except httpx.HTTPStatusError as error:  # the run has ended meanwhile
            log.warning("an answer was not taken: %s", _check.quoted(error))


@contextlib.contextmanager
def _connect(link: LinkSpec, host: SiloService) -> Iterator[FleetLine]:
    """A line to the server; it beats like a heart, and is closed at the end."""
    key = host.key or load_private_key(Path(link.key or "").read_bytes(), link.key or "")
    with open_client(link, key, longest(host)) as client:
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=HEARTBEAT_INTERVAL
        )
        node = Node(node_id=client.ActivateNode(request).node_id)
        with _heartbeat(link, key, node):
            try:
                yield FleetLine(client, node, longest(host))
            finally:
                with contextlib.suppress(httpx.HTTPError):
                    client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def longest(host: SiloService) -> int:
    """Bytes of the longest message that an agreed model needs."""
    link = host.charter.link
    silos = 1 + len(link.peers if link else ())
    # Of a secure sum, a message may bring shares of all pairs of silos, in base64.
    return (
        OBJECT_OVERHEAD
        + 128 * silos**2
        + 4 * max((Layout.of(each.learner.model).size for each in host.agreed), default=0)
    )


def open_client(link: LinkSpec, key: ec.EllipticCurvePrivateKey, most: int) -> FleetClient:
    """Flower's client of the fleet API, with this silo's key; it reads no response that is longer than `most`."""
    client = FleetClient.from_server_address(
        server_address=link.address,
        insecure=False,
        root_certificates=Path(link.certificates or "").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(key, key.public_key())],
    )
    client._client.follow_redirects = False
    client._client.headers["accept-encoding"] = "identity"
    client._client.event_hooks = {"response": [lambda response: _limit(response, most)]}
    return client


def _limit(response: httpx.Response, most: int) -> None:
    """Read a response up to a length; httpx itself would unpack it, and read it whole, however long."""
    if "content-encoding" in response.headers:
        response.close()
        packed = _check.quoted(response.headers["content-encoding"])
        raise PackedError(f"a response is packed ('{packed}'), and nothing is unpacked here")
    content = bytearray()
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) > most:
            response.close()
            raise TooLongError(f"a response is longer than {most} bytes, which any agreed model needs at most")
    response._content = bytes(content)


@contextlib.contextmanager
def _heartbeat(link: LinkSpec, key: ec.EllipticCurvePrivateKey, node: Node) -> Iterator[None]:
    """Tell the server now and then that the silo is there, also while it computes."""
    ended = threading.Event()

    def beat() -> None:
        beating = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_INTERVAL)
        while not ended.wait(BEAT):
            # The line itself will notice, and a machine without a descriptor or memory may have one later.
            with (
                contextlib.suppress(httpx.HTTPError, OSError, MemoryError),
                open_client(link, key, OBJECT_OVERHEAD) as client,
            ):
                client.SendNodeHeartbeat(beating)
                while not ended.wait(BEAT):
                    client.SendNodeHeartbeat(beating)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
