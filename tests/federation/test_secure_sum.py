"""The secure sum: what it opens, what it refuses, and what the server's view of a masked vector looks like."""

import itertools

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wholegrain.errors import RefusalError, RunError, SpecError
from wholegrain.federation import masks, shamir
from wholegrain.federation.secure_sum import Member, OpenRequest, SessionKeys
from wholegrain.federation.sum_opening import SumOpening
from wholegrain.privacy.trust import SecureSum

NAMES = tuple("abcdef")


class Session:
    """All members of a session, with long-term keys of their own."""

    def __init__(self, rules: SecureSum, roster=NAMES, present=None) -> None:
        self.rules, self.roster, self.present = rules, roster, present or roster
        self.identities = {name: Ed25519PrivateKey.generate() for name in roster}
        self.members = {name: Member(name, "session-1", rules, roster) for name in self.present}
        keys = [member.keys(self.identities[name].sign) for name, member in self.members.items()]
        for member in self.members.values():
            member.accept(keys, self.verify)

    def verify(self, silo: str, text: bytes, signature: bytes) -> bool:
        try:
            self.identities[silo].public_key().verify(signature, text)
        except InvalidSignature:
            return False
        return True

    def opening(self, round: int, size: int) -> SumOpening:
        return SumOpening(self.rules, self.roster, frozenset(self.present), round, size)

    def sum(self, round: int, vectors, *, masked, helping=None) -> np.ndarray:
        """Open the sum of those who masked, with the help of those who are still there."""
        opening = self.opening(round, len(next(iter(vectors.values()))))
        parts = {name: self.members[name].mask(round, vectors[name]) for name in self.present}
        for name in masked:
            opening.add(parts[name])
        for name in helping or masked:
            opening.add_help(self.members[name].help_open(opening.request_for(name)))
        return opening.open(64)


def rules(silos=6, answers=5, colluding=1) -> SecureSum:
    return SecureSum(silos=silos, answers=answers, colluding=colluding)


def vectors(size=5, names=NAMES, seed=0):
    draws = np.random.default_rng(seed)
    return {name: draws.integers(-(2**40), 2**40, size) for name in names}


def test_the_sum_is_right_to_the_bit_whoever_drops_out():
    session, given_ = Session(rules(answers=5)), vectors()
    for round, lost in enumerate([None, *NAMES]):
        there = [name for name in NAMES if name != lost]
        assert (session.sum(round, given_, masked=there) == sum(given_[name] for name in there)).all()


def test_silos_that_die_between_masking_and_opening_stay_in_the_sum():
    session, given_ = Session(rules()), vectors()
    total = session.sum(0, given_, masked=NAMES[1:], helping=NAMES[2:])
    assert (total == sum(given_[name] for name in NAMES[1:])).all()


def test_a_silo_that_was_absent_from_the_beginning_takes_no_part():
    session, given_ = Session(rules(), present=NAMES[:5]), vectors()
    assert (session.sum(3, given_, masked=NAMES[:5]) == sum(given_[name] for name in NAMES[:5])).all()


def test_too_few_answers_or_helpers_open_nothing():
    session, given_ = Session(rules()), vectors()
    opening = session.opening(0, 5)
    for name in NAMES[:4]:
        opening.add(session.members[name].mask(0, given_[name]))
    assert not opening.can_open
    with pytest.raises(RefusalError, match="fewer than 5"):
        session.members["a"].help_open(opening.request_for("a"))
    with pytest.raises(RunError, match="it takes 5 and 4"):
        opening.open(64)
    session = Session(rules())
    with pytest.raises(RunError, match="3 helped"):
        session.sum(0, given_, masked=NAMES, helping=NAMES[:3])


def test_a_round_is_masked_once_and_opened_once():
    session, given_ = Session(rules()), vectors()
    session.sum(4, given_, masked=NAMES)
    for round in (4, 3):
        with pytest.raises(RefusalError, match="answered before"):
            session.members["a"].mask(round, given_["a"])
    with pytest.raises(RefusalError, match="opened before"):
        session.members["a"].help_open(OpenRequest(4, NAMES, {}))


def test_two_lists_of_survivors_cannot_both_be_opened():
    """A server that tells half of the silos another list than the other half opens neither."""
    session, given_ = Session(rules(answers=5)), vectors()
    parts = {name: session.members[name].mask(0, given_[name]) for name in NAMES}
    openings = {"a": session.opening(0, 5), "f": session.opening(0, 5)}
    for left_out, opening in openings.items():
        for name in NAMES:
            if name != left_out:
                opening.add(parts[name])
    asked = {"f": "bcd", "a": "ef"}  # the list without f is shown to b, c, d; the one without a to e and f
    for left_out, names in asked.items():
        for name in names:
            if name != left_out:
                openings[left_out].add_help(session.members[name].help_open(openings[left_out].request_for(name)))
    colluder = session.members["b"]  # has helped once; a second list is refused by an honest silo
    with pytest.raises(RefusalError, match="opened before"):
        colluder.help_open(openings["a"].request_for("b"))
    for opening in openings.values():
        with pytest.raises(RunError, match="it takes"):
            opening.open(64)


