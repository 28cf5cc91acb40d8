"""Every item goes to one silo, by the law that was asked for."""

import itertools

import numpy as np
import pytest

from wholegrain.data import partition
from wholegrain.data.subject_coins import Coins
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import DataError, SpecError

SUBJECTS, EACH = 300, 10


def people(subjects: int = SUBJECTS, each: int = EACH) -> SubjectData:
    codes = np.random.default_rng(0).permutation(np.repeat(np.arange(subjects), each))
    numbers = np.arange(len(codes))
    return SubjectData(numbers[:, None], numbers, codes)


def silos_per_subject(data: SubjectData, labels: partition.Labels) -> float:
    """In how many silos a subject is, on average."""
    return float(np.mean([len(set(labels[data.subjects == code])) for code in np.unique(data.subjects)]))


LAWS = {
    "uniform": lambda data, silos, seed: partition.uniform(data, silos, Coins.seeded(seed)),
    "power": lambda data, silos, seed: partition.power(data, silos, 4.0, Coins.seeded(seed)),
}


@pytest.mark.parametrize("law", LAWS)
def test_every_item_is_placed_once(law: str) -> None:
    data = people()
    silos = partition.split(data, LAWS[law](data, 8, 0))
    assert list(silos) == [f"silo-{number}" for number in range(8)]
    placed = np.concatenate([silo.targets for silo in silos.values()])
    assert sorted(placed) == list(range(data.items))
    for silo in silos.values():
        assert (data.subjects[silo.targets] == silo.subjects).all()


@pytest.mark.parametrize("law", LAWS)
def test_labels_depend_on_the_seed_alone(law: str) -> None:
    data, place = people(), LAWS[law]
    assert (place(data, 5, 3) == place(data, 5, 3)).all()
    assert (place(data, 5, 3) != place(data, 5, 4)).any()


@pytest.mark.parametrize("law", LAWS)
def test_silos_are_alike_in_size(law: str) -> None:
    data = people()
    sizes = [silo.items for silo in partition.split(data, LAWS[law](data, 6, 0)).values()]
    # Items of one subject go together, so each of the 300 may move a silo by up to all its items: σ ≤ 10·√(300·5/36).
    assert max(abs(size - data.items / 6) for size in sizes) < 6 * EACH * np.sqrt(SUBJECTS * 5 / 36)


def test_a_larger_alpha_gathers_a_subjects_items_in_fewer_silos() -> None:
    data = people()
    spread = [
        silos_per_subject(data, partition.power(data, 8, alpha, Coins.seeded(0)))
        for alpha in (1.0, 2.0, 4.0, 8.0, 64.0)
    ]
    assert all(before > after + 0.2 for before, after in itertools.pairwise(spread))
    assert spread[-1] < 2


def test_alpha_one_is_uniform() -> None:
    data = people()
    # Ten items over eight silos fill 8·(1 − (7/8)¹⁰) of them on average.
    expected = 8 * (1 - (7 / 8) ** EACH)
    assert silos_per_subject(data, partition.power(data, 8, 1.0, Coins.seeded(0))) == pytest.approx(expected, abs=0.3)
    assert silos_per_subject(data, partition.uniform(data, 8, Coins.seeded(0))) == pytest.approx(expected, abs=0.3)


def test_each_subject_has_an_order_of_silos_of_its_own() -> None:
    data = people()
    labels = partition.power(data, 8, 1000.0, Coins.seeded(0))
    favourites = [labels[data.subjects == code][0] for code in range(SUBJECTS)]
    assert min(favourites.count(name) for name in set(favourites)) > 10
    assert len(set(favourites)) == 8


def test_names_sort_as_numbers_do() -> None:
    data = people()
    names = list(partition.split(data, partition.uniform(data, 12, Coins.seeded(0))))
    assert names == [f"silo-{number:02d}" for number in range(12)]


@pytest.mark.parametrize("silos", [0, -1])
@pytest.mark.parametrize("law", LAWS)
def test_a_federation_has_a_silo_at_least(law: str, silos: int) -> None:
    with pytest.raises(SpecError, match="silos"):
        LAWS[law](people(), silos, 0)


@pytest.mark.parametrize("alpha", [0.0, -2.0, float("nan")])
def test_alpha_is_positive(alpha: float) -> None:
    with pytest.raises(SpecError, match="alpha"):
        partition.power(people(), 4, alpha, Coins.seeded(0))


def test_split_needs_a_name_for_every_item() -> None:
    with pytest.raises(DataError, match="2 silo names were given for 3000 items"):
        partition.split(people(), np.array(["a", "b"]))


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_by_subject_never_splits_a_subject(fraction: float) -> None:
    data = people()
    kept, held_out = partition.split_by_subject(data, fraction, Coins.seeded(0), "test")
    assert sorted([*kept, *held_out]) == list(range(data.items))
    assert not set(data.subjects[kept]) & set(data.subjects[held_out])
    share = len(set(data.subjects[held_out])) / SUBJECTS
    assert share == pytest.approx(fraction, abs=0.1)
    assert share == fraction or 0 < fraction < 1


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_by_item_holds_out_a_share_of_the_items(fraction: float) -> None:
    data = people()
    kept, held_out = partition.split_by_item(data, fraction, Coins.seeded(0), "test")
    assert sorted([*kept, *held_out]) == list(range(data.items))
    assert len(held_out) / data.items == pytest.approx(fraction, abs=0.03)
    assert len(held_out) / data.items == fraction or 0 < fraction < 1


def test_parts_with_different_names_are_drawn_apart() -> None:
    data = people()
    test, again, validation = (
        partition.split_by_subject(data, 0.5, Coins.seeded(0), name)[1] for name in ("test", "test", "validation")
    )
    assert test.tolist() == again.tolist() != validation.tolist()
