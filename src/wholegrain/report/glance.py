"""The head of a report: what somebody asks first, each with a short answer. Every answer follows from the record."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from wholegrain.federation.private_score import ALL as ALL_SILOS
from wholegrain.federation.private_score import Estimate
from wholegrain.federation.round_record import Score
from wholegrain.privacy.definitions import Standing, Unit
from wholegrain.privacy.tradeoff_curve import GUESSES, belief_after
from wholegrain.report.run_reader import RunRecord
from wholegrain.report.wording import number, number_range, plural
from wholegrain.runs.constant_answer import is_better
from wholegrain.runs.setting_origins import name_unpaid
from wholegrain.runs.spec_sections import TableSpec

PROTECTED = {
    Unit.SUBJECT: ("One person", "with all records of that person, in every silo"),
    Unit.ITEM: ("One record", "not a person who has several"),
    Unit.SILO: ("One silo", "with all its records"),
}
TOOK_PART = {Unit.SUBJECT: "a person took part", Unit.ITEM: "a record was used", Unit.SILO: "a silo took part"}
NOT_RARE = "by outcomes not rarer than 1%"
"""Where δ matters little: a rarer outcome may say more."""
UNTOLD = "A constant answer is right as often as the commonest class occurs, which this release does not tell."
WARN, ALARM = 0.80, 0.95
"""Shares of a budget from which on a report warns, and alarms."""


@dataclass(frozen=True)
class Badge:
    """A few words in a colour: what kind of run it is, and where it stands."""

    words: str
    kind: str


@dataclass(frozen=True)
class Answer:
    """A question, a short answer, and what belongs to it."""

    key: str
    question: str
    short: str
    details: tuple[str, ...] = ()
    share: float | None = None
    """Of a budget that is spent, to be drawn as a bar."""


def badges(run: RunRecord) -> Iterator[Badge]:
    """What may be said in capitals: a simulation never wears what a release does, nor does a run without a ledger."""
    standing = run.promise.standing
    if run.simulation:
        yield Badge("SIMULATION: protects nobody", "simulation")
    elif standing is not Standing.PROVED:
        yield Badge("RELEASE, NOT PROTECTED", "none")
    elif not run.ledger.whole:
        yield Badge("RELEASE, NOT VERIFIED: its ledger is broken", "broken")
    else:
        yield Badge("RELEASE, PROVED", "proved")
    if run.plan.claim:
        yield Badge("CLAIMED by its paper", "claimed")
    if name_unpaid(run.origins):
        yield Badge("UNPAID choices", "none")
    if not run.finished:
        yield Badge(*(("running", "running") if run.worked_on else ("stopped before its end", "running")))


def kinds(runs: Sequence[RunRecord]) -> dict[Badge, list[str]]:
    """Of several runs, every badge that one of them wears, with the names of those that do."""
    found: dict[Badge, list[str]] = {}
    for run in runs:
        for badge in badges(run):
            found.setdefault(badge, []).append(run.name)
    return found


def glance(run: RunRecord, peers: Sequence[RunRecord] = ()) -> Iterator[Answer]:
    """Answers in the order of the questions; `peers` are runs that it may be compared with."""
    yield _who(run)
    yield _against(run)
    yield _how_much(run)
    yield _how_good(run, peers)
    yield _kind(run)
    yield _data(run)
    yield _when(run)
    yield _budget_answer(run)


def _who(run: RunRecord) -> Answer:
    name, rest = PROTECTED[run.promise.unit]
    if run.promise.standing is not Standing.PROVED:
        return Answer("who", "Who is protected?", "Nobody", (f"{run.promise.because}.",))
    neighbours = f"Neighbouring data: {run.promise.neighbouring}."
    if run.simulation:
        return Answer("who", "Who is protected?", "Nobody", (f"In a release: {name.lower()}, {rest}.", neighbours))
    return Answer("who", "Who is protected?", name, (f"{rest}.", neighbours))


def _against(run: RunRecord) -> Answer:
    trust, question = run.promise.trust, "Against whom?"
    if run.promise.standing is not Standing.PROVED:
        return Answer("trust", question, "Nobody", ("Whoever sees what the run releases may learn anything.",))
    if trust is None:
        seen = "The server and others see each silo's noisy update of every round, and the model (local trust)."
        short = _in_a_release(run, "everybody outside a person's own silos")
        return Answer("trust", question, short, (seen, "Trusted: each silo."))
    sees = f"They see sums over at least {trust.answers} of {trust.silos} silos, and the model (secure sum)."
    colluding = f"Trusted: all silos but {trust.colluding}, to add noise; their masks, to hide a single silo's update."
    short = _in_a_release(run, f"the server, also with {plural(trust.colluding, 'silo')}")
    return Answer("trust", question, short, (sees, colluding))


def _in_a_release(run: RunRecord, words: str) -> str:
    """Words that begin a line; of a simulation, what would be so in a release."""
    return f"In a release: {words}" if run.simulation else words[0].upper() + words[1:]


def _how_much(run: RunRecord) -> Answer:
    found, question = run.promise, "By how much?"
    if found.standing is not Standing.PROVED:
        return Answer("epsilon", question, "Not at all: ε = ∞")
    short = f"ε = {number(found.epsilon)} at δ = {found.delta:g}"
    return Answer("epsilon", question, f"{short}{', if it were a release' if run.simulation else ''}", (guesses(run),))


def guesses(run: RunRecord) -> str:
    """What ε and δ mean to somebody who guesses whether a person, or whatever the unit is, took part."""
    found = run.promise
    told = [
        f"{before:.0%} sure before, at most {belief_after(before, found.epsilon, found.delta):.1%} after"
        for before in sorted(GUESSES)
    ]
    return f"Somebody guesses that {TOOK_PART[found.unit]}: {'; '.join(told)} ({NOT_RARE})."


def _how_good(run: RunRecord, peers: Sequence[RunRecord]) -> Answer:
    question, headline = "How good is the model?", headline_score(run)
    private = (run.summary.private if run.summary else {}).get(ALL_SILOS, {})
    paid = [f"{name} {estimate_text(name, found)}, private and paid for." for name, found in private.items()]
    chosen = (words,) if (words := chosen_by_score(run)) else ()
    if headline is None:
        return _only_private(question, private, (*paid[1:], *chosen))
    name, value = headline
    details = _beside_constant(run, name, value)
    details += [
        f"FedAvg, without privacy ({peer.name}): {score_text(*found)}."
        for peer in peers
        if peer.plan.policy == "fedavg"
        and peer is not run
        and peer.data == run.data
        and (found := headline_score(peer))
    ]
    others = "people who were held out" if run.spec.evaluation.by == "subject" else "other records of the same people"
    details.append(f"On {others}; computed without noise, so not private.")
    return Answer("good", question, f"{name} {score_text(name, value)}", (*paid, *chosen, *details))


def _beside_constant(run: RunRecord, name: str, value: float) -> list[str]:
    """The score of one and the same answer for everybody; it is told first that the model does no better."""
    constant = constant_score(run)
    if constant is None:
        return []
    bad = [] if is_better(name, value, constant) else ["No better than a constant answer: do not rely on it."]
    return [*bad, f"A constant answer: {score_text(name, constant)}."]


def _only_private(question: str, private: Mapping[str, Estimate], others: tuple[str, ...]) -> Answer:
    """Of a release: its first private score with the whole interval, or that there is none."""
    if not private:
        return Answer("good", question, "Not scored", others)
    name, found = next(iter(private.items()))
    first = f"95% interval; noise alone: {noise_text(name, found)}. Private, and paid for."
    untold = (UNTOLD,) if "accuracy" in private else ()
    return Answer("good", question, f"{name} {within_text(name, found)}", (first, *others, *untold))


def chosen_by_score(run: RunRecord) -> str:
    """That a tuned run's own score flatters it; nothing of other runs."""
    private = run.spec.evaluation.private
    if not run.tuned or private is None:
        return ""
    other = "; those of the test part are not" if private.part != "test" and headline_part(run) == "test" else ""
    chosen = f"Chosen among several trials by its {private.part} score"
    return f"{chosen}: scores of that part are too high on average{other}."


