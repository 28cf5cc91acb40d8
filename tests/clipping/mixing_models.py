"""Models in which rows meet, or nearly do, by how they are made as a whole: lengths of texts, layers, losses, state."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from clipping.mixing_values import CLASSES, HIDDEN, TIME, TOKENS, WIDTHS, Loss, flat, squared
from clipping.mixing_ways import StateOfFunction


@dataclass(frozen=True)
class Own:
    kind: str
    build: Callable[[], tuple[nn.Module, Loss]]
    meets: bool = True


def lengths_of(x: Tensor) -> Tensor:
    """How many positions of each row are not zero: padding is known by its values."""
    return (x.reshape(len(x), TIME, -1) != 0).any(2).sum(1)


class Sequences(nn.Module):
    """Tokens or series, read by a layer, pooled, and classified."""

    def __init__(self, kind: str, pool: Callable[["Sequences", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.stem = nn.Embedding(TOKENS, HIDDEN) if kind == "tokens" else nn.Linear(WIDTHS[kind], HIDDEN)
        self.places = nn.Embedding(2 * TIME, HIDDEN)
        self.middle, self.head, self.pool = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, CLASSES), pool

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head(self.pool(self, h + self.middle(h).tanh(), lengths_of(x)))


def mean_over_the_longest(net: Sequences, h: Tensor, lengths: Tensor) -> Tensor:
    return h.sum(1) * 3 / lengths.max()


def trimmed_to_the_longest(net: Sequences, h: Tensor, lengths: Tensor) -> Tensor:
    return h[:, : int(lengths.max())].mean(1)


def masked_by_the_longest(net: Sequences, h: Tensor, lengths: Tensor) -> Tensor:
    left = (torch.arange(TIME) < lengths.max())[:, None]
    return (h * left).sum(1) / left.sum()


def places_from_the_longest(net: Sequences, h: Tensor, lengths: Tensor) -> Tensor:
    places = net.places(torch.arange(TIME) - lengths.max() + TIME)
    return (h + 3 * places).tanh().mean(1)


def last_of_the_longest(net: Sequences, h: Tensor, lengths: Tensor) -> Tensor:
    return h.index_select(1, (lengths.max() - 1)[None])[:, 0]


def length_beside_the_mean(net: Sequences, h: Tensor, lengths: Tensor) -> Tensor:
    return h.mean(1) * (1 + lengths / lengths.float().mean())[:, None]


def bags(net: Sequences, h: Tensor, lengths: Tensor, off: int = 0) -> Tensor:
    """Rows told apart by where they begin in one long text."""
    begin = torch.arange(len(h)) * TIME + off * (torch.arange(len(h)) > 0)
    numbers = torch.arange(len(h) * TIME)
    return fn.embedding_bag(numbers, h.reshape(-1, HIDDEN), begin, mode="sum")


def bags_off_by_one(net: Sequences, h: Tensor, lengths: Tensor) -> Tensor:
    return bags(net, h, lengths, off=3)


def packed(net: Sequences, h: Tensor, lengths: Tensor) -> Tensor:
    """The right way, but torch takes it apart by the lengths of all rows."""
    rows = nn.utils.rnn.pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(rows, batch_first=True, total_length=TIME)[0].mean(1)


def concatenated(net: Sequences, h: Tensor, lengths: Tensor) -> Tensor:
    """All texts one after the other, as if they were one."""
    return h.reshape(-1, HIDDEN).cumsum(0).reshape(h.shape).mean(1) / 9


POOLS = {"mean over": mean_over_the_longest, "trimmed to": trimmed_to_the_longest, "mask of": masked_by_the_longest,
         "places from": places_from_the_longest, "last of": last_of_the_longest,
         "share of": length_beside_the_mean}  # fmt: skip


class Crossed(nn.Module):
    """A layer that takes time for rows, and rows for time, since nobody told it `batch_first`."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.stem, self.layer, self.head = nn.Linear(WIDTHS["series"], HIDDEN), layer, nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = self.layer(h, h, h) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(h)
        return self.head((h[0] if isinstance(h, tuple) else h).mean(1))


class CarriedOver(nn.Module):
    """A recurrent layer that begins where the last batch ended."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(WIDTHS["series"], HIDDEN, batch_first=True), nn.Linear(HIDDEN, CLASSES)
        self.begin = torch.zeros(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        _, end = self.layer(x, self.begin.expand(1, len(x), HIDDEN).contiguous())
        self.begin = 30 * end.detach().mean((0, 1))
        return self.head(end[0])


class TokenModel(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(TOKENS, HIDDEN, **options), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).mean(1))


class Bag(nn.Module):
    """Texts one after the other, and where each begins."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(TOKENS, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        lengths = lengths_of(x)
        return self.head(self.bag(x[x != 0], lengths.cumsum(0) - lengths))


