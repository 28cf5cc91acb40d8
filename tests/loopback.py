"""A federation of real processes on this machine: a server with TLS and a roster, and three silos.

Every process belongs to a group of its own, which is ended at the end.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from backbones import public_model, write_backbone
from deployment import as_toml, charter_tree, table
from wholegrain.deploy.scaffold import FederationDraft, write_federation
from wholegrain.runs.roster import read_roster, write_roster
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

SOURCE = Path(sys.modules["wholegrain"].__file__ or "").parents[1]
PROGRAMS = Path(sys.executable).parent
NAMES = ("north", "south", "west")
PATIENCE = 1200.0
"""Seconds after which something must have gone wrong: on a quiet machine it takes twenty."""

LOGISTIC = {"name": "logistic"}
STARTS = (("head", None), ("low_rank", 2))
"""What every silo agrees to train from its own copy of a backbone: train and rank."""


# What is put in place before anything starts.


def write_tables(folder: Path) -> dict[str, tuple[int, int]]:
    """People who visit three clinics: a table for each, and one of all; the number of visits and people of each."""
    draws = np.random.default_rng(0)
    rows: list[tuple[str, str, str]] = []
    for person in range(120):
        for _ in range(draws.integers(1, 5)):
            a, b, c = draws.normal(size=3).clip(-3, 3)
            clinic = NAMES[draws.integers(3)]
            rows.append((clinic, f"p{person:03}", f"{a:.4f},{b:.4f},{c:.4f},{int(a + b > 0)}"))
    folder.mkdir()
    whole = "".join(f"{person},{rest},{clinic}\n" for clinic, person, rest in rows)
    (folder / "all.csv").write_text(f"person,a,b,c,ill,clinic\n{whole}")
    for name in NAMES:
        own = "".join(f"{person},{rest}\n" for clinic, person, rest in rows if clinic == name)
        (folder / f"{name}.csv").write_text(f"person,a,b,c,ill\n{own}")
    visits = {name: [person for clinic, person, _ in rows if clinic == name] for name in NAMES}
    return {name: (len(people), len(set(people))) for name, people in visits.items()}


def training(rounds: int, **privacy: Any) -> dict[str, Any]:
    """What server and simulation have in common."""
    return {
        "seed": 3,
        "policy": {"name": "subject_dp", "rate": 0.5},
        "privacy": {"epsilon": 4.0, **privacy},
        "rounds": {"count": rounds, "steps": 2, "learning_rate": 0.5},
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Federation:
    """Folders, and the processes that were started in them."""

    folder: Path
    port: int
    sizes: dict[str, tuple[int, int]]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    silos: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def server(self) -> Path:
        return self.folder / "federation" / "server"

    def silo(self, name: str) -> Path:
        return self.folder / "federation" / name

    def environment(self, **more: str) -> dict[str, str]:
        """Nothing of the user's: no home, no cache, no Flower."""
        own = {
            "HOME": str(self.folder / "home"),
            "WHOLEGRAIN_CACHE": str(self.folder / "cache"),
            "WHOLEGRAIN_STATE": str(self.folder / "state"),
            "PYTHONPATH": str(SOURCE),
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            **more,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR", "WHOLEGRAIN"))}
        return {**kept, **own}

    def public_model(self, train: str, rank: int | None = None) -> dict[str, Any]:
        """A model from public parameters, by the server's own copy of them."""
        path = self.server / "b.safetensors"
        write_backbone(path)
        return public_model(str(path), train, rank)

    def start(self, log: Path, *command: object, **more: str) -> subprocess.Popen[bytes]:
        """A process in a group of its own, whose words go to a file beside it."""
        with log.open("ab") as file:
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=log.parent,
                env=self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_silo(self, name: str, *, charter: str = "silo.toml") -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", "wholegrain", "silo", "--charter", self.silo(name) / charter)
        process = self.start(self.silo(name) / "silo.log", *command, WHERE="silo")
        self.silos[name] = process
        return process

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """All silos are started; every process is ended at the end."""
        try:
            for name in NAMES:
                self.start_silo(name)
            yield
        finally:
            for process in self.processes:
                self.end(process)

    def connections(self, name: str) -> int:
        """How often a silo has been let in."""
        return self.said_by(name).count("connected to ")

    def said_by(self, name: str) -> str:
        """A silo's log."""
        return (self.silo(name) / "silo.log").read_text()

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """A silo that stays connected and answers nothing, so that every round lasts as long as the patience."""
        self.silos[name].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.silos[name].send_signal(signal.SIGCONT)

    def start_server(self, folder: Path) -> subprocess.Popen[bytes]:
        """`wholegrain server FOLDER`, in the background."""
        return self.start(folder / "server.log", *self.server_command(folder))

    def server_command(self, folder: Path) -> tuple[object, ...]:
        return (sys.executable, "-m", "wholegrain", "server", folder)

    def serve(self, folder: Path, code: int = 0) -> Path:
        """`wholegrain server FOLDER` to its end, which must be this exit code; the run's folder."""
        process = self.start_server(folder)
        assert process.wait(PATIENCE) == code, self.logs()
        return folder / "run"

    def write_server(self, name: str, rounds: int, model: Mapping[str, Any] = LOGISTIC, **federation: Any) -> Path:
        """A server's folder with a spec and a run of its own, and the roster of the federation."""
        folder = self.folder / "federation" / name
        shutil.copytree(self.server, folder, ignore=shutil.ignore_patterns("run", "*.log", "*.safetensors"))
        shape = {"roster": "roster.toml", "shape": [3], "classes": 2, "patience": PATIENCE, **federation}
        (folder / "spec.toml").write_text(as_toml({**training(rounds), "model": model, "federation": shape}))
        return folder

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a process and all that it started, some of which may have a group of its own."""
        for pid in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(PATIENCE)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Let a silo take its leave: the SuperLink would not know for a minute that it is gone, nor take it back."""
        process.terminate()
        process.wait(PATIENCE)

    def wait_until(self, true: Callable[[], object], process: subprocess.Popen[bytes] | None = None) -> None:
        """Until something is so, while a process lasts."""
        end = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < end, f"it takes too long\n{self.logs()}"
            assert process is None or process.poll() is None, f"it ended\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        """The ends of all logs, for whoever looks into a failure."""
        found = sorted(self.folder.rglob("*.log"))
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in found)


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        threads = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    return []


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def running(folder: Path, **limit: Any) -> Iterator[Federation]:
    """A federation of three silos, which are started; all of it is ended at the end."""
    (folder / "home").mkdir()
    made = Federation(folder, free_port(), write_tables(folder / "data"))
    write_federation(FederationDraft(NAMES, "127.0.0.1", made.port), folder / "federation")
    fill_roster(made)
    for name in NAMES:
        write_silo(made, name, **limit)
    with made.started():
        yield made


def fill_roster(federation: Federation) -> None:
    """The server's operator fills in the sizes that silos declare."""
    roster = read_roster(federation.server / "roster.toml")
    for name, (items, subjects) in federation.sizes.items():
        roster = roster.with_silo(name, {"items": items, "subjects": subjects, "items_per_subject": 4})
    write_roster(roster, federation.server / "roster.toml")


def write_silo(federation: Federation, name: str, data: str = "", **limit: Any) -> None:
    """The operator's part: the template filled in."""
    link = {"address": f"127.0.0.1:{federation.port}", "certificates": "ca.crt", "key": "key"}
    tree = charter_tree(
        silo=name,
        data={"source": "table", "table": table(str(federation.folder / "data" / f"{data or name}.csv"))},
        limit={"epsilon": 12.0, "smallest_noise": 0.5, "noise": "seeded", **limit},
        sizes=dict(zip(("items", "subjects"), federation.sizes[data or name], strict=True)),
        allow={"models": [LOGISTIC, *(public_model("b.safetensors", *start) for start in STARTS)]},
        link=link,
        ledger={"data": f"{federation.folder.name} of {name}"},
    )
    write_backbone(federation.silo(name) / "b.safetensors")
    (federation.silo(name) / "silo.toml").write_text(as_toml(tree))


def simulation(federation: Federation, rounds: int, model: Mapping[str, Any] = LOGISTIC) -> dict[str, Any]:
    """The spec of the same training in one process."""
    own = {**table(str(federation.folder / "data" / "all.csv")), "silo": "clinic"}
    return {
        **training(rounds),
        "model": model,
        "data": {"source": "table", "table": own},
        "silos": {"items_per_subject": 4},
        "evaluation": {"test": 0.0},
    }


def simulated(
    federation: Federation, rounds: int, tmp_path: Path, model: Mapping[str, Any] = LOGISTIC
) -> dict[str, bytes]:
    """The parameters of the same training in one process."""
    prepared = prepare(RunSpec.of(simulation(federation, rounds, model)))
    folder = RunFolder.create(tmp_path / "simulated", prepared)
    with open_guard(prepared, folder.run, folder.path) as guard:
        folder.finish(execute(prepared, guard))
    return trained(folder.path)


def trained(run: Path) -> dict[str, bytes]:
    """The parameters of a run's model, to the last bit; a server's file says less of the table, which it never saw."""
    return {name: values.numpy().tobytes() for name, values in load_file(run / "model.safetensors").items()}


def rounds_of(run: Path) -> list[dict[str, Any]]:
    path = run / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
