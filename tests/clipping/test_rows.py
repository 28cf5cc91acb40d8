"""Each rule of the proof, held against what the operation does to numbers, and what mixes rows against its refusal."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 – as everybody calls it

from tape_runs import ROWS, hold, is_by_row, prove, record_of
from wholegrain.clipping.row_places import RULES, Call, Found, rule
from wholegrain.clipping.rows import Kind, Place, Proof
from wholegrain.clipping.trace import NotTraceable, aten

DRAWS = torch.Generator().manual_seed(0)


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAWS)


X = {"x": _normal(ROWS, 6)}
SERIES = {"x": _normal(ROWS, 5, 6)}
IMAGES = {"x": _normal(ROWS, 4, 6, 6)}
VOLUMES = {"x": _normal(ROWS, 2, 4, 4, 4)}
HEADS = {name: _normal(ROWS, 2, 5, 4) for name in "qkv"}
TWO = {"x": _normal(ROWS, 6), "y": _normal(ROWS, 6)}
TOKENS = {"x": torch.randint(0, 9, (ROWS, 5), generator=DRAWS)}
PICKED = {"x": _normal(ROWS, 6), "k": torch.randint(0, 6, (ROWS, 3), generator=DRAWS)}
WEIGHT = {"w": _normal(6, 3)}
TABLE = {"w": _normal(9, 4)}
KERNEL = {"w": _normal(4, 4, 3, 3)}


def _back(compute: Callable[..., Tensor]) -> Callable[..., Any]:
    """The function with its gradients: of each row's own sum of squares, so that they hang on all values."""

    def both(**given: Tensor) -> Any:
        leaves = {
            name: each.detach().requires_grad_() if each.is_floating_point() else each for name, each in given.items()
        }
        with torch.enable_grad():
            made = compute(**leaves)
            wanted = [each for each in leaves.values() if each.is_floating_point()]
            return [made, *torch.autograd.grad((made * made).sum(), wanted, allow_unused=True)]

    return both


def _steps(x: Tensor) -> Tensor:
    """Written in pieces, as many models do."""
    out = x.new_zeros(len(x), 5, 6)
    out[:, :2] = x[:, :2]
    out[:, 2] += x[:, 0]
    out[:, 3:].mul_(0).add_(x[:, 3:].exp())
    out.transpose(1, 2)[:, 0] *= 2
    return out


