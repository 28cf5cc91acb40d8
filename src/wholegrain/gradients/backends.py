"""Two ways to play a model forward and back over its rules: link by link, or along the graph that autograd records.

Both leave the same shares. A chain needs no autograd, which is what small models spend most of their time on; a graph
can be any module at all.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from wholegrain.gradients.bookkeeping import Share
from wholegrain.gradients.clip_units import Units
from wholegrain.gradients.fallback import Tap
from wholegrain.gradients.layers import COMPOSITES, LAYERS
from wholegrain.gradients.layers.activations import ByAutograd, Copy, MaxPool, Relu, Reshape, Sigmoid, Tanh
from wholegrain.gradients.layers.base import Layer, ModuleSlots, RuleError, Space
from wholegrain.gradients.layers.embedding import EmbeddingLayer
from wholegrain.gradients.parameter_uses import ParameterWatch, UncoveredUseError
from wholegrain.gradients.parameters import Slot
from wholegrain.gradients.reference import Loss
from wholegrain.gradients.shape_probe import PAIRS, ShapeRecord, copies, outside_watchers
from wholegrain.gradients.vmap_gradients import silence_vmap
from wholegrain.gradients.workspace import Workspace


class Program(Protocol):
    """A model that can be played forward and back."""

    @property
    def mode(self) -> Callable[[], AbstractContextManager[Any]]:
        """What the program and its shares are to be run in."""
        ...

    def run(self, loss: Loss, inputs: Tensor, targets: Tensor, units: Units) -> list[Share]:
        """The shares of every layer, for the gradients of each item's own loss."""
        ...


def _softmax(outputs: Tensor) -> Tensor:
    """Of every row [item, class]. Where rows are short, the logarithm is twice as fast."""
    return outputs.softmax(1) if outputs.shape[1] > FEW_CLASSES else outputs.log_softmax(1).exp_()


