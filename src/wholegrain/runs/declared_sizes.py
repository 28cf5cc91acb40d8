"""How large silos are, as their owner declares it.

Rate, divisor, weights and noise follow from these numbers, and they are in every plan, record and report. So in a
release they are declared, not counted: what is counted would tell whether somebody is there. Round numbers are as good
as exact ones. One that is wrong costs accuracy, and changes nothing else: nothing is refused for it, since a refusal
would tell as much as the count. `data describe` is where an owner compares.

Sizes are of what is trained on, after a part was held out and surplus items were dropped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from wholegrain.data.partition import silo_names
from wholegrain.errors import SpecError
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec_sections import SilosSpec, SizeSpec

EVERY = "*"
"""Stands in `silos.sizes` for all silos that have no line of their own."""


@dataclass(frozen=True)
class DeclaredSizes:
    """The declared sizes: of silos by name, and of all others, if anything is declared of them."""

    named: Mapping[str, SizeSpec]
    others: SizeSpec | None

    def get(self, silo: str) -> SizeSpec | None:
        """What is declared of this silo."""
        return self.named.get(silo, self.others)


def declared_sizes(silos: SilosSpec) -> DeclaredSizes:
    """What a spec declares. Silos of a synthetic partition are known by name, and so all of them are listed."""
    given = dict(silos.sizes)
    others = given.pop(EVERY, None)
    if silos.partition == "column" or silos.count is None:
        return DeclaredSizes(given, others)
    names = silo_names(silos.count).tolist()
    strange = [name for name in given if name not in names]
    if strange:
        raise SpecError(
            f"silos.sizes names the silo '{strange[0]}', and the partition '{silos.partition}' makes {names[0]} to"
            f' {names[-1]}; write one of them, or "{EVERY}" for all.'
        )
    known = {name: given.get(name, others) for name in names}
    return DeclaredSizes({name: size for name, size in known.items() if size is not None}, others)


def require_declared(spec: RunSpec) -> None:
    """Refuse a release whose sizes, or whose silos' names, would have to be read off the data."""
    sizes = declared_sizes(spec.silos)
    if spec.silos.partition != "column":
        missing = sizes.others is None and len(sizes.named) < (spec.silos.count or 1)
        example = f'"{EVERY}" = {{ items = 4000, subjects = 900 }}'
    else:
        missing = not sizes.named or sizes.others is not None  # "*" would take the names from the data
        example = "north = { items = 4000, subjects = 900 }, one for each silo"
    if missing:
        raise SpecError(
            'privacy.noise = "secure" makes a release, in which the silos and their sizes are public and therefore not'
            f" read off the data: write under [silos.sizes] the lines {example} (about what is trained on; `wholegrain"
            " data describe` proposes round numbers)."
        )


def round_to_two_digits(count: int) -> int:
    """Two significant digits, for a size that may be published; at least 1.

    >>> [round_to_two_digits(count) for count in (0, 7, 94, 1234, 98_765)]
    [1, 7, 94, 1200, 99000]
    """
    if count < 1:
        return 1
    return round(count, 1 - math.floor(math.log10(count)))
