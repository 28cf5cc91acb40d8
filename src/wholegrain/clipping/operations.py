"""How torch's operations round: which need no check of their kernels, and which need one in each size."""

import math

import torch

from wholegrain.clipping.row_places import RULES
from wholegrain.clipping.row_rules_values import pointwise
from wholegrain.clipping.tape import Op, Ref

# fmt: off
MOVES = frozenset({
    "alias", "arange", "as_strided", "cat", "clone", "constant_pad_nd", "contiguous", "copy", "copy_", "detach",
    "diagonal", "embedding", "empty", "empty_like", "expand", "fill", "fill_", "flatten", "flip", "full", "gather",
    "im2col", "index", "index_put", "index_select", "lift_fresh", "lift_fresh_copy", "masked_fill", "masked_fill_",
    "max_pool2d_with_indices", "new_empty", "new_zeros", "ones", "ones_like", "permute", "repeat", "reshape", "roll",
    "scatter", "select", "select_backward", "slice", "slice_backward", "slice_scatter", "split", "split_with_sizes",
    "squeeze", "stack", "t", "_to_copy", "transpose", "tril", "triu", "unbind", "unfold", "_unsafe_view", "unsqueeze",
    "view", "where", "zero_", "zeros", "zeros_like", "topk", "sort", "argmax", "argmin",
})
"""Compute nothing: values are copied, chosen, or seen in another shape."""
ROUNDED = frozenset({
    "abs", "add", "add_", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "clamp", "clamp_min",
    "clamp_max", "div", "div_", "eq", "ge", "gt", "le", "logical_and", "logical_not", "logical_or", "lt", "maximum",
    "minimum", "mul", "mul_", "ne", "neg", "reciprocal", "relu", "relu_", "rsqrt", "sign", "sqrt", "square", "sub",
    "sub_", "threshold_backward", "__rshift__", "__lshift__",
})
"""One or two operations of IEEE 754 for each value, which has one right result by whatever instruction."""
PRODUCTS = frozenset({
    "mm", "addmm", "mv", "addmv", "bmm", "baddbmm", "convolution", "convolution_backward",
    *(f"wholegrain::{kind}{way}" for kind in ("lstm", "gru", "rnn") for way in ("", "_backward")),
})
"""Made of matrix products, whose order of adding up may hang on how many rows there are."""
INSIDE = frozenset({"glu", "glu_backward", "logsumexp"})
"""Compute values one by one on their way."""
# fmt: on


def is_rounded_once(op: Op) -> bool:
    """Whether no kernel can round a value of its result in two ways."""
    if op.name == "pow":
        return not isinstance(op.args[1], Ref) and op.args[1] == 2
    alpha = op.kwargs.get("alpha", 1)
    return op.name in MOVES or (op.name in ROUNDED and math.frexp(abs(alpha))[0] == 0.5)


def is_product(op: Op) -> bool:
    """Whether it is made of matrix products."""
    return op.name in PRODUCTS


def is_by_value(op: Op) -> bool:
    """Whether each value is computed by itself, so that only vectors and their remainder can round differently."""
    return torch.Tag.pointwise in op.target.tags or RULES.get(op.name) is pointwise or op.name in INSIDE