@lru_cache(maxsize=64)
def _minus_ones(items: int, kind: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((items, 1), -1.0, dtype=kind)


def outward_gradient(loss: Loss, outputs: Tensor, targets: Tensor, items: int) -> Tensor:
    """Gradient of each item's own loss with respect to its outputs."""
    if loss is cross_entropy and outputs.dim() == 2 and targets.dtype is torch.int64:
        gradient = _softmax(outputs)
        return gradient.scatter_add_(1, targets[:, None], _minus_ones(targets.shape[0], outputs.dtype))
    if outputs.shape[0] != items or targets.shape[0] != items:
        raise RuleError("its outputs or targets do not have an item in each row")

    # One item at a time, and not the batch's mean: with class weights or ignored targets that is another mean, in which
    # one item changes the weight of the others.
    def own(output: Tensor, target: Tensor) -> Tensor:
        return loss(output[None], target[None])

    # On ordinary tensors: those of inference have no history.
    with torch.inference_mode(False), torch.enable_grad(), silence_vmap():
        gradients: Tensor = vmap(grad(own))(outputs.clone().detach(), targets.clone())
    return gradients


@dataclass(frozen=True, eq=False)
class Chain:
    """Layers one after the other, as in nn.Sequential."""

    links: tuple[Layer, ...]
    first: int
    workspace: Workspace
    # Without autograd's own book-keeping, which small tensors spend a tenth of their time on.
    mode: Callable[[], AbstractContextManager[Any]] = torch.inference_mode

    @staticmethod
    def of(model: nn.Module, slots: "Slots", workspace: Workspace) -> "Chain | None":
        """The model as a chain, or None where it is not one or a layer has no rule."""
        modules = _in_sequence(model)
        if modules is None:
            return None
        try:
            links = _insert_copies([_link(module, slots) for module in _pool_first(modules)])
        except RuleError:
            return None
        first = next(k for k, link in enumerate(links) if not isinstance(link, PLAIN))
        return Chain(tuple(links), first, workspace)

    def run(self, loss: Loss, inputs: Tensor, targets: Tensor, units: Units) -> list[Share]:
        """Forward through all links, back to the first that has parameters."""
        workspace, items = self.workspace, inputs.shape[0]
        spaces = [Space(workspace, k, units, items) for k in range(len(self.links))]
        saved = []
        x = inputs
        for link, space in zip(self.links, spaces, strict=True):
            x, keeps = link.forward(space, x)
            saved.append(keeps)
            if workspace.watched is not None:
                workspace.watch(x)
        shares: list[Share] = []
        g: Tensor | None = outward_gradient(loss, x, targets, inputs.shape[0])
        for k in range(len(self.links) - 1, self.first - 1, -1):
            # Popped, so that what a layer has kept is free again as soon as it was used.
            (g,), new = self.links[k].backward(spaces[k], saved.pop(), (g,), (k > self.first,))
            shares.extend(new)
            if workspace.watched is not None:
                workspace.watch(g)
        return shares


class Graph:
    """Any module: its layers with rules are recorded while autograd does the rest."""

    mode: Callable[[], AbstractContextManager[Any]] = torch.no_grad

    def __init__(self, shadow: nn.Module, model: nn.Module, slots: "Slots", workspace: Workspace) -> None:
        self._shadow, self._workspace = shadow, workspace
        self._anchor = torch.zeros((), requires_grad=True)
        self._pass: _Pass | None = None
        self._shapes = ShapeRecord()
        trainable = {name: p for name, p in shadow.named_parameters() if p.requires_grad}
        self._watch = ParameterWatch(trainable, self._shapes, self)
        self._known = False
        self.unruled: dict[str, str] = {}
        """Modules whose own parameters have no rule, and why."""
        self._taps = _hook(shadow, model, slots, self)

    def run(self, loss: Loss, inputs: Tensor, targets: Tensor, units: Units) -> list[Share]:
        """The shadow's own forward, and autograd's backward pass without any weight's gradient."""
        if not self._known:
            self._probe(inputs)
        self._pass = _Pass(self._workspace, units, len(inputs))
        self._shapes.begin()
        self._watch.reset()
        try:
            with torch.enable_grad(), self._watch if self._watch.used else nullcontext():
                outputs = self._shadow(inputs.clone())  # a copy: a model may work in place
            if outputs.requires_grad:
                outward = outward_gradient(loss, outputs.detach(), targets, len(inputs))
                torch.autograd.backward(outputs, outward, inputs=[self._anchor])
            return self._pass.shares
        finally:
            self._pass = None
            self._anchor.grad = None

    @property
    def items(self) -> int:
        """Items of the present pass."""
        assert self._pass is not None
        return self._pass.items

    def axes(self, tensors: list[Tensor]) -> tuple[int | None, ...]:
        """Along which dimension each tensor counts items."""
        return self._shapes.axes(tensors)

    def apply(self, layer: Layer, *inputs: Tensor) -> Any:
        """One use of a layer, as a node of the graph."""
        if any(self._watch.of(x) is not None for x in inputs):
            raise RuleError("a layer is applied to parameters instead of items")
        with torch._C.DisableTorchFunction():
            return _Use.apply(self._pass, layer, self._anchor, *inputs)  # type: ignore[no-untyped-call]

    def look_up(self, layer: EmbeddingLayer, tokens: Tensor) -> Any:
        """Rows of a table: each item's own, or the same for all of them."""
        if self._shapes.axes([tokens]) == (None,):
            return self._watch.share_rows(tokens, *layer.table())
        return self.apply(layer, tokens)

    def _probe(self, inputs: Tensor) -> None:
        """Learn which tensors count items; a module that does with its parameters what no rule covers is tapped."""
        while not self._known:
            uncovered: UncoveredUseError | None = None
            for one, other in PAIRS:
                try:
                    found = self._probe_with(copies(inputs, one)), self._probe_with(copies(inputs, other))
                except UncoveredUseError as error:  # or a constant that is as long as this batch
                    uncovered = error
                    continue
                if self._shapes.keep(*found):
                    self._known = True
                    return
            if uncovered is None:
                raise RuleError("what it computes depends on the number of items")
            if uncovered.parameter not in self._taps:
                raise uncovered
            self._watch.leave(self._taps[uncovered.parameter](str(uncovered)))

    def _probe_with(self, inputs: Tensor) -> list[tuple[int | None, ...]]:
        """One pass forward, apart from all buffers and watchers."""
        items = len(inputs)
        self._pass = _Pass(Workspace(), Units.of_items(items), items)
        self._shapes.items, self._shapes.found = items, []
        self._watch.reset()
        try:
            with outside_watchers(), torch.enable_grad(), self._watch:
                self._shadow(inputs)
            return self._shapes.found
        finally:
            self._shapes.items, self._pass = 0, None


class _Pass:
    """What one pass collects."""

    def __init__(self, workspace: Workspace, units: Units, items: int) -> None:
        self.items, self.shares = items, list[Share]()
        self._workspace, self._units = workspace, units
        self._uses: Counter[int] = Counter()

    def count(self, user: object) -> int:
        """How often it was used, this time included."""
        self._uses[id(user)] += 1
        return self._uses[id(user)]

    def space(self, layer: Layer) -> Space:
        """Buffers for the next use of this layer."""
        key: Hashable = (id(layer), self.count(layer))
        return Space(self._workspace, key, self._units, self.items)


class _Use(torch.autograd.Function):
    """A layer's own forward and backward as a node that knows no parameters."""

    @staticmethod
    def forward(ctx: Any, current: _Pass, layer: Layer, anchor: Tensor, *inputs: Tensor) -> Any:
        ctx.current, ctx.layer, ctx.space = current, layer, current.space(layer)
        ctx.set_materialize_grads(False)
        outputs, ctx.saved = layer.forward(ctx.space, *(x.detach() for x in inputs))
        ctx.space.workspace.watch(*(outputs if isinstance(outputs, tuple) else (outputs,)))
        # Buffers are used again; autograd must not write a history onto them.
        return tuple(y.detach() for y in outputs) if isinstance(outputs, tuple) else outputs.detach()

    @staticmethod
    def backward(ctx: Any, *outward: Tensor | None) -> Any:
        needed = tuple(ctx.needs_input_grad[3:])
        if all(g is None for g in outward):
            return (None,) * (3 + len(needed))
        gradients, shares = ctx.layer.backward(ctx.space, ctx.saved, outward, needed)
        ctx.current.shares.extend(shares)
        ctx.space.workspace.watch(*gradients)
        return None, None, None, *gradients


class Slots:
    """Where each trainable parameter of a model lies in its vector; a shared parameter has one slot."""

    def __init__(self, model: nn.Module) -> None:
        self._by_parameter = {id(p): Slot(name) for name, p in model.named_parameters() if p.requires_grad}

    def of_module(self, module: nn.Module, recurse: bool = True) -> ModuleSlots:
        """The trainable parameters of a module."""
        parameters = module.named_parameters(recurse=recurse, remove_duplicate=False)
        return ModuleSlots({name: self._by_parameter[id(p)] for name, p in parameters if id(p) in self._by_parameter})


def _in_sequence(model: nn.Module) -> list[nn.Module] | None:
    """The modules of a sequence, nested ones laid out; None where there is more to it than their order."""
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules()):
        return None
    if type(model) is not nn.Sequential:
        return [model] if type(model) in LAYERS else None
    modules: list[nn.Module] = []
    for child in model:
        inner = _in_sequence(child) if type(child) is nn.Sequential else [child]
        if inner is None:
            return None
        modules += inner
    return [module for module in modules if not isinstance(module, nn.Identity)]


