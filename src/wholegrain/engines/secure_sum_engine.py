"""Secure sums: the server's part of every round, whoever carries its messages.

What is computed is the same to the last bit wherever silos are: in this process, in others, or on machines of their
own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from wholegrain.errors import RunError
from wholegrain.federation.messages import Answer, RoundTask, ScoreTask, SiloFault, SumUpdate
from wholegrain.federation.secure_sum import Consent, MaskedPart, OpenHelp, OpenRequest, SessionKeys
from wholegrain.federation.sum_opening import SumOpening
from wholegrain.federation.sum_scale import SumScale
from wholegrain.policies.plan import Plan
from wholegrain.privacy.trust import SecureSum

TOO_FEW = "fewer than {} silos answered, so their sum was not opened"
NO_HELP = "fewer than {} silos helped to open the sum, so it was not opened"


@dataclass(frozen=True)
class KeysRequest:
    """Begin a session: make keys, and sign them."""

    round: int


@dataclass(frozen=True, eq=False)
class MaskRequest:
    """Mask one step's part of the sum, at these parameters; `bits` of each number travel."""

    round: int
    keys: tuple[SessionKeys, ...]
    vector: Tensor
    bits: int


@dataclass(frozen=True)
class ConsentRequest:
    """Sign this list of survivors."""

    round: int
    survivors: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class OpenedSum:
    """The sum over these silos, in whole numbers."""

    silos: tuple[str, ...]
    numbers: NDArray[np.int64]


SumRequest = KeysRequest | MaskRequest | ConsentRequest | OpenRequest
SumReply = SessionKeys | MaskedPart | Consent | OpenHelp


class SumPost(Protocol):
    """Carries the messages of a secure sum to silos, and their answers back."""

    def connected(self, silos: tuple[str, ...]) -> Mapping[str, object]:
        """Who can be asked now, each with what tells its connection from an earlier one."""
        ...

    def ask(self, requests: Mapping[str, SumRequest]) -> Iterator[tuple[str, SumReply | SiloFault]]:
        """Ask silos, and hand their answers on as they come; whoever stops listening does not wait for the rest."""
        ...


@dataclass(eq=False)
class SecureSums:
    """The engine of a server that sees nothing but sums.

    A session of keys lasts as long as the same silos are connected and none of them fails.
    """

    post: SumPost
    plan: Plan
    trust: SecureSum
    learning_rate: float
    _keys: tuple[SessionKeys, ...] = field(default=(), repr=False)
    _connections: Mapping[str, object] = field(default_factory=dict, repr=False)

    def run(self, task: RoundTask) -> Iterator[Answer]:
        """One sum over all silos that answered, and a fault for each that did not."""
        size = task.vector.numel()
        scale = SumScale.of(self.plan.rows, size)
        for answer in self.open_sum(task, size, scale.bits):
            if isinstance(answer, SiloFault):
                yield answer
            else:
                rows = [row for row in self.plan.rows if row[1].name in answer.silos]
                yield SumUpdate(answer.silos, scale.move(task.vector, answer.numbers, rows, self.learning_rate))

    def open_sum(self, task: RoundTask | ScoreTask, size: int, bits: int) -> "Iterator[OpenedSum | SiloFault]":
        """The sum of what silos make of a task, so many whole numbers of so many bits, and a fault for each that is
        not in it.
        """
        yield from self._begin(task)
        if not self._keys:
            return
        members = frozenset(each.silo for each in self._keys)
        opening = SumOpening(self.trust, tuple(sorted(task.silos)), members, task.round, size)
        wanted = MaskRequest(task.round, self._keys, task.vector, bits)
        for silo, reply in self.post.ask(dict.fromkeys(sorted(members), wanted)):
            if fault := _add_part(opening, silo, reply):
                self._keys = ()  # whoever failed may have lost its keys
                yield fault
        yield from self._open(opening, task.round, bits)

    def _begin(self, task: RoundTask | ScoreTask) -> Iterator[SiloFault]:
        """See to it that there is a session with all who are connected; a fault for each silo that is not in it."""
        connections = dict(self.post.connected(task.silos))
        if connections != self._connections:
            self._keys = ()
        replies = {each.silo: each for each in self._keys}
        absent = [SiloFault(silo, "it is not connected") for silo in task.silos if silo not in connections]
        if not self._keys:
            asked: Mapping[str, SumRequest] = dict.fromkeys(sorted(connections), KeysRequest(task.round))
            for silo, reply in self.post.ask(asked):
                if isinstance(reply, SessionKeys) and reply.silo == silo:
                    replies[silo] = reply
                else:
                    absent.append(reply if isinstance(reply, SiloFault) else SiloFault(silo, "it sent no keys"))
        self._connections, self._keys = connections, tuple(replies[silo] for silo in sorted(replies))
        yield from absent
        if len(replies) < self.trust.answers:
            self._keys = ()
            yield from (SiloFault(silo, TOO_FEW.format(self.trust.answers)) for silo in replies)

    def _open(self, opening: SumOpening, round: int, bits: int) -> "Iterator[OpenedSum | SiloFault]":
        """The sum, where enough silos have answered and helped; otherwise everybody's fault."""
        wanted = ConsentRequest(round, opening.survivors)
        if opening.can_open:
            for _, reply in self.post.ask(dict.fromkeys(opening.survivors, wanted)):
                if isinstance(reply, Consent):
                    opening.add_consent(reply)
                if opening.is_agreed:
                    break
        if opening.is_agreed:
            for _, reply in self.post.ask({silo: opening.request_for(silo) for silo in opening.survivors}):
                if isinstance(reply, OpenHelp):
                    opening.add_help(reply)
                if opening.is_helped:
                    break
        why = NO_HELP.format(self.trust.threshold) if opening.can_open else TOO_FEW.format(self.trust.answers)
        if opening.is_helped:
            try:
                yield OpenedSum(opening.survivors, opening.open(bits))
                return
            except RunError as error:  # shares that do not fit together
                why = str(error)
        self._keys = ()
        yield from (SiloFault(silo, why) for silo in opening.survivors)


def _add_part(opening: SumOpening, silo: str, reply: SumReply | SiloFault) -> SiloFault | None:
    """Add a silo's masked vector to the sum, or say what is wrong with it."""
    if isinstance(reply, SiloFault):
        return reply
    try:
        if isinstance(reply, MaskedPart) and reply.silo == silo:
            opening.add(reply)
            return None
    except RunError as error:
        return SiloFault(silo, str(error))
    return SiloFault(silo, "it sent no part of the sum")
