"""The audit of a run: all attacks, what they show with one confidence for all, and the verdict.

A verdict of violation is wrong with a probability of at most 1 − confidence, however many attacks were tried: they
share the significance. A verdict of consistency proves nothing; it says how much of the proved ε was found in use.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dp_accounting import DpEvent

from wholegrain import _check
from wholegrain.audit import estimators
from wholegrain.audit.attacks import AttackOutcome, Tick, attack_alone, attack_crowd, can_hold_crowd, no_progress
from wholegrain.audit.canary_inputs import attack_input
from wholegrain.audit.estimators import AttackEvidence, Method
from wholegrain.audit.file_experiment import FileExperiment
from wholegrain.audit.findings import Audit, AuditFinding, Check
from wholegrain.audit.likelihoods import canary_law
from wholegrain.audit.removal import from_the_file
from wholegrain.audit.scores import NoiseLaw
from wholegrain.audit.sensitivity import largest_move, move_among_many
from wholegrain.audit.simulate import NoiseOf, noise_like
from wholegrain.audit.summed import attack_sums
from wholegrain.clipping.clipping import ClipPer
from wholegrain.clipping.rounding import SLACK
from wholegrain.data.dataset import Dataset
from wholegrain.errors import SpecError
from wholegrain.policies.guarantees import obstacles
from wholegrain.policies.plan import Plan
from wholegrain.privacy.definitions import Guarantee, Standing, Unit
from wholegrain.runs.prepared_run import PreparedRun


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """How much to try: canaries in one run, runs with one canary, and how sure to be of what is found.

    `subjects` is how many there are in the longest sum that is tried.
    """

    unit: Unit = Unit.SUBJECT
    canaries: int = 2000
    runs: int = 100
    confidence: float = 0.95
    seed: int = 0
    subjects: int = 500_000

    def __post_init__(self) -> None:
        if self.unit is Unit.SILO:
            raise SpecError("An audit plants subjects or items; for the unit 'silo' there is none.")
        if _check.count("--canaries", self.canaries) < FEWEST_CANARIES:
            raise SpecError(f"--canaries = {self.canaries} tells nothing; {FEWEST_CANARIES} are the fewest.")
        if _check.count("--runs", self.runs) < FEWEST_RUNS:
            raise SpecError(f"--runs = {self.runs} tells nothing; {FEWEST_RUNS} are the fewest.")
        _check.fraction("--confidence", self.confidence)


FEWEST_CANARIES, FEWEST_RUNS = 50, 4


def audit(
    prepared: PreparedRun,
    dataset: Dataset,
    settings: AuditSettings,
    *,
    noise: NoiseOf | None = None,
    tick: Tick = no_progress,
) -> Audit:
    """Attack the run that was prepared from a data set, as often as the settings say; `tick` is told of each training.

    Private: what is found is about canaries, but the training reads the real rows; it is not for publication.
    """
    noise, plan, unit = noise or noise_like(prepared, settings.seed), prepared.plan, settings.unit
    if plan.trust is not None:
        return _audit_sums(prepared, settings, noise, tick)
    against = AttackPlan(plan.guarantee(unit), law=_has_law(plan, unit))
    asked: list[WeightedMethod] = []
    looked, canaries = NoiseLaw(), 0
    if can_hold_crowd(prepared):
        crowd = attack_crowd(prepared, noise, unit, settings.canaries, settings.seed)
        canaries, looked = settings.canaries, crowd.noise
        asked += against.crowd(crowd)
        tick()
    single = attack_alone(prepared, noise, unit, settings.runs, settings.seed, tick)
    asked += against.alone(single, final=canaries == 0)
    asked += against.inputs(attack_input(prepared, noise, unit, settings.runs, settings.seed, tick))
    file = FileExperiment.of(prepared, dataset, settings.seed)
    removed = None
    if unit is Unit.SUBJECT and file.telling is not None:
        removed = from_the_file(prepared, file.file, file.telling, noise, settings.runs, settings.seed, tick)
        asked += against.file(removed)
    share = (1 - settings.confidence) / (1 + sum(question.weight for question in asked))
    return Audit(
        policy=plan.policy,
        unit=unit,
        proved=against.proved,
        claimed=_claim(plan, unit),
        confidence=settings.confidence,
        canaries=canaries,
        runs=2 * settings.runs + (canaries > 0) + (0 if removed is None else len(removed.coins)),
        findings=tuple(question.answer(share * question.weight) for question in asked),
        checks=(
            *_checks(prepared, looked + single.noise, share, settings),
            *file.checks(),
        ),
    )


def _audit_sums(prepared: PreparedRun, settings: AuditSettings, noise: NoiseOf, tick: Tick) -> Audit:
    """Attack what a server sees of secure sums, with the help of as many silos as may collude."""
    if settings.unit is not Unit.SUBJECT:
        raise SpecError("An audit of secure sums plants subjects: leave out --unit.")
    plan = prepared.plan
    asked: list[WeightedMethod] = []
    for name, evidence in attack_sums(prepared, noise, settings.canaries, settings.seed):
        asked.append(WeightedMethod(name, SUMS, TRIALS, evidence))
        if evidence.event is not None:
            asked.append(WeightedMethod(name, SUMS, CURVE, evidence, MOST_WEIGHT))
        tick()
    share = (1 - settings.confidence) / sum(question.weight for question in asked)
    return Audit(
        policy=plan.policy,
        unit=settings.unit,
        proved=plan.guarantee(settings.unit),
        claimed=None,
        confidence=settings.confidence,
        canaries=settings.canaries,
        runs=len({question.attack for question in asked}),
        findings=tuple(question.answer(share * question.weight) for question in asked),
        checks=(),
    )


SERVER, FINAL, SUMS = "updates", "model", "sums"
ONE_RUN, TRIALS, CURVE = "one run", "trials", "curve"
METHODS: Mapping[str, Method] = {
    ONE_RUN: estimators.one_run_bound,
    TRIALS: estimators.trials_bound,
    CURVE: estimators.curve_bound,
}
ASSUMES: Mapping[str, str] = {
    ONE_RUN: "nothing but the secret coins",
    TRIALS: "independent trials",
    CURVE: "independent trials, and the event's own curve at some noise",
}
MOST_WEIGHT = 3.0
"""What the attack that should find most counts beside the others."""


@dataclass(frozen=True, eq=False)
class WeightedMethod:
    """A method to be applied to an attack's evidence, with a weight by which the significance is shared."""

    attack: str
    view: str
    method: str
    evidence: AttackEvidence
    weight: float = 1.0

    def answer(self, significance: float) -> AuditFinding:
        """The bound with this significance."""
        bound = METHODS[self.method](self.evidence, significance)
        return AuditFinding(
            attack=self.attack,
            view=self.view,
            method=self.method,
            trials=len(self.evidence.coins),
            epsilon=bound.epsilon,
            refutes=bound.refutes,
            seen=bound.seen,
        )


