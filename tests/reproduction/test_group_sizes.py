"""Group sizes on the paper's geometry, and the true ε of the paper's own settings there."""

import math

import pytest

from wholegrain_reproduction.group_sizes import GroupSizes, count_group_sizes, price_paper
from wholegrain_reproduction.recipes import GroupSizesSpec, load_group_sizes, load_recipe


def tiny(**changes: object) -> GroupSizesSpec:
    """Few subjects with the paper's items of each, and the same share of a silo in a batch."""
    small = {"subjects": 100, "silos": 4, "batch_size": 58, "batches": 50, "alphas": (2.0, 16.0)}
    return load_group_sizes().model_copy(update=small | changes)


def test_mean_and_usual_size() -> None:
    found = GroupSizes("uniform", None, {2: 1, 3: 5, 4: 2})
    assert found.mean == pytest.approx((2 + 15 + 8) / 8)
    assert found.usual == 3


def test_groups_grow_with_alpha() -> None:
    uniform, mild, steep = count_group_sizes(tiny())
    assert (uniform.alpha, mild.alpha, steep.alpha) == (None, 2.0, 16.0)
    assert sum(uniform.batches.values()) == 4 * 50
    # With α = 16 a subject has 116·(1 − (3/4)^16) of its 116 items in one silo on average, against 29 in each.
    assert uniform.largest < mild.largest < steep.largest <= 145
    assert uniform.mean < steep.mean


def test_a_subject_whose_items_all_lie_in_the_batch_is_the_largest_group() -> None:
    (found,) = count_group_sizes(tiny(subjects=1, items=20, held_out=0.0, silos=1, batch_size=20, batches=3, alphas=()))
    assert found.batches == {20: 3}
    assert found.largest == 20


@pytest.mark.slow
def test_the_papers_settings_are_worth_less_than_they_claim() -> None:
    recipe = load_recipe("femnist")
    shape = load_group_sizes()
    sizes = GroupSizes("uniform", None, {3: 1}, largest=7)
    found = {each.algorithm: each.true_epsilon for each in price_paper(recipe, shape, [sizes])}
    assert found["local_item_dp"].noise == pytest.approx(1.8144, abs=1e-4)
    assert found["local_group_dp"].noise == pytest.approx(5.327, abs=1e-3)
    assert found["higradavg_dp"].noise == pytest.approx(11.604, abs=1e-3)
    assert found["user_ldp"].noise == pytest.approx(81.852, abs=1e-2)
    for name in ("local_group_dp", "higradavg_dp"):
        assert math.isinf(found[name].subject)
    # A subject of 7 items is in few batches; UserLDP, which ignores that, keeps to its claim all the same.
    assert {name for name, each in found.items() if each.granted > 4.0} == {*found} - {"user_ldp"}
