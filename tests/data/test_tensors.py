"""Tensors of any type and ids of any kind give one kind of data."""

import uuid
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

import wholegrain as wg
from wholegrain.errors import DataError

INPUTS = torch.arange(12.0).reshape(4, 3) / 12
TARGETS = torch.tensor([0, 1, 2, 1])
IDS = ["ann", "ann", "bob", "cy"]


class Pairs(TorchDataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return INPUTS[number], int(TARGETS[number])


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    "data",
    [(INPUTS, TARGETS), [INPUTS.numpy(), TARGETS.numpy()], TensorDataset(INPUTS, TARGETS), Pairs()],
    ids=["tensors", "arrays", "TensorDataset", "Dataset"],
)
def test_every_form_gives_the_same_data(data: Any) -> None:
    found = wg.from_torch(data, subjects=IDS, silos=["n", "n", "s", "s"])
    assert found.data.inputs.dtype == np.float32
    assert np.array_equal(found.data.inputs, INPUTS.numpy())
    assert found.data.targets.tolist() == [0, 1, 2, 1]
    assert (found.classes, found.counted_classes) == (3, True)
    assert found.silo_names == ("n", "s")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float32, torch.bool])
def test_values_become_single_precision(dtype: torch.dtype) -> None:
    found = wg.from_torch((INPUTS.to(dtype), TARGETS), subjects=IDS)
    assert found.data.inputs.dtype == np.float32


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_whole_numbers_stay_what_they_are(dtype: torch.dtype) -> None:
    found = wg.from_torch((torch.ones(4, 3, dtype=dtype), TARGETS), subjects=IDS)
    assert torch.from_numpy(found.data.inputs).dtype == dtype


def test_inputs_that_require_gradients_are_taken() -> None:
    assert wg.from_torch((INPUTS.clone().requires_grad_(), TARGETS), subjects=IDS).data.items == 4


@pytest.mark.parametrize(
    "ids",
    [
        ["a", "a", "b", "c"],
        [1, 1.0, 2, 3],
        torch.tensor([5, 5, 6, 7]),
        np.array(["x", "x", "y", "z"]),
        [("a", 1), ("a", 1), ("a", 2), ("b", 1)],
        [uuid.UUID(int=1), uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)],
        [frozenset("ab"), frozenset("ba"), frozenset("c"), frozenset("d")],
    ],
    ids=["text", "numbers", "a tensor", "an array", "tuples", "uuids", "sets"],
)
def test_any_hashable_id_will_do(ids: Any) -> None:
    codes = wg.from_torch((INPUTS, TARGETS), subjects=ids).data.subjects
    assert codes[0] == codes[1]
    assert len(set(codes.tolist())) == 3


def test_a_persons_code_depends_on_their_id_alone() -> None:
    whole = wg.from_torch((INPUTS, TARGETS), subjects=IDS).data.subjects
    part = wg.from_torch((INPUTS[2:], TARGETS[2:]), subjects=IDS[2:], classes=3).data.subjects
    assert part.tolist() == whole[2:].tolist()
    assert whole[0] == wg.subject_codes(["ann"])[0]


@pytest.mark.parametrize(
    ("data", "ids", "words"),
    [
        ((INPUTS, TARGETS), ["a", None, "b", "c"], "subjects is None"),
        ((INPUTS, TARGETS), [1.0, float("nan"), 2.0, 3.0], "subjects is nan"),
        ((INPUTS, TARGETS), IDS[:3], "3 subjects for 4 items"),
        ((INPUTS, TARGETS[:3]), IDS, "3 targets for 4 items"),
        ((INPUTS, TARGETS), [[1], [1], [2], [3]], "hashable"),
        ((INPUTS, TARGETS), [object()] * 4, "no text of their own"),
        ((INPUTS, TARGETS - 1), IDS, "begin at 0"),
        ((INPUTS, INPUTS), IDS, "class numbers"),
        ((INPUTS, TARGETS + 0.5), IDS, "class numbers"),
        ((INPUTS * float("nan"), TARGETS), IDS, "NaN or infinite"),
        ((INPUTS.to(torch.complex64), TARGETS), IDS, "complex64"),
        ((INPUTS, TARGETS, TARGETS), IDS, "3 tensors"),
        (Stream(), IDS, "no length"),
        (7, IDS, "no length"),
    ],
    ids=[
        "no id",
        "NaN for an id",
        "too few ids",
        "too few targets",
        "ids that cannot be compared",
        "ids without a text",
        "classes below 0",
        "several targets",
        "fractions of classes",
        "NaN",
        "complex numbers",
        "three tensors",
        "a stream",
        "no data",
    ],
)
def test_what_cannot_be_used_is_refused(data: Any, ids: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        wg.from_torch(data, subjects=ids)


def test_one_silo_is_chosen_by_name() -> None:
    data = wg.from_torch((INPUTS, TARGETS), subjects=IDS, silos=["n", "n", "s", "s"], classes=3)
    north = data.silo("n")
    assert north.data.items == 2
    assert north.classes == 3
    assert north.silo_names == ("n",)
    with pytest.raises(wg.WholegrainError, match="Unknown silo 'nn'"):
        data.silo("nn")
    with pytest.raises(DataError, match="names no silos"):
        wg.from_torch((INPUTS, TARGETS), subjects=IDS).silo("n")


@pytest.mark.parametrize(
    "inputs",
    [
        [[1, 2], [3, 4.5]],
        [torch.zeros(2, dtype=torch.uint8), torch.zeros(2)],
        [np.zeros(2, np.uint8), np.zeros(2, int)],
    ],
    ids=["lists", "tensors", "arrays"],
)
def test_items_of_different_kinds_are_refused(inputs: list[Any]) -> None:
    """Their common kind, and with it what everybody's numbers mean, would hang on each of them."""
    for data in ((inputs, [0, 1]), list(zip(inputs, [0, 1], strict=True))):
        with pytest.raises(DataError, match="different kinds of numbers"):
            wg.from_torch(Listed(data) if isinstance(data, list) else data, subjects=["ann", "bob"], classes=2)


class Listed(TorchDataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number]


def test_ids_that_are_written_alike_are_refused() -> None:
    with pytest.raises(DataError, match="written alike"):
        wg.from_torch((INPUTS, TARGETS), subjects=[7, "7", "ann", "bob"], classes=3)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.tensor([2.0**24, 2.0**24 + 1, 1.0, 2.0]), "too large to tell neighbours apart"),
        (np.array([2**53, 2**53 + 1, 1, 2], np.float64), "too large to tell neighbours apart"),
        ([float(2**53), 1.0, 2.0, 3.0], "too large to tell neighbours apart"),
        (["ann", " ann", "bob", "cy"], "written alike"),
        (["ann", "None", "None", "cy"], "is 'None'"),
        (["ann", " ", "bob", "cy"], "every item needs one"),
    ],
)
def test_ids_that_may_stand_for_several_people_are_refused(ids: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        wg.from_torch((INPUTS, TARGETS), subjects=ids, classes=3)


def test_a_silo_may_be_called_what_no_person_can_be() -> None:
    found = wg.from_torch((INPUTS, TARGETS), subjects=IDS, silos=["NA", "EU", "EU", "NA"], classes=3)
    assert found.silo_names == ("EU", "NA")


def test_a_class_number_beyond_all_models_is_refused() -> None:
    with pytest.raises(DataError, match="Class numbers are below 1,000,000, and item 1 has 4611686018427387904"):
        wg.from_torch((torch.zeros(2, 3), [0, 2**62]), subjects=["a", "b"])
