"""The page in Markdown: which data, what differs from the paper, figures, claims, and every run with its true ε."""

import math
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import wholegrain
from wholegrain._json_numbers import or_infinity
from wholegrain.report.figures import Figure
from wholegrain.report.wording import number
from wholegrain_reproduction.claims import TEXT, percent
from wholegrain_reproduction.data_choice import DataChoice
from wholegrain_reproduction.group_sizes import PaperPrice
from wholegrain_reproduction.recipes import Kind, Recipe
from wholegrain_reproduction.results import Result, Results
from wholegrain_reproduction.run_trials import Outcome
from wholegrain_reproduction.scales import Scale
from wholegrain_reproduction.speaker_counts import LEAF, LEAST, WINDOW, SpeakerCounts
from wholegrain_reproduction.trials import ALGORITHM_NAMES, PaperTrial
from wholegrain_reproduction.verdicts import Claim

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class PageContent:
    """Everything that the page shows."""

    command: str
    scale: Scale
    data: DataChoice
    recipes: Sequence[Recipe]
    trials: Sequence[PaperTrial]
    results: Results
    outcomes: Sequence[Outcome]
    prices: Sequence[PaperPrice] = ()
    speakers: SpeakerCounts | None = None
    """Of the plays of Project Gutenberg, where they are used."""

    def describe_data(self, recipe: str) -> str:
        """The data that a recipe was run on, in words."""
        return (self.data.text if recipe == TEXT else self.data.images).description


def render_page(
    content: PageContent, figures: Iterable[Figure], claims: Iterable[Claim], pictures: str = "figures"
) -> str:
    """The whole page."""
    parts = [
        "# The paper's evaluation, run again",
        *_introduction(content),
        *_speaker_section(content),
        *_change_section(content),
        "## Figures",
        *(f"![{figure.alternative}]({pictures}/{figure.key}.svg)" for figure in figures),
        "## Claims",
        render_claims(content, claims),
        *_price_section(content),
        "## Runs",
        *_run_section(content),
        *_failure_section(content),
    ]
    return "\n\n".join(parts) + "\n"


def render_claims(content: PageContent, claims: Iterable[Claim]) -> str:
    """Every claim with its verdict."""
    rows = []
    for claim in claims:
        finding = claim.over_seeds(content.results)
        why = f" ({finding.why})" if finding.why else ""
        rows.append(
            (
                claim.place,
                claim.says,
                content.describe_data(claim.recipe),
                finding.measured + why,
                f"**{finding.verdict}**",
            )
        )
    return _table(("where", "claim", "measured on", "measured", "verdict"), rows)


def find_commit() -> str:
    """The commit that the package's sources are at, or its version where they are in no repository."""
    try:
        asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        found = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        found = ""
    return f"commit {found}" if found else f"version {wholegrain.__version__}"


def _introduction(content: PageContent) -> Iterator[str]:
    found = [result for trial in content.trials if (result := content.results.of_trial(trial)) is not None]
    seeds = " (two more where a verdict may depend on it)" if content.results.repeats else ""
    minutes = sum(result.seconds for result in found) / 60
    yield f"Made by `{content.command}` at {find_commit()}, scale *{content.scale}*, one seed{seeds}."
    yield f"{len(found)} of {len(content.trials)} runs, which took {minutes:.1f} minutes of one core in all."
    yield (
        f"- In the place of FEMNIST: {content.data.images.description}.\n"
        f"- In the place of Shakespeare: {content.data.text.description}."
    )
    if content.scale is Scale.SMOKE:
        yield "**This scale shows that everything runs. Its figures and verdicts mean nothing.**"


def _speaker_section(content: PageContent) -> Iterator[str]:
    if content.speakers is None:
        return
    yield f"Speakers by LEAF's rules (windows of {WINDOW} characters, one at every character), before any change below:"
    named = (("plays of Project Gutenberg", content.speakers), ("LEAF's files, as printed", LEAF))
    rows = [(name, f"{each.speakers:,}", f"{each.kept:,}", f"{each.windows_each:,.0f}") for name, each in named]
    yield _table(("", "speakers", f"with {LEAST} windows or more", "windows of each of these"), rows)


