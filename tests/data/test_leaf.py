"""LEAF's files: what is written is read, whatever order and number of files; what is wrong is told with its place."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_files import leaf_tree, write_leaf
from wholegrain.data import leaf
from wholegrain.data.dataset import Dataset
from wholegrain.data.leaf import Items, LeafForm, MisfitError
from wholegrain.data.subjects import subject_codes
from wholegrain.errors import DataError

CLASSES = 5


def encode(x: list[Any], y: list[Any]) -> Items:
    """Two small numbers each."""
    if any(len(pair) != 2 for pair in x):
        raise MisfitError("x is not of pairs")
    return Items(np.array(x, np.int8).reshape(-1, 2), leaf.require_classes(y, CLASSES))


PAIRS = LeafForm(name="pairs", version=1, classes=CLASSES, width=2, dtype=np.int8, encode=encode)
RECORDS = {"ann": ([[1, 2], [3, 4]], [0, 1]), "bob": ([[5, 6]], [4]), "cy": ([], [])}


def by_subject(data: Any) -> dict[int, list[tuple[list[int], int]]]:
    found: dict[int, list[tuple[list[int], int]]] = {}
    for x, y, code in zip(data.inputs.tolist(), data.targets.tolist(), data.subjects.tolist(), strict=True):
        found.setdefault(code, []).append((x, y))
    return found


def read(path: Path) -> Dataset:
    return leaf.read(path, PAIRS)


ITEM = st.tuples(st.lists(st.integers(-128, 127), min_size=2, max_size=2), st.integers(0, CLASSES - 1))
FILE = st.dictionaries(st.text(max_size=5), st.lists(ITEM, max_size=4), max_size=4)


@given(st.lists(FILE, min_size=1, max_size=3))
@example([{"": [], "0": [([0, 0], 0)] * 2}, {"": [([0, 0], 0)]}])
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, files: list[dict[str, list[Any]]]) -> None:
    folder = tmp_path_factory.mktemp("leaf")
    expected: dict[str, list[Any]] = {}
    for number, file in enumerate(files):
        write_leaf(folder / f"{number}.json", {k: ([x for x, _ in v], [y for _, y in v]) for k, v in file.items()})
        for subject, items in file.items():
            if items:  # subjects come in the order of their first items
                expected.setdefault(subject, []).extend(items)
    wanted = list(expected.values())
    if not wanted:
        with pytest.raises(DataError, match="hold no items"):
            read(folder)
        return
    for _ in range(2):  # from the files, then from the cache
        assert list(by_subject(read(folder).data).values()) == wanted


def test_a_file_a_folder_and_all_data_are_the_same(tmp_path: Path) -> None:
    file = write_leaf(tmp_path / "data" / "all_data" / "all_data_0.json", RECORDS)
    codes = subject_codes(name for name, (_, y) in RECORDS.items() if y).tolist()
    for path in (file, file.parent, file.parent.parent):
        assert by_subject(read(path).data) == dict(zip(codes, [[([1, 2], 0), ([3, 4], 1)], [([5, 6], 4)]], strict=True))
        assert read(path).test is None


def test_a_test_folder_is_the_test_part_and_subjects_keep_their_codes(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train" / "a.json", RECORDS)
    write_leaf(tmp_path / "test" / "a.json", {"dan": ([[9, 9]], [3]), "bob": ([[7, 7]], [2])})
    write_leaf(tmp_path / "all_data" / "a.json", {"all": ([[0, 0]], [0])})
    dataset = read(tmp_path)
    assert dataset.data.items == 3
    assert dataset.test is not None
    bob = dataset.data.subjects[-1]
    assert by_subject(dataset.test)[bob] == [([7, 7], 2)]
    assert dataset.test.subject_count == 2
    assert not set(dataset.test.subjects[dataset.test.targets == 3]) & set(dataset.data.subjects)


def test_the_number_of_items_is_counted_and_not_believed(tmp_path: Path) -> None:
    tree = leaf_tree(RECORDS) | {"num_samples": [99, -1, "many"]}
    (tmp_path / "a.json").write_text(json.dumps(tree))
    assert read(tmp_path).data.items == 3


def test_keys_may_come_in_any_order_and_others_are_passed_over(tmp_path: Path) -> None:
    tree = {"hierarchies": ["p", "q"], **dict(reversed(leaf_tree(RECORDS).items())), "extra": {"deep": [1.5]}}
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps(tree, indent=1), encoding="utf-8")
    assert read(tmp_path).data.items == 3


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    file = write_leaf(tmp_path / "a.json", RECORDS)
    assert read(file).data.items == 3
    write_leaf(file, {"ann": ([[1, 2]], [0])})
    assert read(file).data.items == 1


def changed(**changes: Any) -> str:
    return json.dumps(leaf_tree(RECORDS) | changes)


def with_ann(**changes: Any) -> str:
    tree = leaf_tree(RECORDS)
    tree["user_data"]["ann"] |= changes
    return json.dumps(tree)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ends too early, after 0 characters"),
        ("users", "is not JSON at character 1"),
        ("[]", "is not JSON at character 1"),
        ("{}", "has no 'user_data'"),
        ('{"users": []}', "has no 'user_data'"),
        ('{"user_data": {}}', "has no 'users'"),
        ('{"users": [], "users": [], "user_data": {}}', "the key 'users' twice"),
        ('{"users": ["a"], "user_data": {"a": {"x": [], "y": []}, "a": {}}}', "the subject 'a' twice"),
        ('{"users": ["a"], "user_data": {"a": {"x": [], "y": [], "x": []}}}', "twice (in the record of subject"),
        ('{"users": [], "user_data": []}', "'{' was expected"),
        (changed(users=["ann", "bob"]), "does not list the subject 'cy'"),
        (changed(users=["ann", "bob", "cy", "dan"]), "lists the subject 'dan' in 'users' and has no items of it"),
        (changed(users=["ann", "bob", "cy", "cy"]), "twice"),
        (changed(users="ann"), "'users' should be a list"),
        (changed(users=[1, 2, 3]), "'users' should be a list"),
        (changed() + "}", "nothing more was expected"),
        (changed()[:-30], "ends too early"),
        (changed()[:130], "in the record of subject 'bob'"),
        (with_ann(y=[0, 5]), "subject 'ann': y[1] is 5 and should be a class number from 0 to 4"),
        (with_ann(y=[0, -1]), "y[1] is -1"),
        (with_ann(y=[0, 1.0]), "y[1] is 1.0"),
        (with_ann(y=[True, 1]), "y[0] is True"),
        (with_ann(y=[None, 1]), "y[0] is None"),
        (with_ann(y=["a" * 99, 1]), "y[0] is 'aaa"),
        (with_ann(y=[[0], 1]), "y[0] is a list"),
        (with_ann(y=[10**400, 1]), "y[0] is a number of more than 20 digits"),
        (with_ann(y=[2**63, 1]), "y[0] is 9223372036854775808"),
        (with_ann(y=[0, 1]).replace("[0, 1]", "[0, 1e400]", 1), "y[1] is inf"),
        (with_ann(y=[0, 1]).replace("[0, 1]", "[0, 1" + "0" * 5000 + "]", 1), "too many digits"),
        (with_ann(y=[0]), "subject 'ann': x has 2 entries and y 1"),
        (with_ann(y="01"), "y is not a list"),
        (with_ann(x=None), "x is not a list"),
        (with_ann(x=[[1], [2]]), "subject 'ann': x is not of pairs; mend the file, or check that it is pairs"),
        (changed(user_data={"ann": {"y": []}, "bob": [], "cy": 1}), "subject 'ann': x is missing"),
        (changed(user_data={"bob": [], "ann": {}, "cy": 1}), "subject 'bob': the record should be an object"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    write_leaf(tmp_path / "a.json", {"fine": ([[1, 1]], [0])})
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert "b.json" in message
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path))


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    text = changed()
    file = tmp_path / "a.json"
    for length in range(len(text)):
        file.write_text(text[:length])
        with pytest.raises(DataError, match=r"a\.json"):
            read(file)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_refused_with_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("leaf") / "a.json"
    file.write_bytes(content)
    with pytest.raises(DataError):
        read(file)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_any_damage_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, place: int, replacement: bytes
) -> None:
    content = changed().encode()
    place %= len(content)
    file = tmp_path_factory.mktemp("leaf") / "a.json"
    file.write_bytes(content[:place] + replacement + content[place + len(replacement) :])
    with contextlib.suppress(DataError):
        assert read(file).data.items <= 3


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no \.json files"):
        read(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=r"train' holds no \.json files"):
        read(tmp_path)


def test_files_without_items(tmp_path: Path) -> None:
    write_leaf(tmp_path / "a.json", {"cy": ([], [])})
    with pytest.raises(DataError, match="hold no items"):
        read(tmp_path)


def test_an_id_that_cannot_be_printed_is_escaped(tmp_path: Path) -> None:
    write_leaf(tmp_path / "a.json", {"\ud800\n" + "z" * 99: ([[1, 1]], [9])})
    with pytest.raises(DataError, match=re.escape(r"subject '\ud800\nzzz")) as caught:
        read(tmp_path)
    str(caught.value).encode()
