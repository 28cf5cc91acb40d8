"""Products of matrices in C: each element is one chain of fused operations, wherever it lies."""

import ctypes

import numpy as np
import numpy.typing as npt
import pytest

from compilers import require_compiler
from wholegrain.silo.c_library import load_library

require_compiler()

Floats = npt.NDArray[np.float32]
FROM_ZERO, FROM_BIAS, FROM_ITSELF = range(3)
SIZES = [1, 2, 5, 6, 7, 13, 16, 17, 31, 33, 97, 100]
DEPTHS = [0, 1, 3, 32, 64, 255, 256, 257, 600]


class Matrix(ctypes.Structure):
    _fields_ = (("values", ctypes.c_void_p), ("row", ctypes.c_int64), ("column", ctypes.c_int64))


class Sizes(ctypes.Structure):
    _fields_ = (("m", ctypes.c_int64), ("n", ctypes.c_int64), ("k", ctypes.c_int64))


def view(values: Floats, transposed: bool) -> Matrix:
    """The transpose of `values` if so."""
    place, step = values.ctypes.data, values.strides[0] // 4
    return Matrix(place, 1, step) if transposed else Matrix(place, step, 1)


def spaced(values: Floats, more: int, before: int = 0) -> Floats:
    """The same rows, further apart, with what is not a number between them."""
    room = np.full((values.shape[0] + 1, before + values.shape[1] + more), np.nan, np.float32)
    room[: values.shape[0], before : before + values.shape[1]] = values
    return room[: values.shape[0], before : before + values.shape[1]]


def draw(*shape: int) -> Floats:
    """Numbers of very different sizes, so that every other order of adding gives another sum."""
    draws = np.random.default_rng(sum(shape))
    return np.ldexp(draws.standard_normal(shape), draws.integers(-12, 12, shape)).astype(np.float32)


def multiply(
    a: Floats, b: Floats, start: int = FROM_ZERO, added: Floats | None = None, turned: str = "", step: int = 0
) -> Floats:
    """a·b by the program; `turned` says which factors lie as their transpose."""
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    left = spaced(np.ascontiguousarray(a.T) if "a" in turned else a, step, step % 3)
    right = spaced(np.ascontiguousarray(b.T) if "b" in turned else b, step, step % 2)
    c = spaced(added if start == FROM_ITSELF and added is not None else np.full((m, n), np.nan, np.float32), step)
    around = c.base
    assert around is not None
    before = around.copy()
    bias = ctypes.c_void_p(added.ctypes.data) if start == FROM_BIAS and added is not None else None
    factors = Sizes(m, n, k), view(left, "a" in turned)
    result = start, bias, ctypes.c_void_p(c.ctypes.data), ctypes.c_int64(c.strides[0] // 4)
    library = load_library()
    if "packed" in turned:
        library.wholegrain_packed_floats.restype = ctypes.c_int64
        size = library.wholegrain_packed_floats(ctypes.c_int64(k), ctypes.c_int64(n))
        packed = np.full(size + 1, np.nan, np.float32)
        place = ctypes.c_void_p(packed.ctypes.data)
        library.wholegrain_pack(ctypes.c_int64(k), ctypes.c_int64(n), view(right, "b" in turned), place)
        assert np.isnan(packed[-1])
        library.wholegrain_multiply_packed(*factors, place, *result)
    else:
        library.wholegrain_multiply(*factors, view(right, "b" in turned), *result)
    around, before = around.copy(), before
    for each in (around, before):
        each[:m, :n] = 0
    assert np.array_equal(around, before, equal_nan=True)  # nothing was written beside it
    return c.copy()


def is_fused() -> bool:
    """Whether this machine's program has fused operations: (1 + 2⁻¹²)² - 1 is exact with them."""
    one = np.array([[1 + 2.0**-12]], np.float32)
    return float(multiply(one, one, FROM_ITSELF, np.array([[-1]], np.float32))[0, 0]) == 2.0**-11 + 2.0**-24


def chain(a: Floats, b: Floats, start: Floats) -> Floats:
    """What each element is defined as, one fused operation after the other."""
    library = ctypes.CDLL(None)
    fma, fused = library.fmaf, is_fused()
    fma.restype, fma.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    c = np.array(np.broadcast_to(start, (a.shape[0], b.shape[1])), np.float32)
    for p in range(a.shape[1]):
        if fused:
            c = np.array(
                [[fma(x, y, z) for y, z in zip(b[p], row, strict=True)] for x, row in zip(a[:, p], c, strict=True)],
                np.float32,
            )
        else:
            c = a[:, p : p + 1] * b[p] + c
    return c


WAYS = ["", "a", "b", "a b", "packed", "packed a", "packed b", "packed a b"]


@pytest.mark.parametrize("turned", WAYS)
@pytest.mark.parametrize("start", [FROM_ZERO, FROM_BIAS, FROM_ITSELF])
def test_an_element_is_the_chain_of_operations_that_defines_it(turned: str, start: int) -> None:
    for m, n, k in ((7, 19, 70), (13, 50, 33), (3, 5, 300), (2, 2, 0)):
        a, b = draw(m, k), draw(k, n)
        added = {FROM_ZERO: np.zeros(n, np.float32), FROM_BIAS: draw(n), FROM_ITSELF: draw(m, n)}[start]
        found = multiply(a, b, start, added, turned, step=3)
        assert found.tobytes() == chain(a, b, added).tobytes()


@pytest.mark.parametrize("k", DEPTHS)
@pytest.mark.parametrize("turned", WAYS)
def test_bits_depend_on_nothing_but_an_element_s_own_row_and_column(k: int, turned: str) -> None:
    """Whatever the sizes, the row's and column's position and how far rows are apart."""
    a, b = draw(max(SIZES), k), draw(k, max(SIZES))
    whole = multiply(a, b)
    for m in SIZES:
        for n in SIZES:
            i, j = max(SIZES) - m, (max(SIZES) - n) // 2
            found = multiply(a[i:], b[:, j : j + n], turned=turned, step=(m + n) % 5)
            assert found.tobytes() == np.ascontiguousarray(whole[i:, j : j + n]).tobytes()


@pytest.mark.parametrize("k", [48, 49, 256, 257, 513])
@pytest.mark.parametrize("start", [FROM_ZERO, FROM_BIAS, FROM_ITSELF])
@pytest.mark.parametrize("turned", WAYS)
def test_rows_beyond_those_that_are_moved_at_a_time_are_what_they_are_by_themselves(
    k: int, start: int, turned: str
) -> None:
    """With the widest vectors these are 224: then all of k comes again, from what the product begins with."""
    m, n, few = 450, 67, 5
    a, b, bias, before = draw(m, k), draw(k, n), draw(n), draw(m, n)
    found = multiply(a, b, start, bias if start == FROM_BIAS else before, turned, step=3)
    for i in (0, 95, 96, 191, 222, 224, 287, m - few):
        added = bias if start == FROM_BIAS else before[i : i + few]
        alone = multiply(a[i : i + few], b, start, added)
        assert alone.tobytes() == found[i : i + few].tobytes()


@pytest.mark.parametrize("turned", WAYS)
def test_what_is_not_finite_stays_in_its_row(turned: str) -> None:
    a, b = draw(20, 40), draw(40, 35)
    plain = multiply(a, b, turned=turned)
    a[7, 3], a[12, 0] = np.inf, np.nan
    found = multiply(a, b, turned=turned)
    others = [i for i in range(20) if i not in (7, 12)]
    assert found[others].tobytes() == plain[others].tobytes()
    assert not np.isfinite(found[[7, 12]]).any()
