"""What an operator watches while a silo runs: counts, ε spent and left, and an alarm when a budget runs low.

Everything here stays on the silo's machine: the log is a private file, and the page of figures is served on loopback.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

from wholegrain._loopback import LOOPBACK, LoopbackServer
from wholegrain.deploy.activity_log import ActivityLog
from wholegrain.errors import RunError

log = logging.getLogger("wholegrain.silo")

ALARMS = (0.95, 0.8)
"""Shares of a budget at which its operator is told."""

GRANTED, RELEASED, REFUSED, LOW, PEER_ALARM = "granted", "released", "refused", "budget_low", "peer_alarm"
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(eq=False)
class SiloMonitor:
    """Counts what a silo does, and writes it down."""

    silo: str
    epsilon: float
    activity: ActivityLog
    spent: float = 0.0
    last_round: int = -1
    counts: Counter[str] = field(default_factory=Counter)
    alarm: float = 0.0
    peer_alarms: dict[str, str] = field(default_factory=dict)
    """Silos whose ledgers may have lost entries, and why."""

    def note(self, event: str, facts: Mapping[str, Any]) -> None:
        """One thing that happened."""
        self.counts[event] += 1
        self.activity.add(event, facts)
        if event == GRANTED:
            self.last_round = int(facts["round"])
            self.observe_spent(float(facts["epsilon_spent"]))
        if event == PEER_ALARM:
            self.peer_alarms = {**self.peer_alarms, str(facts["peer"]): str(facts["wrong"])}

    def observe_spent(self, spent: float) -> None:
        """Remember ε, and say once for each share that it has come this far."""
        self.spent = spent
        reached = next((share for share in ALARMS if spent >= share * self.epsilon), 0.0)
        if reached > self.alarm:
            self.alarm = reached
            log.warning(
                "silo '%s' has spent %.4g of ε = %g: more than %.0f %% of its budget",
                self.silo, spent, self.epsilon, 100 * reached,
            )  # fmt: skip
            self.activity.add(LOW, {"epsilon_spent": spent, "epsilon": self.epsilon, "share": reached})

    def health(self) -> str:
        """`up`, or what an operator has to look into."""
        lines = (f"silo {name!r} may have lost entries of its ledger: {why}" for name, why in self.peer_alarms.items())
        return "\n".join(lines) + "\n" if self.peer_alarms else "up\n"

    def metrics(self) -> str:
        """The figures in Prometheus's text format."""
        values = {
            "wholegrain_silo_up": ("gauge", 1),
            "wholegrain_silo_epsilon_limit": ("gauge", self.epsilon),
            "wholegrain_silo_epsilon_spent": ("gauge", self.spent),
            "wholegrain_silo_epsilon_left": ("gauge", max(self.epsilon - self.spent, 0.0)),
            "wholegrain_silo_budget_alarm": ("gauge", self.alarm),
            "wholegrain_silo_peer_alarms": ("gauge", len(self.peer_alarms)),
            "wholegrain_silo_last_round": ("gauge", self.last_round),
            "wholegrain_silo_grants_total": ("counter", self.counts[GRANTED]),
            "wholegrain_silo_releases_total": ("counter", self.counts[RELEASED]),
            "wholegrain_silo_refusals_total": ("counter", self.counts[REFUSED]),
        }
        name = self.silo.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines = (f'# TYPE {key} {kind}\n{key}{{silo="{name}"}} {value}\n' for key, (kind, value) in values.items())
        return "".join(lines)


class _HealthHandler(BaseHTTPRequestHandler):
    """Two pages: whether the silo is up, and its figures. A request under another host's name is refused."""

    timeout = 30
    """Seconds after which somebody who has asked nothing is given up."""

    def __init__(self, monitor: SiloMonitor, *arguments: Any) -> None:
        self.monitor = monitor
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer one request."""
        pages = {"/health": self.monitor.health, "/metrics": self.monitor.metrics}
        if (self.headers.get("Host") or "").rsplit(":", 1)[0] not in (LOOPBACK, "localhost"):
            self.send_error(403)
        elif self.path not in pages:
            self.send_error(404)
        else:
            body = pages[self.path]().encode()
            self.send_response(503 if self.path == "/health" and self.monitor.peer_alarms else 200)
            self.send_header("Content-Type", TEXT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: monitors ask often."""


@contextmanager
def serve_figures(monitor: SiloMonitor, port: int) -> Iterator[int]:
    """Serve the figures on loopback meanwhile; the port, of which 0 takes any that is free."""
    try:
        server = LoopbackServer((LOOPBACK, port), partial(_HealthHandler, monitor))
    except OSError as error:
        raise RunError(
            f"The silo's figures cannot be served on {LOOPBACK}:{port} ({error.strerror}): choose another port."
        ) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
