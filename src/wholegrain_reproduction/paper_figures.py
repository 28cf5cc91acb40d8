"""The paper's figures from what was measured, and two of our own: the same runs beside sound ones, groups over α."""

import math
from collections.abc import Iterator
from typing import Any

import altair as alt

from wholegrain.report.figures import COLOURS, Figure
from wholegrain_reproduction.claims import ALPHAS, BY_ALPHA
from wholegrain_reproduction.group_sizes import GroupSizes
from wholegrain_reproduction.recipes import Kind
from wholegrain_reproduction.results import Results
from wholegrain_reproduction.trials import ALGORITHM_NAMES, PAPER_ALGORITHMS

ORDER = [ALGORITHM_NAMES[name] for name in (*PAPER_ALGORITHMS, "subject_dp")]
KIND_LABELS = {
    Kind.PRINTED: "as printed",
    Kind.TRUE: "sound, at the same true ε",
    Kind.CLAIMED: "sound, at ε = 4 for a subject",
}
Rows = tuple[tuple[Any, ...], ...]


def fig1(results: Results, recipe: str, data: str) -> Iterator[Figure]:
    """Accuracy and loss over rounds of the printed algorithms, and how sound ones end [Marathe, Fig. 1]."""
    for measure in ("accuracy", "loss"):
        rows = tuple(
            (ALGORITHM_NAMES[name], number, getattr(each, measure))
            for name in PAPER_ALGORITHMS
            if (result := results.result(recipe, name)) is not None
            for number, each in enumerate(result.scores, 1)
            if math.isfinite(getattr(each, measure))
        )
        if rows:
            title = f"Test {measure} over rounds, as printed: {data}"
            yield _line_chart(f"fig1-{recipe}-{measure}", title, "round", measure, rows, log=measure == "loss")
    yield from _sound_comparison(results, recipe, data)


def fig2(sizes: GroupSizes, key: str, title: str) -> Figure:
    """Batches by their largest group [Marathe, Fig. 2]."""
    rows = tuple((size, count) for size, count in sorted(sizes.batches.items()))
    encoding: dict[str, Any] = {
        "x": alt.X("size:O", title="items of the largest subject group", axis=alt.Axis(labelAngle=0)),
        "y": alt.Y("batches:Q", title="mini-batches"),
    }
    chart = alt.Chart(_data(("size", "batches"), rows)).mark_bar(color=COLOURS[0]).encode(**encoding)
    told = f"{title}. Most often {sizes.usual}, on average {sizes.mean:.2f}."
    return Figure(f"fig2-{key}", title, told, ("size", "batches"), rows, chart)


def fig3(results: Results, data: str) -> Iterator[Figure]:
    """Accuracy over α [Marathe, Fig. 3], and the group sizes that go with it."""
    tried = [(name, Kind.PRINTED) for name in PAPER_ALGORITHMS] + [("subject_dp", Kind.CLAIMED)]
    rows = tuple(
        (ALGORITHM_NAMES[name], alpha, found)
        for name, kind in tried
        for alpha in ALPHAS
        if (found := results.accuracy(BY_ALPHA, name, kind, f"alpha-{alpha}")) is not None
    )
    if rows:
        title = f"Test accuracy over α, as printed (SubjectDP: sound, ε = 4): {data}"
        yield _line_chart("fig3-accuracy", title, "α", "accuracy", rows, at=ALPHAS)
    yield from _group_growth(results, data)


def _group_growth(results: Results, data: str) -> Iterator[Figure]:
    here = [(data, results.groups.get(f"{BY_ALPHA}/alpha-{alpha}"), alpha) for alpha in ALPHAS]
    shape = [("FEMNIST's geometry, B = 512", each, each.alpha) for each in results.geometry if each.alpha]
    rows = tuple((name, alpha, sizes.mean) for name, sizes, alpha in (*shape, *here) if sizes is not None)
    if rows:
        title = "Average largest subject group of a batch, over α"
        yield _line_chart("fig3-groups", title, "α", "items", rows, at=ALPHAS)


def _sound_comparison(results: Results, recipe: str, data: str) -> Iterator[Figure]:
    rows = tuple(
        (ALGORITHM_NAMES[name], words, found)
        for kind, words in KIND_LABELS.items()
        for name in (*PAPER_ALGORITHMS, "subject_dp")
        if (found := results.accuracy(recipe, name, kind)) is not None
    )
    if not rows:
        return
    columns = ("algorithm", "run", "accuracy")
    encoding: dict[str, Any] = {
        "x": alt.X("algorithm:N", title=None, sort=ORDER, axis=alt.Axis(labelAngle=0)),
        "xOffset": alt.XOffset("run:N", sort=list(KIND_LABELS.values())),
        "y": alt.Y("accuracy:Q", title="accuracy after the last round"),
        "color": alt.Color("run:N", sort=list(KIND_LABELS.values()), scale=alt.Scale(range=COLOURS), legend=_legend()),
    }
    chart = alt.Chart(_data(columns, rows)).mark_bar().encode(**encoding)
    title = f"As printed, and sound: {data}"
    told = "; ".join(f"{name}, {words}: {found:.3f}" for name, words, found in rows)
    yield Figure(f"fig1-{recipe}-sound", title, f"{title}. {told}.", columns, rows, chart)


def _line_chart(
    key: str, title: str, x: str, y: str, rows: Rows, *, at: tuple[int, ...] = (), log: bool = False
) -> Figure:
    columns = ("line", x, y)
    scale = alt.Scale(type="log", nice=False) if at else alt.Scale()
    lines = list(dict.fromkeys(row[0] for row in rows))
    encoding: dict[str, Any] = {
        "x": alt.X(f"{x}:Q", title=x, scale=scale, axis=alt.Axis(format="d", values=list(at) or alt.Undefined)),
        "y": alt.Y(f"{y}:Q", title=y, scale=alt.Scale(type="log") if log else alt.Scale(zero=True)),
        "color": alt.Color("line:N", sort=lines, scale=alt.Scale(range=COLOURS), legend=_legend()),
    }
    chart = alt.Chart(_data(columns, rows)).mark_line(point={"size": 24}).encode(**encoding)
    ends = {row[0]: row[2] for row in rows}
    told = "; ".join(f"{name} ends at {value:.4g}" for name, value in ends.items())
    return Figure(key, title, f"{title}. {told}.", columns, rows, chart)


def _data(columns: tuple[str, ...], rows: Rows) -> alt.InlineData:
    return alt.InlineData([dict(zip(columns, row, strict=True)) for row in rows])


def _legend() -> alt.Legend:
    return alt.Legend(orient="bottom", title=None, columns=3, labelLimit=300)
