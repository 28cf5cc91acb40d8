"""A silo that does not trust its server: what the charter forbids costs nothing, what it allows is paid for first.

The oracle of these tests prices what really left the silo, from the tasks alone, with no help from the ledger.
"""

import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from dp_accounting import DpEvent
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from effort import coarse_grids, examples

pytest.importorskip("flwr")

import wholegrain as wg
from backbones import public_model, write_backbone
from deployment import PARAMETERS, charter_tree, task, vector, write_charter
from wholegrain.clipping.parameters import flatten
from wholegrain.data.dataset import Dataset
from wholegrain.deploy.charter import Charter, load_charter
from wholegrain.deploy.model_agreement import agree
from wholegrain.deploy.silo_answers import open_silo
from wholegrain.deploy.silo_service import SiloService, operator_status
from wholegrain.engines.wire import SiloTask, StartTask
from wholegrain.errors import LedgerError, ModelError, RefusalError
from wholegrain.federation.rounds import digest
from wholegrain.models import model_catalog
from wholegrain.policies.guarantees import terms
from wholegrain.policies.policy import Policy
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.privacy import events, ledger
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.privacy.filters import Filter
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Account, TermsRecord
from wholegrain.privacy.trust import SecureSum
from wholegrain.silo import training
from wholegrain.silo.noise_sources import noise_source
from wholegrain.silo.score_release import HeldOut
from wholegrain.silo.training import Silo, Trainer

pytestmark = pytest.mark.usefixtures("coarse_prices")

Open = Callable[..., SiloService]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Silos of charters with these changes; their ledgers are files."""
    contexts = []

    def open_changed(**changes: Any) -> SiloService:
        contexts.append(open_silo(load_charter(write_charter(tmp_path, **changes))))
        return contexts[-1].__enter__()

    yield open_changed
    for context in contexts:
        context.__exit__(None, None, None)


def entries(host: SiloService) -> list[tuple[Any, ...]]:
    """Every entry of the ledger's file, read by somebody else."""
    assert host.ledger.path is not None
    with sqlite3.connect(host.ledger.path) as database:
        return database.execute("SELECT * FROM entries ORDER BY number").fetchall()


def kinds(host: SiloService) -> list[str]:
    return [body.split('"')[3] for _, _, body, _ in entries(host)]


def spent(host: SiloService) -> float:
    found = operator_status(host)["epsilon_spent"]
    assert isinstance(found, float)
    return found


def cost(tasks: Iterable[SiloTask], delta: float = 1e-5) -> float:
    """What a subject loses by these tasks of subject_dp, if each was answered, and chosen after the answers before."""
    return Filter(PldAccountant(), 4.0).epsilon(_event(tasks), delta)


def _event(tasks: Iterable[SiloTask]) -> DpEvent:
    return events.compose(
        events.repeat(events.sampled_gaussian(_rate(asked), asked.noise_multiplier), asked.steps) for asked in tasks
    )


def _rate(asked: SiloTask) -> float:
    given = asked.settings
    return given.rate if given.rate is not None else min(1.0, (given.batch_size or 1) / 40)


def refusal(host: SiloService, asked: SiloTask, start: Tensor | None = None) -> RefusalError:
    """The refusal of this task, with the ledger as it was."""
    before = entries(host)
    with pytest.raises(RefusalError) as caught:
        host.answer(asked, vector() if start is None else start)
    assert entries(host) == before
    return caught.value


def subject(**changes: Any) -> dict[str, Any]:
    return {"settings": PolicySettings(**{"rate": 0.5, **changes})}


@pytest.fixture(scope="module", params=[False, True], ids=["new", "used"])
def asked_often(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SiloService]:
    """A silo that has answered nothing yet, or one task, and that is asked for one forbidden thing after the other."""
    charter = load_charter(write_charter(tmp_path_factory.mktemp("silo")))
    with open_silo(charter) as host, coarse_grids():
        if request.param:
            host.answer(task(), vector())
        yield host


@pytest.mark.parametrize("smallest", [0.5, 1.0, 2.0, 6.0])
def test_noise_that_is_divided_among_silos_is_not_refused_for_a_rounding(tmp_path: Path, smallest: float) -> None:
    """1/√15 · √15 is less than 1 in floating point."""
    rules = SecureSum.over(18, answers=16)
    settings = PolicySettings(rate=0.5, trust=rules)
    with open_silo(load_charter(write_charter(tmp_path, limit={"smallest_noise": smallest}))) as host:
        host.policy_for(task(settings=settings, steps=1, noise_multiplier=rules.silo_noise(smallest)))
        with pytest.raises(RefusalError, match="too small"):
            host.policy_for(task(settings=settings, steps=1, noise_multiplier=rules.silo_noise(smallest * 0.9999)))


