"""The policies of the catalogue as values: `subject_dp(rate=0.1)` instead of a mapping.

A maker takes the settings that its row of `policies.policy_catalog` reads. A row without a maker is given by its name.
"""

from dataclasses import dataclass
from typing import Any

from wholegrain import _check
from wholegrain.errors import SpecError
from wholegrain.policies.policy_catalog import CATALOG
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec_sections import PolicySpec

SHARED = ("rate", "batch_size", "clip_norm", "as_printed", "composition")
"""Settings that every row reads."""


@dataclass(frozen=True)
class PolicyMaker:
    """Makes the settings of one policy; what is left out is chosen later, from public facts.

    >>> import wholegrain as wg
    >>> wg.subject_dp(rate=0.1).rate
    0.1
    >>> wg.fedavg
    <policy fedavg(rate, batch_size, clip_norm, as_printed, composition): protects nobody>
    >>> wg.subject_dp(rat=0.1)
    Traceback (most recent call last):
    wholegrain.errors.SpecError: The policy subject_dp has no setting 'rat' (did you mean 'rate'?); it has rate, \
batch_size, clip_norm, as_printed, composition, items_per_step, by_span, by_share, pool.
    """

    __name__: str

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that this policy takes."""
        return (*SHARED, *CATALOG[self.__name__].reads)

    def __repr__(self) -> str:
        return f"<policy {self.__name__}({', '.join(self.settings)}): protects {CATALOG[self.__name__].protects}>"

    def __call__(self, **settings: Any) -> PolicySpec:
        """The policy with these settings."""
        for name in settings:
            if name not in self.settings:
                near = _check.suggestion(name, self.settings)
                raise SpecError(
                    f"The policy {self.__name__} has no setting '{name}'{near}; it has {', '.join(self.settings)}."
                )
        if settings.get("rate") is not None:
            _check.rate("rate", settings["rate"])
        return RunSpec.of({"policy": {"name": self.__name__, **settings}}).policy


fedavg = PolicyMaker("fedavg")
local_item_dp = PolicyMaker("local_item_dp")
local_group_dp = PolicyMaker("local_group_dp")
higradavg_dp = PolicyMaker("higradavg_dp")
user_ldp = PolicyMaker("user_ldp")
subject_dp = PolicyMaker("subject_dp")
uldp_avg = PolicyMaker("uldp_avg")
