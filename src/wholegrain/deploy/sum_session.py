"""What a silo remembers of a session of secure sums: in memory alone, and one session at a time."""

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
    """The place of the one session that a silo takes part in; a later one takes it."""

    session: SumSession | None = None
