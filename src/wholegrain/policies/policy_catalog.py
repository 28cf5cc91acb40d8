"""The algorithms, five lines each: rows over the one step.

A new algorithm is a new row here. If its combination of sampling, clip and pool has a proved event, `guarantees` finds
it; if not, a plan refuses it. A maker in `api.policy_values` offers it in Python by a name of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from wholegrain import _check
from wholegrain._registry import Registry
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.subject_updates import LocalUpdate
from wholegrain.data.sampling import PoissonItems, PoissonSubjects
from wholegrain.errors import SpecError, WholegrainError
from wholegrain.policies.policy import FixedNoise, Policy, PublicDivisor, SiloFacts
from wholegrain.privacy.events import presence
from wholegrain.privacy.trust import SecureSum

LOCAL_STEPS, LOCAL_RATE = 3, 0.5
"""Of `uldp_avg`, where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """What the rows are made from: public choices, the same for all silos.

    Either `rate` (the same sampling probability everywhere) or `batch_size` (an expected size, from which each silo's
    rate follows by its public size).
    """

    rate: float | None = None
    batch_size: int | None = None
    clip_norm: float = 1.0
    group_cap: int | None = None
    items_per_step: int | None = None
    by_span: bool = False
    by_share: bool = False
    """With `by_span`: a subject counts in each silo by its share of items there, and not alike in all."""
    trust: SecureSum | None = None
    local_steps: int | None = None
    local_rate: float | None = None
    """Of `uldp_avg`: how many steps each subject takes on its own items, and their learning rate."""
    pool: str = Pool.MEAN
    """Of `subject_dp`: whether a subject's gradients are averaged or added up before they are clipped as one."""

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.batch_size is None):
            raise SpecError("A policy takes either rate or batch_size, one of the two.")
        if self.by_share and not self.by_span:
            raise SpecError("by_share says how by_span divides what a subject counts; set by_span as well.")
        if self.rate is not None:
            _check.rate("rate", self.rate)
        if self.batch_size is not None:
            _check.count("batch_size", self.batch_size)
        if self.group_cap is not None:
            _check.count("group_cap", self.group_cap)
        if self.items_per_step is not None:
            _check.count("items_per_step", self.items_per_step)
        if self.local_steps is not None:
            _check.count("local_steps", self.local_steps)
        if self.local_rate is not None:
            _check.positive("local_rate", self.local_rate)

    def rate_over(self, size: int) -> float:
        """The sampling probability in a silo with `size` things to sample from."""
        return self.rate if self.rate is not None else min(1.0, (self.batch_size or 1) / size)


def fedavg(settings: PolicySettings, silo: SiloFacts) -> Policy:
    """No clip, no noise, no guarantee."""
    rate = settings.rate_over(silo.items)
    return Policy(
        name="fedavg",
        sampling=PoissonItems(rate),
        clip=Clip(ClipPer.NONE, Pool.SUM, settings.clip_norm),
        noise=FixedNoise(0.0),
        divisor=PublicDivisor(rate * silo.items),
    )


def local_item_dp(settings: PolicySettings, silo: SiloFacts) -> Policy:
    """DP-SGD in each silo: each item clipped by itself."""
    rate = settings.rate_over(silo.items)
    return Policy(
        name="local_item_dp",
        sampling=PoissonItems(rate),
        clip=Clip(ClipPer.ITEM, Pool.SUM, settings.clip_norm),
        divisor=PublicDivisor(rate * silo.items),
    )


def local_group_dp(settings: PolicySettings, silo: SiloFacts) -> Policy:
    """At most a public number of one subject's items in a batch, each clipped by itself."""
    if settings.group_cap is None:
        raise SpecError("local_group_dp needs group_cap: the most items of one subject in a batch.")
    rate = settings.rate_over(silo.items)
    return Policy(
        name="local_group_dp",
        sampling=PoissonItems(rate, most_per_subject=settings.group_cap),
        clip=Clip(ClipPer.ITEM, Pool.SUM, settings.clip_norm),
        divisor=PublicDivisor(rate * silo.items),
    )


def higradavg_dp(settings: PolicySettings, silo: SiloFacts) -> Policy:
    """Items clipped, then averaged within each subject; divided by the subjects that public sizes let expect."""
    rate = settings.rate_over(silo.items)
    typical = max(1, round(silo.items / silo.subjects))
    return Policy(
        name="higradavg_dp",
        sampling=PoissonItems(rate),
        clip=Clip(ClipPer.ITEM, Pool.MEAN, settings.clip_norm),
        divisor=PublicDivisor(presence(rate, typical) * silo.subjects),
    )


