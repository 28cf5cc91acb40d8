"""What was spent, by which theorem: of a run, of an account, of a data set, for every unit."""

import pytest

from accounts import ACCOUNT, DELTA, open_guard
from wholegrain.privacy.accountants import PldAccountant, RdpAccountant
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.events import gaussian, repeat, sampled_gaussian
from wholegrain.privacy.filters import GAUSSIAN, RENYI, Filter
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Account, BudgetOpened, RunOpened, TermsRecord
from wholegrain.privacy.ledger_state import RunAccount
from wholegrain.privacy.pricing import Exposure, Price, Terms
from wholegrain.privacy.statement import account_price, data_price, run_price

PRICING = PldAccountant(grid=1e-2)
STEP, OTHER = sampled_gaussian(0.3, 4.0), sampled_gaussian(0.5, 6.0)
OWN = Terms(dict.fromkeys(Unit, Exposure(1, {"north": STEP})), None)
TWO = Terms(dict.fromkeys(Unit, Exposure(2, {"north": STEP, "south": OTHER})), None)


def played(terms: Terms, reserved: dict[str, int], replayed: int = 0) -> RunAccount:
    """A run as the ledger has it; of its opening only the terms are asked here."""
    opening = RunOpened(run="", account=ACCOUNT, spec="", policy="", noise="", terms=TermsRecord.of(terms))
    return RunAccount(opening, reserved, {}, replayed)


def budget(runs: str, epsilon: float | None = 4.0) -> BudgetOpened:
    return BudgetOpened(account=ACCOUNT, unit=Unit.SUBJECT, epsilon=epsilon, delta=DELTA, runs=runs)  # type: ignore[arg-type]


def test_a_run_is_composed_and_so_is_one_that_stopped_early() -> None:
    for steps in (1, 7, 40):
        found = run_price(played(OWN, {"north": steps}), Unit.SUBJECT, PRICING, DELTA)
        assert found == Price(PRICING.epsilon(repeat(STEP, steps), DELTA), "pld")


@pytest.mark.parametrize(("terms", "way"), [(OWN, "pld"), (TWO, RENYI)])
def test_what_was_played_again_is_composed_if_it_could_only_be_more_of_the_same(terms: Terms, way: str) -> None:
    steps = dict.fromkeys(terms.of(Unit.SUBJECT).steps, 5)
    assert run_price(played(terms, steps, 3), Unit.SUBJECT, PRICING, DELTA).way == way
    assert run_price(played(terms, steps, 0), Unit.SUBJECT, PRICING, DELTA).way == "pld"


def test_an_account_for_one_run_costs_what_the_run_does_and_one_for_several_is_filtered_from_the_first() -> None:
    run = played(TWO, {"north": 5, "south": 5})
    alone, several = (account_price(budget(runs), [run], PRICING) for runs in ("one", "several"))
    assert alone == run_price(run, Unit.SUBJECT, PRICING, DELTA)
    event = TWO.of(Unit.SUBJECT).event(run.reserved)
    assert several == Price(Filter(PRICING, 4.0).epsilon(event, DELTA), RENYI)
    assert several.epsilon > alone.epsilon


def test_an_account_from_which_nothing_was_spent_costs_nothing() -> None:
    for runs in ("one", "several"):
        assert account_price(budget(runs), [], PRICING).epsilon == 0
        assert account_price(budget(runs), [played(OWN, {})], PRICING).epsilon == 0


@pytest.mark.parametrize("accountant", [PRICING, RdpAccountant()])
def test_gaussian_runs_add_up_in_squares(accountant: PldAccountant | RdpAccountant) -> None:
    terms = Terms(dict.fromkeys(Unit, Exposure(1, {"north": gaussian(8.0)})), None)
    runs = [played(terms, {"north": 3}), played(terms, {"north": 5})]
    found = account_price(budget("several"), runs, accountant)
    assert found == Price(accountant.epsilon(gaussian(8.0 / 8**0.5), DELTA / 3), GAUSSIAN)


def test_an_item_that_may_be_priced_through_its_subject_has_half_of_delta_for_each_way() -> None:
    """Which of the two is the better one is only known at the end, and so not before it was chosen."""
    exposures = {Unit.ITEM: Exposure(1, {"north": gaussian(2.0)}), Unit.SUBJECT: Exposure(1, {"north": STEP})}
    terms = Terms(exposures, Exposure(1, {"north": STEP}))
    run = played(terms, {"north": 4})
    direct = Filter(PRICING, 4.0).epsilon(repeat(gaussian(2.0), 4), DELTA / 2)
    found = account_price(budget("several"), [run], PRICING, Unit.ITEM)
    assert found.epsilon <= direct
    assert found.way == (GAUSSIAN if found.epsilon == direct else RENYI)
    without = account_price(budget("several"), [played(Terms(exposures), {"north": 4})], PRICING, Unit.ITEM)
    assert without.epsilon < direct


def test_a_data_set_pays_for_all_its_budgets() -> None:
    with Ledger.in_memory() as ledger:
        for name in ("main", "trial", "last"):
            account = Account(data="clinics", budget=name)
            guard = open_guard(100.0, ledger, run=name, account=account, accountant=PRICING)
            guard.reserve(0, {"north": 2}, "a")
        other = open_guard(100.0, ledger, run="x", account=Account(data="schools"), accountant=PRICING)
        other.reserve(0, {"north": 9}, "a")
        whole = data_price(ledger.state, "clinics", Unit.SUBJECT, PRICING, DELTA)
        assert whole == Price(PRICING.epsilon(gaussian(1 / 6**0.5), DELTA / 3), GAUSSIAN)
        assert data_price(ledger.state, "nobody's", Unit.SUBJECT, PRICING, DELTA).epsilon == 0
