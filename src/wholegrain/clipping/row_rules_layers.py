"""Where rows lie after products, convolutions, norms, pooling, attention and losses; most of the ends are here."""

from math import prod

from wholegrain.clipping.row_places import Call, Found, Kind, Place, Rule, Where, require, rule
from wholegrain.clipping.tape import Ref

ADDED = "values of several rows are added up"
MEET = "rows meet other rows"
FIRST = "rows lie where channels, places or features are expected"


@rule("mm")
def multiplied(call: Call) -> Found:
    """A matrix with rows and one that everybody shares; two with rows are an end where they are added up."""
    one, other = call["self"], call["mat2"]
    if isinstance(call.where(one), Place) and isinstance(call.where(other), Place):
        require((call.place(one).dim, call.place(other).dim) == (1, 0), MEET)
        call.agree([(one, call.place(one).moved(-1)), (other, call.place(other))])
        return call.end("product", 0)
    return _single(call, one, other)


def _single(call: Call, one: Ref, other: Ref) -> Place:
    left, right = call.where(one), call.where(other)
    if isinstance(left, Place) and right is Kind.SHARED:
        require(left.dim == 0, ADDED)
        return left
    require(left is Kind.SHARED and isinstance(right, Place) and right.dim == 1, ADDED)
    return call.place(other)


@rule("bmm")
def batch_multiplied(call: Call) -> Found:
    """Matrices of each row; or an end, where two with rows are added up."""
    one, other = call["self"], call["mat2"]
    left, right = call.where(one), call.where(other)
    if isinstance(left, Place) and isinstance(right, Place) and (left.dim, right.dim) == (2, 1):
        call.agree([(one, left.moved(-1)), (other, right)])
        return call.end("products", 0)
    return _batched(call, one, other)


def _batched(call: Call, one: Ref, other: Ref) -> Place:
    left, right = call.where(one), call.where(other)
    if isinstance(left, Place) and isinstance(right, Place):
        require(left.dim == right.dim == 0, MEET)
        return call.agree([(one, left), (other, right)])
    if isinstance(left, Place) and right is Kind.SHARED:
        require(left.dim == 1, ADDED)
        return left
    require(left is Kind.SHARED and isinstance(right, Place) and right.dim == 2, ADDED)
    return call.place(other)


@rule("addmm", "baddbmm")
def added(call: Call) -> Found:
    """A product, and what is added to it."""
    batched, start = call.name == "baddbmm", call["self"]
    names = ("batch1", "batch2") if batched else ("mat1", "mat2")
    place = (_batched if batched else _single)(call, call[names[0]], call[names[1]])
    if call.where(start) is not Kind.SHARED:
        require(call.place(start).moved(len(call.out) - len(call.shape(start))) == place, MEET)
    return place


def _first(place: Place) -> Place:
    require(place.dim == 0, FIRST)
    return place


@rule("convolution")
def convolved(call: Call) -> Found:
    """Each image by itself."""
    return _first(call.together("input"))


@rule("convolution_backward")
def convolved_back(call: Call) -> Found:
    """Each image by itself; kernels and biases are ends."""
    return _with_end(call, "convolution", _first(call.together("grad_output", "input")))


def _with_end(call: Call, name: str, place: Place) -> Found:
    """The place of what goes on, and sums for those of the results that are wanted."""
    mask = call["output_mask"]
    wanted = [number for number in (1, 2) if mask[number]]
    if wanted:
        call.end(name, *wanted)
    return _wanted(call, place, Kind.SUMMED, Kind.SUMMED)


def _wanted(call: Call, *places: Where) -> tuple[Where, ...]:
    """Places of those results that there are."""
    return tuple(place for place, there in zip(places, call["output_mask"], strict=True) if there)


@rule("affine_grid_generator")
def framed(call: Call) -> Found:
    """The places of each image by its own matrix."""
    return _first(call.together("theta"))


@rule("grid_sampler_2d")
def sampled(call: Call) -> Found:
    """Each image at its own places."""
    return _first(call.together("input", "grid"))


@rule("native_layer_norm")
def layer_norm(call: Call) -> Found:
    """Each position by itself."""
    place = call.together("input")
    require(place.dim < len(call.out) - len(call["normalized_shape"]), ADDED)
    return (place,) * len(call.op.outs)


@rule("native_layer_norm_backward")
def layer_norm_back(call: Call) -> Found:
    """Each position by itself; weight and bias are ends."""
    place = call.together("grad_out", "input", "mean", "rstd")
    require(place.dim < len(call.shape(call["input"])) - len(call["normalized_shape"]), ADDED)
    return _with_end(call, "layer norm", place)


def _own_groups(call: Call, place: Place) -> Place:
    """Whether the sizes that a group norm is told are those of its input."""
    shape = call.shape(call["input"])
    told = [call["N"], call["C"], call["HxW"]]
    require(told == [shape[0], shape[1], prod(shape[2:])], "values are taken for those of other rows")
    return _first(place)


