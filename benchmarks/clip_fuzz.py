"""Does any finite number break the clip? One subject's move of the sum, over extreme parameters, inputs and clip norms.

Run: python benchmarks/clip_fuzz.py --cases 100000
Elsewhere: python benchmarks/clip_fuzz.py --cases 10000 --device cuda --precision bfloat16

Every kind of layer and every way to compute gradients, per item and per subject. Parameters, inputs and clip norms are
drawn with exponents from −149 to 127 (those of single precision), layer by layer, so that activations, gradients and
weights meet at their extremes. A case is a batch and one of its subjects: the sum with the subject and the sum without
it, both from the engine for that device and precision, compared in double precision. The bound is C·(1 + SLACK).
"""

import argparse
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.backend_selection import SlowGradients
from wholegrain.clipping.choice import clipped_sums
from wholegrain.clipping.clipping import LEAST_NORM, MOST_NORM, Clip, ClipPer, Pool
from wholegrain.clipping.devices import DEVICES, PRECISIONS, USUAL, Compute
from wholegrain.clipping.kernels import MOST_TRIED
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.rounding import SLACK
from wholegrain.models.text import causal_transformer

CLASSES = 3
LARGE = 0.1
"""How often a batch has a subject of many items."""
PROGRESS = 60.0
"""Seconds after which a kind tells how far it is."""
MODES = ((ClipPer.ITEM, Pool.SUM), (ClipPer.ITEM, Pool.MEAN), (ClipPer.SUBJECT, Pool.MEAN), (ClipPer.SUBJECT, Pool.SUM))


class Around(nn.Module):
    """A module of sequences, and a head on the mean over time."""

    def __init__(self, inner: nn.Module, width: int, positions: bool = False) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(width, CLASSES)
        # A parameter of the model's own, which no layer owns.
        self.positions = nn.Parameter(torch.zeros(4, width)) if positions else None

    def forward(self, x: Tensor) -> Tensor:
        """[item, time, feature] to [item, class]."""
        x = x if self.positions is None else x + self.positions
        out = self.inner(x, x, x) if isinstance(self.inner, nn.MultiheadAttention) else self.inner(x)
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


class Tied(nn.Module):
    """One matrix that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.head = nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Twice the same map."""
        return self.head(self.both(self.both(x).tanh()))


class Own(nn.Module):
    """A layer whose weight is also read by another operation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """A linear map, twice."""
        return self.layer(x) + torch.einsum("ni,oi->no", x, self.layer.weight)


class Deciding(nn.Module):
    """Looks at values to decide what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """A linear map, with a shortcut where it changes nothing."""
        return self.layer(x if (x > 0).all() else x.relu())


class Looked(nn.Module):
    """Tokens and places from tables, as today's language models begin, and one of the tables again at the end."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tokens, self.places, self.tied = nn.Embedding(7, 4), nn.Embedding(6, 4), tied
        self.first = nn.Parameter(torch.zeros(1, 1, 4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """[item, position] to [item, class]."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1).mean(1)
        if self.tied:
            return nn.functional.linear(x, self.tokens.weight)[:, :CLASSES]
        return self.head(x)


class Written(nn.Module):
    """A norm and a product with a matrix [in, out] that are written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.matrix = nn.Parameter(torch.ones(4)), nn.Parameter(torch.randn(4, CLASSES))
        self.bias, self.scale = nn.Parameter(torch.zeros(CLASSES)), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """[item, position, feature] to [item, class]."""
        x = self.weight * (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()) - self.scale
        return torch.addmm(self.bias, x.reshape(-1, 4), self.matrix).view(*x.shape[:2], CLASSES).mean(1)


def _norm(norm: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(norm, nn.Flatten(), nn.Linear(channels * 4, CLASSES))


@dataclass(frozen=True)
class Kind:
    """A model, the shape of an item, and how many tokens there are where items are tokens."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0


