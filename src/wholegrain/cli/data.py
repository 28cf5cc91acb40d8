"""`data list` and `data describe`: what there is, and how its items lie over subjects and silos."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from wholegrain.cli import show
from wholegrain.cli.pricing import Json
from wholegrain.cli.runs import Changes
from wholegrain.data.dataset import Dataset
from wholegrain.data.sources import SOURCES
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import SpecError
from wholegrain.runs.datasets import load_dataset, split_dataset
from wholegrain.runs.spec import RunSpec, changed, load

app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, and what one looks like.")
BAR = 40
MOST_BINS = 16


@app.command("list")
def list_sources() -> None:
    """Data sets that a spec can name."""
    rows = [(name, source.summary) for name, source in SOURCES.items()]
    rows.append(("table", "your own CSV or Parquet file, described in data.table"))
    show.out.print(show.table("Data sources", ("name", "what it is"), rows))


@app.command()
def describe(
    source: Annotated[str, typer.Argument(help="A source's name, or a spec.")],
    changes: Changes = [],  # noqa: B006 (typer reads the default and never changes it)
    json: Json = False,
) -> None:
    """Items per subject, silos per subject and silo sizes. Reads raw data: not private.

    For a source that reads files, say where they are: --set data.options.path=PATH.
    """
    facts = _facts(_spec(source, tuple(changes)))
    if json:
        show.as_json(facts)
        return
    show.out.print(f"[bold]{facts['name']}[/bold] [red](not private: counted from raw data)[/red]")
    for key in ("items", "subjects", "features", "classes"):
        show.out.print(f"  {key:9} {facts[key]}")
    for note in _remarks(facts):
        show.out.print(f"  {note}", markup=False)
    rows = [(name, silo["items"], silo["subjects"], silo["largest_subject"]) for name, silo in facts["silos"].items()]
    show.out.print(show.table("Silos", ("silo", "items", "subjects", "most items of a subject"), rows))
    _histogram("Items of a subject within a silo", facts["items_per_subject_and_silo"])
    _histogram("Silos of a subject", facts["silos_per_subject"])


def _spec(source: str, changes: tuple[str, ...]) -> RunSpec:
    """What is asked, with all items in silos: nothing held out, nothing refused for a policy's sake."""
    if Path(source).suffix in (".toml", ".json"):
        spec = load(Path(source), changes)
    elif source not in SOURCES and Path(source).exists():
        raise SpecError(f"'{source}' is a file and not a spec; describe it in the data.table of a spec.")
    else:
        spec = changed({"data": {"source": source}, "silos": {"surplus": "drop"}}, changes, Path())
    policy = spec.policy.model_copy(update={"name": "subject_dp"})
    held_out = spec.evaluation.model_copy(update={"test": 0.0, "validation": 0.0})
    return spec.model_copy(update={"evaluation": held_out, "policy": policy})


def _facts(spec: RunSpec) -> dict[str, Any]:
    dataset = load_dataset(spec)
    silos = _silos(dataset, spec)
    within = np.concatenate([data.roster.counts for data in silos.values()])
    members = np.concatenate([np.unique(data.subjects) for data in silos.values()])
    spans = np.unique(members, return_counts=True)[1]
    return {
        "name": dataset.name,
        "private": False,
        "items": int(sum(data.items for data in silos.values())),
        "subjects": len(spans),
        "features": dataset.features,
        "classes": dataset.classes,
        "test": _sizes(dataset.test) if dataset.test else None,
        "notes": list(dataset.notes),
        "silos": {name: _sizes(data) for name, data in silos.items()},
        "items_per_subject_and_silo": _counted(within),
        "silos_per_subject": _counted(spans),
    }


def _silos(dataset: Dataset, spec: RunSpec) -> Mapping[str, SubjectData]:
    """Items by silo; all in one where neither the data nor the spec says how they lie."""
    if dataset.silos is None and spec.silos.partition == "column":
        return {"(no silos yet)": dataset.data}
    return {name: silo.data for name, silo in split_dataset(dataset, spec).silos.items()}


def _sizes(data: SubjectData) -> dict[str, int]:
    return {"items": data.items, "subjects": data.subject_count, "largest_subject": data.largest_subject}


def _remarks(facts: dict[str, Any]) -> list[str]:
    """What the source says beside the numbers: its own test part, and how it was read."""
    test = facts["test"]
    own = [f"own test part: {test['items']} items of {test['subjects']} subjects"] if test else []
    return [*own, *facts["notes"]]


def _counted(values: NDArray[np.int64]) -> dict[int, int]:
    sizes, counts = np.unique(values, return_counts=True)
    return {int(size): int(count) for size, count in zip(sizes, counts, strict=True)}


def _histogram(title: str, counted: dict[int, int]) -> None:
    width = max(1, -(-max(counted) // MOST_BINS))
    bins: dict[int, int] = {}
    for size, count in counted.items():
        bins[(size - 1) // width] = bins.get((size - 1) // width, 0) + count
    most = max(bins.values())
    rows = []
    for number in range(min(bins), max(bins) + 1):
        low, high = number * width + 1, (number + 1) * width
        count = bins.get(number, 0)
        rows.append((str(low) if low == high else f"{low}–{high}", count, "█" * round(BAR * count / most)))
    show.out.print(show.table(title, ("", "count", ""), rows))
