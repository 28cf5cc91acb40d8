"""The arithmetic that the bounds of docs/arithmetic.md are about, whatever the calling program has set in torch.

One thread. With several, torch divides the values of a batch among them, and each thread computes the last few of its
own one by one, with instructions that may round differently (`operation_watch`). Which values these are depends on how
many people are there, so that one who leaves would change others, in the middle of a batch, where no filling up helps.

Full precision. Autocast, and a lower precision of products that torch allows on request, have another unit roundoff.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Made = TypeVar("Made")

FULL = "highest"
"""Products of single precision in single precision."""


def in_plain_arithmetic(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """The same function in one thread and in full precision; afterwards everything is set as it was before.

    >>> from torch import get_num_threads
    >>> in_plain_arithmetic(get_num_threads)()
    1
    """

    @wraps(function)
    def computed(*arguments: Given.args, **options: Given.kwargs) -> Made:
        threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
        if threads == 1 and precision == FULL and not torch.is_autocast_enabled("cpu"):
            return function(*arguments, **options)
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision(FULL)
        try:
            with torch.autocast("cpu", enabled=False):
                return function(*arguments, **options)
        finally:
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision(precision)

    return computed
