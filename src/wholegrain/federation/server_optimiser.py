"""What the server makes of a round's mean. Silos have added their noise by then: nothing here costs privacy.

An optimiser is a row of `OPTIMISERS`, or the user's own subclass of `ServerOptimiser`. What the server remembers from
round to round is part of a run's state, so that a run goes on to the same bits.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from wholegrain import _check
from wholegrain._registry import Registry
from wholegrain.errors import SpecError
from wholegrain.federation.server_settings import Average, ServerSettings

Memory = Mapping[str, Tensor]
NOTHING: Memory = MappingProxyType({})
USUAL = ServerSettings()
RESERVED = ("average", "averages")
"""Names in the memory that are the server's own; an optimiser's state has others."""


class ServerOptimiser(ABC):
    """How the parameters follow a round's mean (the "server optimizer" of Reddi et al. 2021): a frozen value.

    Its options are its fields. What it remembers from round to round is what `step` returns, never an attribute: a run
    that is resumed gives it back to the bit.
    """

    @abstractmethod
    def step(self, vector: Tensor, mean: Tensor, state: Memory, pace: float) -> tuple[Tensor, Memory]:
        """The parameters after a round, and the state to remember, as tensors by name.

        `vector` holds the parameters before the round and `mean` what silos made of them on average: `mean - vector` is
        the update, and minus that the gradient. `state` is empty in the first round; `pace` is the learning rate.
        """

    @property
    def gain(self) -> float | None:
        """How far an update moves the parameters in all rounds together, per learning rate; None where it depends."""
        return None

    def noise_share(self, pace: float) -> float | None:
        """What a round's noise is multiplied by on its way into the parameters; None where the past decides that."""
        return None


@dataclass(frozen=True)
class Plain(ServerOptimiser):
    """The parameters become the mean, or go a part of the way (FedAvg, McMahan et al. 2017)."""

    gain = 1.0

    def step(self, vector: Tensor, mean: Tensor, state: Memory, pace: float) -> tuple[Tensor, Memory]:
        """See `ServerOptimiser`."""
        return (mean if pace == 1 else torch.lerp(vector, mean, pace)), NOTHING

    def noise_share(self, pace: float) -> float | None:
        """As much of the noise as of the mean."""
        return pace


@dataclass(frozen=True)
class Momentum(ServerOptimiser):
    """The parameters keep some of their speed (FedAvgM, Hsu et al. 2019)."""

    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check.share_below_one("server.momentum", self.momentum)

    def step(self, vector: Tensor, mean: Tensor, state: Memory, pace: float) -> tuple[Tensor, Memory]:
        """See `ServerOptimiser`."""
        speed = state.get("speed", torch.zeros_like(vector)) * self.momentum + (mean - vector)
        return vector + speed * pace, {"speed": speed}

    @property
    def gain(self) -> float:
        """Of a geometric series."""
        return 1 / (1 - self.momentum)


@dataclass(frozen=True)
class Adam(ServerOptimiser):
    """Adam, as torch has it, on the updates of rounds (FedAdam, Reddi et al. 2021)."""

    momentum: float = 0.9
    second: float = 0.99
    """The decay of the second moment."""
    tiny: float = 1e-8
    """What keeps a step finite."""

    def __post_init__(self) -> None:
        _check.share_below_one("server.momentum", self.momentum)
        _check.share_below_one("server.options.second", self.second)
        _check.positive("server.options.tiny", self.tiny)

    def step(self, vector: Tensor, mean: Tensor, state: Memory, pace: float) -> tuple[Tensor, Memory]:
        """See `ServerOptimiser`."""
        update = mean - vector
        count = state.get("count", torch.zeros(1, dtype=torch.int64)) + 1
        speed = torch.lerp(update, state.get("speed", torch.zeros_like(vector)), self.momentum)
        squares = torch.lerp(update * update, state.get("squares", torch.zeros_like(vector)), self.second)
        steady, scale = speed / (1 - self.momentum ** int(count)), squares / (1 - self.second ** int(count))
        return vector + pace * steady / (scale.sqrt() + self.tiny), {"speed": speed, "squares": squares, "count": count}


OPTIMISERS: Registry[Callable[..., Any]] = Registry(
    "server optimiser",
    "server.step",
    {"plain": Plain, "momentum": Momentum, "adam": Adam},
    lambda name, factory: factory,
)


def make_optimiser(name: str, options: Mapping[str, Any], momentum: float) -> ServerOptimiser:
    """The named optimiser, or the user's own `module:name`, with these options.

    `momentum` is for whichever has that option.
    """
    factory = OPTIMISERS.find(name)
    given = {"momentum": momentum, **options} if has_momentum(name) else options
    optimiser = OPTIMISERS.make(name, factory, given, ServerOptimiser)  # type: ignore[type-abstract]
    _require_pure(name, optimiser)
    return optimiser


