"""The models of the benchmark of the field: sums of clipped contributions of a linear model and of a small MLP.

An owner's gradient of a layer is a combination of its records' inputs to it, and its length follows from the inner
products of these. Those of the first layer's inputs never change and are computed once; no owner's gradient is formed.
Both models have one output, of which the loss is that of a logistic regression. The library's linear model has a score
for each of two classes; their difference is what is trained here: its gradient is twice that of the second class, whose
length is √2 times as much, and so is its noise.
"""

from functools import cache
from typing import Protocol

import numpy as np

from rivals import LOCAL_RATE, Bounds, Floats, Method, Owners, Records

UNITS = 16
ALL_UNITS = UNITS + 1
MOST_UNITS = 70_000
"""Units of the MLP that are computed at once, few enough for a processor's cache."""
AT_ONCE = 32
"""Columns of the linear model that are computed at once, few enough for a processor's cache."""


class Model(Protocol):
    """Parameters are columns: [parameter, column]."""

    noise: float
    """How long the noise of a parameter is, as a multiple of what the whole gradient's noise has."""

    def start(self, features: int, seed: int) -> Floats:
        """What every run begins with."""

    def outputs(self, inputs: Floats, vectors: Floats) -> Floats:
        """What the model says of records [record, column]."""

    def total(self, method: Method, records: Records, bounds: Bounds, vectors: Floats, clips: Floats) -> Floats:
        """The sum of contributions, clipped to each column's norm [parameter, column]."""


class Linear:
    """Logistic regression."""

    noise = float(np.sqrt(2))

    def start(self, features: int, seed: int) -> Floats:
        """Nothing."""
        return np.zeros(features)

    def outputs(self, inputs: Floats, vectors: Floats) -> Floats:
        """By one product."""
        return inputs @ vectors.astype(np.float32)

    def total(self, method: Method, records: Records, bounds: Bounds, vectors: Floats, clips: Floats) -> Floats:
        """Some columns at once."""
        parts = (slice(first, first + AT_ONCE) for first in range(0, len(clips), AT_ONCE))
        return np.hstack([self._total(method, records, bounds, vectors[:, own], clips[own]) for own in parts])

    def _total(self, method: Method, records: Records, bounds: Bounds, vectors: Floats, clips: Floats) -> Floats:
        outputs = self.outputs(records.inputs, vectors)
        targets = records.targets[:, None]
        errors = _sigmoid(outputs) - targets
        if method.owner == "record":
            lengths = np.abs(errors) * (np.float32(np.sqrt(2)) * records.lengths[:, None])
            errors *= method.kept_records(lengths, records, bounds, clips)
            return 2 * records.inputs.T @ errors
        owners = records.owners[method.owner]
        parts = owners.spread(errors, method.pool)
        met = owners.meet(parts)
        for _ in range(method.steps - 1):
            parts += owners.spread(_sigmoid(outputs - 2 * LOCAL_RATE * met) - targets, method.pool)
            met = owners.meet(parts)
        met *= parts
        lengths = np.sqrt(np.float32(2) * np.maximum(owners.members @ met, np.float32(0)))
        parts *= method.kept(lengths, method.weight(owners, bounds), clips)[owners.of_record]
        return 2 * records.inputs.T @ parts


