import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from wholegrain.errors import BudgetError
from wholegrain.privacy.accountants import Accountant, PldAccountant, RdpAccountant
from wholegrain.privacy.calibration import LEAST_NOISE, MOST_ROUNDS, calibrate_noise, most_rounds
from wholegrain.privacy.definitions import Budget
from wholegrain.privacy.events import compose, gaussian, group_by_poisson, presence, repeat, sampled_gaussian

few = examples(8)
budgets = st.builds(Budget, st.floats(0.3, 4.0), st.sampled_from([1e-4, 1e-5, 1e-7]))


def rounds_within(event_of, budget, accountant):
    return most_rounds(lambda rounds: accountant.epsilon(event_of(rounds), budget.delta), budget)


@dataclass
class Counting:
    """An accountant that counts how often it is asked."""

    inner: Accountant
    asked: list[float] = field(default_factory=list)

    name = property(lambda self: self.inner.name)
    version = property(lambda self: self.inner.version)

    def epsilon(self, event, delta):
        self.asked.append(self.inner.epsilon(event, delta))
        return self.asked[-1]


@st.composite
def runs(draw):
    """Noise in, event out: one silo of one kind, or several different ones."""
    rate, steps = draw(st.floats(0.1, 1.0)), draw(st.integers(1, 200))
    items, silos = draw(st.integers(1, 4)), draw(st.integers(2, 3))
    makers = {
        "gaussian": lambda noise: repeat(gaussian(noise), steps),
        "sampled": lambda noise: repeat(sampled_gaussian(presence(rate, items), noise), steps),
        "mixture": lambda noise: repeat(group_by_poisson(rate, items, noise), steps),
        "silos": lambda noise: compose(repeat(sampled_gaussian(rate / n, noise), steps) for n in range(1, silos + 1)),
    }
    return makers[draw(st.sampled_from(sorted(makers)))]


@few
@given(event_of=runs(), budget=budgets)
def test_calibrated_noise_spends_the_budget_and_no_more(event_of, budget):
    accountant = PldAccountant()
    noise = calibrate_noise(event_of, budget, accountant)
    epsilon = accountant.epsilon(event_of(noise), budget.delta)
    assert epsilon <= budget.epsilon
    assert epsilon >= budget.epsilon * (1 - 1e-3) or noise == LEAST_NOISE


@examples(4)
@given(rate=st.floats(0.05, 1.0), noise=st.floats(2.0, 8.0), steps=st.integers(1, 5), budget=budgets)
def test_most_rounds_fit_and_one_more_does_not(rate, noise, steps, budget):
    accountant = RdpAccountant()

    def epsilon_of(rounds):
        return accountant.epsilon(repeat(sampled_gaussian(rate, noise), rounds * steps), budget.delta)

    if epsilon_of(1) > budget.epsilon:
        with pytest.raises(BudgetError, match="Not even one round fits"):
            rounds_within(lambda n: repeat(sampled_gaussian(rate, noise), n * steps), budget, accountant)
        return
    rounds = rounds_within(lambda n: repeat(sampled_gaussian(rate, noise), n * steps), budget, accountant)
    assert epsilon_of(rounds) <= budget.epsilon < epsilon_of(rounds + 1)


def test_noise_and_rounds_answer_the_same_question():
    budget, rounds = Budget(2.0, 1e-5), 37
    noise = calibrate_noise(lambda s: repeat(sampled_gaussian(0.2, s), 5 * rounds), budget, PldAccountant())
    allowed = rounds_within(lambda n: repeat(sampled_gaussian(0.2, noise), 5 * n), budget, PldAccountant())
    assert allowed == rounds


def test_least_noise_is_returned_where_it_is_enough():
    accountant = PldAccountant(grid=1e-2)
    rarely = sampled_gaussian(1e-6, LEAST_NOISE)  # sampled less often than δ
    assert accountant.epsilon(rarely, 1e-5) == 0.0
    assert calibrate_noise(lambda s: sampled_gaussian(1e-6, s), Budget(0.1, 1e-5), accountant) == LEAST_NOISE


def test_rounds_without_end_are_bounded():
    assert rounds_within(lambda n: sampled_gaussian(0.1, 2.0), Budget(4.0, 1e-5), RdpAccountant()) == MOST_ROUNDS


def test_budget_that_no_noise_meets_is_refused():
    with pytest.raises(BudgetError, match=re.escape("ε = 0.01 at δ = 1e-10")):
        calibrate_noise(lambda s: repeat(gaussian(s), 10**16), Budget(0.01, 1e-10), RdpAccountant())


def test_round_that_no_budget_meets_is_refused_with_its_price():
    priced = PldAccountant().epsilon(gaussian(0.5), 1e-5)
    with pytest.raises(BudgetError, match=f"ε = {priced:.4g} and the budget is 1 "):
        rounds_within(lambda n: repeat(gaussian(0.5), n), Budget(1.0, 1e-5), PldAccountant())


@pytest.mark.slow
def test_sixteen_different_silos_take_few_evaluations():
    rates = [0.1 + 0.005 * number for number in range(16)]
    accountant = Counting(PldAccountant(grid=1e-2))
    budget = Budget(4.0, 1e-5)
    noise = calibrate_noise(
        lambda s: compose(repeat(group_by_poisson(rate, 20, s), 500) for rate in rates), budget, accountant
    )
    assert 1 < noise < 1000
    assert budget.epsilon * (1 - 1e-3) <= accountant.asked[-1] <= budget.epsilon
    assert len(accountant.asked) <= 8
