"""Products that the rules of layers are made of: by torch, or by the C program (program/layer_products.c).

An engine chooses once, by a public setting, and all that it computes is computed so: `multiplied_by` says which for as
long as a call lasts. Whether a product is large enough for C depends on sizes of the layer alone, never on the number
of rows: a row must come out the same in a batch of any size.

In C every element of a product is one defined sum, and everything else is computed unit by unit. So rows and units are
the same to the last bit wherever they stand: docs/arithmetic.md.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from wholegrain.clipping.c_library import load_library

WORTH = 1 << 12
"""Values of a right factor, from which on a product is worth the way to C."""
NARROW = 8
"""Rows or columns of a right factor, below which it is not."""
PAIR_ROWS, PANEL = 96, 32
"""Rows, and columns, for which C wants room beside its factors: see layer_products.c and products.c."""
ZERO, BIAS, ITSELF = 0, 1, 2
"""What a product is added to."""


Run = tuple[int, slice]
"""Items that each of neighbouring units has, and all items of these units."""


class Products:
    """A way to multiply: this one is torch's."""

    def takes_weight(self, weight: Tensor) -> bool:
        """Whether products with it, or its transpose, are computed in C."""
        return False

    def fixed(self, rows: Tensor, right: Tensor) -> bool:
        """Whether each row of a product is the same wherever it stands and however it lies in memory: not known."""
        return False

    def multiply(self, rows: Tensor, right: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
        """Rows [row, k] times right [k, column], plus bias [column], into `out`."""
        return torch.mm(rows, right, out=out) if bias is None else torch.addmm(bias, rows, right, out=out)

    def add_product(self, total: Tensor, left: Tensor, right: Tensor, begun: bool) -> None:
        """Add left [row, k] times right [k, column] to a total, which holds anything where it has not begun."""
        total.addmm_(left, right, beta=int(begun))


class Factor(ctypes.Structure):
    """Rows [item, position, value], as C is told of them: where they are, and how far items and positions are apart."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("item", ctypes.c_int64),
        ("position", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )

    @staticmethod
    def of(rows: Tensor) -> "Factor":
        """Of rows whose values lie one after the other."""
        return Factor(rows.data_ptr(), rows.stride(0), rows.stride(1), rows.shape[2])


class CompiledProducts(Products):
    """Large products in single precision by C, others by torch."""

    def __init__(self) -> None:
        self._library = _declare(load_library())

    def takes_weight(self, weight: Tensor) -> bool:
        """Where it is large, and neither of its sides small."""
        single = weight.dtype is torch.float32 and weight.dim() == 2
        return single and weight.numel() >= WORTH and min(weight.shape) >= NARROW

    def fixed(self, rows: Tensor, right: Tensor) -> bool:
        """Whatever is computed in C."""
        return self._takes(rows, right)

    def multiply(self, rows: Tensor, right: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
        """One product."""
        if (
            not self._takes(rows, right)
            or not _fit(rows, right, out)
            or (bias is not None and len(bias) != out.shape[1])
        ):
            return super().multiply(rows, right, bias, out)
        self._multiply(rows, right, ZERO if bias is None else BIAS, bias, out)
        return out

    def add_product(self, total: Tensor, left: Tensor, right: Tensor, begun: bool) -> None:
        """One product."""
        single = left.dtype is right.dtype is total.dtype is torch.float32
        if single and total.numel() >= WORTH and _lies(left) and _lies(right) and _fit(left, right, total):
            self._multiply(left, right, ITSELF if begun else ZERO, None, total)
        else:
            super().add_product(total, left, right, begun)

    def _takes(self, rows: Tensor, right: Tensor) -> bool:
        return self.takes_weight(right) and rows.dtype is torch.float32 and _lies(rows) and _lies(right)

    def _multiply(self, rows: Tensor, right: Tensor, start: int, bias: Tensor | None, out: Tensor) -> None:
        bias = None if bias is None else bias.contiguous()
        if rows.shape[0]:
            self._library.wholegrain_layer_product(
                rows.shape[0], right.shape[1], right.shape[0], rows.data_ptr(), *rows.stride(), right.data_ptr(),
                *right.stride(), start, None if bias is None else bias.data_ptr(), out.data_ptr(), out.stride(0),
            )  # fmt: skip

    def forms(self, out: int, inner: int, kind: torch.dtype) -> bool:
        """Whether units' gradients of a weight [out, in] are formed and measured in C."""
        return kind is torch.float32 and out * inner >= WORTH

    def form_units(
        self,
        runs: Sequence[Run],
        outward: Tensor,
        inward: Tensor,
        formed: Tensor,
        squares: Tensor,
        bias: Tensor | None = None,
        times: int = 1,
    ) -> None:
        """Each unit's gradient of a weight [unit, out, in]; squared norms are added to `squares`, in double precision.

        Factors are [item, position, value]. Where there is a `bias`, also its gradient [unit, out], of which so many
        times the squared norm is added.
        """
        assert outward.shape[:2] == inward.shape[:2]
        first = 0
        for size, items in runs:
            g, a, count = outward[items], inward[items], (items.stop - items.start) // size
            sums = None if bias is None else bias[first:].data_ptr()
            self._library.wholegrain_form_units(
                count, size, g.shape[1], Factor.of(g), Factor.of(a), formed[first:].data_ptr(), sums, float(times),
                squares[first:].data_ptr(),
            )  # fmt: skip
            first += count

    def pair_units(
        self, size: int, outward: Tensor, inwards: Sequence[Tensor], ones: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Squared norms of units of so many items, in double precision, by products of positions with positions.

        And the products of each position with itself [unit, position], of the outward factor and of all others, of
        which so many are 1.
        """
        units, count = outward.shape[0] // size, size * outward.shape[1]
        squares = torch.empty(units, dtype=torch.float64)
        own, others = outward.new_empty(units, count), outward.new_empty(units, count)
        space = outward.new_empty(count * (2 * count + PAIR_ROWS + max(rows.shape[2] for rows in (outward, *inwards))))
        factors = (Factor * len(inwards))(*(Factor.of(rows) for rows in inwards))
        places = (each.data_ptr() for each in (squares, own, others, space))
        self._library.wholegrain_pair_units(
            units, size, outward.shape[1], Factor.of(outward), factors, len(inwards), float(ones), *places
        )
        return squares, own, others

    def forward_lstm(self, weight: Tensor, gates: Tensor, outs: Tensor, cells: Tensor, squashed: Tensor) -> None:
        """All times of an LSTM: see wholegrain_lstm_forward."""
        packed = weight.new_empty(weight.numel() + PANEL * weight.shape[1])
        places = (each.data_ptr() for each in (weight, gates, outs, cells, squashed, packed))
        self._library.wholegrain_lstm_forward(*squashed.shape, *places)

    def backward_lstm(
        self, weight: Tensor, saved: Sequence[Tensor], dy: Tensor | None, states: Sequence[Tensor], delta: Tensor
    ) -> None:
        """Back through all times: `saved` are gates, cells and squashed cells; `states` the gradients of h and c."""
        packed = weight.new_empty(weight.numel() + PANEL * weight.shape[0])
        above = (None, 0, 0) if dy is None else (dy.data_ptr(), dy.stride(0), dy.stride(1))
        self._library.wholegrain_lstm_backward(
            *saved[2].shape, weight.data_ptr(), *(each.data_ptr() for each in saved), *above,
            *(each.data_ptr() for each in (*states, delta, packed)),
        )  # fmt: skip

    def steps(self, weight: Tensor, states: Tensor) -> bool:
        """Whether C goes through the times of an LSTM with this recurrent weight and states [time, item, hidden]."""
        hidden = states.shape[2]
        single = weight.dtype is states.dtype is torch.float32
        return single and hidden * hidden >= WORTH and weight.shape == (4 * hidden, hidden) and weight.is_contiguous()


def _fit(left: Tensor, right: Tensor, out: Tensor) -> bool:
    """Whether sizes go together, and rows of the result lie in memory as C writes them; else torch may tell why not."""
    sizes = left.shape[0], right.shape[0], right.shape[1]
    return sizes == (out.shape[0], left.shape[1], out.shape[1]) and out.stride(1) == 1


def _lies(rows: Tensor) -> bool:
    """Whether values of a row, or of a column, lie one after the other."""
    return 1 in rows.stride()


@cache
def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, with what its functions take."""
    number, place, factor = ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(Factor)
    taken = {
        "layer_product": (*[number] * 3, place, number, number, place, number, number, number, place, place, number),
        "form_units": (number, number, number, factor, factor, place, place, ctypes.c_double, place),
        "lstm_forward": (*[number] * 3, *[place] * 6),
        "lstm_backward": (*[number] * 3, *[place] * 5, number, number, *[place] * 4),
        "pair_units": (number, number, number, factor, factor, number, ctypes.c_float, place, place, place, place),
    }
    for name, types in taken.items():
        function = getattr(library, f"wholegrain_{name}")
        function.argtypes, function.restype = types, None
    return library


@cache
def find_products(compiled: bool) -> Products:
    """The one way or the other."""
    return CompiledProducts() if compiled else Products()


_current = [Products()]


def current() -> Products:
    """The way to multiply that the present call of an engine has."""
    return _current[-1]


@contextmanager
def multiplied_by(products: Products) -> Iterator[None]:
    """For as long as this lasts. One computation runs at a time: plain_arithmetic.py."""
    _current.append(products)
    try:
        yield
    finally:
        _current.pop()
