"""The report of a run that goes on, served to this machine alone."""

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from wholegrain import _check
from wholegrain._loopback import LOOPBACK, LoopbackServer
from wholegrain.errors import WholegrainError
from wholegrain.report.page import content, page
from wholegrain.report.run_reader import RunRecord, may_begin_here, name_folders, read_run
from wholegrain.runs.folder_lock import is_locked
from wholegrain.runs.run_folder import IDENTITY, ROUNDS, SUMMARY, RunFolder

log = logging.getLogger("wholegrain.report")

WATCHED = (ROUNDS, SUMMARY, IDENTITY)


def stamp(folders: list[Path]) -> str:
    """What changes when there is something new to see."""
    facts: list[tuple[str, object]] = []
    for folder in folders:
        for name in WATCHED:
            path = folder / name
            status = path.stat() if path.exists() else None
            facts.append((name, status and (status.st_size, status.st_mtime_ns)))
        facts.append(("at work", is_locked(folder)))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@dataclass
class LiveRuns:
    """The runs in some folders, read again only where something has changed."""

    folders: list[Path]
    _known: dict[str, tuple[str, RunRecord]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def waiting(self) -> list[str]:
        """Folders in which a run may still begin."""
        return [folder.name for folder in self.folders if may_begin_here(folder)]

    def read(self) -> list[RunRecord]:
        """The runs that have begun, as they are now."""
        with self._lock:
            named = zip(self.folders, name_folders(self.folders), strict=True)
            return [self._read(folder, name) for folder, name in named if not may_begin_here(folder)]

    def _read(self, folder: Path, name: str) -> RunRecord:
        now = stamp([folder])
        if name not in self._known or self._known[name][0] != now:
            # What an attacker can do takes seconds to compute: it is told when the run is at its end.
            self._known[name] = now, read_run(folder, name, curves=RunFolder.open(folder).finished)
        return self._known[name][1]


class _PageHandler(BaseHTTPRequestHandler):
    """Three things to ask for: the page, what of it changes, and whether it has changed."""

    def __init__(self, live: LiveRuns, *arguments: Any) -> None:
        self.live = live
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
            "/": ("text/html; charset=utf-8", lambda: _page(self.live)),
            "/content": ("text/html; charset=utf-8", lambda: content(self.live.read(), self.live.waiting)),
            "/stamp": ("text/plain; charset=utf-8", lambda: stamp(self.live.folders)),
        }
        if self.path not in found:
            self.send_error(404)
            return
        kind, make = found[self.path]
        try:
            text, status = make(), 200
        except WholegrainError as error:
            text, kind, status = str(error), "text/plain; charset=utf-8", 500
        except Exception as error:  # told where the page is read; the next change is another chance
            log.debug("The page cannot be made.", exc_info=True)
            text = f"The page cannot be made now: {_check.reason(error)}."
            kind, status = "text/plain; charset=utf-8", 500
        body = text.encode()
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


def _page(live: LiveRuns) -> str:
    # The stamp first: what changes while the page is made is then new to it.
    now = stamp(live.folders)
    return page(live.read(), live=now, waiting=live.waiting)


def server(folders: list[Path], port: int) -> ThreadingHTTPServer:
    """The server, bound to loopback; port 0 takes any that is free."""
    return LoopbackServer((LOOPBACK, port), partial(_PageHandler, LiveRuns(folders)))
