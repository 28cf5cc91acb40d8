"""Numbers that JSON does not have: null stands for infinity."""

import math


def finite(value: float) -> float | None:
    """The number as JSON takes it; null where there is no bound."""
    return value if math.isfinite(value) else None


def or_infinity(value: float | None) -> float:
    """The number that JSON had, or infinity where it had null."""
    return math.inf if value is None else value
