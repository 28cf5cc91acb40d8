"""The models of the benchmark of the field: sums of clipped contributions of a linear model and of a small MLP.

An owner's gradient of a layer is a combination of its records' inputs to it, and its length follows from the inner
products of these. Those of the first layer's inputs never change and are computed once; no owner's gradient is formed.
Both models have one output, of which the loss is that of a logistic regression. The library's linear model has a score
for each of two classes; their difference is what is trained here: its gradient is twice that of the second class, whose
length is √2 times as much, and so is its noise.
"""

from typing import Protocol

import numpy as np

from rivals import LOCAL_RATE, Bounds, Floats, Method, Owners, Records

UNITS = 16
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
    """One layer of tanh units before the output. Parameters: their weights, unit by unit, and those of the output."""

    noise = 1.0

    def start(self, features: int, seed: int) -> Floats:
        """Public random weights; the output begins with nothing."""
        first = np.random.default_rng(seed).normal(size=(UNITS, features)) / np.sqrt(features)
        return np.concatenate([first.ravel(), np.zeros(UNITS + 1)])

    def outputs(self, inputs: Floats, vectors: Floats) -> Floats:
        """One column after the other."""
        found = []
        for vector in vectors.T.astype(np.float32):
            first, last = _divide(vector)
            found.append(_with_one(np.tanh(inputs @ first.T)) @ last)
        return np.stack(found, axis=1)

    def total(self, method: Method, records: Records, bounds: Bounds, vectors: Floats, clips: Floats) -> Floats:
        """One column after the other."""
        pairs = zip(vectors.T.astype(np.float32), clips, strict=True)
        return np.stack([self._column(method, records, bounds, *each) for each in pairs], axis=1)

    def _column(self, method: Method, records: Records, bounds: Bounds, vector: Floats, clip: float) -> Floats:
        first, last = _divide(vector)
        before = records.inputs @ first.T
        if method.owner == "record":
            hidden, errors, back = _pass(before, last[None], records.targets)
            squares = records.lengths**2 * (back**2).sum(1) + errors**2 * (hidden**2).sum(1)
            kept = method.kept_records(np.sqrt(squares)[:, None], records, bounds, np.array([clip]))
            return _joined((back * kept).T @ records.inputs, (errors[:, None] * kept * hidden).sum(0))
        owners = records.owners[method.owner]
        parts, heads = self._updates(method, owners, records, before, last)
        squares = (owners.members @ (parts * owners.meet(parts))).sum(1) + (heads**2).sum(1)
        kept = method.kept(np.sqrt(np.maximum(squares, 0))[:, None], method.weight(owners, bounds), np.array([clip]))
        return _joined((parts * kept[owners.of_record]).T @ records.inputs, (heads * kept).sum(0))

    def _updates(
        self, method: Method, owners: Owners, records: Records, before: Floats, last: Floats
    ) -> tuple[Floats, Floats]:
        """How far each owner comes: factors of its inputs [record, unit], and its output's weights [owner, unit]."""
        parts, heads = np.zeros_like(before), np.zeros((len(owners.count), len(last)), np.float32)
        for step in range(method.steps):
            moved = before - LOCAL_RATE * owners.meet(parts) if step else before
            own = (last - LOCAL_RATE * heads)[owners.of_record] if step else last[None]
            hidden, errors, back = _pass(moved, own, records.targets)
            parts = parts + owners.spread(back, method.pool)
            heads = heads + owners.members @ owners.spread(errors[:, None] * hidden, method.pool)
        return parts, heads


def _pass(before: Floats, last: Floats, targets: Floats) -> tuple[Floats, Floats, Floats]:
    """Units with a constant, errors, and what each unit hears of its error, from what the units were given."""
    hidden = np.tanh(before)
    ones = _with_one(hidden)
    errors = _sigmoid((ones * last).sum(1)) - targets
    return ones, errors, errors[:, None] * last[:, :-1] * (1 - hidden**2)


def _divide(vector: Floats) -> tuple[Floats, Floats]:
    return vector[: -UNITS - 1].reshape(UNITS, -1), vector[-UNITS - 1 :]


def _joined(first: Floats, last: Floats) -> Floats:
    return np.concatenate([first.ravel(), last])


def _with_one(hidden: Floats) -> Floats:
    return np.column_stack([hidden, np.ones(len(hidden), np.float32)])


def _sigmoid(outputs: Floats) -> Floats:
    """1/(1 + e^−x), by the fastest function that numpy has for it."""
    found = np.tanh(0.5 * outputs)
    found *= 0.5
    found += 0.5
    return found


MODELS: dict[str, Model] = {"linear": Linear(), "mlp": Hidden()}
