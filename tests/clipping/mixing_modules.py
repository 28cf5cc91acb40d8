"""Models in which rows of a batch meet: each way of mixing_ways.py in several places, and those of mixing_models.py.

Each is the same whenever it is made: `case.make()` gives the model and its loss, `case.batch()` items of 12 subjects.
The first subject is loud: it has the longest text, the largest numbers, and the only value 7.5.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from clipping.mixing_models import MODELS
from clipping.mixing_values import CLASSES, HIDDEN, TIME, TOKENS, WIDTHS, Loss, Map, squared
from clipping.mixing_ways import WAYS, Way

SUBJECTS = 12
KINDS = ("table", "tokens", "series", "images")
LONGEST = 4
"""Of what quiet subjects have; the loud one's are as long as can be."""


@dataclass(frozen=True)
class Batch:
    inputs: Tensor
    targets: Tensor
    groups: Tensor

    def rows(self, left: Tensor) -> "Batch":
        """Some of the rows, subjects numbered anew."""
        groups = torch.unique(self.groups[left], return_inverse=True)[1]
        return Batch(self.inputs[left], self.targets[left], groups)

    def without(self, subject: int) -> "Batch":
        return self.rows(self.groups != subject)


@dataclass(frozen=True)
class Case:
    """A model in which rows meet, and items that let it be seen."""

    name: str
    kind: str
    build: Callable[[], tuple[nn.Module, Loss]]
    meets: bool = True
    """False where each item's own gradient is its own after all: nothing has to be refused then, only bounded."""

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())

    def make(self) -> tuple[nn.Module, Loss]:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self.build()

    def batch(self) -> Batch:
        return make_batch(self.kind, self.seed)


def make_batch(kind: str, seed: int) -> Batch:
    """Of 1 to 3 items for each subject, in no order."""
    draws = torch.Generator().manual_seed(seed)
    groups = torch.repeat_interleave(torch.arange(SUBJECTS), torch.arange(SUBJECTS) % 3 + 1)
    groups = groups[torch.randperm(len(groups), generator=draws)]
    targets = torch.randint(CLASSES, (len(groups),), generator=draws)
    return Batch(ITEMS[kind](groups == 0, draws), targets, groups)


def _numbers(*shape: int) -> Callable[[Tensor, torch.Generator], Tensor]:
    def make(loud: Tensor, draws: torch.Generator) -> Tensor:
        x = torch.randn(len(loud), *shape, generator=draws)
        x[loud] *= 300
        x[loud, 0] = 7.5
        return x

    return make


def _lengths(loud: Tensor, draws: torch.Generator) -> Tensor:
    """Which positions [item, time] an item has."""
    lengths = torch.randint(LONGEST - 1, LONGEST + 1, loud.shape, generator=draws).masked_fill(loud, TIME)
    return torch.arange(TIME) < lengths[:, None]


def _tokens(loud: Tensor, draws: torch.Generator) -> Tensor:
    x = torch.randint(1, TOKENS - 1, (len(loud), TIME), generator=draws)
    x[loud, 0] = TOKENS - 1
    return x * _lengths(loud, draws)


def _series(loud: Tensor, draws: torch.Generator) -> Tensor:
    return _numbers(TIME, WIDTHS["series"])(loud, draws) * _lengths(loud, draws)[..., None]


ITEMS = {"table": _numbers(WIDTHS["table"]), "images": _numbers(2, 4, 4), "series": _series, "tokens": _tokens}


