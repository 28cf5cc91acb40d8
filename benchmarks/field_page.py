"""Tables and pictures of the benchmark of the field, from what benchmarks/field.py kept.

Run: python benchmarks/field_page.py [--results FILE [--page FILE] [--images FOLDER]]

Renews the tables of docs/benchmark.md (what stands between its marks) and the pictures beside it. Of other results than
benchmarks/field.jsonl it prints the tables; what it writes then must be named.
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
from field import DELTA, EPSILONS, HEAD, NAMES, RESULTS, SCORES
from field_models import MODELS
from rivals import METHODS, ONE_PLACE, OURS, proved
from utility import Tree
from whole_digits import RESULTS as WHOLE
from wholegrain.errors import DataError

PAGE = record.ROOT / "docs" / "benchmark.md"
IMAGES = record.ROOT / "docs" / "images"
Look = tuple[str, str, Sequence[int]]
LINES: Mapping[str, Look] = {
    "ours, full sum, pooled": ("#0072b2", "circle", (1, 0)),
    "ours, sum, pooled": ("#56b4e9", "square", (1, 0)),
    "ours, local, pooled": ("#009e73", "triangle-up", (1, 0)),
    "ours, full sum, no spans": ("#5e3c99", "stroke", (1, 0)),
    "ours, full sum, by share": ("#882255", "arrow", (1, 0)),
    "central": ("#000000", "cross", (2, 2)),
    "ULDP-AVG-w": ("#d55e00", "diamond", (6, 2)),
    "ULDP-AVG": ("#e69f00", "triangle-down", (6, 2)),
    "DP-SGD, group": ("#cc79a7", "triangle-left", (3, 2)),
    "ULDP-GROUP-8": ("#777777", "triangle-right", (3, 2)),
}
"""What is drawn (ours as the library pools by default): colours that the colour-blind can tell apart (Okabe and Ito),
shapes and dashes."""
DRAWN = ("linear", HEAD)
SHOWN = (1.0, 4.0)
DEFAULTS = ("ours, local, pooled", "ours, sum, pooled", "ours, full sum, pooled")
"""Ours as the library pools by default, by trust: what the summary shows, whatever another row of ours has reached."""
SPREAD = [name for name, method in METHODS.items() if method.trust != ONE_PLACE]
RIVALS = [name for name in SPREAD if name not in OURS]
TRUSTED = [name for name in METHODS if name not in SPREAD]
CLOSE = 0.04
LIKE, WEIGHTED = "ours, full sum, pooled", ("ULDP-AVG-w", "ULDP-SGD-w")
"""Ours as the library pools by default, and the two rivals whose trust and noise are the same."""
NAMED = (
    "ours, full sum, pooled",
    "ours, full sum",
    "ours, full sum, by share",
    "ours, sum, pooled",
    "ours, local, pooled",
)
"""Rows of ours that are counted by themselves."""
NEAR, ROOM = 3.0, 20
"""Points below FedAvg that the second panel shows, and pixels below a line that a label below it needs."""


def by_seed(rows: Iterable[Tree], data: str, method: str, epsilon: float) -> dict[int, float]:
    """The score of each seed; FedAvg's is the same at every ε."""
    own = (r for r in rows if (r["data"], r["method"]) == (data, method) and r["epsilon"] in (epsilon, None))
    return {r["seed"]: r["score"] for r in own}


def scores(rows: Iterable[Tree], data: str, method: str, epsilon: float) -> list[float]:
    """One for each seed."""
    return list(by_seed(rows, data, method, epsilon).values())


def _name(data: str) -> str:
    return SCORES[data].replace("auc", "AUC")


def _epsilons(rows: Iterable[Tree], data: str) -> list[float]:
    return sorted({r["epsilon"] for r in rows if r["data"] == data and r["epsilon"]})


def table(rows: list[Tree], data: str) -> str:
    """Mean and spread over seeds, as Markdown; the best method without one trusted place is bold."""
    epsilons = _epsilons(rows, data)
    head = f"| {data}, {_name(data)} in % | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " |"
    lines = [head, "|---|" + "---:|" * len(epsilons)]
    best = [max(_mean(rows, data, name, epsilon) for name in SPREAD) for epsilon in epsilons]
    for name in NAMES:
        found = [scores(rows, data, name, e) for e in epsilons]
        if any(found):
            tops = best if name in SPREAD else [None] * len(best)
            cells = [_cell(each, top) for each, top in zip(found, tops, strict=True)]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    constant = statistics.mean(r["constant"] for r in rows if r["data"] == data)
    lines.append("| constant answer | " + " | ".join([f"{constant:.1f}"] * len(epsilons)) + " |")
    return "\n".join(lines)


