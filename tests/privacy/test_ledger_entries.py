"""What a ledger holds survives JSON bit for bit, and whatever is not one of its records is refused."""

import json
import math
from itertools import product

import numpy as np
import pytest
from dp_accounting import DpEvent, LaplaceDpEvent, NonPrivateDpEvent, NoOpDpEvent, PoissonSampledDpEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from accounts import DELTA, budget, opening, released, reserved
from effort import examples
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.data.sampling import FixedItems, PoissonItems
from wholegrain.errors import AccountingError
from wholegrain.policies.guarantees import terms as terms_of
from wholegrain.policies.policy import FixedNoise, Policy, PublicDivisor, SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicySettings, find
from wholegrain.privacy import events
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.ledger_entries import ENTRY, Account, Gaussian, Mixture, Opened, TermsRecord, step_record
from wholegrain.privacy.pricing import Exposure, Terms, price

PRICING = PldAccountant(grid=1e-2)
SETTINGS = PolicySettings(rate=0.07, clip_norm=0.3, group_cap=2)
# Sizes and bounds that no two silos share, so that each has a step of its own; one of them does not say K.
SILOS = (
    SiloFacts(name="north", items=700, subjects=130, items_per_subject=3, drops_surplus=False),
    SiloFacts(name="süd 'ouest'\n", items=1100, subjects=90, items_per_subject=7),
    SiloFacts(name="", items=333, subjects=41, items_per_subject=1),
)
UNKNOWN = (SiloFacts(name="east", items=500, subjects=77), *SILOS)


def catalogued(name: str, silos: tuple[SiloFacts, ...], span: int) -> Terms:
    rows = [(find(name).row(SETTINGS, silo), silo) for silo in silos]
    noisy = [(row if row.noise else row.with_noise(math.pi), silo) for row, silo in rows]
    return terms_of(noisy, span)


def built(sampling: object, per: ClipPer, pool: Pool, span: int) -> Terms:
    """A row that is not in the catalogue."""
    policy = Policy(
        name="own", sampling=sampling, clip=Clip(per, pool, 1.0), divisor=PublicDivisor(1.0), noise=FixedNoise(math.e)
    )
    return terms_of([(policy, silo) for silo in SILOS], span)


def again(written: TermsRecord) -> TermsRecord:
    return TermsRecord.model_validate_json(written.model_dump_json())


def same_bits(one: DpEvent, other: DpEvent) -> bool:
    """Equal, and told by the same digits, which equality of −0.0 and 0.0 would not see."""
    return one == other and repr(one) == repr(other)


def assert_survives(stated: Terms) -> None:
    written = TermsRecord.of(stated)
    read = again(written)
    assert read == written
    found = read.terms
    pairs = [(stated.exposures[unit], found.exposures[unit]) for unit in Unit]
    assert (stated.through_subject is None) == (found.through_subject is None)
    if stated.through_subject and found.through_subject:
        pairs.append((stated.through_subject, found.through_subject))
    for before, after in pairs:
        assert before.reach == after.reach
        assert list(before.steps) == list(after.steps)
        assert all(same_bits(before.steps[silo], after.steps[silo]) for silo in before.steps)
        assert (before.worst is None) == (after.worst is None)
        assert before.worst is None or same_bits(before.worst, after.worst)


# Everything that a policy can state.


@pytest.mark.parametrize("span", [1, 2, 3])
@pytest.mark.parametrize("silos", [SILOS, UNKNOWN], ids=["K", "one without K"])
@pytest.mark.parametrize("name", CATALOG)
def test_the_terms_of_every_policy_survive_bit_for_bit(name: str, silos: tuple[SiloFacts, ...], span: int) -> None:
    assert_survives(catalogued(name, silos, span))


@pytest.mark.parametrize("name", CATALOG)
def test_what_was_read_costs_what_was_written(name: str) -> None:
    stated = catalogued(name, SILOS, 2)
    read = again(TermsRecord.of(stated)).terms
    releases = {silo.name: number + 1 for number, silo in enumerate(SILOS)}
    for unit in Unit:
        costs = [price([(terms, releases)], unit, PRICING, DELTA) for terms in (stated, read)]
        assert costs[0] == costs[1]


