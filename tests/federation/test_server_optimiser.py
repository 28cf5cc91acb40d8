"""What the server makes of means: torch's own optimisers are the oracle, and averages are what their words say."""

import pytest
import torch
from torch import Tensor

from wholegrain.errors import SpecError
from wholegrain.federation.server_optimiser import NOTHING, PLAIN, Adam, Memory, Momentum, Plain, Server
from wholegrain.federation.server_settings import Average, ServerSettings

ROUNDS = 8


def updates() -> list[Tensor]:
    return list(torch.randn(ROUNDS, 5, generator=torch.Generator().manual_seed(0)))


def played(server: Server) -> tuple[list[Tensor], Memory]:
    """Parameters after each round, from zeros; a round's mean is the parameters plus an update."""
    vector, memory, path = torch.zeros(5), NOTHING, []
    for round, update in enumerate(updates()):
        vector, memory = server.move(vector, vector + update, memory, round, ROUNDS)
        path.append(vector)
    return path, memory


def by_torch(optimiser: type[torch.optim.Optimizer], **settings: float | tuple[float, float]) -> list[Tensor]:
    parameter = torch.nn.Parameter(torch.zeros(5))
    stepper, path = optimiser([parameter], **settings), []
    for update in updates():
        parameter.grad = -update
        stepper.step()
        path.append(parameter.detach().clone())
    return path


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_by_default_the_mean_is_taken_to_the_last_bit() -> None:
    mean = torch.tensor([0.1, 1e-30, 3e38])
    vector, memory = PLAIN.move(torch.ones(3), mean, NOTHING, 0, ROUNDS)
    assert vector is mean
    assert not memory
    assert PLAIN.choose_parameters(vector, memory) is mean


def test_momentum_and_adam_are_torchs() -> None:
    momentum = Server(optimiser=Momentum(0.8), settings=ServerSettings(learning_rate=0.3))
    assert_close(played(momentum)[0], by_torch(torch.optim.SGD, lr=0.3, momentum=0.8))
    adam = Server(optimiser=Adam(), settings=ServerSettings(learning_rate=0.1))
    assert_close(played(adam)[0], by_torch(torch.optim.Adam, lr=0.1, betas=(0.9, 0.99)))


@pytest.mark.parametrize(("schedule", "paces"), [("constant", [2.0, 2.0, 2.0]), ("linear", [2.0, 1.5, 0.5]),
                                                 ("cosine", [2.0, 1.7071068, 0.2928932])])  # fmt: skip
def test_schedules_go_from_the_learning_rate_to_nothing(schedule: str, paces: list[float]) -> None:
    server = Server(settings=ServerSettings(learning_rate=2.0, schedule=schedule))
    assert [server.pace(round, 8) for round in (0, 2, 6)] == pytest.approx(paces)
    assert server.noise_share(2, 8) == pytest.approx(paces[1])
    moved, _ = server.move(torch.zeros(2), torch.ones(2), NOTHING, 2, 8)
    assert torch.allclose(moved, torch.full((2,), paces[1]))


def test_where_the_past_decides_no_share_of_noise_is_named() -> None:
    assert Server(optimiser=Adam()).noise_share(0, 2) is None


@pytest.mark.parametrize("tail", [0.25, 0.5, 1.0, 0.01])
def test_the_tail_is_the_mean_of_the_last_rounds(tail: float) -> None:
    server = Server(settings=ServerSettings(average=Average.TAIL, tail=tail))
    path, memory = played(server)
    last = max(1, round(tail * ROUNDS))
    assert torch.allclose(server.choose_parameters(path[-1], memory), torch.stack(path[-last:]).mean(0), atol=1e-6)


def test_until_the_tail_begins_the_parameters_themselves_are_shown() -> None:
    server = Server(settings=ServerSettings(average=Average.TAIL, tail=0.25))
    vector, memory = server.move(torch.zeros(2), torch.ones(2), NOTHING, 0, ROUNDS)
    assert server.choose_parameters(vector, memory) is vector


def test_an_exponential_average_counts_earlier_rounds_less() -> None:
    server = Server(settings=ServerSettings(average=Average.EXPONENTIAL, decay=0.7))
    path, memory = played(server)
    expected = path[0]
    for vector in path[1:]:
        expected = 0.7 * expected + 0.3 * vector
    assert torch.allclose(server.choose_parameters(path[-1], memory), expected, atol=1e-6)


def test_averaging_does_not_change_the_path() -> None:
    assert_close(played(Server(settings=ServerSettings(average=Average.TAIL)))[0], played(Server())[0])


def test_momentum_is_refused_where_the_optimiser_has_none() -> None:
    with pytest.raises(
        SpecError, match=r"^server\.momentum = 0\.3 would have no effect.*'plain' has no momentum; remove"
    ):
        Server.of(ServerSettings(momentum=0.3))
    assert Server.of(ServerSettings(momentum=0.9)).optimiser == Plain()  # as a kept spec writes it
    assert Server.of(ServerSettings(step="adam", momentum=0.3)).optimiser == Adam(momentum=0.3)
