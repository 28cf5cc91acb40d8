"""`audit`: attacks on our own training, and a verdict that a script can read off the exit code."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from wholegrain._json_numbers import finite
from wholegrain.audit.attacks import Tick, can_hold_crowd, no_progress
from wholegrain.audit.auditing import ASSUMES, AuditSettings, audit
from wholegrain.audit.findings import Audit, AuditVerdict
from wholegrain.audit.membership_inference import Membership, membership
from wholegrain.audit.roc_figure import require_figure, write_figure
from wholegrain.cli import display
from wholegrain.cli.options import Changes, Json
from wholegrain.errors import SpecError
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import prepare
from wholegrain.runs.spec import RunSpec, load

FAILED = (AuditVerdict.VIOLATION, AuditVerdict.CLAIM_REFUTED)
STYLE = {
    AuditVerdict.CONSISTENT: "green",
    AuditVerdict.VIOLATION: "bold red",
    AuditVerdict.CLAIM_REFUTED: "bold red",
    AuditVerdict.NOTHING_PROMISED: "yellow",
}


def command(
    target: Annotated[Path, typer.Argument(metavar="SPEC|DIR", help="A spec, or the folder of a run.")],
    unit: Annotated[Unit, typer.Option(help="Whom to attack: subject or item.")] = Unit.SUBJECT,
    canaries: Annotated[int, typer.Option(help="Canaries in the one run that has many.")] = 2000,
    runs: Annotated[int, typer.Option(help="Runs with one canary, of each kind.")] = 100,
    confidence: Annotated[float, typer.Option(help="Of all that is found, together.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the secret coins.")] = 0,
    figure: Annotated[Path | None, typer.Option(help="Write the membership attack there, as .svg or .png.")] = None,
    no_membership: Annotated[bool, typer.Option("--no-membership", help="Leave that attack out.")] = False,
    changes: Changes = [],  # noqa: B006 (typer reads the default and never changes it)
    json: Json = False,
) -> None:
    """Attack the training that a spec asks for: lower bounds on ε, held against what was proved.

    Exit code 1 means a violation. Nothing is released and nothing is paid for; what is printed is not private.
    """
    settings = AuditSettings(unit=unit, canaries=canaries, runs=runs, confidence=confidence, seed=seed)
    if figure is not None:
        if no_membership or unit is not Unit.SUBJECT:
            raise SpecError("--figure shows the attack on subjects' membership, which is left out here.")
        require_figure(figure)
    spec = _spec(target, changes)
    pricing = accountant(spec.privacy.accountant)
    dataset = load_dataset(spec)
    prepared = prepare(spec, dataset=dataset, pricing=pricing)
    with _progress(3 * runs + can_hold_crowd(prepared), quiet=json) as tick:
        found = audit(prepared, dataset, settings, tick=tick)
    seen = None
    if not no_membership and unit is Unit.SUBJECT and prepared.plan.trust is None:
        seen = membership(spec, dataset, pricing=pricing, seed=seed, confidence=confidence)
    if figure is not None and seen is not None:
        write_figure(seen, figure)
    if json:
        display.as_json(facts(found) | ({} if seen is None else {"membership (not private)": membership_facts(seen)}))
    else:
        _print(found, seen)
    if found.verdict in FAILED:
        raise typer.Exit(1)


def facts(found: Audit) -> dict[str, Any]:
    """An audit as one mapping, for JSON."""
    return {
        "policy": found.policy,
        "unit": str(found.unit),
        "verdict": str(found.verdict),
        "lower_bound": found.epsilon,
        "confidence": found.confidence,
        "proved": found.proved.facts(),
        "claimed": None if found.claimed is None else found.claimed.facts(),
        "canaries": found.canaries,
        "runs": found.runs,
        "findings": [vars(finding) for finding in found.findings],
        "checks": [vars(check) for check in found.checks],
    }


def membership_facts(seen: Membership) -> dict[str, Any]:
    """The membership attack as one mapping, for JSON."""
    return {
        "members": len(seen.members),
        "others": len(seen.others),
        "proved_epsilon": finite(seen.guarantee.epsilon),
        "auc": seen.auc,
        "auc_interval": list(seen.auc_interval),
        "true_positives": [vars(rate) for rate in seen.rates],
        "confidence": seen.confidence,
    }


def _spec(target: Path, changes: list[str]) -> RunSpec:
    if not target.is_dir():
        return load(target, tuple(changes))
    if changes:
        raise SpecError("A run is audited as it was; --set is for specs.")
    return RunFolder.open(target).spec


def _print(found: Audit, seen: Membership | None) -> None:
    promised = [found.proved] if found.claimed is None else [found.claimed, found.proved]
    display.out.print(
        f"[bold]{found.policy}[/bold], unit {found.unit}: {found.runs} runs, {found.canaries} canaries in one"
    )
    display.out.print(display.guarantees(promised))
    rows = [
        (each.attack, each.view, each.method, each.trials, _bound(each.epsilon, each.refutes), each.seen)
        for each in sorted(found.findings, key=lambda finding: -finding.epsilon)
    ]
    title = f"Lower bounds on ε ({found.confidence:.0%} confidence for all of them together)"
    display.out.print(display.table(title, ("attack", "sees", "method", "trials", "ε ≥", "from"), rows))
    for method in dict.fromkeys(each.method for each in found.findings):
        display.out.print(f" {method}: assumes {ASSUMES[method]}")
    display.out.print()
    checks = [(each.name, each.seen, "passed" if each.passed else "FAILED") for each in found.checks]
    if checks:
        display.out.print(display.table("Checks of what the proof rests on", ("what", "seen", ""), checks))
    if seen is not None:
        _print_membership(seen)
    words = Text.assemble("Verdict: ", (str(found.verdict), STYLE[found.verdict]), f". {_reason(found)}")
    display.out.print(words, soft_wrap=True)


def _bound(epsilon: float, refutes: bool) -> str:
    return f"{epsilon:.2f}{' !' if refutes else ''}"


def _reason(found: Audit) -> str:
    claimed = "" if found.claimed is None else f"{display.number(found.claimed.epsilon)} was claimed, "
    proved = "nothing" if found.proved.standing is Standing.NONE else display.number(found.proved.epsilon)
    failed = f" Not as it was priced: {', '.join(found.failed)}." if found.failed else ""
    return f"The lower bound is {found.epsilon:.2f}; {claimed}{proved} was proved.{failed}"


def _print_membership(seen: Membership) -> None:
    low, high = seen.auc_interval
    rows = [("AUC", f"{seen.auc:.3f}", f"{low:.3f} – {high:.3f}", "")]
    for rate in seen.rates:
        note = "" if rate.resolved else "too few people to tell: no false positive at all"
        name = f"true positives at {rate.false_positives:.1%} false ones"
        rows.append((name, f"{rate.true_positives:.4f}", f"{rate.low:.4f} – {rate.high:.4f}", note))
    title = f"Who was trained on, of {len(seen.members)} members and {len(seen.others)} others (not private)"
    display.out.print(display.table(title, ("", "found", f"{seen.confidence:.0%} interval", ""), rows))


@contextlib.contextmanager
def _progress(trainings: int, *, quiet: bool) -> Iterator[Tick]:
    """A bar on a terminal, nothing elsewhere."""
    if quiet or not display.err.is_terminal:
        yield no_progress
        return
    columns = (TextColumn("trainings"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=display.err, transient=True) as bars:
        task = bars.add_task("audit", total=trainings)
        yield lambda: bars.advance(task)
