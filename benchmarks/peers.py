"""Opacus, used as its documentation shows but without its accountant: gradient, clip, noise, and torch's SGD.

Layers that Opacus cannot take (LSTM, attention) are replaced by its own with the same parameters.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from settings import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER
from wholegrain.clipping.parameters import Layout
from workloads import Workload


class Hooks:
    """Per-item gradients by hooks, then `DPOptimizer`."""

    def __init__(self, workload: Workload) -> None:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        self.workload, self.layout = workload, Layout.of(workload.model)
        self.module = GradSampleModule(accepted(workload.model))
        self.optimizer = DPOptimizer(sgd(self.module), **noise_for(workload.batch))
        self.loss = nn.CrossEntropyLoss()

    def gradient(self) -> Tensor:
        """The clipped sum."""
        self._backward()
        self.optimizer.clip_and_accumulate()
        found = in_layout(self.module._module, [p.summed_grad for p in self.optimizer.params], self.layout)
        self.optimizer.zero_grad()
        return found

    def step(self) -> None:
        """One private step."""
        self._backward()
        self.optimizer.step()

    def _backward(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.module(self.workload.inputs), self.workload.targets).backward()


class Ghost:
    """Norms without per-item gradients, a second backward pass, then noise: `grad_sample_mode="ghost"`."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.layout = workload, Layout.of(workload.model)
        self.module, self.optimizer, self.loss = ghost(accepted(workload.model), workload.batch, LEARNING_RATE)

    def gradient(self) -> Tensor:
        """The clipped sum."""
        self._backward()
        return in_layout(self.module._module, [p.grad for p in self.optimizer.params], self.layout)

    def step(self) -> None:
        """One private step."""
        self._backward()
        self.optimizer.step()

    def _backward(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.module(self.workload.inputs), self.workload.targets).backward()


def ghost(model: nn.Module, expected: int, learning_rate: float) -> tuple[Any, Any, Any]:
    """Module, optimizer and loss of Opacus' ghost clipping around an accepted model."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    module = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP_NORM, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(sgd(module, learning_rate), **noise_for(expected))
    return module, optimizer, DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss())


def accepted(model: nn.Module) -> nn.Module:
    """The model with layers that Opacus can differentiate per item."""
    from opacus.validators import ModuleValidator

    # Hooks on layers whose input needs no gradient; Opacus' own choice, and harmless here.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    fixed: nn.Module = ModuleValidator.fix(model)
    ModuleValidator.validate(fixed, strict=True)
    _give_every_item_its_positions(fixed)
    return fixed.train()


def _give_every_item_its_positions(model: nn.Module) -> None:
    """Opacus takes a table's first dimension for the items, where Hugging Face looks positions up once for all."""
    items = 0

    def count_items(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal items
        items = len(inputs[0])

    def repeat(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        indices = inputs[0].expand(items, *inputs[0].shape[1:]) if len(inputs[0]) == 1 else inputs[0]
        return (indices.contiguous(),)

    model.register_forward_pre_hook(count_items)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_pre_hook(repeat)


def sgd(module: nn.Module, learning_rate: float = LEARNING_RATE) -> torch.optim.Optimizer:
    """The update beneath the noise."""
    return torch.optim.SGD(module.parameters(), lr=learning_rate)


def noise_for(expected: int) -> dict[str, Any]:
    """The noise that ours adds, in Opacus' words."""
    return {"noise_multiplier": NOISE_MULTIPLIER, "max_grad_norm": CLIP_NORM, "expected_batch_size": expected}


def in_layout(module: nn.Module, gradients: list[Tensor], layout: Layout) -> Tensor:
    """The gradients in our order: Opacus' layers rename parameters in `state_dict`, so they are sent through it."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    kept = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.copy_(gradient.view_as(parameter))
        state = module.state_dict()
        flat = torch.cat([_find(state, name).flatten() for name in layout.names])
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    return flat


def _find(state: dict[str, Tensor], name: str) -> Tensor:
    """The entry with this name; Opacus keeps an attention's three projections apart."""
    if name in state:
        return state[name]
    stem, _, kind = name.rpartition(".in_proj_")
    return torch.cat([state[f"{stem}.{part}linear.{kind}"] for part in "qkv"])