APART: dict[str, tuple[Any, ...]] = {
    # views and copies
    "view": (lambda x: x.view(-1, 6).sin().view(len(x), 30), SERIES),
    "view apart": (lambda x: x.view(len(x), 5, 2, 3).transpose(1, 2).reshape(-1, 15).view(len(x), 30), SERIES),
    "view of bits": (lambda x: x.view(torch.int32).bitwise_and(7).float(), X),
    "permute": (lambda x: x.permute(2, 0, 1).sin().movedim(1, 0), SERIES),
    "t": (lambda x: x.t().cos().t(), X),
    "rows in the middle": (lambda x: x.transpose(0, 1).reshape(-1, 6).exp().view(5, -1, 6).transpose(0, 1), SERIES),
    "expand": (lambda x, w: x[:, None].expand(-1, 2, 6).bmm(w.expand(len(x), 6, 3)), X, WEIGHT),
    "repeat": (lambda x: x.repeat(1, 2), X),
    "repeat for rows": (lambda x, w: w[:1].repeat(len(x), 2) * x, X, WEIGHT),
    "select and slice": (lambda x: x[:, 1:4, ::2].select(1, 1), SERIES),
    "whole slice": (lambda x: x[: len(x)] * 2, X),
    "split": (lambda x: torch.cat(x.split([1, 2, 3], 1)[::-1], 1), X),
    "chunk and stack": (lambda x: torch.stack(x.chunk(3, -1), 1), X),
    "unbind": (lambda x: sum(x.unbind(1)), SERIES),
    "unfold": (lambda x: x.unfold(1, 3, 1).sum(-1), X),
    "diagonal": (lambda x: x[:, :, :5].diagonal(dim1=1, dim2=2), SERIES),
    "pad": (lambda x: F.pad(x, (1, 2), value=3.0), X),
    "flip and roll": (lambda x: x.flip(1).roll(2, -1), X),
    "written in pieces": (_steps, SERIES),
    "in place": (lambda x: x.mul_(2).relu_().clamp_(max=1.0), X),
    "made for rows": (lambda x: torch.zeros(len(x), 6) + torch.full((len(x), 1), 2.0) * x, X),
    "triangle": (lambda x: x.tril(), SERIES),
    "first of what all have": (lambda x, w: x @ w + w[0].expand(len(x), 3)[:1] + torch.zeros(len(x), 3)[0], X, WEIGHT),
    # arithmetic, lines, reductions
    "pointwise": (lambda x, y: torch.where(x > y, x.tanh(), y.sigmoid()) / (1 + x.abs()), TWO),
    "masked": (lambda x: x.masked_fill(x < 0, float("-inf")).softmax(-1), X),
    "softmax": (lambda x: x.softmax(1).log() + x.log_softmax(-1), SERIES),
    "reductions": (lambda x: x.mean(1) + x.amax(1) + x.var(1) + x.logsumexp(1) + x.prod(1) + x.norm(dim=1), SERIES),
    "choices": (lambda x: x.max(1).values + x.median(1).values + x.argmax(1) + x.any(1), SERIES),
    "cumulated": (lambda x: x.cumsum(1) + x.cummax(1).values, SERIES),
    "sorted": (lambda x: x.sort(1).values + x.topk(6, 1).indices, X),
    "buckets": (lambda x, w: torch.bucketize(x, w[:, 0]), X, {"w": torch.arange(6.0)[:, None]}),
    "spectrum": (lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * 2j, dim=1), X),
    "turned": (
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(len(x), 3, 2)) * torch.polar(torch.ones(3), torch.arange(3.0)))
        .flatten(1),
        X,
    ),
    "whole quotients": (lambda x: x // 2 + x % 3, X),
    "glu": (lambda x: F.glu(x, -1), X),
    "prelu": (lambda x, w: F.prelu(x, w), IMAGES, {"w": _normal(4)}),
    **{
        name: (lambda x, apply=getattr(F, name): apply(x), X)
        for name in ("hardtanh", "leaky_relu", "elu", "softplus", "hardswish", "hardsigmoid", "hardshrink",
                     "softshrink", "mish", "logsigmoid", "silu", "gelu", "relu6", "celu", "selu")
    },
    # by index
    "gather": (lambda x, k: x.gather(1, k), PICKED),
    "scatter": (lambda x, k: torch.zeros_like(x).scatter(1, k, x[:, :3]), PICKED),
    "scatter add": (lambda x, k: x.scatter_add(1, k, x[:, 3:]) + x.scatter_reduce(1, k, x[:, :3], "amax"), PICKED),
    "index of columns": (lambda x: x[:, torch.tensor([0, 2, 2])] + x.index_select(1, torch.tensor([1, 1, 0])), X),
    "index behind": (lambda x: x[:, :, torch.tensor([0, 2])], SERIES),
    "index apart": (lambda x: x[:, torch.tensor([0, 1]), :, torch.tensor([2, 3])].transpose(0, 1), IMAGES),
    "index first": (lambda x: x[None, :, None][torch.tensor([0, 0]), :, torch.tensor([0, 0])].transpose(0, 1), X),
    "index add": (lambda x: x.index_add(1, torch.tensor([0, 1]), x[:, :2]).index_fill(1, torch.tensor([3]), 2.0), X),
    "own place": (lambda x, k: x[torch.arange(len(x)), k[:, 0]], PICKED),
    "own places": (lambda x, k: x[torch.arange(len(x))[:, None], k], PICKED),
    "own place behind": (lambda x, k: x.t()[k[:, 0], torch.arange(len(x))], PICKED),
    "table": (lambda x, w: F.embedding(x, w, padding_idx=1), TOKENS, TABLE),
    "table by index": (lambda x, w: w[x], TOKENS, TABLE),
    "table of pairs": (lambda x, w: w[x[:, :2], x[:, 2:4] % 4], TOKENS, TABLE),
    "table by shared index": (lambda x, w: x[:, :, None] + w[torch.arange(5)], TOKENS, TABLE),
    "bag": (lambda x, w: F.embedding_bag(x, w, mode="sum"), TOKENS, TABLE),
    "one hot": (lambda x, w: F.one_hot(x, 9).float() @ w, TOKENS, TABLE),
    # products
    "mm": (lambda x, w: x @ w, X, WEIGHT),
    "mm from the left": (lambda x, w: (w.t() @ x.t()).t(), X, WEIGHT),
    "vector": (lambda x, w: x @ w[:, 0], X, WEIGHT),
    "linear of series": (lambda x, w: F.linear(x, w.t(), w[0]), SERIES, WEIGHT),
    "merged weights": (lambda x, w: x @ (w @ w.t() + w.norm()), X, WEIGHT),
    "bmm": (lambda x: x @ x.mT, SERIES),
    "shared bmm": (lambda x, w: torch.einsum("btd,tde->bte", x, w), SERIES, {"w": _normal(5, 6, 3)}),
    "baddbmm": (lambda x: torch.baddbmm(x[:, :, :5], x, x.mT), SERIES),
    "bilinear": (lambda x, y, w: F.bilinear(x, y, w), TWO, {"w": _normal(3, 6, 6)}),
    # layers
    "conv": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), IMAGES, KERNEL),
    "conv of groups": (lambda x, w: F.conv2d(x, w[:, :2], groups=2, dilation=2), IMAGES, KERNEL),
    "conv transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), IMAGES, KERNEL),
    "conv 1d": (lambda x, w: F.conv1d(x, w[:, :, 0]), {"x": _normal(ROWS, 4, 6)}, KERNEL),
    "conv 3d": (lambda x, w: F.conv3d(x, w), VOLUMES, {"w": _normal(3, 2, 3, 3, 3)}),
    "layer norm": (lambda x, w: F.layer_norm(x, (6,), w[:, 0], w[:, 1]), SERIES, WEIGHT),
    "rms norm": (lambda x, w: F.rms_norm(x, (6,), w[:, 0]), SERIES, WEIGHT),
    "group norm": (lambda x, w: F.group_norm(x, 2, w[0, 0, 0].new_ones(4) * w[:, 0, 0, 0]), IMAGES, KERNEL),
    "instance norm": (lambda x, w: F.instance_norm(x, weight=w[:, 0, 0, 0]), IMAGES, KERNEL),
    "batch norm, kept": (
        lambda x, w, m, v: F.batch_norm(x, m.detach(), v.detach(), w), IMAGES, {"w": _normal(4), "m": _normal(4), "v": _normal(4).abs()},
    ),
    "normalised": (lambda x: F.normalize(x, dim=-1), X),
    "max pool": (lambda x: F.max_pool2d(x, 2) + F.adaptive_max_pool2d(x, 3), IMAGES),
    "average pool": (lambda x: F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 3), IMAGES),
    "power pool": (lambda x: F.lp_pool2d(x.abs() + 1, 2, 2), IMAGES),
    "pool 1d": (lambda x: F.max_pool1d(x, 2) + F.avg_pool1d(x, 2) + F.adaptive_avg_pool1d(x, 3), SERIES),
    "pool 3d": (lambda x: F.max_pool3d(x, 2) + F.avg_pool3d(x, 2) + F.adaptive_avg_pool3d(x, 2), VOLUMES),
    "up": (lambda x: F.interpolate(x, scale_factor=2) + F.interpolate(x, scale_factor=2, mode="bicubic"), IMAGES),
    "up 1d": (lambda x: F.interpolate(x, scale_factor=2) + F.interpolate(x, scale_factor=2, mode="linear"), SERIES),
    "padded": (lambda x: F.pad(x, (1, 1, 1, 1), "reflect") + F.pad(x, (1, 1, 1, 1), "replicate"), IMAGES),
    "circular": (lambda x: F.pad(x, (1, 1, 1, 1), "circular"), IMAGES),
    "shuffled": (lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2) + F.channel_shuffle(x, 2), IMAGES),
    "framed": (lambda x, m: F.grid_sample(x, F.affine_grid(m, list(x.shape), align_corners=True), align_corners=True),
               IMAGES | {"m": _normal(ROWS, 2, 3)}),
    "patches": (lambda x: F.fold(F.unfold(x, 3), (6, 6), 3), IMAGES),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), HEADS),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), HEADS),
    "masked attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, (q[:, :1, :, :1] > 0) | torch.eye(5).bool()), HEADS,
    ),
    "shared mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(5, 5).tril()), HEADS),
    "class loss of places": (lambda x, k: F.nll_loss(x[:, :, None], k[:, :1], reduction="none"), PICKED),
    "class loss": (lambda x, k: F.nll_loss(x, k[:, 0], reduction="none"), PICKED),
    "losses": (lambda x, y: sum(
        loss(x, y.sigmoid(), reduction="none") for loss in (F.mse_loss, F.huber_loss, F.smooth_l1_loss, F.l1_loss,
                                                            F.binary_cross_entropy_with_logits, F.soft_margin_loss)
    ), TWO),
    "mapped loss": (lambda x, k: torch.vmap(lambda o, t: F.cross_entropy(o[None], t[None]))(x, k[:, 0]), PICKED),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_what_is_proved_of_every_value_holds_for_hostile_rows(name: str) -> None:
    compute, rows, *more = APART[name]
    shared = more[0] if more else {}
    assert is_by_row(compute, rows, shared)
    tape = record_of(compute, rows, shared)
    proof = prove(tape, rows)
    assert proof.where[tape.outputs[0]] == Place(0)
    hold(proof, rows, shared)


