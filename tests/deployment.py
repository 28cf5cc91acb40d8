"""A silo as its operator sets it up, and messages as a server sends them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.metadata import Metadata
from torch import Tensor, nn

from wholegrain.engines import wire
from wholegrain.engines.wire import SiloTask
from wholegrain.policies.policy_catalog import PolicySettings

PARAMETERS = 8
"""Of the logistic model on the table's three features and two classes."""


def relu_net(features: int, classes: int) -> nn.Module:
    """A model whose activations are as large as a server's parameters make them."""
    return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, classes))


def write_table(path: Path, people: int = 40, seed: int = 0) -> Path:
    """A CSV of people with up to four visits each."""
    draws = np.random.default_rng(seed)
    rows = []
    for person in range(people):
        for _ in range(draws.integers(1, 5)):
            a, b, c = draws.normal(size=3).clip(-3, 3)
            rows.append(f"p{person:03},{a:.4f},{b:.4f},{c:.4f},{int(a + b > 0)}")
    path.write_text("person,a,b,c,ill\n" + "\n".join(rows) + "\n")
    return path


def table(path: str) -> dict[str, Any]:
    """What an operator knows of that CSV."""
    bounds = {name: {"low": -3, "high": 3} for name in "abc"}
    return {"path": path, "subject": "person", "target": {"column": "ill", "classes": ["0", "1"]}, "features": bounds}


def charter_tree(**changes: Any) -> dict[str, Any]:
    """A charter with room for a few rounds; the sections given are changed key by key."""
    tree: dict[str, Any] = {
        "silo": "north",
        "seed": 3,
        "data": {"source": "table", "table": table("visits.csv")},
        "limit": {
            "epsilon": 4.0,
            "items_per_subject": 4,
            "smallest_noise": 1.0,
            "largest_clip": 1.0,
            "most_steps": 5,
        },
        "sizes": {"items": 100, "subjects": 40},
        "allow": {"models": [{"name": "logistic"}]},
    }
    for name, change in changes.items():
        tree[name] = {**tree.get(name, {}), **change} if isinstance(change, dict) else change
    tree["ledger"] = {"data": f"visits of {tree['silo']}", "path": "ledger.sqlite", **tree.get("ledger", {})}
    return tree


def write_charter(folder: Path, **changes: Any) -> Path:
    """silo.toml and the table that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "visits.csv")
    path = folder / "silo.toml"
    path.write_text(as_toml(charter_tree(**changes)))
    return path


def as_toml(tree: Mapping[str, Any]) -> str:
    """The tree in TOML, a line for each section."""
    return "".join(f"{key} = {_value(value)}\n" for key, value in tree.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def task(**changes: Any) -> SiloTask:
    """What a server with good manners asks for."""
    agreed: dict[str, Any] = {
        "run": "run-1",
        "spec": "spec-1",
        "round": 0,
        "steps": 2,
        "policy": "subject_dp",
        "settings": PolicySettings(rate=0.5),
        "noise_multiplier": 2.0,
        "learning_rate": 0.5,
        "model": "logistic",
    }
    return SiloTask(**{**agreed, **changes})


def vector(*values: float) -> Tensor:
    """Parameters of the logistic model: zeros, but for these at the beginning."""
    found = torch.zeros(PARAMETERS)
    found[: len(values)] = torch.tensor(values)
    return found


def message(content: RecordDict | Error | None = None, kind: str = "train", **changes: Any) -> Message:
    """A message as it arrives."""
    facts: dict[str, Any] = {
        "run_id": 7,
        "message_id": "message-1",
        "src_node_id": 1,
        "dst_node_id": 2,
        "reply_to_message_id": "",
        "group_id": "0",
        "created_at": 1e9,
        "ttl": 1e9,
        "message_type": kind,
    }
    metadata = Metadata(**{**facts, **changes})
    if isinstance(content, Error):
        return Message(error=content, metadata=metadata)
    return Message(content=RecordDict() if content is None else content, metadata=metadata)


def text_message(record: str, text: str) -> Message:
    """A message that says this, and nothing else."""
    return message(RecordDict({record: ConfigRecord({"json": text})}))


def ask(asked: SiloTask, start: Tensor | None = None, kind: str = "train") -> Message:
    """The task in a message."""
    return message(wire.packed_task(asked, vector() if start is None else start), kind)
