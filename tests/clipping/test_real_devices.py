"""The same on a GPU, where torch finds one. Nothing here has run on one yet unless your report says so."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import wholegrain as wg
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.devices import PRECISIONS, Compute
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import clipped_sum
from wholegrain.clipping.rounding import SLACK
from wholegrain.clipping.unit_passes import UnitPasses
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import WholegrainError
from wholegrain.models.model_catalog import build
from wholegrain.policies.policy import SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings, make_row
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.secure_noise import SecureNoise, grid
from wholegrain.silo.training import Silo, Trainer

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import clip_fuzz

pytestmark = pytest.mark.device


def on(device: str, precision: str = "float32") -> Compute:
    """The device, or a skipped test that says why."""
    try:
        return Compute.of(device, precision)
    except WholegrainError as error:
        pytest.skip(str(error))


every_device = pytest.mark.parametrize("device", ["cuda", "mps"])


@every_device
@pytest.mark.parametrize("kind", clip_fuzz.KINDS)
def test_sums_are_those_of_the_reference(device: str, kind: str) -> None:
    compute, made, draws = on(device), clip_fuzz.KINDS[kind], torch.Generator().manual_seed(0)
    torch.manual_seed(3)
    model, clip = made.make(), Clip(ClipPer.SUBJECT, Pool.MEAN, 0.3)
    inputs = torch.randn(9, *made.shape, generator=draws)
    if made.tokens:
        inputs = torch.randint(made.tokens, inputs.shape, generator=draws)
    given = inputs, torch.randint(3, (9,), generator=draws), torch.arange(9) // 2
    expected = clipped_sum(model, cross_entropy, flatten(model), *given, clip).total.double()
    found = UnitPasses(model, cross_entropy, compute)(flatten(model), *given, clip).total
    assert found.device.type == "cpu"
    assert float((found.cpu() - expected).norm()) <= 1e-3 * float(expected.norm())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", clip_fuzz.KINDS)
def test_no_finite_number_breaks_the_clip(kind: str, precision: str) -> None:
    found = list(clip_fuzz.fuzz(kind, 20, seed=11, compute=on("cuda", precision)))
    assert max(case.move for case in found) <= 1 + SLACK


@every_device
def test_noise_is_the_same_on_every_device(device: str) -> None:
    """Seeded: the same numbers. Secure: whole steps of the same grid."""
    compute = on(device)
    here, there, secret = (
        torch.zeros(70_000, dtype=torch.float64, device=at) for at in ("cpu", compute.place, compute.place)
    )
    for total in (here, there):
        SeededNoise(1).stream(0, "north").add_to(total, 1.0, 0.5)
    assert torch.equal(here, there.cpu())
    SecureNoise().stream(0, "north").add_to(secret, 1.0, 0.5)
    assert float(secret.std()) == pytest.approx(0.5, rel=0.05)
    steps = secret.cpu() / grid(0.5, 70_000)
    assert torch.equal(steps, steps.round())


@every_device
@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_comes_out_nearly_as_on_the_cpu(device: str, precision: str) -> None:
    compute, draws = on(device, precision), np.random.default_rng(0)
    data = SubjectData(draws.normal(size=(60, 6)).astype(np.float32), draws.integers(3, size=60), np.arange(60) // 4)
    silo = Silo(SiloFacts(name="north", items=60, subjects=15, items_per_subject=4), data)
    row = make_row("subject_dp", PolicySettings(rate=0.5, clip_norm=0.5), silo.facts).with_noise(1.0)
    model = build("mlp", 6, 3, seed=0)
    trained = [
        Trainer(clipped_sum=UnitPasses(model, cross_entropy, where), noise=SeededNoise(0), learning_rate=0.1).train(
            silo, row, flatten(model), round=0, steps=5
        )
        for where in (Compute(), compute)
    ]
    assert trained[1].device.type == "cpu"
    close = 1e-4 if precision == "float32" else 0.02
    assert float((trained[0] - trained[1]).norm()) <= close * float(trained[0].norm())


@every_device
def test_a_loop_of_ones_own_with_its_net_on_the_device(device: str) -> None:
    compute = on(device)
    net = torch.nn.Linear(10, 2).to(compute.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    north = wg.clinics(patients=60, clinics=3).silo("clinic-0")
    for _ in wg.private_steps(net, north, policy=wg.subject_dp(rate=0.5), epsilon=4, steps=2, device=device):  # type: ignore[arg-type]
        assert net.weight.grad is not None
        assert net.weight.grad.device == net.weight.device
        optimizer.step()
