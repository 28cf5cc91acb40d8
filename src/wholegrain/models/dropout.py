"""Dropout masks that depend on the item and not on its batch.

Torch draws the coins of a batch from one generator: whoever is in the batch then moves everybody's coins, and removing
one person would change the gradients of all others. Here an item's coins are a function of the step's key and of the
item itself, by a counter-based generator [SplitMix64; Steele, Lea and Flood 2014]. They are the same at every place of
a batch, in any batch, and in whatever way a gradient is computed.

The key is drawn for every step by the run's source of noise. No guarantee rests on it: a contribution is clipped
whatever the coins were, and coins tell nothing of others. Two items that are equal in every value have equal coins.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wholegrain.errors import ModelError

GOLDEN, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""The constants of SplitMix64, as signed 64-bit numbers."""
BITS = 53
"""Of each coin: a chance is kept to one part in 2⁵³."""


class StepKey:
    """What a step's coins are drawn with. A copy of a model has the same key, not a copy of it."""

    def __init__(self) -> None:
        self.words: tuple[int | Tensor, int | Tensor] = (0, 0)

    def renew(self, key: int) -> None:
        """Use the lower 128 bits of this number from now on."""
        self.words = _as_signed(key), _as_signed(key >> 64)

    def __deepcopy__(self, memo: dict[int, Any]) -> "StepKey":
        return self


class DropoutByItem(nn.Module):
    """A model in which every dropout takes its coins from the item."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.key = model, StepKey()
        self.training = model.training

    def forward(self, inputs: Tensor) -> Tensor:
        """What the model gives, with the coins of these items."""
        coins = ItemCoins(seed_items(inputs, *self.key.words)) if self.training else nullcontext()
        with coins:
            outputs: Tensor = self.model(inputs)
        return outputs


def drops(module: nn.Module) -> bool:
    """Whether this is a dropout that is switched on."""
    return isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 and module.training


def with_item_coins(model: nn.Module) -> nn.Module:
    """The model itself, or with its dropout by item."""
    return DropoutByItem(model) if any(drops(module) for module in model.modules()) else model


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """The model as it predicts: every module in evaluation mode, and afterwards as it was."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


class ItemCoins(TorchFunctionMode):
    """Puts coins of items in the place of torch's, in all that is computed inside."""

    def __init__(self, seeds: Tensor) -> None:
        super().__init__()
        self._seeds, self._drawn = seeds, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = RULES.get(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {})) if rule is None else rule(self, func, args, kwargs or {})

    def drop(self, x: Tensor, p: float, shared: int) -> Tensor:
        """Values, each zero with chance p and else larger by 1/(1 − p); the last `shared` dimensions have one coin."""
        items = self._seeds.shape[0]
        if x.dim() < 1 or x.shape[0] % items:
            raise ModelError(f"Dropout meets a tensor of shape {list(x.shape)} for {items} items; items come first.")
        shape = (*x.shape[: x.dim() - shared], *(1,) * shared)
        each = torch.Size(shape).numel() // items
        coins = draw_coins(self._seeds, self._drawn, each) >= int(p * 2**BITS)
        self._drawn += each
        return x * (coins.view(shape).to(x.dtype) * (1 / (1 - p) if p < 1 else 0.0))


def seed_items(inputs: Tensor, one: int | Tensor, other: int | Tensor) -> Tensor:
    """A number for each item [item], by its values and the key."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[inputs.element_size()]
    words = inputs.detach().contiguous().reshape(inputs.shape[0], -1).view(kind).to(torch.int64)
    place = torch.arange(1, words.shape[1] + 1, device=words.device) * GOLDEN
    return _mix(_mix(words + place + one).sum(1) + other)


def draw_coins(seeds: Tensor, first: int, count: int) -> Tensor:
    """Whole numbers from 0 to 2⁵³ − 1 [item, coin], from number `first` on."""
    place = torch.arange(first + 1, first + count + 1, device=seeds.device) * GOLDEN
    return (_mix(seeds[:, None] + place) >> (64 - BITS)) & ((1 << BITS) - 1)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's last steps. Torch's shift keeps the sign, which the mask takes away."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * FIRST
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * SECOND
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _as_signed(word: int) -> int:
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def _dropout(coins: ItemCoins, func: Any, args: Any, kwargs: Any, shared: int = 0) -> Any:
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    p, training = float(given.get("p", 0.5)), given.get("training", given.get("train", True))
    if not training or p == 0:
        return given["input"]
    return coins.drop(given["input"], p, shared)


def _of_channels(coins: ItemCoins, func: Any, args: Any, kwargs: Any) -> Any:
    x = args[0] if args else kwargs["input"]
    return _dropout(coins, func, args, kwargs, shared=max(0, x.dim() - 2))


def _attention(coins: ItemCoins, func: Any, args: Any, kwargs: Any) -> Any:
    """Scaled dot products, with coins for the weights."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    p = float(given.pop("dropout_p", 0.0))
    if p == 0:
        return func(*args, **kwargs)
    query, key, value, mask = (given.get(name) for name in names[:4])
    assert isinstance(query, Tensor)
    assert isinstance(key, Tensor)
    assert isinstance(value, Tensor)
    if given.get("enable_gqa"):
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    scale = given.get("scale") or query.shape[-1] ** -0.5
    scores = query @ key.transpose(-2, -1) * scale
    if given.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
    return coins.drop(scores.softmax(-1), p, 0) @ value


def _refuse(coins: ItemCoins, func: Any, args: Any, kwargs: Any) -> Any:
    raise ModelError(f"The model draws random numbers by {func.__name__}, which has no coins of items; use nn.Dropout.")


RULES: Mapping[str, Callable[[ItemCoins, Any, Any, Any], Any]] = {
    **dict.fromkeys(("dropout", "dropout_"), _dropout),
    **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d", "feature_dropout", "feature_dropout_"), _of_channels),
    **dict.fromkeys(("alpha_dropout", "feature_alpha_dropout", "rrelu", "bernoulli", "bernoulli_"), _refuse),
    "scaled_dot_product_attention": _attention,
}
"""By the name of torch's function."""


class DropoutCoins:
    """For engines that compute gradients of a `model`: the coins of its dropout, if it has any."""

    model: nn.Module

    @property
    def draws_coins(self) -> bool:
        """Whether the model has dropout."""
        return isinstance(self.model, DropoutByItem)

    def renew_coins(self, key: int) -> None:
        """Draw the coins of the next step with this key."""
        if isinstance(self.model, DropoutByItem):
            self.model.key.renew(key)
