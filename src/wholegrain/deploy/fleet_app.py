"""What the server's open port answers: the eight calls of Flower's fleet API that a silo makes, and nothing else.

Flower's SuperLink serves its control API (start runs, register keys) and its runtime API on the same port. Neither is
part of this app. A doorkeeper stands before what is left: whoever does not present a key of the roster, and the
present time signed with it, is turned away before a byte of the request's body is read.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from wholegrain.deploy.fleet_calls import CALLS, answer_call
from wholegrain.deploy.fleet_protocol import WELCOME

log = logging.getLogger("wholegrain.server")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIX = "/v1/fleet/"
PATHS = frozenset(PREFIX + call for call in CALLS)
PULL = "/v1/fleet/pull-messages"
HOLD = 2.0
"""Seconds for which a silo's look for a message is held where there is none: it then need not look so often."""

PAUSE = 0.02
"""Seconds between two looks on its behalf."""

MOST_BYTES = 64 * 2**20
"""Bytes of one request; Flower cuts parameters into pieces of some megabytes."""


SHORT = 2**20
"""Bytes of a request up to which it is answered at once, without a thread of its own."""


@dataclass(frozen=True, eq=False)
class Doorkeeper:
    """Lets through what a silo of the roster may ask, and closes the door on everything else.

    `is_admitted` knows the keys of the roster, and `has_mail` whether a message waits for one of them.
    """

    state: LinkState
    is_admitted: Callable[[bytes], bool]
    has_mail: Callable[[bytes], bool]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI asks for it."""
        if scope["type"] != "http":
            return
        status = self._refusal(scope)
        if status is None:
            scope.get("state", {}).get(WELCOME, _ignore)()
            await self._answer(scope, receive, send)
            return
        caller = (scope.get("client") or ("?",))[0]
        log.warning("turned away: %s (status %d)", caller, status)
        await _respond(send, status, b"", (b"connection", b"close"))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request of a silo to its handler."""
        key = _key(dict(scope["headers"]))
        if scope["path"] == PULL:
            await self._wait_for_mail(key)
        body = await _read_body(receive)
        if body is None:
            return
        asked = (scope["path"].removeprefix(PREFIX), key, body, self.state)
        status, content = answer_call(*asked) if len(body) <= SHORT else await asyncio.to_thread(answer_call, *asked)
        await _respond(send, status, content, (b"content-type", PROTOBUF_MEDIA_TYPE.encode()))

    async def _wait_for_mail(self, key: bytes) -> None:
        for _ in range(int(HOLD / PAUSE)):
            if self.has_mail(key):
                return
            await asyncio.sleep(PAUSE)

    def _refusal(self, scope: Scope) -> int | None:
        """The status with which a request is turned away; None where it is let through."""
        if scope["method"] != "POST" or scope["path"] not in PATHS:
            return 404
        headers = dict(scope["headers"])
        if len(headers) != len(scope["headers"]):
            return 400  # of two headers with one name, everybody who reads them may take another
        if not self.is_admitted(_key(headers)):
            return 403
        if not _is_signed(headers):
            return 401
        if b"content-encoding" in headers:
            return 415
        try:
            length = int(headers.get(b"content-length", b""))
        except ValueError:
            return 411
        return None if 0 <= length <= MOST_BYTES else 413


def _ignore() -> None:
    """Nobody keeps count of strangers."""


def _key(headers: Mapping[bytes, bytes]) -> bytes:
    """The public key that a request presents, empty where there is none."""
    return _decode_header(headers, FLEET_HTTP_PUBLIC_KEY_HEADER)


def _is_signed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request carries the present time, signed with its key.

    It need not be a secret which keys are in the roster: others know them.
    """
    try:
        said = headers.get(TIMESTAMP_HEADER.lower().encode(), b"")
        age = (now() - datetime.fromisoformat(said.decode("ascii"))).total_seconds()
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            return False
        signature = _decode_header(headers, FLEET_HTTP_SIGNATURE_HEADER)
        return verify_signature(bytes_to_public_key(_key(headers)), said, signature)
    except (ValueError, TypeError):
        return False


def _decode_header(headers: Mapping[bytes, bytes], name: str) -> bytes:
    """A header of a request that is in base64."""
    try:
        return base64.b64decode(headers.get(name.lower().encode(), b""), validate=True)
    except binascii.Error:
        return b""


async def _read_body(receive: Receive) -> bytes | None:
    """The body of a request; None where the caller has left, or sends more than it announced."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MOST_BYTES:
            return None
    return bytes(body)


async def _respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})
