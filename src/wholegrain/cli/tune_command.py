"""`tune`: settings chosen by private scores, and paid for; or on public data, for nothing."""

import os
from pathlib import Path
from typing import Annotated

import typer

from wholegrain.cli import display
from wholegrain.cli.options import Changes, Json
from wholegrain.errors import SpecError
from wholegrain.privacy.trial_count import TrialCount
from wholegrain.report.model_card import write_card
from wholegrain.report.trials_figure import draw_trials
from wholegrain.runs.public_tuning import PublicChoice, tune_on_public
from wholegrain.runs.run_summary import RunSummary
from wholegrain.runs.spec import RunSpec, load
from wholegrain.runs.tuning import TuningResult
from wholegrain.runs.tuning import tune as make_trials
from wholegrain.runs.tuning_setup import PreparedTuning, prepare_tuning
from wholegrain.runs.tuning_space import SearchSpace
from wholegrain.runs.tuning_trials import Trial

NOTHING = (
    "No trial was drawn, or none came to its end: there is nothing to release, and what was paid stays paid. A Poisson"
    " law with a larger mean makes this rarer; negative_binomial(mean=10, shape=1) always draws a trial."
)


def tune(
    spec: Annotated[Path, typer.Argument(help="A spec in TOML; its privacy.epsilon pays for all trials.")],
    space: Annotated[Path, typer.Option(help="What may be chosen: a TOML file of choices and ranges.")],
    trials: Annotated[
        str, typer.Option(help="The law of their number: poisson(10), or negative_binomial(mean=10, shape=1).")
    ] = "poisson(10)",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the chosen run; one that was interrupted goes on.")
    ] = None,
    on: Annotated[Path | None, typer.Option(help="A spec of public or synthetic data, to tune on for nothing.")] = None,
    processes: Annotated[int | None, typer.Option(help="Processes that make trials; all cores by default.")] = None,
    picture: Annotated[Path | None, typer.Option(help="All trials as SVG, in this file; not of a release.")] = None,
    changes: Changes = [],  # noqa: B006
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Choose settings by private scores of random trials, with one proved ε for the chosen model."""
    asked, choices, count = load(spec, tuple(changes)), SearchSpace.load(space), TrialCount.parse(trials)
    tell = None if quiet or json else _tell
    if on is not None:
        _report_public(tune_on_public(asked, load(on), choices, round(count.mean), tell=tell), picture, json)
        return
    _require_no_picture(asked, picture)
    prepared = prepare_tuning(asked, choices, count)
    if not (quiet or json):
        _announce(prepared)
    workers = processes or os.cpu_count() or 1
    result = make_trials(prepared, out or _free_folder(spec), workers, tell)
    if result.folder is not None and result.chosen is not None:
        write_card(result.folder)
    if picture is not None:
        draw_trials(result.trials, picture, private=True)
    if json:
        display.as_json(_facts(result))
    else:
        _report(result)


def _require_no_picture(spec: RunSpec, picture: Path | None) -> None:
    if picture is not None and spec.privacy.noise == "secure":
        raise SpecError("In a release nothing of the trials is shown, nor how many there were; leave out --picture.")


def _free_folder(spec: Path) -> Path:
    """runs/NAME-tuned-1, or the next number that is free; a tuning that was interrupted goes on in its own."""
    number = 1
    while (folder := Path("runs") / f"{spec.stem}-tuned-{number}").exists():
        number += 1
    return folder


def _announce(prepared: PreparedTuning) -> None:
    display.err.print(display.guarantees(prepared.guarantees))
    if prepared.is_release:
        display.err.print("Nothing is told of the trials, nor how many there are: the guarantee rests on that.")


def _tell(trial: Trial) -> None:
    settings = ", ".join(f"{place} = {value}" for place, value in trial.settings.items())
    display.err.print(f"trial {trial.number}: {trial.score:.4f} in {trial.seconds:.1f} s, {settings}", markup=False)


def _facts(result: TuningResult) -> dict[str, object]:
    chosen = None if result.chosen is None else RunSummary.of(result.chosen).facts()
    return {
        "settings": dict(result.settings),
        "guarantees": [guarantee.facts() for guarantee in result.guarantees],
        "chosen": chosen,
        "folder": None if result.folder is None else str(result.folder),
        "trials (not private)": [trial.facts() for trial in result.trials],
    }


def _report(result: TuningResult) -> None:
    if result.chosen is None:
        display.out.print(NOTHING)
        return
    rows = [(place, value) for place, value in result.settings.items()]
    display.out.print(display.table("Chosen (paid)", ("setting", "value"), rows))
    display.out.print(display.private_scores(result.chosen.private))
    display.out.print("The score of the best of several is too high: it was chosen for it.")
    display.out.print(display.guarantees(result.guarantees))
    display.out.print(f"Record: {result.folder}")


def _report_public(choice: PublicChoice, picture: Path | None, json: bool) -> None:
    if picture is not None:
        draw_trials(choice.trials, picture, private=False)
    if json:
        trials = [trial.facts() for trial in choice.trials]
        display.as_json({"settings": dict(choice.best.settings), "changes": choice.changes(), "trials": trials})
        return
    rows = [(place, value) for place, value in choice.best.settings.items()]
    display.out.print(display.table("Chosen on public data: no ε is spent", ("setting", "value"), rows))
    display.out.print("To have it:", " ".join(f"--set {change}" for change in choice.changes()), markup=False)
