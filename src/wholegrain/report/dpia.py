"""The annex to a data-protection impact assessment (GDPR Art. 35(7)): what a run's record can say, on two pages."""

from collections.abc import Iterator

from markupsafe import Markup

from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.privacy.tradeoff_curve import GUESSES, belief_after
from wholegrain.report.advice import not_covered
from wholegrain.report.glance import NOT_RARE, badges, glance, predicted
from wholegrain.report.page import asset, template
from wholegrain.report.run_reader import RunRecord
from wholegrain.report.wording import WHO, number, number_range, odds, plural, trust_words
from wholegrain.runs.spec import GIVEN

BLANK = ""
"""Left to be filled in by hand."""
MOST_COLUMNS = 24
"""More names than this would fill the page."""
ERASURE = "records can be deleted from their silo; the model stays, and ε bounds what it tells of the person"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def dpia_annex(run: RunRecord) -> str:
    """The annex as HTML. One of a simulation is a draft: there is nothing in it that somebody could sign."""
    return template("dpia.html").render(
        run=run,
        badges=list(badges(run)),
        policy=POLICY,
        style=Markup(asset("dpia.css")),
        draft=not run.protects or not run.finished,
        processing=list(processing(run)),
        necessity=list(necessity(run)),
        risks=list(risks(run)),
        measures=list(measures(run)),
        residual=not_covered(run),
    )


def processing(run: RunRecord) -> Iterator[tuple[str, str]]:
    """(a) The processing and its purposes; what the spec does not say is left blank."""
    about, silos = run.spec.about, run.plan.silos
    yield "Purpose", about.purpose or BLANK
    yield "Controller", about.controller or BLANK
    yield "Legal basis", about.legal_basis or BLANK
    yield "Contact", about.contact or BLANK
    yield "Recipients of the model", about.recipients or BLANK
    yield "Retention", about.retention or BLANK
    how = "counted" if run.promise.counted_sizes else "declared"
    people = number_range({silo.subjects for silo in silos})
    yield "Data", f"'{run.data}': {plural(len(silos), 'silo')}, {people} people in each ({how})"
    yield "Columns used", _columns(run)
    apart = "; records stay in their silos" if run.spec.federation else ""
    rounds = f"{plural(run.plan.rounds, 'round')} of {plural(run.plan.steps_per_round, 'step')}"
    yield "Method", f"federated training with the policy {run.plan.policy}: {rounds}{apart}"


def _columns(run: RunRecord) -> str:
    """Which facts about people enter the model, by the names of their columns, and what it predicts."""
    table = run.spec.data.table
    if table is None:
        named = BLANK if run.spec.data.source == GIVEN else f"all of the source '{run.spec.data.source}'"
        return "as each silo's charter declares" if run.spec.federation else named
    names = list(table.features)
    more = f" and {len(names) - MOST_COLUMNS} more (the report's spec lists all)" if len(names) > MOST_COLUMNS else ""
    return f"{', '.join(names[:MOST_COLUMNS])}{more}; predicted: {predicted(table)}"


def necessity(run: RunRecord) -> Iterator[tuple[str, str]]:
    """(b) What the processing is good for, and what leaves the silos for it."""
    answers = {answer.key: answer for answer in glance(run)}
    good = answers["good"]
    yield "Use of the model", " ".join((f"{good.short}.", *good.details))
    seen = "each silo's update" if run.promise.trust is None else "sums over silos"
    scores = " and private scores" if run.plan.scores else ""
    noise = "without noise" if run.plan.policy == "fedavg" else "with noise"
    yield "What is released", f"{seen} of every round{scores}, {noise}; the final model"
    yield "Date", f"{answers['when'].short}. {answers['when'].details[0]}"


def risks(run: RunRecord) -> Iterator[tuple[str, str, str]]:
    """(c) Risks to the people concerned, without these measures and with them."""
    found = run.promise
    if found.standing is not Standing.PROVED:
        after = guessed = "not reduced: nothing is proved"
    else:
        would, can = ("would be ", "could become") if run.simulation else ("", "can become")
        sure = [
            f"{before:.0%} {can} at most {belief_after(before, found.epsilon, found.delta):.1%}"
            for before in sorted(GUESSES)
        ]
        alone = "" if found.unit is not Unit.ITEM else "of one record, not of a person who has several: "
        guessed = f"{alone}a guess of {', one of '.join(sure)}, {NOT_RARE}"
        after = f"{would}at most {odds(found.epsilon)} times as likely as without the person, plus δ = {found.delta:g}"
    yield "Somebody learns that a person's data was used", "a guess can become certainty", guessed
    yield "Somebody learns what the data says of a person, or rebuilds records", "possible from updates or model", after
    apart = "they never leave it" if run.spec.federation else "not reduced: one machine read the records of all silos"
    yield "Records are seen outside their silo", "they are pooled", apart
    yield "Several runs together reveal more than each", "unnoticed", _together(run)


def _together(run: RunRecord) -> str:
    state = run.account
    if state is None:
        return "not known: the ledger cannot be read"
    limit = "no limit is set" if state.limit is None else f"limit {state.limit:g}; a run beyond it is refused"
    return f"ε = {number(state.data.epsilon)} over all runs on this data in the ledger; {limit}"


def measures(run: RunRecord) -> Iterator[tuple[str, str]]:
    """(d) What is done against the risks, with the numbers that an auditor asks for."""
    found, silos = run.promise, run.plan.silos
    bound = {silo.items_per_subject for silo in silos if silo.items_per_subject is not None}
    yield "Differential privacy", f"for {WHO[found.unit].rstrip(',')}: ε = {number(found.epsilon)}, δ = {found.delta:g}"
    yield (
        "Bounds",
        (
            f"{f'at most {number_range(bound)} records of a person in a silo' if bound else 'no bound on records'};"
            f" a person in at most {plural(run.plan.span, 'silo')}"
        ),
    )
    yield "Noise", "seeded: a simulation" if run.simulation else "secure: from the operating system, not repeatable"
    yield "Trust", trust_words(found)
    yield "Accounting", f"{found.accountant}, an upper bound; every release is paid for in a ledger before it is made"
    yield "Erasure (Art. 17)", ERASURE
    yield "Ledger", run.ledger.sentence if run.ledger.whole else f"BROKEN: {run.ledger.sentence}"
    yield "Run and spec", f"run {run.identity.run}; spec {run.identity.spec}; wholegrain {run.identity.wholegrain}"
