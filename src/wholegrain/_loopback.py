"""HTTP servers for this machine alone."""

import sys
from http.server import ThreadingHTTPServer
from typing import Any

LOOPBACK = "127.0.0.1"


class LoopbackServer(ThreadingHTTPServer):
    """A server that says nothing of a caller who hangs up."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback, unless it only says that somebody has left."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
