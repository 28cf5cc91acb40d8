"""The rows of a report's tables."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.report.figures import Figure
from wholegrain.report.glance import score_text
from wholegrain.report.run_reader import RunRecord
from wholegrain.report.wording import ITEM_ABOVE_SUBJECT, number, standing_words

Rows = Iterator[tuple[object, ...]]
LONG = 10_000.0
"""From here on a score is written with an exponent."""


def score_heads(runs: Sequence[RunRecord]) -> list[str]:
    """The measures that the final models were scored by; none where nothing was."""
    scores = [score for run in runs if run.summary for score in run.summary.scores.values()]
    measures = list(dict.fromkeys(name for score in scores for name in score.facts()))
    return [*(["run"] if len(runs) > 1 else []), "items of", *measures] if scores else []


def score_rows(runs: Sequence[RunRecord]) -> Rows:
    """The final models' scores by part, each beside those of the best constant answer."""
    heads = score_heads(runs)
    for name, summary in ((run.name, run.summary) for run in runs if run.summary):
        for part, own in summary.scores.items():
            for items, score in ((part, own), (f"{part}: constant answer", summary.constant.get(part))):
                if score is not None:
                    facts = {"run": name, "items of": items, **score.facts()}
                    yield tuple(_score_cell(facts.get(head, "–")) for head in heads)


def private_rows(run: RunRecord) -> Rows:
    """The final model's private scores, of all silos together and of each."""
    for place, score in run.summary.private.items() if run.summary else ():
        for name, found in score.items():
            yield place, name, f"{found.value:.3f}", f"{found.noise:.3f}", f"{found.both:.3f}"


def origin_rows(run: RunRecord) -> Rows:
    """Every setting, its value, and where it comes from."""
    for place, origin in run.origins.items():
        section, key = place.split(".", 1)
        value = _last_parts(getattr(getattr(run.spec, section), key))
        yield place, "–" if value is None else str(value), origin


def guarantee_rows(run: RunRecord) -> Rows:
    """What was spent of each guarantee, beside what was planned."""
    for found, planned in zip(run.spent, run.plan.guarantees, strict=True):
        epsilons = number(found.epsilon), number(planned.epsilon)
        yield (found.unit, *epsilons, f"{found.delta:g}", standing_words(found))


def reasons(run: RunRecord) -> Rows:
    """Why each guarantee is what it is."""
    for found in run.spent:
        yield f"Why, for {'an' if found.unit == Unit.ITEM else 'a'} {found.unit}", found.because


def item_note(run: RunRecord) -> str:
    """Why an item's ε is above a subject's, where it is."""
    proved = {found.unit: found.epsilon for found in run.spent if found.standing is Standing.PROVED}
    above = Unit.ITEM in proved and Unit.SUBJECT in proved and proved[Unit.ITEM] > proved[Unit.SUBJECT]
    return ITEM_ABOVE_SUBJECT if above else ""


def number_rows(figure: Figure) -> Rows:
    """The numbers behind a figure."""
    for row in figure.rows:
        yield tuple(_cell(value) for value in row)


def fault_rows(run: RunRecord) -> list[tuple[object, ...]]:
    """Silos that gave nothing usable, round by round."""
    return [(done.round, fault.silo, fault.reason) for done in run.rounds for fault in done.faults]


def silo_heads(run: RunRecord) -> list[str]:
    """What is told of each silo: its plan, and its scores where there are any."""
    heads = ["silo", "records", "people", "K", "steps", "noise multiplier"]
    return heads + [name for name, values in _silo_scores(run).items() if values]


def silo_rows(run: RunRecord) -> Rows:
    """What was planned for each silo, and how good the model is for it."""
    scores = [values for values in _silo_scores(run).values() if values]
    for silo in run.plan.silos:
        plan = silo.name, silo.items, silo.subjects, silo.items_per_subject or "–", silo.steps
        yield (*plan, _cell(silo.noise_multiplier), *(values.get(silo.name, "–") for values in scores))


def _silo_scores(run: RunRecord) -> dict[str, dict[str, str]]:
    """Scores by silo: without noise, where the spec asks for them, and private ones, which are paid for."""
    if run.summary is None:
        return {}
    raw, paid = dict[str, str](), dict[str, str]()
    for silo in (each.name for each in run.plan.silos):
        if score := run.summary.scores.get(f"test/silo = {silo}"):
            raw[silo] = f"{score.headline[0]} {score_text(*score.headline)}"
        for name, found in list(run.summary.private.get(silo, {}).items())[:1]:
            paid[silo] = f"{name} {found.value:.3g} ± {found.noise:.2g}"
    return {"test score (not private)": raw, "private score (paid)": paid}


def identity_rows(run: RunRecord) -> Rows:
    """Which run it is, and by which version."""
    yield "run", run.identity.run
    yield "wholegrain", run.identity.wholegrain or "–"
    yield "computed on", run.identity.compute or "–"
    yield "spec", run.identity.spec


def spec_text(run: RunRecord) -> str:
    """The spec as the folder has it, with the last parts of paths: a machine's folders are nobody's business."""
    return json.dumps(_last_parts(run.spec.model_dump(mode="json")), indent=2, ensure_ascii=False)


def _last_parts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _last_parts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_last_parts(inner) for inner in value]
    return value.rstrip("/").rsplit("/", 1)[-1] if isinstance(value, str) and value.startswith("/") else value


def _score_cell(value: Any) -> str:
    """Four decimals, so that a column's scores stand below each other; a loss without bounds in few digits."""
    return f"{value:.4f}" if isinstance(value, float) and abs(value) < LONG else _cell(value)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]:.4g} … {value[-1]:.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
