"""A sum over silos that hides every part of it, after Bonawitz et al. (2017), for few and reliable silos.

A *session* begins with keys: each silo makes two fresh X25519 key pairs and signs the public halves with its long-term
key, which every other silo knows beforehand. A server can therefore not put a key of its own between two silos. With
its keys a silo signs the *terms* of the sum: what is added up, with how much noise, opened by how many. They must be
the same for all. Every mask and every share is derived from a hash of all keys and terms of the session, so that silos
which were shown different keys share no mask.

A *round* takes three messages of each silo:

1. The silo adds masks to its vector: one for each other silo of the session, which that silo takes away again, and one
   of its own. It splits the seeds of all of these masks into shares (`shamir`), and encrypts one for each other silo.
2. The server names the survivors, those whose vectors it has. A silo signs one list of survivors in a round.
3. The server shows that enough silos have signed one list. Each survivor then gives its shares of the survivors' own
   masks and of the masks between survivors and silos that dropped out. The server takes these masks away from the sum.

Guarantee: as long as at most `colluding` silos work with the server, nobody learns more of the vectors of a round than
one sum over at least `answers` silos. More than half of all silos, counting colluders twice, must sign a list, so that
no two lists are signed by enough. Of that one list, each survivor's own mask is opened and each other silo's stays
closed: a vector that is not in the sum keeps its own mask, one that is in the sum keeps the masks it shares with other
honest survivors. This rests on X25519, HKDF-SHA256, AES-256 and the silos' signatures. It is a guarantee of secrecy: a
silo or a server that lies can spoil a sum.

Without the second message there is an attack: a server that names survivors {all but a, b} to some silos, {all but b,
c} to others and {all but a, c} to the rest gets enough shares to take all three out of the sum, where two would be the
most.

Never to be added here: a second answer to the same round, or a log of seeds or shares.
"""

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from wholegrain.errors import RefusalError
from wholegrain.federation.masks import Words, add_mask, derive_key, pair_secret, to_words
from wholegrain.federation.shamir import SHARE_BYTES, split_secrets
from wholegrain.privacy.trust import SecureSum

RULE = "secure_sum"
"""What a refusal names as its rule."""

NONCE = bytes(12)
"""Each key encrypts one message: it is derived for one session, one round, one sender and one receiver."""

Sign = Callable[[bytes], bytes]
"""A silo's signature of a text, with its long-term key."""

Verify = Callable[[str, bytes, bytes], bool]
"""Whether a silo has signed a text: its name, the text, the signature."""


@dataclass(frozen=True)
class SessionKeys:
    """A silo's public keys for one session, signed with its long-term key.

    `terms` are those of the sum, in which all silos must agree; `statement` is what the silo says of itself.
    """

    silo: str
    terms: str
    statement: str
    masks: bytes
    shares: bytes
    signature: bytes = b""

    @property
    def text(self) -> bytes:
        """What is signed."""
        return _said("keys", self.silo, self.terms, self.statement, self.masks.hex(), self.shares.hex())


@dataclass(frozen=True, eq=False)
class MaskedPart:
    """A silo's masked vector, and for each other silo an encrypted share of the seeds of its masks."""

    silo: str
    round: int
    words: Words
    shares: Mapping[str, bytes]


@dataclass(frozen=True)
class Consent:
    """A silo's signature under one list of survivors of one round."""

    silo: str
    signature: bytes


