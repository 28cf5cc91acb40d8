"""Five silos that take part in secure sums: tables with people in several of them, charters, keys, a server's spec."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict

from deployment import as_toml, charter_tree, table
from grids import FakeGrid
from wholegrain.deploy.certificates import private_text, public_line, silo_key
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.silo_answers import answer, open_silo
from wholegrain.deploy.silo_service import SiloService
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

SILOS = ("east", "middle", "north", "south", "west")
ITEMS, SUBJECTS = 60, 40
"""As every silo declares them."""


def write_tables(folder: Path, people: int = 60) -> None:
    """People who visit one to five clinics: a table for each clinic, and one of all, each with everybody's span."""
    draws = np.random.default_rng(0)
    rows: list[tuple[str, str]] = []
    for person in range(people):
        span = int(draws.integers(1, len(SILOS) + 1))
        for clinic in draws.permutation(SILOS)[:span]:
            for _ in range(draws.integers(1, 3)):
                a, b, c = draws.normal(size=3).clip(-3, 3)
                rows.append((str(clinic), f"p{person:03},{span},{a:.4f},{b:.4f},{c:.4f},{int(a + b > 0)}"))
    head = "person,span,a,b,c,ill"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "all.csv").write_text("\n".join([f"{head},clinic", *(f"{rest},{clinic}" for clinic, rest in rows), ""]))
    for name in SILOS:
        (folder / f"{name}.csv").write_text("\n".join([head, *(rest for clinic, rest in rows if clinic == name), ""]))


def training(**changes: Any) -> dict[str, Any]:
    """What server and simulation have in common."""
    tree: dict[str, Any] = {
        "seed": 3,
        "policy": {"name": "subject_dp", "rate": 0.5},
        "privacy": {"epsilon": 6.0},
        "trust": {"model": "secure_sum", "answers": 4},
        "rounds": {"count": 2, "learning_rate": 0.5, "averaging": "subjects"},
    }
    tree = {**tree, **{name: {**tree.get(name, {}), **(change or {})} for name, change in changes.items()}}
    return {name: section for name, section in tree.items() if name not in changes or changes[name] is not None}


def server_spec(**changes: Any) -> RunSpec:
    facts = [{"name": n, "items": ITEMS, "subjects": SUBJECTS, "items_per_subject": 4} for n in SILOS]
    federation = {"shape": [3], "classes": 2, "silos": facts, "patience": 5.0}
    return RunSpec.of({**training(**changes), "federation": federation})


def simulated(folder: Path, **changes: Any) -> bytes:
    """The parameters of the same training in one process, to the last bit."""
    sizes = {"*": {"items": ITEMS, "subjects": SUBJECTS}}
    spec = {
        **training(**changes),
        "data": {"source": "table", "table": {**table(str(folder / "all.csv")), "silo": "clinic"}},
        "silos": {"items_per_subject": 4, "sizes": sizes},
        "evaluation": {"test": 0.0},
    }
    prepared = prepare(RunSpec.of(spec))
    with open_guard(prepared, "0" * 16) as guard:
        return execute(prepared, guard).vector.numpy().tobytes()


def charter(folder: Path, name: str, keys: Mapping[str, str], **changes: Any) -> dict[str, Any]:
    """A charter that agrees to secure sums with the owners of these keys."""
    return charter_tree(
        silo=name,
        data={"source": "table", "table": {**table(str(folder / f"{name}.csv")), **changes.get("table", {})}},
        limit={"epsilon": 20.0, "smallest_noise": 0.5, "noise": "seeded", **changes.get("limit", {})},
        sizes={"items": ITEMS, "subjects": SUBJECTS},
        allow={"models": [{"name": "logistic"}], "trust": ["secure_sum"], **changes.get("allow", {})},
        link={
            "address": "127.0.0.1:1",
            "key": "key",
            "peers": {peer: key for peer, key in keys.items() if peer != name},
            **changes.get("link", {}),
        },
        ledger={"data": f"visits of {name}"},
        held_out=changes.get("held_out", 0.0),
    )


@dataclass
class Services:
    """Silos of this process, behind a grid that hands every message over and keeps a copy of it."""

    hosts: dict[str, SiloService]
    seen: list[tuple[str, Message, RecordDict]] = field(default_factory=list)
    dead_to: dict[str, set[str]] = field(default_factory=dict)
    """Kinds of messages that a silo does not answer any more."""

    def grid(self) -> FakeGrid:
        return FakeGrid({10 + number: self._node(name) for number, name in enumerate(SILOS)})

    def _node(self, name: str) -> Any:
        def reply(message: Message) -> RecordDict | None:
            kind = message.metadata.message_type
            if kind in self.dead_to.get(name, ()):
                return None
            found = answer(message, self.hosts[name]).content
            self.seen.append((name, message, found))
            return found

        return reply


@contextlib.contextmanager
def services(folder: Path, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[Services]:
    """The five silos, each open on its own charter; `changes` by silo, or for all of them under '*'."""
    write_tables(folder / "data")
    keys = {name: silo_key() for name in SILOS}
    lines = {name: public_line(key) for name, key in keys.items()}
    with contextlib.ExitStack() as stack:
        hosts = {}
        for name in SILOS:
            own = folder / name
            own.mkdir()
            (own / "key").write_bytes(private_text(keys[name]))
            changed = {**(changes or {}).get("*", {}), **(changes or {}).get(name, {})}
            (own / "silo.toml").write_text(as_toml(charter(folder / "data", name, lines, **changed)))
            hosts[name] = stack.enter_context(open_silo(load_charter(own / "silo.toml")))
        yield Services(hosts)