BACKWARD = [name for name, (compute, *_) in APART.items() if name not in (
    "view of bits", "buckets", "in place", "whole quotients", "first of what all have",
)]  # fmt: skip


@pytest.mark.parametrize("name", BACKWARD)
def test_the_same_of_gradients_whose_sums_over_rows_are_ends(name: str) -> None:
    compute, rows, *more = APART[name]
    shared = more[0] if more else {}
    if not any(each.is_floating_point() for each in (*rows.values(), *shared.values())):
        pytest.skip("nothing to differentiate")
    tape = record_of(_back(compute), rows, shared)
    proof = prove(tape, rows)
    floats = [proof.where[each] for each in tape.outputs[1:] if each is not None]
    assert all(where in (Place(0), Kind.SUMMED) for where in floats), floats
    assert bool(proof.ends) == (Kind.SUMMED in floats)
    hold(proof, rows, shared)


SQUARE = {"x": _normal(ROWS, ROWS)}

MIXING: dict[str, tuple[Any, ...]] = {
    "mean of the batch": (lambda x: x - x.mean(0), X),
    "softmax over rows": (lambda x: x.softmax(0), X),
    "greatest of the batch": (lambda x: x / x.abs().amax(), X),
    "any": (lambda x: torch.where((x > 1.5).any(), -x / 2, x), X),
    "cumulated over rows": (lambda x: x.cumsum(0), X),
    "sorted over rows": (lambda x: x.sort(0).values, X),
    "flipped rows": (lambda x: x.flip(0), X),
    "rolled rows": (lambda x: x.roll(1, 0), X),
    "rolled flat": (lambda x: x.roll(1), X),
    "gram": (lambda x: x @ x.t(), X),
    "product of others": (lambda x: x.t() @ x, X),
    "renorm": (lambda x: torch.renorm(x, 2, 1, 1.0), X),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), IMAGES),
    "statistics of the batch": (lambda x: F.batch_norm(x, x.mean((0, 2, 3)), x.var((0, 2, 3))), IMAGES),
    "group norm of others": (lambda x: torch.native_group_norm(x, None, None, 1, 4 * len(x), 36, 2, 1e-5)[0], IMAGES),
    "rows folded": (lambda x: x.view(-1, 2 * x.shape[0]).cumsum(1).view(len(x), 6), X),
    "rows cut across": (lambda x: x.t().reshape(len(x), 6), X),
    "next row": (lambda x: torch.cat([x[1:], x[:1]]), X),
    "rows twice": (lambda x: torch.cat([x, x]), X),
    "first half": (lambda x: torch.ones(len(x), 6)[:5].sum(0) * x, X),
    "spectrum of rows": (lambda x: torch.fft.fft(x.t(), dim=1).abs().t(), X),
    "first row": (lambda x: x + x[0], X),
    "first row written": (lambda x: x.index_put((torch.tensor(0),), x.sum()), X),
    "looked up by rows": (lambda x, k: x[k[:, 0]], PICKED),
    "gather over rows": (lambda x, k: x.gather(0, k), PICKED),
    "pairs of rows": (lambda x, k: x[:, k[:, 0]], PICKED),
    "scatter over rows": (lambda x, k: x.scatter(0, k, 1.0), PICKED),
    "places in the batch": (lambda x: x + torch.arange(len(x))[:, None], X),
    "places by pieces": (lambda x: x + torch.ones(len(x), 1).cumsum(0), X),
    "places in a table": (lambda x, w: x[:, :4] + w[torch.arange(len(x)) % 9], X, TABLE),
    "a line of rows": (lambda x: x * torch.linspace(0, 1, len(x))[:, None], X),
    "how many rows": (lambda x: x / len(x), X),
    "how many, as a tensor": (lambda x: x / torch.tensor(float(len(x))), X),
    "how many, counted": (lambda x: x / torch.ones(len(x)).sum(), X),
    "how many, filled": (lambda x: x + torch.full_like(x, len(x)), X),
    "mask of the batch": (lambda x: x.masked_fill(torch.eye(len(x), 6).bool(), 0.0), X),
    "triangle of rows": (lambda x: x.triu(), X),
    "triangle of pairs": (lambda x: x[None].expand(2, -1, -1).tril()[0], X),
    "padding rows": (lambda x: F.pad(x, (0, 0, 1, 0))[:-1], X),
    "unfolded rows": (lambda x: x.unfold(0, 2, 1).sum(-1), X),
    "diagonal": (lambda x: x[:, :, None].expand(-1, -1, 6).diagonal(dim1=0, dim2=1).t(), X),
    "stacked": (lambda x: torch.stack([x, x.flip(0)]).amax(0), X),
    "conv over rows": (lambda x: F.conv1d(x.t()[None], torch.ones(6, 6, 3), padding=1)[0].t(), X),
    "pool over rows": (lambda x: F.max_pool1d(x.t()[None], 3, 1, 1)[0].t(), X),
    "rows as channels": (lambda x: F.layer_norm(x.t(), (len(x),)).t(), X),
    "attention over rows": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])[0], X),
    "keys of others": (lambda q, k, v: F.scaled_dot_product_attention(q, k.flip(0), v), HEADS),
    "rank": (lambda x: (x[:, None] > x[None]).sum(1), X),
    "distances": (lambda x: torch.cdist(x, x).sum(1), X),
    "chosen by mask": (lambda x: x - x[x > 0].mean(), X),
    "nonzero": (lambda x: x + x.nonzero().sum(), X),
    "unique": (lambda x: x + x.unique().sum(), X),
    "masked scatter": (lambda x: torch.zeros_like(x).masked_scatter(x > 0, x), X),
    "taken flat": (lambda x: x.take(torch.arange(6)), X),
    "loss of the batch": (lambda x, k: F.cross_entropy(x, k[:, 0]) + x.sum(1), PICKED),
    "frequent tokens": (lambda x, w: w[x] / torch.bincount(x.flatten(), minlength=9)[x][..., None], TOKENS, TABLE),
    "a sum used again": (lambda x, w: x @ (w + x.t() @ x[:, :3]), X, WEIGHT),
    "a count looked up": (lambda x, w: w[(x == 3).sum().clamp(max=8)] + x[:, :4], TOKENS, TABLE),
    "another table": (lambda x, w: w.scatter(0, x[:1, :4] % 9, 0.0)[x], TOKENS, TABLE),
    "values put among others": (lambda x, w: w.index_put((x[:, 0],), torch.tensor(0.0))[x[:, 1]], TOKENS, TABLE),
    "complex": (lambda x: torch.fft.fft(x, dim=0).abs(), X),
    "as many columns as rows": (lambda x: aten.slice.Tensor(x, 1, 0, len(x)).sum(1), {"x": _normal(ROWS, 20)}),
    "numbers read across": (
        lambda x, k: x[torch.arange(len(x))[:, None].expand(-1, 2).reshape(2, len(x))[0], k[:, 0]], PICKED,
    ),
    "numbers of rows twice": (lambda x, k: x[torch.arange(len(x)).repeat(2), k[:, :2].t().reshape(-1)], PICKED),
    "sizes of other rows": (
        lambda x: torch.ops.aten.native_group_norm(x, None, None, len(x) // 7, 28, 36, 7, 1e-5)[0], IMAGES,
    ),
    "itself as weight": (lambda x: F.linear(x, x[:6] if len(x) < 8 else x), X),
    "itself as kernel": (lambda x: F.conv2d(x, x)[:, :, 0, 0], IMAGES),
    "square": (lambda x: x.t(), SQUARE),
    "square sums": (lambda x: x.sum(0), SQUARE),
    "channels of rows": (
        lambda x: F.conv2d(x.flatten(0, 1)[None], torch.ones(1, 4 * len(x), 3, 3)).expand(len(x), -1, -1, -1),
        IMAGES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXING)
def test_what_lets_rows_meet_is_refused_and_really_does(name: str) -> None:
    compute, rows, *more = MIXING[name]
    shared = more[0] if more else {}
    assert not is_by_row(compute, rows, shared)
    assert _accepted(compute, rows, shared) is None


def _accepted(compute: Callable[..., Any], rows: dict[str, Tensor], shared: dict[str, Tensor]) -> Any:
    """What is proved of an output where rows are expected along its first dimension; None where it is refused."""
    try:
        tape = record_of(compute, rows, shared)
        found = prove(tape, rows).where[tape.outputs[0]]
    except NotTraceable:
        return None
    return None if found is Kind.SUMMED or found != Place(0) else found


HOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "to a length": lambda g: g / g.norm(),
    "by the greatest": lambda g: g / g.abs().max(),
    "centred": lambda g: g - g.mean(0),
    "by rank": lambda g: g.argsort(0).float(),
}


