"""Private scores in a federation: three silos train, are scored each fifth round, and pay; no raw score is sent."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict

from deployment import message, task, vector, write_charter
from grids import FakeGrid, Node, within_a_server_app
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.score_service import release_score
from wholegrain.deploy.server import prepare_server, serve
from wholegrain.deploy.silo_answers import answer, open_silo
from wholegrain.deploy.silo_service import SiloService, spent_by_silo
from wholegrain.engines import wire
from wholegrain.errors import RefusalError, RunError
from wholegrain.federation.private_score import ALL
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.score_release import ScoreMaker

NAMES = ("north", "south", "west")
FORM = ScoreForm(noise_multiplier=6.0, measures=("accuracy",))
HELD_OUT = 0.4


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, SiloService]]:
    within_a_server_app(monkeypatch)
    with ExitStack() as stack:
        limit = {"noise": "secure", "smallest_noise": 0.5, "epsilon": 6.0}
        allow = {"models": [{"name": "logistic"}], "scores": "private"}
        paths = [
            write_charter(tmp_path / name, silo=name, limit=limit, allow=allow, held_out=HELD_OUT) for name in NAMES
        ]
        opened = [stack.enter_context(open_silo(load_charter(path))) for path in paths]
        yield dict(zip(NAMES, opened, strict=True))


def node(host: SiloService) -> Node:
    def reply(asked: Message) -> RecordDict:
        return answer(asked, host).content

    return reply


def spec(**changes: Any) -> RunSpec:
    silos = [{"name": name, "items": 100, "subjects": 40, "items_per_subject": 4} for name in NAMES]
    tree: dict[str, Any] = {
        "policy": {"name": "subject_dp", "rate": 0.5},
        "privacy": {"epsilon": 8.0, "noise": "secure"},
        "rounds": {"count": 10, "steps": 1},
        "evaluation": {"test": HELD_OUT, "private": {"every": 5, "share": 0.5}},
        "federation": {"shape": [3], "classes": 2, "silos": silos, "patience": 20.0},
    }
    for section, values in changes.items():
        tree[section] = {**tree.get(section, {}), **values}
    return RunSpec.of(tree)


@pytest.mark.slow
def test_three_silos_train_score_each_fifth_round_and_stop_at_their_budget(
    hosts: dict[str, SiloService], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = FakeGrid({number: node(host) for number, host in enumerate(hosts.values(), start=11)})
    raw: list[float] = []
    add_up = ScoreMaker.add_up

    def watched(self: ScoreMaker, *arguments: Any) -> Any:
        found = add_up(self, *arguments)
        raw.append(float(found[0]) / 2**20)
        return found

    monkeypatch.setattr(ScoreMaker, "add_up", watched)
    result = serve(spec(), tmp_path / "run", grid)
    assert [done.round for done in result.rounds if done.private] == [4, 9]
    assert set(result.private) == {ALL, *NAMES}
    assert result.guarantee.epsilon <= 8.0
    assert len(raw) == 2 * len(NAMES)
    people = result.plan.scores.sizes  # type: ignore[union-attr]
    for number, name in enumerate(NAMES):
        sent = (result.rounds[9].private[name]["accuracy"].value - 0.5) * 2 * people[name]
        assert abs(sent - raw[3 + number]) > 1e-6  # the server has the noisy sum, and nothing else
        paid = hosts[name].ledger.state.runs
        assert [dict(run.scored) for run in paid.values()] == [{name: 2}]
        assert [dict(run.reserved) for run in paid.values()] == [{name: 10}]
        assert spent_by_silo(hosts[name]).epsilon <= 6.0
    # Another run is more than what the charters' ε is left with: silos refuse, and nobody trains or is scored.
    with pytest.raises(RunError, match=r"limit\.epsilon"):
        serve(spec(privacy={"epsilon": 40.0}, ledger={"budget": "second"}), tmp_path / "more", grid)
    assert len(raw) == 2 * len(NAMES)


def test_a_private_score_is_paid_for_before_an_item_is_read(
    hosts: dict[str, SiloService], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, seen = hosts["north"], []

    def look(*_: Any) -> Any:
        seen.append([dict(run.scored) for run in host.ledger.state.runs.values()])
        raise RuntimeError

    monkeypatch.setattr(ScoreMaker, "score", look)
    with pytest.raises(RuntimeError):
        release_score(host, task(scores=FORM), vector())
    assert seen == [[{"north": 1}]]


def test_training_and_scores_of_one_run_are_priced_side_by_side(hosts: dict[str, SiloService]) -> None:
    host = hosts["north"]
    host.answer(task(scores=FORM, noise_multiplier=4.0), vector())
    alone = spent_by_silo(host).epsilon
    first = release_score(host, task(scores=FORM, noise_multiplier=4.0), vector())
    assert spent_by_silo(host).epsilon < 1.5 * alone
    assert len(host.ledger.state.runs) == 1
    again = release_score(host, task(scores=FORM, noise_multiplier=4.0), vector())
    assert first.shape == (1,)
    assert not torch.equal(first, again)  # fresh noise, and paid for twice
    (run,) = host.ledger.state.runs.values()
    assert run.scored == {"north": 2}


def test_silos_toss_coins_of_their_own_and_the_server_prices_whoever_is_on_both_sides(
    hosts: dict[str, SiloService],
) -> None:
    """All three have the same people: somebody is trained on in one silo and held out in another."""
    held = {name: set(host.held_out.subjects.tolist()) for name, host in hosts.items() if host.held_out is not None}
    trained = {name: set(host.silo.data.subjects.tolist()) for name, host in hosts.items()}
    assert all(not held[name] & trained[name] for name in NAMES)
    assert held["north"] & trained["south"]
    plan = prepare_server(spec()).plan
    assert plan.scores is not None
    assert plan.scores.own_coins
    assert len(plan.terms.split) == 2


@pytest.mark.parametrize(
    ("form", "rule"),
    [
        (FORM.model_copy(update={"noise_multiplier": 0.1}), "limit.smallest_noise"),
        (FORM.model_copy(update={"measures": ("mae",)}), "message"),
        (None, "allow.scores"),
    ],
)
def test_what_the_charter_forbids_is_refused_and_costs_nothing(
    hosts: dict[str, SiloService], form: ScoreForm | None, rule: str
) -> None:
    host = hosts["north"]
    before = host.ledger.head.number
    with pytest.raises(RefusalError, match=rf"\[{rule}\]"):
        release_score(host, task(scores=form), vector())
    assert host.ledger.head.number == before


def test_a_silo_without_private_scores_gives_none(tmp_path: Path) -> None:
    for number, changes in enumerate(({}, {"allow": {"scores": ["accuracy"]}, "held_out": 0.5})):
        with open_silo(load_charter(write_charter(tmp_path / f"silo-{number}", **changes))) as host:
            with pytest.raises(RefusalError, match=r"\[allow.scores\]"):
                release_score(host, task(scores=FORM), vector())
            asked = message(kind="query")
            assert "held_out" not in wire.read_answer(Message(node(host)(asked), reply_to=asked))


def test_raw_scores_never_leave_a_silo_that_allows_private_ones(hosts: dict[str, SiloService]) -> None:
    with pytest.raises(RefusalError, match=r"\[allow.scores\]"):
        hosts["north"].scores(task(), vector())


@pytest.mark.parametrize("how", ["another share is held out", "the key of the coins is lost"])
def test_a_run_in_whose_middle_others_are_held_out_is_two_runs(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody was trained on before and is scored now: the larger of the two sides is too small a price."""
    limit = {"noise": "secure", "smallest_noise": 0.5, "epsilon": 20.0}
    allow = {"models": [{"name": "logistic"}], "scores": "private"}
    asked = task(scores=FORM.model_copy(update={"noise_multiplier": 1.0}), noise_multiplier=1.0)
    monkeypatch.setenv("WHOLEGRAIN_STATE", str(tmp_path / "state"))
    with open_silo(load_charter(write_charter(tmp_path, limit=limit, allow=allow, held_out=0.3))) as host:
        trained = set(host.silo.data.subjects.tolist())
        host.answer(asked, vector())
        alone = spent_by_silo(host).epsilon
    if how == "the key of the coins is lost":
        for key in (tmp_path / "state" / "keys").glob("*.key"):
            key.unlink()
    share = 0.7 if how == "another share is held out" else 0.3
    with open_silo(load_charter(write_charter(tmp_path, limit=limit, allow=allow, held_out=share))) as host:
        assert host.held_out is not None
        assert trained & set(host.held_out.subjects.tolist())
        release_score(host, asked, vector())
        assert len(host.ledger.state.runs) == 2
        assert spent_by_silo(host).epsilon > 1.2 * alone
