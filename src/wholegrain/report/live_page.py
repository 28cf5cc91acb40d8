"""The report of a run that goes on, served to this machine alone."""

import contextlib
import hashlib
import sys
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from wholegrain.errors import WholegrainError
from wholegrain.report.page import page
from wholegrain.report.run_reader import read_runs
from wholegrain.runs.run_folder import IDENTITY, ROUNDS, SUMMARY

LOOPBACK = "127.0.0.1"
WATCHED = (ROUNDS, SUMMARY, IDENTITY)


def stamp(folders: list[Path]) -> str:
    """What changes when there is something new to see."""
    facts = []
    for folder in folders:
        for name in WATCHED:
            path = folder / name
            status = path.stat() if path.exists() else None
            facts.append((name, status and (status.st_size, status.st_mtime_ns)))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


class _PageHandler(BaseHTTPRequestHandler):
    """Two things to ask for: the page, and whether it is new."""

    def __init__(self, folders: list[Path], *arguments: Any) -> None:
        self.folders = folders
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer one request; a browser that has left meanwhile is no trouble."""
        with contextlib.suppress(ConnectionError):
            self._answer()

    def _answer(self) -> None:
        if not self._is_for_us():
            self.send_error(403)
            return
        found: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("text/html; charset=utf-8", lambda: _page(self.folders)),
            "/stamp": ("text/plain; charset=utf-8", lambda: stamp(self.folders)),
        }
        if self.path not in found:
            self.send_error(404)
            return
        kind, make = found[self.path]
        try:
            content, status = make(), 200
        except WholegrainError as error:
            content, kind, status = str(error), "text/plain; charset=utf-8", 500
        body = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.end_headers()
        self.wfile.write(body)

    def _is_for_us(self) -> bool:
        """Whether the request names this address.

        A page of elsewhere can point a name of its own at 127.0.0.1 and have the browser of this machine call it there
        (DNS rebinding); the Host header then says that name.
        """
        port = self.connection.getsockname()[1]
        return self.headers.get("Host") in {f"{name}:{port}" for name in (LOOPBACK, "localhost")}

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: a browser asks every second."""


def _page(folders: list[Path]) -> str:
    # The stamp first: what changes while the page is made is then new to it.
    now = stamp(folders)
    return page(read_runs(folders), live=now)


class _Server(ThreadingHTTPServer):
    """A server that says nothing of a browser that hangs up."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback, unless it only says that somebody has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def server(folders: list[Path], port: int) -> ThreadingHTTPServer:
    """The server, bound to loopback; port 0 takes any that is free."""
    return _Server((LOOPBACK, port), partial(_PageHandler, folders))
