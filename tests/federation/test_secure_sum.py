"""The secure sum: what it opens, what it refuses, and what the server's view of a masked vector looks like."""

import itertools
from dataclasses import replace

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
        self.members = {name: Member(name, "terms", rules, roster) for name in self.present}
        self.keys = [member.keys(self.identities[name].sign) for name, member in self.members.items()]
        for member in self.members.values():
            member.accept(self.keys, self.verify)

    def verify(self, silo: str, text: bytes, signature: bytes) -> bool:
        try:
            self.identities[silo].public_key().verify(signature, text)
        except InvalidSignature:
            return False
        return True

    def opening(self, round: int, size: int) -> SumOpening:
        return SumOpening(self.rules, self.roster, frozenset(self.present), round, size)

    def consent(self, name: str, opening: SumOpening) -> None:
        signed = self.members[name].sign_survivors(opening.round, opening.survivors, self.identities[name].sign)
        opening.add_consent(signed)

    def help(self, name: str, opening: SumOpening) -> None:
        opening.add_help(self.members[name].help_open(opening.request_for(name), self.verify))

    def sum(self, round: int, vectors, *, masked, helping=None) -> np.ndarray:
        """Open the sum of those who masked, with the help of those who are still there."""
        opening = self.opening(round, len(next(iter(vectors.values()))))
        parts = {name: self.members[name].mask(round, vectors[name]) for name in self.present}
        for name in masked:
            opening.add(parts[name])
        for name in helping or masked:
            self.consent(name, opening)
        for name in helping or masked:
            self.help(name, opening)
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
        session.consent("a", opening)
    with pytest.raises(RefusalError, match="fewer than 5"):
        session.help("a", opening)
    with pytest.raises(RunError, match="it takes 5 and 4"):
        opening.open(64)
    session = Session(rules())
    with pytest.raises(RefusalError, match="3 silos have signed this list"):
        session.sum(0, given_, masked=NAMES, helping=NAMES[:3])


def test_a_round_is_masked_once_and_opened_once():
    session, given_ = Session(rules()), vectors()
    session.sum(4, given_, masked=NAMES)
    for round in (4, 3):
        with pytest.raises(RefusalError, match="answered before"):
            session.members["a"].mask(round, given_["a"])
    with pytest.raises(RefusalError, match="opened before"):
        session.members["a"].help_open(OpenRequest(4, NAMES, {}, {}), session.verify)


def masked_by_all(session: Session, given_, lists) -> list[SumOpening]:
    """Openings of one round, one for each list of survivors that a server makes up."""
    parts = {name: session.members[name].mask(0, given_[name]) for name in NAMES}
    openings = [session.opening(0, 5) for _ in lists]
    for opening, survivors in zip(openings, lists, strict=True):
        for name in survivors:
            opening.add(parts[name])
    return openings


def test_a_silo_signs_one_list_of_survivors():
    session, given_ = Session(rules(answers=5)), vectors()
    first, second = masked_by_all(session, given_, ["abcde", "bcdef"])
    session.consent("b", first)
    with pytest.raises(RefusalError, match="another list of survivors"):
        session.consent("b", second)
    with pytest.raises(RefusalError, match="another list of survivors"):
        session.help("b", second)


def test_two_lists_of_survivors_cannot_both_be_opened():
    """Whoever signs which list: never have enough silos signed two of them, even if one silo signs both."""
    session, given_ = Session(rules(answers=5)), vectors()
    openings = masked_by_all(session, given_, ["abcde", "bcdef"])
    colluder, honest = "b", "acdef"
    for opening in openings:
        member = Session(rules(), present=NAMES).members[colluder]
        member.__dict__ |= {k: v for k, v in session.members[colluder].__dict__.items() if k != "_signed"}
        opening.add_consent(member.sign_survivors(0, opening.survivors, session.identities[colluder].sign))
    for split in itertools.product((0, 1), repeat=len(honest)):
        signed = [1, 1]
        for name, choice in zip(honest, split, strict=True):
            signed[choice] += name in openings[choice].survivors
        assert sum(count >= session.rules.threshold for count in signed) <= 1