@rule("native_group_norm")
def group_norm(call: Call) -> Found:
    """Each item by itself."""
    return (_own_groups(call, call.together("input")),) * 3


@rule("native_group_norm_backward")
def group_norm_back(call: Call) -> Found:
    """Each item by itself; weight and bias are ends."""
    place = call.together("grad_out", "input", "mean", "rstd")
    return _with_end(call, "group norm", _own_groups(call, place))


TRAINING = "a batch norm in training puts all rows together; use a group or layer norm, or call eval()"


@rule("native_batch_norm")
def batch_norm(call: Call) -> Found:
    """By statistics that are kept, or of channels that belong to one row, as an instance norm has them."""
    if call["training"]:
        place = _of_channels(call, "input")
        return place, place.moved(-1), place.moved(-1)
    return (_first(call.together("input")), *(Kind.SHARED for _ in call.op.outs[1:]))


def _of_channels(call: Call, *names: str) -> Place:
    """Each channel of one row, with statistics, weights and biases of its own."""
    own = [(each, call.place(each)) for name, each in call.op if name not in names and isinstance(each, Ref)]
    places = [(call[each], call.place(call[each])) for each in names]
    require(all(place.dim == 1 for _, place in places), TRAINING)
    return call.agree([*places, *((each, place.moved(1)) for each, place in own)])


@rule("native_batch_norm_backward")
def batch_norm_back(call: Call) -> Found:
    """As forward."""
    if call["train"]:
        place = _of_channels(call, "grad_out", "input")
        return _wanted(call, place, place.moved(-1), place.moved(-1))
    return _with_end(call, "batch norm", _first(call.together("grad_out", "input")))


IMAGES = {
    1: "reflection_pad1d replication_pad1d upsample_linear1d upsample_nearest1d _upsample_nearest_exact1d",
    2: "avg_pool2d max_pool2d_with_indices reflection_pad2d replication_pad2d upsample_bilinear2d upsample_nearest2d"
    " _upsample_nearest_exact2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa _adaptive_avg_pool2d"
    " adaptive_max_pool2d pixel_shuffle pixel_unshuffle channel_shuffle grid_sampler_2d max_unpool2d",
    3: "avg_pool3d max_pool3d_with_indices reflection_pad3d replication_pad3d upsample_trilinear3d upsample_nearest3d"
    " _upsample_nearest_exact3d _adaptive_avg_pool3d adaptive_max_pool3d grid_sampler_3d",
}


def _of_images(dims: int) -> Rule:
    def found(call: Call) -> Found:
        """Each image by itself."""
        place = call.agree((each, call.place(each)) for each in call.tensors)
        size = call["input_size"] if call.has("input_size") else None
        require(len(call.out) == dims + 2, FIRST)
        require(size is None or list(size) == list(call.out), "values are taken for those of other rows")
        return _first(place)

    return found


for _dims, _names in IMAGES.items():
    rule(*_names.split(), *(f"{name}_backward" for name in _names.split()))(_of_images(_dims))


@rule("im2col", "col2im")
def patches(call: Call) -> Found:
    """Patches of each image, or each image from its patches."""
    place = call.together("self")
    require(len(call.shape(call["self"])) == (4 if call.name == "im2col" else 3), FIRST)
    return _first(place)


@rule("nll_loss_forward", "nll_loss2d_forward")
def loss_of_class(call: Call) -> Found:
    """Of each row by itself."""
    require(call["reduction"] == 0, ADDED)
    return _first(call.together("self", "target")), Kind.SHARED


@rule("nll_loss_backward", "nll_loss2d_backward")
def loss_of_class_back(call: Call) -> Found:
    """As forward."""
    require(call["reduction"] == 0, ADDED)
    return _first(call.together("grad_output", "self", "target"))


@rule("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
def attended(call: Call) -> Found:
    """Each head of each item by itself."""
    names = [each for each, value in call.op if isinstance(value, Ref) and each != "attn_mask"]
    mask = call["attn_mask"]
    if isinstance(call.where(mask), Place):
        require(len(call.shape(mask)) == 4, FIRST)
        names.append("attn_mask")
    return (_first(call.together(*names)),) * len(call.op.outs)


@rule("wholegrain::lstm", "wholegrain::lstm_backward", "wholegrain::gru", "wholegrain::gru_backward",
      "wholegrain::rnn", "wholegrain::rnn_backward")  # fmt: skip
def recurred(call: Call) -> Found:
    """A recurrent layer of this package: values [time, row, feature], or [row, feature], and weights of everybody."""
    for name, each in call.op:
        if name in ("weight", "bias"):
            call.shared(each)
        elif isinstance(each, Ref):
            require(call.place(each) == Place(len(call.shape(each)) - 2), FIRST)
    shapes = [call.facts.tape.shape(out) for out in call.op.outs]
    return tuple(Place(len(shape) - 2) for shape in shapes)
