"""Shamir's secret sharing [Shamir 1979]: any `threshold` shares give the secret, fewer say nothing about it.

Secrets are 32 bytes. Arithmetic is modulo the prime 2⁵²¹ − 1, which is larger than any of them.
"""

import secrets
from collections.abc import Mapping, Sequence

from wholegrain.errors import RunError

PRIME = 2**521 - 1
SECRET_BYTES, SHARE_BYTES = 32, 66


def split_secrets(owned: Sequence[bytes], threshold: int, holders: int) -> list[list[bytes]]:
    """Of each secret a share for each of `holders`, who are numbered from 1 in the order of the shares.

    A secret is the value at 0 of a polynomial with `threshold` coefficients; the others are drawn. All polynomials are
    evaluated at once, in long integers that hold a coefficient of each: less than half the time of one by one.
    """
    drawn = ([secrets.randbelow(PRIME) for _ in owned] for _ in range(threshold - 1))
    place = SHARE_BYTES + (holders.bit_length() * (threshold - 1) + 8) // 8  # as long as a value before its remainder
    coefficients = [_pack(numbers, place) for numbers in ([int.from_bytes(secret) for secret in owned], *drawn)]
    by_holder = [_unpack(_evaluate(coefficients, x), place, len(owned)) for x in range(1, holders + 1)]
    return [list(shares) for shares in zip(*by_holder, strict=True)]


def join_shares(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the shares of at least `threshold` holders, by their numbers.

    >>> (parts,) = split_secrets([bytes(range(32))], 2, 3)
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


def _pack(numbers: Sequence[int], place: int) -> int:
    """One integer in which each number has a place of so many bytes."""
    return int.from_bytes(b"".join(number.to_bytes(place) for number in numbers))


def _unpack(packed: int, place: int, count: int) -> list[bytes]:
    """The remainder of the number in each place."""
    text = packed.to_bytes(place * count)
    numbers = (int.from_bytes(text[start : start + place]) for start in range(0, len(text), place))
    return [(number % PRIME).to_bytes(SHARE_BYTES) for number in numbers]


def _evaluate(coefficients: Sequence[int], x: int) -> int:
    """The polynomials' values, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


def _weight(x: int, holders: Mapping[int, bytes]) -> int:
    """Lagrange's weight of holder x for the value at 0."""
    above, below = 1, 1
    for other in holders:
        if other != x:
            above, below = above * other % PRIME, below * (other - x) % PRIME
    return above * pow(below, -1, PRIME) % PRIME
