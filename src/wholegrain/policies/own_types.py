"""Whether a row is made of the types that proofs are about, and of no others.

A proof follows from what a type does. A subclass may do anything under the same name and with the same settings: draw
everybody at a rate of 0.05, or add a hundredth of the noise. So a type is compared, never its base classes.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType

import numpy as np

from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.subject_updates import LocalUpdate
from wholegrain.data.sampling import FixedItems, PoissonItems, PoissonSubjects
from wholegrain.policies.policy import FixedNoise, NoiseByLargestGroup, Policy, PublicDivisor, RealisedSubjects
from wholegrain.privacy.trust import SecureSum

PARTS: Mapping[str, tuple[type, ...]] = {
    "sampling": (PoissonItems, PoissonSubjects, FixedItems),
    "clip": (Clip,),
    "divisor": (PublicDivisor, RealisedSubjects),
    "noise": (FixedNoise, NoiseByLargestGroup, NoneType),
    "trust": (SecureSum, NoneType),
    "local": (LocalUpdate, NoneType),
}
SETTINGS = (bool, int, float, str, NoneType, ClipPer, Pool, np.float64, np.float32, np.int64, np.int32)
"""What settings are. A number of another type could tell the accountant one value and the step another."""


def find_own_types(policy: Policy) -> tuple[str, ...]:
    """In one sentence each, what of a row is of a type that nothing is known of; empty where there is nothing."""
    if type(policy) is not Policy:
        return (_unknown("the policy", policy),)
    found = [
        _unknown(f"its {name}", getattr(policy, name))
        for name, known in PARTS.items()
        if type(getattr(policy, name)) not in known
    ]
    plain = [name for name in (each.name for each in fields(policy)) if name not in PARTS]
    found += [_unknown(f"its {name}", value) for name in plain if type(value := getattr(policy, name)) not in SETTINGS]
    # The table of noise by group is a function, and nothing is proved of it in any case.
    parts = [part for name in PARTS if (part := getattr(policy, name)) and type(part) is not NoiseByLargestGroup]
    return tuple(found or [reason for part in parts for reason in _own_settings(part)])


def _own_settings(part: object) -> list[str]:
    """Settings of another type, and attributes that the type does not have."""
    kind, held = type(part).__name__, vars(part)
    names = {each.name for each in fields(part)}  # type: ignore[arg-type]
    found = [_unknown(f"the {name} of its {kind}", held[name]) for name in names if type(held[name]) not in SETTINGS]
    return found + [f"its {kind} has '{name}', which it was given from outside" for name in held.keys() - names]


def _unknown(what: str, value: object) -> str:
    return f"{what} is of a type of its own ({type(value).__name__}), of which nothing is known"