def user_ldp(settings: PolicySettings, silo: SiloFacts) -> Policy:
    """The whole batch's mean gradient clipped: hides everything that a silo has."""
    return Policy(
        name="user_ldp",
        sampling=PoissonItems(settings.rate_over(silo.items)),
        clip=Clip(ClipPer.BATCH, Pool.MEAN, settings.clip_norm),
        divisor=PublicDivisor(1.0),
    )


def subject_dp(settings: PolicySettings, silo: SiloFacts) -> Policy:
    """Subjects sampled, each one's gradients pooled and clipped as one."""
    rate, pool = settings.rate_over(silo.subjects), Pool(settings.pool)
    sampling = PoissonSubjects(rate, items=settings.items_per_step)
    row = Policy(
        name="subject_dp",
        sampling=sampling,
        clip=Clip(ClipPer.SUBJECT, pool, settings.clip_norm),
        divisor=PublicDivisor(rate * silo.subjects),
        by_span=settings.by_span,
    )
    # The mean over what is added up: subjects, or the items that public sizes let expect.
    return row if pool is Pool.MEAN else replace(row, divisor=PublicDivisor(row.expected_sizes(silo)[1]))


def uldp_avg(settings: PolicySettings, silo: SiloFacts) -> Policy:
    """Subjects sampled; each one's local update over several steps clipped as one [ULDP-AVG, Kato et al. 2024]."""
    rate = settings.rate_over(silo.subjects)
    return Policy(
        name="uldp_avg",
        sampling=PoissonSubjects(rate, items=settings.items_per_step),
        clip=Clip(ClipPer.SUBJECT, Pool.MEAN, settings.clip_norm),
        divisor=PublicDivisor(rate * silo.subjects),
        by_span=settings.by_span,
        local=LocalUpdate(settings.local_steps or LOCAL_STEPS, settings.local_rate or LOCAL_RATE),
    )


@dataclass(frozen=True)
class PolicyEntry:
    """A row's maker, whom it protects in words, and which of the optional settings it reads."""

    row: Callable[[PolicySettings, SiloFacts], Policy]
    protects: str
    reads: tuple[str, ...] = ()


def _own_entry(name: str, row: Callable[..., object]) -> PolicyEntry:
    return PolicyEntry(
        partial(_own_row, name, row), " ".join((row.__doc__ or "what its plan says").split()).rstrip(".")
    )


def _own_row(name: str, row: Callable[..., object], settings: PolicySettings, silo: SiloFacts) -> Policy:
    try:
        made = row(settings, silo)
    except WholegrainError:
        raise
    except Exception as error:  # the row is the user's own code
        raise SpecError(
            f"The policy '{name}' cannot be made for silo '{silo.name}': {_check.reason(error)}."
        ) from error
    if not isinstance(made, Policy):
        raise SpecError(f"The policy '{name}' gave {type(made).__name__}, not a Policy.")
    return made


CATALOG = Registry(
    "policy",
    "policy.name",
    {
        "fedavg": PolicyEntry(fedavg, "nobody"),
        "local_item_dp": PolicyEntry(local_item_dp, "one record; a person only as far as K and M reach"),
        "local_group_dp": PolicyEntry(local_group_dp, "a person, by bounding their records in a batch", ("group_cap",)),
        "higradavg_dp": PolicyEntry(higradavg_dp, "a person, by averaging their clipped gradients"),
        "user_ldp": PolicyEntry(user_ldp, "a whole silo, and so each person in it"),
        "subject_dp": PolicyEntry(
            subject_dp,
            "a person, by clipping all their gradients as one",
            ("items_per_step", "by_span", "by_share", "pool"),
        ),
        "uldp_avg": PolicyEntry(
            uldp_avg,
            "a person, by clipping their update of several local steps",
            ("items_per_step", "by_span", "by_share", "local_steps", "local_rate"),
        ),
    },
    _own_entry,
)


def make_row(policy: str, settings: PolicySettings, silo: SiloFacts) -> Policy:
    """The row of a policy for one silo, under the trust and with the weights that the settings ask for."""
    entry = find(policy)
    row = entry.row(settings, silo)
    if settings.by_span and settings.trust is None and not (row.by_span or "by_span" in entry.reads):
        raise SpecError(f"by_span is for rows that clip a subject as one, as subject_dp; {policy} does not.")
    if settings.by_span and not silo.knows_spans:
        raise SpecError(f"by_span needs silos that know in how many others a subject is, and '{silo.name}' does not.")
    by_span, by_share = row.by_span or settings.by_span, row.by_share or settings.by_share
    if by_share and not silo.knows_shares:
        raise SpecError(f"by_share needs silos that know shares, and '{silo.name}' does not.")
    return replace(row, trust=settings.trust, by_span=by_span, by_share=by_share)


def find(name: str) -> PolicyEntry:
    """The entry with this name, or the user's own row `module:function`.

    Whose row it is makes no difference to what is proved of it: `guarantees` looks at its structure alone.
    """
    return CATALOG.find(name)
