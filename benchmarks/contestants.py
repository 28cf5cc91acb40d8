"""One step of each contestant on a ready batch: gradient, then (if private) clip and noise, then the update."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from peers import Ghost, Hooks
from settings import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER
from wholegrain.clipping import vmap_gradients
from wholegrain.clipping.choice import clipped_sums
from wholegrain.clipping.clip_units import Buckets, scatter_codes
from wholegrain.clipping.clipping import Clip, ClippedTotal, pool_gradients
from wholegrain.clipping.devices import Compute
from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.parameters import Layout, flatten
from wholegrain.clipping.reference import ClippedSum
from wholegrain.data.sampling import Batch
from wholegrain.policies.policy import Policy, SiloFacts
from wholegrain.policies.policy_catalog import PolicySettings, find
from wholegrain.silo.noise import SeededNoise
from wholegrain.silo.private_step import release
from workloads import GROUP_SIZES, SEED, Workload


class Steps(Protocol):
    """A contestant at work on one workload."""

    def gradient(self) -> Tensor:
        """What the update is made of before noise [parameter], in the order of `Layout`."""
        ...

    def step(self) -> None:
        """A whole step, update included."""
        ...


@dataclass(frozen=True)
class Contestant:
    """Who is timed, in what environment, and what it is known to hold in memory."""

    title: str
    build: Callable[[Workload], Steps]
    ours: bool = False
    clips: str | None = "item"
    holds_item_gradients: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    script: str | None = None
    """To be run by the interpreter that JAX_PYTHON names, instead of this one; see jax_peer.py."""
    cases: tuple[str, ...] | None = None
    """Workloads that it has; None for all."""


class Plain:
    """Forward, backward and torch's own SGD."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.optimizer = torch.optim.SGD(workload.model.parameters(), lr=LEARNING_RATE)

    def gradient(self) -> Tensor:
        """The gradient of the mean loss."""
        self._backward()
        return torch.cat([p.grad.flatten() for p in self.workload.model.parameters() if p.grad is not None])

    def step(self) -> None:
        """One step of SGD."""
        self._backward()
        self.optimizer.step()

    def _backward(self) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.workload.model(self.workload.inputs), self.workload.targets).backward()


class Private:
    """A silo's step as `Trainer` takes it, on a ready batch: clipped sum, release, move."""

    def __init__(self, workload: Workload, clipped_sum: ClippedSum, policy: Policy, in_c: bool = False) -> None:
        self.workload, self.clipped_sum, self.policy = workload, clipped_sum, policy
        self.vector = flatten(workload.model)
        self.batch = Batch(torch.arange(workload.batch).numpy(), workload.groups.numpy())
        self.noise = SeededNoise(SEED, in_c).stream(0, "silo")
        facts = facts_of(workload)
        self.public = *policy.expected_sizes(facts), policy.largest_subject(facts)
        self.numbers = scatter_codes(self.batch.groups)

    def gradient(self) -> Tensor:
        """The clipped sum."""
        w, policy = self.workload, self.policy
        buckets = Buckets(self.numbers, self.batch.items, *self.public)
        return self.clipped_sum(self.vector, w.inputs, w.targets, w.groups, policy.clip, buckets).total

    def step(self) -> None:
        """One private step."""
        update = release(self.gradient(), self.batch, self.policy, self.noise)
        self.vector.sub_(update.to(self.vector.dtype), alpha=LEARNING_RATE)


