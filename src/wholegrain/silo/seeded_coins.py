"""Seeded coins of numpy, with the C program to put batches in order where it was compiled before.

Who is drawn is what numpy's generator says, number by number: its `binomial` is called, and the program
(program/draws.c) repeats what `Generator.choice` does with the same generator. Whether it does so in this
version of numpy is tried first. Where it does not, where there is no program, and for large silos, numpy does all of
it: the same batches, in more time. Reproducible, and therefore for simulation only.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np

from wholegrain.data.draws import NumpyDraws, Positions
from wholegrain.data.sampling import Source
from wholegrain.data.subjects import SubjectIndex
from wholegrain.silo.c_library import kept_library
from wholegrain.silo.counter_coins import places_of

MOST = 10_000
"""Items or subjects up to which numpy's choice is the algorithm that the program has."""
CAPSULE = b"BitGenerator"
TRIED = (1, 2, 7, 300, MOST)
"""Numbers of items with which the program is compared with numpy."""


def seeded_coins(generator: np.random.Generator) -> Source:
    """The draws of a generator, in C where that can be had."""
    return generator if find_program() is None else ChosenBatches(generator, find_program())


class ChosenBatches(NumpyDraws):
    """Draws of a numpy generator that can make whole batches; see `data.sampling.BatchDraws`."""

    def __init__(self, generator: np.random.Generator, program: Any) -> None:
        super().__init__(generator)
        self._program = program
        self._bits = _capsule_pointer()(generator.bit_generator.capsule, CAPSULE)
        self._binomial, self._memory = generator.binomial, np.empty(0, np.int64)
        self._place = 0

    def draw_batch(self, index: SubjectIndex, rate: float, by_subject: bool) -> tuple[Positions, Positions] | None:
        """Items and their groups, as `data.sampling.Batch` has them, or None where that is left to numpy."""
        if not 0 < index.items <= MOST:
            return None
        size = self._binomial(len(index.counts) if by_subject else index.items, rate)
        return self.choose_batch(index, size, by_subject, not by_subject)

    def choose_batch(
        self, index: SubjectIndex, size: int, by_subject: bool, shuffled: bool
    ) -> tuple[Positions, Positions]:
        """The batch of so many items or subjects; where numpy would shuffle them, its numbers are drawn as well."""
        room = index.items
        if len(self._memory) < 7 * room + 2:  # items, groups, and what the program needs
            self._memory = np.empty(7 * room + 2, np.int64)
            self._place = self._memory.ctypes.data
        memory, place = self._memory, self._place
        given = place + 16 * room, place, place + 8 * room
        found = self._program(self._bits, size, shuffled, ctypes.byref(places_of(index)), by_subject, *given)
        return memory[:found].copy(), memory[room : room + found].copy()


@cache
def find_program() -> Any | None:
    """The program, if it was compiled and chooses as numpy does."""
    library = kept_library()
    if library is None:
        return None
    program = library.wholegrain_choose_batch
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    program.restype = number
    program.argtypes = (pointer, number, number, pointer, number, pointer, pointer, pointer)
    return program if all(_agrees(program, count) for count in TRIED) else None


def _agrees(program: Any, count: int) -> bool:
    """Whether the same items are chosen, and the generator is left the same."""
    index, sizes = SubjectIndex.of(np.arange(count)), {0, 1, count // 3, count - 1, count}
    for shuffled in (True, False):
        own, numpy = (np.random.default_rng(count) for _ in range(2))
        for size in sorted(sizes):
            found, _ = ChosenBatches(own, program).choose_batch(index, size, False, shuffled)
            wanted = numpy.choice(count, size, replace=False, shuffle=shuffled)
            if not np.array_equal(found, np.sort(wanted)) or own.bit_generator.state != numpy.bit_generator.state:
                return False
    return True


@cache
def _capsule_pointer() -> Any:
    function = ctypes.pythonapi.PyCapsule_GetPointer
    function.restype, function.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return function
