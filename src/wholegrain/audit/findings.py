"""The findings of an audit, compared with what was promised."""

from dataclasses import dataclass
from enum import StrEnum

from wholegrain.privacy.definitions import Guarantee, Standing, Unit


class AuditVerdict(StrEnum):
    """What an audit comes to."""

    CONSISTENT = "consistent"
    """Nothing was found that the guarantee does not allow."""
    VIOLATION = "violation"
    """The run gives away more than was proved: there is a fault in the code, or in the proof."""
    CLAIM_REFUTED = "claim refuted"
    """The run gives away more than the paper claims of it; that was not proved."""
    NOTHING_PROMISED = "nothing promised"
    """There is nothing to hold the findings against."""


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """A lower bound on ε by one attack and one method, and whether it refutes what was proved.

    `view` is what the attacker sees: every silo's update of every round, or the last model alone.
    """

    attack: str
    view: str
    method: str
    trials: int
    epsilon: float
    refutes: bool
    seen: str


@dataclass(frozen=True)
class Check:
    """A property of the releases that the proof rests on, tested by itself."""

    name: str
    seen: str
    passed: bool


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was found, held against what was promised."""

    policy: str
    unit: Unit
    proved: Guarantee
    claimed: Guarantee | None
    confidence: float
    canaries: int
    runs: int
    findings: tuple[AuditFinding, ...]
    checks: tuple[Check, ...]

    @property
    def epsilon(self) -> float:
        """The highest lower bound; all of them hold together with the confidence."""
        return max(finding.epsilon for finding in self.findings)

    @property
    def verdict(self) -> AuditVerdict:
        """Findings and checks against the proof, if there is one, then findings against the claim, if there is one."""
        proved = self.proved.standing is Standing.PROVED
        if proved and (
            self.failed or any(each.refutes for each in self.findings) or self.epsilon > self.proved.epsilon
        ):
            return AuditVerdict.VIOLATION
        if self.claimed is not None and self.epsilon > self.claimed.epsilon:
            return AuditVerdict.CLAIM_REFUTED
        return AuditVerdict.CONSISTENT if proved or self.claimed is not None else AuditVerdict.NOTHING_PROMISED

    @property
    def failed(self) -> tuple[str, ...]:
        """The checks that were not passed."""
        return tuple(check.name for check in self.checks if not check.passed)
