"""The charts of a report, as Vega-Lite. Each has a title, words for those who do not see it, and its numbers."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from wholegrain.federation.private_score import ALL as ALL_SILOS
from wholegrain.federation.private_score import Estimate
from wholegrain.privacy.tradeoff_curve import AttackView
from wholegrain.report.run_reader import RunRecord
from wholegrain.runs.data_description import DataCounts, Histogram

Rows = tuple[tuple[Any, ...], ...]
WIDTH, HEIGHT, SMALL = "container", 240, 120
# After Okabe and Ito: apart for everybody; the pale ones are darker, to be seen on light ground (report.js: on dark).
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#c2699b", "#b57d00", "#3c93c8", "#665800", "#7f7f7f"]

DASHES = [[1, 0], [8, 3], [2, 2], [10, 3, 2, 3], [5, 2], [1, 3], [12, 4], [3, 6]]
"""One for each colour."""

STROKES = {"symbolType": "stroke", "symbolSize": 400, "symbolStrokeWidth": 2}
"""Lines in a legend, as they are drawn."""


@dataclass(frozen=True)
class Figure:
    """One chart, what it shows in words, and the rows behind it."""

    key: str
    title: str
    alternative: str
    columns: tuple[str, ...]
    rows: Rows
    chart: Any

    def spec(self) -> dict[str, Any]:
        """The chart as Vega-Lite, with its data inside."""
        spec: dict[str, Any] = self.chart.to_dict()
        return {**spec, "usermeta": {"longest_label": self._longest_label()}}

    def _longest_label(self) -> int:
        """Letters of the longest name in a legend: the page sets as many beside each other as its width holds."""
        named = [at for at, column in enumerate(self.columns) if column in ("run", "part")]
        return max((len(str(row[at])) for row in self.rows for at in named), default=0)


def figures(runs: Sequence[RunRecord]) -> Iterator[Figure]:
    """All figures that these runs have numbers for; one point or one bar is a number, and not a figure."""
    for make in (_attacks, _scores, _budget_figure, _private_scores, _noise, _seconds, _counts):
        for figure in make(runs):
            along = figure.columns.index("round") if "round" in figure.columns else -2
            if len({row[along] for row in figure.rows}) > 1:
                yield figure


def multiples(runs: Sequence[RunRecord]) -> Iterator[Figure]:
    """Of several runs, one small chart each, on one scale: score over rounds, with the others' in grey behind it."""
    if len(runs) < 2:
        return
    tracks = {run.name: _score_track(run) for run in runs}
    measures = {measure for measure, _ in tracks.values() if measure}
    if len(measures) != 1:
        return
    measure, columns = measures.pop(), ("run", "round", "score")
    rows = tuple((name, at, value) for name, (_, track) in tracks.items() for at, value in track)
    scale = alt.Scale(domain=[min(row[2] for row in rows), max(row[2] for row in rows)], nice=True)
    for number, run in enumerate(runs):
        own = tuple(row for row in rows if row[0] == run.name)
        if len(own) < 2:
            continue
        encoding: dict[str, Any] = {
            "x": alt.X("round:Q", axis=alt.Axis(values=_ticks(max(row[1] for row in rows)), format="d")),
            "y": alt.Y("score:Q", title=measure, scale=scale, axis=alt.Axis(tickCount=4)),
        }
        behind = alt.Chart(_data(columns, rows)).mark_line(color="#9a9a9a", opacity=0.45, strokeWidth=1)
        front = alt.Chart(_data(columns, own)).mark_line(color=COLOURS[number % len(COLOURS)], strokeWidth=3)
        chart = alt.layer(behind.encode(**encoding, detail="run:N"), front.encode(**encoding))
        told = f"{measure} of {run.name} over rounds: from {own[0][2]:.4g} to {own[-1][2]:.4g}; other runs in grey."
        chart = chart.properties(width=WIDTH, height=SMALL)
        yield Figure(f"multiple-{number}", run.name, told, columns, own, chart)


