"""After rows were added up: only what is linear in the sum, and meets no rows again, is a sum over rows, too."""

from wholegrain.clipping.row_places import Call, Found, Kind, require
from wholegrain.clipping.row_rules_shapes import is_zeros
from wholegrain.clipping.tape import Ref

LINEAR = {
    "self": "view reshape _unsafe_view unsqueeze squeeze t transpose permute expand repeat select slice diagonal unfold"
    " neg clone _to_copy sum mean flip roll triu tril cumsum index index_select gather constant_pad_nd masked_fill div",
    "grad_output": "slice_backward select_backward embedding_dense_backward sigmoid_backward tanh_backward"
    " gelu_backward threshold_backward silu_backward softplus_backward elu_backward leaky_relu_backward"
    " hardtanh_backward _softmax_backward_data _log_softmax_backward_data",
    "grad_out": "native_layer_norm_backward",
    "grad_w": "_weight_norm_interface_backward",
    "values": "index_put _unsafe_index_put",
    "src": "scatter_add",
    "source": "index_add",
    "B": "linalg_lu_solve linalg_solve_triangular",
}
"""Argument in which operations are linear, as long as the others are shared."""
IN = {name: argument for argument, names in LINEAR.items() for name in names.split()}
PRODUCTS = frozenset({"mul", "mm", "bmm"})
SUMS = frozenset({"add", "sub", "cat", "stack"})


def after_end(call: Call) -> Found:
    """Of what has summed arguments."""
    kinds = [call.where(each) for each in call.tensors]
    require(set(kinds) <= {Kind.SUMMED, Kind.SHARED}, "what was added up over rows meets rows again")
    fits = False
    if call.name in SUMS:
        fits = Kind.SHARED not in kinds and (call.name in ("cat", "stack") or len(kinds) == 2)
    elif call.name == "where":
        fits = call.where(call["condition"]) is Kind.SHARED and _is_nothing_else(call)
    elif call.name in PRODUCTS:
        fits = kinds.count(Kind.SUMMED) == 1
    elif call.name in IN:
        fits = call.where(call[IN[call.name]]) is Kind.SUMMED and kinds.count(Kind.SUMMED) == 1 and _no_more(call)
    require(fits, "what was added up over rows is not used in a linear way")
    return (Kind.SUMMED,) * len(call.op.outs)


def _is_nothing_else(call: Call) -> bool:
    """Whether what stands where no sum is taken is zero."""
    others = [call[name] for name in ("self", "other") if call.where(call[name]) is not Kind.SUMMED]
    return all(is_zeros(call, each) if isinstance(each, Ref) else each == 0 for each in others)


def _no_more(call: Call) -> bool:
    """Whether nothing is rounded, or added to the sum."""
    if call.name == "div":
        return not call.has("rounding_mode") or call["rounding_mode"] is None
    if call.name in ("constant_pad_nd", "masked_fill"):
        return bool(call["value"] == 0)
    if call.name in ("_to_copy", "sum", "mean", "cumsum"):
        return call["dtype"] is None or bool(call["dtype"].is_floating_point)
    if call.name in ("index_put", "_unsafe_index_put"):
        return bool(call["accumulate"]) and is_zeros(call, call["self"])
    if call.name in ("scatter_add", "index_add"):
        return is_zeros(call, call["self"])
    return True
