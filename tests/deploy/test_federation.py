"""A federation of real processes on this machine: a SuperLink with TLS and authentication, and three silos.

One SuperLink and one set of silos serve all tests of this file, which take minutes, most of them Flower's pauses of
three seconds between two looks for a message. Every process belongs to a group of its own, which is ended at the end.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from deployment import as_toml, charter_tree, table, task, vector
from wholegrain.deploy.certificates import silo_key
from wholegrain.deploy.founding import Founding, found
from wholegrain.policies.catalog import Settings
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.runner import execute, guarded, prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.store import RunFolder

pytestmark = [pytest.mark.timeout(900)]

SOURCE = Path(sys.modules["wholegrain"].__file__ or "").parents[1]
PROGRAMS = Path(sys.executable).parent
NAMES = ("north", "south", "west")
PATIENCE = 300.0
"""Seconds for what takes twenty on a quiet machine."""


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
        "model": {"name": "logistic"},
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
            "FLWR_HOME": str(self.server / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "WHOLEGRAIN_CACHE": str(self.folder / "cache"),
            "WHOLEGRAIN_STATE": str(self.folder / "state"),
            "PYTHONPATH": str(SOURCE),
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            **more,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR", "WHOLEGRAIN"))}
        return {**kept, **own}

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

    def start_superlink(self) -> None:
        command = (
            f"flower-superlink --port {self.port} --ssl-certfile server.crt --ssl-keyfile server.key"
            " --ssl-ca-certfile ca.crt --enable-supernode-auth --database state.db"
            " --disable-runtime-dependency-installation"
        ).split()
        process = self.start(self.server / "superlink.log", PROGRAMS / command[0], *command[1:])
        self.wait_until(lambda: answers(self.port), process)
        self.superlink = process

    def start_silo(self, name: str) -> subprocess.Popen[bytes]:
        path = self.silo(name) / "silo.toml"
        command = (sys.executable, "-m", "wholegrain", "silo", "--policy-file", path)
        own = {"FLWR_HOME": str(self.silo(name) / "flower"), "WHERE": "silo"}
        process = self.start(self.silo(name) / "silo.log", *command, **own)
        self.silos[name] = process
        return process

    def flwr(self, *arguments: object) -> str:
        """What `flwr ARGUMENTS` says; it must go well."""
        done = subprocess.run(
            [PROGRAMS / "flwr", *map(str, arguments)],
            cwd=self.server,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + self.logs()
        return done.stdout

    def start_run(self, app: Path) -> subprocess.Popen[bytes]:
        """`flwr run APP` to its end, in the background."""
        return self.start(app / "flwr.log", PROGRAMS / "flwr", "run", app, "federation", "--stream")

    def write_app(self, name: str, rounds: int, **federation: Any) -> Path:
        """An app with a spec and a run of its own."""
        app = self.server / name
        shutil.copytree(self.server / "app", app)
        project = (self.server / "app" / "pyproject.toml").read_text()
        project = project.replace(str(self.server / "spec.toml"), str(app / "spec.toml"))
        (app / "pyproject.toml").write_text(project.replace(str(self.server / "run"), str(app / "run")))
        silos = [
            {"name": name, "items": items, "subjects": subjects, "items_per_subject": 4}
            for name, (items, subjects) in self.sizes.items()
        ]
        shape = {"shape": [3], "classes": 2, "silos": silos, "patience": 120.0, **federation}
        (app / "spec.toml").write_text(as_toml({**training(rounds), "federation": shape}))
        return app

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


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink that knows three silos, which are started, too."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "home").mkdir()
    made = Federation(folder, free_port(), write_tables(folder / "data"))
    found(Founding(NAMES, "127.0.0.1", made.port), folder / "federation")
    for name in NAMES:
        write_silo(made, name)
    try:
        made.start_superlink()
        for name in NAMES:
            made.flwr("supernode", "register", made.server / "keys" / f"{name}.pub", "federation")
        for name in NAMES:
            made.start_silo(name)
        yield made
    finally:
        for process in made.processes:
            made.end(process)


def write_silo(federation: Federation, name: str, data: str = "") -> None:
    """The operator's part: the template filled in."""
    link = {"address": f"127.0.0.1:{federation.port}", "certificates": "ca.crt", "key": "key", "port": free_port()}
    tree = charter_tree(
        silo=name,
        data={"source": "table", "table": table(str(federation.folder / "data" / f"{data or name}.csv"))},
        limit={"epsilon": 12.0, "smallest_noise": 0.5, "noise": "seeded"},
        link=link,
    )
    (federation.silo(name) / "silo.toml").write_text(as_toml(tree))


