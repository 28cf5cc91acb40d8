"""The server's part of a secure sum: it collects what silos send and opens the sum. It is trusted with nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wholegrain.errors import RunError
from wholegrain.federation.masks import Words, add_mask, to_numbers
from wholegrain.federation.secure_sum import Consent, MaskedPart, OpenHelp, OpenRequest, is_second
from wholegrain.federation.shamir import join_shares
from wholegrain.privacy.trust import SecureSum


@dataclass(eq=False)
class SumOpening:
    """One round: masked vectors, then signatures under the list of survivors, then shares."""

    rules: SecureSum
    roster: tuple[str, ...]
    members: frozenset[str]
    """The silos of the session."""
    round: int
    size: int
    _sum: Words = field(init=False, repr=False)
    _shares: dict[str, Mapping[str, bytes]] = field(default_factory=dict, repr=False)
    _consents: dict[str, bytes] = field(default_factory=dict, repr=False)
    _help: dict[str, OpenHelp] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._sum = np.zeros(self.size, np.uint64)

    @property
    def survivors(self) -> tuple[str, ...]:
        """The silos whose vectors are in the sum."""
        return tuple(name for name in self.roster if name in self._shares)

    def add(self, part: MaskedPart) -> None:
        """Add a silo's masked vector; the first one of each silo counts."""
        if part.silo not in self.members or part.silo in self._shares:
            raise RunError(f"The silo '{part.silo}' has no part, or a second one, in the sum of round {self.round}.")
        if part.round != self.round or part.words.shape != (self.size,):
            raise RunError(f"What '{part.silo}' sent is no vector of {self.size} numbers for round {self.round}.")
        self._sum += part.words
        self._shares[part.silo] = part.shares

    @property
    def can_open(self) -> bool:
        """Whether enough silos have answered."""
        return len(self._shares) >= self.rules.answers

    def add_consent(self, consent: Consent) -> None:
        """Take a survivor's signature under the list of survivors, which must not change any more."""
        if consent.silo in self._shares:
            self._consents[consent.silo] = consent.signature

    @property
    def is_agreed(self) -> bool:
        """Whether enough silos have signed the list."""
        return len(self._consents) >= self.rules.threshold

    def request_for(self, silo: str) -> OpenRequest:
        """What a survivor is asked."""
        shares = {owner: held[silo] for owner, held in self._shares.items() if owner != silo and silo in held}
        return OpenRequest(self.round, self.survivors, dict(self._consents), shares)

    def add_help(self, help: OpenHelp) -> None:
        """Take a survivor's shares."""
        if help.silo in self._shares:
            self._help[help.silo] = help

    @property
    def is_helped(self) -> bool:
        """Whether enough silos have helped."""
        return len(self._help) >= self.rules.threshold

    def open(self, bits: int) -> NDArray[np.int64]:
        """The sum of the survivors' vectors, modulo 2^bits; refused where too few have helped."""
        if not self.can_open or not self.is_helped:
            raise RunError(
                f"{len(self._shares)} silos answered and {len(self._help)} helped to open the sum of round"
                f" {self.round}; it takes {self.rules.answers} and {self.rules.threshold}."
            )
        total = self._sum.copy()
        lost = [name for name in self.roster if name in self.members and name not in self._shares]
        for owner in self.survivors:
            add_mask(total, self._seed(owner, owner), negative=True)
            for about in lost:
                add_mask(total, self._seed(owner, about), negative=not is_second(self.roster, owner, about))
        return to_numbers(total, bits)

    def _seed(self, owner: str, about: str) -> bytes:
        shares = {
            self.roster.index(name) + 1: help.shares[owner, about]
            for name, help in self._help.items()
            if (owner, about) in help.shares
        }
        return join_shares(shares, self.rules.threshold)
