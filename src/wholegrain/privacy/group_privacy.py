"""Group privacy: from one item to k items, and back.

An (ε, δ)-private algorithm is (kε, Δ)-private for groups of k [Marathe, Theorem 3.2 and Appendix]. Two forms of Δ
are in use; the first is at most the second.
"""

import math
from collections.abc import Callable
from enum import StrEnum

from wholegrain import _check
from wholegrain.privacy.definitions import Budget

LARGEST_EXPONENT = 650.0  # a Δ beyond this is far above 1 and refused by whoever uses it
SMALLEST_INNER_DELTA = 1e-12
LARGEST_GROUP_EPSILON = 100.0


class GroupForm(StrEnum):
    """How Δ is written."""

    GEOMETRIC = "geometric"
    """(e^{kε} − 1)/(e^ε − 1)·δ, the tightest by this proof."""
    DWORK_ROTH = "dwork-roth"
    """k·e^{(k−1)ε}·δ, the one that the paper's LocalGroupDP calibrates with."""


def group_delta(budget: Budget, size: int, form: GroupForm = GroupForm.GEOMETRIC) -> float:
    """Δ for groups of `size` items of an algorithm that is `budget`-private for one item.

    >>> round(group_delta(Budget(1.0, 1e-6), 3) / 1e-6, 3)
    11.107
    """
    k, epsilon = _check.count("group size", size), budget.epsilon
    if form is GroupForm.GEOMETRIC:
        return (
            budget.delta * math.expm1(min(k * epsilon, LARGEST_EXPONENT)) / math.expm1(min(epsilon, LARGEST_EXPONENT))
        )
    return k * math.exp(min((k - 1) * epsilon, LARGEST_EXPONENT)) * budget.delta


def item_budget(group: Budget, size: int, form: GroupForm = GroupForm.DWORK_ROTH) -> Budget:
    """The item-level budget that gives a group of `size` the budget asked for: ε = E/Z, δ = Δ / (the form's factor).

    >>> item = item_budget(Budget(4.0, 1e-5), 2)
    >>> item.epsilon, round(item.delta * 1e7, 3)
    (2.0, 6.767)
    """
    epsilon = group.epsilon / _check.count("group size", size)
    factor = group_delta(Budget(epsilon, 0.5), size, form) / 0.5
    return Budget(epsilon, group.delta / factor)


def group_epsilon(price: Callable[[float], float], size: int, delta: float) -> float:
    """ε at δ for groups of `size`, from a function that prices one member at any δ; infinite where none is found.

    >>> round(group_epsilon(lambda delta: 0.5, 2, 1e-5), 3)
    1.0
    """
    inner = delta / _check.count("group size", size)
    while inner >= SMALLEST_INNER_DELTA:
        epsilon = price(inner)
        if epsilon == 0:
            return 0.0
        if size * epsilon > LARGEST_GROUP_EPSILON:
            return math.inf
        total = group_delta(Budget(epsilon, inner), size)
        if total <= delta:
            return size * epsilon
        inner *= 0.9 * delta / total
    return math.inf
