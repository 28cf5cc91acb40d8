"""Private scores of a federation whose server sees only sums: what silos mask, pay for and refuse."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from deployment import table
from grids import Clock, within_a_server_app
from summing import ITEMS, SILOS, SUBJECTS, Services, server_spec, services, training
from wholegrain.deploy.score_service import release_score
from wholegrain.deploy.server import make_task, prepare_server, serve
from wholegrain.deploy.silo_service import SiloService, spent_by_silo
from wholegrain.deploy.sum_service import answer_sum
from wholegrain.engines import wire
from wholegrain.engines.secure_sum_engine import KeysRequest, MaskRequest
from wholegrain.engines.wire import SiloTask
from wholegrain.errors import RefusalError
from wholegrain.federation.private_score import ALL
from wholegrain.privacy.accountants import accountant
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.score_release import ScoreMaker

HELD_OUT = 0.3
EVALUATION = {"test": HELD_OUT, "private": {"every": 2, "noise_multiplier": 12.0, "measures": ["accuracy"]}}
AGREED = {"allow": {"scores": "private"}, "held_out": HELD_OUT}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return within_a_server_app(monkeypatch)


@pytest.fixture
def five(tmp_path: Path, coarse_prices: None) -> Iterator[Services]:
    with services(tmp_path, {"*": AGREED}) as made:
        yield made


def asked(**changes: Any) -> RunSpec:
    return server_spec(rounds={"count": 3}, evaluation=EVALUATION, **changes)


def simulate(folder: Path, **changes: Any) -> RunResult:
    tree = {
        **training(rounds={"count": 3}, evaluation=EVALUATION, **changes),
        "data": {"source": "table", "table": {**table(str(folder / "all.csv")), "silo": "clinic", "span": "span"}},
        "silos": {"items_per_subject": 4, "sizes": {"*": {"items": ITEMS, "subjects": SUBJECTS}}},
    }
    prepared = prepare(RunSpec.of(tree))
    with open_guard(prepared, "0" * 16) as guard:
        return execute(prepared, guard)


def task_of(five: Services, **changes: Any) -> SiloTask:
    prepared = prepare_server(asked(), accountant("pld"))
    return make_task(prepared, prepared.plan.rows[0][0], "run-1").model_copy(update=changes)


def begin(five: Services, task: SiloTask, round: int = 1) -> dict[str, MaskRequest]:
    """Sessions of scores in all silos, and what each is asked to mask."""
    keys = tuple(
        answer_sum(host, task, KeysRequest(round), scores=True)  # type: ignore[misc]
        for host in five.hosts.values()
    )
    return {name: MaskRequest(round, keys, torch.zeros(8), 64) for name in five.hosts}  # type: ignore[arg-type]


def paid(host: SiloService) -> list[tuple[int, int]]:
    """Steps and scores of each run in a silo's ledger."""
    return [(sum(run.reserved.values()), sum(run.scored.values())) for run in host.ledger.state.runs.values()]


def test_a_federation_opens_the_same_scores_as_a_simulation(five: Services, tmp_path: Path) -> None:
    run = serve(asked(), tmp_path / "run", five.grid())
    assert [done.faults for done in run.rounds] == [()] * 3
    assert [done.round for done in run.rounds if done.private] == [1, 2]
    expected = simulate(tmp_path / "data")
    assert run.vector.numpy().tobytes() == expected.vector.numpy().tobytes()
    assert [done.private for done in run.rounds] == [done.private for done in expected.rounds]
    assert set(run.private) == {ALL}
    # One run in each silo's ledger, with three steps and two scores side by side.
    assert [paid(host) for host in five.hosts.values()] == [[(3, 2)]] * len(SILOS)
    kinds = {asked.metadata.message_type for _, asked, _ in five.seen}
    assert {"evaluate.keys", "evaluate.mask", "evaluate.survivors", "evaluate.open"} <= kinds
    assert "evaluate" not in kinds