def _score_track(run: RunRecord) -> tuple[str, list[tuple[int, float]]]:
    """The headline of the test part, round by round."""
    scored = [(done.round + 1, done.scores["test"].headline) for done in run.rounds if "test" in done.scores]
    return scored[-1][1][0] if scored else "", [(at, value) for at, (_, value) in scored if math.isfinite(value)]


def _scores(runs: Sequence[RunRecord]) -> Iterator[Figure]:
    scored = [score for run in runs for done in run.rounds[-1:] for score in done.scores.values()]
    headlines = dict.fromkeys(score.headline[0] for score in scored)
    for measure in (*headlines, "loss"):
        rows = tuple(
            (run.name, part, done.round + 1, value)
            for run in runs
            for done in run.rounds
            for part, score in done.scores.items()
            if "/" not in part
            and math.isfinite(value := score.loss if measure == "loss" else score.metrics.get(measure, math.nan))
        )
        if rows:
            title = f"{measure.capitalize()} over rounds (not private)"
            yield _lines(measure, title, _names(runs), ("run", "part", "round", measure), rows, measure)


def _budget_figure(runs: Sequence[RunRecord]) -> Iterator[Figure]:
    rows = tuple(
        (run.name, "ε spent", done.round + 1, done.epsilon)
        for run in runs
        for done in run.rounds
        if math.isfinite(done.epsilon)
    )
    budgets = {run.spec.privacy.epsilon for run in runs if run.spec.privacy.epsilon is not None}
    if rows:
        columns = ("run", "part", "round", "ε")
        figure = _lines("epsilon", "ε spent over rounds", _names(runs), columns, rows, "ε", zero=True)
        if len(budgets) == 1:
            rule = alt.Chart(_data(("ε",), ((budgets.pop(),),))).mark_rule(strokeDash=[6, 4], color="#888888")
            chart = alt.layer(figure.chart, rule.encode(y=alt.Y("ε:Q")))
            figure = Figure(**{**vars(figure), "chart": chart.properties(width=WIDTH, height=HEIGHT)})
        yield figure


def _private_scores(runs: Sequence[RunRecord]) -> Iterator[Figure]:
    """What was paid for, with the interval of its noise."""
    measures = dict.fromkeys(name for run in runs for done in run.rounds for name in done.private.get(ALL_SILOS, {}))
    for measure in measures:
        rows = tuple(
            (run.name, part, done.round + 1, value)
            for run in runs
            for done in run.rounds
            if measure in done.private.get(ALL_SILOS, {})
            for part, value in _interval(done.private[ALL_SILOS][measure])
            if math.isfinite(value)
        )
        if rows:
            title = f"Private {measure} over rounds (paid; 95 % for noise)"
            yield _lines(f"private_{measure}", title, _names(runs), ("run", "part", "round", measure), rows, measure)


def _interval(found: Estimate) -> tuple[tuple[str, float], ...]:
    return ("estimate", found.value), ("low", found.value - found.noise), ("high", found.value + found.noise)


def _attacks(runs: Sequence[RunRecord]) -> Iterator[Figure]:
    """The fewest misses of an attacker at each number of false alarms: below the line is out of reach."""
    views = [(run, view) for run in runs for view in run.attacks if len(runs) == 1 or view.unit == run.plan.unit]
    rows = tuple(
        (run.name, view.unit, alarms, misses)
        for run, view in views
        for alarms, misses in zip(view.false_alarms, view.misses, strict=True)
    )
    if not rows:
        return
    columns, units = ("run", "part", "false alarms", "misses"), [view.unit for _, view in views]
    encoding: dict[str, Any] = {
        "x": alt.X("false alarms:Q", scale=alt.Scale(domain=[0, 1])),
        "y": alt.Y("misses:Q", scale=alt.Scale(domain=[0, 1])),
        **(_told_apart("run", _names(runs), rows) if len(runs) > 1 else _told_apart("part", units, rows)),
    }
    curves = alt.Chart(_data(columns, rows)).mark_line().encode(**encoding)
    blind = alt.Chart(_data(("false alarms", "misses"), ((0, 1), (1, 0)))).mark_line(color="#8a8a8a", strokeWidth=1)
    chart = alt.layer(blind.encode(x=encoding["x"], y=encoding["y"]), curves).properties(width=WIDTH, height=HEIGHT)
    title = "An attacker's fewest misses at each rate of false alarms (f-DP; grey: blind guessing)"
    told = f"{title}. At 1% of false alarms, the fewest misses are " + "; ".join(
        f"{view.unit} of {run.name}: {_misses_at(view, 0.01):.1%}" for run, view in views
    )
    yield Figure("tradeoff", title, f"{told}.", columns, rows, chart)


