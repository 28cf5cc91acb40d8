"""A silo's sessions of secure sums: kept in memory only, one for updates and one for scores at a time."""

from dataclasses import dataclass

from wholegrain.deploy.model_agreement import AgreedModel
from wholegrain.engines.wire import SiloTask
from wholegrain.federation.secure_sum import Member


@dataclass(frozen=True, eq=False)
class SumSession:
    """A session: the task that it is for, whichever the round, and this silo's part of the protocol."""

    task: SiloTask
    member: Member
    agreed: AgreedModel


@dataclass(eq=False)
class SumSlot:
    """The places of the sessions that a silo takes part in; a later one of the same kind takes it."""

    session: SumSession | None = None
    scores: SumSession | None = None

    def of(self, scores: bool) -> SumSession | None:
        """The session of scores, or of updates."""
        return self.scores if scores else self.session

    def keep(self, session: SumSession, scores: bool) -> None:
        """Remember a session of scores, or of updates, in place of the former one."""
        if scores:
            self.scores = session
        else:
            self.session = session
