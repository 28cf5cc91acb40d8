"""Figures as files, for papers and slides."""

from pathlib import Path

import vl_convert

from wholegrain._files import write_whole
from wholegrain.report.figures import figures
from wholegrain.report.reading import RunRecord

SIZE = {"width": 560, "height": 300}


def export(runs: list[RunRecord], folder: Path) -> None:
    """Every figure of these runs as SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in figures(runs):
        spec = {**figure.spec(), **SIZE, "title": figure.title}
        write_whole(folder / f"{figure.key}.svg", vl_convert.vegalite_to_svg(spec).encode())
        write_whole(folder / f"{figure.key}.png", vl_convert.vegalite_to_png(spec, scale=2))
