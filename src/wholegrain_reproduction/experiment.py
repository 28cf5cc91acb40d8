"""One call from a part of the evaluation to its runs, figures and page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wholegrain._files import write_whole
from wholegrain.errors import RunError
from wholegrain.report.figure_export import draw
from wholegrain.report.figures import Figure
from wholegrain_reproduction import paper_figures
from wholegrain_reproduction.claims import BY_ALPHA, COMPOSITION, IMAGES, TEXT, all_claims
from wholegrain_reproduction.data_choice import DataChoice, DataSource
from wholegrain_reproduction.group_sizes import count_group_sizes, price_paper
from wholegrain_reproduction.recipes import Kind, Recipe, load_group_sizes, load_recipe
from wholegrain_reproduction.results import read_results
from wholegrain_reproduction.results_page import PageContent, render_page
from wholegrain_reproduction.run_trials import OnOutcome, Outcome, run_all
from wholegrain_reproduction.scales import Part, Scale
from wholegrain_reproduction.speaker_counts import SpeakerCounts, count_speakers
from wholegrain_reproduction.trials import PaperTrial, make_trials

PAGE = "reproduction.md"


RECIPES = {
    Part.FIG1: (IMAGES, TEXT),
    Part.FIG2: (IMAGES, TEXT),
    Part.FIG3: (BY_ALPHA,),
    Part.CLAIMS: (IMAGES, TEXT, BY_ALPHA, COMPOSITION),
}


@dataclass(frozen=True)
class Experiment:
    """What to reproduce, on which data, at which scale, and where to."""

    part: Part
    scale: Scale
    data: DataChoice
    out: Path
    processes: int = 1
    command: str = ""
    recipes: Path | None = None
    """The folder of the recipes; the project's own by default."""

    @property
    def runs(self) -> Path:
        """The runs on this data and at this scale."""
        return self.out / f"{self.scale}-{self.data.images.name}-{self.data.text.name}"

    def data_source(self, recipe: str) -> DataSource:
        """The data of a recipe."""
        return self.data.text if recipe == TEXT else self.data.images


def plan_trials(experiment: Experiment) -> tuple[list[Recipe], list[PaperTrial]]:
    """The recipes that are asked for, and all their trials."""
    recipes = [load_recipe(name, experiment.recipes) for name in RECIPES[experiment.part]]
    trials = [
        trial
        for recipe in recipes
        for trial in make_trials(recipe, experiment.scale, experiment.data_source(recipe.name))
    ]
    if experiment.part is Part.FIG2:  # a printed run counts the groups of its batches
        trials = [t for t in trials if t.algorithm == "local_group_dp" and t.kind is Kind.PRINTED]
    return recipes, trials


def reproduce(experiment: Experiment, tell: OnOutcome) -> PageContent:
    """Run what is not there yet, draw, and write the page; what failed is on it, too."""
    recipes, trials = plan_trials(experiment)
    try:
        experiment.runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"The folder '{experiment.runs}' cannot be written: {error.strerror}.") from error
    outcomes = run_all(trials, experiment.runs, experiment.processes, tell)
    return write_results(experiment, recipes, trials, outcomes)


def write_results(
    experiment: Experiment, recipes: Sequence[Recipe], trials: Sequence[PaperTrial], outcomes: Sequence[Outcome]
) -> PageContent:
    """Figures and page from the runs that are there."""
    geometry = load_group_sizes(experiment.recipes)
    sizes = () if experiment.part is Part.FIG1 else tuple(count_group_sizes(geometry))
    with_prices = experiment.scale is not Scale.SMOKE and experiment.part is Part.CLAIMS
    prices = tuple(price_paper(load_recipe(IMAGES, experiment.recipes), geometry, sizes)) if with_prices else ()
    results = read_results(trials, experiment.runs, sizes)
    content = PageContent(
        experiment.command,
        experiment.scale,
        experiment.data,
        recipes,
        trials,
        results,
        outcomes,
        prices,
        _speakers(experiment),
    )
    figures = list(_figures(experiment.part, content))
    names = {recipe.name for recipe in recipes}
    claims = [claim for claim in all_claims() if experiment.part is Part.CLAIMS or claim.recipe in names]
    try:
        for figure in figures:
            draw(figure, experiment.runs / "figures")
        write_whole(experiment.runs / PAGE, render_page(content, figures, claims).encode())
    except OSError as error:
        raise RunError(f"'{experiment.runs}' cannot be written: {error.strerror}.") from error
    return content


def _speakers(experiment: Experiment) -> SpeakerCounts | None:
    text = experiment.data.text
    return count_speakers(text.path) if text.name == "gutenberg_shakespeare" and text.path else None


def _figures(part: Part, content: PageContent) -> Iterator[Figure]:
    if part in (Part.FIG1, Part.CLAIMS):
        for recipe in (IMAGES, TEXT):
            yield from paper_figures.fig1(content.results, recipe, content.describe_data(recipe))
    if part in (Part.FIG2, Part.CLAIMS):
        yield from _group_figures(content)
    if part in (Part.FIG3, Part.CLAIMS):
        yield from paper_figures.fig3(content.results, content.describe_data(IMAGES))


def _group_figures(content: PageContent) -> Iterator[Figure]:
    title, results = "Mini-batches by largest subject group", content.results
    if results.geometry:
        yield paper_figures.fig2(results.geometry[0], "geometry", f"{title}: FEMNIST's geometry")
    for recipe in (IMAGES, TEXT):
        if recipe in results.groups:
            yield paper_figures.fig2(results.groups[recipe], recipe, f"{title}: {content.describe_data(recipe)}")
