"""The trials of a tuning as one picture: what each scored, by each setting that was searched."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vl_convert

from wholegrain._files import write_whole
from wholegrain.errors import RunError
from wholegrain.runs.tuning_trials import Trial

SIZE = {"width": 240, "height": 200}


def draw_trials(trials: Sequence[Trial], path: Path, *, private: bool) -> None:
    """Write the picture as SVG; `private`: it is of private data, in a simulation."""
    try:
        write_whole(path, vl_convert.vegalite_to_svg(trials_figure(trials, private)).encode())
    except OSError as error:
        raise RunError(f"The picture '{path}' cannot be written: {error.strerror}.") from error


def trials_figure(trials: Sequence[Trial], private: bool) -> dict[str, Any]:
    """One chart for each setting; the best trial stands out."""
    best = max(trials, key=lambda trial: trial.score, default=None)
    places = list(trials[0].settings) if trials else []
    rows = [
        {
            **{_safe(place): value for place, value in trial.settings.items()},
            "score": trial.score,
            "best": trial is best,
        }
        for trial in trials
        if trial.score > float("-inf")
    ]
    mark = " (a simulation; in a release nobody sees this)" if private else " (public data)"
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "background": "white",
        "title": f"Trials by setting{mark}",
        "data": {"values": rows},
        "hconcat": [
            {**SIZE, "mark": {"type": "point", "filled": True, "size": 60}, **_encoding(place, rows)}
            for place in places
        ],
    }


def _encoding(place: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    values = [row[_safe(place)] for row in rows]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    wide = numbers and values and min(values) > 0 and max(values) > 20 * min(values)
    x: dict[str, Any] = {"field": _safe(place), "type": "quantitative" if numbers else "nominal", "title": place}
    if wide:
        x["scale"] = {"type": "log"}
    y = {"field": "score", "type": "quantitative", "title": "score", "scale": {"zero": False}}
    colour = {"field": "best", "type": "nominal", "legend": None, "scale": {"range": ["#0072b2", "#d55e00"]}}
    return {"encoding": {"x": x, "y": y, "color": colour}}


def _safe(place: str) -> str:
    """Vega-Lite reads a dot in a field's name as a path."""
    return place.replace(".", " ")
