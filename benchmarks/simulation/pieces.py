"""The pieces that every simulated federation shares: they are made once, and are the program's own.

Only three things are not the program's. Training is a function of parameters and noise that costs nothing. Noise is a
name. Prices, and whether a model fits the data, are computed once by the program and remembered.
"""

import hashlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from simulation.network import RUN, SERVER_NODE
from simulation.world import World
from wholegrain.deploy import client, server, silo_service
from wholegrain.deploy.charter import Charter
from wholegrain.deploy.silo_service import SiloService
from wholegrain.engines import flower
from wholegrain.federation import rounds
from wholegrain.federation.rounds import digest
from wholegrain.privacy import accountants, guard, ledger
from wholegrain.privacy.accountants import accountant
from wholegrain.runs import run_folder
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.spec import RunSpec

NAMES = ("north", "south", "west")
ITEMS, SUBJECTS, CAP = 40, 20, 4
NOISE, DELTA = 4.0, 1e-5
PATIENCE = 10.0
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)

CHARTER = {
    "data": {"source": "clinics", "options": {"patients": 20, "clinics": 1, "span": 1, "visits": 2}},
    "limit": {
        "epsilon": 1.0,
        "delta": DELTA,
        "items_per_subject": CAP,
        "smallest_noise": NOISE,
        "largest_clip": 1.0,
        "most_steps": 4,
    },
    "sizes": {"items": ITEMS, "subjects": SUBJECTS},
    "allow": {"models": [{"name": "logistic"}]},
}


@dataclass(frozen=True)
class NamedNoise:
    """Noise that is nothing but its name."""

    identity: str
    repeats: bool

    @property
    def name(self) -> str:
        """As the record calls it."""
        return "seeded (simulation)" if self.repeats else "secure"


@dataclass(frozen=True, eq=False, kw_only=True)
class NamedTrainer:
    """Instead of training: parameters that follow from start, round, silo and noise, and from nothing else."""

    clipped_sum: object
    noise: NamedNoise
    learning_rate: float

    reads: "Callable[[str, int, str, str], None]" = lambda *_: None
    """Told before the data is read: by which silo, in which round, from which parameters, with which noise."""

    def train(self, silo: Any, policy: object, vector: Tensor, round: int, steps: int) -> Tensor:
        """As a trainer does."""
        start = digest(vector)
        type(self).reads(silo.facts.name, round, start, self.noise.identity)
        key = f"{silo.facts.name} {round} {start} {steps} {self.noise.identity}".encode()
        words = hashlib.shake_256(key).digest(4 * vector.numel())
        moved = np.frombuffer(words, "<u4").astype(np.float32) / 2**32 - 0.5
        return vector + torch.from_numpy(moved)


class PlayedSilo(SiloService):
    """The silo's service, which tries once whether a model fits its data."""

    def require_fit(self, agreed: Any, policy: Any) -> None:
        _fit(self, agreed, policy)


_FITS: set[tuple[int, object]] = set()


def _fit(host: SiloService, agreed: Any, policy: Any) -> None:
    key = (id(agreed), policy.clip)
    if key not in _FITS:
        SiloService.require_fit(host, agreed, policy)
        _FITS.add(key)


@cache
def template(name: str, noise: str) -> SiloService:
    """A silo with data and model, and no ledger yet."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, WHOLEGRAIN_STATE=folder):
        account = {"data": name, "path": f"{folder}/ledger.sqlite"}
        charter = Charter.model_validate(
            CHARTER | {"silo": name, "limit": {**CHARTER["limit"], "noise": noise}, "ledger": account}
        )
        found = SiloService.open(charter, None, accountant("pld"), lambda: None)
        return PlayedSilo(**{field: getattr(found, field) for field in SiloService.__dataclass_fields__})


def host(name: str, noise: str, epsilon: float, book: ledger.Ledger, fresh: Callable[[], NamedNoise]) -> SiloService:
    """The silo of a charter with this limit, on this ledger."""
    found = template(name, noise)
    charter = found.charter.model_copy(
        update={
            "limit": found.charter.limit.model_copy(update={"epsilon": epsilon}),
            "ledger": found.charter.ledger.model_copy(update={"path": str(book.path)}),
        }
    )
    return replace(found, charter=charter, ledger=book, fresh_noise=fresh, asked=silo_service.RecentNonces())


@cache
def spec(silos: int, rounds: int, steps: int, noise: str, room: str, every: int) -> RunSpec:
    """What a server asks for. `room` is how much more than its plan the server's own account may pay for."""
    facts = template(NAMES[0], "secure")
    published = [{"name": name, "items": ITEMS, "subjects": SUBJECTS, "items_per_subject": CAP} for name in NAMES]
    return RunSpec.of(
        {
            "policy": {"name": "subject_dp", "rate": 1.0},
            "privacy": {"epsilon": 50.0 if room == "tight" else None, "noise_multiplier": NOISE, "noise": noise},
            "ledger": {"epsilon": 60.0} if room == "shared" else {},
            "rounds": {"count": rounds, "steps": steps, "checkpoint_every": every},
            "federation": {
                "shape": [facts.dataset.features],
                "classes": facts.dataset.classes,
                "silos": published[:silos],
                "patience": PATIENCE,
            },
        }
    )


@lru_cache(maxsize=256)
def _prepared(spec: str) -> PreparedRun:
    return PREPARE(RunSpec.model_validate_json(spec))


PREPARE = server.prepare_server
PRICE = lru_cache(maxsize=100_000)(accountants.PldAccountant.epsilon)


class _Clock:
    """The module `time`, for whoever waits in a simulation."""

    def __init__(self, world: World) -> None:
        self.world = world

    def monotonic(self) -> float:
        return self.world.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.world.sleep(seconds)


def _calendar(world: World) -> Any:
    """The class `datetime`: every machine has its own idea of the time, which may go back."""

    def now(zone: object = None) -> datetime:
        skew = world.current.machine.skew if world.current else 0.0
        return BEGINNING + timedelta(seconds=world.now + skew)

    return SimpleNamespace(now=now)


@contextmanager
def virtual(world: World, reads: Callable[[str, int, str, str], None]) -> Iterator[None]:
    """Time, chance and training are the world's own from here on."""
    tokens = (f"{world.draws.getrandbits(128):032x}" for _ in itertools.count())
    drawn = SimpleNamespace(token_hex=lambda size: next(tokens)[: 2 * size])
    clock, calendar = _Clock(world), _calendar(world)
    trainer = type("Trainer", (NamedTrainer,), {"reads": staticmethod(reads)})
    changes = [
        (flower, "time", clock), (flower, "PAUSE", 0.5), (rounds, "time", clock), (ledger, "datetime", calendar),
        (client, "datetime", calendar), (ledger, "secrets", drawn), (guard, "secrets", drawn),
        (run_folder, "secrets", drawn), (silo_service, "Trainer", trainer),
        (server, "prepare_server", lambda spec: _prepared(spec.model_dump_json())),
        (accountants.PldAccountant, "epsilon", lambda self, event, delta: PRICE(self, event, delta)),
        (TaskIdentity, "_run_id", RUN), (TaskIdentity, "_node_id", SERVER_NODE), (TaskIdentity, "_task_id", 3),
    ]  # fmt: skip
    patches = [mock.patch.object(*change) for change in changes]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
