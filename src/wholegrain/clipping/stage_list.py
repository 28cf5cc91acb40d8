"""A model as a list of stages for the program in C (program/stages.h): which there are, and where all values lie.

A value [row, number] of one item is given a place by the stage that makes it, and keeps it. Places of gradients are
found backwards: they are free again as soon as they were used. A value that goes around other stages (a shortcut)
shares the gradient's place with the sum that it ends in, and what comes from the other stages is added there.
"""

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, auto
from itertools import accumulate
from math import prod

from torch import Tensor, nn

from wholegrain.clipping.layers.base import RuleError

NOWHERE = -1
LINE = 16
"""Places are multiples of this: a line of cache, and a whole number of vectors."""
PackedFloats = Callable[[tuple[int, int]], int]
"""How many floats a matrix takes that is laid out for products, by its shape."""


class Kind(IntEnum):
    """Stages, numbered as in stages.h."""

    LOOK_UP = 0
    COLUMNS = auto()
    LINEAR = auto()
    NORM = auto()
    FUNCTION = auto()
    GATE = auto()
    ATTENTION = auto()
    ADD = auto()
    MEAN = auto()
    PICK = auto()


class Function(IntEnum):
    """Functions of single values, numbered as in stages.h."""

    RELU = 0
    GELU = auto()
    TANH = auto()
    SIGMOID = auto()


class Stage(ctypes.Structure):
    """One stage, as in stages.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "option", "rows", "in_", "out", "heads", "weight", "bias")),
        *((name, ctypes.c_int64) for name in ("forward_weight", "backward_weight")),
        *((name, ctypes.c_int64) for name in ("input", "other", "output", "saved")),
        *((name, ctypes.c_int64) for name in ("input_gradient", "output_gradient", "adds")),
        ("epsilon", ctypes.c_double),
    )


@dataclass(frozen=True)
class Value:
    """Where a stage's output lies: rows of so many numbers each."""

    place: int
    rows: int
    width: int


