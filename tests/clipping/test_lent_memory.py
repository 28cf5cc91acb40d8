import gc
from threading import Event, Thread, current_thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.clipping.lent_memory import VECTOR_BYTES, LentMemory


def place_of(block: np.ndarray) -> int:
    return int(block.ctypes.data)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9)), max_size=60))
def test_no_two_blocks_that_are_held_overlap(orders: list[tuple[int, int]]) -> None:
    """Each order is a block's size, and which of ten holders it replaces."""
    memory, held = LentMemory(), dict[int, np.ndarray]()
    for number, (size, holder) in enumerate(orders):
        held.pop(holder, None)
        if size % 3 == 0:
            continue  # this holder has nothing for now
        block = memory.lend(size)
        assert (len(block), place_of(block) % VECTOR_BYTES) == (size, 0)
        block[:] = number
        held[holder] = block
        latest = {value: key for key, (_, value) in enumerate(orders[: number + 1])}
        for key, each in held.items():
            assert (each == latest[key]).all()


def play(memory: LentMemory, sizes: list[int]) -> list[int]:
    """Lend all, give back all; where they lay, from the lowest."""
    blocks = [memory.lend(size) for size in sizes]
    return [place_of(each) - min(map(place_of, blocks)) for each in blocks]


def test_after_a_pass_everything_fits_into_one_stretch_and_stays_there() -> None:
    memory, sizes = LentMemory(), [6400, 64, 640]
    play(memory, sizes)
    assert play(memory, sizes) == [0, 6400, 6464]
    place = place_of(memory.lend(1))
    assert memory.bytes == sum(sizes)
    assert [place_of(memory.lend(size)) for size in sizes] == [place] * 3
    assert memory.bytes == sum(sizes)


def test_neighbours_that_were_returned_are_lent_as_one() -> None:
    memory = LentMemory()
    play(memory, [640] * 4)
    first, second, third, last = (memory.lend(640) for _ in range(4))
    place = place_of(first)
    del third, first, second
    large = memory.lend(3 * 640)
    assert place_of(large) == place
    assert (memory.bytes, len(last)) == (4 * 640, 640)


def test_a_stretch_grows_by_what_did_not_fit_once_nothing_of_it_is_held() -> None:
    memory = LentMemory()
    play(memory, [640])
    held = memory.lend(640)
    play(memory, [64, 64])
    assert play(memory, [64]) == [0]
    assert memory.bytes == 640 + 64  # not yet taken back
    del held
    memory.lend(64)
    assert memory.bytes == 640 + 128


def test_a_view_keeps_its_block() -> None:
    memory = LentMemory()
    play(memory, [640])
    view = memory.lend(640)[64:128].reshape(8, 8).T
    view[:] = 1
    memory.lend(640)[:] = 2
    assert (view == 1).all()


def test_what_was_forgotten_does_not_come_back() -> None:
    memory = LentMemory()
    play(memory, [640])
    held = memory.lend(640)
    memory.forget()
    assert memory.bytes == 0
    held[:] = 1
    del held
    gc.collect()
    one, other = memory.lend(640), memory.lend(640)
    assert place_of(one) != place_of(other)
    assert memory.bytes == 2 * 640


def test_a_block_that_is_returned_while_the_stretch_grows_is_not_lent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection may free the last block between two looks at what was returned."""
    memory = LentMemory()
    memory.lend(100)
    held = [memory.lend(100)]  # in the stretch, of which it takes all
    memory.lend(100)  # beside it, so that the stretch is to grow
    take_back = memory._take_back

    def free_afterwards() -> None:
        take_back()
        held.clear()

    monkeypatch.setattr(memory, "_take_back", free_afterwards)
    first = memory.lend(100)
    monkeypatch.setattr(memory, "_take_back", take_back)
    second = memory.lend(100)
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_block_that_another_thread_is_about_to_return_is_not_lent_twice(forgets: bool) -> None:
    """That thread may have to wait after it took the block off the list of those that are lent."""
    begun, go = Event(), Event()

    class Slow(list):
        def append(self, place: tuple[int, int]) -> None:
            if current_thread() is other:
                begun.set()
                go.wait()
            super().append(place)

    memory, held = LentMemory(), list[np.ndarray]()
    other = Thread(target=held.clear)
    memory.lend(100)
    memory._grow()
    memory._returned = Slow()
    held.append(memory.lend(100))  # all of the stretch
    memory.lend(100)  # beside it, so that the stretch is to grow
    other.start()
    begun.wait()
    if forgets:
        memory.forget()
        play(memory, [100])
    first = memory.lend(100)
    go.set()
    other.join()
    second = memory.lend(100)
    assert len(first) == len(second) == 100
    assert not np.shares_memory(first, second)
