"""The pieces that every simulated federation shares: they are made once, and are the program's own.

Only four things are not the program's. Training, and a private score, is a function of parameters and noise that costs
nothing. Noise is a name. Prices and the like (see `memory`), and whether a model fits the data, are computed once by
the program and remembered. Keys are of a faster curve; the masks, shares and signatures of secure sums are real.
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
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from simulation.memory import REMEMBERED, changed
from simulation.network import RUN, SERVER_NODE
from simulation.world import World
from wholegrain.deploy import round_gate, score_service, silo_answers, silo_service, sum_service
from wholegrain.deploy.certificates import public_line
from wholegrain.deploy.charter import Charter
from wholegrain.deploy.silo_service import SiloService
from wholegrain.deploy.sum_session import SumSlot
from wholegrain.engines import flower, platform_faults, roll_call
from wholegrain.federation import rounds
from wholegrain.federation.rounds import digest
from wholegrain.federation.sum_opening import SumOpening
from wholegrain.privacy import guard, ledger
from wholegrain.privacy.accountants import accountant
from wholegrain.runs import run_folder
from wholegrain.runs.spec import RunSpec

NAMES = ("east", "north", "south", "west")
Kind = Literal["updates", "sums", "scores"]
"""What silos release: each its own updates, parts of secure sums, or private scores beside updates."""

ITEMS, SUBJECTS, CAP = 40, 20, 4
NOISE, SCORE_NOISE, DELTA = 4.0, 6.0, 1e-5
HELD_OUT = 0.4
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


Reads = Callable[[str, int, str, str, str], None]
"""Told before data is read: by which silo, in which round, at which parameters, with which noise, and what for."""


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

    reads: "Reads" = lambda *_: None
    adds: "Callable[[str, int, Any], None]" = lambda *_: None
    """Told what a silo adds to a sum, and in which round."""

    def train(self, silo: Any, policy: object, vector: Tensor, round: int, steps: int) -> Tensor:
        """As a trainer does."""
        type(self).reads(silo.facts.name, round, digest(vector), self.noise.identity, "training")
        words = _words(vector.numel(), silo.facts.name, round, digest(vector), steps, self.noise.identity)
        return vector + torch.from_numpy(words.astype(np.float32) / 2**32 - 0.5)

    def add_to_sum(self, silo: Any, policy: object, vector: Tensor, round: int) -> Tensor:
        """As a trainer does."""
        type(self).reads(silo.facts.name, round, digest(vector), self.noise.identity, "training")
        words = _words(vector.numel(), silo.facts.name, round, digest(vector), self.noise.identity)
        part = torch.from_numpy(words.astype(np.int64) % 2001 - 1000)
        type(self).adds(silo.facts.name, round, part.numpy().copy())
        return part


@dataclass(frozen=True, eq=False, kw_only=True)
class NamedScoreMaker:
    """Instead of a score: numbers that follow from parameters, round, silo and noise."""

    model: object
    loss: object
    task: object
    noise: NamedNoise

    reads: "Reads" = lambda *_: None

    def score(self, silo: str, data: object, form: Any, vector: Tensor, round: int) -> Tensor:
        """As whoever makes scores does."""
        type(self).reads(silo, round, digest(vector), self.noise.identity, "scores")
        words = _words(form.width, silo, round, digest(vector), self.noise.identity)
        return torch.from_numpy(words.astype(np.float64) / 2**32)


def _words(count: int, *key: object) -> Any:
    """Numbers of 32 bits that follow from a key."""
    drawn = hashlib.shake_256(" ".join(map(str, key)).encode()).digest(4 * count)
    return np.frombuffer(drawn, "<u4")


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
def keys() -> dict[str, ec.EllipticCurvePrivateKey]:
    """Every silo's key, of a curve that signs ten times as fast as the one that is used in earnest."""
    return {name: ec.generate_private_key(ec.SECP256R1()) for name in NAMES}


def _find_key(line: str, where: str) -> ec.EllipticCurvePublicKey:
    """The silo's public key that this line is."""
    return next(key.public_key() for key in keys().values() if public_line(key) == line)


def _agreement(name: str, kind: Kind) -> dict[str, Any]:
    """What a charter says of this kind of release."""
    models = CHARTER["allow"]
    if kind == "scores":
        return {"allow": {**models, "scores": "private"}, "held_out": HELD_OUT}
    if kind == "updates":
        return {}
    peers = {other: public_line(key) for other, key in keys().items() if other != name}
    return {"allow": {**models, "trust": ["secure_sum"]}, "link": {"address": "127.0.0.1:1", "peers": peers}}


