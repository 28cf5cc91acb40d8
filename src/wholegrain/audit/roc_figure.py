"""The membership attack as a picture: true against false positives, beside what the proof allows and what chance gives.

Both axes are logarithmic: what matters to a person is at the left, where an attacker is almost never wrong.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import vl_convert

from wholegrain._files import write_whole
from wholegrain.audit.curves import curve
from wholegrain.audit.membership_inference import Membership
from wholegrain.errors import RunError, SpecError
from wholegrain.privacy.definitions import Standing

# Okabe and Ito's colours, as in reports.
COLOURS = {"attack": "#0072b2", "proof allows": "#d55e00", "chance": "#7f7f7f"}
DASHES = {"attack": [1, 0], "proof allows": [2, 2], "chance": [6, 4]}
DECADES = [1.0, 0.1, 0.01, 0.001, 0.0001]
POINTS = 120


def require_figure(path: Path) -> None:
    """Refuse a file that no figure can be written to, before anything is computed for it."""
    if path.suffix not in (".svg", ".png"):
        raise SpecError(f"A figure is written as .svg or .png, not as '{path.name}'.")
    if not path.parent.is_dir():
        raise SpecError(f"There is no folder '{path.parent}' to write '{path.name}' into.")


def write_figure(found: Membership, path: Path) -> None:
    """The figure as SVG or PNG, by the name's ending."""
    require_figure(path)
    spec = roc(found).to_dict()
    drawn = vl_convert.vegalite_to_svg(spec).encode() if path.suffix == ".svg" else _png(spec)
    try:
        write_whole(path, drawn)
    except OSError as error:
        raise RunError(f"'{path}' cannot be written: {error.strerror}.") from error


def _png(spec: dict[str, Any]) -> bytes:
    return vl_convert.vegalite_to_png(spec, scale=2)


def roc(found: Membership) -> Any:
    """The chart, with its data inside."""
    least = 1 / len(found.others)
    alarms = np.geomspace(least / 2, 1.0, POINTS)
    rows = [_row("chance", x, x) for x in alarms]
    rows += [_row("attack", *point) for point in _steps(found)]
    if found.guarantee.standing is Standing.PROVED and found.guarantee.event is not None:
        allowed = curve(found.guarantee.event)
        rows += [_row("proof allows", x, allowed.most_hits(float(x))) for x in alarms]
    scale = alt.Scale(type="log", domain=[least / 2, 1.0], clamp=True, nice=False)
    axis = alt.Axis(values=[decade for decade in DECADES if decade >= least / 2], gridOpacity=0.5)
    legend = alt.Legend(orient="bottom", symbolType="stroke", symbolSize=400, symbolStrokeWidth=2)
    shown = {row["line"] for row in rows}
    low, high = found.auc_interval
    title = f"Who was trained on? AUC {found.auc:.3f} ({low:.3f}–{high:.3f})"
    return (
        alt.Chart(alt.InlineData(rows))
        .mark_line(clip=True)
        .encode(
            x=alt.X("alarms:Q", title="false positives", scale=scale, axis=axis),
            y=alt.Y("hits:Q", title="true positives", scale=scale, axis=axis),
            color=alt.Color("line:N", title=None, scale=_by(COLOURS, shown), legend=legend),
            strokeDash=alt.StrokeDash("line:N", title=None, scale=_by(DASHES, shown), legend=legend),
        )
        .properties(width=420, height=320, title=title, background="white", padding=12)
    )


def _by(look: Mapping[str, Any], shown: set[str]) -> Any:
    found = {line: value for line, value in look.items() if line in shown}
    return alt.Scale(domain=list(found), range=list(found.values()))


def _steps(found: Membership) -> list[tuple[float, float]]:
    """Rates at each number of false positives that people allow to tell apart."""
    ordered = np.sort(found.others)[::-1]
    places = np.unique(np.geomspace(1, len(ordered) - 1, POINTS).astype(int))
    return [(place / len(ordered), float((found.members > ordered[place]).mean())) for place in places]


def _row(line: str, alarms: float, hits: float) -> dict[str, Any]:
    return {"line": line, "alarms": float(alarms), "hits": float(hits)}
