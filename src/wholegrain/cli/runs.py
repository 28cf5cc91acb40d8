"""`run` and `plan`: a spec in, a run or its price out."""

from pathlib import Path
from typing import Annotated

import typer

from wholegrain.cli import show
from wholegrain.cli.pricing import Json, remembering
from wholegrain.cli.progress import watching
from wholegrain.privacy.units import Guarantee
from wholegrain.runs.progress import RoundDone, SiloDone
from wholegrain.runs.runner import Prepared, Run, execute, prepare
from wholegrain.runs.spec import load
from wholegrain.runs.store import RunFolder, require_free
from wholegrain.runs.summary import plan_facts, run_facts

SpecPath = Annotated[Path, typer.Argument(help="A spec in TOML, or the spec.json of an earlier run.")]
Changes = Annotated[list[str], typer.Option("--set", help="Change the spec: section.key=value. May be repeated.")]


def run(
    spec: SpecPath,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; a new one under runs/ by default.")] = None,
    changes: Changes = [],  # noqa: B006 (typer reads the default and never changes it)
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Train as the spec says, and keep a record."""
    prepared = _prepare(spec, changes)
    folder = RunFolder.create(out or _free_folder(spec), prepared)
    finished = _execute(prepared, folder, quiet or json)
    folder.finish(finished)
    if json:
        show.as_json(run_facts(finished) | {"folder": str(folder.path)})
    else:
        _report(finished, folder)


def plan(spec: SpecPath, changes: Changes = [], json: Json = False) -> None:  # noqa: B006
    """What a run would cost, before any training: noise, sampling, ε per unit, standing, rounds allowed."""
    prepared = _prepare(spec, changes)
    if json:
        show.as_json(plan_facts(prepared.plan))
    else:
        show.plan(prepared.plan)


def _prepare(path: Path, changes: list[str]) -> Prepared:
    spec = load(path, tuple(changes))
    return prepare(spec, pricing=remembering(spec.privacy.accountant))


def _execute(prepared: Prepared, folder: RunFolder, quiet: bool) -> Run:
    with watching(prepared.plan, prepared.plan.policy, quiet) as show_progress:

        def observe(event: SiloDone | RoundDone) -> None:
            if isinstance(event, RoundDone):
                folder.add_round(event)
            show_progress(event)

        return execute(prepared, observe)


def _free_folder(spec: Path) -> Path:
    """runs/NAME-1, or the next number that is free."""
    number = 1
    while (folder := Path("runs") / f"{spec.stem}-{number}").exists():
        number += 1
    require_free(folder)
    return folder


def _report(finished: Run, folder: RunFolder) -> None:
    rows = [(name, f"{score.accuracy:.4f}", f"{score.loss:.4f}") for name, score in finished.scores.items()]
    show.out.print(show.table("Scores (not private)", ("items of", "accuracy", "loss"), rows))
    promised: tuple[Guarantee, ...] = finished.plan.guarantees
    show.out.print(show.guarantees(promised))
    show.out.print(f"Noise: {finished.noise}. {len(finished.rounds)} rounds in {finished.seconds:.1f} s.")
    show.out.print(f"Record: {folder.path}")