@dataclass(frozen=True)
class OpenRequest:
    """Which silos survived, who has signed that, and the shares that they have encrypted for the silo that is asked."""

    round: int
    survivors: tuple[str, ...]
    consents: Mapping[str, bytes]
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
    terms: str
    rules: SecureSum
    roster: tuple[str, ...]
    """All silos of the federation, in the order in which they hold shares."""
    statement: str = ""
    _mask_key: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    _share_key: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    _session: str = ""
    """The hash of all keys and terms, once they are known."""
    _peers: dict[str, SessionKeys] = field(default_factory=dict, repr=False)
    _secrets: dict[str, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    """What this silo shares with each other one and nobody else knows: for masks, and for encrypting shares."""
    _held: dict[int, bytes] = field(default_factory=dict, repr=False)
    """Of the round that was masked and not yet opened, the silo's share of its own seeds."""
    _signed: dict[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
    """Of that round, the list of survivors that was signed."""
    _last: int = -1
    """The last round that was masked; rounds only go up."""

    def keys(self, sign: Sign) -> SessionKeys:
        """The public keys of this session."""
        publics = [key.public_key().public_bytes_raw() for key in (self._mask_key, self._share_key)]
        unsigned = SessionKeys(self.silo, self.terms, self.statement, *publics)
        return replace(unsigned, signature=sign(unsigned.text))

    def accept(self, keys: Sequence[SessionKeys], verify: Verify) -> None:
        """Take the keys of the session's silos; what is not signed by a silo of the roster on our terms is refused.

        The same keys may come again, as they do with every round; other ones need another session.
        """
        session = _session_of(keys)
        if self._peers and session != self._session:
            raise RefusalError(RULE, "the keys of this session have been exchanged already")
        if self._peers:
            return
        names = [each.silo for each in keys]
        if len(set(names)) < len(names) or self.silo not in names or not set(names) <= set(self.roster):
            raise RefusalError(RULE, "the session's keys are not those of different silos of the roster, ours included")
        if len(names) < self.rules.answers:
            raise RefusalError(RULE, f"{len(names)} silos are fewer than the {self.rules.answers} that open a sum")
        for each in keys:
            if each.terms != self.terms or not verify(each.silo, each.text, each.signature):
                raise RefusalError(RULE, f"the keys of '{each.silo}' are not signed by it for a sum on these terms")
        own = next(each for each in keys if each.silo == self.silo)
        if own.text != self.keys(lambda _: b"").text:
            raise RefusalError(RULE, "the session's keys hold another key under our name")
        self._secrets = {each.silo: self._shared_with(each) for each in keys if each.silo != self.silo}
        self._peers, self._session = {each.silo: each for each in keys}, session

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
        self._signed.clear()
        words, own = to_words(numbers), secrets.token_bytes(32)
        seeds = {self.silo: own}
        add_mask(words, own)
        for peer in self._others:
            seeds[peer] = self._pair_seed(round, peer)
            add_mask(words, seeds[peer], negative=is_second(self.roster, self.silo, peer))
        return MaskedPart(self.silo, round, words, self._share(round, seeds))

    def sign_survivors(self, round: int, survivors: tuple[str, ...], sign: Sign) -> Consent:
        """Agree to one list of survivors; another one of the same round is refused."""
        self._require_survivors(round, survivors)
        self._signed[round] = survivors
        return Consent(self.silo, sign(self._consent(round, survivors)))

    def help_open(self, request: OpenRequest, verify: Verify) -> OpenHelp:
        """The shares that open the sum of these survivors, once, and only if enough silos have signed their list."""
        self._require_survivors(request.round, request.survivors)
        text = self._consent(request.round, request.survivors)
        signed = [name for name in self._peers if verify(name, text, request.consents.get(name, b""))]
        if len(signed) < self.rules.threshold:
            raise RefusalError(
                RULE, f"{len(signed)} silos have signed this list of survivors, and it takes {self.rules.threshold}"
            )
        held = {owner: self._decrypt(request, owner) for owner in request.survivors if owner != self.silo}
        held[self.silo] = self._held.pop(request.round)
        lost = [name for name in self._peers if name not in request.survivors]
        return OpenHelp(
            self.silo,
            {(owner, about): _share_of(held[owner], self.roster, about) for owner in held for about in [owner, *lost]},
        )

    def _require_survivors(self, round: int, survivors: tuple[str, ...]) -> None:
        if round not in self._held:
            raise RefusalError(RULE, f"round {round} was not masked here, or was opened before")
        if self._signed.get(round, survivors) != survivors:
            raise RefusalError(RULE, f"another list of survivors of round {round} was signed before")
        if survivors != tuple(name for name in self.roster if name in self._peers and name in survivors):
            raise RefusalError(RULE, "the survivors are not silos of this session, in the order of the roster")
        if self.silo not in survivors:
            raise RefusalError(RULE, "our own vector is not among those of the survivors")
        if len(survivors) < self.rules.answers:
            raise RefusalError(RULE, f"{len(survivors)} survivors are fewer than {self.rules.answers}")

    def _consent(self, round: int, survivors: Sequence[str]) -> bytes:
        return _said("survivors", self._session, str(round), *survivors)

    @property
    def _others(self) -> list[str]:
        return [name for name in self.roster if name in self._peers and name != self.silo]

    def _shared_with(self, peer: SessionKeys) -> tuple[bytes, bytes]:
        try:
            return pair_secret(self._mask_key, peer.masks), pair_secret(self._share_key, peer.shares)
        except ValueError as error:  # a point of small order, with which everybody would share the same
            raise RefusalError(RULE, f"the keys of '{peer.silo}' are no keys") from error

    def _pair_seed(self, round: int, peer: str) -> bytes:
        pair = sorted((self.silo, peer))
        return derive_key(self._secrets[peer][0], "mask", self._session, round, *pair)

    def _share(self, round: int, seeds: Mapping[str, bytes]) -> dict[str, bytes]:
        """Shares of all seeds, one encrypted bundle for each other silo; the bundle for this silo is kept."""
        split = split_secrets(list(seeds.values()), self.rules.threshold, len(self.roster))
        shares = dict(zip(seeds, split, strict=True))
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
        return derive_key(self._secrets[peer][1], "shares", self._session, round, sender, receiver)


def _session_of(keys: Sequence[SessionKeys]) -> str:
    """What tells a session from all others: all keys and all terms in it, in whatever order they come."""
    return hashlib.sha256(b"".join(sorted(each.text for each in keys))).hexdigest()


def _said(purpose: str, *parts: str) -> bytes:
    """A text to be signed, none of whose parts can pass for a piece of another."""
    texts = [part.encode() for part in ("wholegrain secure sum", purpose, *parts)]
    return b"".join(len(text).to_bytes(4) + text for text in texts)


def is_second(roster: Sequence[str], silo: str, peer: str) -> bool:
    """Of two silos, the second one in the roster takes the shared mask away, and the first one adds it."""
    return roster.index(silo) > roster.index(peer)


def _share_of(bundle: bytes, roster: Sequence[str], about: str) -> bytes:
    start = SHARE_BYTES * roster.index(about)
    return bundle[start : start + SHARE_BYTES]