@pytest.mark.parametrize("name", HOLDS)
def test_a_hook_that_mixes_gradients_is_refused_where_it_stands(name: str) -> None:
    def hooked(x: Tensor, w: Tensor) -> Tensor:
        hidden = x @ w
        hidden.register_hook(HOLDS[name])
        return hidden.tanh()

    with pytest.raises(NotTraceable, match="test_rows"):
        prove(record_of(_back(hooked), X, WEIGHT), X)


AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "squared": lambda g: g * g,
    "held to a length": lambda g: g / g.norm(),
    "rounded": lambda g: g.div(3, rounding_mode="floor"),
    "whole numbers": lambda g: g.long().float(),
    "moved": lambda g: g + 1.0,
    "moved by a tensor": lambda g: g + torch.ones(6, 3),
    "clipped": lambda g: g.clamp(max=1.0),
    "padded": lambda g: F.pad(g, (1, 0), value=2.0)[:, 1:],
    "masked": lambda g: g.masked_fill(torch.eye(6, 3).bool(), 5.0),
    "something else elsewhere": lambda g: torch.where(torch.eye(6, 3).bool(), g, torch.ones(6, 3)),
    "chosen by itself": lambda g: torch.where(g > 0, g, torch.zeros(6, 3)),
    "used as an index": lambda g: torch.arange(6.0)[g.long().clamp(0, 5)],
}


