"""One self-contained page: no address outside of it is ever asked for. Works offline, in light and dark, on a phone."""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

import vl_convert

from wholegrain.report.figures import Figure, figures
from wholegrain.report.run_reader import RunRecord
from wholegrain.report.wording import conditions, number, promise

GLOBAL = "window.vegaEmbed = vegaEmbed;"


def page(runs: list[RunRecord], *, live: str | None = None) -> str:
    """The report on these runs as HTML; a live one asks its own server whether its stamp is another than `live` now."""
    drawn = list(figures(runs))
    title = f"wholegrain: {runs[0].name}" if len(runs) == 1 else f"wholegrain: {len(runs)} runs compared"
    parts = [_comparison(runs)] if len(runs) > 1 else []
    parts += [_promises(run, len(runs) > 1) for run in runs]
    parts += [_figures(drawn)]
    parts += [_record(run, len(runs) > 1) for run in runs]
    specs = {figure.key: figure.spec() for figure in drawn}
    return f"""<!doctype html>
<html lang="en"{f' data-live="{live}"' if live else ""}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{_asset("report.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header><h1>{escape(title)}</h1>{_badges(runs)}</header>
<main id="main">
{"".join(parts)}
</main>
<footer><p>Written by wholegrain. The page holds all that it shows and asks no other machine for anything.</p></footer>
<script type="application/json" id="charts">{_inert(specs)}</script>
<script type="module">{_library()}
{_asset("report.js")}</script>
</body>
</html>
"""


def _badges(runs: list[RunRecord]) -> str:
    if len(runs) > 1:
        return ""
    run = runs[0]
    standing = run.promised["standing"]
    look = "simulation" if run.simulation else standing.lower()
    found = [f'<span class="badge {look}">{standing}</span>']
    if run.claimed is not None:
        found.append('<span class="badge claimed">CLAIMED beside it</span>')
    if run.simulation:
        found.append('<span class="badge simulation">simulation</span>')
    if not run.finished:
        found.append('<span class="badge running">not at its end</span>')
    return f'<p class="badges">{"".join(found)}</p>'


def _comparison(runs: list[RunRecord]) -> str:
    heads = (
        "run",
        "policy",
        "unit",
        "ε spent",
        "ε planned",
        "ε claimed",
        "δ",
        "standing",
        "rounds",
        "accuracy (not private)",
    )
    rows = [
        (
            run.name,
            run.plan["policy"],
            run.plan["unit"],
            number(run.promised["epsilon"]),
            number(run.planned["epsilon"]),
            number(run.claimed["epsilon"]) if run.claimed else "–",
            f"{run.promised['delta']:g}",
            run.promised["standing"],
            f"{len(run.rounds)} of {run.plan['rounds']}",
            _accuracy(run),
        )
        for run in runs
    ]
    return f"<section><h2>Runs</h2>{_table(heads, rows)}</section>"


def _accuracy(run: RunRecord) -> str:
    scores = run.rounds[-1]["scores (not private)"] if run.rounds else {}
    return f"{scores['test']['accuracy']:.2%}" if "test" in scores else "–"


def _promises(run: RunRecord, several: bool) -> str:
    heading = f"What is promised by {escape(run.name)}" if several else "What is promised"
    terms = "".join(f"<dt>{escape(term)}</dt><dd>{escape(words)}</dd>" for term, words in conditions(run))
    rows = [
        (
            g["unit"],
            number(g["epsilon"]),
            number(planned["epsilon"]),
            f"{g['delta']:g}",
            g["standing"],
            g["accountant"],
            g["because"],
        )
        for g, planned in zip(run.spent, run.plan["guarantees"], strict=True)
    ]
    table = _table(("unit", "ε spent", "ε planned", "δ", "standing", "accountant", "because"), rows)
    body = (
        f'<p class="promise">{escape(promise(run))}</p><dl>{terms}</dl><h3>Proved and claimed, side by side</h3>{table}'
    )
    if several:
        return f"<section><details><summary>{heading}</summary>{body}</details></section>"
    return f"<section><h2>{heading}</h2>{body}</section>"


def _figures(drawn: list[Figure]) -> str:
    return f'<section><h2>Over the rounds</h2><div class="figures">{"".join(map(_figure, drawn))}</div></section>'


def _figure(figure: Figure) -> str:
    rows = [[_cell(value) for value in row] for row in figure.rows]
    return (
        f'<figure id="figure-{figure.key}"><figcaption>{escape(figure.title)}</figcaption>'
        f'<div class="chart" data-chart="{figure.key}" role="img" aria-label="{escape(figure.alternative)}"></div>'
        f"<details><summary>Numbers</summary>{_table(figure.columns, rows)}</details></figure>"
    )


def _record(run: RunRecord, several: bool) -> str:
    heading = f"Record of {escape(run.name)}" if several else "Record"
    mark = "whole" if run.ledger.whole else "broken"
    faults = [
        (done["round"], fault["silo"], fault["reason"]) for done in run.rounds for fault in done.get("faults", [])
    ]
    lost = f"<h3>Faults</h3>{_table(('round', 'silo', 'what'), faults)}" if faults else ""
    silos = [
        (s["name"], s["items"], s["subjects"], s["items_per_subject"] or "–", s["steps"], _cell(s["noise_multiplier"]))
        for s in run.plan["silos"]
    ]
    identity = [(key, run.identity.get(key, "–")) for key in ("run", "wholegrain", "spec")]
    spec = json.dumps(run.spec.model_dump(mode="json"), indent=2, ensure_ascii=False)
    return (
        f"<section><h2>{heading}</h2>"
        f'<p>Ledger: <strong class="{mark}">{mark}</strong>; '
        f'<span class="hash">{escape(run.ledger.sentence)}</span></p>'
        f"{lost}<details><summary>Silos</summary>"
        f"{_table(('silo', 'items', 'subjects', 'K', 'steps', 'noise multiplier'), silos)}</details>"
        f"<details><summary>Identity and versions</summary>{_table(('what', ''), identity)}</details>"
        f"<details><summary>The exact spec</summary><pre>{escape(spec)}</pre></details></section>"
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f'<th scope="col">{escape(str(cell))}</th>' for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]:.4g} … {value[-1]:.4g}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _inert(content: Any) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed in one piece, from the installed package."""
    bundle: str = vl_convert.javascript_bundle(GLOBAL)
    return bundle.replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return resources.files("wholegrain.report").joinpath("assets", name).read_text(encoding="utf-8")
