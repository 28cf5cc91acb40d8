"""Which modules have stages in C, and which those are: encoders of sequences, in a plain sequence of modules."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from wholegrain.clipping.chain_backend import has_hooks, in_sequence
from wholegrain.clipping.layers.base import RuleError
from wholegrain.clipping.layers.encoder import require_own_parts
from wholegrain.clipping.stage_list import Function, Kind, StageList, Value
from wholegrain.models.ft_transformer import ColumnBlock, ColumnTokens, FTTransformer
from wholegrain.models.text import CausalBlock, CausalTransformer

Rule = Callable[[StageList, Any, Value], Value]


class WrongLengthError(RuleError):
    """A model is for items of another length."""

    def __init__(self, length: int) -> None:
        super().__init__(f"it is for items of length {length}")
        self.length = length


def add_model(stages: StageList, model: nn.Module) -> Value:
    """The stages of a whole model, and its outputs."""
    if has_hooks(model):
        raise RuleError("it has hooks")
    whole = WHOLE.get(type(model))
    if whole is not None:
        return whole(stages, model)
    modules = in_sequence(model)
    if not modules or type(modules[0]) is not nn.Embedding:
        raise RuleError("it does not begin with a table of tokens")
    x = _look_up(stages, modules[0], None)
    for module in modules[1:]:
        x = RULES.get(type(module), _plain)(stages, module, x)
    return x


def _look_up(stages: StageList, table: nn.Embedding, places: nn.Parameter | None) -> Value:
    _require_own(table, nn.Embedding)
    if table.padding_idx is not None or table.max_norm is not None or table.scale_grad_by_freq or table.sparse:
        raise RuleError("its table of tokens has options")
    if not table.num_embeddings:
        raise RuleError("its table of tokens is empty")
    if places is not None and places.shape[0] < stages.length:
        raise WrongLengthError(places.shape[0])
    stages.vocabulary, width = table.weight.shape
    return stages.add(
        Kind.LOOK_UP,
        None,
        stages.length,
        width,
        in_=stages.vocabulary,
        weight=stages.parameters.take(table.weight),
        bias=stages.parameters.take(places),
        heads=0 if places is None else places.shape[0],
    )


# ---- rules for modules of a sequence ----


def _linear(stages: StageList, module: nn.Linear, x: Value) -> Value:
    _require_own(module, nn.Linear)
    if x.width != module.in_features and x.rows == 1 and x.width % stages.length == 0:
        raise WrongLengthError(module.in_features // (x.width // stages.length))
    return stages.linear(x, module.weight, module.bias)


def _require_own(module: nn.Module, kind: type[nn.Module]) -> None:
    """Refuse a part that was replaced: it may compute something else."""
    if type(module) is not kind:
        raise RuleError("some of its parts were replaced")


def _layer_norm(stages: StageList, module: nn.LayerNorm, x: Value) -> Value:
    _require_own(module, nn.LayerNorm)
    return stages.norm(x, module, module.eps)


def _rms_norm(stages: StageList, module: nn.RMSNorm, x: Value) -> Value:
    _require_own(module, nn.RMSNorm)
    return stages.norm(x, module, torch.finfo(torch.float32).eps if module.eps is None else module.eps)


def _flatten(stages: StageList, module: nn.Flatten, x: Value) -> Value:
    if (module.start_dim, module.end_dim) != (1, -1):
        raise RuleError("it does not lay out a whole item in a row")
    return Value(x.place, 1, x.rows * x.width)


def _function(function: Function) -> Rule:
    return lambda stages, module, x: stages.function(x, function)


def _gelu(stages: StageList, module: nn.GELU, x: Value) -> Value:
    if module.approximate != "none":
        raise RuleError("its gelu is another")
    return stages.function(x, Function.GELU)


def _plain(stages: StageList, module: nn.Module, x: Value) -> Value:
    """A module of the user's own: the mean over positions, the first of them or the last."""
    if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
        raise RuleError("it has no stages")
    found = _pooling(module)
    if found is None or x.rows != stages.length:
        raise RuleError("it has no stages")
    if found == "mean":
        return stages.add(Kind.MEAN, x, 1, x.width)
    return stages.add(Kind.PICK, x, 1, x.width, option=0 if found == "first" else x.rows - 1)


def _pooling(module: nn.Module) -> str | None:
    """What a module does, if it is one operation over positions."""
    try:
        nodes = list(fx.symbolic_trace(module).graph.nodes)
    except Exception:  # whatever a user's code raises when it is not given a tensor
        return None
    if [node.op for node in nodes] not in (
        ["placeholder", "call_method", "output"],
        ["placeholder", "call_function", "output"],
    ):
        return None
    call = nodes[1]
    if call.target is operator.getitem:
        return next((name for name, at in PICKED.items() if call.args[1] == at), None)
    options = {**dict(zip(("self", "dim"), call.args, strict=False)), **call.kwargs}
    is_mean = call.target in ("mean", torch.mean) and options.keys() == {"self", "dim"} and options["dim"] == 1
    return "mean" if is_mean and len(call.args) + len(call.kwargs) == 2 else None


