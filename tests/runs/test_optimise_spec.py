"""`plan --optimise`: settings from public facts alone, exactly priced, and no data read."""

import json
from functools import partial
from pathlib import Path

import pytest

from command import Command
from small_runs import PRICING
from wholegrain.errors import SpecError
from wholegrain.runs import datasets
from wholegrain.runs.optimise_spec import optimise
from wholegrain.runs.planning import plan_federation
from wholegrain.runs.spec import RunSpec, load

pytestmark = pytest.mark.usefixtures("coarse_prices")

SPEC = """
[data]
source = "mnist_writers"
[policy]
rate = 0.5
clip_norm = 0.1
[privacy]
epsilon = 2.0
[rounds]
count = 50
learning_rate = 10.0
[federation]
shape = [12]
classes = 3
silos = [{ name = "a", items = 900, subjects = 300 }, { name = "b", items = 1200, subjects = 400 }]
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def read(*_: object) -> None:
        raise AssertionError("data was read")

    monkeypatch.setattr(datasets, "load_dataset", read)
    path = tmp_path / "server.toml"
    path.write_text(SPEC)
    return path


def test_the_choice_is_planned_exactly_and_meets_the_budget(spec: Path) -> None:
    choice = optimise(load(spec), ("subject_dp",), PRICING)
    assert choice.parameters == 39
    assert 0.99 * 2.0 <= choice.plan.guarantee().epsilon <= 2.0
    assert choice.plan.horizon.rounds == choice.chosen.steps
    assert choice.spec.rounds.learning_rate == pytest.approx(10.0 * choice.chosen.pace)
    assert (choice.spec.rounds.steps, choice.spec.server.schedule) == (1, choice.chosen.schedule)


@pytest.mark.slow
def test_momentum_counts_as_the_plain_steps_that_it_amounts_to(spec: Path) -> None:
    momentum = ("server.step=momentum", "server.momentum=0.9", "rounds.learning_rate=1.0")
    plain, fast = (optimise(load(spec, changes), ("subject_dp",), PRICING).spec for changes in ((), momentum))
    assert plain.rounds.learning_rate == pytest.approx(fast.rounds.learning_rate)
    assert fast.server.step == "plain"


def test_weights_by_span_are_kept(spec: Path) -> None:
    spec.write_text(
        SPEC.replace("subjects = 300", "subjects = 300, knows_spans = true").replace(
            "subjects = 400", "subjects = 400, knows_spans = true"
        )
    )
    choice = optimise(load(spec, ("policy.by_span=true", "policy.rate=1.0")), ("subject_dp",), PRICING)
    assert choice.spec.policy.by_span
    changed = load(spec, choice.changes)
    assert changed == choice.spec
    assert changed.federation is not None
    assert plan_federation(changed, changed.federation, PRICING).guarantee() == choice.plan.guarantee()


@pytest.mark.parametrize("own", ["policy.rate=0.5", "policy.rate=null policy.batch_size=64"])
def test_the_changes_give_the_chosen_spec(spec: Path, own: str) -> None:
    choice = optimise(load(spec, own.split()), ("subject_dp",), PRICING)
    assert load(spec, (*own.split(), *choice.changes)) == choice.spec


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("privacy.noise_multiplier=5", "leave out privacy.noise_multiplier"),
        ("rounds.cohort=1", "leave out rounds.cohort"),
        ("policy.by_span=true", "knows_spans = true"),
        ("rounds.learning_rate=1e6", "beyond 1e"),
        ("federation.shape=[100000,100000]", "are the most"),
    ],
)
def test_what_it_cannot_weigh_is_refused(spec: Path, change: str, words: str) -> None:
    changes = (change, "policy.rate=1.0")
    with pytest.raises(SpecError, match=words):
        optimise(load(spec, changes), ("subject_dp",), PRICING)


@pytest.mark.parametrize("change", ["federation.classes=0", "federation.shape=[]", "federation.shape=[0]"])
def test_a_federation_without_inputs_or_answers_is_refused(spec: Path, change: str) -> None:
    with pytest.raises(SpecError, match=change.partition("=")[0]):
        load(spec, (change,))


@pytest.mark.slow
def test_less_budget_goes_less_far(spec: Path) -> None:
    ways = []
    for epsilon in (0.1, 8.0):
        chosen = optimise(load(spec, (f"privacy.epsilon={epsilon}",)), ("subject_dp",), PRICING).spec.rounds
        ways.append(chosen.count * chosen.learning_rate)
    assert ways[0] < ways[1]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["privacy.unit=item"], "budget for a subject"),
        (["rounds.count=0"], r"rounds\.count"),
        (["model.name=nothing"], "Unknown model"),
        (["server.step=adam"], "Adam"),
    ],
)
def test_what_cannot_be_weighed_is_refused(spec: Path, changes: list[str], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        optimise(load(spec, tuple(changes)), ("subject_dp",), PRICING)
    bare = RunSpec.of({"policy": {"rate": 1.0}, "privacy": {"epsilon": 1.0}})
    with pytest.raises(SpecError, match="names no data"):
        optimise(bare)


@pytest.mark.slow
def test_the_command_prints_the_choice_and_draws_it(wholegrain: Command, spec: Path, tmp_path: Path) -> None:
    plan = partial(wholegrain, "plan", spec)
    picture = tmp_path / "tradeoff.svg"
    told = json.loads(plan("--optimise", "--picture", picture, "--json").out)
    assert told["policy"] == "subject_dp"
    assert told["guarantees"][0]["standing"] == "PROVED"
    assert picture.read_text().startswith("<svg")
    shown = plan("--optimise")
    assert shown.code == 0
    assert "--set policy.name=subject_dp" in " ".join(shown.out.split())
    assert plan("--picture", picture).code == 2
    assert plan("--optimise", "--picture", tmp_path / "nowhere" / "x.svg").code == 2
