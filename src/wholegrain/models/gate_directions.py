"""In which directions public text pulls at the gates of an LSTM, and how hard: where little private training goes far.

What a model of characters learns of new text by other gates is soon lost in the noise of a private run, because most of
its many parameters matter little, and few very much. Second moments of public gradients tell which, so that a run may
train few numbers for each token, of which all matter alike [Li et al. 2022, with scales; Zhou et al. 2021, a subspace].
Nothing private is looked at: directions and scales are part of the public start.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wholegrain.errors import ModelError
from wholegrain.models.text import LastState, score_positions

WINDOWS = 256
"""Windows of public text that are looked at, at most; each position of them counts."""
ROWS = 64
COMPARED = 32
"""Windows whose gradients are compared with those of the last layer."""
TINY = 1e-30
RIDGE = 1e-3
"""As a share of the largest moment: what hardly ever pulls is not stretched without bound."""
RAREST = 1e-3
"""The least share of a token: that of one in twelve windows of 80."""


@contextmanager
def spare_at_rest(model: nn.Module) -> Iterator[None]:
    """Within it, spare numbers are not trained: they stay zero."""
    spare = [module.spare for module in model.modules() if isinstance(module, LastState) and module.spare is not None]
    for table in spare:
        table.requires_grad_(False)
    yield
    for table in spare:
        table.requires_grad_(True)


def fit_spare(model: nn.Module, tokens: Tensor, last: Tensor) -> None:
    """Let the spare numbers of tokens move the gates in the directions of the largest second moments of gradients.

    Scales make each direction, and each token, pull alike. Public `tokens` [item, position] are followed by `last`
    [item]. The spare numbers themselves stay zero, so that the model computes what it did. A model without any is left
    as it is.
    """
    states = model[0] if type(model) is nn.Sequential else None
    if not isinstance(model, nn.Sequential) or not isinstance(states, LastState) or states.spare is None:
        return
    if states.every:
        raise ModelError("A public start of text learns from every position anyway: leave out every_position.")
    apart = max(1, len(tokens) // WINDOWS)  # windows of all documents, which come one after the other
    tokens, last = tokens[::apart][:WINDOWS].long(), last[::apart][:WINDOWS]
    targets = torch.cat([tokens[:, 1:], last[:, None]], 1)
    values, vectors = torch.linalg.eigh(_second_moments(states, model[1:], tokens, targets))
    values, vectors = values.flip(0), vectors.flip(1)
    chosen = (values + RIDGE * values[0]).clamp(min=TINY).rsqrt() * vectors
    shares = torch.bincount(tokens.flatten(), minlength=states.embedding.num_embeddings) / tokens.numel()
    with torch.no_grad():
        columns = states.lstm.get_parameter("weight_ih_l0")[:, states.embedding.embedding_dim :]
        columns.copy_(chosen[:, : columns.shape[1]].to(columns.dtype))
        states.scale.copy_(shares.clamp(min=RAREST).rsqrt())
    ratio = _balance(model, states.spare.weight, tokens[:COMPARED], targets[:COMPARED])
    with torch.no_grad():
        states.scale.mul_(ratio)


def require_scales(model: nn.Module) -> None:
    """Refuse scales that are not positive and finite: what they multiply could not move, or would move without bound.

    Guarantee: none is needed. A scale is public, and gradients are clipped after it.
    """
    for name, module in model.named_modules():
        if not isinstance(module, LastState) or module.spare is None:
            continue
        if not bool((torch.isfinite(module.scale) & (module.scale > 0)).all()):
            raise ModelError(
                f"The scales '{name}.scale' of spare numbers must be positive and finite; make the start again."
            )


def _balance(model: nn.Sequential, spare: Tensor, tokens: Tensor, targets: Tensor) -> float:
    """What gradients of spare numbers must be multiplied by to be as long as those of the last layer."""
    last = list(model[-1].parameters())
    squares = torch.zeros(2, dtype=torch.float64)
    for window, right in zip(tokens, targets, strict=True):
        scores = score_positions(model, window[None])
        assert scores is not None  # of windows of one length
        found = torch.autograd.grad(cross_entropy(scores[0], right), [spare, *last])
        lengths = torch.stack([gradient.double().square().sum() for gradient in found])
        squares += torch.stack([lengths[0], lengths[1:].sum()])
    own, others = squares.clamp(min=TINY).tolist()
    return math.sqrt(others / own)


def _second_moments(states: LastState, rest: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """[gate, gate] of the gradient of a window's whole loss by the gates at a position, over all positions."""
    gates = _gates_as_inputs(states.lstm)
    total = torch.zeros(gates.input_size, gates.input_size, dtype=torch.float64)
    for some, right in zip(torch.split(tokens, ROWS), torch.split(targets, ROWS), strict=True):
        with torch.no_grad():
            pulled = states.shown(some) @ states.lstm.get_parameter("weight_ih_l0").T
        pulled.requires_grad_()
        scores = rest(gates(pulled)[0])
        loss = cross_entropy(scores.flatten(0, 1), right.flatten(), reduction="sum")
        (found,) = torch.autograd.grad(loss, pulled)
        rows = found.flatten(0, 1).double()
        total += rows.T @ rows
    return total / tokens.numel()


def _gates_as_inputs(lstm: nn.LSTM) -> nn.LSTM:
    """The same layer, of which an input is what its own inputs add to the gates."""
    found = nn.LSTM(4 * lstm.hidden_size, lstm.hidden_size, batch_first=True)
    with torch.no_grad():
        found.get_parameter("weight_ih_l0").copy_(torch.eye(4 * lstm.hidden_size))
        for name in ("weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            found.get_parameter(name).copy_(lstm.get_parameter(name))
    return found.requires_grad_(False)
