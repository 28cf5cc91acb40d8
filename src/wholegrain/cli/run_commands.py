"""`run`, `resume` and `plan`: a spec in, a run or its price out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from wholegrain._json_numbers import finite
from wholegrain._places import COUNTER
from wholegrain.cli import display, plan_display
from wholegrain.cli.interrupt import stoppable
from wholegrain.cli.options import Changes, Json
from wholegrain.cli.progress import show_rounds
from wholegrain.clipping.devices import USUAL, Compute
from wholegrain.errors import SpecError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.federation.rounds import State
from wholegrain.policies.search import leaders
from wholegrain.policies.silo_limit import least_limits
from wholegrain.privacy.accountants import accountant
from wholegrain.report.model_card import CARD, write_card
from wholegrain.report.tradeoff import draw_tradeoff
from wholegrain.runs.engine_choice import EngineChoice, open_engine, serve_silos
from wholegrain.runs.ledger_counter import LedgerCounter
from wholegrain.runs.observers import both
from wholegrain.runs.optimise_spec import optimise as find_best
from wholegrain.runs.plan_record import PlanRecord
from wholegrain.runs.planning import plan_federation
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_folder import RunFolder, require_free
from wholegrain.runs.run_identity import is_release
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.run_summary import RunSummary
from wholegrain.runs.runner import StartState, execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec, load
from wholegrain.runs.spec_text import require_new_spec, write_spec
from wholegrain.runs.tensorboard import event_files
from wholegrain.runs.trained_model import federation_model

SpecPath = Annotated[Path, typer.Argument(help="A spec in TOML, or the spec.json of an earlier run.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
EngineName = Annotated[str, typer.Option("--engine", help="Where silos train: inprocess or distributed.")]
Events = Annotated[Path | None, typer.Option("--tensorboard", help="Write event files into this folder.")]
Processes = Annotated[int | None, typer.Option(help="Processes on this machine, for --engine distributed.")]
Ranks = Annotated[
    int | None, typer.Option(help="Processes that share a silo's steps; the same as --set compute.ranks_per_silo=N.")
]

UNSEEN = (
    "If this folder and the state folder were put back from one copy, do not go on: rounds that were played since would"
    " be released again and paid for once, and nothing here can tell. A counter on another disk can"
    f" ({COUNTER}, docs/reliability.md)."
)


@dataclass(frozen=True)
class Output:
    """What goes to the terminal, and whether event files are written."""

    quiet: bool
    json: bool
    events: Path | None


def run(
    spec: SpecPath,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; a new one under runs/ by default.")] = None,
    changes: Changes = [],  # noqa: B006 (typer reads the default and never changes it)
    engine: EngineName = "inprocess",
    processes: Processes = None,
    ranks_per_silo: Ranks = None,
    tensorboard: Events = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train as the spec says, and keep a record."""
    choice = EngineChoice(engine, processes)
    shared = [] if ranks_per_silo is None else [f"compute.ranks_per_silo={ranks_per_silo}"]
    prepared = _prepare(spec, changes + shared)
    if choice.serves:
        serve_silos(prepared)
        return
    folder = RunFolder.create(out or _free_folder(spec), prepared)
    with folder.lock():
        _play(prepared, folder, None, choice, Output(quiet, json, tensorboard))


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that did not come to its end.")],
    engine: EngineName = "inprocess",
    processes: Processes = None,
    tensorboard: Events = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Go on with a run that was stopped, from its last whole checkpoint."""
    choice, found = EngineChoice(engine, processes), RunFolder.open(folder)
    if choice.serves:
        serve_silos(prepare(found.spec))
        return
    with found.lock():
        if found.finished:
            _complete(found)
            display.err.print(f"The run in '{folder}' is at its end; there is nothing to resume.", soft_wrap=True)
            return
        prepared = prepare(found.spec)
        if is_release(prepared) and LedgerCounter.here().path is None:
            display.err.print(UNSEEN, markup=False, soft_wrap=True)
        _play(prepared, found, found.start(prepared), choice, Output(quiet, json, tensorboard))


def plan(
    spec: SpecPath,
    changes: Changes = [],  # noqa: B006
    optimise: Annotated[
        bool, typer.Option("--optimise", help="Choose settings from public facts; read no data.")
    ] = False,
    write: Annotated[Path | None, typer.Option(help="With --optimise: the better spec, in this file.")] = None,
    picture: Annotated[Path | None, typer.Option(help="With --optimise: the trade-off as SVG, in this file.")] = None,
    json: Json = False,
) -> None:
    """What a run would cost, before any training: noise, sampling, ε per unit, standing, rounds allowed."""
    asked = load(spec, tuple(changes))
    if optimise:
        _optimise(asked, write, picture, json)
        return
    if picture is not None or write is not None:
        raise SpecError(f"--{'write' if write else 'picture'} keeps what --optimise finds; add it.")
    if asked.federation:
        found = plan_federation(asked, asked.federation, accountant(asked.privacy.accountant))
        public, compute = federation_model(asked, asked.federation).public, USUAL
        limits = least_limits(found)
    else:
        prepared = prepare(asked)
        found, public, compute, limits = prepared.plan, prepared.public, prepared.compute, {}
    if json:
        facts = PlanRecord.of(found).facts() | ({"public": public.facts()} if public else {})
        least = {"least_limits": {name: finite(limit) for name, limit in limits.items()}} if limits else {}
        display.as_json(facts | least | _unusual(compute))
    else:
        plan_display.plan(found)
        if limits:
            plan_display.silo_limits(limits, found)
        plan_display.start(public)
        plan_display.place(compute)


def _optimise(spec: RunSpec, write: Path | None, picture: Path | None, json: bool) -> None:
    """Weigh what can be priced, and show the choice with its exact plan."""
    if write is not None:
        require_new_spec(write)
    choice = find_best(spec)
    if write is not None:
        write_spec(write, choice.spec, choice.head, choice.reasons)
    if picture is not None:
        draw_tradeoff(choice.weighed, picture)
    if json:
        plan = PlanRecord.of(choice.plan).facts()
        found = {"changes": choice.changes, "signal_to_noise": choice.chosen.ratio, **plan}
        display.as_json(found | _unusual(choice.compute))
        return
    rows = [
        (each.policy, f"{each.settings.rate:g}", each.steps, f"{each.noise_multiplier:.4g}", f"{each.ratio:.3g}")
        for each in leaders(choice.weighed)
    ]
    title = f"Predicted from public facts, for {choice.parameters:,} parameters"
    display.out.print(display.table(title, ("policy", "rate", "steps", "noise multiplier", "signal to noise"), rows))
    plan_display.plan(choice.plan)
    plan_display.place(choice.compute)
    for place, why in choice.reasons.items():
        section, name = place.split(".")
        value = getattr(getattr(choice.spec, section), name)
        display.out.print(f"  {place} = {display.plain(value)}: {why}", markup=False, soft_wrap=True)
    if write is not None:
        display.out.print(f"Written: {write}", markup=False, soft_wrap=True)
    else:
        display.out.print("To have it: --write better.toml, or", end=" ")
        display.out.print(" ".join(f"--set {change}" for change in choice.changes), markup=False, soft_wrap=True)


def _unusual(compute: Compute) -> dict[str, str]:
    return {} if compute == USUAL else {"compute": str(compute)}


def _prepare(path: Path, changes: list[str]) -> PreparedRun:
    return prepare(load(path, tuple(changes)))


def _complete(finished: RunFolder) -> None:
    """Write the card that a run lacks which was killed between its summary, its last step, and the card."""
    if not (finished.path / CARD).exists():
        write_card(finished.path)


def _play(
    prepared: PreparedRun, folder: RunFolder, start: StartState | None, choice: EngineChoice, output: Output
) -> None:
    """Train from `start` to the end, with everything on record, and report."""
    try:
        finished = _execute(prepared, folder, start, choice, output)
    except KeyboardInterrupt:
        display.err.print(f"Stopped. To go on: wholegrain resume {folder.path}", markup=False, soft_wrap=True)
        raise typer.Exit(display.INTERRUPTED) from None
    folder.finish(finished)
    write_card(folder.path)
    if output.json:
        display.as_json(RunSummary.of(finished).facts() | {"folder": str(folder.path)})
    else:
        _report(finished, folder)


def _execute(
    prepared: PreparedRun, folder: RunFolder, start: StartState | None, choice: EngineChoice, output: Output
) -> RunResult:
    def record(done: RoundRecord, state: State) -> None:
        folder.add_round(done, state, prepared.spec.rounds.checkpoint_every)

    with (
        open_guard(prepared, folder.run, folder.path, create=False) as guard,
        open_engine(prepared, choice) as engine,
        event_files(output.events, timed=not is_release(prepared)) as write,
        show_rounds(prepared.plan, prepared.plan.policy, output.quiet or output.json) as watch,
        stoppable(both(write, watch)) as observe,
    ):
        return execute(prepared, guard, engine=engine, start=start, record=record, observe=observe)


def _free_folder(spec: Path) -> Path:
    """runs/NAME-1, or the next number that is free."""
    number = 1
    while (folder := Path("runs") / f"{spec.stem}-{number}").exists():
        number += 1
    require_free(folder)
    return folder


def _report(finished: RunResult, folder: RunFolder) -> None:
    if finished.scores:
        display.out.print(display.scores(finished.scores, finished.constant, finished.spec.evaluation.metrics))
    if finished.private:
        display.out.print(display.private_scores(finished.private))
    for sentence in finished.warnings:
        display.out.print(sentence, style="bold red", markup=False, soft_wrap=True)
    display.out.print(display.spent_table(finished.guarantees, finished.plan.guarantees))
    if finished.account.shared:
        display.out.print(display.account(finished.account), soft_wrap=True)
    played, planned = len(finished.rounds), finished.plan.horizon.rounds
    whole = display.plural(planned, "round")
    count = whole if played == planned else f"{played} of {whole} (the budget is spent)"
    failed = sum(done.failed for done in finished.rounds)
    lost = f", {failed} of which failed" if failed else ""
    taken = f" in {finished.seconds:.1f} s" if finished.seconds else ""
    display.out.print(f"Noise: {finished.noise}. {count}{lost}{taken}.")
    display.out.print(f"Record: {folder.path}")
