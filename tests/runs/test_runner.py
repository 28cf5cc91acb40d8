"""Runs end to end: what is promised is what is spent, and the same spec gives the same model."""

import numpy as np
import pytest
import torch
from torch import nn

import wholegrain as wg
from policy_rows import private_policies
from wholegrain.data.subject_coins import Coins
from wholegrain.errors import BudgetError, ModelError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.federation.rounds import State
from wholegrain.federation.server_optimiser import Adam, Momentum, Server
from wholegrain.federation.server_settings import ServerSettings
from wholegrain.policies.policy_catalog import CATALOG
from wholegrain.runs.datasets import split_dataset
from wholegrain.runs.observers import SiloAnswer
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.run_summary import RunSummary
from wholegrain.runs.runner import StartState, execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

DATA = wg.clinics(patients=120, clinics=3, span=2, visits=5)

SECURE = {"epsilon": 4.0, "noise": "secure"}
SIZES = {f"clinic-{number}": {"items": 100, "subjects": 50} for number in range(3)}


def spec(name: str, **sections: object) -> RunSpec:
    tree: dict[str, object] = {
        "policy": {"name": name, "rate": 0.3, "group_cap": 2},
        "privacy": {"epsilon": 4.0},
        "rounds": {"count": 3, "steps": 2, "cohort": 2},
        **sections,
    }
    return RunSpec.of(tree)


def finish(prepared: PreparedRun) -> RunResult:
    with open_guard(prepared, "a run") as guard:
        return execute(prepared, guard)


@pytest.mark.parametrize("policy", CATALOG)
@pytest.mark.usefixtures("coarse_prices")
def test_every_policy_runs_within_its_budget(policy: str) -> None:
    run = finish(prepare(spec(policy), dataset=DATA))
    spent = [done.epsilon for done in run.rounds]
    assert spent == sorted(spent)
    assert spent[-1] == run.guarantee.epsilon
    if policy in private_policies():
        assert run.guarantee.epsilon <= 4.0
        assert run.guarantee.standing is wg.Standing.PROVED
    assert torch.isfinite(run.vector).all()


@pytest.mark.parametrize(
    "policy",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("local_item_dp", "local_group_dp")),
        "higradavg_dp",
        "user_ldp",
        "fedavg",
    ],
)
@pytest.mark.usefixtures("coarse_prices")
def test_every_printed_policy_runs(policy: str) -> None:
    printed = {"name": policy, "batch_size": 16, "as_printed": True, "clip_norm": 0.1}
    run = finish(prepare(spec(policy, policy=printed, rounds={"count": 4, "steps": 2}), dataset=DATA))
    claimed = run.plan.claimed
    assert (claimed is None) == (policy == "fedavg")
    assert claimed is None or claimed.epsilon == 4.0
    assert run.guarantee.standing is not wg.Standing.CLAIMED


def test_the_same_seed_gives_the_same_model() -> None:
    vectors = [finish(prepare(spec("subject_dp", seed=s), dataset=DATA)).vector for s in (1, 1, 2)]
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


def test_what_is_prepared_once_can_be_run_twice() -> None:
    prepared = prepare(spec("subject_dp"), dataset=DATA)
    first, second = finish(prepared).vector, finish(prepared).vector
    assert torch.equal(first, second)
    assert not torch.equal(first, prepared.first)


def test_held_out_subjects_are_never_trained_on() -> None:
    parts = split_dataset(DATA, spec("subject_dp", evaluation={"test": 0.3, "validation": 0.2}))
    trained = set(np.concatenate([silo.data.subjects for silo in parts.silos.values()]))
    test, validation = (set(parts.held_out[name].subjects) for name in ("test", "validation"))
    assert trained
    assert test
    assert validation
    assert not trained & test
    assert not trained & validation
    assert not test & validation


def test_train_validation_and_test_are_scored_every_round() -> None:
    run = finish(prepare(spec("fedavg", evaluation={"validation": 0.2, "train": True}), dataset=DATA))
    for done in run.rounds:
        assert {"test", "validation", "train/clinic-0", "train/clinic-1", "train/clinic-2"} == set(done.scores)


