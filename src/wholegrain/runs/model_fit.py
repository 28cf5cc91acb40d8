"""Whether a model and the data go together, tried before anything is paid for: a failing step would tell of people."""

import warnings

import numpy as np
import torch
from torch import nn

from wholegrain import _check
from wholegrain.clipping.clipping import Clip
from wholegrain.clipping.errors_as_values import ErrorsAsValues
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.trial_items import TRIAL, make_items
from wholegrain.data.dataset import Dataset
from wholegrain.errors import ModelError
from wholegrain.models.dropout import with_item_coins, without_dropout
from wholegrain.models.model_inputs import are_tokens, values
from wholegrain.runs.model_repeats import find_memory, random_states
from wholegrain.silo.views import apply_view


class _RefusedError(ModelError):
    """What there is to say of a model, and not only that it does not fit."""


def require_fit(
    model: nn.Module, gradients: ErrorsAsValues, clip: Clip, dataset: Dataset, frozen: nn.Module | None = None
) -> None:
    """Two items of zeros through the gradients of the plan, so that what cannot train is refused before it costs.

    Gradients are those of what follows `frozen`, where it is given. A model that changes its buffers on the way would
    carry facts about private rows out of the silo without noise.
    """
    _require_single_precision(model)
    vector = flatten(model)
    inputs = values(torch.from_numpy(dataset.data.inputs[:0]).new_zeros(2, *dataset.data.inputs.shape[1:]))
    targets, groups = torch.from_numpy(dataset.task.made_up(2)), torch.arange(2)
    shape = (2, dataset.task.outputs)
    before = [buffer.clone() for buffer in model.buffers()]
    drawn, mixes = random_states(), False
    try:
        with without_dropout(model):
            outputs = model(inputs)
        if outputs.shape == shape:
            mixes = _mixes(model, inputs)
        if outputs.dim() != 2 or outputs.shape == shape:  # else its shape is what there is to say
            seen = inputs if frozen is None else apply_view(inputs, frozen, groups.numpy())
            gradients.engine(vector, seen, targets, groups, clip)
    except _RefusedError:
        raise
    except Exception as error:  # the model is the user's own code
        raise ModelError(
            f"The model does not fit the data ({dataset.features} features, {dataset.task}): {_check.reason(error)}."
        ) from error
    if tuple(outputs.shape) != shape:
        raise ModelError(
            f"The model gives outputs of shape {list(outputs.shape)} for 2 items; it should be {list(shape)}, for"
            f" {dataset.task}."
        )
    if random_states() != drawn:
        raise ModelError("The model draws random numbers of its own, so that no run could be repeated; remove them.")
    if mixes:
        raise ModelError(
            "The model mixes the items of a batch (an item's output depends on the others), so no item's influence can"
            " be bounded."
        )
    if not bool(torch.isfinite(vector).all()):
        raise ModelError("The model's initial parameters are not all finite.")
    if any(not torch.equal(old, new) for old, new in zip(before, model.buffers(), strict=True)):
        raise ModelError("The model changes its buffers while it runs, which would keep private facts without noise.")
    if (memory := find_memory(with_item_coins(model), inputs)) is not None:
        raise ModelError(
            f"The model {memory}, so that one person's presence changes what is computed of others; a model must be a"
            " function of its parameters and its items (nn.Dropout is fine)."
        )


MIXING = (3, 8, 16, 50, 128)
"""Sizes of batches in which a model is watched for items that depend on each other."""


def mixes_items(model: nn.Module, inputs: torch.Tensor) -> bool:
    """Whether an item's output depends on the others in its batch, as far as made-up items of this shape can show.

    No guarantee rests on it: a model whose items meet where no made-up item shows it is not proved, and sees each unit
    alone. This is to say early what would learn nothing.
    """
    return any(_mixes_in(model, batch, size) for batch in make_items(inputs) for size in MIXING)


def _mixes_in(model: nn.Module, batch: torch.Tensor, size: int) -> bool:
    """Whether made-up items, repeated up to a batch of this size, give other outputs than each alone."""
    number = torch.arange(size) % TRIAL
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a model says where there are no gradients
        together = model(batch[number].clone())
        alone = torch.cat([model(batch[k : k + 1].clone()) for k in range(TRIAL)])[number]
    return together.shape != alone.shape or not torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True)


def _mixes(model: nn.Module, inputs: torch.Tensor) -> bool:
    """Whether the model mixes items; one that cannot take made-up ones at all is refused."""
    try:
        with without_dropout(model):
            return mixes_items(model, inputs)
    except Exception as error:  # the model is the user's own code
        items, mend = "tokens 0 and 1", "give it a larger vocabulary"
        if inputs.is_floating_point():
            items, mend = "values", "it must take any finite numbers"
        raise _RefusedError(f"The model cannot take made-up {items}: {_check.reason(error)}; {mend}.") from error


def require_tokens(model: nn.Module, dataset: Dataset) -> None:
    """Refuse tokens that the model does not know: it would fail in a step, where a failure tells whose they are.

    Private: the refusal, which one person's items can decide; it is for whoever holds the data, before any release.
    """
    stored = dataset.data.inputs
    if not len(stored) or not are_tokens(stored.dtype):
        return
    least, most = stored.min(0), stored.max(0)  # of every position by itself: each may have a vocabulary of its own
    try:
        with torch.no_grad():
            model(values(torch.from_numpy(np.stack([least, most]))))
    except Exception as error:  # the model is the user's own code
        raise ModelError(
            f"The model cannot take all tokens of the data, which are from {least.min()} to {most.max()}:"
            f" {_check.reason(error)}; give it a larger vocabulary, or mend the data."
        ) from error


def _require_single_precision(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.get_default_dtype():
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ModelError(
                f"The model's parameter '{name}' is {kind}; models are trained in float32: give net.float()."
            )
