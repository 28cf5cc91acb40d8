"""Which engine carries a run's tasks to its silos. The choice changes where silos train, never what comes out."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from wholegrain import _check
from wholegrain._random import Purpose
from wholegrain.engines.distributed import Distributed, RankAssignment, join_process_group, require_same_coins, serve
from wholegrain.engines.distributed_sum import DistributedSums, serve_sums
from wholegrain.engines.inprocess import InProcess
from wholegrain.engines.processes import Processes, beside, end_at_once, rank, world_size
from wholegrain.engines.secure_sum_engine import SecureSums
from wholegrain.engines.simulated_sum import SumSilos
from wholegrain.errors import SpecError
from wholegrain.federation.messages import Engine
from wholegrain.runs.datasets import make_coins
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import in_process

NAMES = ("inprocess", "distributed")
Local = TypeVar("Local", InProcess, SumSilos)


@dataclass(frozen=True)
class EngineChoice:
    """An engine by name, and how many processes it may use on this machine."""

    name: str = "inprocess"
    processes: int | None = None

    def __post_init__(self) -> None:
        _check.one_of("engine", self.name, NAMES)
        if self.processes is not None:
            _check.count("--processes", self.processes)
        if self.name == "inprocess" and (self.processes or 1) > 1:
            raise SpecError("The engine 'inprocess' has one process; use --engine distributed for several.")
        if self.name == "inprocess" and rank() is not None:
            raise SpecError("This process is one of several; say so with --engine distributed.")
        if self.name == "distributed" and rank() is not None and self.processes not in (None, world_size()):
            raise SpecError(
                f"There are {world_size()} processes already, and --processes asks for {self.processes}; leave it out."
            )

    @property
    def serves(self) -> bool:
        """Whether this process only trains silos for another one, which keeps the record."""
        return (rank() or 0) > 0


@contextlib.contextmanager
def open_engine(prepared: PreparedRun, choice: EngineChoice) -> Iterator[Engine]:
    """The engine, with whatever it needs running beside it."""
    local = in_process(prepared)
    if choice.name == "inprocess":
        yield local
        return
    with _others(choice) as others, join_process_group():
        require_same_coins(_coins(prepared))
        post: Distributed | DistributedSums
        engine: Engine
        if isinstance(local, SecureSums):
            assert isinstance(local.post, SumSilos)
            post = DistributedSums(_own(local.post), _assign_ranks(prepared))
            engine = replace(local, post=post)
        else:
            engine = post = Distributed(_own(local), _assign_ranks(prepared))
        try:
            yield engine
        except BaseException:
            # Who is in the middle of a round would not hear that the run is over. They hold nothing that is not here.
            end_at_once(others)
            raise
        post.stop()


def _others(choice: EngineChoice) -> contextlib.AbstractContextManager[Processes]:
    """The processes that this one starts; none where all of them are already there."""
    return contextlib.nullcontext([]) if rank() is not None else beside(choice.processes or 1)


def serve_silos(prepared: PreparedRun) -> None:
    """Train this process' silos until the run is over."""
    with join_process_group():
        require_same_coins(_coins(prepared))
        local = in_process(prepared)
        if isinstance(local, InProcess):
            serve(_own(local), _assign_ranks(prepared), prepared.first)
            return
        assert isinstance(local.post, SumSilos)
        serve_sums(_own(local.post), _assign_ranks(prepared), prepared.first)


def _coins(prepared: PreparedRun) -> Tensor:
    """What tells the coins of this machine from others, and not what they are: they are a keyed function."""
    own = make_coins(prepared.spec, prepared.data).of(Purpose.SPLIT, "the same on all machines")
    return torch.from_numpy(own.words([0])[0].astype(np.int64))


def _own(local: Local) -> Local:
    """Only the silos of this process: the memory of the others is given back."""
    owned = RankAssignment(tuple(local.silos), world_size()).silos_of(rank() or 0)
    return replace(local, silos={name: local.silos[name] for name in owned})


def _assign_ranks(prepared: PreparedRun) -> RankAssignment:
    return RankAssignment(tuple(prepared.silos), world_size())
