"""Figures as files, for papers and slides."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import vl_convert

from wholegrain._files import write_whole
from wholegrain.report.figures import Figure, figures
from wholegrain.report.run_reader import RunRecord

SIZE = {"width": 560, "height": 300}
WIDE = 72
"""Letters of a title that fit over a chart of this size."""


def export(runs: Sequence[RunRecord], folder: Path) -> None:
    """Every figure of these runs as SVG and PNG."""
    for figure in figures(runs):
        draw(figure, folder)


def draw(figure: Figure, folder: Path) -> None:
    """One figure as SVG and PNG, in a folder that is made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = {**figure.spec(), **SIZE, "title": textwrap.wrap(figure.title, WIDE)}
    write_whole(folder / f"{figure.key}.svg", vl_convert.vegalite_to_svg(spec).encode())
    write_whole(folder / f"{figure.key}.png", vl_convert.vegalite_to_png(spec, scale=2))
