"""Noise from a counter: the same bits in C and in numpy, and the law that is promised."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from compilers import require_compiler
from wholegrain.silo.counter_noise import GROUP, CounterNoise, _radius, _turn, _words_of, normals, philox
from wholegrain.silo.noise import SeededNoise

KEY = 0x0123456789ABCDEF_F0E1D2C3B4A59687
PI = (0x85A308D3 << 32) + 0x243F6A88, (0x03707344 << 96) + (0x13198A2E << 64) + (0x299F31D0 << 32) + 0xA4093822


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, 2**128 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (*PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_words_are_the_known_answers_of_random123(counter: int, key: int, wanted: str) -> None:
    found = philox(np.array([counter], np.uint64), _words_of(key))
    assert " ".join(f"{word:08x}" for word in found[:, 0].tolist()) == wanted


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1023, 1025, 70_001])
def test_the_program_and_numpy_give_the_same_bits(count: int, kind: torch.dtype) -> None:
    require_compiler()
    for key in (0, KEY, 2**128 - 1):
        whole = torch.linspace(-1, 1, count + 1, dtype=kind)
        total, wanted = whole[1:], whole[1:].clone()  # which begins at an odd place
        stream, group = CounterNoise(key), 0
        for scale in (1.0, 0.37):
            stream.add_to(total, scale, 1.1)
            wanted += torch.from_numpy(normals(_words_of(key), group, count, scale * 1.1))
            group += -(-count // GROUP)
        assert torch.equal(total, wanted)


def test_counters_beyond_32_bits_are_counted_on() -> None:
    require_compiler()
    stream, total = CounterNoise(KEY), torch.zeros(200)
    stream._next = 2**28 - 1
    stream.add_to(total, 1.0, 1.0)
    assert torch.equal(total, torch.from_numpy(normals(_words_of(KEY), 2**28 - 1, 200)))
    assert len(total.unique()) > 190


def test_sums_that_do_not_lie_in_a_row_get_the_same_noise() -> None:
    require_compiler()
    here, there = torch.zeros(2, 40), torch.zeros(40, 2).T
    CounterNoise(KEY).add_to(here, 1.0, 1.0)
    CounterNoise(KEY).add_to(there, 1.0, 1.0)
    assert torch.equal(here, there)


def test_the_law_is_normal() -> None:
    values = normals(_words_of(KEY), 0, 2_000_000).astype(np.float64)
    n = len(values)
    assert abs(values.mean()) < 4 / math.sqrt(n)
    assert abs(values.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs((values**3).mean()) < 4 * math.sqrt(15 / n)
    assert abs((values**4).mean() - 3) < 4 * math.sqrt(96 / n)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    pairs = values.reshape(-1, 4, 16)
    for k in range(1, 4):  # the two of a radius, and those of a counter
        assert abs((pairs[:, 0] * pairs[:, k]).mean()) < 4 / math.sqrt(n / 4)
        assert abs((pairs[:, 0] ** 2 * pairs[:, k] ** 2).mean() - 1) < 4 * math.sqrt(8 / (n / 4))


def test_there_are_values_beyond_five_standard_deviations() -> None:
    """As many as there should be; made from 24 bits, none would be beyond 5.8."""
    require_compiler()
    total, beyond, expected = torch.empty(1 << 20), np.zeros(3), np.zeros(3)
    stream, levels = CounterNoise(KEY), np.array([4.0, 4.5, 5.0])
    for _ in range(20):
        stream.add_to(total.zero_(), 1.0, 1.0)
        beyond += [(total.abs() > level).sum().item() for level in levels]
        expected += [len(total) * math.erfc(level / math.sqrt(2)) for level in levels]
    assert (np.abs(beyond - expected) < 4 * np.sqrt(expected)).all()
    assert beyond[2] > 0


def test_extreme_words_give_finite_values() -> None:
    words = np.array([0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF], np.uint32)
    radius = _radius(words).astype(np.float64)
    u = ((words >> 1) + 0.5) / 2**31
    assert np.allclose(radius, np.sqrt(-2 * np.log(np.minimum(u.astype(np.float32), 1))), rtol=1e-6, atol=1e-9)
    assert 6.6 < radius.max() < 6.7
    for one, other in (_turn(np.ones(7, np.float32), words), _turn(np.ones(7, np.float32), words[::-1].copy())):
        assert np.allclose(one.astype(np.float64) ** 2 + other.astype(np.float64) ** 2, 1, rtol=1e-6)


def test_streams_of_a_source_are_functions_of_seed_round_and_silo() -> None:
    require_compiler()
    source, first = SeededNoise(3, in_c=True), {}
    for name, (round, silo) in {"a": (0, "x"), "again": (0, "x"), "b": (1, "x"), "c": (0, "y")}.items():
        first[name] = torch.zeros(100)
        source.stream(round, silo).add_to(first[name], 1.0, 1.0)
    assert torch.equal(first["a"], first["again"])
    assert not any(torch.equal(first["a"], first[other]) for other in "bc")
    assert source.identity != SeededNoise(3).identity


def test_the_noise_of_other_runs_is_as_it_was() -> None:
    """Torch's generator, from the seed that it always had."""
    total = torch.zeros(3)
    SeededNoise(1).stream(0, "a").add_to(total, 1.0, 1.0)
    assert total.tolist() == [1.7747069597244263, 0.7543059587478638, -0.8975673317909241]