# What is found afterwards.


def simulated(federation: Federation, rounds: int, tmp_path: Path) -> bytes:
    """The model of the same training in one process."""
    own = {**table(str(federation.folder / "data" / "all.csv")), "silo": "clinic"}
    spec = RunSpec.of(
        {
            **training(rounds),
            "data": {"source": "table", "table": own},
            "silos": {"items_per_subject": 4},
            "evaluation": {"test": 0.0},
        }
    )
    prepared = prepare(spec)
    folder = RunFolder.create(tmp_path / "simulated", prepared)
    with guarded(prepared, folder.run, folder.path) as guard:
        folder.finish(execute(prepared, guard))
    return (folder.path / "model.safetensors").read_bytes()


def rounds_of(run: Path) -> list[dict[str, Any]]:
    path = run / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def entries(federation: Federation, name: str) -> list[Any]:
    with sqlite3.connect(federation.silo(name) / "ledger.sqlite") as database:
        return database.execute("SELECT * FROM entries ORDER BY number").fetchall()


def steps(path: Path, run: str) -> tuple[dict[str, int], dict[str, int]]:
    """Steps that a ledger has reserved and released for a run, by silo."""
    reserved: dict[str, int] = {}
    released: dict[str, int] = {}
    with Ledger.open(path, create=False) as ledger:
        for name, account in ledger.book.runs.items():
            if name.partition("/")[0] == run:
                for total, found in ((reserved, account.reserved), (released, account.released)):
                    for silo, count in found.items():
                        total[silo] = total.get(silo, 0) + count
    return reserved, released


def run_of(folder: Path) -> str:
    return json.loads((folder / "run.json").read_text())["run"]


def test_a_real_federation_trains_the_same_model_as_a_simulation(federation: Federation, tmp_path: Path) -> None:
    app = federation.write_app("first", rounds=2)
    said = federation.flwr("run", app, "federation", "--stream")
    run = app / "run"
    assert (run / "summary.json").exists(), said + federation.logs()
    assert (run / "model.safetensors").read_bytes() == simulated(federation, 2, tmp_path)
    assert [line["faults"] for line in rounds_of(run)] == [[]] * 2
    reserved, released = steps(run / "ledger.sqlite", run_of(run))
    assert reserved == released == dict.fromkeys(NAMES, 4)
    for name in NAMES:
        own = steps(federation.silo(name) / "ledger.sqlite", run_of(run))
        assert own == ({name: 4}, {name: 4})
        assert not (federation.silo(name) / "refusals.jsonl").exists()


# Who is not to be let in.


def test_a_silo_with_a_key_that_nobody_registered_is_turned_away(federation: Federation) -> None:
    stranger = shutil.copytree(federation.silo("west"), federation.silo("stranger"))
    (stranger / "key").write_bytes(silo_key().key)
    write_silo(federation, "stranger", data="west")
    process = federation.start_silo("stranger")
    try:
        process.wait(PATIENCE)
    finally:
        federation.end(process)
    said = (stranger / "silo.log").read_text()
    assert process.returncode == 2, said
    assert "Failed to activate SuperNode" in said
    assert re.fullmatch(r"error: The SuperNode of silo 'stranger' ended with exit code \d+\.", said.splitlines()[-1])


HOSTILE = """
import json, math, struct, time
from pathlib import Path
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

def content(asked):
    data = struct.pack(f"<{len(asked['vector'])}f", *map(float, asked["vector"]))
    array = Array("float32", (len(asked["vector"]),), "wholegrain.float32", data)
    return RecordDict({"task": ConfigRecord({"json": asked["task"]}), "parameters": ArrayRecord({"vector": array})})

@app.main()
def main(grid, context):
    folder = Path(context.run_config["folder"])
    asked = json.loads((folder / "asked.json").read_text())
    while len(nodes := list(grid.get_node_ids())) < 3:
        time.sleep(1)
    messages = [
        Message(content(each), dst_node_id=node, message_type="train", group_id=each["name"])
        for each in asked for node in nodes
    ]
    told = {}
    for reply in grid.send_and_receive(messages, timeout=200):
        said = reply.error.reason if reply.has_error() else reply.content["answer"]["json"]
        told.setdefault(reply.metadata.group_id, []).append(said)
    (folder / "told.json").write_text(json.dumps(told))
"""

