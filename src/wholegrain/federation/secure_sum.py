"""A sum over silos that hides every part of it, after Bonawitz et al. (2017), for few and reliable silos.

A *session* begins with keys: each silo makes two fresh X25519 key pairs and signs the public halves with its long-term
key, which every other silo knows beforehand. A server can therefore not put a key of its own between two silos.

A *round* takes two messages of each silo:

1. The silo adds masks to its vector: one for each other silo of the session, which that silo takes away again, and one
   of its own. It splits the seeds of all of these masks into shares (`shamir`), and encrypts one for each other silo.
2. The server names the survivors, those whose vectors it has. Each of them gives its shares of the survivors' own masks
   and of the masks between survivors and silos that dropped out. The server takes these masks away from the sum.

Guarantee: as long as at most `colluding` silos work with the server, nobody learns more of the vectors of a round than
one sum over at least `answers` silos. For every silo either its own mask or the masks that it shares with survivors are
opened, never both: a vector that is not in the sum keeps its own mask, one that is in the sum keeps the masks it shares
with other honest survivors. A silo masks one vector and helps to open one list of survivors in a round; more than half
of all silos, counting colluders twice, must help, so that no two lists can be opened. This rests on X25519, HKDF-SHA256
and AES-256. It is a guarantee of secrecy: a silo or a server that lies can spoil a sum.

Never to be added here: a second answer to the same round, or a log of seeds or shares.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from wholegrain.errors import RefusalError, RunError
from wholegrain.federation.masks import Words, add_mask, derive_key, pair_secret, to_numbers, to_words
from wholegrain.federation.shamir import SHARE_BYTES, join_shares, split_secret
from wholegrain.privacy.trust import SecureSum

RULE = "secure_sum"
"""What a refusal names as its rule."""

NONCE = bytes(12)
"""Each key encrypts one message: it is derived for one round, one sender and one receiver."""

Verify = Callable[[str, bytes, bytes], bool]
"""Whether a silo has signed a text: its name, the text, the signature."""


@dataclass(frozen=True)
class SessionKeys:
    """A silo's public keys for one session, signed with its long-term key."""

    silo: str
    session: str
    masks: bytes
    shares: bytes
    signature: bytes = b""

    @property
    def text(self) -> bytes:
        """What is signed."""
        parts = [b"wholegrain secure sum", self.session.encode(), self.silo.encode(), self.masks, self.shares]
        return b"".join(len(part).to_bytes(4) + part for part in parts)


@dataclass(frozen=True, eq=False)
class MaskedPart:
    """A silo's masked vector, and for each other silo an encrypted share of the seeds of its masks."""

    silo: str
    round: int
    words: Words
    shares: Mapping[str, bytes]


@dataclass(frozen=True)
class OpenRequest:
    """Which silos survived, and the shares that they have encrypted for the silo that is asked, by their owners."""

    round: int
    survivors: tuple[str, ...]
    shares: Mapping[str, bytes]


@dataclass(frozen=True)
class OpenHelp:
    """A survivor's shares of the seeds that open a sum: by owner, and by the silo that the mask is shared with.

    A mask of the owner's own stands under its own name.
    """

    silo: str
    shares: Mapping[tuple[str, str], bytes]


