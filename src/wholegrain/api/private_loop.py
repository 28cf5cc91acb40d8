"""A training loop of one's own: each iteration leaves a private gradient in the model, and the caller moves it.

The gradient comes from the one step that every run is made of, and is paid for in a ledger before it is computed.
"""

import contextlib
import secrets
import weakref
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from wholegrain.api.arguments import LoopSettings, Settings
from wholegrain.api.policy_values import PolicyMaker
from wholegrain.api.train import prepare_call
from wholegrain.clipping import devices
from wholegrain.clipping.parameters import Layout
from wholegrain.clipping.reference import Loss
from wholegrain.clipping.rounding import all_finite
from wholegrain.data.dataset import Dataset
from wholegrain.errors import ModelError, SpecError
from wholegrain.policies.plan import Plan
from wholegrain.privacy.definitions import Guarantee
from wholegrain.privacy.guard import Guard, Reservation
from wholegrain.runs.accounts import spent_guarantee
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import open_guard
from wholegrain.runs.spec_sections import PolicySpec
from wholegrain.silo.training import LocalSteps

STANDS_STILL = 2
"""So many steps that leave the parameters as they were are a mistake: the first may have a learning rate of 0."""


def private_steps(
    net: nn.Module,
    data: Dataset,
    *,
    steps: int,
    policy: str | PolicySpec | PolicyMaker | Mapping[str, Any] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    loss: str | Loss | None = None,
    **settings: Unpack[LoopSettings],
) -> "PrivateSteps":
    """Private gradients of one silo's data, for a loop of one's own with any torch optimizer.

    Each of `steps` iterations fills `.grad` of the net's trainable parameters with a noisy mean of clipped gradients.
    The budget is for all of them together. All data is trained on; hold out what is to be scored before. With
    `device="cuda"` gradients are computed there; the net may be there as well, or on the CPU.

    >>> import torch, wholegrain as wg
    >>> north = wg.clinics(patients=300, clinics=3).silo("clinic-0")
    >>> net = torch.nn.Linear(10, 2)
    >>> optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    >>> policy = wg.subject_dp(rate=0.5)
    >>> private = wg.private_steps(net, north, policy=policy, epsilon=4, delta=1e-5, steps=20)
    >>> for _ in private:
    ...     optimizer.step()
    >>> print(private.guarantee)
    subject: ε = 3.999, δ = 1e-05, PROVED by pld (simulation: seeded noise, sizes read off the data)

    Guarantee: whatever is made of the gradients, of public facts and of the net alone, all of it together keeps what
    `guarantee` says. What is computed from the data in any other way does not count as private.
    """
    if not isinstance(net, nn.Module):
        raise ModelError(f"A loop of your own needs your own torch.nn.Module, not {type(net).__name__}.")
    for name in settings:
        if name in Settings.__annotations__ and name not in LoopSettings.__annotations__:
            raise SpecError(f"private_steps has no keyword '{name}': there is one silo, and the loop is yours.")
    keywords = {"policy": policy, "epsilon": epsilon, "delta": delta, "loss": loss, **settings}
    keywords |= {"rounds": steps, "steps": 1, "test": 0.0}
    if isinstance(data, Dataset) and len(data.silo_names) != 1:
        raise SpecError(
            f"A loop of your own trains on one silo, and the data has {len(data.silo_names) or 'none named'};"
            " take one with data.silo(NAME)."
        )
    prepared = prepare_call("private_steps", data, _on_host(net), keywords)
    _require_same_device(net, prepared.spec.compute.device)
    return PrivateSteps(prepared, net)


