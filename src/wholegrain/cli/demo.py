"""`demo`: every policy on one real table, side by side."""

from typing import Annotated, Any

import typer

from wholegrain.cli import display
from wholegrain.cli.options import Json
from wholegrain.cli.progress import show_rounds
from wholegrain.data.nlswork import nlswork
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.run_summary import RunSummary
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

EPSILON, DELTA = 4.0, 1e-5

# (label, policy, privacy unit, rounds): each with settings chosen by trying a few on other splits of the data.
LINEUP: tuple[tuple[str, dict[str, Any], str, dict[str, Any]], ...] = (
    ("fedavg", {"name": "fedavg", "rate": 0.1}, "subject", {"count": 50, "steps": 5, "learning_rate": 0.5}),
    (
        "local_item_dp (item)",
        {"name": "local_item_dp", "rate": 0.1},
        "item",
        {"count": 20, "steps": 4, "learning_rate": 2.0},
    ),
    (
        "local_item_dp (subject)",
        {"name": "local_item_dp", "rate": 0.5},
        "subject",
        {"count": 20, "learning_rate": 1.0},
    ),
    (
        "local_group_dp",
        {"name": "local_group_dp", "rate": 0.2, "group_cap": 2},
        "subject",
        {"count": 20, "learning_rate": 1.0},
    ),
    ("higradavg_dp", {"name": "higradavg_dp", "rate": 0.5}, "subject", {"count": 60, "learning_rate": 2.0}),
    ("user_ldp", {"name": "user_ldp", "rate": 0.1}, "subject", {"count": 5, "learning_rate": 0.1}),
    (
        "subject_dp",
        {"name": "subject_dp", "rate": 1.0, "items_per_step": 5},
        "subject",
        {"count": 60, "learning_rate": 2.0},
    ),
)


def demo(
    json: Json = False,
    seed: Annotated[int, typer.Option(help="Another split of the people, other batches, other noise.")] = 0,
) -> None:
    """Train every policy at ε = 4, δ = 1e-5 over all 12 silos of a real table, and print what each protects."""
    dataset = nlswork()
    runs: list[tuple[str, RunResult]] = []
    for label, policy, unit, rounds in LINEUP:
        spec = RunSpec.of(
            {
                "seed": seed,
                "silos": {"surplus": "refuse"},  # the survey's design keeps every subject within K
                "policy": policy,
                "privacy": {"epsilon": EPSILON, "delta": DELTA, "unit": unit},
                "rounds": {**rounds, "averaging": "subjects"},
            }
        )
        prepared = prepare(spec, dataset=dataset)
        with open_guard(prepared, label) as guard, show_rounds(prepared.plan, label, json) as observe:
            runs.append((label, execute(prepared, guard, observe=observe)))
    if json:
        display.as_json({"runs": [{"label": label, **RunSummary.of(run).facts()} for label, run in runs]})
        return
    columns = ("policy", "accuracy", "item ε", "subject ε", "standing", "seconds")
    size = f"12 industries, {dataset.data.subject_count:,} people"
    title = f"nlswork: {size}; budget ε = {EPSILON:g}, δ = {DELTA:g} over all silos"
    display.out.print(display.table(title, columns, [_row(label, run) for label, run in runs]))
    display.out.print("Accuracy on people who were not trained on. Noise is seeded: a simulation, not a release.")
    display.out.print("Settings and bounds are unpaid: they were chosen with this survey in view.")


def _row(label: str, run: RunResult) -> tuple[Any, ...]:
    subject, item = run.spent(Unit.SUBJECT), run.spent(Unit.ITEM)
    return (
        label,
        f"{run.accuracy:.1%}",
        display.number(item.epsilon),
        display.number(subject.epsilon),
        display.standing(subject.standing),
        f"{run.seconds:.1f}",
    )
