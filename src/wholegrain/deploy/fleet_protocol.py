"""HTTP on the server's open port, for connections of strangers: what they may cost is bounded before they are known.

A request's line and headers are at most 16 KiB long (h11's limit; the faster parser that uvicorn prefers has none). A
connection that has not sent a whole request yet is *silent*. A silent connection is closed after some seconds, and
where there are too many of them the oldest is closed first: whoever opens connections and says nothing cannot keep out
a silo, which says at once what it wants.
"""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

SILENCE = 10.0
"""Seconds that a new connection has to send its first request."""

MOST_SILENT = 64


class FleetProtocol(H11Protocol):
    """One connection."""

    silent: ClassVar[dict["FleetProtocol", None]] = {}
    """Connections without a request, the oldest first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection whose TLS handshake is done."""
        super().connection_made(transport)
        self.silent[self] = None
        self.loop.call_later(SILENCE, self._end_silence)
        if len(self.silent) > MOST_SILENT:
            next(iter(self.silent))._end_silence()

    def handle_events(self) -> None:
        """Whatever has arrived."""
        super().handle_events()
        if self.cycle is not None:
            self.silent.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by whomever."""
        self.silent.pop(self, None)
        super().connection_lost(exc)

    def _end_silence(self) -> None:
        if self in self.silent:
            del self.silent[self]
            self.transport.abort()
