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
from datetime import datetime
from typing import Any

from fastapi import FastAPI
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.error import http_error_translator
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

log = logging.getLogger("wholegrain.server")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "pull-object",
    "push-object",
    "confirm-message-received",
)
PATHS = frozenset(f"/v1/fleet/{call}" for call in CALLS)
PULL = "/v1/fleet/pull-messages"
HOLD = 2.0
"""Seconds for which a silo's look for a message is held where there is none: it then need not look so often."""

PAUSE = 0.02
"""Seconds between two looks on its behalf."""

MOST_BYTES = 64 * 2**20
"""Bytes of one request; Flower cuts parameters into pieces of some megabytes."""


def fleet_app(
    states: LinkStateFactory, is_admitted: Callable[[bytes], bool], has_mail: Callable[[bytes], bool]
) -> "Doorkeeper":
    """The app of the open port, over a SuperLink's state.

    `is_admitted` knows the keys of the roster, and `has_mail` whether a message waits for one of them.
    """
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
        ],
    )
    app.state.linkstate_factory = states
    app.state.enable_supernode_auth = True
    app.include_router(router)
    return Doorkeeper(app, is_admitted, has_mail)


class Doorkeeper:
    """Lets through what a silo of the roster may ask, and closes the door on everything else."""

    def __init__(self, app: FastAPI, is_admitted: Callable[[bytes], bool], has_mail: Callable[[bytes], bool]) -> None:
        self.app, self.is_admitted, self.has_mail = app, is_admitted, has_mail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection, as ASGI asks for it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        status = self._refusal(scope)
        if status is None:
            if scope["path"] == PULL:
                await self._wait_for_mail(_key(dict(scope["headers"])))
            await self.app(scope, _limit_body(receive), send)
            return
        caller = (scope.get("client") or ("?",))[0]
        log.warning("turned away: %s (status %d)", caller, status)
        await send({"type": "http.response.start", "status": status, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b""})

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
        try:
            length = int(headers.get(b"content-length", b""))
        except ValueError:
            return 411
        return None if 0 <= length <= MOST_BYTES else 413


def _key(headers: Mapping[bytes, bytes]) -> bytes:
    """The public key that a request presents, empty where there is none."""
    return _decode_header(headers, FLEET_HTTP_PUBLIC_KEY_HEADER)


def _is_signed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request carries the present time, signed with its key.

    Flower checks this again, but only after it has read the body; and public keys are known to others.
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


def _limit_body(receive: Receive) -> Receive:
    """The body of a request up to its limit; whoever sends more than was announced is cut off."""
    left = MOST_BYTES

    async def counted() -> MutableMapping[str, Any]:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        return message if left >= 0 else {"type": "http.disconnect"}

    return counted
