"""Whole private steps on torch's `meta` device: it has shapes and no values, so that whatever is placed wrongly fails.

Whoever reads a value there fails, and so does an operation on tensors of two devices: torch raises in most cases, and
`OneDevice` in all that CUDA would. What passes therefore keeps parameters, batches, gradients, sums and noise on the
device, and reads values in one function alone. Autocast does not know this device: half precision is tested on the CPU
(tests/clipping/test_unit_passes.py).
"""

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wholegrain.clipping import devices
from wholegrain.clipping.clipping import Clip, ClipPer, Pool
from wholegrain.clipping.devices import Compute
from wholegrain.clipping.losses import huber, squared_error
from wholegrain.clipping.parameters import flatten
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.unit_passes import UnitPasses
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import ModelError
from wholegrain.models.dropout import with_item_coins
from wholegrain.models.model_catalog import MODELS, build
from wholegrain.models.trainable_part import train_part
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.policies.policy_catalog import CATALOG, PolicySettings, make_row
from wholegrain.privacy.trust import SecureSum
from wholegrain.silo.noise import NoiseSource, SeededNoise
from wholegrain.silo.secure_noise import SecureNoise
from wholegrain.silo.training import LocalSteps, Silo, Trainer

META = Compute(torch.device("meta"))
READERS = {
    "UnitPasses._require_repeats": "whether a trial gave the same bits again",
    "UnitPasses.__call__": "how many contributions were not finite",
    "SubjectUpdates.__call__": "how long a subject's local update is",
    "snap": "whether a sum is finite, before secure noise is added",
    "Trainer.train": "the parameters, at the end of a round",
    "Trainer.add_to_sum": "a silo's part of a secure sum",
}
"""Who reads values of a device in a step, and what."""

every_noise = pytest.mark.parametrize("noise", [SeededNoise(0), SecureNoise()], ids=["seeded", "secure"])


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices. Copies are allowed, and so are numbers, as on CUDA."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor) and each.dim()]
        if len({each.device for each in given}) > 1 and func.overloadpacket not in COPIES:
            raise RuntimeError(f"{func} was given tensors of two devices")
        return func(*args, **(kwargs or {}))


COPIES = {torch.ops.aten._to_copy, torch.ops.aten.copy_}


@pytest.fixture(autouse=True)
def one_device() -> Iterator[None]:
    with OneDevice():
        yield