def in_pieces(model: nn.Module) -> ClippedSum:
    """vmap over pieces of a few whole subjects, so that no more than `MOST_VALUES` gradient values are held."""

    def clipped_sum(
        vector: Tensor, inputs: Tensor, targets: Tensor, groups: Tensor, clip: Clip, buckets: Buckets | None = None
    ) -> ClippedTotal:
        layout = Layout.of(model)
        most = max(1, vmap_gradients.MOST_VALUES // len(vector))
        total, zeroed = torch.zeros_like(vector), 0
        for piece in _pieces(groups, most):
            _, within = torch.unique(groups[piece], return_inverse=True)
            batch = (vector, inputs[piece], targets[piece])
            pooled = pool_gradients(vmap_gradients.item_gradients(model, cross_entropy, layout, *batch), within, clip)
            total.add_(pooled.total)
            zeroed += pooled.zeroed
        return ClippedTotal(total, zeroed)

    return clipped_sum


def _pieces(groups: Tensor, most: int) -> list[Tensor]:
    """Positions of whole subjects, together at most `most` items (or one subject, if it has more)."""
    pieces: list[list[int]] = [[]]
    for positions in _by_subject(groups):
        if pieces[-1] and len(pieces[-1]) + len(positions) > most:
            pieces.append([])
        pieces[-1] += positions
    return [torch.tensor(piece) for piece in pieces if piece]


def _by_subject(groups: Tensor) -> list[list[int]]:
    positions: list[list[int]] = [[] for _ in range(int(groups.max()) + 1 if len(groups) else 0)]
    for position, subject in enumerate(groups.tolist()):
        positions[subject].append(position)
    return positions


def policy_for(name: str, workload: Workload) -> Policy:
    """A row of the catalogue whose expected batch is the workload's."""
    expected = workload.subjects if name == "subject_dp" else workload.batch
    settings = PolicySettings(batch_size=expected, clip_norm=CLIP_NORM)
    return find(name).row(settings, facts_of(workload)).with_noise(NOISE_MULTIPLIER)


def facts_of(workload: Workload) -> SiloFacts:
    """A silo of a hundred such batches."""
    sizes = {"items": 100 * workload.batch, "subjects": 100 * workload.subjects}
    return SiloFacts(name="silo", **sizes, items_per_subject=max(GROUP_SIZES))


def _ours(policy: str) -> Callable[[Workload], Steps]:
    return lambda workload: Private(workload, BookKeeping(workload.model, cross_entropy), policy_for(policy, workload))


def _compiled(policy: str) -> Callable[[Workload], Steps]:
    """As with `compute.compiled`: noise in C, and the sum where there is a program for the model."""

    def build(workload: Workload) -> Steps:
        clipped_sum = clipped_sums(workload.model, cross_entropy, Compute(compiled=True))
        return Private(workload, clipped_sum, policy_for(policy, workload), in_c=True)

    return build


def _elsewhere(workload: Workload) -> Steps:
    raise RuntimeError("it is built in an environment of its own")


# One thread, as for everybody else.
JAX_THREADS = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}


def _vmap(policy: str) -> Callable[[Workload], Steps]:
    return lambda workload: Private(workload, in_pieces(workload.model), policy_for(policy, workload))


# glibc returns large blocks at once and faults them in again every step; this keeps them.
KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 26)}

CONTESTANTS: Mapping[str, Contestant] = {
    "plain": Contestant("plain SGD", Plain, clips=None),
    "plain-tuned": Contestant("plain SGD, tuned malloc", Plain, clips=None, environment=KEPT_MEMORY),
    "ours": Contestant("wholegrain, per item", _ours("local_item_dp"), ours=True),
    "ours-subject": Contestant("wholegrain, per subject", _ours("subject_dp"), ours=True, clips="subject"),
    "compiled": Contestant("wholegrain, compiled, per item", _compiled("local_item_dp"), ours=True),
    "compiled-subject": Contestant(
        "wholegrain, compiled, per subject", _compiled("subject_dp"), ours=True, clips="subject"
    ),
    "opacus-ghost": Contestant("Opacus, ghost clipping", Ghost),
    "opacus-hooks": Contestant("Opacus, hooks", Hooks, holds_item_gradients=True),
    "jax": Contestant("jax_privacy, per item", _elsewhere, environment=JAX_THREADS, script="jax_peer.py"),
    "jax-subject": Contestant(
        "jax_privacy, per subject", _elsewhere, clips="subject", environment=JAX_THREADS, script="jax_peer.py"
    ),
    "vmap": Contestant("vmap, per item", _vmap("local_item_dp")),
    "vmap-subject": Contestant("vmap, per subject", _vmap("subject_dp"), clips="subject"),
}
