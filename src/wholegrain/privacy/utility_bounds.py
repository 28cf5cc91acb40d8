"""The paper's bounds on excess population loss, for L-Lipschitz convex losses [Marathe, §4].

They compare how fast each algorithm's loss grows with k, the items per subject; the constant c₂ is not known, so their
absolute size says nothing. `radius` is the paper's M, the bound of the parameter space.
"""

import math
from dataclasses import dataclass

from wholegrain import _check
from wholegrain.privacy.definitions import Budget


@dataclass(frozen=True, kw_only=True)
class BoundParameters:
    """All that the bounds depend on besides k."""

    budget: Budget
    steps: int
    learning_rate: float
    rate: float
    dimension: int
    items: int
    batch_size: int
    lipschitz: float = 1.0
    radius: float = 1.0
    constant: float = 1.0

    def __post_init__(self) -> None:
        for name in ("steps", "dimension", "items", "batch_size"):
            _check.count(name, getattr(self, name))
        for name in ("learning_rate", "lipschitz", "radius", "constant"):
            _check.positive(name, getattr(self, name))
        _check.rate("rate", self.rate)


def item_level(setting: BoundParameters) -> float:
    """LocalItemDP: M²/(2ηT) + ηL²/2 + ηd·c₂²q²T·log(1/δ)/ε² + L²η(T+1)/n."""
    return _descent(setting, 1) + _noise(setting, 1, setting.rate, 0.0) + _generalisation(setting)


def local_group_dp(setting: BoundParameters, k: int) -> float:
    """The same with the noise term of group privacy: k²q²·log(k·e^{(k−1)ε/k}/δ)."""
    noise = _noise(setting, k, setting.rate, _group_log(setting, k))
    return _descent(setting, 1) + noise + _generalisation(setting)


def user_ldp(setting: BoundParameters) -> float:
    """LocalGroupDP's with k the batch size and q = 1."""
    m = setting.batch_size
    return _descent(setting, 1) + _noise(setting, m, 1.0, _group_log(setting, m)) + _generalisation(setting)


def higradavg_dp(setting: BoundParameters, k: int) -> float:
    """(k²M² + η²TL²)/(2kηT) + ηd·c₂²k²q²T·log(1/δ)/ε² + L²η(T+1)/n."""
    return _descent(setting, k) + _noise(setting, k, setting.rate, 0.0) + _generalisation(setting)


def _descent(setting: BoundParameters, k: int) -> float:
    """Error of gradient descent whose gradients are scaled down by k: kM²/(2ηT) + ηL²/(2k)."""
    eta = setting.learning_rate
    return k * setting.radius**2 / (2 * eta * setting.steps) + eta * setting.lipschitz**2 / (2 * k)


def _noise(setting: BoundParameters, k: int, rate: float, extra_log: float) -> float:
    """ηd·σ² with σ = c₂·kq·√(T·(log(1/δ) + extra))/ε."""
    variance = (setting.constant * k * rate / setting.budget.epsilon) ** 2 * setting.steps
    log_term = math.log(1 / setting.budget.delta) + extra_log
    return setting.learning_rate * setting.dimension * variance * log_term


def _group_log(setting: BoundParameters, k: int) -> float:
    return math.log(_check.count("k", k)) + (k - 1) * setting.budget.epsilon / k


def _generalisation(setting: BoundParameters) -> float:
    return setting.lipschitz**2 * setting.learning_rate * (setting.steps + 1) / setting.items