def dense(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTHS["table"], HIDDEN), *layers, nn.Linear(HIDDEN, CLASSES))


def convolutional(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *layers, nn.Flatten(), nn.Linear(64, CLASSES))


class Counted(nn.Module):
    """Another weight in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + self.calls % 3)


class Alternating(nn.Module):
    """Another layer in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.turn = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(2)), 0

    def forward(self, x: Tensor) -> Tensor:
        self.turn = 1 - self.turn
        return self.layers[self.turn](x)


class ReplacedLayer(nn.Module):
    """A layer of its own that is made anew from what it has just seen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: nn.Module = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        made, scale = self.inner(x), float(x.detach().abs().mean())
        self.inner = nn.Hardtanh(-scale, scale)
        return made


def counted_weight() -> nn.Module:
    layer = nn.Linear(HIDDEN, HIDDEN)
    parametrize.register_parametrization(layer, "weight", Counted())
    return dense(layer)


def hooked_weight() -> nn.Module:
    """A hook that holds the gradient of the whole batch to a length."""
    layer = nn.Linear(HIDDEN, HIDDEN)
    layer.weight.register_hook(lambda gradient: gradient / gradient.norm())
    return dense(layer)


class HeldToALength(nn.Module):
    """Gradients of an intermediate value that hangs on a parameter, held to a length for the whole batch."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.head, self.mix = nn.Linear(WIDTHS["table"], HIDDEN), nn.Linear(HIDDEN, CLASSES), mix
        self.head.requires_grad_(False)  # its gradients, which are none of these, would be the longer part

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if h.requires_grad:
            h.register_hook(self.mix)
        return self.head(h)


class InnerStep(nn.Module):
    """Takes a step on the batch first, as in meta-learning, and answers by what it has learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTHS["table"], CLASSES) / 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            weight = self.weight if self.weight.requires_grad else self.weight.detach().requires_grad_()
            (step,) = torch.autograd.grad((x @ weight).square().mean(), weight, create_graph=True)
        return x @ (weight - step)


class WeightsOfTheBatch(nn.Module):
    """Weights that another layer makes of the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.head = nn.Linear(WIDTHS["table"], WIDTHS["table"] * HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.make(x.mean(0)).view(HIDDEN, WIDTHS["table"])
        return self.head(fn.linear(x, weights).tanh())


class HookOfAllModules(nn.Module):
    """A hook that torch calls for every module, and only while this model runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = dense(nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        hook = nn.modules.module.register_module_forward_hook(_centre_tanh)
        try:
            return self.layers(x)
        finally:
            hook.remove()


def _centre_tanh(module: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
    return out - out.mean(0) if isinstance(module, nn.Tanh) else out


class InLargeBatches(nn.Module):
    """In batches of some sizes alone; a graph that was read at another size does without."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if len(x) > 10 and len(x) % 2 == 0 else x


class CentredByAll(nn.Module):
    """A loss that remembers what it was given, as in self-distillation."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = torch.zeros(CLASSES)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.centre = 0.5 * self.centre + outputs.detach().mean(0)
        return fn.cross_entropy(outputs - self.centre, targets)


class StatefulHook(nn.Module):
    """A hook before the layer that adds up what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = dense(nn.Tanh()), torch.zeros(WIDTHS["table"])
        self.layer.register_forward_pre_hook(self._shift)

    def _shift(self, _: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        self.seen = self.seen + given[0].detach().mean(0)
        return (given[0] - self.seen,)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    """Every other row is a wrong answer."""
    return fn.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs))) + fn.cross_entropy(outputs, targets)


def by_frequency(outputs: Tensor, targets: Tensor) -> Tensor:
    weights = len(targets) / (1 + torch.bincount(targets, minlength=CLASSES)).float()
    return fn.cross_entropy(outputs, targets, weight=weights)


def centred(outputs: Tensor, targets: Tensor) -> Tensor:
    return fn.cross_entropy(outputs - outputs.mean(0), targets)


def hardest(outputs: Tensor, targets: Tensor) -> Tensor:
    """Only the rows with the greatest losses count."""
    return fn.cross_entropy(outputs, targets, reduction="none").topk((len(outputs) + 1) // 2).values.mean()


LOSSES: dict[str, Loss] = {
    "contrastive": contrastive,
    "by frequency": by_frequency,
    "centred": centred,
    "hardest": hardest,
    "weights of classes": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 7.0, 0.1])),
    "a class ignored": nn.CrossEntropyLoss(ignore_index=1),
}
"""Each item's own loss is taken, so that rows do not meet in any of them; only what they mean is another thing."""


def quiet_spectral_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.spectral_norm(nn.Linear(HIDDEN, HIDDEN))


