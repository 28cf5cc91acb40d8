"""HTTP on the server's open port, for connections of strangers: what they may cost is bounded before they are known.

A request's line and headers are at most 16 KiB long (h11's limit; the faster parser that uvicorn prefers has none).
Whoever has connected is a *stranger* until a request with a key of the roster has come: while the TLS handshake has not
begun, while it lasts, after it, and when it was turned away and does not hang up. A stranger has some seconds. Where
there are too many, the oldest goes first: whoever opens connections cannot keep out a silo, which says at once who it
is.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SILENCE = 10.0
"""Seconds that a stranger has, from the first byte of its connection on."""

MOST_STRANGERS = 64

WELCOME = "welcome"
"""Under which a request's state has what to call once its sender is known."""


class Strangers:
    """Connections of unknown callers, the oldest first, each with its deadline."""

    def __init__(self) -> None:
        self._deadlines: dict[FleetProtocol, asyncio.TimerHandle] = {}

    def add(self, caller: "FleetProtocol") -> None:
        """Give somebody some seconds."""
        self._deadlines[caller] = caller.loop.call_later(SILENCE, self._end, caller)
        if len(self._deadlines) > MOST_STRANGERS:
            self._end(next(iter(self._deadlines)))

    def remove(self, caller: "FleetProtocol") -> None:
        """Somebody is known, or has left."""
        deadline = self._deadlines.pop(caller, None)
        if deadline is not None:
            deadline.cancel()

    def _end(self, caller: "FleetProtocol") -> None:
        self.remove(caller)
        caller.end()


class FleetProtocol(H11Protocol):
    """One connection, made before its TLS handshake."""

    def __init__(self, strangers: Strangers, left: Callable[["FleetProtocol"], None], **server: Any) -> None:
        super().__init__(**server)
        self.strangers, self.left = strangers, left
        self.app_state = {**self.app_state, WELCOME: lambda: strangers.remove(self)}
        self.handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The TLS handshake is done."""
        self.handshake = None
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by whomever."""
        self.left(self)
        super().connection_lost(exc)

    def end(self) -> None:
        """Close the connection at once, however far it has come."""
        if self.handshake is not None:
            self.handshake.cancel()
        else:
            self.transport.abort()
