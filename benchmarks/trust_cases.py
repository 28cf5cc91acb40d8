"""What benchmarks/trust.py and benchmarks/trust_settings.py share: data, methods, and the spec of one run."""

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import record
from utility import Tree, merged
from wholegrain.data.dataset import Dataset
from wholegrain.errors import SpecError
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.spec import RunSpec, load

CHOSEN = record.ROOT / "benchmarks" / "trust_settings.jsonl"
EPSILONS, DELTA = (0.1, 0.25, 0.5, 0.75, 1.0, 2.0), 1e-5
TEST = 0.2
SCORES = {"nlswork": "accuracy", "diabetes130": "auc"}
"""What is looked at, by data set: two thirds of the answers in diabetes130 are alike, so accuracy says little."""

SUM = {"model": "secure_sum"}
METHODS: Mapping[str, Tree] = {
    "local": {"policy": {"name": "subject_dp"}},
    "local, by span": {"policy": {"name": "subject_dp", "by_span": True}},
    "secure sum": {"policy": {"name": "subject_dp"}, "trust": SUM},
    "secure sum, by span": {"policy": {"name": "subject_dp", "by_span": True}, "trust": SUM},
    "uldp_avg": {"policy": {"name": "uldp_avg", "by_span": True}, "trust": SUM},
    "fedavg": {"policy": {"name": "fedavg"}},
}
ALIKE = {
    "rounds": {"averaging": "subjects", "checkpoint_every": 10**6},
    "server": {"step": "momentum", "momentum": 0.9, "schedule": "linear"},
}


@dataclass(frozen=True)
class Cell:
    """One method at one ε (None where nothing is private) on one split of one data set."""

    data: str
    method: str
    epsilon: float | None
    seed: int

    def spec(self, base: Tree, rounds: int, learning_rate: float) -> Tree:
        """The spec of its run."""
        privacy = {"privacy": {"epsilon": self.epsilon, "delta": DELTA}} if self.epsilon else {}
        steps = {"rounds": {"count": rounds, "learning_rate": learning_rate}}
        return merged(base, ALIKE, METHODS[self.method], privacy, steps, {"seed": self.seed})


def cells(data: Iterable[str], methods: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """All cells of the table, one seed after the other."""
    return [
        Cell(name, method, epsilon, seed)
        for seed in seeds
        for name in data
        for method in methods
        for epsilon in ((None,) if method == "fedavg" else EPSILONS)
    ]


def problems(table: Path) -> dict[str, Tree]:
    """What every method is run with, by data set; diabetes130 only if its table is there."""
    nlswork = {
        "data": {"source": "nlswork", "options": {"centred": True}},
        "silos": {"surplus": "refuse"},
        "policy": {"rate": 1.0, "clip_norm": 0.5},
        "evaluation": {"test": TEST},
    }
    if not table.exists():
        return {"nlswork": nlswork}
    spec = load(record.ROOT / "examples" / "diabetes130.toml", (f"data.table.path={table.absolute()}",))
    tree = spec.model_dump(mode="json", exclude_unset=True, include={"data", "silos", "model"})
    diabetes = {"policy": {"rate": 1.0, "clip_norm": 1.0}, "evaluation": {"test": TEST}}
    return {"nlswork": nlswork, "diabetes130": merged(tree, diabetes)}


@functools.cache
def _dataset(source: str) -> Dataset:
    return load_dataset(RunSpec.of({"data": json.loads(source)}))


def dataset(tree: Tree) -> Dataset:
    """What a spec's data section names, read once."""
    return _dataset(json.dumps(tree["data"], sort_keys=True))


def read(path: Path) -> list[Tree]:
    """Rows of a file, one JSON object in each line."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kept(path: Path) -> list[Tree]:
    """Rows of a file that must have some."""
    if not (rows := read(path)):
        raise SpecError(f"There are no results in '{path}'.")
    return rows


def keep(path: Path, row: Tree) -> None:
    """Add a row, and show it."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def key(cell: Cell) -> tuple[object, ...]:
    """What tells a cell's row from others."""
    return tuple(asdict(cell).values())


def by_cell(rows: Iterable[Tree]) -> dict[tuple[object, ...], Tree]:
    """Rows by their cell; a later row replaces an earlier one."""
    return {tuple(row[name] for name in Cell.__dataclass_fields__): row for row in rows}