@pytest.mark.parametrize("name", AFTER)
def test_what_is_not_linear_in_a_sum_over_rows_is_refused(name: str) -> None:
    with pytest.raises(NotTraceable, match="linear"):
        prove(record_of(lambda x: AFTER[name](x.t() @ x[:, :3]), X), X)


BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: (lambda w, apply=getattr(F, name): apply(w))
        for name in ("relu", "silu", "gelu", "softplus", "elu", "hardtanh")
    },
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softmax": lambda w: w.softmax(0),
    "log softmax": lambda w: w.log_softmax(1),
    "clamp": lambda w: w.clamp(min=0.1),
    "layer norm": lambda w: F.layer_norm(w, (3,)),
    "normalised": lambda w: F.normalize(w, dim=0),
    "exp": torch.exp,
    "pieces": lambda w: torch.cat([w[:3] * w[3:], w.flip(0)[:3]]),
    "merged": lambda w: w @ w.t() @ w,
    "looked up": lambda w: w[torch.tensor([0, 0, 1, 2, 5, 5])],
    "weight norm": lambda w: torch._weight_norm(w, w.norm(dim=1, keepdim=True), 0),
}
"""What is done to a parameter before it meets rows: on the way back it is done to a sum over them."""


@pytest.mark.parametrize("name", BEFORE)
def test_gradients_go_back_through_what_was_done_to_a_parameter(name: str) -> None:
    tape = record_of(_back(lambda x, w: x @ BEFORE[name](w)), X, WEIGHT)
    proof = prove(tape, X)
    assert [proof.where[each] for each in tape.outputs if each is not None] == [Place(0), Place(0), Kind.SUMMED]
    hold(proof, X, WEIGHT)