def test_a_key_that_is_not_a_silos_own_is_refused():
    session = Session(rules())
    fresh = {name: Member(name, "session-2", rules(), NAMES) for name in NAMES}
    keys = [member.keys(session.identities[name].sign) for name, member in fresh.items()]
    between = SessionKeys("b", "session-2", bytes(32), bytes(32), session.identities["c"].sign(b"anything"))
    with pytest.raises(RefusalError, match="'b' are not signed"):
        fresh["a"].accept([between if each.silo == "b" else each for each in keys], session.verify)
    with pytest.raises(RefusalError, match="not signed by it for this session"):
        Member("a", "session-3", rules(), NAMES).accept(keys, session.verify)
    with pytest.raises(RefusalError, match="another key under our name"):
        Member("a", "session-2", rules(), NAMES).accept(keys, session.verify)
    with pytest.raises(RefusalError, match="fewer than the 5"):
        fresh["a"].accept(keys[:4], session.verify)
    with pytest.raises(RefusalError, match="different silos"):
        fresh["a"].accept([*keys, keys[0]], session.verify)
    fresh["a"].accept(keys, session.verify)
    with pytest.raises(RefusalError, match="already"):
        fresh["a"].accept(keys, session.verify)


def test_survivors_must_be_those_of_the_session():
    session, given_ = Session(rules()), vectors()
    session.members["a"].mask(0, given_["a"])
    for survivors in [("b", "c", "d", "e", "f"), (*NAMES, "g"), ("a",) * 6]:
        with pytest.raises(RefusalError, match="survivors"):
            session.members["a"].help_open(OpenRequest(0, survivors, {}))
    with pytest.raises(RefusalError, match="missing or damaged"):
        session.members["a"].help_open(OpenRequest(0, NAMES, {}))


def test_what_opening_shows_leaves_every_vector_a_mask_that_nobody_knows():
    """All that is opened, tried in every combination of signs, leaves no silo's vector bare."""
    session, given_ = Session(rules(answers=5)), vectors(size=64)
    opening = session.opening(0, 64)
    parts = {name: session.members[name].mask(0, given_[name]) for name in NAMES}
    for name in NAMES[:5]:
        opening.add(parts[name])
    for name in NAMES[:5]:
        opening.add_help(session.members[name].help_open(opening.request_for(name)))
    opening.open(64)
    seeds = {(owner, about): opening._seed(owner, about) for owner in NAMES[:5] for about in (owner, "f")}
    for name in NAMES:
        known = [seed for (owner, about), seed in seeds.items() if name in (owner, about)]
        for signs in itertools.product((0, 1, -1), repeat=min(len(known), 6)):
            words = parts[name].words.copy()
            for seed, sign in zip(known, signs, strict=False):
                if sign:
                    masks.add_mask(words, seed, negative=sign < 0)
            assert not np.isin(words.view(np.int64), given_[name]).any()


def test_a_masked_vector_looks_uniform():
    session = Session(rules())
    part = session.members["a"].mask(0, np.zeros(50_000, np.int64))
    for shift in (0, 32, 56):
        digits = (part.words >> np.uint64(shift)) & np.uint64(255)
        assert stats.chisquare(np.bincount(digits.astype(int), minlength=256)).pvalue > 1e-6
    other = session.members["a"].mask(1, np.zeros(50_000, np.int64))
    assert abs(np.corrcoef(part.words.astype(float), other.words.astype(float))[0, 1]) < 0.03


@given(st.binary(min_size=32, max_size=32), st.integers(1, 8), st.integers(0, 4), st.randoms())
@settings(max_examples=40)
def test_any_threshold_of_shares_gives_the_secret_and_one_fewer_is_refused(secret, threshold, more, random):
    shares = dict(enumerate(shamir.split_secret(secret, threshold, threshold + more), 1))
    chosen = dict(random.sample(sorted(shares.items()), threshold))
    assert shamir.join_shares(chosen, threshold) == secret
    chosen.popitem()
    with pytest.raises(RunError, match="shares"):
        shamir.join_shares(chosen, threshold)


def test_fewer_shares_say_nothing():
    """With one share too few, every secret is as likely: the share of one holder is uniform whatever the secret."""
    tops = [shamir.split_secret(bytes(32), 2, 2)[0][1] for _ in range(2000)]
    assert stats.chisquare(np.bincount(tops, minlength=256)).pvalue > 1e-6


@pytest.mark.parametrize("bits", [24, 40, 64])
def test_words_survive_the_wire(bits):
    numbers = np.random.default_rng(0).integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 1000)
    words = masks.unpack(masks.pack(masks.to_words(numbers), bits), bits)
    assert (masks.to_numbers(words, bits) == numbers).all()


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ({"silos": 1}, "2 to 256"),
        ({"silos": 12, "answers": 6}, "must lie between 7"),
        ({"silos": 12, "answers": 13}, "must lie between 7"),
        ({"silos": 12, "answers": 8, "colluding": 3}, "at least half"),
        ({"silos": 12, "colluding": -1}, "negative"),
    ],
)
def test_sums_that_would_not_protect_are_refused(numbers, why):
    with pytest.raises(SpecError, match=why):
        SecureSum.over(**numbers)


@pytest.mark.parametrize("silos", range(2, 40))
def test_every_federation_has_a_sum_by_default(silos):
    rules = SecureSum.over(silos)
    assert rules.colluding < rules.threshold <= rules.answers
    assert 2 * rules.threshold > silos + rules.colluding
