"""The last layer of a public start in the benchmark of the field: softmax regression on frozen features.

As in field_models.py, an owner's gradient is a combination of its records' inputs, here one for each class, and its
length follows from the inner products of these: no owner's gradient is formed.
"""

from collections.abc import Iterator

import numpy as np

from rivals import LOCAL_RATE, Bounds, Floats, Method, Records

MOST_SCORES = 20_000_000
"""Scores that are in memory at once; columns are taken by so many."""


class Softmax:
    """Parameters [feature, class] as one column; outputs are scores [record, column, class]."""

    noise = 1.0

    def __init__(self, first: Floats) -> None:
        """Where every method begins [feature, class]."""
        self.first, self.classes = first, first.shape[1]

    def start(self, features: int, seed: int) -> Floats:
        """The public start's own last layer."""
        return self.first.astype(np.float64).ravel()

    def outputs(self, inputs: Floats, vectors: Floats) -> Floats:
        """By one product."""
        return self._flat(inputs, vectors).reshape(len(inputs), vectors.shape[1], self.classes)

    def total(self, method: Method, records: Records, bounds: Bounds, vectors: Floats, clips: Floats) -> Floats:
        """Some columns at once."""
        found = [
            self._total(method, records, bounds, vectors[:, own], clips[own])
            for own in self._columns(len(records.targets), vectors.shape[1])
        ]
        return np.concatenate(found, axis=1)

    def _columns(self, records: int, columns: int) -> Iterator[slice]:
        most = max(1, MOST_SCORES // (records * self.classes))
        return (slice(first, first + most) for first in range(0, columns, most))

    def _total(self, method: Method, records: Records, bounds: Bounds, vectors: Floats, clips: Floats) -> Floats:
        outputs = self._flat(records.inputs, vectors)
        errors = self._errors(outputs.copy(), records)
        if method.owner == "record":
            lengths = np.sqrt(self._by_column(errors**2)) * records.lengths[:, None]
            kept = method.kept_records(lengths, records, bounds, clips)
            return self._sum(records, errors, kept)
        owners = records.owners[method.owner]
        parts = owners.spread(errors, method.pool)
        met = owners.meet(parts)
        for _ in range(method.steps - 1):
            moved = self._errors(outputs - np.float32(LOCAL_RATE) * met, records)
            parts = parts + owners.spread(moved, method.pool)
            met = owners.meet(parts)
        met *= parts
        lengths = np.sqrt(np.maximum(owners.members @ self._by_column(met), np.float32(0)))
        kept = method.kept(lengths, method.weight(owners, bounds), clips)
        return self._sum(records, parts, kept[owners.of_record])

    def _flat(self, inputs: Floats, vectors: Floats) -> Floats:
        """Scores [record, column and class]."""
        columns = vectors.shape[1]
        weights = vectors.reshape(-1, self.classes, columns).swapaxes(1, 2).reshape(-1, columns * self.classes)
        return inputs @ weights.astype(np.float32)

    def _errors(self, outputs: Floats, records: Records) -> Floats:
        """Shares of classes less the true class [record, column and class]; what is given is overwritten."""
        scores = outputs.reshape(len(outputs), -1, self.classes)
        scores -= scores.max(2, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(2, keepdims=True)
        scores[np.arange(len(scores)), :, records.targets.astype(np.int64)] -= 1
        return scores.reshape(len(outputs), -1)

    def _by_column(self, values: Floats) -> Floats:
        """Added up over classes [record, column]."""
        return values.reshape(len(values), -1, self.classes).sum(2)

    def _sum(self, records: Records, parts: Floats, kept: Floats) -> Floats:
        """The sum of what is kept of each record's gradient [parameter, column]."""
        shares = parts.reshape(len(parts), -1, self.classes) * kept[:, :, None].astype(np.float32)
        found = records.inputs.T @ shares.reshape(len(parts), -1)
        return found.reshape(found.shape[0], -1, self.classes).swapaxes(1, 2).reshape(-1, kept.shape[1])
