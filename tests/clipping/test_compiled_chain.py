"""The compiled program: as the reference says, everybody by themselves to the last bit."""

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, multi_margin_loss

from compilers import CLIPS, each_clip, require_compiler
from wholegrain.clipping import c_library, reference
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.compiled_chain import LOSSES, MOST_LAYERS, CompiledChain
from wholegrain.clipping.devices import HOST, Compute
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.losses import huber, squared_error
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.programs import find_program
from wholegrain.clipping.unit_passes import clipped_sums
from wholegrain.errors import ModelError, SpecError

require_compiler()

LAYOUTS = {
    "logistic": ([7, 2], nn.Tanh),
    "one feature, one output": ([1, 1], nn.Tanh),
    "tanh": ([16, 64, 2], nn.Tanh),
    "relu": ([5, 33, 17, 3], nn.ReLU),
    "sigmoid": ([24, 9, 31], nn.Sigmoid),
    "wide": ([300, 10, 100], nn.ReLU),
}
each_model = pytest.mark.parametrize("name", LAYOUTS)


def chain(name: str) -> nn.Sequential:
    torch.manual_seed(3)
    widths, function = LAYOUTS[name]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), function()]
    return nn.Sequential(*layers[:-1])


def make_batch(model: nn.Module, loss: object, items: int = 61, seed: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Subjects of all sizes up to 40 items, whose items do not lie side by side."""
    draws, linear = torch.Generator().manual_seed(seed), [m for m in model.modules() if isinstance(m, nn.Linear)]
    outputs = linear[-1].out_features
    inputs = torch.randn(items, linear[0].in_features, generator=draws) * 2
    targets = torch.rand(items, outputs, generator=draws)
    if loss in (cross_entropy, multi_margin_loss):
        targets = torch.randint(outputs, (items,), generator=draws)
    groups = torch.tensor([0] * 40 + [1, 1, 2, 3, 3, 3] + [4 + k // 2 for k in range(items)])[:items]
    return inputs, targets, groups[torch.randperm(items, generator=draws)]


@each_clip
@each_model
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_sums_are_those_of_the_reference(name: str, clip: Clip, loss: reference.Loss) -> None:
    if loss is cross_entropy and LAYOUTS[name][0][-1] == 1:
        pytest.skip("one class is none")
    model = chain(name)
    batch, vector = make_batch(model, loss), flatten(model)
    found = CompiledChain(model, loss)(vector, *batch, clip)
    wanted = reference.clipped_sum(model, loss, vector, *batch, clip)
    assert found.total.dtype is torch.float64
    assert found.zeroed == wanted.zeroed == 0
    assert torch.linalg.vector_norm(found.total - wanted.total) <= 1e-5 * torch.linalg.vector_norm(wanted.total)


@pytest.mark.parametrize("function", [nn.Tanh, nn.Sigmoid, nn.ReLU])
def test_functions_are_right_for_numbers_of_every_size(function: type[nn.Module]) -> None:
    """One input, one hidden unit: the gradient of the last weight is the function's value, times a known one."""
    model = nn.Sequential(nn.Linear(1, 1), function(), nn.Linear(1, 1))
    engine = CompiledChain(model, squared_error)
    for z in (*(sign * 2.0**k for sign in (-1, 1) for k in range(-149, 128)), 0.0, -0.0, 3.3, 8.9, -9.1, 87.5, -88.9):
        vector = torch.tensor([1.0, 0.0, 0.0, 0.0])
        batch = torch.tensor([[z]]), torch.tensor([[-1.0]]), torch.tensor([0])
        total = engine(vector, *batch, Clip(ClipPer.NONE, Pool.SUM, 1.0)).total
        wanted = function()(torch.tensor(z).double())
        assert abs(total[2] - wanted) <= 4e-7 * abs(wanted) + 2**-148


def in_chaos(vector: Tensor) -> Tensor:
    """Parameters under which sums of many large numbers cancel, so that a rounding error decides a sign."""
    draws = torch.Generator().manual_seed(11)
    return vector + torch.randn(vector.shape, generator=draws) * 2.0 ** torch.randint(
        0, 20, vector.shape, generator=draws
    )


@pytest.mark.parametrize("chaos", [False, True])
@pytest.mark.parametrize("clip", [CLIPS[0], *CLIPS[2:4]], ids=lambda clip: f"{clip.per}-{clip.pool}")
@pytest.mark.parametrize("name", ["logistic", "tanh", "relu", "sigmoid"])
def test_a_sum_is_that_of_what_everybody_gives_alone_to_the_last_bit(name: str, clip: Clip, chaos: bool) -> None:
    """So nobody changes what another gives: not by where they lie, not by how many there are."""
    model = chain(name)
    engine, vector = CompiledChain(model, cross_entropy), flatten(model)
    vector = in_chaos(vector) if chaos else vector
    inputs, targets, groups = make_batch(model, cross_entropy)
    units = torch.arange(len(groups)) if clip.per is ClipPer.ITEM else groups
    whole = engine(vector, inputs, targets, groups, clip).total
    alone = torch.zeros_like(whole)
    for unit in torch.unique(units).tolist():
        own = units == unit
        alone = alone + engine(vector, inputs[own], targets[own], torch.zeros_like(units[own]), clip).total
    assert torch.equal(whole, alone)


@pytest.mark.parametrize("clip", CLIPS[:4], ids=lambda clip: f"{clip.per}-{clip.pool}")
def test_who_leaves_takes_away_what_they_gave_and_no_more(clip: Clip) -> None:
    model = chain("tanh")
    engine, vector = CompiledChain(model, cross_entropy), in_chaos(flatten(model))
    batch = make_batch(model, cross_entropy)
    whole = engine(vector, *batch, clip).total
    for leaver in torch.unique(batch[2]).tolist():
        others = batch[2] != leaver
        rest = engine(vector, *(each[others] for each in batch), clip).total
        own = engine(vector, *(each[~others] for each in batch), clip).total
        assert torch.allclose(whole, rest + own, rtol=0, atol=61**2 * 2.0**-53 * clip.norm)
        items = int((~others).sum()) if clip == CLIPS[0] else 1
        assert torch.linalg.vector_norm(whole - rest) <= items * clip.norm * (1 + 2**-30)


@pytest.mark.parametrize("clip", CLIPS[:4], ids=lambda clip: f"{clip.per}-{clip.pool}")
def test_what_is_not_finite_counts_as_zero_and_leaves_others_as_they_are(clip: Clip) -> None:
    model = chain("relu")
    engine, vector = CompiledChain(model, cross_entropy), flatten(model)
    inputs, targets, groups = make_batch(model, cross_entropy)
    others = groups != 1
    inputs[~others] = 3e38
    vector[:5] = 1e30  # overflows for these alone
    found = engine(vector, inputs, targets, groups, clip)
    rest = engine(vector, inputs[others], targets[others], groups[others], clip)
    assert found.zeroed == (2 if clip.per is ClipPer.ITEM else 1)
    assert rest.zeroed == 0
    assert torch.isfinite(found.total).all()
    assert torch.equal(found.total, rest.total)


def test_rounding_in_a_sum_of_millions_stays_small() -> None:
    """Many pull a sum to a power of two. Beyond it, what the rest gives is rounded up by as much as it is long.

    In one long sum whoever leaves takes away 1.00024 C of three million units, and 1.0625 C of fifty million.
    """
    heavy, light, step = 2**20, 2**21, 2.0 ** (20 - 52)
    engine = CompiledChain(nn.Linear(1, 1), squared_error)
    inputs, groups = torch.full((heavy + light, 1), 2.0**30), torch.arange(heavy + light)
    targets = torch.cat([torch.full((heavy, 1), -32.0), torch.full((light, 1), -0.51 * step * 2.0**-30)])
    clip = Clip(ClipPer.ITEM, Pool.SUM, 1.0)
    whole = engine(torch.zeros(2), inputs, targets, groups, clip).total
    rest = engine(torch.zeros(2), inputs[1:], targets[1:], groups[1:], clip).total
    assert float(whole[0]) > heavy
    assert abs(float(torch.linalg.vector_norm(whole - rest)) - 1) < 2**-20


def test_the_calling_program_s_random_numbers_stay_as_they_were() -> None:
    model = nn.Linear(3, 2)
    before = torch.get_rng_state()
    CompiledChain(model, huber)
    assert torch.equal(before, torch.get_rng_state())


def test_parameters_that_are_not_finite_give_zeros() -> None:
    model = chain("tanh")
    batch, vector = make_batch(model, cross_entropy), flatten(model)
    vector[3] = torch.inf
    found = CompiledChain(model, cross_entropy)(vector, *batch, CLIPS[2])
    assert found.zeroed == len(torch.unique(batch[2]))
    assert not found.total.any()


def test_an_empty_batch_gives_zeros() -> None:
    model = chain("tanh")
    empty = tuple(each[:0] for each in make_batch(model, cross_entropy))
    found = CompiledChain(model, cross_entropy)(flatten(model), *empty, CLIPS[2])
    assert found.zeroed == 0
    assert found.total.shape == flatten(model).shape
    assert not found.total.any()


def test_what_the_calling_program_has_set_makes_no_difference() -> None:
    model = chain("tanh")
    batch, vector = make_batch(model, cross_entropy), flatten(model) * 2.0**-70
    batch[0].mul_(2.0**-70)
    engine = CompiledChain(model, cross_entropy)
    plain = engine(vector, *batch, CLIPS[2]).total
    torch.set_flush_denormal(True)
    try:
        flushed = engine(vector, *batch, CLIPS[2]).total
    finally:
        torch.set_flush_denormal(False)
    assert plain.any()
    assert torch.equal(plain, flushed)


def test_images_are_laid_out_where_the_model_says_so() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images = torch.rand(4, 3, 4), torch.arange(4) % 3, torch.arange(4)
    rows = images[0].flatten(1), *images[1:]
    engine, vector = CompiledChain(model, cross_entropy), flatten(model)
    assert torch.equal(engine(vector, *images, CLIPS[0]).total, engine(vector, *rows, CLIPS[0]).total)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, y, g: (x[:, :5], y, g), "takes rows of 16"),
        (lambda x, y, g: (x.double(), y, g), "torch.float64"),
        (lambda x, y, g: (x[:, None], y, g), "takes rows of 16"),
        (lambda x, y, g: (x, y.float(), g), "targets"),
        (lambda x, y, g: (x, y[:, None], g), "targets"),
        (lambda x, y, g: (x, y[:-1], g), "targets"),
        (lambda x, y, g: (x, y + 1, g), "no class from 0 to 1"),
        (lambda x, y, g: (x, y - 1, g), "no class from 0 to 1"),
        (lambda x, y, g: (x, y, g[:-1]), "61 items"),
    ],
)
def test_what_would_be_read_beyond_its_end_is_refused(change: object, sentence: str) -> None:
    model = nn.Sequential(*chain("tanh")[1:])
    engine = CompiledChain(model, cross_entropy)
    with pytest.raises(ModelError, match=sentence):
        engine(flatten(model), *change(*make_batch(model, cross_entropy)), CLIPS[2])  # type: ignore[operator]


