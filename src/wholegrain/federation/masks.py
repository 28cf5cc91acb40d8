"""Masks: key streams that hide a vector of whole numbers and cancel, or are taken away, in a sum over silos.

Arithmetic is modulo 2⁶⁴, which unsigned 64-bit integers do by themselves. Keys come from X25519 and HKDF-SHA256,
streams from AES-256 in counter mode; all of them from the `cryptography` package.
"""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

Words = NDArray[np.uint64]

BLOCK = 1 << 17
"""Words drawn at a time: they stay in the cache."""


def pair_secret(own: X25519PrivateKey, other: bytes) -> bytes:
    """What two silos share and nobody else knows."""
    return own.exchange(X25519PublicKey.from_public_bytes(other))


def derive_key(secret: bytes, *purpose: object) -> bytes:
    """A key of 32 bytes for one purpose; keys for other purposes say nothing about it."""
    info = b"".join(len(text).to_bytes(4) + text for text in (str(part).encode() for part in purpose))
    return HKDF(SHA256(), length=32, salt=None, info=info).derive(secret)


def add_mask(words: Words, seed: bytes, *, negative: bool = False) -> None:
    """Add the key stream of a seed to a vector, or take it away, in place."""
    stream = Cipher(AES256(seed), CTR(bytes(16))).encryptor()
    buffer = np.empty(min(BLOCK, len(words)), np.uint64)
    zeros = bytes(8 * len(buffer))
    for start in range(0, len(words), BLOCK):
        part = words[start : start + BLOCK]
        drawn = buffer[: len(part)]
        stream.update_into(memoryview(zeros)[: 8 * len(part)], drawn.view(np.uint8).data)
        if negative:
            np.subtract(part, drawn, out=part)
        else:
            np.add(part, drawn, out=part)


def to_words(numbers: NDArray[np.int64]) -> Words:
    """Whole numbers modulo 2⁶⁴; a copy."""
    return numbers.astype(np.int64, copy=True).view(np.uint64)


def to_numbers(words: Words, bits: int) -> NDArray[np.int64]:
    """The whole numbers between −2^(bits−1) and 2^(bits−1) that these words are, modulo 2^bits."""
    shift = np.uint64(64 - bits)
    return (words << shift).view(np.int64) >> np.int64(64 - bits)


def pack(words: Words, bits: int) -> bytes:
    """The lowest `bits` of each word, little-endian; bits are a multiple of 8."""
    return np.ascontiguousarray(words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : bits // 8]).tobytes()


def unpack(content: bytes, bits: int) -> Words:
    """Words from their lowest bits; the others are 0."""
    parts = np.frombuffer(content, np.uint8).reshape(-1, bits // 8)
    words = np.zeros((len(parts), 8), np.uint8)
    words[:, : bits // 8] = parts
    return words.reshape(-1).view("<u8").astype(np.uint64, copy=False)