@pytest.mark.parametrize("span", [1, 3])
@pytest.mark.parametrize(
    ("per", "pool"), [*product([ClipPer.ITEM, ClipPer.SUBJECT], Pool), (ClipPer.BATCH, Pool.MEAN)], ids=str
)
@pytest.mark.parametrize("sampling", [FixedItems(40), PoissonItems(1.0), PoissonItems(1e-9)], ids=str)
def test_rows_outside_the_catalogue_survive_too(sampling: object, per: ClipPer, pool: Pool, span: int) -> None:
    assert_survives(built(sampling, per, pool, span))


@given(noise=st.floats(1e-300, 1e300), rate=st.floats(1e-300, 1.0))
def test_any_gaussian_survives(noise: float, rate: float) -> None:
    event = events.sampled_gaussian(rate, noise)
    record = step_record(event)
    assert same_bits(type(record).model_validate_json(record.model_dump_json()).event(), event)


@given(rate=st.floats(1e-6, 0.999), items=st.integers(2, 60), noise=st.floats(1e-3, 1e3))
def test_any_mixture_survives(rate: float, items: int, noise: float) -> None:
    event = events.group_by_poisson(rate, items, noise)
    record = step_record(event)
    assert same_bits(type(record).model_validate_json(record.model_dump_json()).event(), event)


def test_numbers_of_numpy_are_written_like_any_other() -> None:
    record = step_record(events.sampled_gaussian(np.float64(0.1), np.float64(2.5)))
    assert json.loads(record.model_dump_json()) == {"kind": "gaussian", "noise": 2.5, "rate": 0.1}


@pytest.mark.parametrize("event", [NoOpDpEvent(), NonPrivateDpEvent()])
def test_nothing_and_everything_are_told_apart(event: DpEvent) -> None:
    record = step_record(event)
    assert type(record).model_validate_json(record.model_dump_json()).event() == event


@pytest.mark.parametrize(
    "event",
    [LaplaceDpEvent(1.0), events.repeat(events.gaussian(1.0), 2), PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0))],
    ids=["laplace", "repeated", "sampled laplace"],
)
def test_an_event_that_is_no_step_of_ours_cannot_be_written(event: DpEvent) -> None:
    with pytest.raises(AccountingError, match=f"{type(event).__name__} cannot be written down"):
        step_record(event)


def test_like_silos_share_one_step() -> None:
    """A thousand silos with one row make an entry with one event."""
    alike = dict.fromkeys((f"silo-{n}" for n in range(1000)), events.group_by_poisson(0.1, 50, 2.0))
    written = TermsRecord.of(Terms(dict.fromkeys(Unit, Exposure(1000, alike))))
    assert all(len(exposure.kinds) == 1 for exposure in written.exposures.values())
    assert_survives(Terms(dict.fromkeys(Unit, Exposure(1000, alike))))


# What is not one of ours.


ENTRIES = {
    "ledger": Opened(identity="00ff"),
    "budget": budget(4.0),
    "budget without limit": budget(None),
    "run": opening(terms=catalogued("local_item_dp", SILOS, 2)),
    "run through its subject": opening(terms=catalogued("subject_dp", SILOS, 1)),
    "reserved": reserved(),
    "released": released(reserved()),
}
every_entry = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES.keys())


@every_entry
def test_every_entry_survives(entry) -> None:
    text = entry.model_dump_json()
    read = ENTRY.validate_json(text)
    assert read == entry
    assert type(read) is type(entry)
    assert read.model_dump_json() == text


def places(tree: object, path: tuple = ()) -> list[tuple]:
    """Every value within a JSON tree."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def at(tree: object, path: tuple) -> object:
    for key in path:
        tree = tree[key]
    return tree


def put(tree: object, path: tuple, value: object) -> object:
    """The tree with another value at this place."""
    if not path:
        return value
    changed = json.loads(json.dumps(tree))
    at(changed, path[:-1])[path[-1]] = value
    return changed


def understood(text: str) -> object:
    """The entry that a text is read as, or None where it is refused."""
    try:
        return ENTRY.validate_json(text)
    except ValidationError:
        return None


GARBAGE = [None, True, False, "", "x", "5", "1.5", -1, 0, 2.5, 1e999, -math.inf, math.nan, [], {}, [[]], {"kind": "x"}]


@every_entry
@examples(300)
@given(data=st.data())
def test_a_value_of_another_kind_is_refused(entry, data: st.DataObject) -> None:
    """A value that is still of its kind (a 0 for a 1, a name for a name) is another entry: the chain's to find."""
    tree = json.loads(entry.model_dump_json())
    path = data.draw(st.sampled_from(places(tree)))
    value = data.draw(st.sampled_from(GARBAGE))
    kinds = {type(at(tree, path)), type(value)}
    if len(kinds) == 1 or kinds == {int, float}:
        return
    if at(tree, path) is None or value is None:
        return  # what may be left out is the next test's
    assert understood(json.dumps(put(tree, path, value))) in (None, entry)