def _misses_at(view: AttackView, alarms: float) -> float:
    return next(misses for rate, misses in zip(view.false_alarms, view.misses, strict=True) if rate >= alarms)


def _noise(runs: Sequence[RunRecord]) -> Iterator[Figure]:
    """How far parameters moved in a round, beside how far noise alone would have moved them; of several, the ratio."""
    if len(runs) > 1:
        yield from _noise_ratios(runs)
        return
    rows = tuple(
        (run.name, part, done.round + 1, distance)
        for run in runs
        for done in run.rounds
        for part, distance in (("moved", done.moved), ("noise alone (expected)", done.noise))
        if distance is not None
    )
    if rows:
        title = "Movement of the parameters in a round, and of noise alone"
        columns = ("run", "part", "round", "distance")
        yield _lines("noise", title, _names(runs), columns, rows, "distance", zero=True)


def _noise_ratios(runs: Sequence[RunRecord]) -> Iterator[Figure]:
    rows = tuple(
        (run.name, "moved", done.round + 1, done.moved / done.noise)
        for run in runs
        for done in run.rounds
        if done.moved is not None and done.noise
    )
    if rows:
        title = "Movement of the parameters in a round, as a multiple of noise alone"
        columns = ("run", "part", "round", "multiple")
        yield _lines("noise", title, _names(runs), columns, rows, "multiple", zero=True)


def _seconds(runs: Sequence[RunRecord]) -> Iterator[Figure]:
    rows = tuple(
        (run.name, "seconds", done.round + 1, done.seconds) for run in runs for done in run.rounds if done.seconds
    )
    if rows:  # a release tells no times
        columns = ("run", "part", "round", "seconds")
        yield _lines("seconds", "Seconds of each round", _names(runs), columns, rows, "seconds", zero=True)


def _counts(runs: Sequence[RunRecord]) -> Iterator[Figure]:
    """Histograms of raw data; only simulations keep them."""
    histograms: tuple[tuple[str, Callable[[DataCounts], Histogram], str, str, str], ...] = (
        ("items_per_subject", lambda c: c.items_per_subject, "Records of a person (not private)", "records", "people"),
        ("silos_per_subject", lambda c: c.silos_per_subject, "Silos of a person (not private)", "silos", "people"),
        ("groups", _largest_groups, "Largest group of a person in a batch (not private)", "records", "batches"),
    )
    for key, histogram, title, of, counted in histograms:
        rows = tuple(
            (run.name, value, count)
            for run in runs
            if run.counts is not None
            for value, count in histogram(run.counts).items()
        )
        if rows:
            yield _bars(key, title, _names(runs), ("run", of, counted), rows)


def _largest_groups(counts: DataCounts) -> Histogram:
    return {} if counts.batches is None else counts.batches.largest_group


def _names(runs: Sequence[RunRecord]) -> list[str]:
    return [run.name for run in runs]


