"""Items never lose their subjects, and data that cannot be used is refused at the door."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from wholegrain.data import subjects as subjects_module
from wholegrain.data.subject_coins import Coins
from wholegrain.data.subjects import SubjectData, SubjectIndex, rank_within, subject_codes
from wholegrain.errors import DataError

codes = arrays.arrays(np.int64, st.integers(0, 30), elements=st.integers(-5, 5))


def data_of(subjects: list[int]) -> SubjectData:
    """Items whose input and target are their own number."""
    numbers = np.arange(len(subjects))
    return SubjectData(numbers[:, None].astype(np.float32), numbers, np.array(subjects, np.int64))


@pytest.mark.parametrize("lengths", [(3, 2, 2), (2, 3, 2), (2, 2, 3)])
def test_lengths_must_agree(lengths: tuple[int, int, int]) -> None:
    inputs, targets, subjects = lengths
    with pytest.raises(DataError, match=f"{inputs}, {targets} and {subjects}"):
        SubjectData(np.zeros((inputs, 2)), np.zeros(targets, np.int64), np.zeros(subjects, np.int64))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(5, 3), (5, 1, 2, 2)], ids=["table", "images"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inputs_must_be_finite(bad: float, shape: tuple[int, ...], dtype: type) -> None:
    inputs = np.zeros(shape, dtype)
    inputs[3].flat[-1] = inputs[4].flat[0] = bad
    with pytest.raises(DataError, match=r"^2 items .*the first is item 3"):
        SubjectData(inputs, np.zeros(5, np.int64), np.arange(5))


def test_subject_codes_must_be_whole_numbers() -> None:
    with pytest.raises(DataError, match="whole numbers"):
        SubjectData(np.zeros((2, 1)), np.zeros(2, np.int64), np.array([0.0, 1.0]))


def test_tokens_are_inputs_too() -> None:
    data = SubjectData(np.array([[3, 4], [5, 6]]), np.array([0, 1]), np.array([8, 8]))
    assert (data.items, data.subject_count, data.largest_subject) == (2, 1, 2)


@pytest.mark.parametrize("inputs", [np.zeros((0, 3), np.float32), np.zeros((0, 3), np.int64)], ids=["floats", "tokens"])
def test_no_items_are_data_as_well(inputs: np.ndarray) -> None:
    data = SubjectData(inputs, np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (data.items, data.subject_count, data.largest_subject) == (0, 0, 0)


def test_taking_none_leaves_none() -> None:
    assert data_of([1, 2]).take(np.zeros(0, np.int64)).items == 0


@given(groups=codes)
def test_rank_within_counts_earlier_members(groups: np.ndarray) -> None:
    slow = [int((groups[:position] == group).sum()) for position, group in enumerate(groups)]
    assert rank_within(groups).tolist() == slow


@given(subjects=codes)
def test_an_index_finds_each_subjects_items(subjects: np.ndarray) -> None:
    index = SubjectIndex.of(subjects)
    distinct = np.unique(subjects)
    assert index.items == len(subjects)
    assert len(index.counts) == len(index.starts) == len(distinct)
    for number, code in enumerate(distinct):
        items = index.order[index.starts[number] : index.starts[number] + index.counts[number]]
        assert items.tolist() == np.flatnonzero(subjects == code).tolist()
        assert (index.subjects[items] == number).all()


def test_take_keeps_items_and_subjects_together() -> None:
    taken = data_of([7, 8, 9, 8]).take(np.array([3, 0]))
    assert taken.subjects.tolist() == [8, 7]
    assert taken.targets.tolist() == [3, 0]
    assert taken.inputs[:, 0].tolist() == [3.0, 0.0]


@given(subjects=st.lists(st.integers(0, 4), min_size=1, max_size=25), most=st.integers(1, 4), seed=st.integers(0, 99))
def test_capped_keeps_what_the_cap_allows_and_nothing_else(subjects: list[int], most: int, seed: int) -> None:
    data = data_of(subjects)
    capped = data.cap_subjects(most, Coins.seeded(seed))
    for code in set(subjects):
        assert (capped.subjects == code).sum() == min(most, subjects.count(code))
    assert (np.diff(capped.targets) > 0).all()  # the items' own numbers: in order, none twice
    assert (data.subjects[capped.targets] == capped.subjects).all()
    assert (capped.inputs[:, 0] == capped.targets).all()


def test_capped_is_a_pure_function_of_its_coins() -> None:
    data = data_of([0] * 9 + [1] * 9)
    first, second, other = (data.cap_subjects(3, Coins.seeded(seed)).targets.tolist() for seed in (4, 4, 5))
    assert first == second != other


@given(subjects=st.lists(st.integers(0, 4), min_size=1, max_size=25), most=st.integers(1, 4), gone=st.integers(0, 4))
def test_what_a_cap_keeps_of_a_subject_depends_on_no_other(subjects: list[int], most: int, gone: int) -> None:
    data, coins = data_of(subjects), Coins.seeded(1)
    without = data.take(np.flatnonzero(data.subjects != gone))
    whole = data.cap_subjects(most, coins)
    assert without.cap_subjects(most, coins).targets.tolist() == whole.targets[whole.subjects != gone].tolist()


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint64, np.bool_])
def test_whole_numbers_of_any_type_are_kept_as_int64(dtype: type) -> None:
    data = SubjectData(np.zeros((2, 1)), np.array([0, 1], dtype), np.array([1, 0], dtype))
    assert data.targets.dtype == data.subjects.dtype == np.int64
    assert (data.targets.tolist(), data.subjects.tolist()) == ([0, 1], [1, 0])


@pytest.mark.parametrize("targets", [np.array([0.0, 1.0]), np.array(["a", "b"]), np.array([None, 1])], ids=str)
def test_targets_must_be_whole_numbers(targets: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"^Targets must be whole numbers"):
        SubjectData(np.zeros((2, 1)), targets, np.array([0, 1]))


def test_a_number_that_int64_does_not_hold_is_refused() -> None:
    with pytest.raises(DataError, match="below 2⁶³"):
        SubjectData(np.zeros((1, 1)), np.array([0]), np.array([2**63], np.uint64))


def test_codes_follow_from_ids_alone() -> None:
    everybody = subject_codes(["b", "a", "b", "ü", "", "a\0", "\ud800"])
    assert everybody.dtype == np.int64
    assert everybody.min() >= 0
    assert len(set(everybody.tolist())) == 6
    assert everybody[0] == everybody[2] == subject_codes(["b"])[0]
    assert subject_codes([]).tolist() == []


def test_codes_stay_what_they_are_from_version_to_version() -> None:
    """A release whose codes changed would hold out other people."""
    assert subject_codes(["p3", "écrivain"]).tolist() == [5081691989035630959, 9058525524090931708]


def test_a_whole_number_has_one_code_however_a_library_writes_it() -> None:
    """Libraries write 7 as 7.0 where another row holds a fraction, and that as text where another id is a name."""
    assert subject_codes(["7.0", "-3.00", "0.0", "x7"]).tolist() == subject_codes(["7", "-3", "0", "x7"]).tolist()
    apart = ["7", "07", "07.0", "7.1", "7.10", "7.01", "x7.0", "7.0.0", "-0.0", ".0", "7."]
    assert len(set(subject_codes(apart).tolist())) == len(apart)
    with pytest.raises(DataError, match=r"differ as 7 and 7\.0 do"):
        subject_codes(["7", "7.0"])


def test_two_ids_with_one_code_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects_module, "blake2b", lambda data, digest_size: hashlib.blake2b(b"", digest_size=8))
    assert len(subject_codes(["a", "a"])) == 2
    with pytest.raises(DataError, match="same hash"):
        subject_codes(["a", "b"])
