"""Which policies of the catalogue add noise: read off their rows, so that a new one counts among them."""

from wholegrain.data.sampling import PoissonSubjects
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicySettings


def any_row(name: str) -> Policy:
    """The policy's row in some silo; its structure is the same in every one."""
    facts = SiloFacts(name="silo", items=20, subjects=10, items_per_subject=4)
    return CATALOG[name].row(PolicySettings(rate=0.5, group_cap=2), facts)


def cap_of(policy: Policy) -> int | None:
    """The most items of a subject in a batch, if the row has a cap."""
    sampling = policy.sampling
    return sampling.items if isinstance(sampling, PoissonSubjects) else sampling.most_per_subject


def private_policies() -> list[str]:
    """Those that leave their noise to a plan."""
    return [name for name in CATALOG if any_row(name).noise is None]


def policies_that_need_a_bound() -> list[str]:
    """Those of them that promise a subject nothing without a bound on its items: all that do not sample subjects."""
    return [name for name in private_policies() if not isinstance(any_row(name).sampling, PoissonSubjects)]