@pytest.fixture(autouse=True)
def readers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Who has asked for values so far. They get ones, for there are none."""
    seen: set[str] = set()

    def pretend(values: Tensor) -> Tensor:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        assert values.device.type == "meta"
        seen.add(frame.f_back.f_code.co_qualname)
        return torch.ones(values.shape, dtype=values.dtype)

    monkeypatch.setattr(devices, "to_host", pretend)
    return seen


def silo(shape: tuple[int, ...] = (6,), tokens: int | None = None, targets: np.ndarray | None = None) -> Silo:
    draws, size = np.random.default_rng(0), (12, *shape)
    inputs = draws.integers(tokens, size=size) if tokens else draws.normal(size=size).astype(np.float32)
    data = SubjectData(inputs, draws.integers(3, size=12) if targets is None else targets, np.arange(12) // 3)
    facts = SiloFacts(name="north", items=12, subjects=4, items_per_subject=3, knows_spans=True)
    return Silo(facts, data, spans=np.repeat([1, 2], 6))


def row(policy: str = "subject_dp", **settings: Any) -> Policy:
    chosen = PolicySettings(**{"rate": 1.0, "clip_norm": 0.5, "group_cap": 2, **settings})
    return make_row(policy, chosen, silo().facts).with_noise(1.0)


def train(model: nn.Module, place: Silo, policy: Policy, noise: NoiseSource, loss: Loss = cross_entropy) -> Tensor:
    trainer = Trainer(clipped_sum=UnitPasses(model, loss, META), noise=noise, learning_rate=0.1)
    return trainer.train(place, policy, flatten(model), round=0, steps=2)


@every_noise
@pytest.mark.parametrize("policy", CATALOG)
def test_steps_of_every_policy_stay_on_the_device(policy: str, noise: NoiseSource, readers: set[str]) -> None:
    model = build("mlp", 6, 3, seed=0)
    assert train(model, silo(), row(policy), noise).shape == flatten(model).shape
    expected = {"UnitPasses._require_repeats", "UnitPasses.__call__", "Trainer.train"}
    expected |= {"SubjectUpdates.__call__"} if policy == "uldp_avg" else set()
    expected |= set() if noise.repeats else {"snap"}
    assert readers == expected
    assert readers <= set(READERS)


@every_noise
def test_what_is_released_of_a_step_is_on_the_device(noise: NoiseSource) -> None:
    model = build("mlp", 6, 3, seed=0)
    steps = LocalSteps(UnitPasses(model, cross_entropy, META), noise, silo(), row(), 0)
    assert steps.gradient(flatten(model).to("meta")).device.type == "meta"


@every_noise
def test_weights_by_span_stay_on_the_device(noise: NoiseSource) -> None:
    assert train(build("mlp", 6, 3, seed=0), silo(), row(by_span=True), noise).dim() == 1


@every_noise
@pytest.mark.parametrize("policy", ["subject_dp", "local_item_dp", "uldp_avg"])
def test_parts_of_a_secure_sum_stay_on_the_device(policy: str, noise: NoiseSource, readers: set[str]) -> None:
    model, summed = build("mlp", 6, 3, seed=0), row(policy, trust=SecureSum.over(3, colluding=0))
    trainer = Trainer(clipped_sum=UnitPasses(model, cross_entropy, META), noise=noise, learning_rate=0.1)
    assert trainer.add_to_sum(silo(), summed, flatten(model), 0).dtype is torch.int64
    assert "Trainer.add_to_sum" in readers
    assert readers <= set(READERS)


MADE = [
    *(pytest.param(name, None, marks=pytest.mark.slow if name == "resnet18" else ()) for name in MODELS),
    *(pytest.param(name, 0, marks=pytest.mark.slow) for name in MODELS if MODELS.find(name).reads_tokens),
]


@pytest.mark.parametrize(("name", "padding"), MADE)
def test_steps_of_every_model_of_the_catalogue_stay_on_the_device(name: str, padding: int | None) -> None:
    """None of them makes a tensor of its own on the host."""
    reads = MODELS.find(name).reads_tokens
    features = 5 if reads else 784
    options = {"vocabulary": 9, "padding": padding} if reads else {}
    model = with_item_coins(build(name, features, 3, seed=0, options=options))
    train(model, silo((features,), 9 if reads else None), row(), SeededNoise(0))


@pytest.mark.parametrize("part", ["head", "low_rank", "prefix", "biases"])
def test_steps_of_adapters_stay_on_the_device(part: str) -> None:
    model = build("causal_transformer", 5, 3, seed=0, options={"vocabulary": 9, "padding": 0})
    train(train_part(model, part, rank=2, prefix=2, seed=0), silo((5,), 9), row(), SeededNoise(0))


def test_dropout_stays_on_the_device() -> None:
    model = build("causal_transformer", 5, 3, seed=0, options={"vocabulary": 9, "dropout": 0.5})
    train(with_item_coins(model), silo((5,), 9), row(), SecureNoise())


@pytest.mark.parametrize("loss", [binary_cross_entropy_with_logits, squared_error, huber])
def test_losses_of_other_tasks_stay_on_the_device(loss: Loss) -> None:
    targets = np.random.default_rng(0).integers(2, size=(12, 2)).astype(np.float32)
    train(build("mlp", 6, 2, seed=0), silo(targets=targets), row(), SeededNoise(0), loss)


class HostConstant(nn.Module):
    """Adds a tensor that it makes on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.arange(3)


class Reading(nn.Module):
    """Looks at a value to decide what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if bool(x.sum() > 0) else self.layer(-x)


@pytest.mark.parametrize("model", [HostConstant(), Reading()], ids=["mixes devices", "reads a value"])
def test_what_is_placed_wrongly_fails_here(model: nn.Module) -> None:
    """So that all tests above would: the engine's own tensors are held to the same."""
    with pytest.raises(ModelError, match=r"two devices|meta tensors"):
        train(model, silo(), row(), SeededNoise(0))


def test_noise_that_stayed_on_the_host_would_fail_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch lets it pass, in place."""

    def add_to(self: object, total: Tensor, multiplier: float, clip_norm: float, least_norm: float | None) -> None:
        total.add_(torch.ones(total.numel()))

    monkeypatch.setattr(type(SeededNoise(0).stream(0, "")), "add_to", add_to)
    with pytest.raises(RuntimeError, match="two devices"):
        train(build("mlp", 6, 3, seed=0), silo(), row(), SeededNoise(0))


def test_an_empty_batch_stays_on_the_device() -> None:
    model, nobody = build("mlp", 6, 3, seed=0), torch.zeros(0, dtype=torch.int64)
    clip, vector = Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0), flatten(model).to("meta")
    found = UnitPasses(model, cross_entropy, META)(vector, torch.zeros(0, 6), nobody, nobody, clip)
    assert found.total.device.type == "meta"


def test_a_sum_is_where_its_parameters_were_given() -> None:
    """For whoever adds up sums of several processes, or compares them."""
    model, clip = build("mlp", 6, 3, seed=0), Clip(ClipPer.SUBJECT, Pool.MEAN, 1.0)
    engine, inputs, targets = (
        UnitPasses(model, cross_entropy, META),
        torch.zeros(4, 6),
        torch.zeros(4, dtype=torch.int64),
    )
    for device in ("cpu", "meta"):
        found = engine(flatten(model).to(device), inputs, targets, torch.arange(4) // 2, clip)
        assert found.total.device.type == device
