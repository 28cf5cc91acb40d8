"""The guarantee in words that somebody who answers for it can sign. Every sentence follows from the record."""

import math
from collections import Counter
from collections.abc import Iterator

from wholegrain.models.train_choice import describe
from wholegrain.privacy.definitions import Guarantee, Standing
from wholegrain.privacy.tradeoff_curve import LARGEST_EXPONENT, AttackView
from wholegrain.report.run_reader import RunRecord
from wholegrain.runs.setting_origins import Origin, name_unpaid

WHO = {
    "subject": "any one person, with all of that person's records in every silo,",
    "item": "any one record (of text that is cut into windows, any one window)",
    "silo": "any one silo, with all its records,",
}
OTHERWISE = {
    "subject": "if that person had not taken part",
    "item": "without that record",
    "silo": "with any other data in that silo",
}

ITEM_ABOVE_SUBJECT = (
    "ε of an item is above that of a subject here because other neighbours are compared: without a whole subject, one"
    " clipped gradient of norm C leaves the sum, but without one of its items that gradient can turn round (or another"
    " item can take the place), which moves the sum by up to 2C."
)
ORIGINS = {
    Origin.GIVEN: "written into the spec",
    Origin.PUBLIC: "defaults, or chosen on public data",
    Origin.PLANNED: "computed from public facts",
    Origin.PAID: "chosen by private scores that ε covers",
    Origin.UNPAID: "chosen by scores that no ε covers",
}
OWN_COPY = " Each silo was told this digest and trains only if the copy that its own charter names has it."
NO_BOUND = "no public bound on a person's records"


def number(value: float) -> str:
    """Four significant digits; no bound is ∞."""
    return "∞" if math.isinf(value) else f"{value:.4g}"


def odds(epsilon: float) -> str:
    """E to the power of ε; as a power where it is beyond floating point.

    >>> odds(1.0), odds(800.0)
    ('2.7', 'e to the power of 800')
    """
    if epsilon > LARGEST_EXPONENT:
        return f"e to the power of {number(epsilon)}"
    return _plain(math.exp(epsilon))


def promise(run: RunRecord) -> str:
    """The promise itself, or that there is none."""
    found = run.promise
    who = WHO[found.unit]
    if found.standing is not Standing.PROVED:
        return f"Nothing is promised to {who.rstrip(',')}: {found.because}."
    limits = "would limit" if run.simulation else "limits"
    seen = "every silo's update" if found.trust is None else "every opened sum over silos"
    scores = " its private scores," if run.plan.scores else ""
    times = f"{odds(found.epsilon)} times"
    if found.epsilon <= LARGEST_EXPONENT:
        times += f" (e to the power of ε = {number(found.epsilon)})"
    return (
        f"{_caveat(run)}Everything that this run releases – {seen} of every round,{scores} and the final model –"
        f" {limits} what anybody can learn about {who.rstrip(',')}. Whatever anybody concludes from it, that conclusion"
        f" is at most {times} as likely as it would be {OTHERWISE[found.unit]}, plus at most δ = {found.delta:g}, and"
        " the same the other way round."
    )


def _caveat(run: RunRecord) -> str:
    """What whoever signs must read first."""
    simulated = (
        "This run is a simulation and protects nobody: whoever knows its seed can take the noise away again. What"
        " follows is what the same run would promise with secure noise. "
    )
    unfinished = (
        f"This run is not at its end; this is what it has spent so far, and ε = {number(run.plan.promise.epsilon)} is"
        f" planned for all {run.plan.rounds} rounds. "
    )
    return (simulated if run.simulation else "") + ("" if run.finished else unfinished)


def conditions(run: RunRecord) -> Iterator[tuple[str, str]]:
    """On what the promise rests, one line each."""
    found, plan = run.promise, run.plan
    yield "Unit", found.unit
    yield "Neighbouring", found.neighbouring
    yield "ε, δ", f"{number(found.epsilon)}, {found.delta:g}; planned: ε = {number(plan.promise.epsilon)}"
    yield from _account(run)
    yield "Standing", f"{standing_words(found)} – {_standing(found)}"
    yield "Accountant", f"{found.accountant} (an upper bound)"
    yield "Noise", _noise(run)
    yield "Trust", trust_words(found)
    yield "Assumes", _assumptions(run)
    yield "Public", public_words(run)
    if run.origins:
        yield "Settings", origin_words(run)
    for view in run.attacks:
        yield f"An attacker ({view.unit})", attack_words(view)
    who = f"{plan.cohort} of {plural(len(plan.silos), 'silo')}"
    yield "Training", f"{plural(plan.rounds, 'round')} of {plural(plan.steps_per_round, 'step')} in {who}"


def trust_words(found: Guarantee) -> str:
    """Who need not be trusted, and who must be."""
    if found.trust is None:
        return (
            "each silo is trusted with its own data, and to add its noise before anything leaves it; whoever sees the"
            " updates, the server too, need not be trusted"
        )
    sums = found.trust
    return (
        f"each silo is trusted with its own data; the server sees only sums over at least {sums.answers} of"
        f" {sums.silos} silos and need not be trusted, alone or with {plural(sums.colluding, 'silo')} that"
        f" {'tells' if sums.colluding == 1 else 'tell'} it everything; all other silos must add their part of the noise"
    )


