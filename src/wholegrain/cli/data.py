"""`data list`, `data init` and `data describe`: what there is, a spec for a table, and how items lie."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from wholegrain.cli import display
from wholegrain.cli.options import Changes, Json
from wholegrain.data.sources import SOURCES
from wholegrain.data.table_columns import ColumnKind, columns
from wholegrain.data.table_files import TextFormat, read, table_name
from wholegrain.data.table_remarks import remarks
from wholegrain.errors import DataError, SpecError
from wholegrain.runs import spec_template
from wholegrain.runs.data_description import describe as facts_of
from wholegrain.runs.section_files import BLANK
from wholegrain.runs.spec import RunSpec, apply_changes, load

app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, and what one looks like.")
BAR = 40
MOST_BINS = 16

ColumnName = Annotated[str | None, typer.Option(metavar="COLUMN", help="Its column; guessed by name if not given.")]


@app.command("list")
def list_sources() -> None:
    """Data sets that a spec can name."""
    rows = [(name, source.summary) for name, source in SOURCES.items()]
    rows.append(("table", "your own CSV, Parquet or Excel file, described in data.table"))
    display.out.print(display.table("Data sources", ("name", "what it is"), rows))


@app.command()
def init(
    table: Annotated[
        Path, typer.Argument(metavar="FILE", help="A table: .csv, .tsv, .csv.gz, .zip, .parquet or .xlsx.")
    ],
    out: Annotated[Path | None, typer.Option(help="The spec to write; beside the table by default.")] = None,
    subject: ColumnName = None,
    target: ColumnName = None,
    silo: ColumnName = None,
    encoding: Annotated[str, typer.Option(help="How a CSV stores characters: utf-8, latin-1, cp1252 …")] = "utf-8",
) -> None:
    """Write a spec for a table, with blanks to fill in. Only names and kinds of columns get into it.

    What the rows suggest is printed here and written nowhere: it is not private.
    """
    if table.is_dir():
        raise DataError(f"'{table}' is a folder; name a file in it.")
    out = out or table.with_name(f"{table_name(table)}.toml")
    if not out.parent.is_dir():
        raise SpecError(f"There is no folder '{out.parent}' to write '{out.name}' into; make it first.")
    asked, text = spec_template.Roles(subject=subject, target=target, silo=silo), TextFormat(encoding)
    roles = spec_template.write_skeleton(table, out, asked, text)
    for key, name in (("subject", roles.subject), ("target", roles.target), ("silo", roles.silo)):
        guessed = "  (a guess by its name)" if name in roles.guessed else ""
        display.out.print(f"{key:8} {name or '–'}{guessed}", markup=False)
    _remark(table, text, roles)
    display.out.print(
        f"Written: {out}. Replace every '{BLANK}' from knowledge, not from the data; then: wholegrain plan {out}",
        markup=False,
        soft_wrap=True,
    )


def _remark(table: Path, text: TextFormat, roles: spec_template.Roles) -> None:
    """What the rows suggest about features."""
    features = [column for column in columns(table, text) if column.name not in roles.columns]
    kinds = (ColumnKind.WHOLE, ColumnKind.NUMBER, ColumnKind.DATE)
    quantities = [column.name for column in features if column.kind in kinds]
    found = remarks(read(table, (), text), [column.name for column in features], quantities)
    if found:
        display.out.print("What the rows suggest [red](not private: counted from raw data)[/red]")
    for what, names in found.items():
        display.out.print(f"  {what}: {', '.join(names)}", markup=False, soft_wrap=True)


@app.command()
def describe(
    source: Annotated[str, typer.Argument(help="A source's name, or a spec.")],
    changes: Changes = [],  # noqa: B006 (typer reads the default and never changes it)
    json: Json = False,
) -> None:
    """Items per subject, silos per subject, group sizes in a batch. Reads raw data: not private.

    For a source that reads files, say where they are: --set data.options.path=PATH.
    """
    facts = facts_of(_spec(source, tuple(changes)))
    if json:
        display.as_json(facts)
        return
    display.out.print(f"[bold]{facts['name']}[/bold] [red](not private: counted from raw data)[/red]")
    for key in ("items", "subjects", "features", "classes"):
        display.out.print(f"  {key:9} {facts[key]}")
    for note in _remarks(facts):
        display.out.print(f"  {note}", markup=False)
    rows = [(name, silo["items"], silo["subjects"], silo["largest_subject"]) for name, silo in facts["silos"].items()]
    display.out.print(display.table("Silos", ("silo", "items", "subjects", "most items of a subject"), rows))
    _histogram("Items of a subject", "subjects", facts["items_per_subject"])
    _histogram("Items of a subject within a silo", "subjects", facts["items_per_subject_and_silo"])
    _histogram("Silos of a subject", "subjects", facts["silos_per_subject"])
    if facts["batches"] is not None:
        _describe_batches(facts["batches"])
    _propose(facts["proposed_sizes"])


def _propose(sizes: Mapping[str, Mapping[str, int]]) -> None:
    if not sizes:
        return
    display.out.print(
        "For a release, declare about how much is trained on. What follows is counted and rounded, so not private:"
        " choose rounder numbers where you can."
    )
    display.out.print("[silos.sizes]", markup=False)
    for name, size in sizes.items():
        line = f"{spec_template.key(name)} = {{ items = {size['items']}, subjects = {size['subjects']} }}"
        display.out.print(line, markup=False, soft_wrap=True)


def _describe_batches(batches: Mapping[str, Any]) -> None:
    _histogram("Largest group in a batch", "batches", batches["largest_group"])
    display.out.print(
        f"{batches['drawn_in_each_silo']} batches of {batches['policy']} were drawn in each silo. On average one has"
        f" {batches['mean_items']:.1f} items, and its largest group {batches['mean_largest_group']:.2f}."
    )


def _spec(source: str, changes: tuple[str, ...]) -> RunSpec:
    if Path(source).suffix in (".toml", ".json"):
        return load(Path(source), changes)
    if source not in SOURCES and Path(source).exists():
        raise SpecError(f"'{source}' is a file and not a spec; make one with wholegrain data init {source}.")
    return apply_changes({"data": {"source": source}, "silos": {"surplus": "drop"}}, changes, Path(source))


def _remarks(facts: Mapping[str, Any]) -> list[str]:
    """What the source says beside the numbers: its own test part, and how it was read."""
    test = facts["test"]
    own = [f"own test part: {test['items']} items of {test['subjects']} subjects"] if test else []
    return [*_surplus(facts["dropped"]), *own, *facts["notes"]]


def _surplus(dropped: Mapping[str, int] | None) -> list[str]:
    """What K costs, for whoever may know."""
    if dropped is None:
        return []
    share = dropped["items"] / dropped["of"]
    said = f"{dropped['items']} of {dropped['of']} items ({share:.1%})"
    advice = "; a larger K keeps more of them, and costs subject_dp nothing" if share > 0.05 else ""
    return [f"K = {dropped['items_per_subject']} drops {said}{advice}"]


def _histogram(title: str, counting: str, counted: Mapping[int, int]) -> None:
    width = max(1, -(-max(counted) // MOST_BINS))
    bins: dict[int, int] = {}
    for size, count in counted.items():
        bins[(size - 1) // width] = bins.get((size - 1) // width, 0) + count
    most = max(bins.values())
    rows = []
    for number in range(min(bins), max(bins) + 1):
        low, high = max(0, number * width + 1), (number + 1) * width
        count = bins.get(number, 0)
        rows.append((str(low) if low == high else f"{low}–{high}", count, "█" * round(BAR * count / most)))
    display.out.print(display.table(title, ("", counting, ""), rows))