def test_the_cap_is_enforced_on_load() -> None:
    tight = spec("higradavg_dp", silos={"items_per_subject": 2})
    assert max(silo.data.largest_subject for silo in split_dataset(DATA, tight).silos.values()) == 2


def test_training_leaves_a_model_that_was_given_trained() -> None:
    model = nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 2))
    before = model[0].weight.detach().clone()
    run = wg.train(DATA, model=model, policy={"rate": 0.5}, privacy={"epsilon": 4.0}, rounds={"count": 2})
    assert run.model is model
    assert not torch.equal(before, model[0].weight)


def test_a_model_that_does_not_fit_is_refused_before_training() -> None:
    with pytest.raises(ModelError, match="10 features"):
        wg.train(DATA, model=nn.Linear(3, 2), policy={"rate": 0.5}, privacy={"epsilon": 4.0})


@pytest.mark.slow
def test_private_training_learns() -> None:
    run = wg.train(
        wg.clinics(patients=1500, clinics=3, span=2),
        policy={"rate": 1.0},
        privacy={"epsilon": 4.0},
        rounds={"count": 30, "learning_rate": 3.0},
    )
    assert run.accuracy > 0.7


class Remembers(nn.Module):
    """A model that keeps something of what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 2)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        self.seen += 1 + items.mean().detach()
        return self.layer(items)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Remembers(), "changes a tensor that it keeps"),
        (nn.Sequential(nn.Linear(10, 2), nn.RReLU()), "RReLU"),
        (nn.Linear(10, 1), "shape"),
        (nn.Linear(10, 5), "shape"),
        (nn.Sequential(nn.Linear(10, 2), nn.Flatten(0)), "fit"),
    ],
    ids=["buffers", "random slopes", "too few outputs", "too many outputs", "no items"],
)
def test_a_model_that_cannot_be_trained_privately_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        wg.train(DATA, model=model, policy={"name": "user_ldp", "rate": 0.5}, privacy={"epsilon": 4.0})


class Mixing(nn.Module):
    """Centres each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(DATA.features, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x - x.mean(0))


