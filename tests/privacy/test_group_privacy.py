import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.errors import SpecError
from wholegrain.privacy.accountants import RdpAccountant
from wholegrain.privacy.definitions import Budget
from wholegrain.privacy.events import gaussian
from wholegrain.privacy.group_privacy import GroupForm, group_delta, group_epsilon, item_budget

items = st.builds(Budget, st.floats(0.01, 2.0), st.floats(1e-12, 1e-6))
sizes = st.integers(1, 6)
forms = st.sampled_from(GroupForm)


@given(item=items, size=st.integers(2, 6))
def test_the_geometric_form_is_below_the_other(item, size):
    geometric, dwork_roth = (group_delta(item, size, form) for form in GroupForm)
    assert item.delta < geometric < dwork_roth


@given(item=items, size=sizes)
def test_geometric_form_is_the_sum_over_the_group(item, size):
    """Δ = Σ_{i<k} e^{iε}·δ: one δ for each item on the way from one data set to the other."""
    steps = sum(math.exp(i * item.epsilon) * item.delta for i in range(size))
    assert group_delta(item, size, GroupForm.GEOMETRIC) == pytest.approx(steps, rel=1e-9)


@given(item=items, size=sizes)
def test_the_form_of_dwork_and_roth(item, size):
    epsilon, delta = item.epsilon, item.delta
    assert group_delta(item, size, GroupForm.DWORK_ROTH) == pytest.approx(size * math.exp((size - 1) * epsilon) * delta)


@given(item=items, form=forms)
def test_group_of_one_is_the_item(item, form):
    assert group_delta(item, 1, form) == pytest.approx(item.delta)


@given(item=items, size=sizes, form=forms)
def test_item_budget_undoes_group_delta(item, size, form):
    group = Budget(size * item.epsilon, group_delta(item, size, form))
    back = item_budget(group, size, form)
    assert (back.epsilon, back.delta) == pytest.approx((item.epsilon, item.delta))


def test_item_budget_of_the_paper():
    """ε = E/Z, δ = Δ/(Z·e^{(Z−1)E/Z}) [Marathe, §3.1]."""
    item = item_budget(Budget(4.0, 1e-5), 3)
    assert item.epsilon == pytest.approx(4 / 3)
    assert item.delta == pytest.approx(1e-5 / (3 * math.exp(2 * 4 / 3)))


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_group_size_is_a_count(size):
    with pytest.raises(SpecError, match="group size"):
        group_delta(Budget(1.0, 1e-6), size)


@pytest.mark.parametrize("sigma", [5.0, 20.0])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_priced_group_pays_at_least_what_it_really_costs(size, sigma):
    """A group of k moves a Gaussian k times as far as one member does."""
    asked = []

    def price(delta):
        asked.append(delta)
        return RdpAccountant().epsilon(gaussian(sigma), delta)

    epsilon = group_epsilon(price, size, 1e-5)
    assert epsilon >= RdpAccountant().epsilon(gaussian(sigma / size), 1e-5)
    assert epsilon == size * price(asked[-1])
    assert group_delta(Budget(epsilon / size, asked[-1]), size) <= 1e-5


@pytest.mark.parametrize(("price", "epsilon"), [(0.0, 0.0), (math.inf, math.inf), (40.0, math.inf)])
def test_priced_group_at_the_ends(price, epsilon):
    assert group_epsilon(lambda delta: price, 2, 1e-5) == epsilon
