"""Silos of this process under secure sums: each really masks its part, and helps to open the sum.

In one process the protocol hides nothing from whoever runs it. It shows what a federation would compute, and what a
server in it would see.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.engines.secure_sum_engine import ConsentRequest, KeysRequest, MaskRequest, SumReply, SumRequest
from wholegrain.errors import LostProcessError, RefusalError
from wholegrain.federation.messages import SiloFault
from wholegrain.federation.secure_sum import RULE, Member
from wholegrain.policies.plan import Plan
from wholegrain.privacy.trust import SecureSum
from wholegrain.silo.training import Silo, Trainer

log = logging.getLogger("wholegrain.silo")


@dataclass(eq=False)
class SumSilos:
    """Silos that answer the messages of a secure sum, in the process that asks them."""

    silos: Mapping[str, Silo]
    plan: Plan
    trainer: Trainer
    trust: SecureSum
    score: Callable[[str, MaskRequest], NDArray[np.int64]] | None = None
    """Makes a silo's part of a sum of scores; None where gradients are added up."""
    _members: dict[str, Member] = field(default_factory=dict, repr=False)

    def connected(self, silos: tuple[str, ...]) -> Mapping[str, object]:
        """All silos that are here, always."""
        return {name: None for name in silos if name in self.silos}

    def ask(self, requests: Mapping[str, SumRequest]) -> Iterator[tuple[str, SumReply | SiloFault]]:
        """Ask one silo after the other; one that fails does not stop the others."""
        for name, request in requests.items():
            try:
                yield name, self._answer(name, request)
            except LostProcessError:
                raise
            except Exception as error:  # whatever a silo dies of, in a deployment, too
                # What it says may hold private values: it is for whoever holds the data, and not for the record.
                log.warning("silo '%s' failed: %s", name, _check.reason(error))
                yield name, SiloFault(name, type(error).__name__)

    def _answer(self, name: str, request: SumRequest) -> SumReply:
        sign = self._identities[name].sign
        if isinstance(request, KeysRequest):
            terms = "simulation" if self.score is None else "simulation of scores"
            self._members[name] = Member(name, terms, self.trust, self._roster)
            return self._members[name].keys(sign)
        member = self._members.get(name)
        if member is None:
            raise RefusalError(RULE, "there is no session")
        if isinstance(request, ConsentRequest):
            return member.sign_survivors(request.round, request.survivors, sign)
        if not isinstance(request, MaskRequest):
            return member.help_open(request, self._verify)
        member.accept(request.keys, self._verify)
        return member.mask(request.round, self._part(name, request))

    def _part(self, name: str, request: MaskRequest) -> NDArray[np.int64]:
        if self.score is not None:
            return self.score(name, request)
        policy = self.plan.policy_for(name)
        return self.trainer.add_to_sum(self.silos[name], policy, request.vector, request.round).numpy()

    @property
    def _roster(self) -> tuple[str, ...]:
        return tuple(sorted(facts.name for _, facts in self.plan.rows))

    @cached_property
    def _identities(self) -> Mapping[str, Ed25519PrivateKey]:
        """Long-term keys, as silos of a federation have them; here all processes of a simulation know them."""
        return {
            name: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"simulated silo {name}".encode()).digest())
            for name in self._roster
        }

    def _verify(self, silo: str, text: bytes, signature: bytes) -> bool:
        try:
            self._identities[silo].public_key().verify(signature, text)
        except InvalidSignature:
            return False
        return True
