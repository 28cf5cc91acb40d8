"""The last layer of a public start in the benchmark of the field: softmax regression on frozen features.

As in field_models.py, an owner's gradient is a combination of its records' inputs, here one for each class, and its
length follows from the inner products of these: no owner's gradient is formed.
"""

from collections.abc import Iterator

import numpy as np

from rivals import LOCAL_RATE, Bounds, Floats, Method, Records

MOST_SCORES = 100_000
"""Scores that are computed at once, few enough for a processor's cache; columns are taken by so many."""


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
        return self._flat(inputs, vectors).reshape(len(inputs), self.classes, -1).swapaxes(1, 2)

    def total(self, method: Method, records: Records, bounds: Bounds, vectors: Floats, clips: Floats) -> Floats:
        """Some people and some columns at once; a silo is one whole."""
        found, given = np.zeros(vectors.shape), vectors.astype(np.float32)
        for part in (records,) if method.owner == "silo" else records.parts:
            for own in self._columns(len(part.targets), vectors.shape[1]):
                found[:, own] += self._total(method, part, bounds, given[:, own], clips[own])
        return found

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
        for _ in range(method.steps - 1):
            moved = self._errors(outputs - np.float32(LOCAL_RATE) * owners.meet(parts), records)
            parts = parts + owners.spread(moved, method.pool)
        lengths = np.sqrt(self._by_column(owners.squares(parts)))
        kept = method.kept(lengths, method.weight(owners, bounds), clips)
        return self._sum(records, parts, kept[owners.of_record])

    def _flat(self, inputs: Floats, vectors: Floats) -> Floats:
        """Scores [record, class and column]."""
        return inputs @ vectors.reshape(inputs.shape[1], -1).astype(np.float32)

    def _errors(self, outputs: Floats, records: Records) -> Floats:
        """Shares of classes less the true class [record, class and column]; what is given is overwritten."""
        scores = outputs.reshape(len(outputs), self.classes, -1)
        scores -= scores.max(1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(1, keepdims=True)
        scores[np.arange(len(scores)), records.targets.astype(np.int64)] -= 1
        return scores.reshape(len(outputs), -1)

    def _by_column(self, values: Floats) -> Floats:
        """Added up over classes [record, column]."""
        return values.reshape(len(values), self.classes, -1).sum(1)

    def _sum(self, records: Records, parts: Floats, kept: Floats) -> Floats:
        """The sum of what is kept of each record's gradient [parameter, column]."""
        shares = parts.reshape(len(parts), self.classes, -1) * kept[:, None].astype(np.float32)
        return (records.inputs.T @ shares.reshape(len(parts), -1)).reshape(-1, kept.shape[1])