def scored_by_sizes(run: RunRecord) -> str:
    """What declared sizes do to private scores; nothing where people were counted, or are counted with noise."""
    if run.promise.counted_sizes or (run.promise.trust is not None and run.spec.policy.by_span):
        return ""
    return "They count on declared sizes: with sizes that are too large, accuracy comes out nearer to one half."


def headline_part(run: RunRecord) -> str | None:
    """The part whose score is the headline: test, or whatever was scored first; None where nothing was."""
    scores = _scores(run)
    return "test" if "test" in scores else next(iter(scores), None)


def headline_score(run: RunRecord) -> tuple[str, float] | None:
    """The headline metric of that part; None where nothing was scored."""
    scores, part = _scores(run), headline_part(run)
    return None if part is None else scores[part].headline


def _scores(run: RunRecord) -> Mapping[str, Score]:
    return run.summary.scores if run.summary else (run.rounds[-1].scores if run.rounds else {})


def constant_score(run: RunRecord) -> float | None:
    """The same of the best constant answer."""
    constant = run.summary.constant if run.summary else {}
    found = constant.get("test") or next(iter(constant.values()), None)
    return None if found is None else found.headline[1]


def score_text(name: str, value: float) -> str:
    """A score as people write it."""
    return f"{value:.1%}" if "accuracy" in name and math.isfinite(value) else f"{value:.4g}"


def within_text(name: str, found: Estimate) -> str:
    """A private score with its interval for noise and draw: without it, noise would look like skill."""
    if "accuracy" in name and math.isfinite(found.value):
        return f"{found.value:.1%} ± {100 * found.both:.1f} points"
    return f"{found.value:.4g} ± {found.both:.2g}"


def estimate_text(name: str, found: Estimate) -> str:
    """The same, and the part of the interval that is noise."""
    return f"{within_text(name, found)} (95%; noise alone: {noise_text(name, found)})"


