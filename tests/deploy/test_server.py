"""The server of a federation whose silos are in this process: the same rounds, the same record, and no data."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict

from deployment import write_charter
from grids import FakeGrid, Node, within_a_server_app
from wholegrain.deploy import server
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.client import hosted, reply_to
from wholegrain.deploy.host import Host
from wholegrain.deploy.server import prepare_server, serve
from wholegrain.errors import RunError, SpecError
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.spec import RunSpec

NAMES = ("north", "south")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    within_a_server_app(monkeypatch)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, Host]]:
    with ExitStack() as stack:
        limit = {"noise": "seeded", "smallest_noise": 0.5}
        charters = {name: write_charter(tmp_path / name, silo=name, limit=limit) for name in NAMES}
        yield {name: stack.enter_context(hosted(load_charter(path))) for name, path in charters.items()}


def node(host: Host) -> Node:
    def answer(message: Message) -> RecordDict:
        return reply_to(message, host).content

    return answer


def grid_of(hosts: dict[str, Host]) -> FakeGrid:
    return FakeGrid({number: node(host) for number, host in enumerate(hosts.values(), start=11)})


def spec(hosts: dict[str, Host], **changes: Any) -> RunSpec:
    silos = [
        {"name": name, "items": host.silo.facts.items, "subjects": 40, "items_per_subject": 4}
        for name, host in hosts.items()
    ]
    tree: dict[str, Any] = {
        "seed": 3,
        "policy": {"name": "subject_dp", "rate": 0.5},
        "privacy": {"epsilon": 4.0},
        "rounds": {"count": 3, "steps": 2},
        "federation": {"shape": [3], "classes": 2, "silos": silos, "patience": 20.0},
    }
    for section, values in changes.items():
        tree[section] = None if values is None else {**tree.get(section, {}), **values}
    return RunSpec.of(tree)


def rounds_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def reserved(ledger: Ledger) -> dict[str, int]:
    return {silo: count for run in ledger.book.runs.values() for silo, count in run.reserved.items()}


def test_a_run_leaves_the_same_record_as_any_other_and_every_silo_has_paid(hosts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = serve(spec(hosts), out, grid_of(hosts))
    assert {path.name for path in out.iterdir()} >= {"spec.json", "plan.json", "model.safetensors", "summary.json"}
    assert [line["faults"] for line in rounds_of(out)] == [[]] * 3
    assert run.guarantee.epsilon <= 4.0
    with Ledger.open(out / "ledger.sqlite") as ledger:
        assert reserved(ledger) == {"north": 6, "south": 6}
    for name, host in hosts.items():
        assert reserved(host.ledger) == {name: 6}


def test_a_run_that_stopped_goes_on_where_it_was(hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = serve(spec(hosts), tmp_path / "whole", grid_of(hosts))
    grid, out = grid_of(hosts), tmp_path / "run"

    def stop(event: object) -> None:
        if getattr(event, "scores", None) is not None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(server, "_tell", stop)
        with pytest.raises(KeyboardInterrupt):
            serve(spec(hosts), out, grid)
    assert len(rounds_of(out)) == 1
    serve(spec(hosts), out, grid_of(hosts))
    assert len(rounds_of(out)) == 3
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert len(whole.rounds) == 3


def test_a_run_that_is_at_its_end_stays_as_it_is(hosts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    serve(spec(hosts), out, grid_of(hosts))
    before = (out / "model.safetensors").read_bytes(), rounds_of(out)
    grid = grid_of(hosts)
    serve(spec(hosts), out, grid)
    assert ((out / "model.safetensors").read_bytes(), rounds_of(out)) == before
    assert not grid.asked("train")


def test_another_spec_is_another_run(hosts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    serve(spec(hosts), out, grid_of(hosts))
    with pytest.raises(RunError, match="was started with another spec"):
        serve(spec(hosts, rounds={"count": 4}), out, grid_of(hosts))


def test_a_silo_that_refuses_is_on_record_with_its_rule(hosts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (tmp_path / "north" / "silo.toml").unlink()
    strict = write_charter(tmp_path / "strict", silo="north", limit={"smallest_noise": 50.0})
    with hosted(load_charter(strict)) as host:
        serve(spec(hosts), out, grid_of({"north": host, "south": hosts["south"]}))
    for line in rounds_of(out):
        (fault,) = line["faults"]
        assert fault["silo"] == "north"
        assert fault["reason"].startswith("it refuses: [limit.smallest_noise] a noise multiplier of ")
        assert not line["failed"]


def test_too_few_silos_end_the_run(hosts, tmp_path: Path) -> None:
    alone = grid_of({"south": hosts["south"]})
    wanted = spec(hosts, rounds={"fewest_silos": 2}, federation={"patience": 0.5})
    with pytest.raises(RunError, match=r"Rounds 0 to 2 failed one after the other; .* it is not connected"):
        serve(wanted, tmp_path / "run", alone)
    assert [line["failed"] for line in rounds_of(tmp_path / "run")] == [True] * 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"federation": None}, r"needs the section \[federation\]"),
        ({"policy": {"name": "fedavg"}, "privacy": {"epsilon": None}}, "adds no noise; silos would refuse it"),
        ({"policy": {"as_printed": True, "rate": None, "batch_size": 8}}, "nobody who holds no data can plan them"),
        ({"rounds": {"fewest_silos": 3}}, "fewest_silos = 3 is more than the 2 silos"),
        ({"rounds": {"fewest_silos": 2, "cohort": 1}}, "fewest_silos = 2 is more than the 1 silos"),
        ({"rounds": {"learning_rate": 0.0}}, "learning_rate"),
        ({"privacy": {"epsilon": -1.0}}, "epsilon"),
        ({"model": {"name": "logistik"}}, "did you mean 'logistic'"),
    ],
    ids=str,
)
def test_what_cannot_be_played_is_refused_before_a_folder_is_made(
    hosts, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        serve(spec(hosts, **changes), tmp_path / "run", grid_of(hosts))
    assert not (tmp_path / "run").exists()


def test_a_server_has_no_data(hosts) -> None:
    prepared = prepare_server(spec(hosts))
    assert prepared.silos == {}
    assert prepared.scored == {}


def test_an_app_without_its_settings_is_refused(hosts) -> None:
    for config in ({}, {"spec": "spec.toml"}, {"spec": "spec.toml", "out": 3}):
        context = Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=config)
        with pytest.raises(SpecError, match="names no spec or no out"):
            server.main(grid_of(hosts), context)