NAN, INF = float("nan"), float("inf")

FORBIDDEN: dict[str, tuple[str, dict[str, Any], Tensor | None]] = {
    "another model": ("allow.models", {"model": "mlp"}, None),
    "a model of its own": ("allow.models", {"model": "os:system"}, None),
    "other options": ("allow.models", {"options": {"hidden": [9]}}, None),
    "the options of another model": ("allow.models", {"model": "mlp", "options": {}}, None),
    "another policy": ("allow.policies", {"policy": "local_item_dp"}, None),
    "no policy of this world": ("allow.policies", {"policy": "nothing"}, None),
    "no noise at all": ("allow.policies", {"policy": "fedavg"}, None),
    "noise that others should add": ("allow.trust", subject(trust=SecureSum.over(100)), None),
    "less noise": ("limit.smallest_noise", {"noise_multiplier": 0.999}, None),
    "next to no noise": ("limit.smallest_noise", {"noise_multiplier": 1e-300}, None),
    "a larger clip": ("limit.largest_clip", subject(clip_norm=1.001), None),
    "a huge clip": ("limit.largest_clip", subject(clip_norm=1e60), None),
    "a clip of nothing": ("message", subject(clip_norm=0.0), None),
    "a negative clip": ("message", subject(clip_norm=-1.0), None),
    "a clip beyond precision": ("message", subject(clip_norm=1e-40), None),
    "too many steps": ("limit.most_steps", {"steps": 6}, None),
    "far too many steps": ("limit.most_steps", {"steps": 10**6}, None),
    "too few parameters": ("parameters", {}, torch.zeros(PARAMETERS - 1)),
    "too many parameters": ("parameters", {}, torch.zeros(PARAMETERS + 1)),
    "no parameters": ("parameters", {}, torch.zeros(0)),
    "parameters in a table": ("parameters", {}, torch.zeros(PARAMETERS, 1)),
    "NaN": ("parameters", {}, vector(NAN)),
    "infinity": ("parameters", {}, vector(0, INF)),
    "minus infinity": ("parameters", {}, vector(0, -INF)),
    "more than ε in one task": ("limit.epsilon", {"noise_multiplier": 1.0, "steps": 5, **subject(rate=1.0)}, None),
    "all of them by a huge batch": (
        "limit.epsilon",
        {"noise_multiplier": 1.0, "steps": 5, "settings": PolicySettings(batch_size=10**12)},
        None,
    ),
}


