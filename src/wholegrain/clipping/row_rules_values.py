"""Where rows lie after arithmetic: place by place, along lines, and reductions."""

from wholegrain.clipping.row_places import Call, Found, Kind, Place, require, rule
from wholegrain.clipping.tape import Ref

TOGETHER = "values of several rows are put together"


@rule(
    "clone", "_to_copy", "copy", "fill", "floor_divide", "_conj", "hardtanh_backward", "leaky_relu_backward",
    "elu_backward", "softplus_backward", "hardswish", "hardswish_backward", "hardsigmoid_backward",
    "hardshrink_backward", "softshrink_backward", "mish_backward", "_prelu_kernel", "_prelu_kernel_backward", "zero",
    "smooth_l1_loss", "huber_loss", "mse_loss", "binary_cross_entropy", "soft_margin_loss",
    "binary_cross_entropy_with_logits", "smooth_l1_loss_backward", "huber_loss_backward", "mse_loss_backward",
    "binary_cross_entropy_backward", "soft_margin_loss_backward",
)  # fmt: skip
def pointwise(call: Call) -> Found:
    """Each value of the result comes from the values at the same place of the arguments, which are broadcast."""
    require(not call.has("reduction") or call["reduction"] == 0, TOGETHER)
    size, placed = len(call.out), []
    for each in call.tensors:
        where = call.where(each)
        require(where is not Kind.NUMBERS, "the numbers of rows are used as values")
        if isinstance(where, Place):
            placed.append((each, where.moved(size - len(call.shape(each)))))
    return call.agree(placed)


@rule("triu", "tril")
def triangle(call: Call) -> Found:
    """By the places along the last two dimensions."""
    place = call.place(call["self"])
    require(place.dim < len(call.out) - 2, "what becomes of a row hangs on its place in the batch")
    return place


@rule("bucketize")
def sorted_in(call: Call) -> Found:
    """Each value among boundaries that everybody shares."""
    return call.together("self")


def _dims(call: Call, value: Ref) -> set[int]:
    """The dimensions that an operation works along: all of them, if none is named."""
    given = call["dim"] if call.has("dim") else call["dims"] if call.has("dims") else None
    size = len(call.shape(value))
    if given is None or given == []:
        return set(range(size))
    return {dim % max(1, size) for dim in (given if isinstance(given, (list, tuple)) else (given,))}


@rule("sum", "mean", "amax", "amin", "var", "std", "var_mean", "std_mean", "logsumexp", "prod", "any", "all", "argmax",
      "argmin", "linalg_vector_norm", "norm", "max", "min", "median", "nanmedian", "mode", "kthvalue", "aminmax",
      "count_nonzero", "nansum")  # fmt: skip
def reduced(call: Call) -> Found:
    """Along dimensions that do not count rows; a sum along that which does is an end."""
    if call.name in ("max", "min") and len(call.tensors) == 2:
        return pointwise(call)
    value = call.op.args[0]
    place, dims = call.place(value), _dims(call, value)
    if call.name == "sum" and place.dim in dims:
        return call.end("sum", 0)
    require(place.dim not in dims, TOGETHER)
    keep = call.has("keepdim") and call["keepdim"]
    return place if keep else place.moved(-sum(dim < place.dim for dim in dims))


@rule("_softmax", "_log_softmax", "_safe_softmax", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort",
      "topk", "flip", "roll", "glu", "_fft_r2c", "_fft_c2r", "_fft_c2c")  # fmt: skip
def along(call: Call) -> Found:
    """Within lines along dimensions that do not count rows."""
    value = call.op.args[0]
    place = call.place(value)
    require(place.dim not in _dims(call, value), TOGETHER)
    return place


@rule("_softmax_backward_data", "_log_softmax_backward_data", "glu_backward")
def along_backward(call: Call) -> Found:
    """As forward, for a gradient and what was computed from it."""
    place = call.together("grad_output", "self" if call.name == "glu_backward" else "output")
    require(place.dim != call["dim"] % len(call.shape(call["grad_output"])), TOGETHER)
    return place