class Room:
    """Places one after the other."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, count: int) -> int:
        """The place of so many floats."""
        place, self.size = self.size, self.size + whole_lines(count)
        return place


def whole_lines(count: int) -> int:
    """So many floats, and what is left of the last line.

    >>> whole_lines(17)
    32
    """
    return -(-count // LINE) * LINE


class Parameters:
    """Where trained parameters lie in the vector; each may be used once."""

    def __init__(self, model: nn.Module) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        starts = accumulate((prod(p.shape) for p in trained), initial=0)
        self._left = {id(p): start for p, start in zip(trained, starts, strict=False)}

    def take(self, parameter: Tensor | None) -> int:
        """Its place; of none, nowhere."""
        if parameter is None:
            return NOWHERE
        if id(parameter) not in self._left:
            raise RuleError("a parameter of it is frozen, or used twice")
        return self._left.pop(id(parameter))

    def require_all_taken(self) -> None:
        """Refuse a model of which some parameter was not used."""
        if self._left:
            raise RuleError("some of its parameters are not used")


class StageList:
    """Stages in the order in which an item passes them, made one after the other."""

    def __init__(self, model: nn.Module, length: int, packed_floats: PackedFloats) -> None:
        self.parameters, self.length = Parameters(model), length
        self.vocabulary = 0
        self.stages, self._packed_floats = list[Stage](), packed_floats
        self.values, self.gradients, self.packed = Room(), Room(), Room()

    def add(self, kind: Kind, x: Value | None, rows: int, width: int, **facts: float) -> Value:
        """A stage after the others, and its output; in place of the input where `facts` have its `output`."""
        if rows * width == 0:
            raise RuleError("it has values without numbers")
        found = Stage(kind=kind, rows=rows, in_=rows if x is None else x.width, out=width)
        for name in ("weight", "bias", "input", "other", "saved", "input_gradient", "output_gradient"):
            setattr(found, name, NOWHERE)
        if x is not None:
            found.rows, found.input = x.rows, x.place
        for name, fact in facts.items():
            setattr(found, name, fact)
        if "output" not in facts:
            found.output = self.values.take(rows * width)
        self.stages.append(found)
        return Value(found.output, rows, width)

    def linear(self, x: Value | None, weight: Tensor, bias: Tensor | None) -> Value:
        """x·Wᵀ + b; without x, of the item's own numbers."""
        width, given = weight.shape
        if (given if x is None else x.width) != given or (x is None and self.length != given):
            raise RuleError(f"a linear layer takes {given} numbers")
        size = self._packed_floats((given, width)), self._packed_floats((width, given))
        return self.add(
            Kind.LINEAR,
            x,
            1 if x is None else x.rows,
            width,
            in_=given,
            weight=self.parameters.take(weight),
            bias=self.parameters.take(bias),
            forward_weight=self.packed.take(size[0]),
            backward_weight=self.packed.take(size[1]),
        )

    def norm(self, x: Value, module: nn.LayerNorm | nn.RMSNorm, epsilon: float, in_place: bool = False) -> Value:
        """A norm of rows. `in_place`: nobody else needs the input."""
        if tuple(module.normalized_shape) != (x.width,):
            raise RuleError("it is a norm of more than rows")
        return self.add(
            Kind.NORM,
            x,
            x.rows,
            x.width,
            option=isinstance(module, nn.LayerNorm),
            weight=self.parameters.take(module.weight),
            bias=self.parameters.take(getattr(module, "bias", None)),
            other=x.place if in_place else self.values.take(x.rows * x.width),
            saved=self.values.take(x.rows),
            epsilon=epsilon,
        )

    def function(self, x: Value, function: Function) -> Value:
        """A function of each value: in place where it and the stage before do not need its input again."""
        in_place = function is not Function.GELU and self.stages[-1].kind == Kind.LINEAR
        facts = {"output": x.place} if in_place else {}
        return self.add(Kind.FUNCTION, x, x.rows, x.width, option=function, **facts)

    def attention(self, x: Value, heads: int, causal: bool) -> Value:
        """Dot products between rows of queries, keys and values."""
        weights = self.values.take((heads + 1) * x.rows * x.rows)
        return self.add(Kind.ATTENTION, x, x.rows, x.width // 3, option=causal, heads=heads, saved=weights)

    def sum(self, x: Value, around: Value) -> Value:
        """The sum of x and a value from before, in place of x."""
        return self.add(Kind.ADD, x, x.rows, x.width, other=around.place, output=x.place)

    def finish(self) -> None:
        """Give gradients their places, the last stage's first."""
        self.parameters.require_all_taken()
        spare = GradientPlaces(self.gradients)
        for stage in reversed(self.stages):
            spare.place(stage)


class GradientPlaces:
    """Where gradients of values lie, found backwards."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._of = dict[int, int]()  # by the value's place
        self._sizes, self._users = dict[int, int](), Counter[int]()

    def place(self, stage: Stage) -> None:
        """For one stage, when all after it have theirs."""
        outward = stage.output_gradient = self._find(stage.output, stage.rows * max(stage.in_, stage.out))
        if stage.kind == Kind.ADD:
            self._of[stage.other] = outward
            self._users[outward] += 1
        elif stage.output == stage.input:
            stage.input_gradient = outward
        else:
            if stage.input != NOWHERE:
                stage.adds = stage.input in self._of
                stage.input_gradient = self._find(stage.input, stage.rows * stage.in_)
            self._users[outward] -= 1

    def _find(self, value: int, size: int) -> int:
        """The place that a value's gradient has, or a new one: of those that nobody needs, or behind them."""
        if value not in self._of:
            free = (place for place, held in self._sizes.items() if not self._users[place] and held >= size)
            place = min(free, key=self._sizes.__getitem__, default=None)
            if place is None:
                place = self._room.take(size)
                self._sizes[place] = size
            self._of[value] = place
            self._users[place] += 1
        return self._of[value]