def standing_words(found: Guarantee) -> str:
    """On what authority a guarantee is given; of a simulation, on what it would be."""
    would = found.simulation and found.standing is Standing.PROVED
    return f"{found.standing}, if it were released" if would else str(found.standing)


def unpaid_words(run: RunRecord) -> str:
    """What the first box says of settings that were chosen for nothing; empty where there are none."""
    found = name_unpaid(run.origins)
    if not found:
        return ""
    return (
        f"UNPAID: {', '.join(found)} {'was' if len(found) == 1 else 'were'} chosen by scores on private people, and no"
        " ε covers that choice. The people behind those scores are not protected by what follows."
    )


def origin_words(run: RunRecord) -> str:
    """How many settings come from where, and which were searched."""
    counts = Counter(run.origins.values())
    told = [f"{counts[origin]} {origin} ({ORIGINS[origin]})" for origin in Origin if counts[origin]]
    searched = [place for place, origin in run.origins.items() if origin in (Origin.PAID, Origin.UNPAID)]
    return ", ".join(told) + (f"; searched: {', '.join(searched)}" if searched else "")


def attack_words(view: AttackView) -> str:
    """The guarantee as an attacker meets it, in one sentence."""
    guesses = "; ".join(f"a guess of {before:.0%} can become {after:.1%}" for before, after in view.beliefs)
    return (
        f"{guesses}, by an outcome that without them has a probability of 1% or more; nearest Gaussian mechanism:"
        f" μ = {view.mu:.3g}"
    )


def _account(run: RunRecord) -> Iterator[tuple[str, str]]:
    """What others have spent of the same data, where there are any."""
    state = run.account
    if state is None or not state.shared:
        return
    limit = "" if state.limit is None else f" of {state.limit:g}"
    yield (
        "Account",
        f"'{state.account.budget}' of the data '{state.account.data}': ε = {number(state.price.epsilon)}{limit} spent"
        f" (by {state.price.way}; runs: {state.runs})",
    )
    yield (
        "Data",
        f"ε = {number(state.data.epsilon)} over all budgets that were ever opened on it"
        f" (by {state.data.way}; budgets: {state.budgets})",
    )


def _standing(found: Guarantee) -> str:
    return {
        Standing.PROVED: "a bound on every attack, whatever the attacker knows, that follows from how noise is added",
        Standing.CLAIMED: "the paper says so",
        Standing.NONE: "nothing can be proved",
    }[found.standing]


def _noise(run: RunRecord) -> str:
    if run.simulation:
        return "seeded: a simulation; whoever knows the seed can take the noise away again, so this run protects nobody"
    if run.spec.federation is not None:
        return "secure, as each silo's own charter and ledger say: the server cannot see what noise a silo has added"
    return "secure: from the operating system's generator, on a public grid"


def plural(count: int, what: str) -> str:
    """A count and what is counted.

    >>> plural(1, "silo"), plural(3, "silo")
    ('1 silo', '3 silos')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def _assumptions(run: RunRecord) -> str:
    bounds = [silo.items_per_subject for silo in run.plan.silos]
    known = {bound for bound in bounds if bound is not None}
    most = f"at most {number_range(known)} records of a person" if None not in bounds else NO_BOUND
    reach = f"a person in at most {plural(run.plan.span, 'silo')}"
    if run.spec.policy.by_share:
        reach = "each silo knows which share of each of its people's records it has, and tells nobody"
    elif run.spec.policy.by_span:
        reach = "each silo knows in how many silos each of its people is, and tells nobody"
    sizes = (
        "were read off the data, as only a simulation may"
        if run.promise.counted_sizes
        else "are what their owners declare"
    )
    return f"{most} in a silo; {reach}; the same person has the same id in a silo's records; sizes of silos {sizes}"


def public_words(run: RunRecord) -> str:
    """What the run started from, of which the promise says nothing because it was public."""
    public, tokenizer = run.public, _tokenizer_words(run)
    if not public:
        return f"the settings, and first parameters drawn from the seed alone{tokenizer}"
    made, share = public.backbone, f"{public.trained_parameters:,} of {public.parameters:,} parameters"
    return (
        f"the settings, and first parameters (backbone {public.digest[:16]}) trained on '{made['data']}', which"
        f" whoever made it vouches for as public: {made['public']}. Trained here: {describe(public.train)}, {share}."
        f"{OWN_COPY if run.spec.federation else ''} The promise does not cover the people in that data, if any"
        f"{tokenizer}"
    )


def _tokenizer_words(run: RunRecord) -> str:
    """By which tokenizer text was cut, and who says that it is public; nothing where there is no text."""
    text = None if run.spec.data.table is None else run.spec.data.table.layout.text
    if text is None:
        return ""
    vouched = "" if text.public is None else f", which its owner vouches for as public: {text.public}"
    return f"; text is cut by the tokenizer '{text.tokenizer}'{vouched}"


def number_range(values: set[int]) -> str:
    """The least and the most of them, or the one that they all are."""
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def _plain(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.2g}"