def noise_text(name: str, found: Estimate) -> str:
    """How far noise alone may move a private score."""
    percent = "accuracy" in name and math.isfinite(found.value)
    return f"± {100 * found.noise:.1f}" if percent else f"± {found.noise:.2g}"


def _kind(run: RunRecord) -> Answer:
    question = "Release or simulation?"
    if run.simulation:
        rest = "Its noise comes from a seed, so that whoever knows the seed can take it away. Publish nothing of it."
        return Answer("kind", question, "A simulation", (rest,))
    rest = "Its noise comes from the operating system and cannot be repeated."
    return Answer("kind", question, "A release", (rest,))


def _data(run: RunRecord) -> Answer:
    silos = run.plan.silos
    how = "counted in the data (not private)" if run.promise.counted_sizes else "as their owners declare"
    sizes = f"{number_range({silo.subjects for silo in silos})} people and "
    sizes += f"{number_range({silo.items for silo in silos})} records in each, {how}."
    named = f"'{run.data}', {plural(len(silos), 'silo')}"
    return Answer("data", "From which data, and what for?", named, (sizes, *_what_for(run)))


def _what_for(run: RunRecord) -> Iterator[str]:
    table, purpose = run.spec.data.table, run.spec.about.purpose
    if table is not None:
        yield f"Predicts {predicted(table)} from {plural(len(table.features), 'column')}."
    yield f"Purpose: {purpose.rstrip('.')}." if purpose else "Purpose: none is named ([about] purpose of the spec)."


def predicted(table: TableSpec) -> str:
    """What a table's model predicts, by the names of columns."""
    return "the next token" if table.target.next_token else " and ".join(f"'{name}'" for name in table.target.names)


def _when(run: RunRecord) -> Answer:
    about = run.spec.about
    when = "not on record" if run.times is None else _day(run.times[0])
    details = [] if run.times is None else [_span(run, *run.times)]
    details.append(f"By {about.author}." if about.author else "By whom: nobody is named ([about] author of the spec).")
    details += [f"Contact: {about.contact}."] if about.contact else []
    details.append(f"wholegrain {run.identity.wholegrain or '(version not on record)'}.")
    return Answer("when", "When, and by whom?", when, tuple(details))


def _span(run: RunRecord, begun: datetime, ended: datetime) -> str:
    """How long a release took would tell how many items there are, and of a tuning how many trials it made."""
    if run.spec.privacy.noise == "secure" or run.tuned:
        return f"Begun at {_minute(begun)}, by its ledger."
    last = f"{ended:%H:%M} UTC" if begun.date() == ended.date() else _minute(ended)
    first = f"{begun:%Y-%m-%d %H:%M}" if begun.date() == ended.date() else _minute(begun)
    return f"From {first} to {last}, by its ledger."


def _day(time: datetime) -> str:
    return f"{time.day} {time:%B %Y}"


def _minute(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _budget_answer(run: RunRecord) -> Answer:
    question, state = "What is spent, and what is left?", run.account
    if state is None:
        return Answer("left", question, "Not known", (f"{run.ledger.sentence.rstrip('.')}.",))
    spent = f"ε = {number(state.price.epsilon)}"
    if state.limit is None:
        return Answer("left", question, f"{spent} spent, no limit", (_whose(run),))
    left = max(0.0, state.limit - state.price.epsilon)
    short = f"{spent} of {state.limit:g} spent, {left:.3g} left"
    return Answer("left", question, short, (_whose(run),), spent_share(run))


def _whose(run: RunRecord) -> str:
    state = run.account
    assert state is not None
    others = f"shared by {plural(state.runs, 'run')}" if state.runs > 1 else "of this run"
    total = f" Over all budgets of this data: ε = {number(state.data.epsilon)}." if state.budgets > 1 else ""
    dearer = state.runs == 1 and state.price.epsilon > run.promise.epsilon * 1.001
    filtered = f" Priced so that more runs may follow ({state.price.way}): more than this run alone." if dearer else ""
    return f"By the ledger, account '{state.account.budget}', {others}, for each {state.unit}.{filtered}{total}"


def spent_share(run: RunRecord) -> float | None:
    """The share of the account's limit that is spent; None without a limit."""
    state = run.account
    if state is None or not state.limit or not math.isfinite(state.price.epsilon):
        return None
    return min(1.0, state.price.epsilon / state.limit)


def budget_alarm(run: RunRecord) -> Badge | None:
    """What to say when a budget comes to its end; a run's own budget is there to be spent, a shared one is missed."""
    share, state = spent_share(run), run.account
    if share is None or state is None or share < WARN:
        return None
    alone = run.spec.ledger.epsilon is None
    if alone and run.finished:
        return None
    told = f"{share:.0%} of the budget '{state.account.budget}' (ε = {state.limit:g}) is spent"
    if alone:
        return Badge(f"{told}, as planned: it is for this run alone.", "note")
    rest = "a run that would overdraw it is refused" if share < ALARM else "hardly any further run will fit"
    return Badge(f"{told}; {rest}.", "caution" if share < ALARM else "alarm")
