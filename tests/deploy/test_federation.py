"""A federation of real processes on this machine: who is let in, what is refused, and what survives.

One SuperLink and one set of silos serve all tests of this file, which take minutes, most of them Flower's pauses of
three seconds between two looks for a message.
"""

import json
import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from deployment import task, vector
from loopback import (
    NAMES,
    PATIENCE,
    PROGRAMS,
    Federation,
    alive,
    children,
    free_port,
    rounds_of,
    running,
    simulated,
    write_silo,
)
from wholegrain.deploy.certificates import silo_key
from wholegrain.engines.wire import StartTask
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.privacy.ledger import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink that knows three silos, which are started, too."""
    with running(tmp_path_factory.mktemp("real")) as made:
        yield made


# What is found afterwards.


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


def untimed(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "seconds"}


def run_of(folder: Path) -> str:
    return json.loads((folder / "run.json").read_text())["run"]


def test_a_real_federation_trains_the_same_model_as_a_simulation(federation: Federation, tmp_path: Path) -> None:
    """From the head of a public start, of which every silo has a copy of its own; without one, see below."""
    model = federation.public_model("head")
    app = federation.write_app("first", 2, model)
    said = federation.flwr("run", app, "federation", "--stream")
    run = app / "run"
    assert (run / "summary.json").exists(), said + federation.logs()
    assert (run / "model.safetensors").read_bytes() == simulated(federation, 2, tmp_path, model)
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
    assert re.match(r"error: The SuperNode of silo 'stranger' ended with exit code \d+;", said.splitlines()[-1])


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
    for reply in grid.send_and_receive(messages, timeout=1200):
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
    "too much ε": (
        "limit.epsilon",
        {"settings": PolicySettings(rate=1.0), "noise_multiplier": 0.5, "steps": 5},
        vector(),
    ),
    "less noise": ("limit.smallest_noise", {"noise_multiplier": 0.4}, vector()),
    "a larger clip": ("limit.largest_clip", {"settings": PolicySettings(rate=0.5, clip_norm=9.0)}, vector()),
    "more steps": ("limit.most_steps", {"steps": 6}, vector()),
    "another model": ("allow.models", {"model": "mlp"}, vector()),
    "another backbone": ("allow.models", {"start": StartTask(digest="0" * 64, train="head")}, vector()),
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
    with federation.paused("north"):  # or a busy machine might play the last round before west is back
        connections = federation.connections("west")
        federation.start_silo("west")
        federation.wait_until(lambda: federation.connections("west") > connections, process)
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
    # A round whose parameters were not on disk yet is played again: the same, but for the time that it took.
    assert [untimed(line) for line in rounds_of(run)[: len(before)]] == [untimed(line) for line in before]
    assert [line["round"] for line in rounds_of(run)] == list(range(4))
    assert [line["faults"] for line in rounds_of(run)] == [[]] * 4
    assert (run / "model.safetensors").read_bytes() == simulated(federation, 4, tmp_path)
    reserved, released = steps(run / "ledger.sqlite", run_of(run))
    assert reserved == released == dict.fromkeys(NAMES, 8)
    for name in NAMES:
        own = steps(federation.silo(name) / "ledger.sqlite", run_of(run))
        assert own == ({name: 8}, {name: 8})


def test_a_plain_supernode_with_the_app_of_the_bundle_keeps_to_the_charter_too(
    federation: Federation, tmp_path: Path
) -> None:
    """Flower starts a process for each message here, and runs the bundle's code: for those who trust their server."""
    federation.stop(federation.silos["west"])
    folder = federation.silo("west")
    link = f"--superlink 127.0.0.1:{federation.port} --root-certificates ca.crt --auth-supernode-private-key key"
    config = ("--node-config", f'charter="{folder / "silo.toml"}"', "--port", free_port())
    own = {"FLWR_HOME": str(folder / "flower")}
    plain = federation.start(folder / "plain.log", PROGRAMS / "flower-supernode", *link.split(), *config, **own)
    try:
        model = federation.public_model("low_rank", 2)
        app = federation.write_app("plain", 1, model)
        federation.flwr("run", app, "federation", "--stream")
        assert [line["faults"] for line in rounds_of(app / "run")] == [[]]
        assert steps(folder / "ledger.sqlite", run_of(app / "run")) == ({"west": 2}, {"west": 2})
        assert (app / "run" / "model.safetensors").read_bytes() == simulated(federation, 1, tmp_path, model)
    finally:
        federation.stop(plain)
        federation.start_silo("west")


def test_a_supernode_ends_with_its_silo(federation: Federation) -> None:
    federation.wait_until(lambda: all(len(children(federation.silos[name].pid)) == 1 for name in NAMES))
    beside = {name: children(federation.silos[name].pid)[0] for name in NAMES}
    federation.silos["north"].kill()
    federation.silos["south"].terminate()
    federation.silos["west"].send_signal(signal.SIGINT)
    assert federation.silos["south"].wait(PATIENCE) == 0
    assert federation.silos["west"].wait(PATIENCE) in (0, 130, -signal.SIGINT)
    federation.wait_until(lambda: not any(alive(pid) for pid in beside.values()))