@every_entry
def test_what_must_be_there_cannot_be_null(entry) -> None:
    """A budget without ε, and an exposure without its worst step, are entries of their own."""
    tree = json.loads(entry.model_dump_json())
    for path in places(tree):
        if not path or path[-1] not in ("epsilon", "worst", "through_subject"):
            assert understood(json.dumps(put(tree, path, None))) in (None, entry), path


@every_entry
def test_numbers_beyond_all_bounds_are_refused(entry) -> None:
    tree = json.loads(entry.model_dump_json())
    numbers = [path for path in places(tree) if type(at(tree, path)) in (int, float)]
    for path in numbers:
        for value in (math.nan, math.inf, -math.inf, -1, -1e-9):
            assert understood(json.dumps(put(tree, path, value))) is None, (path, value)


@every_entry
def test_an_unknown_key_is_refused_wherever_it_is(entry) -> None:
    tree = json.loads(entry.model_dump_json())
    free = [("terms", "exposures", unit, "silos") for unit in Unit] + [("terms", "through_subject", "silos")]
    for path in places(tree):
        if isinstance(at(tree, path), dict) and path not in free:
            assert understood(json.dumps(put(tree, (*path, "extra"), 1))) is None, path


@every_entry
def test_an_entry_without_its_kind_or_of_an_unknown_one_is_refused(entry) -> None:
    tree = json.loads(entry.model_dump_json())
    for path in places(tree):
        if path and path[-1] == "kind":
            assert understood(json.dumps(put(tree, path, "refund"))) is None
            at(tree, path[:-1]).pop("kind")
            assert understood(json.dumps(tree)) is None
            tree = json.loads(entry.model_dump_json())


@every_entry
@given(data=st.data())
def test_a_text_that_is_cut_short_or_goes_on_is_refused(entry, data: st.DataObject) -> None:
    text = entry.model_dump_json()
    assert understood(text[: data.draw(st.integers(0, len(text) - 1))]) is None
    assert understood(text + data.draw(st.text('{}[],:"0x', min_size=1))) is None


@given(junk=st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_whatever_else_is_refused(junk: str) -> None:
    assert understood(junk) is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Mixture(noise=1.0, moves=(0.0, 1.0), chances=(0.5, 0.4)),
        lambda: Mixture(noise=1.0, moves=(0.0, 1.0), chances=(1.0,)),
        lambda: Mixture(noise=1.0, moves=(), chances=()),
        lambda: Mixture(noise=1.0, moves=(0.0, -1.0), chances=(0.5, 0.5)),
        lambda: Mixture(noise=0.0, moves=(0.0, 1.0), chances=(0.5, 0.5)),
        lambda: Gaussian(noise=0.0),
        lambda: Gaussian(noise=1.0, rate=0.0),
        lambda: Gaussian(noise=1.0, rate=1.5),
    ],
    ids=["mass lost", "unequal", "empty", "negative", "no noise", "no noise alone", "never", "more than always"],
)
def test_what_is_no_law_is_refused(wrong) -> None:
    with pytest.raises(ValidationError):
        wrong()


def test_a_silo_cannot_point_at_a_step_that_is_not_there() -> None:
    tree = json.loads(opening().model_dump_json())
    tree["terms"]["exposures"]["subject"]["silos"]["north"] = 1
    with pytest.raises(ValidationError, match="not among the kinds"):
        ENTRY.validate_json(json.dumps(tree))


def test_a_format_of_another_version_is_refused() -> None:
    assert understood('{"kind":"ledger","format":2,"identity":"00ff"}') is None


def test_records_are_frozen_and_tell_accounts_apart() -> None:
    account = Account(data="clinics")
    with pytest.raises(ValidationError):
        account.data = "other"  # type: ignore[misc]
    assert len({account, Account(data="clinics"), Account(data="clinics", budget="other"), Account(data="main")}) == 3
    assert str(Account(data="clinics", budget="trial")) == "'trial' of the data 'clinics'"