def has_momentum(name: str) -> bool:
    """Whether the named optimiser, or the user's own, takes a momentum."""
    return "momentum" in inspect.signature(OPTIMISERS.find(name)).parameters


def _require_effect(settings: ServerSettings) -> None:
    """Refuse a momentum that nobody would use; the default is in every kept spec, and says nothing."""
    if settings.momentum != USUAL.momentum and not has_momentum(settings.step):
        raise SpecError(
            f"server.momentum = {settings.momentum:g} would have no effect, as the server optimiser '{settings.step}'"
            " has no momentum; remove it, or set server.step to 'momentum' or 'adam'."
        )


def _require_pure(name: str, optimiser: ServerOptimiser) -> None:
    """Play two rounds twice: what could not be resumed to the bit is refused before a round is paid for."""
    try:
        first, again = _trial(optimiser), _trial(optimiser)
        if not all(map(torch.equal, first, again)):
            raise ValueError("it does not repeat itself; what it remembers belongs into the state that `step` returns")
    except Exception as error:  # an optimiser may be the user's own code
        raise SpecError(f"The server optimiser '{name}' cannot be used: {_check.reason(error)}.") from error


def _trial(optimiser: ServerOptimiser) -> list[Tensor]:
    """All that two rounds give, of which the second starts from what the first remembers."""
    vector, state, found = torch.tensor([0.0, 1.0, -2.0]), NOTHING, list[Tensor]()
    for _ in range(2):
        given = [vector, vector + torch.tensor([0.5, 0.0, -0.25]), *state.values()]
        before = [tensor.clone() for tensor in given]
        moved, state = optimiser.step(given[0], given[1], state, 0.5)
        if not all(map(torch.equal, given, before)):
            raise ValueError("it changes in place what it was given")
        _require_form(moved, state, like=vector)
        vector = moved
        found += [vector, *(state[key] for key in sorted(state))]
    return found


def _require_form(vector: Tensor, state: Memory, like: Tensor) -> None:
    if not isinstance(vector, Tensor) or vector.shape != like.shape or vector.dtype is not like.dtype:
        raise ValueError("it must give parameters of the shape and type that it was given")
    if not all(isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()):
        raise ValueError("it must remember tensors by name, and nothing else")
    taken = sorted(set(RESERVED) & set(state))
    if taken:
        raise ValueError(f"its state has the name '{taken[0]}', which is the server's own")


SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
"""What the learning rate is multiplied by when this share of the rounds is done."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server's own step and average; by default the mean is taken as it is.

    Guarantee: a function of what the silos released, of public settings and of its own past: post-processing.
    """

    optimiser: ServerOptimiser = Plain()
    settings: ServerSettings = USUAL
    """Of which `step`, `options` and `momentum` say how to make an optimiser, and have no say here."""

    @staticmethod
    def of(settings: ServerSettings) -> "Server":
        """The server with the optimiser that the settings name."""
        _require_effect(settings)
        return Server(optimiser=make_optimiser(settings.step, settings.options, settings.momentum), settings=settings)

    def pace(self, round: int, rounds: int) -> float:
        """The learning rate in this round."""
        return self.settings.learning_rate * SCHEDULES[self.settings.schedule](round / rounds)

    def noise_share(self, round: int, rounds: int) -> float | None:
        """What a round's noise is multiplied by on its way into the parameters; None where the past decides that."""
        return self.optimiser.noise_share(self.pace(round, rounds))

    def move(self, vector: Tensor, mean: Tensor, memory: Memory, round: int, rounds: int) -> tuple[Tensor, Memory]:
        """Parameters after the round, and what to remember."""
        state = {name: value for name, value in memory.items() if name not in RESERVED}
        moved, kept = self.optimiser.step(vector, mean, state, self.pace(round, rounds))
        return moved, {**kept, **self._average_parameters(moved, memory, round, rounds)}

    def choose_parameters(self, vector: Tensor, memory: Memory) -> Tensor:
        """The parameters that are scored, and kept in the end."""
        return memory.get("average", vector)

    def _average_parameters(self, vector: Tensor, memory: Memory, round: int, rounds: int) -> Memory:
        if self.settings.average is Average.NONE or round < self._first(rounds):
            return NOTHING
        before = memory.get("average")
        averages = memory.get("averages", torch.zeros(1, dtype=torch.int64)) + 1
        if before is None:
            return {"average": vector.clone(), "averages": averages}
        share = 1 - self.settings.decay if self.settings.average is Average.EXPONENTIAL else 1 / int(averages)
        return {"average": torch.lerp(before, vector, share), "averages": averages}

    def _first(self, rounds: int) -> int:
        """The first round that counts in the average."""
        return (
            0 if self.settings.average is Average.EXPONENTIAL else math.ceil(rounds * (1 - self.settings.tail) - 1e-9)
        )


PLAIN = Server()
