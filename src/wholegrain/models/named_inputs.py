"""Models of Hugging Face's transformers as functions of one tensor: they take inputs by name and give an object.

A data set holds one tensor of inputs: tokens [item, position], or tokens and masks in one [item, name, position].
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wholegrain.errors import ModelError
from wholegrain.models.model_inputs import take_last

NAMES = "input_ids", "attention_mask", "token_type_ids"
"""What a tokenizer gives, in the order in which `from_torch` puts it into one tensor."""


class NamedInputs(nn.Module):
    """A model that takes inputs by name, and whose result has `.logits`."""

    def __init__(self, model: nn.Module, reads: str, padding: int | None) -> None:
        super().__init__()
        self.model, self._reads, self._padding = model, reads, padding
        self.training = model.training

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores [item, class]; where there are some for every position, those of the last that is no padding."""
        with _without_shortcuts():
            named = self._name(inputs)
            logits: Tensor = self.model(**named).logits
        if logits.dim() < 3:
            return logits
        if "attention_mask" not in named:
            return logits[:, -1]
        return take_last(logits, named["attention_mask"])

    def _name(self, inputs: Tensor) -> dict[str, Tensor]:
        if self._reads != NAMES[0]:
            return {self._reads: inputs}
        if inputs.dim() == 3:
            return dict(zip(NAMES, inputs.unbind(1), strict=False))
        if self._padding is None:
            return {NAMES[0]: inputs}
        return {NAMES[0]: inputs, NAMES[1]: (inputs != self._padding).long()}


def from_transformers(model: Any, padding: int | None = None) -> nn.Module:
    """A model of transformers, adapters by peft included, as a module that takes one tensor and gives scores.

    Its inputs are tokens [item, position], of which those that are `padding` (the model's own padding token, if left
    out) are masked; or what its tokenizer gives by name (`from_torch` takes a mapping); or images. What is frozen
    stays frozen, and dropout is on if the model is in training mode.
    """
    reads = getattr(model, "main_input_name", None)
    if not isinstance(model, nn.Module) or not isinstance(reads, str) or not hasattr(model, "config"):
        raise ModelError(f"{type(model).__name__} is no model of transformers: give a torch.nn.Module as it is.")
    given = getattr(model.config, "pad_token_id", None) if padding is None else padding
    return NamedInputs(model, reads, given)


@contextmanager
def _without_shortcuts() -> Iterator[None]:
    """No mask is left out because the items of this batch happen to need none.

    Otherwise an item would be computed differently in another batch. Libraries take no such shortcut where torch says
    that a program is compiled, for which it must be the same for all values.
    """
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