@pytest.mark.parametrize(("rule", "changes", "start"), FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_what_the_charter_forbids_is_refused_by_its_rule_and_costs_nothing(
    asked_often: SiloService, rule: str, changes: dict[str, Any], start: Tensor | None
) -> None:
    assert refusal(asked_often, task(**changes), start).rule == rule


def test_the_model_of_a_server_is_not_even_imported(opened: Open, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "planted.py").write_text("from pathlib import Path\nPath(__file__).with_name('marker').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    refusal(opened(), task(model="planted:make"))
    assert not (tmp_path / "marker").exists()
    assert "planted" not in sys.modules


def test_no_model_is_built_before_the_charter_is_asked(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    host = opened()
    monkeypatch.setattr(model_catalog, "build", lambda *_: pytest.fail("a model was built"))
    refusal(host, task(model="mlp", options={"hidden": [10**9]}))


# A public start: what the server names must be what the charter names, from the silo's own file.

HEAD, LOW_RANK, MLP = 10, 24, 26
"""Parameters that are trained: the head, with updates of rank 2 beside the layer before it, all of them."""


@pytest.fixture
def started(opened: Open, tmp_path: Path) -> tuple[SiloService, SiloService, str]:
    """A silo that agrees to the head of a backbone, one that agrees to updates of rank 2, and the backbone's digest."""
    digest = write_backbone(tmp_path / "b.safetensors")
    asked = [("head", None), ("low_rank", 2)]
    head, low_rank = (
        opened(
            allow={"models": [public_model("b.safetensors", train, rank), {"name": "logistic"}]},
            ledger={"data": f"visits-{seed}"},
            seed=seed,
        )
        for seed, (train, rank) in enumerate(asked)
    )
    return head, low_rank, digest


def from_backbone(digest: str, train: str = "head", rank: int | None = None, **changes: Any) -> SiloTask:
    start = StartTask(digest=digest, train=train, rank=rank)
    return task(model="mlp", options={"hidden": [4]}, start=start, **changes)


def test_a_silo_trains_from_its_own_copy_and_only_what_is_trained_travels(started) -> None:
    head, low_rank, digest = started
    for host, asked, size in (
        (head, from_backbone(digest), HEAD),
        (low_rank, from_backbone(digest, "low_rank", 2), LOW_RANK),
    ):
        assert host.answer(asked, torch.zeros(size)).shape == (size,)
        assert refusal(host, asked, torch.zeros(MLP)).rule == "parameters"
        host.answer(task(run="plain"), vector())  # the other model of the charter is as it was


def test_what_is_frozen_is_computed_once_and_in_the_silo(started, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, digest = started
    for round in range(2):
        host.answer(from_backbone(digest, round=round), torch.zeros(HEAD))
        monkeypatch.setattr(training, "apply_view", lambda *_: pytest.fail("computed again"))
    (agreed, _) = host.agreed
    frozen = model_catalog.build("mlp", 3, 2, 11, {"hidden": [4]})[:3]
    expected = frozen(torch.from_numpy(host.silo.data.inputs).float())
    torch.testing.assert_close(agreed.silo.inputs, expected)  # by another library on some processors


def test_another_loss_than_the_charters_is_refused_and_costs_nothing(opened: Open) -> None:
    host = opened(allow={"models": [{"name": "logistic", "loss": "multi_margin"}]})
    for asked in (task(), task(loss="cross_entropy"), task(loss="os:system")):
        assert refusal(host, asked).rule == "allow.models"
    assert spent(host) == 0
    assert host.answer(task(loss="multi_margin"), vector()).isfinite().all()


def test_another_start_than_the_charters_is_refused_and_costs_nothing(started) -> None:
    head, low_rank, digest = started
    other = "0" * 64
    cases = [
        (head, from_backbone(other), f"not from the backbone {other}"),
        (head, from_backbone(digest, "all"), "train 'all'"),
        (head, from_backbone(digest, "low_rank", 2), "train 'low_rank', rank 2"),
        (head, from_backbone(digest, "head", 2), "train 'head', rank 2"),
        (head, task(model="mlp", options={"hidden": [4]}), "not from no backbone"),
        (head, task(start=from_backbone(digest).start), "'logistic' is agreed to from no backbone, not from the"),
        (low_rank, from_backbone(digest, "low_rank", 3), "rank 3"),
        (low_rank, from_backbone(digest, "low_rank"), "train 'low_rank')"),
        (low_rank, from_backbone(digest), "train 'head'"),
        (low_rank, from_backbone(digest, "low_rank", 2).model_copy(update={"model": "small_cnn"}), "'small_cnn' with"),
    ]
    for host, asked, said in cases:
        refused = refusal(host, asked, torch.zeros(HEAD))
        assert refused.rule == "allow.models"
        assert said in str(refused)


def test_a_charter_without_a_start_refuses_one(opened: Open, tmp_path: Path) -> None:
    host = opened(allow={"models": [{"name": "mlp", "options": {"hidden": [4]}}]})
    refused = refusal(host, from_backbone("0" * 64), torch.zeros(MLP))
    assert "'mlp' is agreed to from no backbone, not from the backbone" in str(refused)
    host.answer(task(model="mlp", options={"hidden": [4]}), torch.zeros(MLP))


def test_scores_are_of_the_whole_model(opened: Open, tmp_path: Path) -> None:
    digest = write_backbone(tmp_path / "b.safetensors")
    models = [public_model("b.safetensors", "head"), public_model("b.safetensors", "all")]
    host = opened(held_out=0.5, allow={"scores": ["loss"], "models": models})
    whole = flatten(host.agreed[1].learner.model)
    head = host.scores(from_backbone(digest), whole[-HEAD:])
    assert head["loss"] == pytest.approx(host.scores(from_backbone(digest, "all"), whole)["loss"], rel=1e-5)


def test_another_backbone_under_the_same_run_is_another_release(opened: Open, tmp_path: Path) -> None:
    for seed in (1, 2):
        digest = write_backbone(tmp_path / "b.safetensors", seed)
        host = opened(limit={"noise": "seeded"}, allow={"models": [public_model("b.safetensors", "head")]})
        host.answer(from_backbone(digest), torch.zeros(HEAD))
    assert spent(host) == pytest.approx(cost([task()] * 2), rel=1e-6)


@pytest.mark.parametrize("policy", ["fedavg", "local_item_dp", "user_ldp", "local_group_dp", "higradavg_dp"])
def test_fedavg_is_refused_even_where_the_charter_names_it_and_others_are_priced(opened: Open, policy: str) -> None:
    host = opened(allow={"policies": [policy], "models": [{"name": "logistic"}]})
    asked = task(policy=policy, noise_multiplier=20.0, **subject(rate=0.1, group_cap=2))
    if policy == "fedavg":
        assert refusal(host, asked).rule == "allow.policies"
        return
    host.answer(asked, vector())
    assert 0 < spent(host) <= 4.0


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ("local_group_dp", {"group_cap": 1}),
        ("local_group_dp", {"group_cap": 10**6}),
        ("subject_dp", {"items_per_step": 1}),
        ("subject_dp", {"items_per_step": 10**6}),
        ("subject_dp", {"group_cap": 1}),
        ("subject_dp", {"rate": None, "batch_size": 10**12}),
        ("subject_dp", {"rate": 1e-9}),
        ("local_item_dp", {"rate": None, "batch_size": 1}),
    ],
)
def test_the_row_that_is_trained_is_the_row_that_is_priced(
    opened: Open, monkeypatch: pytest.MonkeyPatch, policy: str, changes: dict[str, Any]
) -> None:
    trained: list[tuple[Policy, int]] = []
    real = Trainer.train

    def spy(self: Trainer, silo: Silo, policy: Policy, vector: Tensor, round: int, steps: int) -> Tensor:
        trained.append((policy, steps))
        return real(self, silo, policy, vector, round, steps)

    monkeypatch.setattr(Trainer, "train", spy)
    host = opened(allow={"policies": [policy], "models": [{"name": "logistic"}]})
    host.answer(task(policy=policy, noise_multiplier=30.0, **subject(**changes)), vector())
    ((row, steps),) = trained
    (run,) = host.ledger.state.runs.values()
    assert run.opening.terms == TermsRecord.of(terms([(row, host.silo.facts)], span=1))
    assert run.reserved == run.released == {"north": steps}


def test_a_cap_within_the_batch_buys_nothing_from_a_policy_that_has_none(opened: Open) -> None:
    host = opened()
    host.answer(task(settings=PolicySettings(rate=0.5, group_cap=1, items_per_step=1)), vector())
    assert spent(host) == pytest.approx(cost([task()]), rel=1e-6)


def test_rounds_go_on_for_as_long_as_the_budget_lasts_and_no_longer(opened: Open) -> None:
    host = opened()
    affordable = 0
    while cost([task()] * (affordable + 1)) <= 4.0:
        affordable += 1
    for round in range(affordable):
        host.answer(task(round=round), vector())
    assert affordable > 2
    assert spent(host) == pytest.approx(cost([task()] * affordable))
    refused = refusal(host, task(round=affordable))
    assert refused.rule == "limit.epsilon"
    assert "would bring ε to" in str(refused)
    assert refusal(host, task(round=0, run="another")).rule == "limit.epsilon"
    assert refusal(host, task(round=0, spec="another")).rule == "limit.epsilon"
    assert refusal(host, task(round=0), vector(0.1)).rule == "limit.epsilon"
    host.answer(task(round=affordable, steps=1, noise_multiplier=1e4), vector())  # what still fits is still allowed


OTHERWISE: list[dict[str, Any]] = [
    {"run": "another"},
    {"spec": "another"},
    {"round": 1},
    {"steps": 1},
    {"steps": 3},
    {"learning_rate": 0.25},
    {"noise_multiplier": 2.5},
    subject(clip_norm=0.5),
    subject(rate=0.25),
    subject(items_per_step=1),
    subject(group_cap=1),
    {"settings": PolicySettings(batch_size=20)},
]


# Secure noise is never drawn twice, so that one change stands for all.
@pytest.mark.parametrize(
    ("noise", "changes"), [*(("seeded", each) for each in OTHERWISE), ("secure", OTHERWISE[5])], ids=str
)
def test_whatever_is_asked_otherwise_is_another_release_and_paid_for(
    opened: Open, noise: str, changes: dict[str, Any]
) -> None:
    host = opened(limit={"noise": noise})
    for asked in (task(), task(**changes)):
        host.answer(asked, vector())
    assert kinds(host).count("reserved") == kinds(host).count("released") == 2
    assert spent(host) == pytest.approx(cost([task(), task(**changes)]), rel=1e-3)


def test_other_parameters_are_another_release(opened: Open) -> None:
    host = opened(limit={"noise": "seeded"})
    host.answer(task(), vector())
    host.answer(task(), vector(1.0))
    assert spent(host) == pytest.approx(cost([task()] * 2))


def test_the_same_seeded_release_is_paid_for_once_and_is_the_same_to_the_last_bit(opened: Open) -> None:
    host = opened(limit={"noise": "seeded"})
    first = host.answer(task(), vector())
    before = entries(host)
    assert torch.equal(first, host.answer(task(), vector()))
    assert entries(host) == before


def test_secure_noise_is_paid_for_each_time_that_it_is_drawn(opened: Open) -> None:
    host = opened()
    answers = [host.answer(task(), vector()) for _ in range(3)]
    assert len({tuple(answer.tolist()) for answer in answers}) == 3
    assert kinds(host).count("reserved") == kinds(host).count("released") == 3
    assert spent(host) == pytest.approx(cost([task()] * 3))


def test_no_task_leaves_a_ledger_that_contradicts_itself(opened: Open, tmp_path: Path) -> None:
    host = opened(limit={"noise": "seeded"})
    for steps in (1, 2, 3):
        host.answer(task(steps=steps), vector())
    assert host.ledger.path is not None
    with Ledger.open(host.ledger.path) as again:
        assert again.state.runs_of(Account(data="visits of north"))


def test_a_silo_that_starts_again_remembers(opened: Open) -> None:
    host = opened()
    host.answer(task(), vector())
    again = opened()
    assert spent(again) == pytest.approx(cost([task()]), rel=1e-6)
    again.answer(task(), vector())
    assert spent(again) == pytest.approx(cost([task()] * 2))
    assert spent(host) == spent(again)


def test_a_silo_whose_ledger_is_gone_begins_no_fresh_one(opened: Open, tmp_path: Path) -> None:
    """Nor does one whose charter was copied and names another place, or whose table was renamed."""
    opened().answer(task(), vector())
    for name in ("ledger.sqlite", "ledger.sqlite.heads"):
        (tmp_path / name).rename(tmp_path / f"away-{name}")
    with pytest.raises(LedgerError, match="keeps the account of the data 'visits of north' in"):
        opened()
    with pytest.raises(LedgerError, match="keeps the account of the data 'visits of north' in"):
        opened(ledger={"path": "elsewhere.sqlite"})
    assert not (tmp_path / "elsewhere.sqlite").exists()


def test_renaming_the_table_opens_no_fresh_budget(opened: Open, tmp_path: Path) -> None:
    opened().answer(task(), vector())
    before = spent(opened())
    charter = write_charter(tmp_path)
    (tmp_path / "visits.csv").rename(tmp_path / "renamed.csv")
    charter.write_text(charter.read_text().replace("visits.csv", "renamed.csv"))
    with open_silo(load_charter(charter)) as again:
        assert spent(again) == before > 0


def test_a_server_that_changes_its_terms_in_every_round_is_priced_by_the_filter(opened: Open) -> None:
    host = opened()
    asked = [task(round=number, steps=1, noise_multiplier=3.0 + number) for number in range(4)]
    for each in asked:
        host.answer(each, vector())
    assert spent(host) == pytest.approx(cost(asked), rel=1e-9)
    assert spent(host) > PldAccountant().epsilon(_event(asked), 1e-5)


def test_payment_comes_first_then_training_then_the_confirmation(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    real = Trainer.train

    def train(self: Trainer, *arguments: Any) -> Tensor:
        seen.append(kinds(host))
        return real(self, *arguments)

    monkeypatch.setattr(Trainer, "train", train)
    host = opened()
    start = vector(0.5)
    host.answer(task(round=4, steps=3), start)
    assert seen == [["ledger", "budget", "run", "reserved"]]
    assert kinds(host) == ["ledger", "budget", "run", "reserved", "released"]
    assert '"round":4,"silo":"north","steps":3' in entries(host)[3][2]
    assert digest(start) in entries(host)[3][2]


def test_a_task_that_dies_has_paid_and_released_nothing(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> Tensor:
        raise MemoryError

    monkeypatch.setattr(Trainer, "train", die)
    host = opened()
    with pytest.raises(MemoryError):
        host.answer(task(), vector())
    assert kinds(host) == ["ledger", "budget", "run", "reserved"]
    assert spent(host) == pytest.approx(cost([task()]), rel=1e-6)


def test_no_item_is_touched_before_the_budget_is_asked(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    host = opened()
    monkeypatch.setattr(Trainer, "train", lambda *_: pytest.fail("it trained"))
    for rule, changes, start in FORBIDDEN.values():
        assert refusal(host, task(**changes), start).rule == rule


def test_parameters_of_the_server_are_left_as_they_were(opened: Open) -> None:
    start = vector(0.5)
    update = opened().answer(task(), start)
    assert torch.equal(start, vector(0.5))
    assert not torch.equal(update, start)


def test_other_limits_than_the_ledgers_are_refused_until_the_operator_opens_another_budget(opened: Open) -> None:
    opened().answer(task(), vector())
    richer = opened(limit={"epsilon": 400.0})
    refused = refusal(richer, task())
    assert refused.rule == "limit"
    assert "open another one by name" in str(refused)
    renamed = opened(limit={"epsilon": 400.0}, ledger={"budget": "2027"})
    renamed.answer(task(), vector())


def test_a_ledger_with_a_strange_entry_releases_nothing(opened: Open) -> None:
    host = opened()
    host.answer(task(), vector())
    assert host.ledger.path is not None
    with sqlite3.connect(host.ledger.path) as database:
        database.execute("INSERT INTO entries VALUES (6, 'now', '{}', 'no hash')")
    with pytest.raises(LedgerError, match="cannot be trusted"):
        host.answer(task(round=1), vector())
    with pytest.raises(LedgerError, match="cannot be trusted"):
        opened()


def test_a_ledger_that_was_cut_short_does_not_open(opened: Open) -> None:
    host = opened()
    host.answer(task(), vector())
    assert host.ledger.path is not None
    with sqlite3.connect(host.ledger.path) as database:
        database.execute("DROP TRIGGER no_removal")
        database.execute("DELETE FROM entries WHERE number > 3")
    with pytest.raises(LedgerError, match="cannot be trusted"):
        opened()


def test_a_ledger_that_cannot_be_written_releases_nothing(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PATIENCE", 0.1)
    monkeypatch.setattr(Trainer, "train", lambda *_: pytest.fail("it trained"))
    host = opened()
    assert host.ledger.path is not None
    with sqlite3.connect(host.ledger.path) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="cannot be used"):
            host.answer(task(), vector())
    assert kinds(host) == ["ledger"]


def test_a_witness_that_cannot_be_written_releases_nothing(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "train", lambda *_: pytest.fail("it trained"))
    host = opened()
    assert host.ledger.path is not None
    witness = host.ledger.path.with_name("ledger.sqlite.heads")
    witness.unlink()
    witness.mkdir()
    with pytest.raises(LedgerError, match="cannot be used"):
        host.answer(task(), vector())


def test_no_score_leaves_a_silo_that_does_not_allow_it(opened: Open) -> None:
    for changes in ({}, {"held_out": 0.5}, {"allow": {"scores": ["accuracy"]}}):
        host = opened(**changes)
        with pytest.raises(RefusalError, match=r"\[allow.scores\]"):
            host.scores(task(), vector())


@pytest.mark.parametrize("allowed", [["accuracy"], ["loss"], ["loss", "accuracy"]])
def test_the_scores_that_the_charter_allows_leave_and_cost_nothing(opened: Open, allowed: list[str]) -> None:
    host = opened(held_out=0.5, allow={"scores": allowed})
    before = entries(host)
    found = host.scores(task(), vector())
    assert list(found) == allowed
    assert entries(host) == before
    for start, rule in ((vector(NAN), "parameters"), (torch.zeros(3), "parameters")):
        with pytest.raises(RefusalError, match=rf"\[{rule}\]"):
            host.scores(task(), start)
    with pytest.raises(RefusalError, match=r"\[allow.models\]"):
        host.scores(task(model="mlp"), vector())


def test_an_operator_sees_where_the_silo_stands(opened: Open) -> None:
    host = opened()
    host.answer(task(), vector())
    standing = operator_status(host)
    assert standing["epsilon_spent"] == pytest.approx(cost([task()]), rel=1e-6)
    assert standing["accountant"] == "Rényi filter"
    assert standing["subjects"] == 40
    assert standing["noise"].startswith("secure")


# No sequence of tasks, whatever they are, costs more than the charter allows.

SILO: dict[str, tuple[Dataset, Silo]] = {}
GRID = 0.05
"""Coarse, which makes ε an upper bound that is quickly had."""


def fresh_host(book: Ledger, noise: str) -> SiloService:
    """A silo that has just started, over a ledger that may not be new; its table is read once."""
    charter = Charter.model_validate(charter_tree(limit={"noise": noise}))
    dataset, silo = SILO["parts"]
    agreed = agree(charter, dataset, silo, HeldOut(None))
    return SiloService(charter, dataset, silo, None, agreed, book, PldAccountant(GRID), lambda: noise_source(noise, 3))


@pytest.fixture(scope="module", autouse=True)
def one_silo(tmp_path_factory: pytest.TempPathFactory) -> None:
    with open_silo(load_charter(write_charter(tmp_path_factory.mktemp("silo")))) as host:
        SILO["parts"] = host.dataset, host.silo


rates = st.sampled_from([1.0, 0.5, 0.1, 1e-9])
some_settings = st.builds(
    PolicySettings,
    rate=rates,
    clip_norm=st.sampled_from([1.0, 0.5, 1e-12, 2.0]),
    group_cap=st.sampled_from([None, 1]),
    items_per_step=st.sampled_from([None, 1]),
) | st.builds(PolicySettings, batch_size=st.sampled_from([1, 20, 10**12]))
tasks = st.builds(
    task,
    run=st.sampled_from(["a", "b"]),
    spec=st.sampled_from(["s", "t"]),
    round=st.integers(0, 2),
    steps=st.sampled_from([1, 2, 5, 6]),
    policy=st.sampled_from(["subject_dp", "subject_dp", "subject_dp", "fedavg", "user_ldp"]),
    settings=some_settings,
    noise_multiplier=st.sampled_from([1.0, 1.5, 3.0, 1e6, 0.5]),
    learning_rate=st.sampled_from([0.5, 1e6]),
    model=st.sampled_from(["logistic", "logistic", "mlp"]),
)
starts = st.sampled_from([vector(), vector(1.0), vector(1e38), vector(NAN), torch.zeros(3)])


@examples(60)
@given(
    st.lists(st.tuples(tasks, starts, st.booleans()), min_size=5, max_size=25), st.sampled_from(["secure", "seeded"])
)
def test_no_sequence_of_tasks_costs_more_than_the_charter_allows(
    sequence: list[tuple[SiloTask, Tensor, bool]], noise: str
) -> None:
    answered: list[tuple[SiloTask, str]] = []
    with Ledger.in_memory() as book:
        host = fresh_host(book, noise)
        for asked, start, restarts in sequence:
            host = fresh_host(book, noise) if restarts else host
            head = book.head
            try:
                host.answer(asked, start)
                answered.append((asked, digest(start)))
            except RefusalError:
                assert book.head == head
        assert spent(host) <= 4.0
    if noise == "seeded":  # the very same numbers, however often they are given, are one release
        answered = list({(asked.model_dump_json(), start): (asked, start) for asked, start in answered}.values())
    asked_for = [asked for asked, _ in answered]
    assert cost(asked_for) <= 4.0
    assert PldAccountant().epsilon(_event(asked_for), 1e-5) <= 4.0


def test_a_token_that_an_allowed_model_does_not_know_is_told_at_the_start(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never in a task: that the task fails would tell the server that whoever has it is there."""

    def source() -> Dataset:
        tokens = torch.zeros(30, 5, dtype=torch.int64)
        tokens[7, 2] = 4000
        return wg.from_torch((tokens, torch.arange(30) % 2), subjects=range(30), classes=2)

    monkeypatch.setitem(sys.modules, "own_tokens", SimpleNamespace(source=source))  # type: ignore[arg-type]
    models = [{"name": "stacked_lstm"}]
    with pytest.raises(ModelError, match="tokens of the data, which are from 0 to 4000"):
        opened(data=MappingProxyType({"source": "own_tokens:source"}), allow={"models": models})
