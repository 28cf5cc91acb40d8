"""Whoever calls the engine may have any number of threads, or less precision: rows are the same in any company."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.plain_arithmetic import in_plain_arithmetic
from wholegrain.clipping.rounding import SLACK

PEOPLE, WIDTH = 544, 63
"""Of 544 · 63 values each of two threads has half, which is no whole number of vectors: torch gives 32,768 values and
more to a second thread.
"""


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def torn_value(function: nn.Module) -> float:
    """A value of which the function is something else among many than alone."""
    values = torch.linspace(-4, 4, 4000)
    many = function(values.repeat_interleave(64).view(-1, 64))[:, 0]
    alone = torch.cat([function(value.view(1)) for value in values])
    torn = values[many != alone]
    if not len(torn):
        pytest.skip("this processor computes one value as it computes many")
    return float(torn[len(torn) // 2])


class Crowd:
    """People who all have the one value, under parameters that blow up what differs among equal hidden units."""

    def __init__(self, function: nn.Module) -> None:
        torch.set_num_threads(1)
        model = nn.Sequential(nn.Linear(1, WIDTH), function, nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 2))
        self.vector = flatten(model)
        views = Layout.of(model).views(self.vector)
        views["0.weight"].fill_(1.0)
        views["0.bias"].zero_()
        views["2.weight"].copy_(self.differences(2.0**30))
        views["2.bias"].zero_()
        views["4.weight"].copy_(torch.tensor([[8.0], [-8.0]]).expand(2, 8))
        views["4.bias"].zero_()
        self.inputs = torch.full((PEOPLE, 1), torn_value(function))
        self.targets, self.numbers = torch.arange(PEOPLE) % 2, scatter_codes(np.arange(PEOPLE) * 7919)
        self.engine = BookKeeping(model, cross_entropy)

    @staticmethod
    def differences(size: float) -> Tensor:
        """[8, unit] eight units less eight others: nothing, where all units are the same."""
        draws, found = torch.Generator().manual_seed(0), torch.zeros(8, WIDTH)
        for row in found:
            chosen = torch.randperm(WIDTH, generator=draws)
            row[chosen[:8]], row[chosen[8:16]] = size, -size
        return found

    def total(self, gone: int | None = None) -> Tensor:
        """The clipped sum, without one of them."""
        left = np.array([person for person in range(PEOPLE) if person != gone])
        buckets = Buckets(self.numbers, left, float(PEOPLE), float(PEOPLE), largest=1)
        clip, groups = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0), torch.arange(len(left))
        return self.engine(self.vector, self.inputs[left], self.targets[left], groups, clip, buckets).total.double()

    def largest_move(self) -> float:
        """How far one who leaves moves the sum at most, of a few."""
        whole = self.total()
        return max(float((whole - self.total(gone)).norm()) for gone in range(0, PEOPLE, PEOPLE // 4))


@pytest.mark.parametrize("threads", [2, 6])
@pytest.mark.parametrize("function", [nn.Sigmoid(), nn.SiLU()], ids=["sigmoid", "silu"])
def test_several_threads_leave_others_the_same(threads: int, function: nn.Module) -> None:
    crowd = Crowd(function)
    torch.set_num_threads(threads)
    assert crowd.largest_move() <= 1 + SLACK
    assert torch.get_num_threads() == threads


def test_threads_that_come_after_the_first_step_leave_others_the_same() -> None:
    crowd = Crowd(nn.Sigmoid())
    crowd.largest_move()
    torch.set_num_threads(2)
    assert crowd.largest_move() <= 1 + SLACK


def test_a_program_that_asks_for_less_precision_gets_the_same_sum() -> None:
    crowd = Crowd(nn.Sigmoid())
    whole, before = crowd.total(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(crowd.total(), whole)
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.fixture
def lower_precision() -> Iterator[None]:
    """As a program may ask for it in torch's newer way, product by product."""
    products = torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv, torch.backends.mkldnn.rnn
    before = [product.fp32_precision for product in products]
    for product in products:
        product.fp32_precision = "bf16"
    yield
    for product, precision in zip(products, before, strict=True):
        product.fp32_precision = precision


@in_plain_arithmetic
def precisions() -> set[str]:
    products = torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv, torch.backends.mkldnn.rnn
    return {product.fp32_precision for product in products}


@pytest.mark.usefixtures("lower_precision")
def test_every_kind_of_product_has_full_precision() -> None:
    assert precisions() == {"ieee"}
    assert torch.backends.mkldnn.conv.fp32_precision == "bf16"


@in_plain_arithmetic
def halve(value: float) -> float:
    return float(torch.tensor([value]) / 2)


def test_small_numbers_are_not_flushed_to_zero() -> None:
    torch.set_flush_denormal(True)
    try:
        assert halve(2.0**-140) == 2.0**-141
        assert float(torch.tensor([2.0**-140]) / 2) == 0.0
    finally:
        torch.set_flush_denormal(False)


def test_threads_that_share_an_engine_take_turns() -> None:
    """They would write into its buffers at once: sums were off by 656 C."""
    torch.manual_seed(0)
    model, clip = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 2)), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.1)
    engine, vector, groups = BookKeeping(model, cross_entropy), flatten(model), torch.arange(2000) // 2
    batches = [(torch.randn(2000, 16), torch.randint(2, (2000,)), groups) for _ in range(2)]
    wanted = [engine(vector, *batch, clip).total.clone() for batch in batches]

    def is_same(turn: int) -> bool:
        return torch.equal(engine(vector, *batches[turn % 2], clip).total, wanted[turn % 2])

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(is_same, range(80)))
