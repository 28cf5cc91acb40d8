"""The report of a run that goes on, served to this machine alone."""

import hashlib
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from wholegrain.errors import WholegrainError
from wholegrain.report.page import page
from wholegrain.report.run_reader import read_runs

LOOPBACK = "127.0.0.1"
WATCHED = ("rounds.jsonl", "summary.json", "run.json")


def stamp(folders: list[Path]) -> str:
    """What changes when there is something new to see."""
    facts = []
    for folder in folders:
        for name in WATCHED:
            path = folder / name
            status = path.stat() if path.exists() else None
            facts.append((name, status and (status.st_size, status.st_mtime_ns)))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    """Two things to ask for: the page, and whether it is new."""

    def __init__(self, folders: list[Path], *arguments: Any) -> None:
        self.folders = folders
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer one request."""
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
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: a browser asks every second."""


def _page(folders: list[Path]) -> str:
    # The stamp first: what changes while the page is made is then new to it.
    now = stamp(folders)
    return page(read_runs(folders), live=now)


def server(folders: list[Path], port: int) -> ThreadingHTTPServer:
    """The server, bound to loopback; port 0 takes any that is free."""
    return ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, folders))
