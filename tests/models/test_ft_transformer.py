"""The transformer for tables: what it sees, that it is on the fast way, and that it learns what a line cannot."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from agreement import Batch, assert_agrees, program_of, slow
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.traced import TracedGradients
from wholegrain.errors import SpecError
from wholegrain.models.model_catalog import build
from wholegrain.models.trainable_part import train_part

OPTIONS = {"width": 8, "heads": 2, "layers": 2}


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("train", ["all", "low_rank", "biases"])
def test_it_is_on_the_fast_way(train: str) -> None:
    model = train_part(build("ft_transformer", 5, 3, 0, OPTIONS), train, 2, 2, 0).double()
    engine = BookKeeping(model, cross_entropy)
    batch = Batch(rows(9).double(), torch.arange(9) % 3, torch.arange(9) // 3)
    first = flatten(model)
    vector = first + torch.randn(first.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 0.1
    assert slow(lambda: assert_agrees(engine, model, cross_entropy, vector, batch)) == []
    assert isinstance(program_of(engine), TracedGradients)


def test_a_column_is_a_token_and_items_do_not_meet() -> None:
    model = build("ft_transformer", 5, 3, 0, OPTIONS)
    torch.nn.init.normal_(model.head.weight)  # type: ignore[union-attr, arg-type]
    numbers = rows(4)
    tokens = model.tokens(numbers)  # type: ignore[operator]
    assert tokens.shape == (4, 6, 8)
    changed = numbers.clone()
    changed[0, 2] += 1
    moved = model.tokens(changed)  # type: ignore[operator]
    assert [place for place in range(6) if not torch.equal(tokens[0, place], moved[0, place])] == [3]
    before, after = model(numbers), model(changed)
    assert not torch.allclose(before[0], after[0])
    torch.testing.assert_close(before[1:], after[1:])


def test_it_learns_a_product_of_two_columns_which_no_line_does() -> None:
    inputs = rows(400)
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
    right = {}
    for name, options in (("logistic", {}), ("ft_transformer", {"width": 16, "heads": 2})):
        model = build(name, 5, 2, 0, options)
        steps = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(150):
            steps.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            steps.step()
        right[name] = float((model(inputs).argmax(1) == targets).float().mean())
    assert right["logistic"] < 0.7
    assert right["ft_transformer"] > 0.9


def test_heads_divide_the_width() -> None:
    with pytest.raises(SpecError, match=r"its width \(8\) must be a multiple of its heads \(3\)"):
        build("ft_transformer", 5, 3, 0, {"width": 8, "heads": 3})