KINDS: Mapping[str, Kind] = {
    "linear": Kind(lambda: nn.Linear(4, CLASSES), (4,)),
    "mlp": Kind(lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, CLASSES)), (16,)),
    "deep": Kind(
        lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.Sigmoid(), nn.Linear(7, CLASSES)), (5,)
    ),
    "positions": Kind(lambda: nn.Sequential(nn.Linear(3, 5), nn.Flatten(), nn.Linear(20, CLASSES)), (4, 3)),
    "many positions": Kind(lambda: nn.Sequential(nn.Linear(40, 48), nn.Flatten(), nn.Linear(192, CLASSES)), (4, 40)),
    "wide": Kind(lambda: nn.Sequential(nn.Linear(300, 20), nn.ReLU(), nn.Linear(20, CLASSES)), (300,)),
    "conv1d": Kind(
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)), (2, 4)
    ),
    "conv2d": Kind(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 16, 2), nn.Flatten(), nn.Linear(64, CLASSES)
        ),
        (1, 8, 8),
    ),
    "conv groups": Kind(
        lambda: nn.Sequential(nn.Conv2d(4, 4, 2, groups=2, stride=2), nn.Flatten(), nn.Linear(16, 3)), (4, 4, 4)
    ),
    "layer norm": Kind(lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, CLASSES)), (4,)),
    "group norm": Kind(lambda: _norm(nn.GroupNorm(2, 4), 4), (4, 2, 2)),
    "instance norm 1d": Kind(lambda: _norm(nn.InstanceNorm1d(3, affine=True), 3), (3, 4)),
    "instance norm 2d": Kind(lambda: _norm(nn.InstanceNorm2d(3, affine=True), 3), (3, 2, 2)),
    "embedding": Kind(lambda: nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(12, CLASSES)), (4,), tokens=7),
    "large embedding": Kind(
        lambda: nn.Sequential(nn.Embedding(9000, 2), nn.Flatten(), nn.Linear(12, CLASSES)), (6,), tokens=3
    ),
    "lstm": Kind(lambda: Around(nn.LSTM(3, 4, batch_first=True), 4), (4, 3)),
    "gru": Kind(lambda: Around(nn.GRU(3, 4, batch_first=True), 4), (4, 3)),
    "attention": Kind(lambda: Around(nn.MultiheadAttention(4, 2, batch_first=True), 4), (4, 4)),
    "encoder": Kind(
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), nn.Flatten(), nn.Linear(16, CLASSES)
        ),
        (4, 4),
    ),
    "tied": Kind(Tied, (5,)),
    "position table": Kind(lambda: Around(nn.Linear(4, 4), 4, positions=True), (4, 4)),
    "looked-up positions": Kind(lambda: Looked(tied=False), (5,), tokens=7),
    "tied embeddings": Kind(lambda: Looked(tied=True), (5,), tokens=7),
    "written by hand": Kind(Written, (5, 4)),
    "rms norm": Kind(lambda: Around(nn.RMSNorm(4), 4), (4, 4)),
    "tapped": Kind(lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, CLASSES)), (4,)),
    "two uses": Kind(Own, (4,)),
    "one by one": Kind(Deciding, (4,)),
    "causal transformer": Kind(lambda: causal_transformer(5, CLASSES, vocabulary=7, width=4, heads=2), (5,), tokens=7),
}


@dataclass(frozen=True)
class Found:
    """How far one subject moved a sum, in units of what is allowed, and how that came about."""

    kind: str
    mode: str
    norm: float
    move: float


def fuzz(kind: str, cases: int, seed: int, compute: Compute = USUAL, large: float = LARGE) -> Iterator[Found]:
    """So many cases of one kind of model; a large subject is in this part of the batches."""
    kind_of = KINDS[kind]
    draws, made = np.random.default_rng(seed), kind_of.make()
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowGradients)
        engine = clipped_sums(made, cross_entropy, compute)
        layout, start = Layout.of(made), flatten(made)
        done = 0
        while done < cases:
            vector = extreme_parameters(layout, start, draws)
            inputs, targets, groups = extreme_batch(kind_of, draws, large)
            mode = MODES[draws.integers(len(MODES))]
            clip = Clip(*mode, float(10 ** draws.uniform(math.log10(LEAST_NORM), math.log10(MOST_NORM))))
            whole = engine(vector, inputs, targets, groups, clip).total.double()
            for subject in range(int(groups.max()) + 1):
                others = groups != subject
                numbers = torch.unique(groups[others], return_inverse=True)[1]
                rest = engine(vector, inputs[others], targets[others], numbers, clip).total.double()
                own = int((~others).sum()) if mode == MODES[0] else 1
                move = float(torch.linalg.vector_norm((whole - rest) / clip.norm)) / own
                yield Found(kind, "-".join(mode), clip.norm, math.inf if math.isnan(move) else move)
                done += 1