class Hidden:
    """One layer of tanh units before the output. Parameters: their weights, unit by unit, and those of the output.

    Some columns are computed at once, side by side [record, column and unit]. Each has one unit more, which is always
    one and hears no error: its weight in the output is the constant.
    """

    noise = 1.0

    def start(self, features: int, seed: int) -> Floats:
        """Public random weights; the output begins with nothing."""
        first = np.random.default_rng(seed).normal(size=(UNITS, features)) / np.sqrt(features)
        return np.concatenate([first.ravel(), np.zeros(UNITS + 1)])

    def outputs(self, inputs: Floats, vectors: Floats) -> Floats:
        """One column after the other."""
        found = []
        for vector in vectors.T.astype(np.float32):
            first, last = _divide(vector[:, None])
            found.append(_units(inputs @ first) @ last)
        return np.stack(found, axis=1)

    def total(self, method: Method, records: Records, bounds: Bounds, vectors: Floats, clips: Floats) -> Floats:
        """Some people, or one silo, and some columns at once."""
        found, given = np.zeros(vectors.shape), vectors.astype(np.float32)
        for part in records.divided(method.owner):
            most = max(1, MOST_UNITS // (len(part.targets) * ALL_UNITS))
            for own in (slice(first, first + most) for first in range(0, len(clips), most)):
                found[:, own] += self._total(method, part, bounds, given[:, own], clips[own])
        return found

    def _total(self, method: Method, records: Records, bounds: Bounds, vectors: Floats, clips: Floats) -> Floats:
        first, last = _divide(vectors)
        before = records.inputs @ first
        if method.owner == "record":
            hidden, errors, back = _pass(before, last, records.targets)
            squares = records.lengths[:, None] ** 2 * _by_column(back**2) + errors**2 * _by_column(hidden**2)
            kept = method.kept_records(np.sqrt(squares), records, bounds, clips)
            back *= _by_unit(kept)
            return _joined(records.inputs.T @ back, np.einsum("ij,ij->j", hidden, _by_unit(errors * kept)))
        owners = records.owners[method.owner]
        parts, heads = self._updates(method, owners, records, before, last)
        squares = owners.members @ _by_column(parts * owners.meet(parts)) + _by_column(heads**2)
        kept = method.kept(np.sqrt(np.maximum(squares, 0)), method.weight(owners, bounds), clips)
        parts *= _by_unit(kept)[owners.of_record]
        return _joined(records.inputs.T @ parts, np.einsum("ij,ij->j", heads, _by_unit(kept)))

    def _updates(
        self, method: Method, owners: Owners, records: Records, before: Floats, last: Floats
    ) -> tuple[Floats, Floats]:
        """How far each owner comes: factors of its inputs [record, unit], and its output's weights [owner, unit]."""
        parts = heads = np.zeros(1, np.float32)
        for step in range(method.steps):
            moved = before - LOCAL_RATE * owners.meet(parts) if step else before.copy()
            own = (last - LOCAL_RATE * heads)[owners.of_record] if step else last
            hidden, errors, back = _pass(moved, own, records.targets)
            hidden *= _by_unit(errors)
            parts = parts + owners.spread(back, method.pool)
            heads = heads + owners.members @ owners.spread(hidden, method.pool)
        return parts, heads


def _pass(before: Floats, last: Floats, targets: Floats) -> tuple[Floats, Floats, Floats]:
    """Units, errors, and what each unit hears of its error, from what the units were given, which is overwritten."""
    hidden = _units(before)
    errors = _sigmoid(_by_column(hidden * last)) - targets[:, None]
    back = hidden * hidden
    np.subtract(1, back, out=back)
    back *= last
    back *= _by_unit(errors)
    return hidden, errors, back


def _units(before: Floats) -> Floats:
    """What units say, from what they are given, which is overwritten."""
    np.tanh(before, out=before)
    before[:, UNITS::ALL_UNITS] = 1
    return before


def _divide(vectors: Floats) -> tuple[Floats, Floats]:
    """Weights of units [feature, column and unit] and of outputs [column and unit]."""
    columns = vectors.shape[1]
    first = np.zeros((len(vectors) // UNITS - 1, columns, ALL_UNITS), np.float32)
    first[..., :UNITS] = vectors[:-ALL_UNITS].reshape(UNITS, -1, columns).transpose(1, 2, 0)
    return first.reshape(len(first), -1), vectors[-ALL_UNITS:].T.ravel()


def _joined(first: Floats, last: Floats) -> Floats:
    """What _divide divides."""
    parts = first.reshape(len(first), -1, ALL_UNITS)[..., :UNITS].transpose(2, 0, 1)
    return np.concatenate([parts.reshape(-1, parts.shape[2]), last.reshape(-1, ALL_UNITS).T])


def _by_column(values: Floats) -> Floats:
    """Added up over units [record, column]."""
    return values @ _of_columns(values.shape[1] // ALL_UNITS)


def _by_unit(values: Floats) -> Floats:
    """The same for each of a column's units [record, column and unit]."""
    return values @ _of_columns(values.shape[1]).T


@cache
def _of_columns(columns: int) -> Floats:
    """Which units are a column's [column and unit, column]; products with it are faster than sums and repeats."""
    return np.repeat(np.eye(columns, dtype=np.float32), ALL_UNITS, axis=0)


def _sigmoid(outputs: Floats) -> Floats:
    """1/(1 + e^−x), by the fastest function that numpy has for it."""
    found = np.tanh(0.5 * outputs)
    found *= 0.5
    found += 0.5
    return found


MODELS: dict[str, Model] = {"linear": Linear(), "mlp": Hidden()}
