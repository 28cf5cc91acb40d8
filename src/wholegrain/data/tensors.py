"""Tensors and torch data sets in memory, with whom each item is about and who holds it."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholegrain import _check
from wholegrain.data.dataset import Dataset
from wholegrain.data.labels import EXACT, NOBODY, write_label
from wholegrain.data.subjects import SubjectData, subject_codes
from wholegrain.errors import DataError

FORMS = "a torch Dataset with a length, a TensorDataset, or two tensors (inputs, targets)"

TOKENIZED = "input_ids", "attention_mask", "token_type_ids"
"""What a tokenizer gives, in the order in which it is put into one array."""

MOST_CLASSES = 1_000_000
"""As a model has an output for each."""
TENSORS = "tensors"
"""What data is called to which nobody gave a name."""


def from_torch(
    dataset: Any,
    *,
    subjects: Iterable[Any],
    silos: Iterable[Any] | None = None,
    classes: int | None = None,
    items_per_subject: int | None = None,
    name: str = TENSORS,
) -> Dataset:
    """A torch data set, or inputs and class numbers, as data to train on.

    `subjects` says for each item whom it is about, by any hashable id, and `silos` who holds it. Inputs of any floating
    type become float32; uint8 are intensities, which a model is shown as 0 to 1; other whole numbers are tokens. What a
    tokenizer gives by name (input_ids, attention_mask, token_type_ids) is taken as a mapping. Without `classes`, their
    number is read off the targets, which only a simulation may do. `items_per_subject` is a public bound K on the items
    of one person in one silo, where the data keeps it by its design.

    >>> import torch, wholegrain as wg
    >>> pixels, digits = torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    >>> images = torch.utils.data.TensorDataset(pixels, digits)
    >>> people, places = ["ann", "ann", "bob", "bob"], ["north", "south", "south", "south"]
    >>> wg.from_torch(images, subjects=people, silos=places)
    Dataset 'tensors': 4 items of 2 subjects in 2 silos; 64 features, 3 classes

    Private: the data set, and what its repr counts.
    """
    inputs, targets = _columns(dataset)
    stored, numbers = as_inputs(inputs), _class_numbers(targets)
    _require_length("targets", len(numbers), len(stored))
    return Dataset(
        name=name,
        data=SubjectData(stored, numbers, subject_codes(_id_texts("subjects", subjects, len(stored)))),
        silos=None if silos is None else np.array(_id_texts("silos", silos, len(stored)), np.str_),
        classes=int(numbers.max(initial=0)) + 1 if classes is None else _check.count("classes", classes),
        counted_classes=classes is None,
        items_per_subject=None if items_per_subject is None else _check.count("items_per_subject", items_per_subject),
    )


def is_tensors(value: object) -> bool:
    """Whether this is something of torch, and not yet data to train on."""
    return type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "__getitem__")


def _columns(dataset: Any) -> tuple[Any, Any]:
    """Inputs and targets of all items."""
    pair = getattr(dataset, "tensors", dataset)
    if isinstance(pair, tuple | list):
        if len(pair) != 2:
            raise DataError(f"Inputs and targets are expected, and there are {len(pair)} tensors; give {FORMS}.")
        return pair[0], pair[1]
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(f"{type(dataset).__name__} has no length or no items by number; give {FORMS}.")
    items = [dataset[k] for k in range(len(dataset))]
    if not items:
        raise DataError("The data set has no items.")
    if any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise DataError("Every item of the data set must be a pair (input, target).")
    first = [item[0] for item in items]
    inputs = {name: _stack([each[name] for each in first]) for name in first[0]} if _are_named(first) else _stack(first)
    return inputs, _stack([item[1] for item in items])


def _are_named(inputs: Sequence[Any]) -> bool:
    """Whether every item's inputs come by the same names."""
    named = [isinstance(each, Mapping) for each in inputs]
    if any(named) and (not all(named) or len({frozenset(each) for each in inputs}) > 1):
        raise DataError("Some items have other names of inputs than others; give all of them the same.")
    return all(named)


