"""Shamir's secret sharing [Shamir 1979]: any `threshold` shares give the secret, fewer say nothing about it.

Secrets are 32 bytes. Arithmetic is modulo the prime 2⁵²¹ − 1, which is larger than any of them.
"""

import secrets
from collections.abc import Mapping

from wholegrain.errors import RunError

PRIME = 2**521 - 1
SECRET_BYTES, SHARE_BYTES = 32, 66


def split_secret(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """A share for each of `holders`, who are numbered from 1 in the order of the result."""
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_evaluate(coefficients, x).to_bytes(SHARE_BYTES) for x in range(1, holders + 1)]


def join_shares(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the shares of at least `threshold` holders, by their numbers.

    >>> parts = split_secret(bytes(range(32)), 2, 3)
    >>> join_shares({1: parts[0], 3: parts[2]}, 2) == bytes(range(32))
    True
    """
    if len(shares) < threshold:
        raise RunError(f"{threshold} shares of a secret are needed, and there are {len(shares)}.")
    chosen = dict(sorted(shares.items())[:threshold])
    total = sum(int.from_bytes(share) * _weight(x, chosen) for x, share in chosen.items()) % PRIME
    if total >= 256**SECRET_BYTES:
        raise RunError("Shares of a secret do not fit together; one of them is false.")
    return total.to_bytes(SECRET_BYTES)


def _evaluate(coefficients: list[int], x: int) -> int:
    """The polynomial's value, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def _weight(x: int, holders: Mapping[int, bytes]) -> int:
    """Lagrange's weight of holder x for the value at 0."""
    above, below = 1, 1
    for other in holders:
        if other != x:
            above, below = above * other % PRIME, below * (other - x) % PRIME
    return above * pow(below, -1, PRIME) % PRIME