@dataclass(eq=False)
class Member:
    """A silo's part of the protocol, for one session. Its secrets live in memory alone, and end with it."""

    silo: str
    session: str
    rules: SecureSum
    roster: tuple[str, ...]
    """All silos of the federation, in the order in which they hold shares."""
    _mask_key: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    _share_key: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    _peers: dict[str, SessionKeys] = field(default_factory=dict, repr=False)
    _held: dict[int, bytes] = field(default_factory=dict, repr=False)
    """Of each round that was masked and not yet opened, the silo's share of its own seeds."""
    _last: int = -1
    """The last round that was masked; rounds only go up."""

    def keys(self, sign: Callable[[bytes], bytes]) -> SessionKeys:
        """The public keys of this session."""
        unsigned = SessionKeys(
            self.silo,
            self.session,
            self._mask_key.public_key().public_bytes_raw(),
            self._share_key.public_key().public_bytes_raw(),
        )
        return SessionKeys(unsigned.silo, unsigned.session, unsigned.masks, unsigned.shares, sign(unsigned.text))

    def accept(self, keys: Sequence[SessionKeys], verify: Verify) -> None:
        """Take the keys of the session's silos, once; whatever is not signed by a silo of the roster is refused."""
        if self._peers:
            raise RefusalError(RULE, "the keys of this session have been exchanged already")
        names = [each.silo for each in keys]
        if len(set(names)) < len(names) or self.silo not in names or not set(names) <= set(self.roster):
            raise RefusalError(RULE, "the session's keys are not those of different silos of the roster, ours included")
        if len(names) < self.rules.answers:
            raise RefusalError(RULE, f"{len(names)} silos are fewer than the {self.rules.answers} that open a sum")
        for each in keys:
            if each.session != self.session or not verify(each.silo, each.text, each.signature):
                raise RefusalError(RULE, f"the keys of '{each.silo}' are not signed by it for this session")
        own = next(each for each in keys if each.silo == self.silo)
        if own.masks != self._mask_key.public_key().public_bytes_raw():
            raise RefusalError(RULE, "the session's keys hold another key under our name")
        self._peers = {each.silo: each for each in keys}

    def mask(self, round: int, numbers: NDArray[np.int64]) -> MaskedPart:
        """Hide a vector of whole numbers; a round is answered once.

        Private: `numbers`, which are left as they are. What is returned may leave the silo.
        """
        if not self._peers:
            raise RefusalError(RULE, "the session's keys have not been exchanged yet")
        if round <= self._last:
            raise RefusalError(RULE, f"round {round} of this session was answered before")
        self._last = round
        self._held.clear()  # a round that was not opened by now never will be
        words, own = to_words(numbers), secrets.token_bytes(32)
        seeds = {self.silo: own}
        add_mask(words, own)
        for peer in self._others:
            seeds[peer] = self._pair_seed(round, peer)
            add_mask(words, seeds[peer], negative=_is_second(self.roster, self.silo, peer))
        return MaskedPart(self.silo, round, words, self._share(round, seeds))

    def help_open(self, request: OpenRequest) -> OpenHelp:
        """The shares that open the sum of these survivors, for one list of survivors in a round."""
        survivors = set(request.survivors)
        if request.round not in self._held:
            raise RefusalError(RULE, f"round {request.round} was not masked here, or was opened before")
        if len(survivors) < len(request.survivors) or not survivors <= set(self._peers) or self.silo not in survivors:
            raise RefusalError(RULE, "the survivors are not silos of this session, ours among them")
        if len(survivors) < self.rules.answers:
            raise RefusalError(RULE, f"{len(survivors)} survivors are fewer than {self.rules.answers}")
        held = {self.silo: self._held.pop(request.round)}
        held |= {owner: self._decrypt(request, owner) for owner in sorted(survivors - {self.silo})}
        lost = sorted(set(self._peers) - survivors)
        return OpenHelp(
            self.silo,
            {(owner, about): _share_of(held[owner], self.roster, about) for owner in held for about in [owner, *lost]},
        )

    @property
    def _others(self) -> list[str]:
        return [name for name in self.roster if name in self._peers and name != self.silo]

    def _pair_seed(self, round: int, peer: str) -> bytes:
        pair = sorted((self.silo, peer))
        return derive_key(pair_secret(self._mask_key, self._peers[peer].masks), "mask", self.session, round, *pair)

    def _share(self, round: int, seeds: Mapping[str, bytes]) -> dict[str, bytes]:
        """Shares of all seeds, one encrypted bundle for each other silo; the bundle for this silo is kept."""
        shares = {about: split_secret(seed, self.rules.threshold, len(self.roster)) for about, seed in seeds.items()}
        nothing = [bytes(SHARE_BYTES)] * len(self.roster)
        bundles = {
            holder: b"".join(shares.get(about, nothing)[number] for about in self.roster)
            for number, holder in enumerate(self.roster)
        }
        self._held[round] = bundles[self.silo]
        return {
            peer: AESGCM(self._bundle_key(round, peer, self.silo, peer)).encrypt(NONCE, bundles[peer], None)
            for peer in self._others
        }

    def _decrypt(self, request: OpenRequest, owner: str) -> bytes:
        key = self._bundle_key(request.round, owner, owner, self.silo)
        try:
            return AESGCM(key).decrypt(NONCE, request.shares[owner], None)
        except (KeyError, InvalidTag, ValueError) as error:
            raise RefusalError(RULE, f"the shares of '{owner}' are missing or damaged") from error

    def _bundle_key(self, round: int, peer: str, sender: str, receiver: str) -> bytes:
        secret = pair_secret(self._share_key, self._peers[peer].shares)
        return derive_key(secret, "shares", self.session, round, sender, receiver)


@dataclass(eq=False)
class SumOpening:
    """The server's part of one round: collects masked vectors, then shares, and opens the sum."""

    rules: SecureSum
    roster: tuple[str, ...]
    members: frozenset[str]
    """The silos of the session."""
    round: int
    size: int
    _sum: Words = field(init=False, repr=False)
    _shares: dict[str, Mapping[str, bytes]] = field(default_factory=dict, repr=False)
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

    def request_for(self, silo: str) -> OpenRequest:
        """What a survivor is asked."""
        shares = {owner: held[silo] for owner, held in self._shares.items() if owner != silo and silo in held}
        return OpenRequest(self.round, self.survivors, shares)

    def add_help(self, help: OpenHelp) -> None:
        """Take a survivor's shares."""
        if help.silo in self._shares:
            self._help[help.silo] = help

    def open(self, bits: int) -> NDArray[np.int64]:
        """The sum of the survivors' vectors, modulo 2^bits; refused where too few have helped."""
        if not self.can_open or len(self._help) < self.rules.threshold:
            raise RunError(
                f"{len(self._shares)} silos answered and {len(self._help)} helped to open the sum of round"
                f" {self.round}; it takes {self.rules.answers} and {self.rules.threshold}."
            )
        total = self._sum.copy()
        lost = [name for name in self.roster if name in self.members and name not in self._shares]
        for owner in self.survivors:
            add_mask(total, self._seed(owner, owner), negative=True)
            for about in lost:
                add_mask(total, self._seed(owner, about), negative=not _is_second(self.roster, owner, about))
        return to_numbers(total, bits)

    def _seed(self, owner: str, about: str) -> bytes:
        shares = {
            self.roster.index(name) + 1: help.shares[owner, about]
            for name, help in self._help.items()
            if (owner, about) in help.shares
        }
        return join_shares(shares, self.rules.threshold)


def _is_second(roster: Sequence[str], silo: str, peer: str) -> bool:
    """Of two silos, the second one in the roster takes the shared mask away, and the first one adds it."""
    return roster.index(silo) > roster.index(peer)


def _share_of(bundle: bytes, roster: Sequence[str], about: str) -> bytes:
    start = SHARE_BYTES * roster.index(about)
    return bundle[start : start + SHARE_BYTES]
