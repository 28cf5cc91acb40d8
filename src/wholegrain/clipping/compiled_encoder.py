"""Gradients of encoders of sequences by a program in C (program/clipped_encoder.c): the clipped sum of a batch at once.

Every unit is computed by itself, item after item, and its whole gradient is formed: it is small enough to stay in the
processor's cache. Nothing has to be tried of kernels, as for dense chains (`compiled_chain`): all arithmetic is defined
to the last bit.
"""

import ctypes
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.clipping.c_library import load_library
from wholegrain.clipping.clipping import Clip
from wholegrain.clipping.compiled_batch import DONE, LOSSES, BatchPlaces, give_batch, place_of, require_agreement
from wholegrain.clipping.compiled_sum import CompiledSum, clip_facts
from wholegrain.clipping.encoder_stages import WrongLengthError, add_model
from wholegrain.clipping.layers.base import RuleError
from wholegrain.clipping.parameters import Layout
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.stage_list import PackedFloats, Stage, StageList, whole_lines
from wholegrain.clipping.trial_items import TRIAL, make_items
from wholegrain.errors import ModelError

BAD_TARGET, BAD_TOKEN = 2, 3
"""Numbers as in clipped_encoder.c, and so is the structure below."""
MOST_PARAMETERS = 2**19
"""Of which a gradient in single precision and a sum in double precision still fit a cache. Beyond, torch is as fast."""
LENGTH = 4
"""Of the items that a model is first tried on, if it takes items of any length."""


class EncoderFacts(ctypes.Structure):
    """What is public: stages, sizes, loss, clip."""

    _fields_ = (
        ("stages", ctypes.POINTER(Stage)),
        *((name, ctypes.c_int64) for name in ("count", "loss", "outputs", "length", "vocabulary")),
        *((name, ctypes.c_int64) for name in ("parameters", "values", "gradients", "packed")),
        ("norm", ctypes.c_double),
        ("averages", ctypes.c_int64),
    )


@dataclass(frozen=True, eq=False)
class Program:
    """Stages for items of one length, and the memory that they need."""

    facts: EncoderFacts
    stages: ctypes.Array[Stage]
    scratch: Tensor


