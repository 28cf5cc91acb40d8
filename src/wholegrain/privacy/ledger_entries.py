"""What a ledger holds, as JSON: one frozen record per entry. A meaning, once written, never changes.

Records are read strictly: an unknown kind, an unknown key, or a number that is none makes an entry unreadable, because
a price must not rest on a guess.

dp_accounting takes more than a second to import. Reading and verifying a ledger does without it; only what turns
records into events, or events into records, imports it.
"""

import math
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from wholegrain.errors import AccountingError
from wholegrain.privacy.definitions import Budget, Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from wholegrain.privacy.pricing import Exposure, Terms

Positive = Annotated[float, Field(gt=0)]
Chance = Annotated[float, Field(ge=0, le=1)]


class Record(BaseModel):
    """A frozen value that refuses what it does not know."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Nothing(Record):
    """A step that reveals nothing of the unit."""

    kind: Literal["nothing"] = "nothing"

    def event(self) -> "DpEvent":
        """As the accountants know it."""
        from dp_accounting import NoOpDpEvent

        return NoOpDpEvent()


class Everything(Record):
    """A step that protects nothing."""

    kind: Literal["everything"] = "everything"

    def event(self) -> "DpEvent":
        """As the accountants know it."""
        from dp_accounting import NonPrivateDpEvent

        return NonPrivateDpEvent()


class Gaussian(Record):
    """A Gaussian release; with a rate below one, the unit takes part with that probability only."""

    kind: Literal["gaussian"] = "gaussian"
    noise: Positive
    rate: Annotated[float, Field(gt=0, le=1)] = 1.0

    def event(self) -> "DpEvent":
        """As the accountants know it."""
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

        alone = GaussianDpEvent(self.noise)
        return alone if self.rate == 1 else PoissonSampledDpEvent(self.rate, alone)


class Mixture(Record):
    """A Gaussian release that moves by one of several lengths, each with its chance."""

    kind: Literal["mixture"] = "mixture"
    noise: Positive
    moves: tuple[Annotated[float, Field(ge=0)], ...]
    chances: tuple[Chance, ...]

    @model_validator(mode="after")
    def _is_a_law(self) -> Self:
        if len(self.moves) != len(self.chances) or abs(sum(self.chances) - 1) > 1e-9:
            raise ValueError("moves and chances are no law")
        return self

    def event(self) -> "DpEvent":
        """As the accountants know it."""
        from dp_accounting.dp_event import MixtureOfGaussiansDpEvent

        return MixtureOfGaussiansDpEvent(self.noise, self.moves, self.chances)


class WorstOf(Record):
    """A step of which one of several cases is true, of each unit always the same one."""

    kind: Literal["worst of"] = "worst of"
    cases: Annotated[tuple[Gaussian | Mixture, ...], Field(min_length=2)]

    def event(self) -> "DpEvent":
        """As the accountants know it."""
        from wholegrain.privacy.events import WorstOfDpEvent

        return WorstOfDpEvent(tuple(case.event() for case in self.cases))


class RepeatedStep(Record):
    """A step, so many times over."""

    step: Annotated[Gaussian | Mixture, Field(discriminator="kind")]
    times: Annotated[int, Field(ge=1)]


class BestTrial(Record):
    """The best of a random number of trials, of which nothing else is released.

    The number has a mean, and the law of a truncated negative binomial of this shape, or without one of Poisson. A
    trial is one of several cases, each of them a sequence of steps.
    """

    kind: Literal["best trial"] = "best trial"
    mean: Annotated[float, Field(ge=1)]
    shape: Positive | None
    cases: Annotated[tuple[tuple[RepeatedStep, ...], ...], Field(min_length=1)]

    def event(self) -> "DpEvent":
        """As the accountants know it."""
        from dp_accounting.dp_event import RepeatAndSelectDpEvent

        from wholegrain.privacy.events import compose, repeat, worst_of

        cases = [compose(repeat(each.step.event(), each.times) for each in case) for case in self.cases]
        return RepeatAndSelectDpEvent(worst_of(cases), self.mean, math.inf if self.shape is None else self.shape)


Step = Nothing | Everything | Gaussian | Mixture | WorstOf | BestTrial
StepRecord = Annotated[Step, Field(discriminator="kind")]


def step_record(event: "DpEvent") -> Step:
    """One step's event as a record.

    >>> from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    >>> step_record(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)))
    Gaussian(kind='gaussian', noise=2.0, rate=0.1)
    """
    from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent, PoissonSampledDpEvent
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent, RepeatAndSelectDpEvent

    from wholegrain.privacy.events import WorstOfDpEvent, iterate_cases

    match event:
        case NoOpDpEvent():
            return Nothing()
        case NonPrivateDpEvent():
            return Everything()
        case GaussianDpEvent(noise_multiplier=noise):
            return Gaussian(noise=noise)
        case PoissonSampledDpEvent(sampling_probability=rate, event=GaussianDpEvent(noise_multiplier=noise)):
            return Gaussian(noise=noise, rate=rate)
        case MixtureOfGaussiansDpEvent(standard_deviation=noise, sensitivities=moves, sampling_probs=chances):
            return Mixture(noise=noise, moves=tuple(moves), chances=tuple(chances))
        case WorstOfDpEvent(cases=cases):
            records = tuple(step_record(case) for case in cases)
            return WorstOf(cases=tuple(each for each in records if isinstance(each, Gaussian | Mixture)))
        case RepeatAndSelectDpEvent(event=trial, mean=mean, shape=shape):
            return BestTrial(
                mean=mean,
                shape=None if math.isinf(shape) else shape,
                cases=tuple(_repeated_steps(case) for case in iterate_cases(trial)),
            )
    raise AccountingError(f"A step's event of the kind {type(event).__name__} cannot be written down.")


def _repeated_steps(event: "DpEvent") -> tuple[RepeatedStep, ...]:
    from wholegrain.privacy.renyi import iterate_steps

    return tuple(
        RepeatedStep.model_validate({"step": step_record(step), "times": times}) for step, times in iterate_steps(event)
    )


class ExposureRecord(Record):
    """What one step of each silo reveals about a unit. Silos with the same step share one."""

    reach: Annotated[int, Field(ge=1)]
    kinds: tuple[StepRecord, ...]
    silos: dict[str, Annotated[int, Field(ge=0)]]
    worst: StepRecord | None = None

    @staticmethod
    def of(exposure: "Exposure") -> "ExposureRecord":
        """The exposure, written down."""
        kinds = tuple(dict.fromkeys(step_record(event) for event in exposure.steps.values()))
        silos = {silo: kinds.index(step_record(event)) for silo, event in exposure.steps.items()}
        worst = None if exposure.worst is None else step_record(exposure.worst)
        return ExposureRecord(reach=exposure.reach, kinds=kinds, silos=silos, worst=worst)

    def exposure(self) -> "Exposure":
        """The exposure that was written down."""
        from wholegrain.privacy.pricing import Exposure

        steps = {silo: self.kinds[kind].event() for silo, kind in self.silos.items()}
        return Exposure(self.reach, steps, self.worst and self.worst.event())

    @model_validator(mode="after")
    def _points_at_kinds(self) -> Self:
        if any(kind >= len(self.kinds) for kind in self.silos.values()):
            raise ValueError("a silo's step is not among the kinds")
        return self


class TermsRecord(Record):
    """On what terms a run's releases are priced."""

    exposures: dict[Unit, ExposureRecord]
    through_subject: ExposureRecord | None = None
    scores: Annotated[dict[Unit, ExposureRecord] | None, Field(exclude_if=lambda scores: scores is None)] = None
    """Of private scores; earlier versions had none."""
    split: Annotated[tuple[tuple[ExposureRecord, ExposureRecord], ...], Field(exclude_if=lambda split: not split)] = ()
    """Of a subject that is trained on in some silos and held out in others: a step of training, and a score."""

    @staticmethod
    def of(terms: "Terms") -> "TermsRecord":
        """The terms, written down."""
        through, scores = terms.through_subject, terms.scores
        return TermsRecord(
            exposures={unit: ExposureRecord.of(exposure) for unit, exposure in terms.exposures.items()},
            through_subject=ExposureRecord.of(through) if through else None,
            scores=None if scores is None else {unit: ExposureRecord.of(each) for unit, each in scores.items()},
            split=tuple((ExposureRecord.of(one), ExposureRecord.of(other)) for one, other in terms.split),
        )

    @cached_property
    def terms(self) -> "Terms":
        """The terms that were written down; made when they are first asked for."""
        from wholegrain.privacy.pricing import Terms

        through, scores = self.through_subject, self.scores
        exposures = {unit: record.exposure() for unit, record in self.exposures.items()}
        scored = None if scores is None else {unit: record.exposure() for unit, record in scores.items()}
        split = tuple((one.exposure(), other.exposure()) for one, other in self.split)
        return Terms(exposures, through.exposure() if through else None, scored, split)