@pytest.mark.slow
def test_by_span_too(tmp_path: Path, coarse_prices: None) -> None:
    changes = {"policy": {"by_span": True}}
    with services(tmp_path, {"*": {**AGREED, "table": {"span": "span"}}}) as five:
        run = serve(asked(**changes), tmp_path / "run", five.grid())
    expected = simulate(tmp_path / "data", **changes)
    assert [done.faults for done in run.rounds] == [()] * 3
    assert run.private == expected.private
    assert run.vector.numpy().tobytes() == expected.vector.numpy().tobytes()


def test_what_a_silo_sends_of_its_scores_is_masked(five: Services, tmp_path: Path) -> None:
    serve(asked(), tmp_path / "run", five.grid())
    masked = [
        np.frombuffer(wire.read_masked(_Reply(reply)), np.uint8)  # type: ignore[arg-type]
        for _, asked, reply in five.seen
        if asked.metadata.message_type == "evaluate.mask"
    ]
    assert len(masked) == 2 * len(SILOS)
    assert len({each.tobytes() for each in masked}) == len(masked)
    for _, asked_for, reply in five.seen:
        if asked_for.metadata.message_type.startswith("evaluate") and not wire.read_masked(_Reply(reply)):  # type: ignore[arg-type]
            assert not reply.array_records


class _Reply:
    """What `read_masked` needs of a message."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def has_content(self) -> bool:
        return True


def test_a_score_is_paid_for_before_an_item_is_read_and_once(five: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(five, round=1)
    requests, host, seen = begin(five, task), five.hosts["north"], []
    add_up = ScoreMaker.add_up

    def look(self: ScoreMaker, *arguments: Any) -> Any:
        seen.append(paid(host))
        return add_up(self, *arguments)

    monkeypatch.setattr(ScoreMaker, "add_up", look)
    answer_sum(host, task, requests["north"], scores=True)
    assert seen == [[(0, 1)]]
    with pytest.raises(RefusalError, match="answered once"):
        answer_sum(host, task, requests["north"], scores=True)
    again = begin(five, task)  # nor in another session
    with pytest.raises(RefusalError, match="answered once"):
        answer_sum(host, task, again["north"], scores=True)
    assert seen == [[(0, 1)]]
    assert spent_by_silo(host).epsilon > 0


def test_a_session_of_updates_is_none_of_scores(five: Services) -> None:
    task = task_of(five, round=1)
    keys = tuple(answer_sum(host, task, KeysRequest(1)) for host in five.hosts.values())
    with pytest.raises(RefusalError, match="begins with keys"):
        answer_sum(five.hosts["north"], task, MaskRequest(1, keys, torch.zeros(8), 64), scores=True)  # type: ignore[arg-type]
    begin(five, task)
    with pytest.raises(RefusalError, match=r"not signed by it|hold another key"):
        answer_sum(five.hosts["north"], task, MaskRequest(1, keys, torch.zeros(8), 64), scores=True)  # type: ignore[arg-type]


def test_a_silo_that_agrees_to_sums_alone_gives_no_score_by_itself(five: Services) -> None:
    host = five.hosts["north"]
    local = task_of(five, settings=task_of(five).settings.__class__(rate=0.5))
    for task in (task_of(five), local):
        with pytest.raises(RefusalError, match=r"\[allow.trust\]"):
            release_score(host, task, torch.zeros(8))
    assert paid(host) == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"noise_multiplier": 0.1}, "limit.smallest_noise"),
        ({"by_span": True}, "message"),
        ({"measures": ("mae",)}, "message"),
        (None, "allow.scores"),
    ],
)
def test_what_the_charter_forbids_begins_no_session(five: Services, change: dict[str, Any] | None, rule: str) -> None:
    task = task_of(five)
    assert task.scores is not None
    form = None if change is None else task.scores.model_copy(update=change)
    with pytest.raises(RefusalError, match=rf"\[{rule}\]"):
        answer_sum(five.hosts["north"], task.model_copy(update={"scores": form}), KeysRequest(1), scores=True)
    assert paid(five.hosts["north"]) == []


def test_a_silo_without_private_scores_takes_no_part_in_a_sum_of_them(tmp_path: Path, coarse_prices: None) -> None:
    with services(tmp_path) as five, pytest.raises(RefusalError, match=r"\[allow.scores\]"):
        answer_sum(five.hosts["north"], task_of(five), KeysRequest(1), scores=True)