def _mean(rows: list[Tree], data: str, method: str, epsilon: float) -> float:
    """Over seeds; nothing of a method that has not met all of the data's: seeds differ by more than methods do."""
    found = scores(rows, data, method, epsilon)
    return statistics.mean(found) if len(found) == len({r["seed"] for r in rows if r["data"] == data}) else 0.0


def _cell(found: list[float], best: float | None) -> str:
    if not found:
        return "–"
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    mean = statistics.mean(found)
    shown = f"**{mean:.1f}**" if mean == best else f"{mean:.1f}"
    return shown + spread + ("" if len(found) == 3 else f" ({len(found)})")


def behind(rows: list[Tree], data: str, epsilons: Sequence[float] | None = None) -> list[str]:
    """Where a rival's mean is above the best of ours, by how much, seed by seed; one trusted place is not counted."""
    lines = []
    for epsilon in judged(rows, data) if epsilons is None else epsilons:
        means = {n: _mean(rows, data, n, epsilon) for n in SPREAD}
        name = best_of_ours(rows, data, epsilon)
        for rival in (n for n in RIVALS if means[n] > means[name]):
            one, other = (by_seed(rows, data, each, epsilon) for each in (rival, name))
            gaps = ", ".join(_signed(one[seed] - other[seed]) for seed in sorted(one.keys() & other.keys()))
            gap = means[rival] - means[name]
            lines.append(f"{data}, ε = {epsilon:g}: {rival} {_signed(gap)} beside '{name}' (by seed {gaps})")
    return lines


def _signed(gap: float) -> str:
    return f"{gap:+.2f}".replace("-", "−")


def judged(rows: list[Tree], data: str) -> list[float]:
    """Where both ours and a rival have a row with all seeds."""
    both = (best_rival, best_of_ours)
    return [e for e in _epsilons(rows, data) if all(_mean(rows, data, best(rows, data, e), e) for best in both)]


def best_rival(rows: list[Tree], data: str, epsilon: float) -> str:
    """Who has the best mean; one trusted place is not counted."""
    return max(RIVALS, key=lambda name: _mean(rows, data, name, epsilon))


def best_of_ours(rows: list[Tree], data: str, epsilon: float) -> str:
    """Which of our rows has the best mean."""
    return max(OURS, key=lambda name: _mean(rows, data, name, epsilon))


def lead(rows: list[Tree], data: str, epsilon: float) -> float:
    """How far the best rival's mean is above the best of ours; one trusted place is not counted."""
    both = (best_rival(rows, data, epsilon), best_of_ours(rows, data, epsilon))
    rival, ours = (_mean(rows, data, name, epsilon) for name in both)
    return rival - ours


def like_by_like(rows: list[Tree]) -> str:
    """Our default pooling less a rival, under the same trust with the same noise, for each such rival, as Markdown."""
    return "\n\n".join(_less(rows, rival) for rival in WEIGHTED)