@dataclass(frozen=True)
class AttackPlan:
    """What to ask of each experiment, held against what was proved; fixed before any of them is made.

    `law` says whether the level is a log-likelihood ratio, whose line is at zero by what it is.
    """

    proved: Guarantee
    law: bool

    @property
    def event(self) -> DpEvent | None:
        """The event that was priced, if the guarantee has one."""
        return self.proved.event if self.proved.standing is Standing.PROVED else None

    def crowd(self, outcome: AttackOutcome) -> Iterator[WeightedMethod]:
        """Many canaries in one run.

        With a coordinate of its own each is a trial as well, if the code is right: none shares noise or coins.
        """
        for score, view, weight in (("level", SERVER, MOST_WEIGHT), ("final", FINAL, 1.0), ("spread", SERVER, 1.0)):
            name, evidence = f"crowd: {score}", self._evidence(outcome, score)
            if score != "spread" or self.event is None:
                yield WeightedMethod(name, view, ONE_RUN, evidence)
            if score == "level":
                yield WeightedMethod(name, view, TRIALS, drop_threshold(evidence), weight)
            if self.event is not None:
                yield WeightedMethod(name, view, CURVE, evidence, weight)

    def alone(self, outcome: AttackOutcome, *, final: bool) -> Iterator[WeightedMethod]:
        """One canary, many runs."""
        views = {"level": SERVER, "spread": SERVER, "louder": SERVER, "quieter": SERVER}
        for score, view in (views | ({"final": FINAL} if final else {})).items():
            name, weight = f"alone: {score}", MOST_WEIGHT if score == "level" else 1.0
            evidence = self._evidence(outcome, score)
            if score == "level" or self.event is None:
                yield WeightedMethod(name, view, TRIALS, drop_threshold(evidence), weight)
            if self.event is not None:
                yield WeightedMethod(name, view, CURVE, evidence, weight)

    def inputs(self, outcome: AttackOutcome) -> Iterator[WeightedMethod]:
        """One canary whose gradients are the model's, many runs."""
        method = TRIALS if self.event is None else CURVE
        for score, view, name in (("level", SERVER, "gradient"), ("final", FINAL, "loss")):
            yield WeightedMethod(f"input: {name}", view, method, drop_threshold(self._evidence(outcome, score)))

    def file(self, outcome: AttackOutcome) -> Iterator[WeightedMethod]:
        """One subject of the file, many runs."""
        method = TRIALS if self.event is None else CURVE
        evidence = replace(self._evidence(outcome, "level"), line=0.0)  # half way between the worlds
        yield WeightedMethod("file: one subject", SERVER, method, evidence)

    def _evidence(self, outcome: AttackOutcome, score: str) -> AttackEvidence:
        line = 0.0 if score == "level" and self.law else None
        return AttackEvidence(outcome.coins, outcome.scores[score], self.proved.delta, self.event, line)


def drop_threshold(evidence: AttackEvidence) -> AttackEvidence:
    """For a line that is drawn: where a likelihood ratio is even is not where most is told about a single ε."""
    return replace(evidence, line=None)


def _claim(plan: Plan, unit: Unit) -> Guarantee | None:
    return plan.claimed if plan.claimed is not None and plan.claimed.unit is unit else None


def _has_law(plan: Plan, unit: Unit) -> bool:
    return all(canary_law(policy, silo, unit, plan.horizon.steps) is not None for policy, silo in plan.rows)


def _checks(prepared: PreparedRun, noise: NoiseLaw, significance: float, settings: AuditSettings) -> Iterator[Check]:
    policy, seed = prepared.plan.rows[0][0], settings.seed
    if noise.values:
        seen = f"{noise.strength:.4f} of its strength, {noise.repetition:.3f} of its variance over updates"
        yield Check("noise where nothing else is", seen, noise.p_value() >= significance)
    if not obstacles(policy, Unit.SUBJECT):
        move = largest_move(prepared, seed)
        yield Check("how far one subject moves the sum", f"{move:.4f} of what is allowed", move <= 1 + SLACK)
    if not obstacles(policy, Unit.SUBJECT) and policy.clip.per is not ClipPer.BATCH:
        move = move_among_many(policy, seed, settings.subjects)
        yield Check(
            f"the same, one of {settings.subjects:,} subjects", f"{move:.4f} of what is allowed", move <= 1 + SLACK
        )
