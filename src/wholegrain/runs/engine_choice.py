"""Which engine carries a run's tasks to its silos. The choice changes where silos train, never what comes out."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from wholegrain import _check
from wholegrain._random import Purpose
from wholegrain.clipping.parted_sum import PartedSum
from wholegrain.engines.distributed import (
    Distributed,
    RankAssignment,
    group_leaders,
    join_process_group,
    require_same_coins,
    serve,
)
from wholegrain.engines.distributed_sum import DistributedSums, serve_sums
from wholegrain.engines.inprocess import InProcess
from wholegrain.engines.processes import Processes, beside, end_at_once, rank, world_size
from wholegrain.engines.secure_sum_engine import SecureSums
from wholegrain.engines.silo_ranks import HelperRanks, serve_parts, stop_helpers
from wholegrain.engines.simulated_sum import SumSilos
from wholegrain.errors import SpecError
from wholegrain.federation.messages import Engine
from wholegrain.runs.datasets import make_coins
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import in_process

log = logging.getLogger("wholegrain.runs")

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
    if choice.name == "inprocess":
        yield in_process(prepared)
        return
    with _others(choice) as others, join_process_group():
        require_same_coins(_coins(prepared))
        spread = _assign_ranks(prepared)
        _tell_of_idle(spread)
        group, local = group_leaders(spread), in_process(_with_helpers(prepared, spread))
        post: Distributed | DistributedSums
        engine: Engine
        if isinstance(local, SecureSums):
            assert isinstance(local.post, SumSilos)
            post = DistributedSums(_own(local.post, spread), spread)
            engine = replace(local, post=post)
        else:
            engine = post = Distributed(_own(local, spread), spread, group)
        try:
            yield engine
        except BaseException:
            # Who is in the middle of a round would not hear that the run is over. They hold nothing that is not here.
            end_at_once(others)
            raise
        post.stop()
        stop_helpers(spread.followers(0))


def _others(choice: EngineChoice) -> contextlib.AbstractContextManager[Processes]:
    """The processes that this one starts; none where all of them are already there."""
    return contextlib.nullcontext([]) if rank() is not None else beside(choice.processes or 1)


def serve_silos(prepared: PreparedRun) -> None:
    """Train this process' silos, or help another one to, until the run is over."""
    own = rank() or 0
    with join_process_group():
        require_same_coins(_coins(prepared))
        spread = _assign_ranks(prepared)
        group, leader = group_leaders(spread), spread.leader(own)
        if leader != own:
            summed = prepared.clipped_sum
            serve_parts(leader, summed.gradients if isinstance(summed, PartedSum) else summed)
            return
        local = in_process(_with_helpers(prepared, spread))
        if isinstance(local, InProcess):
            serve(_own(local, spread), spread, prepared.first, group)
        else:
            assert isinstance(local.post, SumSilos)
            serve_sums(_own(local.post, spread), spread, prepared.first)
        stop_helpers(spread.followers(own))


def _with_helpers(prepared: PreparedRun, spread: RankAssignment) -> PreparedRun:
    """The run, with sums whose parts are computed by the helpers of this process, too."""
    helpers, summed = spread.helpers(rank() or 0), prepared.clipped_sum
    if not helpers or not isinstance(summed, PartedSum):
        return prepared
    return replace(prepared, clipped_sum=summed.over(HelperRanks(helpers)))


def _coins(prepared: PreparedRun) -> Tensor:
    """What tells the coins of this machine from others, and not what they are: they are a keyed function."""
    own = make_coins(prepared.spec, prepared.data).of(Purpose.SPLIT, "the same on all machines")
    return torch.from_numpy(own.words([0])[0].astype(np.int64))


def _own(local: Local, spread: RankAssignment) -> Local:
    """Only the silos of this process: the memory of the others is given back."""
    return replace(local, silos={name: local.silos[name] for name in spread.silos_of(rank() or 0)})


def _assign_ranks(prepared: PreparedRun) -> RankAssignment:
    return RankAssignment(tuple(prepared.silos), world_size(), prepared.spec.compute.ranks_per_silo)


def _tell_of_idle(spread: RankAssignment) -> None:
    if spread.idle:
        log.warning(
            "%d of %d processes have nothing to do (silos: %d, compute.ranks_per_silo: %d). A run with"
            " --ranks-per-silo %d would use all of them.",
            spread.idle,
            spread.size,
            len(spread.silos),
            spread.shared,
            -(-spread.size // spread.leaders),
        )