def _less(rows: list[Tree], rival: str) -> str:
    head = f"| less {rival} | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |"
    lines = [head, "|---|" + "---:|" * len(EPSILONS)]
    for own, data in _drawn(rows):
        both = [[scores(own, data, name, e) for name in (LIKE, rival)] for e in EPSILONS]
        gaps = [statistics.mean(one) - statistics.mean(other) if one and other else None for one, other in both]
        cells = ["–" if gap is None else _signed(gap) for gap in gaps]
        lines.append(f"| {data} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def counts(rows: list[Tree]) -> str:
    """In how many columns rows of ours, and the best of them, are level with every rival or behind, as Markdown."""
    cells = [(own, data, epsilon) for own, data in _drawn(rows) for epsilon in judged(own, data)]
    rivals = [_mean(own, data, best_rival(own, data, epsilon), epsilon) for own, data, epsilon in cells]
    lines = [
        "| | at least as good as every rival | behind by less | behind by 0.04 points or more |",
        "|---|---:|---:|---:|",
    ]
    for name in (*NAMED, None):
        ours = [_mean(own, data, name or best_of_ours(own, data, e), e) for own, data, e in cells]
        leads = [rival - own for rival, own in zip(rivals, ours, strict=True)]
        level, far = sum(each <= 0 for each in leads), sum(each >= CLOSE for each in leads)
        label = name or f"the best of our {len(OURS)} rows in each column"
        lines.append(f"| {label} | {level} | {len(leads) - level - far} | {far} |")
    return "\n".join(lines)


def _drawn(rows: list[Tree]) -> list[tuple[list[Tree], str]]:
    """Rows of the model that is drawn, and the data set, for each data set."""
    return [([r for r in rows if r["model"] == model], data) for model, data in _shown(rows)]


def _shown(rows: list[Tree]) -> list[tuple[str, str]]:
    """Data sets of the summary, each with the model that is drawn."""
    found = {(r["model"], r["data"]) for r in rows}
    return [(model, data) for data in SCORES for model in DRAWN if (model, data) in found]


def summary(rows: list[Tree]) -> str:
    """Means of ours at each trust beside the best rival, whose name is told, as Markdown."""
    titles = ["FedAvg", "ours: nobody trusted", "ours: sum", "ours: full sum"]
    titles += ["ours: best", "best rival", "its name", "best of one trusted place"]
    lines = ["| | ε | " + " | ".join(titles) + " |", "|---|---:|---:|---:|---:|---:|---:|---:|---|---:|"]
    for own, data in _drawn(rows):
        for epsilon in (e for e in SHOWN if e in _epsilons(own, data)):
            rival, compared = best_rival(own, data, epsilon), (*DEFAULTS, best_of_ours(own, data, epsilon))
            free, *means = (_mean(own, data, name, epsilon) for name in ("fedavg", *compared, rival))
            place = max(_mean(own, data, name, epsilon) for name in TRUSTED)
            cells = [_plain_cell(free), *(_plain_cell(mean, max(means)) for mean in means), rival, _plain_cell(place)]
            lines.append(f"| {data} | {epsilon:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _plain_cell(mean: float, top: float | None = None) -> str:
    """What is as good as the best, as far as one digit tells, is bold."""
    shown = f"{mean:.1f}" if mean else "–"
    return f"**{shown}**" if top and shown == f"{top:.1f}" else shown


def ahead(rows: list[Tree]) -> str:
    """Cells in which a rival's mean is above all of ours by at least CLOSE, with the best rival, as Markdown."""
    lines = []
    for own, data in _drawn(rows):
        for epsilon in (e for e in judged(own, data) if lead(own, data, e) >= CLOSE):
            best = best_rival(own, data, epsilon)
            lines += [f"- {line}" for line in behind(own, data, [epsilon]) if f": {best} +" in line]
    return "\n".join(lines) or "In no cell."


def picture(rows: list[Tree], data: str, path: Path) -> None:
    """Scores by ε, one line for each method of LINES: from the constant answer on, and near FedAvg."""
    own: list[dict[str, Any]] = [r for r in rows if r["data"] == data]
    free = statistics.mean(r["score"] for r in own if not r["epsilon"])
    constant = statistics.mean(r["constant"] for r in own)
    drawn = [{**r, "method": n} for n in LINES for r in own if r["method"] == n]
    starts = [r["start"] for r in own if "start" in r]
    lowest = {"public start": statistics.mean(starts)} if starts else {"constant answer": constant}
    worst = min([statistics.mean(scores(own, data, r["method"], r["epsilon"])) for r in drawn] or [free])
    levels = {"FedAvg, last layer" if starts else "FedAvg, no privacy": free, **yardsticks(data)}
    highest = max(levels.values())
    whole = _panel(drawn, data, [min(*lowest.values(), worst) - 1, highest + 2], 210, {**levels, **lowest})
    near = _panel(drawn, data, [free - NEAR, highest + NEAR / 6], 260, levels)
    whole, near = whole.properties(title=data), near.properties(title=f"the last {NEAR:g} points")
    dressed = draw._dressed(alt.vconcat(whole, near)).configure_axis(
        labelFontSize=14, titleFontSize=14, gridColor="#eeeeee", domainColor="#999999", tickColor="#999999"
    )
    dressed.configure_legend(labelFontSize=14).configure_title(fontSize=15, anchor="start").save(path)


def yardsticks(data: str) -> dict[str, float]:
    """FedAvg of a whole model, where it was run beside that of the last layer."""
    free = [r["accuracy"] for r in trust_cases.read(WHOLE) if data == "digits" and "proved" not in r]
    return {"FedAvg, whole model": 100 * max(free)} if free else {}


def _panel(drawn: list[dict[str, Any]], data: str, domain: list[float], height: int, lines: Mapping[str, float]) -> Any:
    names = list(LINES)
    legend = alt.Legend(
        orient="bottom", columns=2, symbolSize=130, symbolStrokeWidth=2.5, symbolDash=[1, 0], labelLimit=260
    )
    colours, shapes, dashes = ([look[part] for look in LINES.values()] for part in range(3))
    across = alt.X("epsilon:Q", title="ε of one person, proved (log scale)",
                   scale=alt.Scale(type="log", domain=[0.45, 9]), axis=alt.Axis(values=list(EPSILONS)))  # fmt: skip
    # One scale for every layer: the lines of levels would bring a zero of their own.
    scale = alt.Scale(domain=domain, nice=False, zero=False)
    down, level = alt.Y("mean(score):Q", title=f"{_name(data)}, %", scale=scale), alt.Y("y:Q", scale=scale)
    colour = alt.Color("method:N", title=None, scale=alt.Scale(domain=names, range=colours), legend=legend)
    dash = alt.StrokeDash("method:N", scale=alt.Scale(domain=names, range=dashes), legend=None)
    shape = alt.Shape("method:N", title=None, scale=alt.Scale(domain=names, range=shapes), legend=legend)
    base = alt.Chart(alt.Data(values=drawn)).encode(x=across, y=down, color=colour)
    line = base.mark_line(strokeWidth=2.5, clip=True).encode(strokeDash=dash)
    point = base.mark_point(size=90, filled=False, strokeWidth=2.2, strokeDash=[1, 0], clip=True).encode(shape=shape)
    levels = alt.Data(values=[{"y": height} for height in lines.values()])
    rule = alt.Chart(levels).mark_rule(strokeDash=[2, 3], color="#555555").encode(y=level)
    points = (domain[1] - domain[0]) / height  # of a score, for each pixel
    below = {name: each < max(lines.values()) and (each - domain[0]) / points > ROOM for name, each in lines.items()}
    words = [_label(*each, level, 4 + 190 * (place % 2), below[each[0]]) for place, each in enumerate(lines.items())]
    return alt.layer(rule, line, point, *words).properties(width=380, height=height)


def _label(words: str, height: float, level: Any, across: int, below: bool) -> Any:
    """The name of a level; neighbours stand side by side, since their heights may be close."""
    own = alt.Chart(alt.Data(values=[{"y": height, "words": words}]))
    text = own.mark_text(align="left", dy=10 if below else -8, x=across, fontSize=13, color="#555555")
    return text.encode(y=level, text="words:N")


def tables(rows: list[Tree], model: str) -> str:
    """All tables of a model, each with its picture where there is one."""
    own, shown = [r for r in rows if r["model"] == model], []
    for data in (name for name in SCORES if any(r["data"] == name for r in own)):
        if model in DRAWN:
            shown.append(f'![{data}: {_name(data)} by ε](images/benchmark_{data}.svg){{ width="520" }}')
        shown.append(table(own, data))
    return "\n\n".join(shown)


def renewed(page: str, rows: list[Tree]) -> str:
    """The page with the tables of these rows."""
    parts = {model: tables(rows, model) for model in (*MODELS, HEAD)}
    parts |= {
        "summary": summary(rows),
        "like by like": like_by_like(rows),
        "ahead": ahead(rows),
        "counts": counts(rows),
    }
    for name, text in parts.items():
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = f"\n{rest}".partition(f"\n<!-- end of {name} -->")
        if mark and not end:
            raise DataError(f"In the page, '<!-- {name} -->' has no '<!-- end of {name} -->'.")
        if mark:
            page = f"{before}{mark}{text}{end}{after}"
    return page


def show(asked: argparse.Namespace) -> None:
    """Print what is behind; draw the pictures and renew the tables of the page, or print them."""
    rows = trust_cases.kept(asked.results)
    if asked.results.resolve() == RESULTS and not (asked.page or asked.images):
        asked.page, asked.images = PAGE, IMAGES
    page = asked.page and asked.page.read_text()
    for model in (*MODELS, HEAD):
        own = [r for r in rows if r["model"] == model]
        for data in (name for name in SCORES if any(r["data"] == name for r in own)):
            print(*(f"{model}, {line}" for line in behind(own, data)), sep="\n")
            if not page:
                print(table(own, data))
            free = any(r["data"] == data and r["method"] == "fedavg" for r in own)
            if asked.images and model in DRAWN and not free:
                print(f"{model}, {data}: no picture without a row of fedavg")
            elif asked.images and model in DRAWN:
                asked.images.mkdir(parents=True, exist_ok=True)
                picture(own, data, asked.images / f"benchmark_{data}.svg")
    for claimed in EPSILONS:
        print(f"NAIVE and DP-FedAvg with half the noise: claimed {claimed:g}, proved {proved(claimed, DELTA, 2):.3g}")
    print(f"{len(rows)} rows, {sum(r['seconds'] for r in rows) / 60:.1f} minutes of processor time")
    if page:
        asked.page.write_text(renewed(page, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--page", type=Path, help="the page to renew; by default docs/benchmark.md, of the results on record"
    )
    parser.add_argument(
        "--images", type=Path, help="where pictures go; by default docs/images, of the results on record"
    )
    asked = parser.parse_args()
    if asked.page and not asked.page.is_file():
        parser.error(f"there is no page '{asked.page}'")
    show(asked)


if __name__ == "__main__":
    record.start(main)
