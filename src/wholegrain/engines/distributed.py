"""Silos spread over processes, by torch.distributed.

Rank 0 plays the rounds and trains its own silos; every other rank serves: it waits for a task, trains its silos of the
cohort, and sends each update back. Parameters travel as one flat buffer, never as a pickle. Updates are handed on in
the order of the cohort, whoever trained them, so that the mean is the same to the last bit on any number of processes.

A rank that dies breaks its connections: rank 0 ends the run with an error, the other ranks end, and the run can be
resumed.

Where there are more ranks than silos, those beyond help: they compute parts of a silo's sums (`silo_ranks`), and hear
nothing of what rank 0 and the ranks with silos say to each other.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from wholegrain import _check
from wholegrain.engines.inprocess import InProcess
from wholegrain.errors import LostProcessError, RunError
from wholegrain.federation.messages import RoundTask, SiloFault, SiloUpdate

PATIENCE = timedelta(minutes=30)
"""How long to wait for another rank's silo; one that is dead is noticed at once."""

STOP, TRAIN = 0, 1
UPDATE, FAULT = 0, 1


@dataclass(frozen=True)
class RankAssignment:
    """Which rank trains which silo: in turn, in the order of the plan. Ranks beyond the number of silos help others.

    At most `shared` ranks work for one silo at a time; who is left over waits for the end of the run.
    """

    silos: tuple[str, ...]
    size: int
    shared: int = 1

    @property
    def leaders(self) -> int:
        """How many ranks have silos, or could: the first ones."""
        return max(1, min(self.size, len(self.silos)))

    @property
    def idle(self) -> int:
        """How many ranks have nothing to do."""
        return max(0, self.size - self.leaders * self.shared)

    def leader(self, rank: int) -> int:
        """Whom a rank works for: itself, where it has silos."""
        return rank % self.leaders

    def followers(self, rank: int) -> tuple[int, ...]:
        """The ranks that wait for this one: it tells them when the run is over."""
        return tuple(other for other in range(self.leaders, self.size) if self.leader(other) == rank)

    def helpers(self, rank: int) -> tuple[int, ...]:
        """Those of them that compute parts of its sums."""
        return self.followers(rank)[: self.shared - 1]

    def owner(self, silo: str) -> int:
        """The rank that has this silo."""
        return self.silos.index(silo) % self.leaders

    def silos_of(self, rank: int) -> tuple[str, ...]:
        """The silos of a rank."""
        return tuple(silo for silo in self.silos if self.owner(silo) == rank)


@contextlib.contextmanager
def join_process_group() -> Iterator[None]:
    """Take part in the process group that the environment describes (as `torchrun` sets it up)."""
    # Where there are GPUs, their tensors would travel by NCCL and those of the CPU by gloo.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise RunError(f"The processes of the run did not find each other: {_check.reason(error)}.") from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def group_leaders(spread: RankAssignment) -> dist.ProcessGroup | None:
    """The ranks that have silos, as a group; None where these are all. Every rank must ask for it."""
    if spread.leaders == spread.size:
        return None
    with explain_lost_connection(None):
        group: dist.ProcessGroup = dist.new_group(list(range(spread.leaders)))
        return group


def require_same_coins(own: Tensor) -> None:
    """Refuse to go on in a process whose silos were made with other coins than those of rank 0.

    In a release the coins are a secret of the machine. With those of two machines, a person could be in more silos than
    any of them sees.
    """
    first = own.clone()
    with explain_lost_connection(None):
        dist.broadcast(first, src=0)
    if not torch.equal(first, own):
        raise RunError(
            "This machine spreads people over silos by other coins than the first one; let all of them use one state"
            " folder (WHOLEGRAIN_STATE), where the key is kept."
        )


@dataclass(frozen=True, eq=False)
class Distributed:
    """The engine of rank 0."""

    local: InProcess
    spread: RankAssignment
    group: dist.ProcessGroup | None = None
    """The ranks that have silos."""

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        """Hand the task to all ranks, and their answers on in the order of the cohort."""
        with explain_lost_connection(task.round):
            _broadcast_task(task, self.spread, self.group)
        for silo in task.silos:
            owner = self.spread.owner(silo)
            if owner == 0:
                yield self.local.answer(silo, task)
            else:
                with explain_lost_connection(task.round):
                    answer = _receive(silo, owner, task.vector)
                yield answer

    def stop(self) -> None:
        """Let the other ranks with silos go."""
        with contextlib.suppress(RuntimeError):
            dist.broadcast(torch.tensor([STOP, 0, 0, 0]), src=0, group=self.group)


def serve(local: InProcess, spread: RankAssignment, like: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Train for rank 0 until it says stop; `like` has the shape of the parameters."""
    rank = dist.get_rank()
    with explain_lost_connection(None):
        while (task := _receive_task(spread, like, group)) is not None:
            sent: list[dist.Work] = []
            for silo in task.silos:
                if spread.owner(silo) == rank:
                    sent += _send(local.answer(silo, task))
            for work in sent:
                work.wait()


def _broadcast_task(task: RoundTask, spread: RankAssignment, group: dist.ProcessGroup | None) -> None:
    cohort = torch.tensor([spread.silos.index(silo) for silo in task.silos], dtype=torch.int64)
    for content in (torch.tensor([TRAIN, task.round, task.steps, len(cohort)]), cohort, task.vector):
        dist.broadcast(content, src=0, group=group)


def _receive_task(spread: RankAssignment, like: Tensor, group: dist.ProcessGroup | None) -> RoundTask | None:
    header = torch.zeros(4, dtype=torch.int64)
    dist.broadcast(header, src=0, group=group)
    command, round, steps, count = header.tolist()
    if command == STOP:
        return None
    cohort, vector = torch.zeros(count, dtype=torch.int64), torch.empty_like(like)
    dist.broadcast(cohort, src=0, group=group)
    dist.broadcast(vector, src=0, group=group)
    return RoundTask(round, tuple(spread.silos[number] for number in cohort.tolist()), steps, vector)


def _send(answer: SiloUpdate | SiloFault) -> list[dist.Work]:
    """A header (what follows, and how long it is), then the parameters or the reason why there are none."""
    if isinstance(answer, SiloUpdate):
        kind, content = UPDATE, answer.vector
    else:
        kind, content = FAULT, torch.frombuffer(bytearray(answer.reason.encode()), dtype=torch.uint8)
    header = torch.tensor([kind, content.numel()])
    works = [dist.isend(header, dst=0), dist.isend(content, dst=0)]
    return [work for work in works if work is not None]


def _receive(silo: str, owner: int, like: Tensor) -> SiloUpdate | SiloFault:
    header = torch.zeros(2, dtype=torch.int64)
    dist.recv(header, src=owner)
    kind, length = header.tolist()
    content = like.new_empty(length) if kind == UPDATE else torch.empty(length, dtype=torch.uint8)
    dist.recv(content, src=owner)
    if kind == UPDATE:
        return SiloUpdate(silo, content)
    return SiloFault(silo, bytes(content.tolist()).decode(errors="replace"))


@contextlib.contextmanager
def explain_lost_connection(round: int | None) -> Iterator[None]:
    """A broken connection as one sentence."""
    try:
        yield
    except RuntimeError as error:
        when = "" if round is None else f" in round {round}"
        # The first sentence, without the line of the library's own source.
        why = re.sub(r"^\[\S*\] ", "", _check.reason(error)).partition(". ")[0][:120]
        raise LostProcessError(
            f"A process of the run was lost{when} ({why}); what is on record is whole, and `wholegrain resume` goes on"
            " from there."
        ) from error
