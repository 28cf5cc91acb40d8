"""Any module: layers with a rule run by it, and autograd carries gradients between them without forming a weight's."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from wholegrain.clipping.backends import Slots, outward_gradient
from wholegrain.clipping.bookkeeping import Share
from wholegrain.clipping.clip_units import Units
from wholegrain.clipping.fallback import Tap
from wholegrain.clipping.layers import COMPOSITES, LAYERS
from wholegrain.clipping.layers.base import Layer, ModuleSlots, RuleError, Space, form_early
from wholegrain.clipping.layers.embedding import EmbeddingLayer
from wholegrain.clipping.layers.linear import LinearLayer
from wholegrain.clipping.parameter_uses import ParameterWatch, UncoveredUseError
from wholegrain.clipping.products import current
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.shape_probe import PAIRS, ShapeRecord, copies, outside_watchers
from wholegrain.clipping.workspace import Workspace


class Graph:
    """Any module: its layers with rules are recorded while autograd does the rest."""

    mode: Callable[[], AbstractContextManager[Any]] = torch.no_grad

    def __init__(self, shadow: nn.Module, model: nn.Module, slots: Slots, workspace: Workspace) -> None:
        self._shadow, self._workspace = shadow, workspace
        self._anchor, self._frozen = torch.zeros((), requires_grad=True), torch.zeros(())
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

    def apply_frozen(self, layer: Layer, x: Tensor) -> Any:
        """The same for a layer without trained parameters: nothing goes back where its input has no history."""
        with torch._C.DisableTorchFunction():
            return _Use.apply(self._pass, layer, self._frozen, x)  # type: ignore[no-untyped-call]

    def takes(self, x: Tensor) -> bool:
        """Whether these are rows of items, and nothing that was computed from parameters."""
        return self._pass is not None and self._watch.of(x) is None and x.dim() > 1

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

    def keep(self, layer: Layer, space: Space, shares: Sequence[Share]) -> None:
        """Shares of a use. Where gradients are formed anyway, they are formed now: what they come from is free then."""
        once = self._uses[id(layer)] == 1  # several uses are put together first
        self.shares.extend(form_early(share, space) if once else share for share in shares)

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
        ctx.saved = None  # the graph stays until the pass has ended
        ctx.current.keep(ctx.layer, ctx.space, shares)
        ctx.space.workspace.watch(*gradients)
        return None, None, None, *gradients


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
        return _hook_frozen(module, owned, graph)
    if type(module) in LAYERS:
        layer = LAYERS[type(module)](module, owned)
        if isinstance(layer, EmbeddingLayer):
            return lambda tokens: graph.look_up(layer, tokens)
        return lambda x: graph.apply(layer, x)
    if type(module) in COMPOSITES:
        composite = COMPOSITES[type(module)](module, owned)
        return lambda *args, **kwargs: composite(graph.apply, graph.items, *args, **kwargs)
    return None


def _hook_frozen(module: nn.Module, owned: ModuleSlots, graph: Graph) -> Callable[..., Any] | None:
    """A linear layer without trained parameters, where its products are faster in C than in torch."""
    if type(module) is not nn.Linear or not current().takes_weight(module.weight):
        return None
    layer, own = LinearLayer.of(module, owned), module.forward

    def forward(x: Tensor) -> Any:
        return graph.apply_frozen(layer, x) if graph.takes(x) else own(x)

    return forward
