"""Tables and pictures of the benchmark of the field, from what benchmarks/field.py kept.

Run: python benchmarks/field_page.py

Renews the tables of docs/benchmark.md and the pictures beside it, and prints where a rival is ahead of ours.
"""

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

import draw
import record
import trust_cases
from field import DELTA, EPSILONS, NAMES, RESULTS, SCORES
from rivals import METHODS, OURS, proved
from utility import Tree

PAGE = record.ROOT / "docs" / "benchmark.md"
IMAGES = record.ROOT / "docs" / "images"
LINES: Mapping[str, tuple[str, str, Sequence[int]]] = {
    "central": ("#000000", "cross", (2, 2)),
    "ours, sum of all silos": ("#0072b2", "circle", (1, 0)),
    "ours, sum": ("#56b4e9", "square", (1, 0)),
    "ours, local": ("#009e73", "triangle-up", (1, 0)),
    "ULDP-AVG-w": ("#d55e00", "diamond", (6, 2)),
    "ULDP-AVG": ("#e69f00", "triangle-down", (6, 2)),
    "DP-SGD, group": ("#cc79a7", "stroke", (3, 2)),
    "ULDP-GROUP-2": ("#999999", "triangle-right", (3, 2)),
}
"""What is drawn, with a colour that the colour-blind can tell from the others (Okabe and Ito), a shape and a dash."""


def scores(rows: Iterable[Tree], data: str, method: str, epsilon: float) -> list[float]:
    """One for each seed."""
    return [r["score"] for r in rows if (r["data"], r["method"]) == (data, method) and r["epsilon"] in (epsilon, None)]


def table(rows: list[Tree], data: str, epsilons: Sequence[float]) -> str:
    """Mean and spread over seeds, as Markdown; the best of those that trust no single place is bold."""
    head = f"| {data}, {SCORES[data]} in % | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " |"
    lines = [head, "|---|" + "---:|" * len(epsilons)]
    best = [max((_mean(rows, data, n, e) for n in METHODS if n != "central"), default=0.0) for e in epsilons]
    for name in NAMES:
        found = [scores(rows, data, name, e) for e in epsilons]
        if any(found):
            cells = [_cell(each, top) for each, top in zip(found, best, strict=True)]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    constant = statistics.mean(r["constant"] for r in rows if r["data"] == data)
    lines.append("| constant answer | " + " | ".join([f"{constant:.1f}"] * len(epsilons)) + " |")
    return "\n".join(lines)


def _mean(rows: list[Tree], data: str, method: str, epsilon: float) -> float:
    found = scores(rows, data, method, epsilon)
    return statistics.mean(found) if found else 0.0


def _cell(found: list[float], best: float) -> str:
    if not found:
        return "–"
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    mean = statistics.mean(found)
    shown = f"**{mean:.1f}**" if mean == best else f"{mean:.1f}"
    return shown + spread + ("" if len(found) == 3 else f" ({len(found)})")


def behind(rows: list[Tree], data: str, epsilons: Sequence[float]) -> list[str]:
    """Where a rival's mean is above the best of ours, by how much; the upper line is not counted."""
    lines = []
    for epsilon in epsilons:
        means = {n: statistics.mean(s) for n in METHODS if (s := scores(rows, data, n, epsilon))}
        name, ours = max(((n, means[n]) for n in OURS if n in means), key=lambda pair: pair[1])
        above = {n: m - ours for n, m in means.items() if n not in (*OURS, "central") and m > ours}
        lines += [f"{data}, ε = {epsilon:g}: {n} is {gap:.2f} points above '{name}'" for n, gap in above.items()]
    return lines


def picture(rows: list[Tree], data: str, path: Path) -> None:
    """Scores by ε, one line for each method; FedAvg is dashed."""
    own: list[dict[str, Any]] = [r for r in rows if r["data"] == data]
    known = {name: each for name, each in LINES.items() if any(r["method"] == name for r in own)}
    private = alt.Data(values=[r for r in own if r["method"] in known])
    across = alt.X("epsilon:Q", title="ε of one person, proved (log scale)",
                   scale=alt.Scale(type="log", domain=[0.45, 9]), axis=alt.Axis(values=list(EPSILONS)))  # fmt: skip
    down = alt.Y("mean(score):Q", title=f"{SCORES[data]}, %", scale=alt.Scale(zero=False))
    names = list(known)
    legend = alt.Legend(orient="bottom", columns=2, symbolSize=130, symbolStrokeWidth=2.5, labelLimit=260)
    colours = alt.Scale(domain=names, range=[each[0] for each in known.values()])
    shapes = alt.Scale(domain=names, range=[each[1] for each in known.values()])
    dashes = alt.Scale(domain=names, range=[list(each[2]) for each in known.values()])
    colour = alt.Color("method:N", title=None, scale=colours, legend=legend)
    base = alt.Chart(private).encode(x=across, y=down, color=colour)
    line = base.mark_line(strokeWidth=2.5).encode(strokeDash=alt.StrokeDash("method:N", scale=dashes, legend=None))
    point = base.mark_point(size=90, filled=False, strokeWidth=2.2).encode(
        shape=alt.Shape("method:N", title=None, scale=shapes, legend=legend)
    )
    free = [r["score"] for r in own if not r["epsilon"]]
    lines = alt.Data(values=[{"y": statistics.mean(free), "words": "FedAvg, no privacy"}])
    rule = alt.Chart(lines).mark_rule(strokeDash=[2, 3], color="#555555").encode(y="y:Q")
    words = alt.Chart(lines).mark_text(align="left", dy=-7, x=4, fontSize=13, color="#555555")
    words = words.encode(y="y:Q", text="words:N")
    chart = alt.layer(rule, words, line, point).properties(width=400, height=320, title=data)
    dressed = draw._dressed(chart).configure_axis(labelFontSize=13, titleFontSize=13, gridColor="#eeeeee")
    dressed.configure_legend(labelFontSize=13).configure_title(fontSize=15).save(path)


def show(asked: argparse.Namespace) -> None:
    """Print tables and what is behind; draw the pictures; renew the tables of the page."""
    every = trust_cases.read(asked.results)
    parts: dict[str, str] = {}
    for model in ("linear", "mlp"):
        rows = [r for r in every if r["model"] == model]
        epsilons = sorted({r["epsilon"] for r in rows if r["epsilon"]})
        for data in (name for name in SCORES if any(r["data"] == name for r in rows)):
            shown = ""
            if model == "linear":
                picture(rows, data, IMAGES / f"benchmark_{data}.svg")
                shown = f"![{data}: {SCORES[data]} by ε](images/benchmark_{data}.svg)\n\n"
            parts[model] = parts.get(model, "") + f"{shown}{table(rows, data, epsilons)}\n\n"
            print(*(f"{model}, {line}" for line in behind(rows, data, epsilons)), sep="\n")
    for claimed in EPSILONS:
        print(f"NAIVE and DP-FedAvg with half the noise: claimed {claimed:g}, proved {proved(claimed, DELTA, 2):.3g}")
    text = PAGE.read_text()
    for model, tables in parts.items():
        before, _, rest = text.partition(f"<!-- {model} -->\n")
        _, _, after = rest.partition(f"<!-- end of {model} -->")
        text = f"{before}<!-- {model} -->\n{tables.rstrip()}\n<!-- end of {model} -->{after}"
    PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=RESULTS)
    show(parser.parse_args())


if __name__ == "__main__":
    main()
