"""Models in which rows do not meet, of every kind that people train: what an engine should take all rows at once of."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

CLASSES, VOCABULARY, TIME, WIDTH = 3, 13, 6, 8
SHAPES = {"table": (6,), "series": (TIME, 4), "signal": (3, 12), "images": (2, 8, 8), "volumes": (1, 4, 4, 4),
          "spectrum": (8, 24), "sound": (320,)}  # fmt: skip
"""Of one item; tokens are texts of `TIME` numbers."""
Make = Callable[[], nn.Module]


class Own(nn.Module):
    """A forward in one line, over parts: modules, parameters and constants."""

    def __init__(self, forward: Callable[[Any, Any], Tensor], **parts: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Any) -> Tensor:
        return self._forward(self, x)


def numbers(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / 3)


def head(width: int = WIDTH) -> nn.Module:
    return nn.Linear(width, CLASSES)


def pooled(*layers: nn.Module, width: int = WIDTH) -> nn.Module:
    """Layers over [row, channel, …], the mean over all places, and a head."""
    return Own(lambda m, x: m.head(m.layers(x).flatten(2).mean(2)), layers=nn.Sequential(*layers), head=head(width))


def over_time(layer: nn.Module, take: Callable[[Any], Tensor] = lambda out: out, width: int = WIDTH) -> nn.Module:
    """A layer over [row, time, feature], the mean over time, and a head."""
    stem = nn.Linear(SHAPES["series"][1], WIDTH)
    return Own(lambda m, x: m.head(take(m.layer(m.stem(x))).mean(1)), stem=stem, layer=layer, head=head(width))


def dense(*layers: nn.Module, width: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(SHAPES["table"][0], WIDTH), *layers, head(width))


def evaluated(norm: nn.modules.batchnorm._BatchNorm) -> nn.Module:
    """As public data have left it."""
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return norm.eval()


def attention(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, 2, batch_first=True, **options)


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True, **options)


def attend(m: Any, h: Tensor) -> Tensor:
    q, k, v = m.qkv(h).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / 2 + (m.bias if hasattr(m, "bias") else 0)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def own_attention(**parts: Any) -> nn.Module:
    return over_time(Own(lambda m, h: h + attend(m, h), qkv=nn.Linear(WIDTH, 3 * WIDTH), **parts))


def heads_of(h: Tensor) -> Tensor:
    return h.unflatten(-1, (2, WIDTH // 2)).transpose(1, 2)


def scaled(causal: bool) -> nn.Module:
    def forward(m: Any, h: Tensor) -> Tensor:
        made = fn.scaled_dot_product_attention(*(heads_of(f(h)) for f in (m.q, m.k, m.v)), is_causal=causal)
        return made.transpose(1, 2).flatten(2)

    return over_time(Own(forward, **{name: nn.Linear(WIDTH, WIDTH) for name in "qkv"}))


def rotate(h: Tensor) -> Tensor:
    """Rotary positions."""
    angles = torch.arange(h.shape[1])[:, None] / 10.0 ** torch.arange(0, 1, 2 / h.shape[2])
    one, other = h.chunk(2, -1)
    return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], -1)


def texts(forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> nn.Module:
    return Own(forward, table=nn.Embedding(VOCABULARY, WIDTH), head=head(), **parts)


def masked_mean(h: Tensor, tokens: Tensor) -> Tensor:
    """Over the positions that each row has itself."""
    there = (tokens != 0).unsqueeze(-1).to(h.dtype)
    return (h * there).sum(1) / there.sum(1).clamp(min=1)


def last_of_each(h: Tensor, tokens: Tensor) -> Tensor:
    places = (tokens != 0).sum(1).clamp(min=1) - 1
    return h[torch.arange(len(h)), places]


def run_cell(m: Any, x: Tensor) -> Tensor:
    state = None
    for step in x.unbind(1):
        state = m.cell(step, state)
    return m.head(state[0] if isinstance(state, tuple) else state)


def cells(cell: nn.Module) -> nn.Module:
    return Own(run_cell, cell=cell, head=head())


class Lora(nn.Module):
    """Low rank beside a frozen layer, by hand."""

    def __init__(self, width: int, merged: bool) -> None:
        super().__init__()
        self.base, self.merged = nn.Linear(width, width).requires_grad_(False), merged
        self.into, self.out_of = numbers(2, width), numbers(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.merged:
            return fn.linear(x, self.base.weight + self.out_of @ self.into, self.base.bias)
        return self.base(x) + x @ self.into.T @ self.out_of.T


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


def parametrised(layer: nn.Module, rule: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", rule)
    return layer


def tied_texts() -> nn.Module:
    """Words in, words out, of which the first few are classes."""
    return texts(lambda m, x: fn.linear(m.head(m.table(x)).tanh().mean(1), m.table.weight[:CLASSES, :CLASSES]))


def tied_layers() -> nn.Module:
    one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    other.weight = one.weight
    return dense(one, nn.Tanh(), other)


def twice() -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    return dense(layer, nn.Tanh(), layer)


def hooked() -> nn.Module:
    model = dense(nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model[0].register_forward_hook(lambda _, given, out: out.clamp(-2, 2))
    model[2].register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    return model


def unet() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        high = m.down(x).relu()
        low = m.low(fn.max_pool2d(high, 2)).relu()
        joined = torch.cat([high, fn.interpolate(low, scale_factor=2.0, mode="nearest")], 1)
        return m.head(m.up(joined).relu().mean((2, 3)))

    convolution = nn.Conv2d
    return Own(forward, down=convolution(2, 4, 3, padding=1), low=convolution(4, 4, 3, padding=1),
               up=convolution(8, WIDTH, 3, padding=1), head=head())  # fmt: skip


def wavenet() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        h, skipped = m.stem(x), 0
        for number, (value, gate, skip) in enumerate(zip(m.values, m.gates, m.skips, strict=True)):
            past = fn.pad(h, (2**number, 0))
            made = value(past).tanh() * gate(past).sigmoid()
            h, skipped = h + made, skipped + skip(made)
        return m.head(skipped.relu().mean(2))

    def dilated() -> nn.Module:
        return nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 2, dilation=2**number) for number in range(2))

    skips = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(2))
    return Own(forward, stem=nn.Conv1d(3, WIDTH, 1), values=dilated(), gates=dilated(), skips=skips, head=head())


def temporal() -> nn.Module:
    """A TCN: causal, dilated, residual, its weights normed."""
    block = Own(lambda m, h: h + m.layer(fn.pad(h, (4, 0))).relu(),
                layer=weight_norm(nn.Conv1d(WIDTH, WIDTH, 3, dilation=2)))  # fmt: skip
    return pooled(nn.Conv1d(3, WIDTH, 1), block)


def mixer() -> nn.Module:
    def forward(m: Any, h: Tensor) -> Tensor:
        h = h + m.times(m.first(h).mT).mT
        return h + m.features(m.second(h)).relu()

    parts = {"first": nn.LayerNorm(WIDTH), "second": nn.LayerNorm(WIDTH)}
    return over_time(Own(forward, times=nn.Linear(TIME, TIME), features=nn.Linear(WIDTH, WIDTH), **parts))


def vision_transformer() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        patches = m.patches(x).flatten(2).mT
        begun = torch.cat([m.token.expand(len(x), -1, -1), patches], 1) + m.places
        return m.head(m.norm(m.encoder(begun)[:, 0]))

    return Own(forward, patches=nn.Conv2d(2, WIDTH, 2, stride=2), token=numbers(1, 1, WIDTH),
               places=numbers(1, 17, WIDTH), encoder=encoder(norm_first=True, activation="gelu"),
               norm=nn.LayerNorm(WIDTH), head=head())  # fmt: skip


def squeezed() -> nn.Module:
    def forward(m: Any, h: Tensor) -> Tensor:
        return h * m.out_of(m.into(h.mean((2, 3))).relu()).sigmoid()[:, :, None, None]

    block = Own(forward, into=nn.Linear(WIDTH, 2), out_of=nn.Linear(2, WIDTH))
    return pooled(nn.Conv2d(2, WIDTH, 3), block)


def experts() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        made = torch.stack([expert(x) for expert in m.experts], 1)
        return (made * m.gate(x).softmax(1)[:, :, None]).sum(1)

    return Own(forward, experts=nn.ModuleList(dense(nn.ReLU()) for _ in range(3)), gate=nn.Linear(6, 3))


def state_space() -> nn.Module:
    """A diagonal linear recurrence, in a loop."""

    def forward(m: Any, h: Tensor) -> Tensor:
        state, made = torch.zeros_like(h[:, 0]), []
        for step in h.unbind(1):
            state = state * m.keep.sigmoid() + m.into(step)
            made.append(state)
        return torch.stack(made, 1)

    return over_time(Own(forward, keep=numbers(WIDTH), into=nn.Linear(WIDTH, WIDTH)))