def frozen() -> nn.Module:
    model = chain("tanh")
    model[1].bias.requires_grad_(False)
    return model


def tied() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        nn.Sequential(*[layer for _ in range(MOST_LAYERS + 1) for layer in (nn.Linear(2, 2), nn.ReLU())][:-1]),
        frozen(),
        tied(),
    ],
    ids=["convolution", "no bias", "gelu", "nothing between", "dropout", "no head", "deep", "frozen", "tied"],
)
def test_other_models_are_refused_in_one_sentence_and_have_no_program(model: nn.Module) -> None:
    with pytest.raises(ModelError, match=r"^The program for chains is for up to 16 linear layers .* is another\.$"):
        CompiledChain(model, cross_entropy)
    assert find_program(model, cross_entropy) is None
    assert isinstance(clipped_sums(model, cross_entropy, Compute(compiled=True)).engine, BookKeeping)


def test_other_losses_are_refused_in_one_sentence() -> None:
    with pytest.raises(ModelError, match="knows the losses cross_entropy"):
        CompiledChain(chain("tanh"), multi_margin_loss)
    assert find_program(chain("tanh"), multi_margin_loss) is None
    assert {cross_entropy, binary_cross_entropy_with_logits, squared_error, huber} == set(LOSSES)


@pytest.mark.parametrize("where", [("cpu", "bfloat16"), ("cuda", "float32")])
def test_it_is_for_single_precision_on_the_cpu(where: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SpecError, match=r"compute\.compiled = true is for the CPU in float32"):
        Compute.of(*where, compiled=True)


