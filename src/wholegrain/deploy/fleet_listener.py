"""How connections to the server's open port are accepted: never more at once than there are descriptors to spare.

asyncio's own server accepts whoever comes, and tells nobody before the TLS handshake is done; thousands of connections
that begin none would take every descriptor of the process, and its ledger would have none left.
"""

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable

import uvicorn

from wholegrain import _check
from wholegrain.deploy import fleet_protocol
from wholegrain.deploy.fleet_protocol import FleetProtocol, Strangers
from wholegrain.errors import RunError

log = logging.getLogger("wholegrain.server")

MOST_CONNECTIONS = 256
"""Connections of silos; a request on one more is told to come back."""

MOST_OPEN = MOST_CONNECTIONS + 2 * fleet_protocol.MOST_STRANGERS
"""Connections with those of strangers, and those that are being closed; more wait in the system's queue."""

FILES = 1024
"""Descriptors that the process must be allowed: those above, and more than as many for ledger and run."""

QUEUE = 1024
PAUSE = 0.02
AGAIN = 0.5
"""Seconds before the port is tried again when the system has no descriptor, or no memory, for a connection."""


def require_files() -> None:
    """See to it that the process may open enough files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        return
    if hard != resource.RLIM_INFINITY and hard < FILES:
        raise RunError(f"A server needs {FILES} open files, and is allowed {hard}: raise the limit (ulimit -n).")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets at all addresses of a host."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
        made = [socket.create_server(address, family=family, backlog=QUEUE) for family, address in addresses]
    except OSError as error:
        raise RunError(
            f"The server cannot listen on {host}:{port} ({error.strerror or error}); is something else there?"
        ) from error
    for each in made:
        each.setblocking(False)
    return made


class FleetListener:
    """Accepts connections at one socket, in the place of asyncio's own server."""

    def __init__(self, listening: socket.socket, context: ssl.SSLContext, make: Callable[..., FleetProtocol]) -> None:
        self.listening, self.context, self.make = listening, context, make
        self.open: set[FleetProtocol] = set()
        self.strangers = Strangers()
        self.task = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept nobody more."""
        self.task.cancel()
        self.listening.close()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""

    async def _accept(self) -> None:
        loop, told = asyncio.get_running_loop(), False
        while True:
            while len(self.open) >= MOST_OPEN:
                await asyncio.sleep(PAUSE)
            try:
                caller, _ = await loop.sock_accept(self.listening)
                self._begin(caller)
            except (OSError, MemoryError) as error:
                if not told:
                    log.error("connections cannot be accepted (%s); trying again", _check.reason(error))
                told = True
                await asyncio.sleep(AGAIN)
                continue
            told = False
            await asyncio.sleep(0)  # so that connections that were ended are closed before others are accepted

    def _begin(self, caller: socket.socket) -> None:
        protocol = self.make(self.strangers, self._forget)
        self.open.add(protocol)
        protocol.handshake = asyncio.ensure_future(self._shake_hands(caller, protocol))
        protocol.handshake.add_done_callback(lambda task: self._end_handshake(task, protocol))
        self.strangers.add(protocol)

    async def _shake_hands(self, caller: socket.socket, protocol: FleetProtocol) -> None:
        silence = fleet_protocol.SILENCE
        await protocol.loop.connect_accepted_socket(
            lambda: protocol,
            caller,
            ssl=self.context,
            ssl_handshake_timeout=silence,
            ssl_shutdown_timeout=silence,
        )

    def _end_handshake(self, task: "asyncio.Task[None]", protocol: FleetProtocol) -> None:
        """Forget a caller whose handshake failed: whatever went wrong there, an operator could not mend it."""
        if task.cancelled() or task.exception() is not None:
            self._forget(protocol)

    def _forget(self, protocol: FleetProtocol) -> None:
        self.open.discard(protocol)
        self.strangers.remove(protocol)


class FleetServer(uvicorn.Server):
    """Uvicorn, with these listeners."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections at sockets that listen already."""
        await self.lifespan.startup()

        def make(strangers: Strangers, left: Callable[[FleetProtocol], None]) -> FleetProtocol:
            server = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
            return FleetProtocol(strangers, left, **server)

        context = self.config.ssl
        assert context is not None
        self.servers = [FleetListener(each, context, make) for each in sockets or []]  # type: ignore[misc]
        self.started = True