def _change_section(content: PageContent) -> Iterator[str]:
    lines: list[str] = []
    known: set[str] = set()
    for recipe in content.recipes:
        reasons = [each for each in _reasons(content, recipe) if each not in known]
        known.update(reasons)
        if reasons:
            lines.append(f"- {recipe.place}: {'; '.join(reasons)}.")
    if lines:
        yield "What is not as in the paper:"
        yield "\n".join(lines)


def _reasons(content: PageContent, recipe: Recipe) -> Iterator[str]:
    """Why a recipe's settings are not the paper's, each reason once."""
    source = content.data.text.name if recipe.name == TEXT else content.data.images.name
    applied = (change for each in recipe.variants for change in recipe.changes_for(content.scale, source, each.name))
    yield from dict.fromkeys(change.because for change in applied if change.because)
    rates = recipe.settings(content.scale, source, recipe.variants[0]).learning_rate
    yield (
        f"learning rates {rates.used.fedavg:g} (FedAvg) and {rates.used.private:g} (private) instead of"
        f" {rates.printed.fedavg:g} and {rates.printed.private:g}"
    )


def _price_section(content: PageContent) -> Iterator[str]:
    if not content.prices:
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
            ALGORITHM_NAMES[each.algorithm],
            str(each.largest),
            f"{each.true_epsilon.noise:.4g}",
            number(each.true_epsilon.subject),
            "" if math.isfinite(each.true_epsilon.subject) else number(each.true_epsilon.granted),
        )
        for each in content.prices
    ]
    yield _table(("placement", "algorithm", "k", "σ (usual)", "ε proved, subject", "ε granted"), rows)


def _run_section(content: PageContent) -> Iterator[str]:
    yield (
        "ε is for a subject over all silos, δ = 1e-5. *Proved* is what can be proved of the run; *granted* is what it"
        " would be worth if the scale of its noise were public. Noise is seeded: simulations."
    )
    for recipe in content.recipes:
        rows = [
            _row(trial, result)
            for trial in content.trials
            if trial.recipe == recipe.name and (result := content.results.of_trial(trial)) is not None
        ]
        if rows:
            yield f"### {recipe.title}"
            yield _table(RUN_COLUMNS, rows)


RUN_COLUMNS = (
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


def _row(trial: PaperTrial, result: Result) -> tuple[str, ...]:
    asked = "–" if result.epsilon is None else f"{number(result.epsilon)}, {_unit(trial)}"
    epsilon = result.true_epsilon
    sound = "" if epsilon or trial.algorithm == "fedavg" else number(or_infinity(result.epsilon))
    granted = (
        number(epsilon.granted)
        if epsilon and not math.isfinite(epsilon.subject) and trial.algorithm != "fedavg"
        else ""
    )
    return (
        ALGORITHM_NAMES[trial.algorithm],
        ", ".join(
            part for part in (trial.variant, KIND_LABELS[trial.kind], f"seed {trial.seed}" * bool(trial.seed)) if part
        ),
        str(len(result.rounds)),
        f"{result.noise:.3g}",
        asked,
        number(epsilon.item) if epsilon else (sound if trial.spec.privacy.unit == "item" else ""),
        number(epsilon.subject) if epsilon else (sound if trial.spec.privacy.unit == "subject" else ""),
        granted,
        percent(result.accuracy),
        f"{result.loss:.3g}",
    )


KIND_LABELS = {
    Kind.PRINTED: "as printed",
    Kind.EXACT: "as printed, η too",
    Kind.TRUE: "sound, same true ε",
    Kind.CLAIMED: "sound, ε = 4",
    Kind.MORE_LOTS: "as printed, second way",
}


def _unit(trial: PaperTrial) -> str:
    if trial.kind in (Kind.TRUE, Kind.CLAIMED):
        return trial.spec.privacy.unit
    return "item (claimed)" if trial.algorithm == "local_item_dp" else "subject (claimed)"


def _failure_section(content: PageContent) -> Iterator[str]:
    failed = [f"- {outcome.trial.label}: {outcome.error}" for outcome in content.outcomes if outcome.error]
    if failed:
        yield "## Runs that failed"
        yield "\n".join(failed)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