def _pool_first(modules: list[nn.Module]) -> list[nn.Module]:
    """A maximum of rectified values is the rectified maximum, and there are fewer of those."""
    modules = list(modules)
    for k in range(len(modules) - 1):
        if type(modules[k]) is nn.ReLU and type(modules[k + 1]) is nn.MaxPool2d:
            modules[k], modules[k + 1] = modules[k + 1], modules[k]
    return modules


def _link(module: nn.Module, slots: Slots) -> Layer:
    rule = LAYERS.get(type(module))
    if rule is not None:
        return rule(module, slots.of_module(module))
    if next(module.parameters(), None) is not None:
        raise RuleError("it has parameters and no rule")
    plain: dict[type[nn.Module], Callable[[], Layer]] = {
        nn.ReLU: Relu,
        nn.Tanh: Tanh,
        nn.Sigmoid: Sigmoid,
        nn.Flatten: lambda: Reshape(module),
        nn.Unflatten: lambda: Reshape(module),
        nn.MaxPool2d: lambda: MaxPool(module),  # type: ignore[arg-type]
    }
    return plain.get(type(module), lambda: ByAutograd(module))()


FEW_CLASSES = 8
IN_PLACE = (Relu, Tanh, Sigmoid, MaxPool)
PLAIN = (*IN_PLACE, Reshape, ByAutograd, Copy)


def _insert_copies(links: list[Layer]) -> list[Layer]:
    """Put a copy before each link that overwrites what an earlier link, or the caller, still needs."""
    spared, free = list[Layer](), False
    for link in links:
        if isinstance(link, IN_PLACE):
            if not free:
                spared.append(Copy())
            # A maximum is a new tensor that nobody needs; the others need what they wrote.
            free = isinstance(link, MaxPool)
        elif not isinstance(link, Reshape):
            free = not isinstance(link, ByAutograd)
        spared.append(link)
    return spared


MakeTap = Callable[[str], set[str]]
"""Taps a module for a reason, and gives the names of the parameters that it takes over."""


def _hook(shadow: nn.Module, model: nn.Module, slots: Slots, graph: Graph, prefix: str = "") -> dict[str, MakeTap]:
    """Give every module with a rule another forward, in the shadow alone; for what has none, how to tap it."""
    reason = ""
    try:
        hooked = _find_hook(shadow, slots, graph)
    except RuleError as error:
        hooked, reason = None, str(error)
    if hooked is not None:
        shadow.forward = hooked
        return {}
    owned = slots.of_module(shadow, recurse=False)

    def tap(why: str) -> set[str]:
        shadow.forward = Tap(model, owned, shadow, graph).around(shadow.forward)
        graph.unruled[f"{prefix.rstrip('.') or 'the model'} ({type(model).__name__})"] = reason or why
        return {slot.name for slot in owned.slots.values()}

    taps: dict[str, MakeTap] = {slot.name: tap for slot in owned.slots.values()}
    for name, child in shadow.named_children():
        taps |= _hook(child, getattr(model, name), slots, graph, f"{prefix}{name}.")
    return taps


def _find_hook(module: nn.Module, slots: Slots, graph: Graph) -> Callable[..., Any] | None:
    owned = slots.of_module(module)
    if not owned.slots:
        return None
    if type(module) in LAYERS:
        layer = LAYERS[type(module)](module, owned)
        if isinstance(layer, EmbeddingLayer):
            return lambda tokens: graph.look_up(layer, tokens)
        return lambda x: graph.apply(layer, x)
    if type(module) in COMPOSITES:
        composite = COMPOSITES[type(module)](module, owned)
        return lambda *args, **kwargs: composite(graph.apply, graph.items, *args, **kwargs)
    return None