MARK = (
    "import os, sys\nopen({path!r}, 'a').write(os.environ.get('WHERE', 'server') + f' {{__name__}} {{sys.argv}}\\n')\n"
)

PROJECT = """[project]
name = "hostile"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "federation"

[tool.flwr.app.components]
serverapp = "hostile.server:app"
clientapp = "wholegrain.deploy.client:app"

[tool.flwr.app.config]
folder = "{folder}"
"""

ASKED = {
    "too much ε": ("limit.epsilon", {"settings": Settings(rate=1.0), "noise_multiplier": 0.5, "steps": 5}, vector()),
    "less noise": ("limit.smallest_noise", {"noise_multiplier": 0.4}, vector()),
    "a larger clip": ("limit.largest_clip", {"settings": Settings(rate=0.5, clip_norm=9.0)}, vector()),
    "more steps": ("limit.most_steps", {"steps": 6}, vector()),
    "another model": ("allow.models", {"model": "mlp"}, vector()),
    "code": ("allow.models", {"model": "hostile.server:main"}, vector()),
    "another policy": ("allow.policies", {"policy": "fedavg"}, vector()),
    "NaN": ("parameters", {}, vector(float("nan"))),
    "other parameters": ("parameters", {}, torch.zeros(3)),
}


def hostile_app(folder: Path, marker: Path) -> Path:
    """A bundle with a server that asks for what is forbidden, and with a wholegrain of its own for the silos."""
    mark = MARK.format(path=str(marker))
    client = f"{mark}from flwr.clientapp import ClientApp\napp = ClientApp()\n"
    files = {
        "pyproject.toml": PROJECT.format(folder=folder),
        "hostile/__init__.py": "",
        "hostile/server.py": HOSTILE,
        "wholegrain/__init__.py": mark,
        "wholegrain/deploy/__init__.py": mark,
        "wholegrain/deploy/client.py": client,
        "sitecustomize.py": mark,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tasks = [
        {"name": name, "task": task(**changes).model_dump_json(), "vector": [str(value) for value in start.tolist()]}
        for name, (_, changes, start) in ASKED.items()
    ]
    (folder / "asked.json").write_text(json.dumps([*tasks, {"name": "garbage", "task": "{", "vector": []}]))
    return folder


def test_a_hostile_server_gets_nothing_and_its_code_runs_nowhere(federation: Federation, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    app = hostile_app(federation.folder / "hostile", marker)
    before = {name: entries(federation, name) for name in NAMES}
    federation.flwr("run", app, "federation", "--stream")
    told = json.loads((app / "told.json").read_text())
    assert set(told) == {*ASKED, "garbage"}
    for name, answers in told.items():
        rule = ASKED[name][0] if name in ASKED else "message"
        assert len(answers) == 3
        assert all(json.loads(answer)["refused"].startswith(f"[{rule}]") for answer in answers), (name, answers)
    for name in NAMES:
        assert entries(federation, name) == before[name]
        kept = (federation.silo(name) / "refusals.jsonl").read_text().splitlines()
        assert len(kept) == len(told)
    ran = {line.split()[0] for line in marker.read_text().splitlines()}
    assert ran == {"server"}, "only whoever sends a bundle runs what is in it"
    assert not any((federation.silo(name) / "flower" / "apps").exists() for name in NAMES)


# What ends, and goes on.


def faults(run: Path, silo: str) -> dict[int, str]:
    """In which rounds a silo gave nothing, and why."""
    return {
        line["round"]: fault["reason"] for line in rounds_of(run) for fault in line["faults"] if fault["silo"] == silo
    }


UNREACHABLE = (
    "it did not answer in time",
    "it is not connected",
    "it failed: Error: Node",
    "it failed: Error: Message",
)


def test_a_silo_that_dies_in_a_run_is_a_fault_until_it_is_back(federation: Federation) -> None:
    app = federation.write_app("dropout", rounds=10, patience=20.0)
    run = app / "run"
    process = federation.start_run(app)
    federation.wait_until(lambda: len(rounds_of(run)) >= 1, process)
    federation.silos["west"].kill()
    federation.wait_until(lambda: faults(run, "west"), process)
    federation.start_silo("west")
    process.wait(PATIENCE)
    assert (run / "summary.json").exists(), federation.logs()
    lost = faults(run, "west")
    assert len(rounds_of(run)) == 10
    assert all(reason.startswith(UNREACHABLE) for reason in lost.values()), lost
    assert max(lost) < 9
    reserved, released = steps(run / "ledger.sqlite", run_of(run))
    assert reserved == dict.fromkeys(NAMES, 20)
    for name in NAMES:
        own_reserved, own_released = steps(federation.silo(name) / "ledger.sqlite", run_of(run))
        assert released[name] == 20 - 2 * len(faults(run, name))
        assert released[name] <= own_released[name] <= own_reserved[name] <= 20


def test_a_server_that_dies_goes_on_with_its_run_when_it_is_back(federation: Federation, tmp_path: Path) -> None:
    app = federation.write_app("restart", rounds=4)
    run = app / "run"
    process = federation.start_run(app)
    federation.wait_until(lambda: len(rounds_of(run)) >= 1, process)
    federation.end(federation.superlink)
    federation.end(process)
    before = rounds_of(run)
    assert len(before) < 4
    federation.start_superlink()
    said = federation.flwr("run", app, "federation", "--stream")
    assert (run / "summary.json").exists(), said + federation.logs()
    assert rounds_of(run)[: len(before)] == before
    assert [line["round"] for line in rounds_of(run)] == list(range(4))
    assert [line["faults"] for line in rounds_of(run)] == [[]] * 4
    assert (run / "model.safetensors").read_bytes() == simulated(federation, 4, tmp_path)
    reserved, released = steps(run / "ledger.sqlite", run_of(run))
    assert reserved == released == dict.fromkeys(NAMES, 8)
    for name in NAMES:
        own = steps(federation.silo(name) / "ledger.sqlite", run_of(run))
        assert own == ({name: 8}, {name: 8})


def test_a_plain_supernode_with_the_app_of_the_bundle_keeps_to_the_charter_too(federation: Federation) -> None:
    """Flower starts a process for each message here, and runs the bundle's code: for those who trust their server."""
    federation.stop(federation.silos["west"])
    folder = federation.silo("west")
    link = f"--superlink 127.0.0.1:{federation.port} --root-certificates ca.crt --auth-supernode-private-key key"
    config = ("--node-config", f'charter="{folder / "silo.toml"}"', "--port", free_port())
    own = {"FLWR_HOME": str(folder / "flower")}
    plain = federation.start(folder / "plain.log", PROGRAMS / "flower-supernode", *link.split(), *config, **own)
    try:
        app = federation.write_app("plain", rounds=1)
        federation.flwr("run", app, "federation", "--stream")
        assert [line["faults"] for line in rounds_of(app / "run")] == [[]]
        assert steps(folder / "ledger.sqlite", run_of(app / "run")) == ({"west": 2}, {"west": 2})
    finally:
        federation.stop(plain)
        federation.start_silo("west")


def test_a_silo_and_its_supernode_end_together(federation: Federation) -> None:
    north, south, west = (federation.silos[name] for name in NAMES)
    federation.wait_until(lambda: all(len(children(federation.silos[name].pid)) == 1 for name in NAMES))
    beside = {name: children(federation.silos[name].pid)[0] for name in NAMES}
    north.kill()
    south.terminate()
    os.kill(beside["west"], signal.SIGKILL)
    assert south.wait(PATIENCE) == 0
    assert west.wait(PATIENCE) == 2
    last = (federation.silo("west") / "silo.log").read_text().splitlines()[-1]
    assert last == "error: The SuperNode of silo 'west' ended with exit code -9."
    federation.wait_until(lambda: not any(alive(pid) for pid in beside.values()))
