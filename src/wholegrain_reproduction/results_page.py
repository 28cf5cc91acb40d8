"""The page: which data, what was changed, the figures, every run with what it is worth, and the claims."""

import math
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import wholegrain
from wholegrain.report.figures import Figure
from wholegrain.report.wording import number
from wholegrain_reproduction.claims import TEXT, Claim, percent
from wholegrain_reproduction.data_choice import Chosen
from wholegrain_reproduction.group_sizes import Priced
from wholegrain_reproduction.recipes import Kind, Recipe, Scale
from wholegrain_reproduction.results import Evidence, Result
from wholegrain_reproduction.run_trials import Outcome
from wholegrain_reproduction.trials import NAMES, Trial

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Made:
    """What a page tells of."""

    command: str
    scale: Scale
    chosen: Chosen
    recipes: Sequence[Recipe]
    trials: Sequence[Trial]
    evidence: Evidence
    outcomes: Sequence[Outcome]
    priced: Sequence[Priced] = ()

    def data(self, recipe: str) -> str:
        """The data that a recipe was run on, in words."""
        return (self.chosen.text if recipe == TEXT else self.chosen.images).words


def page(made: Made, figures: Iterable[Figure], claims: Iterable[Claim], pictures: str = "figures") -> str:
    """All of it in Markdown."""
    parts = [
        "# The paper's evaluation, run again",
        *_head(made),
        *_changes(made),
        "## Figures",
        *(f"![{figure.alternative}]({pictures}/{figure.key}.svg)" for figure in figures),
        "## Claims",
        claims_table(made, claims),
        *_priced(made),
        "## Runs",
        *_runs(made),
        *_failed(made),
    ]
    return "\n\n".join(parts) + "\n"


def claims_table(made: Made, claims: Iterable[Claim]) -> str:
    """Every claim with its verdict."""
    rows = []
    for claim in claims:
        finding = claim.over_seeds(made.evidence)
        why = f" ({finding.why})" if finding.why else ""
        rows.append(
            (claim.place, claim.says, made.data(claim.recipe), finding.measured + why, f"**{finding.verdict}**")
        )
    return _table(("where", "claim", "measured on", "measured", "verdict"), rows)


def commit() -> str:
    """The commit that the package's sources are at, or its version where they are in no repository."""
    try:
        asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        found = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        found = ""
    return f"commit {found}" if found else f"version {wholegrain.__version__}"


def _head(made: Made) -> Iterator[str]:
    found = [result for trial in made.trials if (result := made.evidence.of(trial)) is not None]
    seeds = " (two more where a verdict may hang on it)" if made.evidence.again else ""
    minutes = sum(result.seconds for result in found) / 60
    yield f"Made by `{made.command}` at {commit()}, scale *{made.scale}*, one seed{seeds}."
    yield f"{len(found)} of {len(made.trials)} runs, which took {minutes:.1f} minutes of one core in all."
    yield (
        f"- In the place of FEMNIST: {made.chosen.images.words}.\n"
        f"- In the place of Shakespeare: {made.chosen.text.words}."
    )
    if made.scale is Scale.SMOKE:
        yield "**This scale shows that everything runs. Its figures and verdicts mean nothing.**"


def _changes(made: Made) -> Iterator[str]:
    lines: list[str] = []
    known: set[str] = set()
    for recipe in made.recipes:
        said = [each for each in _said(made, recipe) if each not in known]
        known.update(said)
        if said:
            lines.append(f"- {recipe.place}: {'; '.join(said)}.")
    if lines:
        yield "What is not as in the paper:"
        yield "\n".join(lines)


def _said(made: Made, recipe: Recipe) -> Iterator[str]:
    """Why a recipe's settings are not the paper's, each reason once."""
    source = made.chosen.text.name if recipe.name == TEXT else made.chosen.images.name
    applied = (change for each in recipe.variants for change in recipe.applied(made.scale, source, each.name))
    yield from dict.fromkeys(change.because for change in applied if change.because)
    rates = recipe.settings(made.scale, source, recipe.variants[0]).learning_rate
    yield (
        f"learning rates {rates.used.fedavg:g} (FedAvg) and {rates.used.private:g} (private) instead of"
        f" {rates.printed.fedavg:g} and {rates.printed.private:g}"
    )


def _priced(made: Made) -> Iterator[str]:
    if not made.priced:
        return
    yield "## The paper's own settings, priced"
    yield (
        "3,500 subjects of 145 items, 16 silos, B = 512, 50 steps a round, noise for a claimed ε = 4 over 100 rounds;"
        " LocalItemDP trains all of them, the others 25. Nothing is trained for this table. k is the most items that a"
        " subject has in a silo."
    )
    rows = [
        (
            each.placement,
            NAMES[each.algorithm],
            str(each.largest),
            f"{each.worth.noise:.4g}",
            number(each.worth.subject),
            "" if math.isfinite(each.worth.subject) else number(each.worth.granted),
        )
        for each in made.priced
    ]
    yield _table(("placement", "algorithm", "k", "σ (usual)", "ε proved, subject", "ε granted"), rows)


def _runs(made: Made) -> Iterator[str]:
    yield (
        "ε is for a subject over all silos, δ = 1e-5. *Proved* is what can be proved of the run; *granted* is what it"
        " would be worth if the scale of its noise were public. Noise is seeded: simulations."
    )
    for recipe in made.recipes:
        rows = [
            _row(trial, result)
            for trial in made.trials
            if trial.recipe == recipe.name and (result := made.evidence.of(trial)) is not None
        ]
        if rows:
            yield f"### {recipe.title}"
            yield _table(_COLUMNS, rows)


_COLUMNS = (
    "algorithm",
    "run",
    "rounds",
    "σ",
    "ε asked",
    "ε proved, item",
    "ε proved, subject",
    "ε granted",
    "accuracy",
    "loss",
)


def _row(trial: Trial, result: Result) -> tuple[str, ...]:
    asked = "–" if result.epsilon is None else f"{number(result.epsilon)}, {_unit(trial)}"
    worth = result.worth
    sound = "" if worth or trial.algorithm == "fedavg" else number(result.epsilon)
    granted = (
        number(worth.granted) if worth and not math.isfinite(worth.subject) and trial.algorithm != "fedavg" else ""
    )
    return (
        NAMES[trial.algorithm],
        ", ".join(part for part in (trial.variant, WORDS[trial.kind], f"seed {trial.seed}" * bool(trial.seed)) if part),
        str(len(result.rounds)),
        f"{result.noise:.3g}",
        asked,
        number(worth.item) if worth else (sound if trial.spec.privacy.unit == "item" else ""),
        number(worth.subject) if worth else (sound if trial.spec.privacy.unit == "subject" else ""),
        granted,
        percent(result.accuracy),
        f"{result.loss:.3g}",
    )


WORDS = {
    Kind.PRINTED: "as printed",
    Kind.EXACT: "as printed, η too",
    Kind.TRUE: "sound, same true ε",
    Kind.CLAIMED: "sound, ε = 4",
    Kind.MORE_LOTS: "as printed, second way",
}


def _unit(trial: Trial) -> str:
    if trial.kind in (Kind.TRUE, Kind.CLAIMED):
        return trial.spec.privacy.unit
    return "item (claimed)" if trial.algorithm == "local_item_dp" else "subject (claimed)"


def _failed(made: Made) -> Iterator[str]:
    failed = [f"- {outcome.trial.label}: {outcome.error}" for outcome in made.outcomes if outcome.error]
    if failed:
        yield "## Runs that failed"
        yield "\n".join(failed)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