def test_it_is_taken_where_it_is_asked_for() -> None:
    asked = Compute.of("cpu", compiled=True)
    assert str(asked) == "cpu, float32, compiled"
    assert isinstance(clipped_sums(chain("tanh"), cross_entropy, asked).engine, CompiledChain)
    assert Compute(HOST) == Compute.of("cpu")


def test_a_program_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, cross_entropy, LOSSES[huber])  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="computes other gradients of this model than torch does"):
        CompiledChain(chain("tanh"), cross_entropy)


@pytest.mark.parametrize(
    "name", ["clipped_chain", "products", "attention", "norms", "functions", "stages", "units", "clipped_encoder"]
)
def test_no_multiplication_is_fused_with_an_addition_unless_it_is_written_so(name: str, tmp_path: Path) -> None:
    """A compiler that ignores the flag would give other bits in vectors than at their ends."""
    if (tool := shutil.which("objdump")) is None:
        pytest.skip("this machine has no objdump")
    made, flags = tmp_path / "made.o", [flag for flag in c_library.FLAGS if flag != "-shared"]
    source, compiler = c_library.PROGRAM / f"{name}.c", c_library._find_compiler()
    for processor in c_library.PROCESSORS:
        command = [compiler, *flags, *processor, "-DNOTHING_FUSED", "-c", "-o", str(made), str(source)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            break
    listing = subprocess.run([tool, "-d", made], capture_output=True, text=True, check=True).stdout
    assert "<wholegrain_" in listing
    words = {line.split("\t")[-1].split()[0] for line in listing.splitlines() if line.count("\t") == 2}
    assert any("mul" in word for word in words)
    assert not [word for word in words if word.startswith(("vfm", "vfnm", "fmadd", "fmla", "fmsub", "fmls"))]


def test_what_an_item_gives_does_not_depend_on_how_full_its_block_is() -> None:
    model = chain("relu")
    engine, vector = CompiledChain(model, cross_entropy), in_chaos(flatten(model))
    inputs, targets, _ = make_batch(model, cross_entropy, items=50)
    groups, running = torch.arange(50), torch.zeros(len(vector), dtype=torch.float64)
    for count in range(1, 51):
        last = slice(count - 1, count)
        running = running + engine(vector, inputs[last], targets[last], groups[:1], CLIPS[0]).total
        found = engine(vector, inputs[:count], targets[:count], groups[:count], CLIPS[0]).total
        assert np.array_equal(found.numpy(), running.numpy())