def test_what_is_linear_in_a_sum_over_rows_is_one() -> None:
    def linear(x: Tensor, w: Tensor) -> Tensor:
        total = x.t() @ x[:, :3]
        total = (2 * total - w * total).masked_fill(torch.eye(6, 3).bool(), 0.0) + total.flip(0) / w
        return torch.cat([total, total.t() @ w]).transpose(0, 1).sum(1)

    tape = record_of(linear, X, WEIGHT)
    proof = prove(tape, X)
    assert proof.where[tape.outputs[0]] is Kind.SUMMED
    hold(proof, X, WEIGHT)


def test_pointwise_operations_of_torch_are_pointwise() -> None:
    """All that torch marks as such, of one or two values: the mark is trusted for torch's own operations alone."""
    tried = 0
    for name in dir(aten):
        for target in (getattr(getattr(aten, name), each) for each in _overloads(name)):
            if torch.Tag.pointwise in target.tags and not target._schema.is_mutable:
                tried += _is_pointwise(target)
    assert tried > 150


def _overloads(name: str) -> list[str]:
    packet = getattr(aten, name)
    return list(packet.overloads()) if hasattr(packet, "overloads") else []


def _is_pointwise(target: Any) -> bool:
    kinds = [str(each.type) for each in target._schema.arguments if not each.has_default_value()]
    gives = {str(each.type) for each in target._schema.returns}
    if set(kinds) - {"Tensor", "number"} or "Tensor" not in kinds or gives != {"Tensor"}:
        return False
    for draw in (lambda: torch.rand(4, 3) + 0.5, lambda: torch.randint(1, 4, (4, 3))):
        given = [draw() if kind == "Tensor" else 2 for kind in kinds]
        changed = [each.clone() if isinstance(each, Tensor) else each for each in given]
        for each in changed:
            if isinstance(each, Tensor):
                each[1] = 3
        try:
            one, other = target(*given), target(*changed)
        except (RuntimeError, NotImplementedError):  # not for such numbers
            continue
        for a, b in zip(*((each if isinstance(each, tuple) else (each,)) for each in (one, other)), strict=True):
            assert a.shape == (4, 3), target
            assert torch.equal(a[[0, 2, 3]].nan_to_num(), b[[0, 2, 3]].nan_to_num()), target
        return True
    return False


