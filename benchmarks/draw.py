"""Pictures from the benchmarks' figures.

Run: python benchmarks/draw.py --gradients gradients.json --rounds rounds.json --folder docs/images
Where models were measured by several commands, name all of their files after --gradients. `--results` draws the newest
steps on record, in benchmarks/RESULTS.md.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import altair as alt

import record
from wholegrain.report.figures import COLOURS as TOLD_APART
from wholegrain.report.figures import DASHES

OURS, PEERS, PLAIN = "#0b6e4f", "#b4532a", "#7a7a7a"
KINDS = ["wholegrain", "peers", "plain SGD"]
COLOURS = alt.Scale(domain=KINDS, range=[OURS, PEERS, PLAIN])
FONT = "system-ui, sans-serif"
PADDING = {"left": 30, "right": 20, "top": 12, "bottom": 12}
"""A browser's letters may be wider than those that the chart was measured with."""


def gradients(found: dict[str, Any]) -> alt.Chart:
    """Time of a step beside plain SGD: one panel per model, one dot per contestant, quartiles as a bar.

    Panels stand below each other, so that letters stay large on a phone, and hold only who was measured.
    """
    rows = [_point(model, contestant) for model in found["models"] for contestant in model["contestants"]]
    order = list(dict.fromkeys(row["contestant"] for row in rows))
    # One scale for all panels, with room for the last label.
    domain = [0.8 * min(row["low"] for row in rows), 2 * max(row["high"] for row in rows)]
    scale = alt.Scale(type="log", domain=domain, nice=False)
    ticks = alt.Axis(values=[0.5, 1, 2, 5, 10, 20, 50, 100])
    across = alt.X("ratio:Q", title="time of a step ÷ plain SGD (log scale)", scale=scale, axis=ticks)
    down = alt.Y("contestant:N", title=None, sort=order)
    colour = alt.Color("kind:N", scale=COLOURS, legend=None)
    base = alt.Chart().encode(y=down, color=colour)
    line = alt.Chart().mark_rule(color="#c8c8c8").encode(x=alt.datum(1))
    spread = base.mark_rule(strokeWidth=2, opacity=0.6).encode(x="low:Q", x2="high:Q")
    dots = base.mark_circle(size=80, opacity=1).encode(x=across)
    labels = base.mark_text(align="left", dx=9, fontSize=11).encode(x="high:Q", text=alt.Text("ratio:Q", format=".2f"))
    panel = alt.layer(line, spread, dots, labels, data=alt.Data(values=rows)).properties(width=270, height=alt.Step(20))
    titles = [model["title"] for model in found["models"]]
    head = alt.Header(labelFontSize=14, labelFontWeight="bold", labelAnchor="start")
    facet = alt.Facet("model:N", title=None, sort=titles, header=head)
    return _dressed(panel.facet(facet=facet, columns=1, spacing=14).resolve_scale(y="independent"))


def _point(model: dict[str, Any], contestant: dict[str, Any]) -> dict[str, Any]:
    ratio = contestant["ratio"]
    place = {"model": model["title"], "contestant": contestant["title"], "kind": _kind(contestant["name"])}
    return {**place, "ratio": ratio["median"], "low": ratio["low"], "high": ratio["high"]}


def steps_on_record(text: str) -> dict[str, Any]:
    """The tables under `### Steps` of RESULTS.md, as gradients.py kept them: models, contestants, ratios."""
    section = re.split(r"^### .*$", text.split("### Steps\n", 1)[1], flags=re.M)[0]
    models = []
    for title, table in re.findall(r"^#### (.*?): .*\n((?:(?!####).*\n?)*)", section, flags=re.M):
        rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+)–([\d.]+) \|", table, flags=re.M)
        models.append({"title": title, "contestants": [_from_row(*row) for row in rows]})
    return {"models": models}


def _from_row(title: str, median: str, low: str, high: str) -> dict[str, Any]:
    name = "plain" if title.startswith("plain") else "ours" if title.startswith("wholegrain") else "peer"
    return {"name": name, "title": title, "ratio": {"median": float(median), "low": float(low), "high": float(high)}}


def _kind(name: str) -> str:
    if name.startswith("plain"):
        return "plain SGD"
    return "wholegrain" if name.startswith("ours") else "peers"


def subjects(found: dict[str, Any]) -> alt.Chart:
    """Time of a step by the number of subjects in a silo, at one expected batch."""
    rows = [
        {
            "policy": row["policy"],
            "subjects": row["subjects"],
            **{name: 1e3 * value for name, value in row["seconds"].items()},
        }
        for row in found["subjects"]
    ]
    across = alt.X(
        "subjects:Q",
        title="subjects in the silo (log scale)",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(values=[row["subjects"] for row in rows], format="~s"),
    )
    down = alt.Y("median:Q", title="milliseconds per step", scale=alt.Scale(zero=True))
    colour = alt.Color("policy:N", title=None, scale=alt.Scale(range=[PEERS, OURS]), legend=alt.Legend(orient="top"))
    base = alt.Chart(alt.Data(values=rows)).encode(x=across, color=colour)
    bars = base.mark_rule(strokeWidth=2, opacity=0.6).encode(y="low:Q", y2="high:Q")
    line = base.mark_line(point=alt.OverlayMarkDef(size=70)).encode(y=down)
    return _dressed(alt.layer(bars, line).properties(width=460, height=240))


def told_apart(field: str, names: list[str]) -> dict[str, Any]:
    """A colour of Okabe and Ito and a pattern of dashes for each line, as in reports; the legend stands below."""
    legend = alt.Legend(orient="bottom", columns=2, symbolType="stroke", symbolSize=400, symbolStrokeWidth=2)
    return {
        "color": alt.Color(field, title=None, scale=alt.Scale(domain=names, range=TOLD_APART), legend=legend),
        "strokeDash": alt.StrokeDash(field, title=None, scale=alt.Scale(domain=names, range=DASHES), legend=legend),
    }


def _dressed(chart: Any) -> Any:
    """Light background, quiet axes, letters that can be read on a phone."""
    quiet = {"gridColor": "#eeeeee", "domainColor": "#999999", "tickColor": "#999999"}
    return (
        chart.configure(background="white", font=FONT, padding=PADDING)
        .configure_view(stroke=None)
        .configure_axis(**quiet, labelLimit=220, labelFontSize=13, titleFontSize=13)
        .configure_legend(labelFontSize=14, labelLimit=300)
        .configure_title(fontSize=15)
    )


def main() -> None:
    """Draw what is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gradients", type=Path, nargs="+", help="figures of gradients.py, of one or several commands")
    parser.add_argument("--results", type=Path, help="RESULTS.md: draw its newest steps instead")
    parser.add_argument("--rounds", type=Path, help="figures of rounds.py")
    parser.add_argument("--folder", type=Path, default=record.ROOT / "docs" / "images")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.gradients:
        measured = [model for path in given.gradients for model in record.read(path)["models"]]
        gradients({"models": measured}).save(given.folder / "gradients.svg")
    if given.results:
        gradients(steps_on_record(given.results.read_text("utf-8"))).save(given.folder / "gradients.svg")
    if given.rounds:
        subjects(record.read(given.rounds)).save(given.folder / "subjects.svg")


if __name__ == "__main__":
    main()
