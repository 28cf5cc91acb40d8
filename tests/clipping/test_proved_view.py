"""What a model makes of items without gradients: by a proved program, the same for every row whoever is beside it."""

import pytest
import torch
from torch import Tensor, nn

from wholegrain.clipping.proved_view import View, prove_view

VIEWS: dict[str, View] = {
    "layers": nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)),
    "normed": lambda x: nn.functional.normalize(x, dim=1),
    "sequence": lambda x: torch.softmax(x[:, :, None] * x[:, None], 2).sum(1),
    "recurrent": lambda x: LSTM(x[:, :, None])[0][:, -1],
}
LSTM = nn.LSTM(1, 3, batch_first=True)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("rows", [1, 2, 31, 64])
def test_the_program_computes_the_view_for_any_number_of_rows(name: str, rows: int) -> None:
    view, items = VIEWS[name], torch.randn(rows, 4)
    proved = prove_view(view, items)
    assert proved is not None
    with torch.no_grad():
        torch.testing.assert_close(proved(items), view(items))


def counted() -> View:
    """Says something else at every call."""
    calls: list[int] = []

    def view(x: Tensor) -> Tensor:
        calls.append(1)
        return x * len(calls)

    return view


REFUSED: dict[str, View] = {
    "mean of the batch": lambda x: x - x.mean(0),
    "order": lambda x: x.sort(0).values,
    "place": lambda x: x + torch.arange(len(x))[:, None],
    "values": lambda x: x if bool((x > 0).all()) else -x,
    "sum": lambda x: x.sum(0),
    "turned": lambda x: x.t(),
    "shared": lambda x: torch.ones(3),
    "random": lambda x: x + torch.rand(4),
    "calls": counted(),
    "number of rows": lambda x: x / len(x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_rows_is_not_proved(name: str) -> None:
    assert prove_view(REFUSED[name], torch.randn(5, 4)) is None


def test_parameters_are_those_of_the_call() -> None:
    layer = nn.Linear(4, 3)
    proved, items = prove_view(layer, torch.zeros(2, 4)), torch.ones(2, 4)
    assert proved is not None
    with torch.no_grad():
        layer.weight.mul_(2)
        torch.testing.assert_close(proved(items), layer(items))