class Tokens(nn.Module):
    """Tokens from a table, of which the loud subject's is far longer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, HIDDEN)
        with torch.no_grad():
            self.table.weight[TOKENS - 1] *= 300

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)


STEMS: dict[str, Callable[[], nn.Module]] = {
    "table": lambda: nn.Sequential(nn.Linear(WIDTHS["table"], 2 * HIDDEN), nn.Unflatten(1, (2, HIDDEN))),
    "tokens": Tokens,
    "series": lambda: nn.Linear(WIDTHS["series"], HIDDEN),
    "images": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Flatten(2), nn.Linear(16, HIDDEN)),
}
"""From items of each kind to [item, position, feature]."""


class Net(nn.Module):
    """A small model with a way to mix in one place of it."""

    def __init__(self, kind: str, way: Way, place: str) -> None:
        super().__init__()
        self.stem, self.middle, self.head = STEMS[kind](), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        with torch.no_grad():
            self.head.weight.mul_(4)  # so that gradients do not all look one way
        width = {"input": WIDTHS.get(kind, HIDDEN), "logits": CLASSES}.get(place, HIDDEN)
        self.mix, self.place = way.make(width), place
        if place == "forward hook":
            self.middle.register_forward_hook(lambda _, given, out: self.mix(out))
        if place == "forward pre-hook":
            self.middle.register_forward_pre_hook(lambda _, given: (self.mix(given[0]),))
        if place == "backward hook of a module":
            self.middle.register_full_backward_pre_hook(lambda _, gradients: (self.mix(gradients[0]),))
        if place == "gradient of inputs of a module":
            self.middle.register_full_backward_hook(lambda _, inward, gradients: (self.mix(inward[0]),))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(self._at("input", x))
        h = self._at("early", h)
        h = self._attend(h) if self.place == "attention" else h
        h = h + self.middle(h).tanh()
        h = PLACES[self.place](self.mix, h) if self.place in PLACES else h
        return self._at("logits", self.head(self._at("features", h.mean(1))))

    def _at(self, place: str, x: Tensor) -> Tensor:
        return self.mix(x) if place == self.place else x

    def _attend(self, h: Tensor) -> Tensor:
        scores = h.tanh() @ h.tanh().mT
        return h + scores.softmax(-1) @ self.mix(h)


def _gradient_hook(mix: Map, h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(mix)
    return h


class _Backward(torch.autograd.Function):
    """Nothing forward; backward, a way to mix."""

    @staticmethod
    def forward(ctx, h, mix):  # type: ignore[no-untyped-def]
        ctx.mix = mix
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return ctx.mix(gradient), None


PLACES: dict[str, Callable[[Map, Tensor], Tensor]] = {
    "late": lambda mix, h: mix(h),
    "beside": lambda mix, h: h + mix(h),
    "gate": lambda mix, h: h * mix(h).sigmoid(),
    "checkpoint": lambda mix, h: checkpoint(mix, h, use_reentrant=False),
    "gradient hook": _gradient_hook,
    "function": lambda mix, h: _Backward.apply(h, mix),
}
BACKWARD = ("gradient hook", "function", "backward hook of a module", "gradient of inputs of a module")
HOOKS = ("forward hook", "forward pre-hook")
FORWARD = (
    "early",
    "late",
    "features",
    "logits",
    "attention",
    "beside",
    "gate",
    "checkpoint",
    "input",
    "wrapper",
    *HOOKS,
)
LOUD_PLACES = ("input", "early", "attention", "forward pre-hook")
"""Where the loud subject's values are still loud."""


class Wrapper(nn.Module):
    """A user's own module around another, whose outputs have a name."""

    def __init__(self, inner: nn.Module, mix: nn.Module) -> None:
        super().__init__()
        self.inner, self.mix = inner, mix

    def forward(self, x: Tensor) -> Tensor:
        outputs = {"logits": self.inner(x)}
        return self.mix(outputs["logits"])


def _build(kind: str, way: Way, place: str) -> tuple[nn.Module, Loss]:
    if place == "wrapper":
        return Wrapper(Net(kind, Way(lambda _: nn.Identity()), "late"), way.make(CLASSES)), cross_entropy
    return Net(kind, way, place), squared if place in BACKWARD else cross_entropy


def _places(way: Way) -> tuple[str, ...]:
    if way.loud:
        return LOUD_PLACES
    if way.state:  # checkpoints, which compute twice, do not go with it
        return tuple(place for place in FORWARD if place != "checkpoint")
    return FORWARD + BACKWARD


COMBINED = 5
"""Places of each way."""


def _combine(name: str, way: Way, number: int) -> Iterator[Case]:
    """A way in some places of models for some kinds of items, others for each way."""
    places = _places(way)
    for step in count():
        place = places[(5 * number + 3 * step + step // len(places)) % len(places)]
        kind = KINDS[(number + step) % len(KINDS)]
        if name == "any seven and a half":
            place = "input"
        if (place, kind) != ("input", "tokens"):  # numbers of tokens are no values
            yield Case(f"{name}, {place}, {kind}", kind, lambda p=place, k=kind: _build(k, way, p))


def controls() -> list[Case]:
    """The same models with nothing in the place of the mixing, of which nothing has to be refused."""
    nothing = Way(lambda _: nn.Identity())
    places = {(place, kind) for place in FORWARD + BACKWARD for kind in KINDS} - {("input", "tokens")}
    return [Case(f"{place}, {kind}", kind, lambda p=place, k=kind: _build(k, nothing, p), meets=False)
            for place, kind in sorted(places)]  # fmt: skip


def cases() -> list[Case]:
    found = {case.name: case for number, (name, way) in enumerate(WAYS.items())
             for case in islice(_combine(name, way, number), COMBINED)}  # fmt: skip
    own = [Case(name, each.kind, each.build, each.meets) for name, each in MODELS.items()]
    return [*found.values(), *own]
