"""What is public of a silo. A federation's spec holds these facts as they are."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from wholegrain import _check
from wholegrain._strict_numbers import WholeNumber
from wholegrain.errors import SpecError

MOST_ITEMS_PER_SUBJECT = 100_000


@dataclass(frozen=True, kw_only=True)
class SiloFacts:
    """What is public of a silo: its name, N_i items, n_i subjects, and K_i, the bound on items of one subject.

    `declared` says that the sizes are what the owner declares, which may be round numbers. Otherwise they were counted
    in the data: then they are exact, and nothing but a simulation may use them.
    `drops_surplus` says what the silo does with a subject that exceeds K: drop items at random, or refuse the data.
    `knows_spans` says that it knows, of each of its subjects, in how many silos that subject is;
    `knows_shares`, that it knows which share of the subject's items it has instead.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    items: WholeNumber
    subjects: WholeNumber
    items_per_subject: WholeNumber | None = None
    drops_surplus: bool = True
    knows_spans: bool = False
    knows_shares: Annotated[bool, Field(exclude_if=lambda knows: not knows)] = False
    declared: Annotated[bool, Field(exclude=True)] = False

    def __post_init__(self) -> None:
        _check.count(f"items of silo '{self.name}'", self.items)
        _check.count(f"subjects of silo '{self.name}'", self.subjects)
        bound = self.items_per_subject
        if bound is not None and _check.count("items_per_subject", bound) > MOST_ITEMS_PER_SUBJECT:
            raise SpecError(f"items_per_subject = {bound} is more than can be priced ({MOST_ITEMS_PER_SUBJECT:,}).")