Purpose = Annotated[Literal["training", "scores"], Field(exclude_if=lambda purpose: purpose == "training")]
"""What a release is for. Ledgers of earlier versions know training alone, and do not say it."""


class Account(Record):
    """Whose budget is spent: that of a data set, under a name which its owner gave."""

    data: str
    budget: str = "main"

    def __str__(self) -> str:
        return f"'{self.budget}' of the data '{self.data}'"


class Opened(Record):
    """The first entry: a ledger with an identity of its own."""

    kind: Literal["ledger"] = "ledger"
    format: Literal[1] = 1
    identity: str


class BudgetOpened(Record):
    """An account and what may be spent from it in all; without ε it only counts.

    An account for one run is priced as that run is. One for several, which are chosen one after the other, is priced by
    a filter, from its first run on: which of the two it is must be said before anything is released.
    """

    kind: Literal["budget"] = "budget"
    account: Account
    unit: Unit
    epsilon: Positive | None
    delta: Annotated[float, Field(gt=0, lt=1)]
    runs: Literal["one", "several"] = "several"

    @property
    def budget(self) -> Budget | None:
        """What may be spent, if there is a limit."""
        return None if self.epsilon is None else Budget(self.epsilon, self.delta)


class RunOpened(Record):
    """A run that will spend from an account, on these terms."""

    kind: Literal["run"] = "run"
    run: str
    account: Account
    spec: str
    policy: str
    noise: str
    terms: TermsRecord


class Reserved(Record):
    """`steps` noisy releases by one silo in one round, paid for before they are made.

    Of scores, one private score of the parameters `start` is one of `steps`.

    `stream` and `start` tell releases apart: the same stream of noise from the same parameters is the same release,
    however often it is computed.
    """

    kind: Literal["reserved"] = "reserved"
    run: str
    round: Annotated[int, Field(ge=0)]
    silo: str
    steps: Annotated[int, Field(ge=1)]
    stream: str
    start: str
    purpose: Purpose = "training"


class Released(Record):
    """What was reserved has left the silo. It costs nothing more; a reservation without it may have been in vain."""

    kind: Literal["released"] = "released"
    run: str
    round: Annotated[int, Field(ge=0)]
    silo: str
    stream: str
    start: str
    purpose: Purpose = "training"


Entry = Opened | BudgetOpened | RunOpened | Reserved | Released
ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])