# A rule for a new operation is one function; here somebody's own, which torch knows by its library's name.
LIBRARY = torch.library.Library("rows_test", "DEF")
LIBRARY.define("relu(Tensor x) -> Tensor", tags=[torch.Tag.pointwise])
LIBRARY.define("scale(Tensor x, Tensor by) -> Tensor")
for _name, _kernel in {"relu": lambda x: x - x.mean(), "scale": lambda x, by: x * by}.items():
    LIBRARY.impl(_name, _kernel, "CPU")
    LIBRARY.impl(_name, lambda x, *_: torch.empty_like(x), "Meta")


def test_another_librarys_operation_is_refused_by_name_whatever_it_is_called_or_marked() -> None:
    with pytest.raises(NotTraceable, match="rows_test::relu nobody has shown"):
        prove(record_of(lambda x: torch.ops.rows_test.relu(x), X), X)
    with pytest.raises(NotTraceable, match="rows_test::relu nobody has shown"):
        prove(record_of(lambda x, w: x @ torch.ops.rows_test.relu(w), X, WEIGHT), X)


def test_a_rule_for_it_is_one_function() -> None:
    @rule("rows_test::scale")
    def scaled(call: Call) -> Found:
        return call.together("x")

    try:
        compute, rows = (lambda x, w: torch.ops.rows_test.scale(x, w[:, 0])), X
        proof: Proof = prove(record_of(compute, rows, WEIGHT), rows)
        hold(proof, rows, WEIGHT)
        with pytest.raises(NotTraceable, match="depends on the batch"):
            prove(record_of(lambda x: torch.ops.rows_test.scale(x, x), rows), rows)
    finally:
        del RULES["rows_test::scale"]
