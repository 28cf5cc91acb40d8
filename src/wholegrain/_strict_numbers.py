"""Settings whose numbers are numbers: `true` does not pass for 1, nor the text "4" for 4."""

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class StrictNumbers(BaseModel):
    """Settings that refuse true, false and text in the place of a number: a guarantee must not follow from a slip.

    What is a number by its value goes on being one: 4 for 4.0 and, where whole numbers are asked for, 4.0 for 4.
    """

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_what_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Most values are neither, and need no look at what their field asks for.
        if info.field_name is not None and any(map(_only_counts_as_one, _scalars(value))):
            kinds = set(_kinds(cls.model_fields[info.field_name].annotation))
            if kinds <= {int, float, NoneType} and kinds & {int, float}:
                raise _no_number(whole=float not in kinds)
        return value


def _only_counts_as_one(value: Any) -> bool:
    """Whether this is a truth value (also one of numpy or torch) or text, which pydantic would read as a number."""
    return isinstance(value, bool | str | bytes) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def _no_number(whole: bool) -> PydanticCustomError:
    """The fault in pydantic's own words for a value of another kind."""
    return PydanticCustomError("no_number", f"Input should be a valid {'integer' if whole else 'number'}")


def _whole(value: Any) -> Any:
    if _only_counts_as_one(value):
        raise _no_number(whole=True)
    return value


WholeNumber = Annotated[int, BeforeValidator(_whole)]
"""The same for a field of a dataclass."""


def _scalars(value: Any) -> Iterator[Any]:
    """What a value holds that is no mapping and no list."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _scalars(each)
    else:
        yield value


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types of scalars that an annotation allows, inside of unions, lists and the values of mappings."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        yield from (type(each) for each in inside)
    elif origin is Annotated:
        yield from _kinds(inside[0])
    elif inside:
        # Keys of a mapping are text in any case; `...` says only that a tuple is of any length.
        of_values = inside[1:] if isinstance(origin, type) and issubclass(origin, Mapping) else inside
        for each in of_values:
            if each is not Ellipsis:
                yield from _kinds(each)
    else:
        yield annotation
