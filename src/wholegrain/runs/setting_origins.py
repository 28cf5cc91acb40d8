"""Where the settings of a run come from: one word for each, in its record and its report.

What is known here: which settings a spec leaves out and public facts fill in, and which a private selection has paid
for. Of a value that somebody wrote into a spec, nobody but the writer knows how it was found; the section `[origin]`
says so, for a key or for a whole section:

    [origin]
    rounds.learning_rate = "unpaid"
    policy = "public"
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from wholegrain.errors import SpecError
from wholegrain.runs.spec import RunSpec

SECTIONS = ("model", "policy", "rounds", "server")
"""Sections whose settings somebody may choose by looking at scores."""


class Origin(StrEnum):
    """How a setting was chosen."""

    GIVEN = "given"
    """Written into the spec; nobody says that private data had a part in it."""
    PUBLIC = "public"
    """Chosen on public or synthetic data, or a default that comes with the library."""
    PLANNED = "planned"
    """Computed from public facts: declared sizes and bounds, and the budget."""
    PAID = "paid"
    """Chosen by private scores that the guarantee covers."""
    UNPAID = "unpaid"
    """Chosen by scores on private people that no ε covers."""


Origins = Mapping[str, Origin]
"""Origins by place, `rounds.learning_rate`."""


def find_origins(asked: RunSpec, planned: Iterable[str]) -> dict[str, Origin]:
    """The origin of every setting of a spec as it was asked for, of which those at `planned` were filled in."""
    planned, stated = set(planned), _declared_origins(asked)
    found: dict[str, Origin] = {}
    for section in SECTIONS:
        inner = getattr(asked, section)
        for key in type(inner).model_fields:
            place = f"{section}.{key}"
            usual = Origin.GIVEN if key in inner.model_fields_set else Origin.PUBLIC
            found[place] = stated.get(place, Origin.PLANNED if place in planned else usual)
    return found


def name_unpaid(origins: Origins) -> tuple[str, ...]:
    """Settings that were chosen by private scores nobody paid for."""
    return tuple(place for place, origin in origins.items() if origin is Origin.UNPAID)


def name_tuned(origins: Origins, spec: RunSpec) -> tuple[str, ...]:
    """Settings that a paid tuning chose as it made this run; not those that a spec has from an earlier one."""
    stated = _declared_origins(spec)
    return tuple(place for place, origin in origins.items() if origin is Origin.PAID and place not in stated)


def _declared_origins(spec: RunSpec) -> dict[str, Origin]:
    """What the section `[origin]` says, by place; one that names no setting is refused."""
    found: dict[str, Origin] = {}
    for section, said in spec.origin.items():
        if section not in SECTIONS:
            raise SpecError(f"origin.{section}: settings that have an origin are in {', '.join(SECTIONS)}.")
        keys = type(getattr(spec, section)).model_fields
        for key, word in (said if isinstance(said, dict) else dict.fromkeys(keys, said)).items():
            if key not in keys:
                raise SpecError(f"origin.{section}.{key} names no setting of [{section}].")
            found[f"{section}.{key}"] = Origin(word)
    return found
