"""One simulated federation: a server, up to three silos, a stretch of faults, and then calm weather to the end."""

import logging
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from flwr.app import Message

from simulation import pieces
from simulation.disk import mortal
from simulation.network import Network, SimulatedGrid, Weather
from simulation.oracle import LedgerView, Oracle, SiloWatch, Violation, most_information, require
from simulation.sums import SumOracle, lies
from simulation.witness import SHARE_OF_GAUSSIANS, Witness, task_of
from simulation.world import Crash, Machine, Process, World
from wholegrain.deploy.server import serve
from wholegrain.deploy.silo_answers import answer
from wholegrain.errors import BudgetError, LedgerError
from wholegrain.privacy.trust import SecureSum
from wholegrain.runs.accounts import release_ledger

MEMORY = Path("/dev/shm")
CALM = 60.0
"""Seconds of virtual time after which nothing goes wrong any more."""

END = 1000.0
"""By then every federation must have come to its end: 4 rounds at 10 s of patience, and a restart or two."""


@dataclass(eq=False)
class Silo:
    """A silo's machine, and the process (sometimes two) on it."""

    name: str
    machine: Machine
    epsilon: float
    noise: str
    processes: list[Process] = field(default_factory=list)
    node: int | None = None
    kept: dict[Path, bytes] | None = None
    """The files of its ledger as they were, while an older copy is in their place."""

    @cached_property
    def ledger(self) -> Path:
        return self.machine.state / "ledger.sqlite"


@dataclass(frozen=True)
class Outcome:
    """What a seed led to."""

    seed: int
    happened: Counter[str]
    violation: str | None


