"""What a planner weighed, as one picture: predicted signal-to-noise by how often people or items are sampled."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vl_convert

from wholegrain._files import write_whole
from wholegrain.errors import RunError
from wholegrain.policies.search import CandidatePlan

SIZE = {"width": 460, "height": 280}


def draw_tradeoff(weighed: Sequence[CandidatePlan], path: Path) -> None:
    """Write the picture as SVG."""
    try:
        write_whole(path, vl_convert.vegalite_to_svg(tradeoff(weighed)).encode())
    except OSError as error:
        raise RunError(f"The picture '{path}' cannot be written: {error.strerror}.") from error


def tradeoff(weighed: Sequence[CandidatePlan]) -> dict[str, Any]:
    """One line for each policy; a point for each rate, with the best number of steps that was weighed for it."""
    rows = {}
    for each in reversed(weighed):  # the best comes last and stays
        rows[each.policy, each.settings.rate] = {
            "policy": each.policy,
            "rate": each.settings.rate,
            "steps": each.steps,
            "ratio": each.ratio,
        }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        **SIZE,
        "background": "white",
        "title": "Predicted signal to noise at the same budget",
        "data": {"values": list(rows.values())},
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "rate", "type": "quantitative", "scale": {"type": "log"}, "title": "sampling rate"},
            "y": {"field": "ratio", "type": "quantitative", "scale": {"type": "log"}, "title": "signal to noise"},
            "color": {"field": "policy", "type": "nominal", "title": None},
        },
    }
