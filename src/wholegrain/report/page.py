"""One self-contained page: no address outside of it is ever asked for. Works offline, in light and dark, on a phone."""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from wholegrain.report import advice, comparison, glance, tables, wording
from wholegrain.report.figures import Figure, figures, multiples
from wholegrain.report.run_reader import RunRecord
from wholegrain.report.wording import plural

GLOBAL = "window.vegaEmbed = vegaEmbed;"
WORDS = (
    wording.promise,
    wording.conditions,
    wording.unpaid_words,
    glance.badges,
    glance.kinds,
    glance.glance,
    glance.budget_alarm,
    glance.chosen_by_score,
    glance.scored_by_sizes,
    advice.advice,
    advice.not_covered,
    advice.trust_rows,
    comparison.comparison_heads,
    comparison.comparison_rows,
    comparison.total_rows,
    tables.guarantee_rows,
    tables.reasons,
    tables.item_note,
    tables.number_rows,
    tables.score_heads,
    tables.score_rows,
    tables.fault_rows,
    tables.silo_heads,
    tables.silo_rows,
    tables.identity_rows,
    tables.spec_text,
    tables.private_rows,
    tables.origin_rows,
)


def page(runs: Sequence[RunRecord], *, live: str | None = None, waiting: Sequence[str] = ()) -> str:
    """The report on these runs as HTML; a live one asks its own server whether its stamp is another than `live` now.

    `waiting` names folders in which a run is still to begin.
    """
    return template("page.html").render(
        **_content(runs, waiting),
        live=live,
        policy=_policy(live is not None),
        style=Markup(asset("report.css")),
        script=Markup(_script()),
    )


def content(runs: Sequence[RunRecord], waiting: Sequence[str] = ()) -> str:
    """What changes of a live page while its runs go on."""
    return template("content.html").render(**_content(runs, waiting))


def _content(runs: Sequence[RunRecord], waiting: Sequence[str]) -> dict[str, Any]:
    drawn, small = list(figures(runs)), list(multiples(runs))
    return {
        "title": _title(runs),
        "runs": runs,
        "waiting": waiting,
        "several": len(runs) > 1,
        "figures": drawn,
        "multiples": small,
        "total_heads": comparison.TOTAL_HEADS,
        "charts": _inert({figure.key: _spec_with_description(figure) for figure in (*drawn, *small)}),
    }


def _title(runs: Sequence[RunRecord]) -> str:
    if not runs:
        return "wholegrain: waiting for a run"
    return f"wholegrain: {plural(len(runs), 'run')} compared" if len(runs) > 1 else f"wholegrain: {runs[0].name}"


def _spec_with_description(figure: Figure) -> dict[str, Any]:
    return {**figure.spec(), "description": figure.alternative}


@cache
def template(name: str) -> Template:
    """A page's template. What it is given is escaped, unless it is marked as markup: names of runs are anybody's."""
    environment = Environment(
        loader=PackageLoader("wholegrain.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {filter.__name__: filter for filter in WORDS}
    return environment.get_template(name)


def _inert(content: Any) -> Markup:
    """JSON that cannot end the element it stands in."""
    return Markup(json.dumps(content, ensure_ascii=False).replace("<", "\\u003c"))


@cache
def _script() -> str:
    """Vega, Vega-Lite and Vega-Embed in one piece, from the installed package, and what draws the charts with them."""
    library: str = vl_convert.javascript_bundle(GLOBAL)
    return library.replace("</script", "<\\/script") + "\n" + asset("report.js")


@cache
def _policy(live: bool) -> str:
    """The Content-Security-Policy: this one script runs, by its digest, and nothing is loaded from anywhere.

    Vega styles its charts as it draws them. A live page asks its own server whether there is something new.
    """
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    asks = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:;"
        f" connect-src {asks}; base-uri 'none'; form-action 'none'"
    )


def asset(name: str) -> str:
    """A file that is part of every page."""
    return resources.files("wholegrain.report").joinpath("assets", name).read_text(encoding="utf-8")
