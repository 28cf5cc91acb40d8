"""The last layer of a public start in the benchmark of the field: softmax regression on frozen features.

As in field_models.py, an owner's gradient is a combination of its records' inputs, here one for each class, and its
length follows from the inner products of these: no owner's gradient is formed.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch.nn.functional import pad

from rivals import LOCAL_RATE, Bounds, Floats, Method, Records

MOST_SCORES = 200_000
"""Scores that are computed at once, few enough for a processor's cache."""
REGISTER = 16
"""Numbers that a processor takes at once: so many columns are computed together where scores are few, else one."""


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
        """Some people, or one silo, and some columns at once."""
        found, given = np.zeros(vectors.shape), vectors.astype(np.float32)
        for part in records.divided(method.owner):
            for own in self._columns(len(part.targets), vectors.shape[1]):
                found[:, own] += self._total(method, part, bounds, given[:, own], clips[own])
        return found

    def _columns(self, records: int, columns: int) -> Iterator[slice]:
        most = REGISTER if records * self.classes * REGISTER <= MOST_SCORES else 1
        return (slice(first, first + most) for first in range(0, columns, most))

    def _total(self, method: Method, records: Records, bounds: Bounds, vectors: Floats, clips: Floats) -> Floats:
        outputs = self._flat(records.inputs, vectors)
        errors = self._errors(outputs, records)
        if method.owner == "record":
            lengths = np.sqrt(self._by_column(errors, errors)) * records.lengths[:, None]
            return self._sum(records, errors, method.kept_records(lengths, records, bounds, clips))
        owners = records.owners[method.owner]
        parts = owners.spread(errors, method.pool)
        for _ in range(method.steps - 1):
            moved = self._errors(outputs - np.float32(LOCAL_RATE) * owners.meet(parts), records)
            parts = parts + owners.spread(moved, method.pool)
        lengths = np.sqrt(owners.squares(parts, self._by_column))
        kept = method.kept(lengths, method.weight(owners, bounds), clips)
        return self._sum(records, parts, kept[owners.of_record])

    def _flat(self, inputs: Floats, vectors: Floats) -> Floats:
        """Scores [record, class and column]."""
        return inputs @ vectors.reshape(inputs.shape[1], -1).astype(np.float32)

    def _errors(self, outputs: Floats, records: Records) -> Floats:
        """Shares of classes less the true class [record, class and column]."""
        scores = torch.from_numpy(outputs.reshape(len(outputs), self.classes, -1))
        columns = scores.shape[2]
        # Of one column or of whole registers torch is several times as fast as numpy, of others slower.
        padded = scores[..., 0] if columns == 1 else pad(scores, (0, -columns % REGISTER))
        shares = torch.softmax(padded, 1).view(len(outputs), self.classes, -1)[..., :columns].contiguous().numpy()
        shares[np.arange(len(shares)), records.targets.astype(np.int64)] -= 1
        return shares.reshape(len(outputs), -1)

    def _by_column(self, one: Floats, other: Floats) -> Floats:
        """Products, added up over classes [record, column]."""
        both = (each.reshape(len(each), self.classes, -1) for each in (one, other))
        return np.einsum("ijk,ijk->ik", *both)

    def _sum(self, records: Records, parts: Floats, kept: Floats) -> Floats:
        """The sum of what is kept of each record's gradient [parameter, column]; the parts are overwritten."""
        shares = parts.reshape(len(parts), self.classes, -1)
        shares *= kept[:, None]
        return (records.inputs.T @ parts).reshape(-1, kept.shape[1])
