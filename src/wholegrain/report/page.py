"""One self-contained page: no address outside of it is ever asked for. Works offline, in light and dark, on a phone."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from wholegrain.report.figures import Figure, figures
from wholegrain.report.run_reader import RunRecord
from wholegrain.report.wording import conditions, number, promise, unpaid_words

GLOBAL = "window.vegaEmbed = vegaEmbed;"
COMPARISON = (
    "run",
    "policy",
    "unit",
    "ε spent",
    "ε planned",
    "ε claimed",
    "δ",
    "standing",
    "rounds",
    "score (not private)",
)
Rows = Iterator[tuple[object, ...]]


def page(runs: list[RunRecord], *, live: str | None = None) -> str:
    """The report on these runs as HTML; a live one asks its own server whether its stamp is another than `live` now."""
    drawn = list(figures(runs))
    several = len(runs) > 1
    return _template("page.html").render(
        title=f"wholegrain: {len(runs)} runs compared" if several else f"wholegrain: {runs[0].name}",
        runs=runs,
        several=several,
        live=live,
        figures=drawn,
        comparison_heads=COMPARISON,
        policy=_policy(live is not None),
        style=Markup(_asset("report.css")),
        charts=_inert({figure.key: figure.spec() for figure in drawn}),
        script=Markup(_script()),
    )


@cache
def _template(name: str) -> Template:
    # Whatever a template is given is escaped, unless it is marked as markup: names of runs and silos are anybody's.
    environment = Environment(
        loader=PackageLoader("wholegrain.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = (promise, conditions, unpaid_words)
    rows = (
        comparison_rows,
        guarantee_rows,
        number_rows,
        score_heads,
        score_rows,
        fault_rows,
        silo_rows,
        identity_rows,
        spec_text,
        private_rows,
        origin_rows,
    )
    environment.filters |= {filter.__name__: filter for filter in (*words, *rows)}
    return environment.get_template(name)


def comparison_rows(runs: Iterable[RunRecord]) -> Rows:
    """One row for each run that is compared."""
    for run in runs:
        yield (
            run.name,
            run.plan.policy,
            run.plan.unit,
            number(run.promise.epsilon),
            number(run.plan.promise.epsilon),
            number(run.plan.claim.epsilon) if run.plan.claim else "–",
            f"{run.promise.delta:g}",
            run.promise.standing,
            f"{len(run.rounds)} of {run.plan.rounds}",
            _headline(run),
        )


def _headline(run: RunRecord) -> str:
    scores = run.rounds[-1].scores if run.rounds else {}
    if "test" not in scores:
        return "–"
    name, value = scores["test"].headline
    return f"{value:.2%}" if name == "accuracy" else f"{name} {value:.4g}"


def score_heads(run: RunRecord) -> list[str]:
    """The measures that the final model was scored by; none where nothing was."""
    scores = run.summary.scores if run.summary else {}
    return ["items of", *next(iter(scores.values())).facts()] if scores else []


def score_rows(run: RunRecord) -> Rows:
    """The final model's scores by part, each beside those of the best constant answer."""
    if run.summary is None:
        return
    for part, own in run.summary.scores.items():
        for name, score in ((part, own), (f"{part}: constant answer", run.summary.constant.get(part))):
            if score is not None:
                yield (name, *(_cell(score.facts().get(head)) for head in score_heads(run)[1:]))


def private_rows(run: RunRecord) -> Rows:
    """The final model's private scores, of all silos together and of each."""
    for place, score in run.summary.private.items() if run.summary else ():
        for name, found in score.items():
            yield place, name, _cell(found.value), _cell(found.noise), _cell(found.both)


def origin_rows(run: RunRecord) -> Rows:
    """Every setting, its value, and where it comes from."""
    for place, origin in run.origins.items():
        section, key = place.split(".", 1)
        yield place, str(getattr(getattr(run.spec, section), key)), origin


def guarantee_rows(run: RunRecord) -> Rows:
    """What was spent of each guarantee, beside what was planned."""
    for found, planned in zip(run.spent, run.plan.guarantees, strict=True):
        epsilons = number(found.epsilon), number(planned.epsilon)
        yield (found.unit, *epsilons, f"{found.delta:g}", found.standing, found.accountant, found.because)


def number_rows(figure: Figure) -> Rows:
    """The numbers behind a figure."""
    for row in figure.rows:
        yield tuple(_cell(value) for value in row)


def fault_rows(run: RunRecord) -> list[tuple[object, ...]]:
    """Silos that gave nothing usable, round by round."""
    return [(done.round, fault.silo, fault.reason) for done in run.rounds for fault in done.faults]


def silo_rows(run: RunRecord) -> Rows:
    """What was planned for each silo."""
    for silo in run.plan.silos:
        bound = silo.items_per_subject or "–"
        yield silo.name, silo.items, silo.subjects, bound, silo.steps, _cell(silo.noise_multiplier)


def identity_rows(run: RunRecord) -> Rows:
    """Which run it is, and by which version."""
    yield "run", run.identity.run
    yield "wholegrain", run.identity.wholegrain or "–"
    yield "spec", run.identity.spec


def spec_text(run: RunRecord) -> str:
    """The spec as the folder has it."""
    return json.dumps(run.spec.model_dump(mode="json"), indent=2, ensure_ascii=False)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]:.4g} … {value[-1]:.4g}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _inert(content: Any) -> Markup:
    """JSON that cannot end the element it stands in."""
    return Markup(json.dumps(content, ensure_ascii=False).replace("<", "\\u003c"))


@cache
def _script() -> str:
    """Vega, Vega-Lite and Vega-Embed in one piece, from the installed package, and what draws the charts with them."""
    library: str = vl_convert.javascript_bundle(GLOBAL)
    return library.replace("</script", "<\\/script") + "\n" + _asset("report.js")


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


def _asset(name: str) -> str:
    return resources.files("wholegrain.report").joinpath("assets", name).read_text(encoding="utf-8")
