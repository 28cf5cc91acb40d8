"""nn.Linear, with any number of dimensions between item and feature."""

from collections.abc import Callable
from typing import Any

from torch import Size, Tensor, nn

from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.ghost_norms import Outer
from wholegrain.clipping.layers.base import Gradients, ModuleSlots, Needed, Outward, Space, by_item, matrix_product
from wholegrain.clipping.parameters import Slot


class LinearLayer:
    """y = x Wᵀ + b at every position; `values` reads W and b anew at every use, because the vector moves.

    With `flipped`, the parameter is Wᵀ [in, out].
    """

    def __init__(
        self,
        values: Callable[[], tuple[Tensor, Tensor | None]],
        weight: Slot | None,
        bias: Slot | None,
        flipped: bool = False,
    ) -> None:
        self._values, self._weight, self._bias, self._flipped = values, weight, bias, flipped

    @staticmethod
    def of(module: nn.Linear, owned: ModuleSlots) -> "LinearLayer":
        """The rule for this module."""
        owned.require("weight", "bias")
        weight, bias = module.weight, module.bias

        def values() -> tuple[Tensor, Tensor | None]:
            return weight.data, None if bias is None else bias.data

        return LinearLayer(values, owned.slot("weight"), owned.slot("bias"))

    def trained(self) -> tuple[Slot, Slot] | None:
        """Weight and bias, where both are trained, whole and in the library's order."""
        if self._weight is None or self._bias is None or self._flipped or self._weight.rows or self._bias.rows:
            return None
        return self._weight, self._bias

    def forward(self, space: Space, *inputs: Tensor) -> tuple[Tensor, Any]:
        """One product."""
        (x,) = inputs
        weight, bias = self._values()
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        out = space.lend((rows.shape[0], weight.shape[0]), rows)
        matrix_product(space, rows, weight.t(), bias, out)
        # Where nothing is trained, the way back needs to know how large the input was, and the input may be free.
        saved = x.shape, x if self._weight or self._bias else None
        return (out if x.dim() == 2 else out.view(*x.shape[:-1], -1)), saved

    def backward(self, space: Space, saved: Any, outward: Outward, needed: Needed) -> Gradients:
        """Another product, and a share of outer products."""
        (g,) = outward
        assert g is not None
        shape, x = saved
        shares = () if x is None else self._shares(x, g, space.items)
        return (self._inward(space, shape, g) if needed[0] else None,), shares

    def _inward(self, space: Space, shape: Size, g: Tensor) -> Tensor:
        rows = g if g.dim() == 2 else g.reshape(-1, g.shape[-1])
        gx = matrix_product(space, rows, self._values()[0], out=space.lend((rows.shape[0], shape[-1]), rows))
        return gx if len(shape) == 2 else gx.view(shape)

    def _shares(self, x: Tensor, g: Tensor, items: int) -> tuple[Share, ...]:
        if self._flipped and self._weight:
            own = Outer(by_item(x, items), ((self._weight, by_item(g, items)),), ())
            return (own, Outer(by_item(g, items), (), (self._bias,))) if self._bias else (own,)
        factors = ((self._weight, by_item(x, items)),) if self._weight else ()
        return (Outer(by_item(g, items), factors, (self._bias,) if self._bias else ()),)