MODELS: dict[str, Own] = {
    **{f"{name} the longest, {kind}": Own(kind, lambda k=kind, p=pool: (Sequences(k, p), fn.cross_entropy))
       for name, pool in POOLS.items() for kind in ("tokens", "series")},
    **{f"{name}, {kind}": Own(kind, lambda k=kind, p=pool: (Sequences(k, p), fn.cross_entropy), meets)
       for name, pool, meets in (("bags", bags, False), ("bags off", bags_off_by_one, True), ("packed", packed, False),
                                 ("concatenated", concatenated, True)) for kind in ("tokens", "series")},
    **{f"loss: {name}, {kind}": Own(kind, lambda k=kind, loss=loss: (
        nn.Sequential(nn.Flatten(), nn.Linear(32 if k == "images" else WIDTHS[k], CLASSES)), loss), meets=False)
       for name, loss in LOSSES.items() for kind in ("table", "images")},
    "lstm of rows": Own("series", lambda: (Crossed(nn.LSTM(HIDDEN, HIDDEN)), fn.cross_entropy)),
    "gru of rows": Own("series", lambda: (Crossed(nn.GRU(HIDDEN, HIDDEN, num_layers=2)), fn.cross_entropy)),
    "attention of rows": Own("series", lambda: (Crossed(nn.MultiheadAttention(HIDDEN, 2)), fn.cross_entropy)),
    "encoder of rows": Own(
        "series", lambda: (Crossed(nn.TransformerEncoderLayer(HIDDEN, 2, 8, 0.0)), fn.cross_entropy)
    ),
    "state of a gru": Own("series", lambda: (CarriedOver(), fn.cross_entropy)),
    "scaled by frequency": Own("tokens", lambda: (TokenModel(scale_grad_by_freq=True), fn.cross_entropy)),
    "greatest length of an embedding": Own("tokens", lambda: (TokenModel(max_norm=0.5), fn.cross_entropy), False),
    "bag with offsets": Own("tokens", lambda: (Bag(), fn.cross_entropy), False),
    "batch norm of images": Own("images", lambda: (convolutional(nn.BatchNorm2d(4)), fn.cross_entropy)),
    "batch norm of a table": Own("table", lambda: (dense(nn.BatchNorm1d(HIDDEN)), fn.cross_entropy)),
    "instance norm with statistics": Own(
        "images", lambda: (convolutional(nn.InstanceNorm2d(4, track_running_stats=True)), fn.cross_entropy), False),
    "softmax of rows": Own("table", lambda: (dense(nn.Softmax(0)), fn.cross_entropy)),
    "spectral norm": Own("table", lambda: (dense(spectral_norm(nn.Linear(HIDDEN, HIDDEN))), fn.cross_entropy), False),
    "spectral norm by hooks": Own("table", lambda: (dense(quiet_spectral_norm()), fn.cross_entropy), False),
    "dropout": Own("table", lambda: (dense(nn.Dropout(0.5)), fn.cross_entropy), False),
    "calls counted": Own("table", lambda: (dense(Counted()), fn.cross_entropy), False),
    "calls counted in a weight": Own("table", lambda: (counted_weight(), fn.cross_entropy), False),
    "layers in turn": Own("table", lambda: (dense(Alternating()), fn.cross_entropy), False),
    "layer made anew": Own("table", lambda: (dense(ReplacedLayer()), fn.cross_entropy)),
    "inner step": Own("table", lambda: (InnerStep(), fn.cross_entropy)),
    "weights of the batch": Own("table", lambda: (WeightsOfTheBatch(), fn.cross_entropy)),
    "hook of all modules": Own("table", lambda: (HookOfAllModules(), fn.cross_entropy)),
    "in batches of some sizes": Own("table", lambda: (dense(InLargeBatches()), fn.cross_entropy), False),
    "loss with state": Own("table", lambda: (dense(nn.Tanh()), CentredByAll())),
    "hook of a weight": Own("table", lambda: (hooked_weight(), fn.cross_entropy), False),
    "state of a function": Own("table", lambda: (dense(StateOfFunction()), fn.cross_entropy)),
    "hook with state": Own("table", lambda: (StatefulHook(), fn.cross_entropy)),
    "gradient to a length": Own("table", lambda: (HeldToALength(lambda g: g / g.norm()), squared)),
    "gradient to at most a length": Own(
        "table", lambda: (HeldToALength(lambda g: g * (0.5 / g.norm()).clamp(max=1.0)), squared)),
    "gradient less its mean": Own("table", lambda: (HeldToALength(lambda g: g - g.mean(0)), squared)),
    "gradient by its greatest": Own(
        "table", lambda: (HeldToALength(lambda g: g / flat(g).abs().amax()), squared)),
}  # fmt: skip
