"""What every server optimiser must keep to; a new row, or one of the user's own, is checked by being there."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from wholegrain.errors import SpecError
from wholegrain.federation.rounds import State
from wholegrain.federation.server_optimiser import NOTHING, OPTIMISERS, Server, ServerOptimiser, make_optimiser
from wholegrain.federation.server_settings import ServerSettings
from wholegrain.runs.checkpoints import Checkpoints

every_optimiser = pytest.mark.parametrize("name", OPTIMISERS)
SIZE, ROUNDS = 4, 6


def server(name: str) -> Server:
    return Server(
        optimiser=make_optimiser(name, {}, momentum=0.8), settings=ServerSettings(learning_rate=0.5, schedule="linear")
    )


def updates() -> Iterator[Tensor]:
    yield from torch.randn(ROUNDS, SIZE, generator=torch.Generator().manual_seed(0))


@every_optimiser
def test_an_optimiser_is_a_frozen_value(name: str) -> None:
    optimiser, twin = make_optimiser(name, {}, 0.8), make_optimiser(name, {}, 0.8)
    assert optimiser == twin
    assert hash(optimiser) == hash(twin)
    for field in fields(optimiser):
        with pytest.raises(FrozenInstanceError):
            setattr(optimiser, field.name, 0.5)


@every_optimiser
def test_it_goes_where_the_mean_is(name: str) -> None:
    """Over many rounds in which silos agree on a place, the parameters come near it."""
    moved, memory, place = torch.zeros(SIZE), NOTHING, torch.tensor([1.0, -2.0, 0.5, 0.0])
    optimiser = make_optimiser(name, {}, 0.5)
    for _ in range(400):
        moved, memory = optimiser.step(moved, moved + 0.1 * (place - moved), memory, 0.05)
    assert float((moved - place).norm()) < 0.5 * float(place.norm())


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("name", [*OPTIMISERS, "own_optimisers:signs"])
def test_a_run_goes_on_from_a_checkpoint_to_the_bit(name: str, tmp_path: Path) -> None:
    whole = resumed = State(0, torch.zeros(SIZE))
    checkpoints = Checkpoints(tmp_path, "run")
    for round, update in enumerate(updates()):
        whole, resumed = (
            State(round + 1, *server(name).move(each.vector, each.vector + update, each.memory, round, ROUNDS))
            for each in (whole, resumed)
        )
        checkpoints.add(resumed)
        resumed = checkpoints.latest(ROUNDS, resumed.vector)
    assert torch.equal(whole.vector, resumed.vector)
    assert whole.memory.keys() == resumed.memory.keys()
    assert all(torch.equal(whole.memory[key], resumed.memory[key]) for key in whole.memory)


@every_optimiser
def test_what_it_says_of_noise_is_so(name: str) -> None:
    """Where it names the share of a round's noise that reaches the parameters, that much of it does."""
    vector, mean, noise = torch.zeros(SIZE), torch.ones(SIZE), torch.full((SIZE,), 0.25)
    share = server(name).noise_share(2, ROUNDS)
    if share is not None:
        with_noise, without = (server(name).move(vector, each, NOTHING, 2, ROUNDS)[0] for each in (mean + noise, mean))
        torch.testing.assert_close(with_noise - without, share * noise)


@every_optimiser
def test_what_it_says_of_its_gain_is_so(name: str) -> None:
    """Where it names how far one update goes in all, that far it goes."""
    optimiser = make_optimiser(name, {}, 0.8)
    if optimiser.gain is None:
        return
    vector, memory = optimiser.step(torch.zeros(1), torch.ones(1), NOTHING, 0.1)
    for _ in range(200):
        vector, memory = optimiser.step(vector, vector, memory, 0.1)
    assert float(vector) == pytest.approx(0.1 * optimiser.gain, rel=1e-3)


@every_optimiser
def test_an_option_that_it_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=f"The server optimiser '{name}' has no option 'colour'"):
        make_optimiser(name, {"colour": 3}, 0.9)


# One's own, as `module:name`.


@dataclass(frozen=True)
class Signs(ServerOptimiser):
    """Each parameter goes one length the way that it was asked to."""

    length: float = 1.0

    def step(
        self, vector: Tensor, mean: Tensor, state: Mapping[str, Tensor], pace: float
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        steps = state.get("steps", torch.tensor(0)) + 1  # without dimensions: kept like any other
        moved = vector + pace * self.length * (mean - vector).sign()
        return moved, {"steps": steps, "last": moved, "again": moved}


def own(step: Callable[..., Any]) -> ServerOptimiser:
    """An optimiser with this step."""
    return type("Own", (ServerOptimiser,), {"step": step})()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("own_optimisers")
    made.signs = Signs
    made.number = lambda: 3
    made.broken = lambda: own(lambda self, vector, mean, state, pace: vector + mean.nothing)
    made.shape = lambda: own(lambda self, vector, mean, state, pace: (vector[:1], {}))
    made.listed = lambda: own(lambda self, vector, mean, state, pace: (vector, {"past": [1]}))
    made.taken = lambda: own(lambda self, vector, mean, state, pace: (vector, {"average": vector}))
    made.random = lambda: own(lambda self, vector, mean, state, pace: (vector + torch.rand(len(vector)), {}))
    made.in_place = lambda: own(lambda self, vector, mean, state, pace: (vector.add_(mean), {}))
    monkeypatch.setitem(sys.modules, "own_optimisers", made)
    return made


@pytest.mark.usefixtures("module")
def test_ones_own_is_kept_and_read_back_like_any_other(tmp_path: Path) -> None:
    optimiser = make_optimiser("own_optimisers:signs", {"length": 2.0}, 0.9)
    assert optimiser == Signs(2.0)
    vector, state = optimiser.step(torch.zeros(2), torch.tensor([3.0, -1.0]), NOTHING, 0.5)
    assert vector.tolist() == [1.0, -1.0]
    Checkpoints(tmp_path, "run").add(State(1, vector, state))
    kept = Checkpoints(tmp_path, "run").latest(1, vector)
    assert all(torch.equal(kept.memory[key], state[key]) for key in state)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("number", "gave int, not a ServerOptimiser"),
        ("broken", "cannot be used: .*nothing"),
        ("shape", "parameters of the shape and type"),
        ("listed", "tensors by name, and nothing else"),
        ("taken", "has the name 'average'"),
        ("random", "does not repeat itself"),
        ("in_place", "changes in place"),
        ("missing", "cannot be imported"),
    ],
)
def test_one_that_could_not_be_resumed_is_refused_before_a_round_is_paid_for(name: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=f"'own_optimisers:{name}'.*{sentence}"):
        make_optimiser(f"own_optimisers:{name}", {}, 0.9)


def test_an_unknown_one_is_refused_with_the_closest() -> None:
    with pytest.raises(SpecError, match=r"Unknown server optimiser 'adm'.*did you mean 'adam'.*server\.step"):
        make_optimiser("adm", {}, 0.9)
