"""A model card beside the model file, in the form that Hugging Face reads: README.md with YAML at its head.

A card is published with its model. So it holds only what may be: of a release, scores that were paid for, and none that
were computed without noise; no name of a silo, and no path.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from wholegrain._files import write_whole
from wholegrain.errors import RunError
from wholegrain.federation.private_score import ALL as ALL_SILOS
from wholegrain.privacy.definitions import Standing
from wholegrain.report.advice import not_covered
from wholegrain.report.glance import (
    badges,
    chosen_by_score,
    constant_score,
    estimate_text,
    guesses,
    headline_score,
    score_text,
)
from wholegrain.report.run_reader import RunRecord, read_run
from wholegrain.report.wording import number, plural, promise, trust_words
from wholegrain.runs.model_file import MODEL
from wholegrain.runs.run_folder import SUMMARY, RunFolder

CARD = "README.md"


def write_card(folder: Path) -> Path:
    """Write the card of a finished run beside its model."""
    run = read_run(folder, folder.resolve().name, curves=False)
    if run.summary is None:
        raise RunError(f"The run in '{folder}' has no model to describe: there is no {SUMMARY} in it.")
    try:
        write_whole(folder / CARD, model_card(run).encode())
        RunFolder.open(folder).seal()
    except OSError as error:
        raise RunError(f"'{folder / CARD}' cannot be written: {error.strerror}.") from error
    return folder / CARD


def model_card(run: RunRecord) -> str:
    """The card's text."""
    sections = (
        ("", (f"# {_line(run.name)}", "", f"**{'; '.join(badge.words for badge in badges(run))}**")),
        ("Privacy", _privacy(run)),
        ("Training", _training(run)),
        ("Evaluation", [f"- {line}" for line in _evaluation(run)]),
        ("Intended use", _use(run)),
        ("What the promise does not cover", [f"- {_line(sentence)}" for sentence in not_covered(run)]),
    )
    body = [line for title, lines in sections for line in (*([f"## {title}", ""] if title else []), *lines, "")]
    return "\n".join(["---", *_front_matter(run), "---", "", *body])


def _front_matter(run: RunRecord) -> Iterator[str]:
    """YAML; JSON's strings are YAML's, too."""
    about = run.spec.about
    if about.license:
        yield f"license: {json.dumps(about.license, ensure_ascii=False)}"
    yield "library_name: wholegrain"
    kind = ["simulation"] if run.simulation else []
    yield f"tags: {json.dumps(['differential-privacy', 'federated-learning', f'{run.promise.unit}-level', *kind])}"
    if run.spec.ledger.data:
        yield f"datasets: {json.dumps([run.spec.ledger.data], ensure_ascii=False)}"
    names = list(_public_scores(run))
    if names:
        yield f"metrics: {json.dumps(names, ensure_ascii=False)}"


def _public_scores(run: RunRecord) -> dict[str, str]:
    """Scores that may be published, by name: paid ones, and in a simulation the others."""
    private = (run.summary.private if run.summary else {}).get(ALL_SILOS, {})
    paid = {name: f"{estimate_text(name, found)}, private and paid for" for name, found in private.items()}
    headline = headline_score(run) if run.simulation else None
    return paid if headline is None else {headline[0]: score_text(*headline), **paid}


def _privacy(run: RunRecord) -> Iterator[str]:
    found = run.promise
    yield _line(promise(run))
    yield ""
    rows = (
        ("unit", str(found.unit)),
        ("neighbouring data", str(found.neighbouring)),
        ("ε", number(found.epsilon)),
        ("δ", f"{found.delta:g}"),
        ("accountant", found.accountant),
        ("noise", "seeded (simulation)" if run.simulation else "secure (release)"),
        ("trust", trust_words(found)),
    )
    yield "| what | is |"
    yield "|---|---|"
    yield from (f"| {name} | {_line(words)} |" for name, words in rows)
    if found.standing is Standing.PROVED:
        yield ""
        yield guesses(run)


def _training(run: RunRecord) -> Iterator[str]:
    plan = run.plan
    yield f"- Data: {_line(run.data)}, in {plural(len(plan.silos), 'silo')}"
    yield f"- Policy: `{plan.policy}`, {plural(plan.rounds, 'round')} of {plural(plan.steps_per_round, 'step')}"
    yield f"- Model: `{_line(run.spec.model.name)}`, parameters in `{MODEL}`"
    if run.times is not None:
        yield f"- Trained: {run.times[0]:%Y-%m-%d}, with wholegrain {run.identity.wholegrain}"
    if run.spec.about.author:
        yield f"- By: {_line(run.spec.about.author)}"
    if run.spec.about.contact:
        yield f"- Contact: {_line(run.spec.about.contact)}"


def _evaluation(run: RunRecord) -> Iterator[str]:
    found, constant = _public_scores(run), constant_score(run)
    for name, value in found.items():
        yield f"{name}: {value}"
    if run.simulation and found and constant is not None:
        yield f"a constant answer: {score_text(next(iter(found)), constant)}"
    if not run.simulation:
        yield "Scores that were computed without noise are not private, and are left out here."
    if chosen := chosen_by_score(run):
        yield chosen
    if not found:
        yield "No score was paid for (evaluation.private)."


def _use(run: RunRecord) -> Iterator[str]:
    yield _line(run.spec.about.purpose or "Not declared ([about] purpose of the spec).")
    if run.simulation:
        yield ""
        yield "Do not publish this model: whoever knows the seed can take its noise away."


def _line(words: str) -> str:
    """Words on one line that neither end a cell nor begin markup."""
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")