def test_three_lists_that_overlap_open_nothing():
    """Of {all but a, b}, {all but b, c} and {all but a, c}, shares for each would take all three out of the sum."""
    twelve = tuple("abcdefghijkl")
    session = Session(SecureSum.over(12), roster=twelve)
    given_ = vectors(names=twelve)
    parts = {name: session.members[name].mask(0, given_[name]) for name in twelve}
    lists = {"ab": "cghi", "bc": "adjk", "ac": "befl"}  # who is told that these two dropped out
    for lost, told in lists.items():
        opening = session.opening(0, 5)
        for name in twelve:
            if name not in lost:
                opening.add(parts[name])
        for name in told:
            if name not in lost:
                session.consent(name, opening)
        assert not opening.is_agreed
        for name in told:
            if name not in lost:
                with pytest.raises(RefusalError, match="have signed this list of survivors, and it takes 7"):
                    session.help(name, opening)


def test_signatures_of_another_round_session_or_silo_do_not_count():
    session, other, given_ = Session(rules()), Session(rules()), vectors()
    other.identities = session.identities
    session.sum(0, given_, masked=NAMES)
    (opening,) = masked_by_all(other, given_, [NAMES])
    for name in NAMES:
        other.consent(name, opening)
    foreign = dict(opening.request_for("a").consents)
    again = session.opening(1, 5)
    for name in NAMES:
        again.add(session.members[name].mask(1, given_[name]))
    request = again.request_for("a")
    swapped = {name: foreign[NAMES[number - 1]] for number, name in enumerate(NAMES)}
    for consents in (foreign, swapped, {}):
        with pytest.raises(RefusalError, match="0 silos have signed"):
            session.members["a"].help_open(OpenRequest(1, NAMES, consents, request.shares), session.verify)


def test_a_key_that_is_not_a_silos_own_is_refused():
    session = Session(rules())

    def fresh(name: str) -> Member:
        return Member(name, "other terms", rules(), NAMES)

    made = {name: fresh(name) for name in NAMES}
    keys = [member.keys(session.identities[name].sign) for name, member in made.items()]
    between = SessionKeys("b", "other terms", "", bytes(32), bytes(32), session.identities["c"].sign(b"anything"))
    with pytest.raises(RefusalError, match="'b' are not signed"):
        made["a"].accept([between if each.silo == "b" else each for each in keys], session.verify)
    with pytest.raises(RefusalError, match="not signed by it for a sum on these terms"):
        Member("a", "terms", rules(), NAMES).accept(keys, session.verify)
    with pytest.raises(RefusalError, match="another key under our name"):
        fresh("a").accept(keys, session.verify)
    with pytest.raises(RefusalError, match="fewer than the 5"):
        made["a"].accept(keys[:4], session.verify)
    with pytest.raises(RefusalError, match="different silos"):
        made["a"].accept([*keys, keys[0]], session.verify)
    made["a"].accept(keys, session.verify)
    made["a"].accept(keys[::-1], session.verify)
    with pytest.raises(RefusalError, match="already"):
        made["a"].accept(keys[:5], session.verify)


@pytest.mark.parametrize("which", ["masks", "shares"])
def test_a_key_of_small_order_is_refused_before_anything_is_masked(which):
    """With such a point every silo would share the same secret, which is no secret."""
    session, made = Session(rules()), {name: Member(name, "terms", rules(), NAMES) for name in NAMES}
    keys = {name: member.keys(session.identities[name].sign) for name, member in made.items()}
    bad = replace(keys["b"], **{which: bytes(32)})
    keys["b"] = replace(bad, signature=session.identities["b"].sign(bad.text))
    with pytest.raises(RefusalError, match="'b' are no keys"):
        made["a"].accept(list(keys.values()), session.verify)
    with pytest.raises(RefusalError, match="have not been exchanged"):
        made["a"].mask(0, vectors()["a"])


