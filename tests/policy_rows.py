"""Which policies of the catalogue add noise: read off their rows, so that a new one counts among them."""

from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, Settings


def any_row(name: str) -> Policy:
    """The policy's row in some silo; its structure is the same in every one."""
    facts = SiloFacts(name="silo", items=20, subjects=10, items_per_subject=4)
    return CATALOG[name].row(Settings(rate=0.5, group_cap=2), facts)


def private_policies() -> list[str]:
    """Those that leave their noise to a plan."""
    return [name for name in CATALOG if any_row(name).noise is None]
