"""Mechanisms whose privacy is known exactly, for bounds to be tried on."""

import math

import numpy as np
from scipy import stats

from wholegrain.audit.confidence_bounds import Guesses


def responses(epsilon: float, count: int, draws: np.random.Generator) -> int:
    """Right guesses on randomized response: each answer tells the coin with probability e^ε/(1+e^ε)."""
    return int(draws.binomial(count, 1 / (1 + math.exp(-epsilon))))


def gaussian_guesses(mu: float, canaries: int, made: int, draws: np.random.Generator) -> Guesses:
    """Guesses on the most telling of coins that a Gaussian mechanism released."""
    coins = draws.random(canaries) < 0.5
    scores = draws.normal(size=canaries) + mu * (coins - 0.5)
    sure = np.argsort(-np.abs(scores))[:made]
    return Guesses(canaries, made, int(((scores > 0) == coins)[sure].sum()))


def rejected_at_most(rejections: int, runs: int, significance: float) -> bool:
    """Whether so many rejections are still plausible for a test of that significance."""
    return bool(stats.binomtest(rejections, runs, significance, alternative="greater").pvalue > 1e-3)
