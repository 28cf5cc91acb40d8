"""The zoo of models in which rows do not meet, by name."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as fn
from torch import nn
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.checkpoint import checkpoint

from clipping import fine_modules as zoo
from clipping.fine_modules import (
    CLASSES,
    SHAPES,
    TIME,
    VOCABULARY,
    WIDTH,
    Make,
    Own,
    dense,
    head,
    numbers,
    over_time,
    pooled,
    texts,
)


@dataclass(frozen=True)
class Fine:
    """What is made, and of what kind of items."""

    kind: str
    make: Make


def make_inputs(kind: str, rows: int) -> Any:
    """Rows of a kind; texts end with padding, but none is empty."""
    if kind == "named":
        return {"tokens": make_inputs("tokens", rows), "table": make_inputs("table", rows)}
    if kind == "tokens":
        tokens = torch.randint(1, VOCABULARY, (rows, TIME))
        return tokens * (torch.arange(TIME) < torch.randint(2, TIME + 1, (rows, 1)))
    return torch.randn(rows, *SHAPES[kind])


CONVOLUTIONS = {
    "conv1d": Fine("signal", lambda: pooled(nn.Conv1d(3, WIDTH, 3), nn.ReLU())),
    "conv2d": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3, padding=1), nn.ReLU())),
    "conv3d": Fine("volumes", lambda: pooled(nn.Conv3d(1, WIDTH, 2), nn.ReLU())),
    "conv transposed 1d": Fine("signal", lambda: pooled(nn.ConvTranspose1d(3, WIDTH, 3, stride=2), nn.ReLU())),
    "conv transposed 2d": Fine("images", lambda: pooled(nn.ConvTranspose2d(2, WIDTH, 3, 2, 1, 1), nn.ReLU())),
    "conv transposed 3d": Fine("volumes", lambda: pooled(nn.ConvTranspose3d(1, WIDTH, 2), nn.ReLU())),
    "conv strided": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3, stride=2, padding=1), nn.Tanh())),
    "conv dilated and grouped": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 2, dilation=2, groups=2), nn.Tanh())),
    "conv without bias": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3, bias=False), nn.ReLU())),
    "conv separable": Fine("images", lambda: pooled(nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(4, WIDTH, 1), nn.ReLU())),
    "conv circular": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3, padding=1, padding_mode="circular"))),
    "conv reflected": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3, padding=1, padding_mode="reflect"))),
    "conv replicated": Fine("signal", lambda: pooled(nn.Conv1d(3, WIDTH, 3, padding=1, padding_mode="replicate"))),
    "conv same": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, (2, 3), padding="same"), nn.ReLU())),
    "pools": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 2), nn.MaxPool2d(2, 1), nn.AvgPool2d(2))),
    "adaptive pools": Fine("images", lambda: nn.Sequential(
        nn.Conv2d(2, 4, 2), nn.AdaptiveMaxPool2d(3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), head(16))),
    "upsampled": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3), nn.Upsample(scale_factor=2.0, mode="bilinear"),
                                               nn.ReLU())),
    "pixel shuffle": Fine("images", lambda: pooled(nn.Conv2d(2, 4 * WIDTH, 3), nn.PixelShuffle(2), nn.ReLU())),
    "unfolded": Fine("images", lambda: Own(
        lambda m, x: m.head((m.weight @ fn.unfold(x, 3)).relu().mean(2)), weight=numbers(WIDTH, 18), head=head())),
    "u-net": Fine("images", zoo.unet),
    "squeeze and excite": Fine("images", zoo.squeezed),
    "wavenet": Fine("signal", zoo.wavenet),
    "temporal convolution": Fine("signal", zoo.temporal),
    "inception": Fine("images", lambda: Own(
        lambda m, x: m.head(torch.cat([m.one(x), m.three(x), fn.avg_pool2d(x, 3, 1, 1)], 1).relu().mean((2, 3))),
        one=nn.Conv2d(2, 3, 1), three=nn.Conv2d(2, 3, 3, padding=1), head=head())),
    "residual": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3), Own(
        lambda m, h: (h + m.two(m.one(h).relu())).relu(), one=nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        two=nn.Conv2d(WIDTH, WIDTH, 3, padding=1)))),
    "dense wiring": Fine("images", lambda: Own(
        lambda m, x: m.head(torch.cat([x, h := m.one(x).relu(), m.two(torch.cat([x, h], 1)).relu()], 1).mean((2, 3))),
        one=nn.Conv2d(2, 3, 3, padding=1), two=nn.Conv2d(5, 3, 3, padding=1), head=head())),
}  # fmt: skip

NORMS = {
    "layer norm": Fine("table", lambda: dense(nn.LayerNorm(WIDTH), nn.ReLU())),
    "layer norm over time": Fine("series", lambda: over_time(nn.LayerNorm((TIME, WIDTH)))),
    "layer norm without weights": Fine("table", lambda: dense(nn.LayerNorm(WIDTH, elementwise_affine=False))),
    "group norm": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3), nn.GroupNorm(4, WIDTH), nn.ReLU())),
    "group norm of a table": Fine("table", lambda: dense(nn.GroupNorm(2, WIDTH), nn.ReLU())),
    "instance norm": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3), nn.InstanceNorm2d(WIDTH), nn.ReLU())),
    "instance norm with weights": Fine(
        "signal", lambda: pooled(nn.Conv1d(3, WIDTH, 3), nn.InstanceNorm1d(WIDTH, affine=True), nn.ReLU())),
    "rms norm": Fine("series", lambda: over_time(nn.RMSNorm(WIDTH))),
    "own rms norm": Fine("series", lambda: over_time(Own(
        lambda m, h: h * (h.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * m.scale, scale=numbers(WIDTH)))),
    "batch norm evaluated": Fine(
        "images", lambda: pooled(nn.Conv2d(2, WIDTH, 3), zoo.evaluated(nn.BatchNorm2d(WIDTH)), nn.ReLU())),
    "batch norm of a table, evaluated": Fine("table", lambda: dense(zoo.evaluated(nn.BatchNorm1d(WIDTH)), nn.ReLU())),
    "local response norm": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3), nn.LocalResponseNorm(2))),
    "weight norm": Fine("table", lambda: dense(zoo.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh())),
    "weight norm of a convolution": Fine(
        "images", lambda: pooled(zoo.weight_norm(nn.Conv2d(2, WIDTH, 3)), nn.ReLU())),
}  # fmt: skip

TEXTS = {
    "embedding": Fine("tokens", lambda: texts(lambda m, x: m.head(m.table(x).mean(1)))),
    "embedding with padding": Fine("tokens", lambda: Own(
        lambda m, x: m.head(m.padded(x).tanh().mean(1)), padded=nn.Embedding(VOCABULARY, WIDTH, padding_idx=0),
        head=head())),
    "embedding with places": Fine("tokens", lambda: texts(
        lambda m, x: m.head((m.table(x) + m.places(torch.arange(x.shape[1]))).tanh().mean(1)),
        places=nn.Embedding(TIME, WIDTH))),
    "embedding bag": Fine("tokens", lambda: nn.Sequential(nn.EmbeddingBag(VOCABULARY, WIDTH), nn.Tanh(), head())),
    "masked mean": Fine("tokens", lambda: texts(lambda m, x: m.head(zoo.masked_mean(m.table(x), x)))),
    "last of each": Fine("tokens", lambda: texts(lambda m, x: m.head(zoo.last_of_each(m.table(x), x).tanh()))),
    "greatest over time": Fine("tokens", lambda: texts(lambda m, x: m.head(m.table(x).amax(1)))),
    "tied words": Fine("tokens", zoo.tied_texts),
    "one hot": Fine("tokens", lambda: Own(
        lambda m, x: m.head((x[..., None] == torch.arange(VOCABULARY)).to(m.table.dtype).matmul(m.table).mean(1)),
        table=numbers(VOCABULARY, WIDTH), head=head())),
    "encoder with padding": Fine("tokens", lambda: texts(
        lambda m, x: m.head(m.encoder(m.table(x), src_key_padding_mask=x == 0).mean(1)), encoder=zoo.encoder())),
    "attention with padding": Fine("tokens", lambda: texts(
        lambda m, x: m.head(m.attention(*(m.table(x),) * 3, key_padding_mask=x == 0, need_weights=False)[0].mean(1)),
        attention=zoo.attention())),
}  # fmt: skip

ATTENTION = {
    "own attention": Fine("series", zoo.own_attention),
    "attention with a bias of places": Fine("series", lambda: zoo.own_attention(bias=numbers(2, TIME, TIME))),
    "attention with linear biases": Fine("series", lambda: zoo.own_attention(
        bias=-(torch.arange(TIME)[:, None] - torch.arange(TIME)).abs() / torch.tensor([1.0, 4.0])[:, None, None])),
    "multihead attention": Fine("series", lambda: over_time(
        Own(lambda m, h: m.inner(h, h, h)[0], inner=zoo.attention()))),
    "multihead attention, causal": Fine("series", lambda: over_time(Own(
        lambda m, h: m.inner(h, h, h, attn_mask=m.mask, need_weights=False)[0], inner=zoo.attention(),
        mask=torch.ones(TIME, TIME, dtype=torch.bool).triu(1)))),
    "multihead attention, time first": Fine("series", lambda: over_time(Own(
        lambda m, h: m.inner(*(h.transpose(0, 1),) * 3)[0].transpose(0, 1), inner=nn.MultiheadAttention(WIDTH, 2)))),
    "learned queries": Fine("series", lambda: over_time(Own(
        lambda m, h: m.inner(m.asked.expand(len(h), -1, -1), h, h)[0], inner=zoo.attention(),
        asked=numbers(1, 2, WIDTH)))),
    "scaled attention": Fine("series", lambda: zoo.scaled(causal=False)),
    "scaled attention, causal": Fine("series", lambda: zoo.scaled(causal=True)),
    "rotary attention": Fine("series", lambda: over_time(Own(
        lambda m, h: (zoo.rotate(m.q(h)) @ zoo.rotate(m.k(h)).mT / 3).softmax(-1) @ h, q=nn.Linear(WIDTH, WIDTH),
        k=nn.Linear(WIDTH, WIDTH)))),
    "linear attention": Fine("series", lambda: over_time(Own(
        lambda m, h: (fn.elu(m.q(h)) + 1) @ ((fn.elu(m.k(h)) + 1).mT @ h) / TIME, q=nn.Linear(WIDTH, WIDTH),
        k=nn.Linear(WIDTH, WIDTH)))),
    "encoder layer": Fine("series", lambda: over_time(zoo.encoder())),
    "encoder layer, norm first": Fine("series", lambda: over_time(zoo.encoder(norm_first=True, activation="gelu"))),
    "encoder": Fine("series", lambda: over_time(nn.TransformerEncoder(zoo.encoder(), 2, enable_nested_tensor=False))),
    "decoder layer": Fine("series", lambda: over_time(Own(
        lambda m, h: m.inner(h, m.memory.expand(len(h), -1, -1)), memory=numbers(1, 3, WIDTH),
        inner=nn.TransformerDecoderLayer(WIDTH, 2, 16, 0.0, batch_first=True)))),
    "mixer": Fine("series", zoo.mixer),
    "vision transformer": Fine("images", zoo.vision_transformer),
}  # fmt: skip

RECURRENT = {
    "lstm": Fine("series", lambda: over_time(nn.LSTM(WIDTH, WIDTH, batch_first=True), lambda out: out[0])),
    "lstm, two layers, both ways": Fine("series", lambda: over_time(
        nn.LSTM(WIDTH, 4, 2, batch_first=True, bidirectional=True), lambda out: out[0])),
    "lstm, projected": Fine("series", lambda: over_time(
        nn.LSTM(WIDTH, 12, batch_first=True, proj_size=WIDTH), lambda out: out[0])),
    "lstm, time first": Fine("series", lambda: Own(
        lambda m, x: m.head(m.inner(x.transpose(0, 1))[1][0][-1]), inner=nn.LSTM(4, WIDTH), head=head())),
    "gru": Fine("series", lambda: over_time(nn.GRU(WIDTH, WIDTH, batch_first=True), lambda out: out[0])),
    "gru, two layers, both ways": Fine("series", lambda: over_time(
        nn.GRU(WIDTH, 4, 2, batch_first=True, bidirectional=True), lambda out: out[0])),
    "rnn": Fine("series", lambda: over_time(nn.RNN(WIDTH, WIDTH, batch_first=True), lambda out: out[0])),
    "rnn with relu": Fine("series", lambda: over_time(
        nn.RNN(WIDTH, WIDTH, nonlinearity="relu", bias=False, batch_first=True), lambda out: out[0])),
    "lstm cells": Fine("series", lambda: zoo.cells(nn.LSTMCell(4, WIDTH))),
    "gru cells": Fine("series", lambda: zoo.cells(nn.GRUCell(4, WIDTH))),
    "rnn cells": Fine("series", lambda: zoo.cells(nn.RNNCell(4, WIDTH))),
    "state space": Fine("series", zoo.state_space),
    "sums over time": Fine("series", lambda: over_time(Own(lambda m, h: h.cumsum(1) * m.scale, scale=numbers(WIDTH)))),
}  # fmt: skip

ACTIVATIONS = (nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish,
               nn.LeakyReLU, nn.LogSigmoid, nn.Tanhshrink, nn.ReLU6)  # fmt: skip

DENSE = {
    "dense": Fine("table", lambda: dense(nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())),
    "linear": Fine("table", lambda: head(6)),
    "activations": Fine("table", lambda: dense(*(layer() for layer in ACTIVATIONS))),
    "prelu": Fine("table", lambda: dense(nn.PReLU())),
    "prelu by channel": Fine("images", lambda: pooled(nn.Conv2d(2, WIDTH, 3), nn.PReLU(WIDTH))),
    "gated": Fine("table", lambda: dense(nn.GLU(), width=WIDTH // 2)),
    "bilinear": Fine("table", lambda: Own(
        lambda m, x: m.inner(x[:, :3], x[:, 3:]), inner=nn.Bilinear(3, 3, CLASSES))),
    "einsum": Fine("series", lambda: Own(
        lambda m, x: torch.einsum("ntf,tfc->nc", x.tanh(), m.weight), weight=numbers(TIME, 4, CLASSES))),
    "parameters outside layers": Fine("table", lambda: Own(
        lambda m, x: (x @ m.first * m.scale + m.shift).tanh() @ m.second, first=numbers(6, WIDTH), scale=numbers(WIDTH),
        shift=numbers(WIDTH), second=numbers(WIDTH, CLASSES))),
    "functional": Fine("table", lambda: Own(
        lambda m, x: fn.linear(fn.layer_norm(fn.linear(x, m.one), (WIDTH,), m.scale).relu(), m.two),
        one=numbers(WIDTH, 6), scale=numbers(WIDTH), two=numbers(CLASSES, WIDTH))),
    "temperature": Fine("table", lambda: Own(lambda m, x: m.head(x) * m.scale.exp(), head=head(6), scale=numbers(1))),
    "hooks": Fine("table", zoo.hooked),
    "highway": Fine("table", lambda: dense(Own(
        lambda m, h: (g := m.gate(h).sigmoid()) * m.layer(h).relu() + (1 - g) * h, gate=nn.Linear(WIDTH, WIDTH),
        layer=nn.Linear(WIDTH, WIDTH)))),
    "maxout": Fine("table", lambda: Own(
        lambda m, x: m.head(m.layer(x).unflatten(1, (WIDTH, 2)).amax(2)), layer=nn.Linear(6, 2 * WIDTH), head=head())),
    "film": Fine("table", lambda: Own(
        lambda m, x: m.head((m.layer(x[:, :3]) * m.scale(x[:, 3:]) + m.shift(x[:, 3:])).relu()),
        layer=nn.Linear(3, WIDTH), scale=nn.Linear(3, WIDTH), shift=nn.Linear(3, WIDTH), head=head())),
    "experts": Fine("table", zoo.experts),
    "hypernetwork": Fine("table", lambda: Own(
        lambda m, x: m.head(fn.linear(x, m.weights(m.seed).view(WIDTH, 6)).tanh()), weights=nn.Linear(3, 6 * WIDTH),
        seed=numbers(3), head=head())),
    "radial": Fine("table", lambda: Own(
        lambda m, x: m.head((-(x[:, None] - m.centres).square().sum(2) / 9).exp()),
        centres=numbers(WIDTH, 6), head=head())),
    "cosine": Fine("table", lambda: Own(
        lambda m, x: 4 * fn.normalize(m.layer(x), dim=1) @ fn.normalize(m.classes, dim=1).T, layer=nn.Linear(6, WIDTH),
        classes=numbers(CLASSES, WIDTH))),
    "fourier features": Fine("table", lambda: Own(
        lambda m, x: m.head(torch.cat([(x @ m.waves).sin(), (x @ m.waves).cos()], 1)),
        waves=numbers(6, 4), head=head())),
    "factorisation machine": Fine("table", lambda: Own(
        lambda m, x: m.head(x) + ((x @ m.pairs).square() - x.square() @ m.pairs.square()) / 2, head=head(6),
        pairs=numbers(6, CLASSES))),
    "wide and deep": Fine("table", lambda: Own(
        lambda m, x: m.wide(x) + m.deep(x), wide=head(6), deep=dense(nn.ReLU()))),
    "deep sets": Fine("series", lambda: over_time(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()))),
    "graph": Fine("series", lambda: over_time(Own(
        lambda m, h: m.layer(m.beside @ h).relu(), layer=nn.Linear(WIDTH, WIDTH),
        beside=torch.eye(TIME).roll(1, 0) / 2))),
    "sorted in a row": Fine("table", lambda: Own(lambda m, x: m.head(x.sort(1).values), head=head(6))),
    "greatest of a row": Fine("table", lambda: Own(lambda m, x: m.head(m.layer(x).topk(4, 1).values),
                                                   layer=nn.Linear(6, WIDTH), head=head(4))),
    "spectrum of a row": Fine("series", lambda: Own(
        lambda m, x: m.head(torch.fft.rfft(m.layer(x), dim=1).abs().mean(1)), layer=nn.Linear(4, WIDTH), head=head())),
    "mask of a row": Fine("table", lambda: Own(
        lambda m, x: m.head(m.layer(torch.where(x > x.mean(1, keepdim=True), x, 0.0)).relu()),
        layer=nn.Linear(6, WIDTH), head=head())),
    "low rank by hand": Fine("table", lambda: dense(zoo.Lora(WIDTH, merged=False), nn.ReLU())),
    "low rank, merged": Fine("table", lambda: dense(zoo.Lora(WIDTH, merged=True), nn.ReLU())),
    "frozen": Fine("table", lambda: dense(nn.Linear(WIDTH, WIDTH).requires_grad_(False), nn.ReLU())),
    "parametrised": Fine("table", lambda: dense(zoo.parametrised(nn.Linear(WIDTH, WIDTH), zoo.Symmetric()), nn.Tanh())),
    "orthogonal": Fine("table", lambda: dense(
        orthogonal(nn.Linear(WIDTH, WIDTH), orthogonal_map="cayley", use_trivialization=False), nn.Tanh())),
    "tied layers": Fine("table", zoo.tied_layers),
    "layer twice": Fine("table", zoo.twice),
    "checkpoint": Fine("table", lambda: dense(Own(
        lambda m, h: checkpoint(m.layer, h, use_reentrant=False).tanh(), layer=nn.Linear(WIDTH, WIDTH)))),
    "dropout of nothing": Fine("table", lambda: dense(nn.Dropout(0.0), nn.ReLU())),
}  # fmt: skip

NAMED = {
    "named inputs": Fine("named", lambda: texts(
        lambda m, x: m.head(m.table(x["tokens"]).mean(1) + m.layer(x["table"])), layer=nn.Linear(6, WIDTH))),
}  # fmt: skip
"""Items of several tensors."""

CASES = CONVOLUTIONS | NORMS | TEXTS | ATTENTION | RECURRENT | DENSE
