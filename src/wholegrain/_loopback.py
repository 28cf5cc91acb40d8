"""HTTP servers for this machine alone."""

import contextlib
import socket
import sys
import threading
from http.server import ThreadingHTTPServer
from typing import Any

LOOPBACK = "127.0.0.1"

MOST_OPEN = 32
"""Connections at once: of more, the oldest is closed. Each has a thread and a descriptor."""


class LoopbackServer(ThreadingHTTPServer):
    """A server that says nothing of a caller who hangs up, and of which nobody takes more than some connections."""

    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        self._lock = threading.Lock()
        self._open: dict[Any, None] = {}
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a caller in a thread; the oldest one gives way where there are too many."""
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > MOST_OPEN else None
            if oldest is not None:
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread finds the end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A caller was answered, or has left."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback, unless it only says that somebody has left."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
