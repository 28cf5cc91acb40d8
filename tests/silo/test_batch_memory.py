"""Memory of batches is used again, and never while anything refers to it."""

from threading import Thread

import numpy as np
import pytest
import torch

from wholegrain.clipping.rounding import VECTOR_BYTES
from wholegrain.data.subjects import SubjectData
from wholegrain.policies.policy import SiloFacts
from wholegrain.silo import batch_memory
from wholegrain.silo.batch_memory import BatchMemory
from wholegrain.silo.training import Batch, Silo, _gather

STORED = np.arange(300, dtype=np.float32).reshape(100, 3)


def where(rows: np.ndarray | torch.Tensor) -> int:
    return rows.data_ptr() if isinstance(rows, torch.Tensor) else rows.ctypes.data


def test_rows_are_copied_and_begin_at_a_vector() -> None:
    places = np.array([5, 0, 99, 5])
    found = BatchMemory().copy_rows(STORED, places)
    assert np.array_equal(found, STORED[places])
    assert where(found) % VECTOR_BYTES == 0


def test_memory_is_used_again_once_nothing_refers_to_it() -> None:
    memory = BatchMemory()
    first = memory.copy_rows(STORED, np.arange(20))
    place = where(first)
    del first
    assert where(memory.copy_rows(STORED, np.arange(15))) == place


@pytest.mark.parametrize("keep", [lambda rows: rows[3:5], lambda rows: torch.from_numpy(rows[3:5]).view(-1)])
def test_a_part_keeps_all_of_it(keep) -> None:
    memory = BatchMemory()
    part = keep(memory.copy_rows(STORED, np.arange(20)))
    before = part.tolist()
    for _ in range(3):
        memory.copy_rows(STORED, np.arange(79, 99))
    assert part.tolist() == before


def test_large_copies_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_memory, "KEPT_BYTES", 100)
    memory = BatchMemory()
    memory.copy_rows(STORED, np.arange(50))
    assert not memory._blocks


def test_blocks_do_not_grow_in_number_with_sizes() -> None:
    memory = BatchMemory()
    for size in [1, 4, 16, 64, 100, 3, 50]:
        memory.copy_rows(STORED, np.arange(size))
    assert len(memory._blocks) == 1


def test_threads_share_memory_without_sharing_rows() -> None:
    memory, wrong = BatchMemory(), []

    def copy(first: int) -> None:
        for _ in range(500):
            rows = memory.copy_rows(STORED, np.arange(first, first + 10))
            if rows[0, 0] != 3 * first or rows[-1, -1] != 3 * (first + 9) + 2:
                wrong.append(first)

    threads = [Thread(target=copy, args=[first]) for first in (0, 30, 60)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


@pytest.mark.parametrize("kind", [np.float32, np.uint8, np.float64])
@pytest.mark.parametrize("width", [1, 3, 16])
def test_every_batch_begins_at_a_vector_whatever_the_sizes_before_it(kind, width: int) -> None:
    data = SubjectData(np.arange(100 * width).reshape(100, width).astype(kind), np.arange(100) % 2, np.arange(100))
    silo = Silo(SiloFacts(name="a", items=100, subjects=100, items_per_subject=1, drops_surplus=False), data)
    draws = np.random.default_rng(0)
    chosen = [np.sort(draws.choice(100, size, replace=False)) for size in (7, 0, 1, 33, 64, 5)]
    batches = [Batch(items, np.arange(len(items))) for items in chosen]
    for batch, drawn in zip(batches, _gather(silo, batches, (5.0, 5.0, 1), BatchMemory()), strict=True):
        assert np.array_equal(drawn.inputs.numpy(), data.inputs[batch.items])
        assert np.array_equal(drawn.targets.numpy(), data.targets[batch.items])
        if len(batch.items):
            assert where(drawn.inputs) % VECTOR_BYTES == where(drawn.targets) % VECTOR_BYTES == 0


def test_bfloat16_from_a_view_is_shown_as_it_is() -> None:
    data = SubjectData(np.ones((4, 2), np.float32), np.zeros(4, np.int64), np.arange(4))
    facts = SiloFacts(name="a", items=4, subjects=4, items_per_subject=1, drops_surplus=False)
    silo = Silo(facts, data, view=lambda rows: (3 * rows).bfloat16())
    (drawn,) = _gather(silo, [Batch(np.array([1, 2]), np.arange(2))], (2.0, 2.0, 1), BatchMemory())
    assert torch.equal(drawn.inputs, torch.full((2, 2), 3.0, dtype=torch.bfloat16))