def extreme_parameters(layout: Layout, start: Tensor, draws: np.random.Generator) -> Tensor:
    """Each parameter scaled by a power of two of its own, some of them with one value that stands out."""
    vector = start.clone()
    for view in layout.views(vector).values():
        view.mul_(2.0 ** float(draws.integers(-60, 61))).mul_(2.0 ** float(draws.integers(-60, 61)))
        if draws.random() < 0.3:
            view.view(-1)[draws.integers(view.numel())] = float(
                draws.choice([-1, 1]) * 2.0 ** draws.integers(-149, 128)
            )
    return vector.nan_to_num_(0.0, 3e38, -3e38)


def extreme_batch(kind: Kind, draws: np.random.Generator, large: float = LARGE) -> tuple[Tensor, Tensor, Tensor]:
    """Two to five subjects with one to three items each; now and then one with as many as are computed together."""
    sizes = draws.integers(1, 4, draws.integers(2, 6))
    if draws.random() < large:
        sizes[draws.integers(len(sizes))] = draws.integers(4, MOST_TRIED + 3)
    count = int(sizes.sum())
    if kind.tokens:
        inputs = torch.from_numpy(draws.integers(0, kind.tokens, (count, *kind.shape)))
    else:
        rows = torch.from_numpy(draws.normal(size=(count, *kind.shape)).astype(np.float32))
        exponents = torch.from_numpy(draws.integers(-149, 127, count).astype(np.float64))
        scale = (2.0**exponents).view(-1, *(1,) * len(kind.shape))
        calm = draws.random() < 0.4
        inputs = rows if calm else (rows.double() * scale).clamp(-3e38, 3e38).float()
    targets = torch.from_numpy(draws.integers(0, CLASSES, count))
    return inputs, targets, torch.repeat_interleave(torch.arange(len(sizes)), torch.from_numpy(sizes))


def main() -> None:
    """All kinds in turn; exit code 1 if the bound was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of models; all if left out")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    given = parser.parse_args()
    compute, kinds = Compute.of(given.device, given.precision), given.kinds
    torch.set_num_threads(1)
    worst, clipped = Counter[str](), 0
    started, each = time.perf_counter(), -(-given.cases // len(kinds))
    print(f"Seed {given.seed}, {each:,} cases of each of {len(kinds)} kinds; {compute}.", flush=True)
    for kind in kinds:
        begun = said = time.perf_counter()
        for done, found in enumerate(islice(fuzz(kind, each, given.seed, compute), each)):
            worst[kind] = max(worst[kind], found.move)
            clipped += found.move > 0.99
            if time.perf_counter() - said > PROGRESS:
                said = time.perf_counter()
                print(f"  {kind}: {done:,} cases, at most {worst[kind]:.7f} C", flush=True)
        spent = time.perf_counter() - begun
        print(f"{kind:20} {each:7,} cases in {spent:4.0f} s, at most {worst[kind]:.7f} C", flush=True)
    total, most = each * len(kinds), max(worst.values())
    seconds = time.perf_counter() - started
    print(f"{total:,} cases in {seconds:.0f} s, {clipped:,} of them at the clip norm; at most {most:.7f} C")
    print(f"The bound is C·(1 + {SLACK:g}): {'broken' if most > 1 + SLACK else 'kept'}.")
    raise SystemExit(most > 1 + SLACK)


if __name__ == "__main__":
    main()