def _stack(values: Sequence[Any]) -> NDArray[Any]:
    """Items side by side, of one shape and one kind: a kind that all of them fit in would depend on each."""
    arrays = [_array(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        first, other = sorted(shapes)[:2]
        raise DataError(f"The items have different shapes, {list(first)} and {list(other)}; give all of them one.")
    kinds = sorted({str(array.dtype) for array in arrays})
    if len(kinds) > 1:
        raise DataError(f"The items hold different kinds of numbers, {kinds[0]} and {kinds[1]}; give all of them one.")
    return np.stack(arrays)


def _array(values: Any) -> NDArray[Any]:
    """An array of a tensor of any kind, of an array, or of numbers."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return values.float().numpy() if values.is_floating_point() else values.numpy()  # type: ignore[no-any-return]
    return np.asarray(values)


def as_inputs(inputs: Any) -> NDArray[Any]:
    """Inputs [item, …] as data sets store them."""
    if isinstance(inputs, Mapping):
        stored = _pack(inputs)
    else:
        stored = _stack(inputs) if isinstance(inputs, list | tuple) and inputs else _array(inputs)
    if stored.ndim < 1 or stored.dtype.kind not in "biuf":
        raise DataError(
            f"Inputs must be numbers [item, …], and these are {stored.dtype} of shape {list(stored.shape)}."
        )
    if stored.dtype.kind in "bf":
        return np.ascontiguousarray(stored, np.float32)
    return np.ascontiguousarray(stored)


def _pack(named: Mapping[str, Any]) -> NDArray[Any]:
    """What a tokenizer gives by name, in one array [item, name, position]."""
    names = [name for name in TOKENIZED if name in named]
    others = sorted(set(named) - set(names))
    if others or TOKENIZED[0] not in names:
        raise DataError(
            f"Inputs by name are {', '.join(TOKENIZED)}, the first of which is needed; these are {', '.join(named)}."
        )
    if names == [TOKENIZED[0], TOKENIZED[2]]:
        raise DataError("Inputs have token_type_ids and no attention_mask; add one, of ones where nothing is padding.")
    arrays = [_array(named[name]) for name in names]
    if (
        len({array.shape for array in arrays}) > 1
        or arrays[0].ndim != 2
        or any(a.dtype.kind not in "biu" for a in arrays)
    ):
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in zip(names, arrays, strict=True))
        raise DataError(f"Inputs by name must be whole numbers [item, position] of one shape; these are {shapes}.")
    return np.stack([array.astype(np.int64) for array in arrays], 1)


def _class_numbers(targets: Any) -> NDArray[np.int64]:
    numbers = _array(targets)
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    whole = numbers.dtype.kind in "biu" or (numbers.dtype.kind == "f" and bool((numbers == np.floor(numbers)).all()))
    if numbers.ndim != 1 or not whole:
        raise DataError(
            f"Targets must be class numbers [item], and these are {numbers.dtype} of shape {list(numbers.shape)}."
        )
    found = numbers.astype(np.int64)
    if found.min(initial=0) < 0:
        raise DataError(f"Class numbers begin at 0, and item {int((found < 0).argmax())} has {found.min()}.")
    if found.max(initial=0) >= MOST_CLASSES:
        item = int((found >= MOST_CLASSES).argmax())
        raise DataError(
            f"Class numbers are below {MOST_CLASSES:,}, and item {item} has {found[item]}; number them from 0."
        )
    return found


def _id_texts(what: str, ids: Any, items: int) -> list[str]:
    """Ids as text, one for each item; equal ids have one text, whatever they are."""
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu()
    kind = getattr(ids, "dtype", None)
    given = list(ids.tolist() if kind is not None and hasattr(ids, "tolist") else ids)
    exact = EXACT.get(getattr(kind, "itemsize", 8), 2**53)
    if any(isinstance(id, float) and abs(id) >= exact for id in given):
        raise DataError(
            f"The {what} are floating-point numbers, too large to tell neighbours apart; give them as text or as whole"
            " numbers."
        )
    _require_length(what, len(given), items)
    try:
        texts = {id: _text(what, number, id) for number, id in enumerate(dict.fromkeys(given))}
    except TypeError as error:
        raise DataError(f"The {what} must be hashable ids, such as text, numbers or tuples.") from error
    if len(set(texts.values())) < len(texts):
        raise DataError(f"Two of the {what} differ and are written alike, as 7 and '7' are; give ids of one kind.")
    return [texts[id] for id in given]


def _text(what: str, number: int, id: object) -> str:
    if id is None or id != id:
        raise DataError(f"One of the {what} is {id}; every item needs one: complete or remove the items.")
    if type(id).__repr__ is object.__repr__:
        raise DataError(f"The {what} are {type(id).__name__} objects, which have no text of their own; use names.")
    text = write_label(id) if isinstance(id, str | int | float | np.generic) else repr(id)
    text = unicodedata.normalize("NFC", text.strip())  # as in a table
    if what == "subjects" and text.lower() in NOBODY:
        raise DataError(f"One of the {what} is '{text}'; every item needs one: complete or remove the items.")
    return text


def _require_length(what: str, found: int, items: int) -> None:
    if found != items:
        raise DataError(f"There are {found} {what} for {items} items; each item needs one.")
