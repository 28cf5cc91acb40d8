"""The server's settings, as a spec holds them."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from wholegrain._strict_numbers import StrictNumbers


class Average(StrEnum):
    """Which parameters are shown and kept."""

    NONE = "none"
    """Those after the last round."""
    TAIL = "tail"
    """The mean over the last share of all rounds."""
    EXPONENTIAL = "exponential"
    """A mean in which each earlier round counts less."""


class ServerSettings(StrictNumbers):
    """What the server makes of each round's mean. Silos have added their noise by then, so nothing here costs privacy.

    `step` is an optimiser of the catalogue (plain, momentum, adam) or your own as `module:name`, with its `options`.
    `learning_rate` is how far the parameters go towards the mean (with `adam`, how far each goes in a round), along
    `schedule` over the rounds. `average` shows and keeps a mean of parameters over rounds: over the last share `tail`,
    or with each earlier round counting `decay` times the next.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: str = "plain"
    options: Annotated[dict[str, Any], Field(exclude_if=lambda options: not options)] = Field(default_factory=dict)
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    average: Average = Average.NONE
    tail: Annotated[float, Field(gt=0, le=1)] = 0.5
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.9