class CompiledEncoder(CompiledSum):
    """The sum of one encoder and its loss."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        """Raises ModelError where there is no program for the model."""
        length = _find_length(model, loss)
        super().__init__(model, loss)
        self._library = load_library()
        for function in ("wholegrain_encoder_scratch", "wholegrain_packed_floats"):
            getattr(self._library, function).restype = ctypes.c_int64
        self._programs = dict[int, Program]()
        self._program(length)

    @staticmethod
    def knows(model: nn.Module, loss: Loss) -> bool:
        """Whether the program is for this model and this loss."""
        try:
            _find_length(model, loss)
        except ModelError:
            return False
        return True

    def _add_to(
        self, total: Tensor, vector: Tensor, inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip
    ) -> int:
        program = self._program_for(inputs)
        inputs, targets = self._require_form(program, vector, inputs, targets)
        done, zeroed = give_batch(partial(self._add_up, program, vector, clip, total), inputs, targets, groups, clip)
        if done != DONE:
            known = program.facts.outputs if done == BAD_TARGET else program.facts.vocabulary
            kind = "target is no class" if done == BAD_TARGET else "token is none"
            raise ModelError(f"A {kind} from 0 to {known - 1}.")
        return zeroed

    def _add_up(
        self, program: Program, vector: Tensor, clip: Clip, total: Tensor, batch: BatchPlaces
    ) -> tuple[int, int]:
        """What the program says, and how many units it left out; the sum is in `total`."""
        zeroed, facts = ctypes.c_int64(), program.facts
        facts.norm, facts.averages = clip_facts(clip)
        places = (ctypes.c_void_p(place_of(values)) for values in (program.scratch, total))
        parameters = ctypes.c_void_p(place_of(vector)), ctypes.c_int64(vector.numel())
        done: int = self._library.wholegrain_encoder_sum(
            ctypes.byref(facts), *parameters, ctypes.byref(batch), *places, ctypes.byref(zeroed)
        )
        return done, zeroed.value

    def _program_for(self, inputs: Tensor) -> Program:
        """The program for items of this length."""
        length = math.prod(inputs.shape[1:])
        try:
            return self._program(length)
        except RuleError as error:
            raise ModelError(f"The compiled program was given items of {length} values, and {error}.") from error

    def _program(self, length: int) -> Program:
        """Made when it is first asked for, and compared with the reference."""
        if length not in self._programs:
            self._programs[length] = self._make(length)
            try:
                self._require_agreement(self._programs[length])
            except BaseException:
                del self._programs[length]
                raise
        return self._programs[length]

    def _make(self, length: int) -> Program:
        found, outputs = _find_stages(self.model, length, self._packed_floats)
        stages = (Stage * len(found.stages))(*found.stages)
        facts = EncoderFacts(
            stages,
            len(stages),
            LOSSES[self._loss],
            outputs,
            length,
            found.vocabulary,
            whole_lines(self._layout.size),
            found.values.size,
            found.gradients.size,
            found.packed.size,
        )
        size = self._library.wholegrain_encoder_scratch(ctypes.byref(facts))
        return Program(facts, stages, torch.empty(size, dtype=torch.uint8))

    def _packed_floats(self, shape: tuple[int, int]) -> int:
        found: int = self._library.wholegrain_packed_floats(*(ctypes.c_int64(size) for size in shape))
        return found

    def _require_form(self, program: Program, vector: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets as they must lie in memory; a wrong length would be read beyond its end."""
        items, facts = len(inputs), program.facts
        expected = (items,) if self._loss is cross_entropy else (items, facts.outputs)
        kinds = (
            torch.float32,
            torch.int64 if facts.vocabulary else torch.float32,
            torch.int64 if self._loss is cross_entropy else torch.float32,
        )
        if (
            vector.shape != (self._layout.size,)
            or (inputs.dim() != 2 if facts.vocabulary else inputs.dim() < 2)
            or targets.shape != expected
            or (vector.dtype, inputs.dtype, targets.dtype) != kinds
        ):
            given = ", ".join(f"{list(each.shape[1:])} of {each.dtype}" for each in (inputs, targets))
            raise ModelError(
                f"The compiled program takes items [{facts.length}] of {kinds[1]} and targets {list(expected[1:])} of"
                f" {kinds[2]}, and was given {given}."
            )
        return inputs.contiguous(), targets.contiguous()

    def _require_agreement(self, program: Program) -> None:
        facts, kind = program.facts, torch.int64 if program.facts.vocabulary else torch.float32
        targets = torch.full((TRIAL, facts.outputs), 0.3)
        if self._loss is cross_entropy:
            targets = torch.arange(TRIAL) % facts.outputs
        made_up = make_items(torch.empty(0, facts.length, dtype=kind))
        if facts.vocabulary:
            made_up = (tokens.clamp(max=facts.vocabulary - 1) for tokens in made_up)
        require_agreement(self, self.model, self._loss, made_up, targets)


def _find_stages(model: nn.Module, length: int, packed_floats: PackedFloats) -> tuple[StageList, int]:
    """A model's stages for items of one length, and how many outputs it has."""
    found = StageList(model, length, packed_floats)
    outputs = add_model(found, model)
    if outputs.rows != 1:
        raise RuleError("it has outputs for every position")
    found.finish()
    return found, outputs.width


def _find_length(model: nn.Module, loss: Loss) -> int:
    """A length of items that the model takes, or one sentence on why there is no program for it."""
    try:
        if loss not in LOSSES:
            raise RuleError("its loss is another")
        if Layout.of(model).size > MOST_PARAMETERS:
            raise RuleError(f"it has more than {MOST_PARAMETERS:,} parameters")
        try:
            _find_stages(model, LENGTH, math.prod)
        except WrongLengthError as known:
            _find_stages(model, known.length, math.prod)
            return known.length
    except RuleError as error:
        raise ModelError(f"The program for encoders does not know this model: {error}.") from error
    return LENGTH