def test_silos_that_were_shown_different_keys_share_no_mask():
    """A server that keeps one silo's keys from another, or shows old ones, opens nothing."""
    session = Session(rules())
    old = {each.silo: each for each in session.keys}
    made = {name: Member(name, "terms", rules(), NAMES) for name in NAMES}
    keys = {name: member.keys(session.identities[name].sign) for name, member in made.items()}
    for name, member in made.items():
        shown = {**keys, "f": old["f"]} if name in "ab" else keys
        member.accept(list(shown.values()), session.verify)
    session.members, given_ = made, vectors()
    opening = session.opening(0, 5)
    for name in NAMES:
        opening.add(made[name].mask(0, given_[name]))
    for name in NAMES:
        session.consent(name, opening)
    for name in "ab":
        with pytest.raises(RefusalError, match="2 silos have signed"):
            session.help(name, opening)
    with pytest.raises(RefusalError, match="missing or damaged"):
        session.help("c", opening)


def test_survivors_must_be_those_of_the_session():
    session, given_ = Session(rules()), vectors()
    session.members["a"].mask(0, given_["a"])
    for survivors in [("b", "c", "d", "e", "f"), (*NAMES, "g"), ("a",) * 6, NAMES[::-1]]:
        with pytest.raises(RefusalError, match="survivors"):
            session.members["a"].sign_survivors(0, survivors, session.identities["a"].sign)
        with pytest.raises(RefusalError, match="survivors"):
            session.members["a"].help_open(OpenRequest(0, survivors, {}, {}), session.verify)


def test_shares_that_are_missing_are_refused_and_can_be_sent_again():
    session, given_ = Session(rules()), vectors()
    (opening,) = masked_by_all(session, given_, [NAMES])
    for name in NAMES:
        session.consent(name, opening)
    whole = opening.request_for("a")
    with pytest.raises(RefusalError, match="missing or damaged"):
        session.members["a"].help_open(OpenRequest(0, NAMES, whole.consents, {}), session.verify)
    session.help("a", opening)


def test_what_opening_shows_leaves_every_vector_a_mask_that_nobody_knows():
    """All that is opened, tried in every combination of signs, leaves no silo's vector bare."""
    session, given_ = Session(rules(answers=5)), vectors(size=64)
    opening = session.opening(0, 64)
    parts = {name: session.members[name].mask(0, given_[name]) for name in NAMES}
    for name in NAMES[:5]:
        opening.add(parts[name])
    for name in NAMES[:5]:
        session.consent(name, opening)
    for name in NAMES[:5]:
        session.help(name, opening)
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


@given(
    st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=5),
    st.integers(1, 8),
    st.integers(0, 300),
    st.randoms(),
)
@settings(max_examples=40)
def test_any_threshold_of_shares_gives_the_secret_and_one_fewer_is_refused(secrets, threshold, more, random):
    for secret, shares in zip(secrets, shamir.split_secrets(secrets, threshold, threshold + more), strict=True):
        chosen = dict(random.sample(sorted(enumerate(shares, 1)), threshold))
        assert shamir.join_shares(chosen, threshold) == secret
        chosen.popitem()
        with pytest.raises(RunError, match="shares"):
            shamir.join_shares(chosen, threshold)


@pytest.mark.parametrize(("threshold", "holders"), [(1, 1), (2, 127), (41, 80), (30, 255), (30, 256), (200, 300)])
def test_shares_are_values_of_the_polynomials_however_large_their_coefficients(monkeypatch, threshold, holders):
    """The longest values there are, side by side with the shortest: no place runs over into the next."""
    drawn = iter([shamir.PRIME - 1, 0, shamir.PRIME - 1] * (threshold - 1))
    monkeypatch.setattr(shamir.secrets, "randbelow", lambda below: next(drawn))
    owned = [bytes([255] * 32), bytes(32), bytes([255] * 32)]
    shares = shamir.split_secrets(owned, threshold, holders)
    largest = [int.from_bytes(owned[0]), *[shamir.PRIME - 1] * (threshold - 1)]
    for x in range(1, holders + 1):
        value = sum(coefficient * x**power for power, coefficient in enumerate(largest)) % shamir.PRIME
        assert [int.from_bytes(each[x - 1]) for each in shares] == [value, 0, value]


def test_fewer_shares_say_nothing():
    """With one share too few, every secret is as likely: the share of one holder is uniform whatever the secret."""
    tops = [shares[0][1] for shares in shamir.split_secrets([bytes(32)] * 2000, 2, 2)]
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