class PrivateSteps(Iterator[int]):
    """Private gradients, step after step; see `private_steps`. As a context manager it closes its ledger."""

    def __init__(self, prepared: PreparedRun, net: nn.Module) -> None:
        """The first step is paid for when it is asked for. `net` is the prepared model, or that on its device."""
        (self._silo,) = prepared.silos.values()
        self._prepared, self._net, self._done, self._still = prepared, net, 0, 0
        self._before: Tensor | None = None
        self._modes = {part: part.training for part in net.modules()}
        self._layout, self._run = Layout.of(net), secrets.token_hex(8)
        self._open = contextlib.ExitStack()
        self._guard = self._open.enter_context(open_guard(prepared, self._run))
        self._account = self._guard.ledger.state_as_read.runs[self._run]
        self._left: list[Reservation] = []
        self._open.callback(_note, self._guard, self._left, self._silo.facts.name)
        self._finish = weakref.finalize(self, self._open.close)

    @property
    def plan(self) -> Plan:
        """The policy with its noise, and what all steps together guarantee."""
        return self._prepared.plan

    @property
    def spent(self) -> float:
        """ε that the steps so far have spent, for whom the budget protects."""
        return self.guarantee.epsilon if self._done else 0.0

    @property
    def guarantee(self) -> Guarantee:
        """What holds of the steps so far, for whom the budget protects."""
        return spent_guarantee(self.plan.guarantee(self.plan.unit), self._account, self.plan.accountant)

    def __len__(self) -> int:
        return self.plan.horizon.rounds

    def __repr__(self) -> str:
        return f"<{self._done} of {len(self)} private steps; {self.guarantee}>"

    def __next__(self) -> int:
        """Pay for a step, then fill `.grad`; the number of the step."""
        if self._done >= len(self) or not self._finish.alive:
            self.close()
            raise StopIteration
        parameters = self._parameters()
        vector = self._vector(parameters)
        silo, step = self._silo.facts.name, self._done
        self._pay(silo, step)
        local = LocalSteps(
            self._prepared.clipped_sum, self._prepared.noise, self._silo, self.plan.policy_for(silo), step
        )
        with self._in_tried_mode():
            gradient = local.gradient(vector.to(devices.place_of(self._prepared.clipped_sum)))
        self._left.append(self._paid)
        self._fill(parameters, gradient)
        return step

    def _pay(self, silo: str, step: int) -> None:
        """Have the step in the ledger, and with the same write that the one before it was released."""
        before = self._left[0] if self._left else None
        # No digest of the parameters: a loop has a name of its own and never plays a step again.
        self._paid = self._guard.reserve(step, {silo: 1}, f"step {step} of a loop", confirming=before)
        self._left.clear()
        self._done, self._account = step + 1, self._guard.ledger.state_as_read.runs[self._run]

    def _parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, refused where they are not those of the first step."""
        trainable = [(name, p) for name, p in self._net.named_parameters() if p.requires_grad]
        if Layout(tuple(name for name, _ in trainable), tuple(p.shape for _, p in trainable)) != self._layout:
            raise ModelError("The net's trainable parameters are not those of the first step; leave them as they are.")
        return [parameter for _, parameter in trainable]

    def _vector(self, parameters: list[nn.Parameter]) -> Tensor:
        """The parameters as the caller's optimizer left them, refused where it cannot have been at work."""
        vector = devices.to_host(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
        if not all_finite(vector):
            raise ModelError(f"The parameters are not all finite after step {self._done}; lower the learning rate.")
        if self._done <= STANDS_STILL:
            self._require_moved(vector)
        return vector

    def _require_moved(self, vector: Tensor) -> None:
        self._still = self._still + 1 if self._before is not None and torch.equal(vector, self._before) else 0
        if self._still == STANDS_STILL == self._done:
            raise ModelError(
                "The first steps left the parameters as they were: give the optimizer this net's parameters, and call"
                " its step() in every iteration."
            )
        self._before = vector

    @contextlib.contextmanager
    def _in_tried_mode(self) -> Iterator[None]:
        """The net in the mode in which it was tried: a layer may mix items in training, and not in evaluation."""
        changed = {part: part.training for part, tried in self._modes.items() if part.training is not tried}
        try:
            _set_modes({part: self._modes[part] for part in changed})
            yield
        finally:
            _set_modes(changed)

    def _fill(self, parameters: list[nn.Parameter], gradient: Tensor) -> None:
        # A copy: the sum's memory is lent, and the next step's.
        values = self._layout.views(gradient.clone()).values()
        for parameter, value in zip(parameters, values, strict=True):
            parameter.grad = value.to(parameter.device)

    def close(self) -> None:
        """No further step; the ledger is closed."""
        self._finish()

    def __enter__(self) -> "PrivateSteps":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _note(guard: Guard, left: list[Reservation], silo: str) -> None:
    """Have in the ledger what was released last."""
    for paid in left:
        guard.confirm(paid, [silo])


def _on_host(net: nn.Module) -> nn.Module:
    """The net itself, or a copy of one that is on a device: shapes are checked, and sizes read, on the host."""
    return net if all(p.device.type == "cpu" for p in net.parameters()) else deepcopy(net).cpu()


def _require_same_device(net: nn.Module, device: str) -> None:
    for kind in {p.device.type for p in net.parameters()} - {"cpu", device}:
        raise SpecError(f"The net is on {kind}, and its gradients are computed on {device}: say device='{kind}'.")


def _set_modes(modes: Mapping[nn.Module, bool]) -> None:
    for part, training in modes.items():
        part.training = training
