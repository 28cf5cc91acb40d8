"""Secure sums in this process: every silo really masks its part, and the server's part sees nothing else.

It shows what a federation would compute, to the last bit, and what a server in it would see. In one process it hides
nothing from whoever runs it.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from wholegrain import _check
from wholegrain.errors import RunError
from wholegrain.federation.messages import Answer, RoundTask, SiloFault, SumUpdate
from wholegrain.federation.secure_sum import MaskedPart, Member, SumOpening
from wholegrain.federation.sum_scale import SumScale
from wholegrain.policies.plan import Plan
from wholegrain.privacy.trust import SecureSum
from wholegrain.silo.training import Silo, Trainer

log = logging.getLogger("wholegrain.silo")


@dataclass(eq=False)
class SecureSumInProcess:
    """An engine for simulation on one machine: one session, in which all silos take part."""

    silos: Mapping[str, Silo]
    plan: Plan
    trainer: Trainer
    trust: SecureSum
    _members: dict[str, Member] = field(default_factory=dict, repr=False)

    def run(self, task: RoundTask) -> Iterator[Answer]:
        """One sum over all silos that answered, and a fault for each that did not."""
        opening = SumOpening(self.trust, tuple(self.silos), frozenset(self.silos), task.round, task.vector.numel())
        for name in task.silos:
            part = self._mask(name, task)
            if isinstance(part, SiloFault):
                yield part
            else:
                opening.add(part)
        yield from self._open(opening, task.vector)

    def _open(self, opening: SumOpening, vector: Tensor) -> Iterator[Answer]:
        scale = SumScale.of(self.plan.rows, vector.numel())
        if not opening.can_open:
            for name in opening.survivors:
                yield SiloFault(name, f"fewer than {self.trust.answers} silos answered, so their sum was not opened")
            return
        for name in opening.survivors:
            opening.add_help(self._session[name].help_open(opening.request_for(name)))
        rows = [row for row in self.plan.rows if row[1].name in opening.survivors]
        moved = scale.move(vector, opening.open(scale.bits), rows, self.trainer.learning_rate)
        yield SumUpdate(opening.survivors, moved)

    def _mask(self, name: str, task: RoundTask) -> MaskedPart | SiloFault:
        policy = self.plan.policy_for(name)
        try:
            part = self.trainer.add_to_sum(self.silos[name], policy, task.vector, task.round)
            return self._session[name].mask(task.round, part.numpy())
        except Exception as error:  # whatever a silo dies of, in a deployment, too
            # What it says may hold private values: it is for whoever holds the data, and not for the record.
            log.warning("silo '%s' failed: %s", name, _check.reason(error))
            return SiloFault(name, type(error).__name__)

    @property
    def _session(self) -> Mapping[str, Member]:
        """The members, with their keys exchanged when they are first needed."""
        if not self._members:
            identities = {name: Ed25519PrivateKey.generate() for name in self.silos}
            session, roster = secrets.token_hex(16), tuple(self.silos)
            self._members = {name: Member(name, session, self.trust, roster) for name in roster}
            keys = [member.keys(identities[name].sign) for name, member in self._members.items()]

            def verify(silo: str, text: bytes, signature: bytes) -> bool:
                try:
                    identities[silo].public_key().verify(signature, text)
                except InvalidSignature as error:
                    raise RunError(f"The keys of '{silo}' are not its own.") from error
                return True

            for member in self._members.values():
                member.accept(keys, verify)
        return self._members