def _lines(
    key: str,
    title: str,
    runs: list[str],
    columns: tuple[str, ...],
    rows: Rows,
    y: str,
    *,
    zero: bool = False,
) -> Figure:
    parts = {row[1] for row in rows}
    encoding: dict[str, Any] = {
        "x": alt.X("round:Q", title="round", axis=alt.Axis(values=_ticks(max(row[2] for row in rows)), format="d")),
        "y": alt.Y(f"{y}:Q", title=y, scale=alt.Scale(zero=zero)),
        "tooltip": [alt.Tooltip(f"{column}:N" if column in ("run", "part") else f"{column}:Q") for column in columns],
    }
    if len(runs) > 1 and len(parts) > 1:
        encoding["color"] = _by_run(runs, rows, **STROKES)
        # Above the chart: beside the runs it would not fit a phone.
        above = _legend(**STROKES, orient="top", symbolStrokeColor="#888888", columns=1)
        encoding["strokeDash"] = alt.StrokeDash("part:N", legend=above)
    elif len(runs) > 1:
        encoding |= _told_apart("run", runs, rows)
    elif len(parts) > 1:
        encoding |= _told_apart("part", list(dict.fromkeys(row[1] for row in rows)), rows)
    # Points in a layer of their own: as part of the lines they would take the strokes from the legend.
    base = alt.Chart(_data(columns, rows))
    lines = base.mark_line(color=COLOURS[0]).encode(**encoding)
    encoding.pop("strokeDash", None)
    dots = base.mark_circle(size=24, opacity=1, color=COLOURS[0]).encode(**encoding)
    chart = alt.layer(lines, dots).properties(width=WIDTH, height=HEIGHT)
    return Figure(key, title, _describe_lines(title, y, rows), columns, rows, chart)


def _ticks(rounds: int) -> list[int]:
    """Whole rounds to be marked, about eight of them."""
    step = next(size for power in range(9) for size in (10**power, 2 * 10**power, 5 * 10**power) if rounds <= 8 * size)
    return [1, *range(step, rounds + 1, step)] if step > 2 else list(range(1, rounds + 1, step))


def _data(columns: tuple[str, ...], rows: Rows) -> alt.InlineData:
    """Rows as Vega-Lite has them inline."""
    return alt.InlineData([dict(zip(columns, row, strict=True)) for row in rows])


def _by_run(runs: list[str], rows: Rows, **look: Any) -> alt.Color:
    """A run has the same colour in every chart, also in one that lacks some of the others."""
    legend = _legend(values=_drawn(runs, rows), **look)
    return alt.Color("run:N", scale=alt.Scale(domain=runs, range=COLOURS), legend=legend)


def _told_apart(field: str, names: list[str], rows: Rows) -> dict[str, Any]:
    """A colour and a pattern of dashes for each line: without colours, and where one lies on another, both are seen."""
    legend = _legend(values=_drawn(names, rows, 1 if field == "part" else 0), **STROKES)
    return {
        "color": alt.Color(f"{field}:N", scale=alt.Scale(domain=names, range=COLOURS), legend=legend),
        "strokeDash": alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=names, range=DASHES), legend=legend),
    }


def _drawn(names: list[str], rows: Rows, column: int = 0) -> list[str]:
    """Those that a chart has something of: its legend names no others."""
    found = {row[column] for row in rows}
    return [name for name in names if name in found]


def _legend(**look: Any) -> alt.Legend:
    return alt.Legend(**{"orient": "bottom", "direction": "horizontal", "title": None, "labelLimit": 220, **look})


def _bars(key: str, title: str, runs: list[str], columns: tuple[str, str, str], rows: Rows) -> Figure:
    _, of, counted = columns
    encoding: dict[str, Any] = {
        "x": alt.X(f"{of}:O", title=of, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        "y": alt.Y(f"{counted}:Q", title=counted),
        "tooltip": [alt.Tooltip(f"{column}:N") for column in columns],
    }
    if len(runs) > 1:
        encoding |= {"xOffset": alt.XOffset("run:N", sort=runs), "color": _by_run(runs, rows)}
    chart = (
        alt.Chart(_data(columns, rows))
        .mark_bar(color=COLOURS[0])
        .encode(**encoding)
        .properties(width=WIDTH, height=HEIGHT)
    )
    most = max(rows, key=lambda row: row[2])
    told = f"{title}: {len(rows)} bars; most often {most[1]} {of} ({most[2]} {counted})."
    return Figure(key, title, told, columns, rows, chart)


def _describe_lines(title: str, y: str, rows: Rows) -> str:
    """First and last value of each line, for those who do not see the chart."""
    lines: dict[tuple[str, str], list[float]] = {}
    for run, part, _, value in rows:
        lines.setdefault((run, part), []).append(value)
    each = [f"{run}, {part}: from {seen[0]:.4g} to {seen[-1]:.4g}" for (run, part), seen in lines.items()]
    return f"{title}. {y} {'; '.join(each)}."
