"""The arithmetic that the bounds of docs/arithmetic.md are about, whatever the calling program has set in torch.

One thread. With several, torch divides the values of a batch among them, and each thread computes the last few of its
own one by one, with instructions that may round differently (`operations`). Which values these are depends on how
many people are there, so that one who leaves would change others, in the middle of a batch, where no filling up helps.

One computation at a time, in all threads of the calling program. Engines write into buffers that they keep, and some
of these settings are the whole process's: two at once would write over each other, or set back what the other needs.

Full precision. Autocast, and a lower precision of products that torch allows on request, have another unit roundoff;
and kernels were tried in full precision, while a program may ask for less at any time.

Numbers below 2⁻¹²⁶. Where they are flushed to zero, as `torch.set_flush_denormal` does, and some libraries when
they are loaded, a rounding error is up to 2²⁴ times as large as the bounds say.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Made = TypeVar("Made")

PRODUCTS = "matmul", "conv", "rnn"
"""What may have a precision of its own in oneDNN, torch's library for the CPU."""
FULL = "none", "ieee"
"""Products of single precision in single precision: nothing else was asked for, or this was."""
SUBNORMAL = 2.0**-1030
"""Lost where such numbers are flushed: Python's floats are computed by the same unit as tensors."""
TURN = RLock()
"""Held by the thread that computes."""


def in_plain_arithmetic(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """The same function by itself, in one thread and in full precision; afterwards everything is set as it was before.

    >>> from torch import get_num_threads
    >>> in_plain_arithmetic(get_num_threads)()
    1
    """

    @wraps(function)
    def computed(*arguments: Given.args, **options: Given.kwargs) -> Made:
        with TURN:
            if _is_plain():
                return function(*arguments, **options)
            with _plain(), torch.autocast("cpu", enabled=False):
                return function(*arguments, **options)

    return computed


def _is_plain() -> bool:
    return (
        torch.get_num_threads() == 1
        and not torch.is_autocast_enabled("cpu")
        and not _flushes()
        and all(_precision(product) in FULL for product in PRODUCTS)
    )


@contextmanager
def _plain() -> Iterator[None]:
    threads, flushes = torch.get_num_threads(), _flushes()
    lower = {product: found for product in PRODUCTS if (found := _precision(product)) not in FULL}
    try:
        torch.set_num_threads(1)
        torch.set_flush_denormal(False)
        for product in lower:
            getattr(torch.backends.mkldnn, product).fp32_precision = "ieee"
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushes)
        for product, found in lower.items():
            getattr(torch.backends.mkldnn, product).fp32_precision = found


def _precision(product: str) -> str:
    # What `torch.backends.mkldnn` asks, too, in a quarter of the time; `torch.get_float32_matmul_precision` fails where
    # a program has used both ways to set it.
    return torch._C._get_fp32_precision_getter("mkldnn", product)


def _flushes() -> bool:
    return SUBNORMAL * float(torch.get_num_threads()) == 0.0  # a product that no compiler can compute beforehand
