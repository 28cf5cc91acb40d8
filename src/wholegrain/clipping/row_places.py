"""Where rows lie, and what a rule is told: an operation, its arguments, and where their rows lie."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from wholegrain.clipping.tape import Op, Ref, Sized, Tape, map_tree


@dataclass(frozen=True)
class Place:
    """Where rows lie: dimension `dim` has outer × rows × inner places; the middle number is the row."""

    dim: int
    inner: int = 1
    outer: int = 1

    def moved(self, by: int) -> "Place":
        """The same along a dimension further back."""
        return Place(self.dim + by, self.inner, self.outer)


class Kind(Enum):
    """Of values without rows."""

    SHARED = "shared"
    """The same for everybody: made of parameters and constants."""
    SUMMED = "summed"
    """Rows added up: the result of an end, or linear in such results."""
    NUMBERS = "numbers"
    """The numbers of the rows, 0, 1, …: good for nothing but to pick from each row something of its own."""


Where = Place | Kind
Found = Where | tuple[Where, ...]


@dataclass(frozen=True)
class End:
    """An operation that adds rows up, as far as `outs` of its results are concerned."""

    op: Op
    rule: str
    outs: tuple[int, ...]


class Meet(Exception):  # noqa: N818
    """Rows meet, for a reason."""


@dataclass(eq=False)
class Facts:
    """What is known so far about a tape."""

    tape: Tape
    where: dict[int, Where]
    ends: list[End] = field(default_factory=list)
    uniform: set[int] = field(default_factory=set)
    """Values that are the same for all rows, so that each place along that dimension may be any row's."""


@dataclass(eq=False)
class Call:
    """An operation, and where its arguments' rows lie."""

    facts: Facts
    op: Op

    def __getitem__(self, name: str) -> Any:
        """An argument by its name in the schema, or its default."""
        for number, each in enumerate(self.op.target._schema.arguments):
            if each.name == name:
                if number < len(self.op.args) and not each.kwarg_only:
                    return map_tree(self._size, self.op.args[number])
                usual = each.default_value if each.has_default_value() else None
                return map_tree(self._size, self.op.kwargs.get(name, usual))
        raise KeyError(name)

    def _size(self, value: Any) -> Any:
        return value.times * self.rows if isinstance(value, Sized) else value

    def sized(self, name: str) -> bool:
        """Whether an argument is told as a number of rows."""
        return any(each == name and isinstance(value, Sized) for each, value in self.op)

    def has(self, name: str) -> bool:
        """Whether the schema names such an argument."""
        return any(each.name == name for each in self.op.target._schema.arguments)

    @property
    def name(self) -> str:
        """Of the operation."""
        return self.op.name

    @property
    def rows(self) -> int:
        """Of the tape."""
        return self.facts.tape.rows

    @property
    def tensors(self) -> list[Ref]:
        """All arguments that are values."""
        return [Ref(number) for number in self.op.inputs]

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return self.facts.tape.shape(self.op.outs[0])

    def shape(self, value: Ref) -> tuple[int, ...]:
        """Of a value."""
        return self.facts.tape.shape(value.number)

    def where(self, value: Any) -> Where:
        """Of a value; a number of Python's is shared."""
        return self.facts.where[value.number] if isinstance(value, Ref) else Kind.SHARED

    def place(self, value: Any) -> Place:
        """Of a value that must have rows."""
        found = self.where(value)
        if not isinstance(found, Place):
            raise Meet("a value without rows stands where rows are expected")
        return found

    def agree(self, placed: Iterable[tuple[Ref, Place]]) -> Place:
        """The one place of several values, after some shift; a uniform value takes that of the others."""
        pairs = list(placed)
        fixed = {place for ref, place in pairs if ref.number not in self.facts.uniform}
        found = fixed or {place for _, place in pairs}
        if len(found) != 1 or any(place.dim != next(iter(found)).dim for _, place in pairs):
            raise Meet("rows meet other rows, which lie elsewhere")
        (place,) = found
        for ref, each in pairs:
            if each != place:
                self.facts.where[ref.number] = place.moved(self.place(ref).dim - each.dim)
        return place

    def together(self, *names: str) -> Place:
        """The one place of these arguments, all of which have rows; no other may have any."""
        for name, value in self.op:
            if name not in names:
                self.shared(value)
        named = [self[name] for name in names if self[name] is not None]
        return self.agree((each, self.place(each)) for each in named)

    def shared(self, *values: Any) -> None:
        """Refuse values that have rows."""
        for each in values:
            if isinstance(each, (list, tuple)):
                self.shared(*each)
            elif self.where(each) is not Kind.SHARED:
                raise Meet("what must be the same for everybody depends on the batch")

    def end(self, rule: str, *outs: int) -> Kind:
        """Note an end."""
        self.facts.ends.append(End(self.op, rule, outs))
        return Kind.SUMMED


def require(fact: bool, otherwise: str) -> None:
    """Refuse where something does not hold."""
    if not fact:
        raise Meet(otherwise)


Rule = Callable[[Call], Found]
RULES: dict[str, Rule] = {}
"""By an operation's name, which has the library's before it unless it is torch's own: `mm`, `mine::scale`."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations with these names."""

    def keep(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return keep