class Dropping(Mixing):
    """Draws random numbers without a layer for it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(nn.functional.dropout(x, 0.5, self.training))


@pytest.mark.filterwarnings("ignore::wholegrain.clipping.backend_selection.SlowGradients")
@pytest.mark.parametrize(
    ("model", "reason"), [(Mixing, "mixes the items of a batch"), (Dropping, "gives other outputs for the same item")]
)
def test_models_are_refused_for_what_they_do_and_not_only_for_their_layers(model: type[nn.Module], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        prepare(spec("subject_dp"), dataset=DATA, model=model())


class InterruptedRunError(Exception):
    """What ends a process, as far as a ledger can tell."""


def test_a_run_whose_budget_is_spent_ends_with_what_was_played(caplog: pytest.LogCaptureFixture) -> None:
    """With secure noise a round that was interrupted is paid for twice, and the last one finds nothing left."""
    prepared = prepare(spec("subject_dp", privacy=SECURE, silos={"sizes": SIZES}), dataset=DATA)
    kept: list[StartState] = []

    def record(done: RoundRecord, state: State) -> None:
        kept.append(StartState(state, (*(kept[-1].done if kept else ()), done)))

    def stop(event: SiloAnswer | RoundRecord) -> None:
        if isinstance(event, SiloAnswer) and event.round == 1:
            raise InterruptedRunError

    with open_guard(prepared, "a run") as guard:
        with pytest.raises(InterruptedRunError):
            execute(prepared, guard, record=record, observe=stop)
        run = execute(prepared, guard, start=kept[-1])
        assert len(run.rounds) == 2
        assert "The run ends after the rounds that were played" in caplog.text
        assert RunSummary.of(run).rounds == 2
        assert RunSummary.of(run).rounds_planned == 3
        with pytest.raises(BudgetError):
            execute(prepared, guard)


def test_a_server_is_a_value_or_a_section() -> None:
    sections = {"policy": {"name": "fedavg", "rate": 0.3}, "rounds": {"count": 3, "learning_rate": 1.0}}
    by_section = wg.train(DATA, server={"step": "adam", "learning_rate": 0.2, "options": {"second": 0.9}}, **sections)
    by_value = wg.train(
        DATA, server=Server(optimiser=Adam(second=0.9), settings=ServerSettings(learning_rate=0.2)), **sections
    )
    assert torch.equal(by_section.vector, by_value.vector)
    plain, momentum = wg.train(DATA, **sections), wg.train(DATA, server=Momentum(), **sections)
    assert not torch.equal(plain.vector, momentum.vector)
    assert momentum.guarantee == plain.guarantee


def test_another_loss_is_trained_on_and_scored() -> None:
    sections = {"policy": {"name": "fedavg", "rate": 0.3}, "rounds": {"count": 2}}
    usual, margin = (wg.train(DATA, model={"loss": loss}, **sections) for loss in ("cross_entropy", "multi_margin"))
    assert not torch.equal(usual.vector, margin.vector)
    assert usual.scores["test"].loss != margin.scores["test"].loss


@pytest.mark.parametrize(("delta", "told"), [(0.5, True), (0.01, True), (0.004, True), (1e-5, False)])
def test_a_delta_that_allows_to_publish_somebody_whole_is_told(delta, told, caplog, coarse_prices):
    asked = RunSpec.of({"policy": {"rate": 1.0}, "privacy": {"epsilon": 4.0, "delta": delta}})
    prepare(asked, dataset=wg.clinics(patients=300, clinics=3))
    assert ("not below one in" in caplog.text) is told


@pytest.mark.parametrize(("noise", "bound", "told"), [("seeded", 1, True), ("seeded", 15, False), ("secure", 1, False)])
def test_a_simulation_tells_how_much_k_drops_and_a_release_does_not(noise, bound, told, caplog, coarse_prices):
    sizes = {"*": {"items": 500, "subjects": 100}}
    asked = RunSpec.of({"privacy": {"noise": noise}, "silos": {"items_per_subject": bound, "sizes": sizes}})
    split_dataset(wg.clinics(patients=300, clinics=3), asked, Coins.seeded(0))
    assert ("drops" in caplog.text) is told


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("token", [10, -1])
def test_a_token_that_the_model_does_not_know_is_refused_before_training(token: int) -> None:
    """In a step it would fail the silo's round, which tells that the person who has it is there."""
    tokens = torch.zeros(40, 2, dtype=torch.int64)
    tokens[3, 1] = 9
    for wrong in (9, token):
        tokens[3, 1] = wrong
        data = wg.from_torch((tokens, torch.arange(40) % 2), subjects=range(40), silos=["a"] * 40, classes=2)
        asked = {"policy": wg.subject_dp(rate=0.5), "epsilon": 4, "rounds": 2, "test": 0.0}
        if wrong == 9:
            assert not any(done.failed for done in wg.train(data, Words(), **asked).rounds)
        else:
            with pytest.raises(ModelError, match="tokens of the data"):
                wg.train(data, Words(), **asked)


@pytest.mark.usefixtures("coarse_prices")
def test_a_release_does_not_tell_how_long_it_took() -> None:
    """Time grows with the number of items: one person with many would be known by it, whatever ε is."""
    prepared = prepare(spec("subject_dp", privacy=SECURE, silos={"sizes": SIZES}), dataset=DATA)
    told: list[float] = []
    with open_guard(prepared, "a release") as guard:
        run = execute(prepared, guard, observe=lambda event: told.append(getattr(event, "seconds", 0.0)))
    assert sum(told) > 0, "whoever runs it sees it"
    assert {done.seconds for done in run.rounds} == {0.0}
    assert RunSummary.of(run).facts()["seconds"] == 0.0


@pytest.mark.usefixtures("coarse_prices")
def test_a_simulation_tells_how_long_it_took() -> None:
    run = finish(prepare(spec("subject_dp"), dataset=DATA))
    assert run.seconds == sum(done.seconds for done in run.rounds) > 0
