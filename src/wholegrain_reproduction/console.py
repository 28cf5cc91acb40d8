"""The command on a terminal: a line for each run, the verdicts, the page's place, and an exit code."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from wholegrain import _check
from wholegrain.cli import display
from wholegrain_reproduction import experiment
from wholegrain_reproduction.claims import all_claims
from wholegrain_reproduction.data_choice import choose_data
from wholegrain_reproduction.experiment import PAGE, Experiment, plan_trials
from wholegrain_reproduction.results_page import PageContent
from wholegrain_reproduction.run_trials import OnOutcome, Outcome
from wholegrain_reproduction.scales import Part, Scale
from wholegrain_reproduction.verdicts import Verdict


def reproduce(
    part: Part, data: Sequence[str], scale: Scale, out: Path, processes: int | None, recipes: Path | None
) -> None:
    """Reproduce this part; exits with 1 where a run failed."""
    count = _check.count("--processes", processes) if processes is not None else len(os.sched_getaffinity(0))
    asked = Experiment(
        part=part,
        scale=scale,
        data=choose_data(data),
        out=out,
        processes=count,
        command=shlex.join(["wholegrain", *sys.argv[1:]]),
        recipes=recipes,
    )
    try:
        content = experiment.reproduce(asked, _progress(len(plan_trials(asked)[1])))
    except KeyboardInterrupt:
        display.err.print("Stopped. The same command goes on.")
        raise typer.Exit(display.INTERRUPTED) from None
    _report(asked, content)
    if any(outcome.error for outcome in content.outcomes):
        raise typer.Exit(1)


def _progress(total: int) -> OnOutcome:
    seen = 0

    def tell(outcome: Outcome) -> None:
        nonlocal seen
        seen += 1
        error = f": {outcome.error}" if outcome.error else ""
        line = f"{seen}/{total} {outcome.trial.label}: {outcome.status}{error}"
        display.err.print(line, markup=False, soft_wrap=True)

    return tell


def _report(asked: Experiment, content: PageContent) -> None:
    images, text = content.data.images.description, content.data.text.description
    display.out.print(f"Images: {images}. Text: {text}.", markup=False, soft_wrap=True)
    if asked.part is Part.CLAIMS:
        verdicts = [claim.over_seeds(content.results).verdict for claim in all_claims()]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict)
        display.out.print(f"{len(verdicts)} claims: {counts}.")
    display.out.print(f"Page: {asked.runs / PAGE}", markup=False, soft_wrap=True)
