"""One call from a figure's name to its runs, pictures and page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from wholegrain._files import write_whole
from wholegrain.errors import RunError
from wholegrain.report.figure_export import draw
from wholegrain.report.figures import Figure
from wholegrain_reproduction import paper_figures
from wholegrain_reproduction.claims import BY_ALPHA, COMPOSITION, IMAGES, TEXT, Claim, all_claims
from wholegrain_reproduction.data_choice import Chosen, Source
from wholegrain_reproduction.group_sizes import geometry, price_paper
from wholegrain_reproduction.recipes import Kind, Recipe, Scale, load, load_group_sizes
from wholegrain_reproduction.results import Evidence, gather
from wholegrain_reproduction.results_page import Made, page
from wholegrain_reproduction.run_trials import Outcome, Told, play_all
from wholegrain_reproduction.trials import Trial, trials

PAGE = "reproduction.md"


class What(StrEnum):
    """What can be asked for."""

    FIG1 = "fig1"
    FIG2 = "fig2"
    FIG3 = "fig3"
    CLAIMS = "claims"
    """All figures, and the table of claims."""


RECIPES = {
    What.FIG1: (IMAGES, TEXT),
    What.FIG2: (IMAGES, TEXT),
    What.FIG3: (BY_ALPHA,),
    What.CLAIMS: (IMAGES, TEXT, BY_ALPHA, COMPOSITION),
}


@dataclass(frozen=True)
class Order:
    """What to reproduce, on which data, at which scale, and where to."""

    what: What
    scale: Scale
    chosen: Chosen
    out: Path
    processes: int = 1
    command: str = ""
    where: Path | None = None
    """The folder of the recipes; the project's own by default."""

    @property
    def runs(self) -> Path:
        """The runs on this data and at this scale."""
        return self.out / f"{self.scale}-{self.chosen.images.name}-{self.chosen.text.name}"

    def source(self, recipe: str) -> Source:
        """The data of a recipe."""
        return self.chosen.text if recipe == TEXT else self.chosen.images


def planned(order: Order) -> tuple[list[Recipe], list[Trial]]:
    """The recipes that are asked for, and all their trials."""
    recipes = [load(name, order.where) for name in RECIPES[order.what]]
    found = [trial for recipe in recipes for trial in trials(recipe, order.scale, order.source(recipe.name))]
    if order.what is What.FIG2:  # a printed run counts the groups of its batches
        found = [t for t in found if t.algorithm == "local_group_dp" and t.kind is Kind.PRINTED]
    return recipes, found


def reproduce(order: Order, tell: Told) -> Made:
    """Run what is not there yet, draw, and write the page; what failed is on it, too."""
    recipes, found = planned(order)
    try:
        order.runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"The folder '{order.runs}' cannot be written: {error.strerror}.") from error
    outcomes = play_all(found, order.runs, order.processes, tell)
    return write(order, recipes, found, outcomes)


def write(order: Order, recipes: Sequence[Recipe], found: Sequence[Trial], outcomes: Sequence[Outcome]) -> Made:
    """Figures and page from the runs that are there."""
    shape = load_group_sizes(order.where)
    sizes = () if order.what is What.FIG1 else tuple(geometry(shape))
    asked_to_price = order.scale is not Scale.SMOKE and order.what is What.CLAIMS
    priced = tuple(price_paper(load(IMAGES, order.where), shape, sizes)) if asked_to_price else ()
    evidence = gather(found, order.runs, sizes)
    made = Made(order.command, order.scale, order.chosen, recipes, found, evidence, outcomes, priced)
    drawn = list(_figures(order.what, made))
    asked = {recipe.name for recipe in recipes}
    claims: list[Claim] = [claim for claim in all_claims() if order.what is What.CLAIMS or claim.recipe in asked]
    try:
        for figure in drawn:
            draw(figure, order.runs / "figures")
        write_whole(order.runs / PAGE, page(made, drawn, claims).encode())
    except OSError as error:
        raise RunError(f"'{order.runs}' cannot be written: {error.strerror}.") from error
    return made


def _figures(what: What, made: Made) -> Iterator[Figure]:
    if what in (What.FIG1, What.CLAIMS):
        for recipe in (IMAGES, TEXT):
            yield from paper_figures.fig1(made.evidence, recipe, made.data(recipe))
    if what in (What.FIG2, What.CLAIMS):
        yield from _group_figures(made.evidence, made)
    if what in (What.FIG3, What.CLAIMS):
        yield from paper_figures.fig3(made.evidence, made.data(IMAGES))


def _group_figures(evidence: Evidence, made: Made) -> Iterator[Figure]:
    title = "Mini-batches by largest subject group"
    if evidence.geometry:
        yield paper_figures.fig2(evidence.geometry[0], "geometry", f"{title}: FEMNIST's geometry")
    for recipe in (IMAGES, TEXT):
        if recipe in evidence.groups:
            yield paper_figures.fig2(evidence.groups[recipe], recipe, f"{title}: {made.data(recipe)}")