# ---- encoder layers ----


def _encoder_layer(stages: StageList, module: nn.TransformerEncoderLayer, x: Value) -> Value:
    attention = module.self_attn
    require_own_parts(module)
    if not attention.batch_first or attention.in_proj_weight is None:
        raise RuleError("its items are not the first dimension")
    if any(part.p for part in (module.dropout, module.dropout1, module.dropout2)) or attention.dropout:
        raise RuleError("it has dropout")
    x = _require_rows(stages, x)

    def attend(given: Value) -> Value:
        packed = stages.linear(given, attention.in_proj_weight, attention.in_proj_bias)
        seen = stages.attention(packed, attention.num_heads, causal=False)
        return stages.linear(seen, attention.out_proj.weight, attention.out_proj.bias)

    def feed(given: Value) -> Value:
        inner = stages.linear(given, module.linear1.weight, module.linear1.bias)
        return stages.linear(
            stages.function(inner, _activation(module.activation)), module.linear2.weight, module.linear2.bias
        )

    for part, norm in ((attend, module.norm1), (feed, module.norm2)):
        if module.norm_first:
            x = stages.sum(part(_layer_norm(stages, norm, x)), x)
        else:
            x = stages.norm(stages.sum(part(x), x), norm, norm.eps, in_place=True)
    return x


def _require_rows(stages: StageList, x: Value) -> Value:
    if x.rows != stages.length:
        raise RuleError("it attends to something else than positions")
    return x


def _activation(given: Any) -> Function:
    if given is functional.relu or type(given) is nn.ReLU:
        return Function.RELU
    if given is functional.gelu or (type(given) is nn.GELU and given.approximate == "none"):
        return Function.GELU
    raise RuleError("its activation is neither relu nor gelu")


# ---- models of the catalogue ----


def _causal_transformer(stages: StageList, model: CausalTransformer) -> Value:
    if model.padding is not None:
        raise RuleError("its texts have different lengths")
    if model.every:
        raise RuleError("it scores every position")
    x = _look_up(stages, model.tokens, model.places)
    for block in model.blocks:
        _require_own(block, CausalBlock)
        assert isinstance(block, CausalBlock)
        x = _causal_block(stages, block, x)
    last = stages.add(Kind.PICK, x, 1, x.width, option=x.rows - 1)
    return _linear(stages, model.head, _rms_norm(stages, model.norm, last))


def _causal_block(stages: StageList, block: CausalBlock, x: Value) -> Value:
    if block.prefix is not None or block.drop.p:
        raise RuleError("it has a prefix or dropout")
    packed = _linear(stages, block.fused, _rms_norm(stages, block.first, x))
    x = stages.sum(_linear(stages, block.out, stages.attention(packed, block.heads, causal=True)), x)
    inner = _linear(stages, block.inner, _rms_norm(stages, block.second, x))
    return stages.sum(_linear(stages, block.outer, stages.function(inner, Function.GELU)), x)


def _ft_transformer(stages: StageList, model: FTTransformer) -> Value:
    tokens = model.tokens
    _require_own(tokens, ColumnTokens)
    columns, width = tokens.directions.shape
    if stages.length != columns:
        raise WrongLengthError(columns)
    take = stages.parameters.take
    places = {"weight": take(tokens.directions), "bias": take(tokens.places), "other": take(tokens.answer)}
    x = stages.add(Kind.COLUMNS, None, 1 + columns, width, **places)
    for block in model.blocks:
        _require_own(block, ColumnBlock)
        assert isinstance(block, ColumnBlock)
        x = _column_block(stages, block, x)
    first = stages.add(Kind.PICK, x, 1, width, option=0)
    return _linear(stages, model.head, stages.function(_layer_norm(stages, model.norm, first), Function.RELU))


def _column_block(stages: StageList, block: ColumnBlock, x: Value) -> Value:
    packed = _linear(stages, block.fused, _layer_norm(stages, block.first, x))
    x = stages.sum(_linear(stages, block.out, stages.attention(packed, block.heads, causal=False)), x)
    inner = _linear(stages, block.inner, _layer_norm(stages, block.second, x))
    gated = stages.add(Kind.GATE, inner, x.rows, inner.width // 2)
    return stages.sum(_linear(stages, block.outer, gated), x)


PICKED = {"first": (slice(None), 0), "last": (slice(None), -1)}
RULES: Mapping[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.Flatten: _flatten,
    nn.ReLU: _function(Function.RELU),
    nn.GELU: _gelu,
    nn.Tanh: _function(Function.TANH),
    nn.Sigmoid: _function(Function.SIGMOID),
    nn.TransformerEncoderLayer: _encoder_layer,
}
WHOLE: Mapping[type[nn.Module], Callable[[StageList, Any], Value]] = {
    CausalTransformer: _causal_transformer,
    FTTransformer: _ft_transformer,
}
