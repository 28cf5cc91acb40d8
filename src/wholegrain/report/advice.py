"""What is not covered by a report's promise, who sees what, and what to do if something happens."""

from collections.abc import Iterator

from wholegrain.privacy.definitions import Standing
from wholegrain.report.glance import headline_part
from wholegrain.report.run_reader import RunRecord
from wholegrain.report.wording import plural

RAW_SCORES = "Scores that are marked not private: they are computed from raw data without noise."
NOT_COVERED = (
    "Which silos took part, when, and how long they took.",
    "How settings were chosen, if somebody looked at private data for it: those that are marked given or unpaid.",
    "What is true of a person because it is true of people like them: that smokers fall ill more often, for example.",
    "What other runs on the same data released, unless one account pays for all of them.",
)


def not_covered(run: RunRecord) -> tuple[str, ...]:
    """What the promise does not speak of."""
    sizes = "How many records and people each silo has: their owners declare it."
    public = (
        () if run.public is None else ("The people in the public data that the model was first trained on, if any.",)
    )
    raw = () if headline_part(run) is None else (RAW_SCORES,)
    return (*raw, *NOT_COVERED, *(() if run.promise.counted_sizes else (sizes,)), *public)


def trust_rows(run: RunRecord) -> Iterator[tuple[str, str, str]]:
    """Who sees what, and with what they must be trusted."""
    trust = run.promise.trust
    noise = "all the noise that its people need" if trust is None else "its part of the noise"
    if run.spec.federation is None:
        yield "The machine of this run", "the records of all silos", "trusted: it plays all silos, and the server"
    yield "A silo", "its own records; the parameters of every round", f"trusted: keeps its records and adds {noise}"
    if trust is None:
        yield "The server", "every silo's noisy update of every round", "need not be trusted"
    else:
        sums = f"the sum over at least {trust.answers} of {trust.silos} silos, once a round"
        yield "The server", sums, f"need not be trusted, also together with {plural(trust.colluding, 'silo')}"
    yield "Other silos", "the parameters of every round", "need not be trusted"
    yield "Whoever gets the model", "the final parameters", "need not be trusted"
    yield "Whoever gets this page", "all that stands on it", "trusted with what is marked not private"


def advice(run: RunRecord) -> Iterator[tuple[str, str]]:
    """What to do if …"""
    if not run.finished:
        yield "The run has stopped", "wholegrain resume FOLDER goes on from its last checkpoint."
    if run.simulation:
        yield (
            "This is to be published",
            'Not this run. Set privacy.noise = "secure", silos.sizes and ledger.data, and run again.',
        )
    elif run.promise.standing is not Standing.PROVED:
        yield "This is to be published", "Do not: choose a policy that is PROVED for the unit, and run again."
    elif run.ledger.whole:
        marked = " Take scores that are marked not private out of what you publish with it."
        yield "This is to be published", f"The model may be.{'' if headline_part(run) is None else marked}"
    if not run.ledger.whole:
        yield (
            "The ledger is broken or gone",
            "Publish nothing; put the file and its .heads back from one copy (wholegrain ledger verify checks them).",
        )
    yield (
        "Another run is to use the same data",
        "Let it pay from the same account: the same ledger.data, a ledger.budget with room (wholegrain ledger show).",
    )
    yield (
        "A person asks to be forgotten",
        "Delete their records from the table. ε bounds what this model says of them; a new run without them is another"
        " release, which has to be paid for.",
    )
    yield (
        "Somebody doubts the figures",
        "wholegrain audit FOLDER trains again with test records and attacks the result.",
    )
    yield (
        "A bound was wrong (K, M, or two ids for one person)",
        "The promise does not hold for people beyond the bound: correct the spec, and treat the release as unprotected"
        " for them.",
    )
    if run.promise.trust is not None:
        yield (
            "More silos collude than was assumed",
            f"With more than {run.promise.trust.colluding}, less noise is left than was promised: treat it as broken.",
        )