class Federation:
    """Everything of one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.world = World(seed, folder)
        draws = self.draws = self.world.draws
        self.calm = False
        self.kind: pieces.Kind = draws.choice(["updates"] * 4 + ["sums", "scores"])
        faults = draws.choice(["network", "crashes", "all", "all"])
        # A sum takes four messages of almost every silo: with as many faults as others have, none would be opened.
        bad = (faults != "crashes") * (0.15 if self.kind == "sums" else 1)
        self.weather = Weather(*(bad * draws.choice([0, p]) for p in (0.15, 0.15, 0.3, 0.05)))
        self.crashes = 0 if faults == "network" else draws.randint(1, 3 if self.kind == "sums" else 6)
        self.network = Network(self.world, self.weather)
        self.oracle = Oracle(self.world)
        self.noise = "seeded" if draws.random() < 0.15 else "secure"
        self.sources = count()
        size = len(pieces.NAMES) if self.kind == "sums" else draws.randint(1, 3)
        self.silos = {name: self._silo(name) for name in pieces.NAMES[:size]}
        self.server = Machine("server", folder / "server")
        answers, rounds = draws.choice([3, 3, 4]), draws.randint(2, 4) + 3 * (self.kind == "sums")
        self.spec = pieces.spec(
            self.kind, size, rounds, draws.randint(1, 2), self.noise,
            draws.choice(["tight", "shared", "none"]), draws.choice([1, 1, 2]), answers,
        )  # fmt: skip
        self.rules = SecureSum.over(size, answers) if self.kind == "sums" else None
        self.liar = self.rules is not None and draws.random() < 0.6
        self.witness = Witness(
            self.world, self.oracle, self.rules and SumOracle(self.rules), self.noise == "seeded",
            {silo.name: silo.epsilon for silo in self.silos.values()},
        )  # fmt: skip
        self.finished: Any = None
        self.last_error: Exception | None = None

    def _silo(self, name: str) -> Silo:
        pieces.template(name, self.noise, self.kind)  # now, before time and chance are the world's
        machine = Machine(name, self.world.folder / name)
        # A sum needs almost all silos: with small budgets in each, none would ever be opened.
        epsilon = self.draws.choice([2.0, 20.0, 20.0, 20.0] if self.kind == "sums" else [1.0, 2.0, 3.0, 20.0])
        noise = self.noise
        silo = Silo(name, machine, epsilon, noise)
        most = (most_information(epsilon, pieces.DELTA * share) for share in (1, SHARE_OF_GAUSSIANS))
        self.oracle.silos[name] = SiloWatch(LedgerView(silo.ledger, machine), *most, noise == "secure")
        return silo

    # The whole story.

    def play(self) -> Counter[str]:
        """To the end; a violation is raised."""
        with pieces.virtual(self.world, self.witness), mortal(self.world):
            try:
                self._play()
            finally:
                self._stop()
        return self.world.happened

    def _play(self) -> None:
        self.world.after_event = self._look_again
        for silo in self.silos.values():
            self._start_silo(silo)
            if self.draws.random() < (0.05 if self.kind == "sums" else 0.2):
                self._start_silo(silo)  # twice by mistake, on one ledger
                self.weather.double = 0.5
        self._start_server(self.server.folder / "run")
        self._plan_mischief()
        self.world.later(CALM, self._calm_down)
        self._require_end(self.world.run(lambda: self.calm and self.finished is not None, END))
        self.oracle.look()

    def _look_again(self) -> None:
        """After every event: at the ledgers that were written in it."""
        for watch in self.oracle.silos.values():
            if watch.ledger.seen != watch.ledger.machine.writes:
                watch.require_within()
        for view in self.oracle.servers.values():
            view.look()

    def _plan_mischief(self) -> None:
        if self.draws.random() < 0.3:
            other = self.draws.choice(["run", "second"])
            self.world.later(self.draws.random() * CALM, lambda: self._start_server(self.server.folder / other, True))
        for silo in self.silos.values():
            if self.draws.random() < 0.25:
                self.world.later(self.draws.random() * CALM, lambda silo=silo: self._roll_back(silo))
        for machine in (self.server, *(silo.machine for silo in self.silos.values())):
            if self.draws.random() < 0.5:
                self.world.later(self.draws.random() * CALM, lambda machine=machine: self._set_clock(machine))
        for _ in range(self.crashes and self.draws.randint(0, 2)):
            self.world.later(self.draws.random() * CALM, self._kill_somebody)

    def _calm_down(self) -> None:
        self.calm = True
        self.weather.calm()
        for machine in (self.server, *(silo.machine for silo in self.silos.values())):
            for process in machine.processes:
                process.crash_at = None
        for silo in self.silos.values():
            self._put_back(silo)
            if not silo.processes:
                self._start_silo(silo)
        if not self.server.processes and self.finished is None:
            self._start_server(self.server.folder / "run")

    def _stop(self) -> None:
        for machine in (self.server, *(silo.machine for silo in self.silos.values())):
            for process in list(machine.processes):
                self.world.kill(process)
        self.oracle.close()

    def _require_end(self, ended: bool) -> None:
        """Faults are over: the run is done, or a budget is."""
        require(ended, f"the run has not come to an end by {self.world.now:.0f} s; {self.last_error}")
        if isinstance(self.finished, Exception):
            lack = self.witness.last_lack >= CALM or isinstance(self.finished, BudgetError)
            require(lack, f"the run ends with: {self.finished}")
            self.world.happened["federations ended by a budget"] += 1
        else:
            self.world.happened["federations finished"] += 1

    # Mischief.

    def _kill_somebody(self) -> None:
        there = [p for m in (self.server, *(s.machine for s in self.silos.values())) for p in m.processes]
        if there and not self.calm:
            self.world.happened["kills while waiting"] += 1
            self.world.kill(self.draws.choice(there))

    def _set_clock(self, machine: Machine) -> None:
        machine.skew += self.draws.uniform(-1e7, 1e7)
        self.world.happened["clocks set"] += 1

    def _roll_back(self, silo: Silo) -> None:
        """The operator stops the silo, puts an older copy of its ledger in place, and starts it again."""
        files = [silo.ledger, silo.ledger.with_name(f"{silo.ledger.name}.heads")]
        if self.calm or silo.kept is not None or not all(file.exists() for file in files):
            return
        older = {file: file.read_bytes() for file in (files[:1] if self.draws.random() < 0.5 else files)}

        def put_in_place() -> None:
            if self.calm or silo.kept is not None:
                return
            if older[silo.ledger] == silo.ledger.read_bytes():
                return
            for process in silo.processes:
                self.world.kill(process)
            silo.kept = {file: file.read_bytes() for file in files}
            for file, content in older.items():
                file.write_bytes(content)
            self.oracle.silos[silo.name].ledger.exchange(away=True)
            self.world.happened["ledgers rolled back"] += 1

        self.world.later(self.draws.uniform(1, 15), put_in_place)

    def _put_back(self, silo: Silo) -> None:
        """Nobody exchanges files under a process that has them open."""
        for process in list(silo.processes) if silo.kept is not None else ():
            self.world.kill(process)
        for file, content in (silo.kept or {}).items():
            file.write_bytes(content)
        silo.kept = None
        self.oracle.silos[silo.name].ledger.exchange(away=False)

    def _arm(self, process: Process) -> None:
        if self.crashes and not self.calm and self.draws.random() < 0.7:
            self.crashes -= 1
            process.crash_at = int(self.draws.expovariate(1 / 40))
            process.power_cut = self.draws.random() < 0.5

    # Silos.

    def _start_silo(self, silo: Silo) -> None:
        process = self.world.start(silo.name, silo.machine, lambda: self._serve_tasks(silo))
        self._arm(process)
        silo.processes.append(process)

        def ended(found: Any) -> None:
            if process in silo.processes:
                silo.processes.remove(process)
            if not silo.processes and silo.node is not None:
                self.network.nodes.pop(silo.node, None)
            self._on_silo_end(silo, found)

        process.ended = ended

    def _serve_tasks(self, silo: Silo) -> None:
        with release_ledger(silo.ledger, silo.name) as book:
            self.oracle.on_opening(silo.name)
            silo.kept = None
            found = pieces.template(silo.name, silo.noise, self.kind)
            host = pieces.host(found, silo.epsilon, book, lambda: self._fresh_noise(silo))
            again = silo.node if self.draws.random() < 0.7 else None
            silo.node = self.network.connect(lambda message: self._hand_over(silo, message), again)
            while True:
                message = self.world.receive()
                process = self.world.current
                assert process is not None
                process.task = task_of(message)
                reply = answer(message, host)
                if process.task is not None:
                    self.witness.on_reply(silo.name, process.task, message, reply)
                self.network.reply(reply)

    def _hand_over(self, silo: Silo, message: Message) -> None:
        idle = [process for process in silo.processes if process.waiting] or silo.processes
        if idle:
            self.world.deliver(self.draws.choice(idle), message)

    def _fresh_noise(self, silo: Silo) -> pieces.NamedNoise:
        seeded = silo.noise == "seeded"
        return pieces.NamedNoise("seeded:0" if seeded else f"source {next(self.sources)}", seeded)

    def _on_silo_end(self, silo: Silo, found: Any) -> None:
        if isinstance(found, LedgerError):
            require(silo.kept is not None, f"{silo.name} cannot open its ledger: {found}")
            self.world.happened["older ledgers noticed"] += 1
            self.world.later(self.draws.uniform(1, 8), lambda: self._come_back(silo))
        elif isinstance(found, Crash):
            self.world.later(self.draws.uniform(0.1, 15), lambda: self._come_back(silo))
        else:
            raise Violation(f"{silo.name} ends by itself: {found!r}")

    def _come_back(self, silo: Silo) -> None:
        if silo.processes:
            return
        if silo.kept is not None and self.draws.random() < 0.5:
            self._put_back(silo)
        self._start_silo(silo)

    # Servers.

    def _start_server(self, out: Path, extra: bool = False) -> None:
        if extra:
            self.world.happened["second servers"] += 1
        grid = SimulatedGrid(self.network, lambda message: self._on_task(out, message))
        process = self.world.start(f"server {out.name}", self.server, lambda: self._serve(out, grid))
        self._arm(process)
        calm = self.calm

        def ended(found: Any) -> None:
            if not extra:
                self._on_server_end(out, found, calm)

        process.ended = ended

    def _serve(self, out: Path, grid: SimulatedGrid) -> Any:
        self.server.folder.mkdir(parents=True, exist_ok=True)
        return serve(self.spec, out, grid)

    def _on_task(self, out: Path, message: Message) -> None:
        silo = next((s.name for s in self.silos.values() if s.node == message.metadata.dst_node_id), None)
        if silo is None or message.metadata.message_type == "query":
            return
        ledger = (self.server.state if self.noise == "secure" else out) / "ledger.sqlite"
        self.witness.on_task(silo, ledger, message)
        if self.liar and self.rules is not None and not self.calm and self.draws.random() < 0.5:
            for lie in lies(message, self.rules, pieces.NAMES, self.draws):
                self.world.happened["lies of a server"] += 1
                self.network.send(lie)

    def _on_server_end(self, out: Path, found: Any, calm: bool) -> None:
        """Whoever runs the server starts it again, whatever it ended with, until faults are over."""
        if isinstance(found, Exception):
            self.last_error = found
            self.world.happened["servers ended with an error"] += 1
        again = isinstance(found, Crash) or "Another process is at work" in str(found)
        if not again and (calm or not isinstance(found, Exception)):
            self.finished = found
            return
        self.world.later(self.draws.uniform(0.5, 8), lambda: self._start_server(out))


def play(seed: int) -> Outcome:
    """The federation of this seed."""
    folder = Path(tempfile.mkdtemp(prefix="federation-", dir=MEMORY if MEMORY.is_dir() else None))
    logging.disable(logging.CRITICAL)
    federation = Federation(seed, folder)
    try:
        return Outcome(seed, federation.play(), None)
    except Violation as violation:
        return Outcome(seed, federation.world.happened, str(violation))
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(folder, ignore_errors=True)