@cache
def template(name: str, noise: str, kind: Kind) -> SiloService:
    """A silo with data and model, and no ledger yet."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, WHOLEGRAIN_STATE=folder):
        account = {"data": name, "path": f"{folder}/ledger.sqlite"}
        charter = Charter.model_validate(
            CHARTER
            | {"silo": name, "limit": {**CHARTER["limit"], "noise": noise, "span": 1}, "ledger": account}
            | _agreement(name, kind)
        )
        found = SiloService.open(charter, None, accountant("pld"), lambda: None)
        played = PlayedSilo(**{field: getattr(found, field) for field in SiloService.__dataclass_fields__})
        return replace(played, key=keys()[name]) if kind == "sums" else played


def host(found: SiloService, epsilon: float, book: ledger.Ledger, fresh: Callable[[], NamedNoise]) -> SiloService:
    """A silo whose charter has this limit, on this ledger; it remembers nothing that is not there."""
    charter = found.charter.model_copy(
        update={
            "limit": found.charter.limit.model_copy(update={"epsilon": epsilon}),
            "ledger": found.charter.ledger.model_copy(update={"path": str(book.path)}),
        }
    )
    memory = {"asked": silo_service.RecentNonces(), "sums": SumSlot()}
    return replace(found, charter=charter, ledger=book, fresh_noise=fresh, **memory)


@cache
def spec(kind: Kind, silos: int, rounds: int, steps: int, noise: str, room: str, every: int, answers: int) -> RunSpec:
    """What a server asks for. `room` is how much more than its plan the server's own account may pay for."""
    facts = template(NAMES[0], "secure", kind)
    published = [{"name": name, "items": ITEMS, "subjects": SUBJECTS, "items_per_subject": CAP} for name in NAMES]
    return RunSpec.of(
        {
            "policy": {"name": "subject_dp", "rate": 1.0},
            "privacy": {"epsilon": 50.0 if room == "tight" else None, "noise_multiplier": NOISE, "noise": noise},
            "silos": {"span": 1} if kind == "sums" else {},
            "ledger": {"epsilon": 60.0} if room == "shared" else {},
            "rounds": {
                "count": rounds,
                "steps": 1 if kind == "sums" else steps,
                "checkpoint_every": every,
                "averaging": "subjects",
            },
            **({"trust": {"model": "secure_sum", "answers": answers}} if kind == "sums" else {}),
            **({"evaluation": {"test": HELD_OUT, "private": _PRIVATE}} if kind == "scores" else {}),
            "federation": {
                "shape": [facts.dataset.features],
                "classes": facts.dataset.classes,
                "silos": published[:silos],
                "patience": PATIENCE,
            },
        }
    )


_PRIVATE = {"every": 2, "noise_multiplier": SCORE_NOISE}


def _nothing(*of_anything: object) -> None:
    """Instead of a signature that this server, which has no roster, would not look at."""


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
def virtual(world: World, witness: Any) -> Iterator[None]:
    """Time, chance and training are the world's own from here on; a witness is told of what is read and opened."""
    open_sum, reads = SumOpening.open, staticmethod(witness.on_read)
    tokens = (f"{world.draws.getrandbits(128):032x}" for _ in itertools.count())
    drawn = SimpleNamespace(token_hex=lambda size: next(tokens)[: 2 * size])
    clock, calendar = _Clock(world), _calendar(world)
    trainer = type("Trainer", (NamedTrainer,), {"reads": reads, "adds": staticmethod(witness.on_part)})
    scorer = type("ScoreMaker", (NamedScoreMaker,), {"reads": reads})

    def open_seen(self: SumOpening, bits: int) -> Any:
        found = open_sum(self, bits)
        witness.on_opened(self.survivors, self.round, found)
        return found

    changes = [
        (flower, "time", clock), (flower, "PAUSE", 0.5), (roll_call, "time", clock), (round_gate, "time", clock),
        (platform_faults, "time", clock), (rounds, "time", clock), (ledger, "datetime", calendar),
        (silo_answers, "datetime", calendar), (ledger, "secrets", drawn), (guard, "secrets", drawn),
        (run_folder, "secrets", drawn), (silo_service, "Trainer", trainer),
        (sum_service, "Trainer", trainer), (SumOpening, "open", open_seen),
        (sum_service, "load_public_key", lru_cache(_find_key)), (score_service, "ScoreMaker", scorer),
        (TaskIdentity, "_run_id", RUN), (TaskIdentity, "_node_id", SERVER_NODE), (TaskIdentity, "_task_id", 3),
        (silo_answers, "sign_answer", _nothing), (silo_answers, "state_head", _nothing),
        (silo_answers, "put_head", _nothing), *REMEMBERED,
    ]  # fmt: skip
    with changed(changes):
        yield
