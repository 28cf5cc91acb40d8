"""The federation's server: the same rounds, plan, ledger and run folder as any run, and no data.

A run folder that is already there is resumed.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.app import MessageType
from flwr.serverapp import Grid

from wholegrain.clipping.engine import BookKeeping
from wholegrain.clipping.losses import find_loss
from wholegrain.clipping.parameters import flatten
from wholegrain.deploy.round_gate import RoundGate
from wholegrain.engines import platform_faults
from wholegrain.engines.flower import Flower
from wholegrain.engines.flower_sums import FlowerSums
from wholegrain.engines.roll_call import RollCall
from wholegrain.engines.score_engine import ScoreSums
from wholegrain.engines.secure_sum_engine import SecureSums
from wholegrain.engines.silo_heads import SiloHeads
from wholegrain.engines.wire import SiloTask, start_task
from wholegrain.errors import RunError, SpecError
from wholegrain.federation.messages import Engine, ScoreEngine
from wholegrain.federation.round_record import RoundRecord
from wholegrain.federation.rounds import State
from wholegrain.federation.server_optimiser import Server
from wholegrain.policies.policy import FixedNoise, Policy, SiloFacts
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.runs.observers import SiloAnswer
from wholegrain.runs.planning import plan_federation, policy_settings
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.run_result import RunResult
from wholegrain.runs.runner import StartState, execute, open_guard
from wholegrain.runs.score_planning import held_share
from wholegrain.runs.setting_origins import find_origins
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec_sections import FederationSpec
from wholegrain.runs.trained_model import federation_model
from wholegrain.silo.noise_sources import noise_source

log = logging.getLogger("wholegrain.server")

Keys = Mapping[str, EllipticCurvePublicKey]


def serve(spec: RunSpec, out: Path, grid: Grid, keys: Keys | None = None, heads: SiloHeads | None = None) -> RunResult:
    """The whole run, recorded in the folder `out`; `keys` are the roster's, by which silos are known.

    `heads` is what these silos have said of their ledgers, in this run and before it.
    """
    prepared = prepare_server(spec)
    resumed = RunFolder.holds_run(out)
    folder = RunFolder.open(out) if resumed else RunFolder.create(out, prepared)
    if resumed and folder.spec.digest != spec.digest:
        raise RunError(f"The run in '{out}' was started with another spec; put it back, or choose another folder.")
    with folder.lock():
        start = folder.start(prepared) if resumed else None
        run = _play(prepared, folder, start, _line(prepared, folder.run, grid, keys, heads))
        platform_faults.again_and_again(lambda: folder.finish(run))
    return run


def prepare_server(spec: RunSpec, pricing: Accountant | None = None) -> PreparedRun:
    """A run without data: planned from the public facts of the silos."""
    federation = _federation(spec)
    pricing = pricing or accountant(spec.privacy.accountant)
    plan = plan_federation(spec, federation, pricing)
    learner, loss = federation_model(spec, federation), find_loss(spec.model.loss, federation.task)
    return PreparedRun(
        spec=spec,
        data="federation",
        plan=plan,
        silos={},
        scored={},
        groups={},
        learner=learner,
        task=federation.task,
        features=math.prod(federation.shape),
        first=flatten(learner.model),
        loss=loss,
        clipped_sum=BookKeeping(learner.trained, loss),
        noise=noise_source(spec.privacy.noise, spec.seed),
        server=Server.of(spec.server),
        origins=find_origins(spec, ()),
    )


def make_task(prepared: PreparedRun, policy: Policy, run: str) -> SiloTask:
    """What a silo is asked, but for the round. Of a backbone it is told the digest; it has a copy of its own."""
    assert isinstance(policy.noise, FixedNoise)
    spec = prepared.spec
    return SiloTask(
        run=run,
        spec=spec.digest,
        round=0,
        steps=spec.rounds.steps,
        policy=spec.policy.name,
        settings=policy_settings(spec, len(prepared.plan.rows)),
        noise_multiplier=policy.noise.multiplier,
        learning_rate=spec.rounds.learning_rate,
        model=spec.model.name,
        options=spec.model.options,
        start=start_task(prepared.public),
        loss=spec.model.loss or prepared.task.loss,
        scores=None if prepared.plan.scores is None else prepared.plan.scores.form,
    )


def _line(prepared: PreparedRun, run: str, grid: Grid, keys: Keys | None, heads: SiloHeads | None) -> Flower:
    """The line to the silos, with what each of them is asked."""
    tasks = {facts.name: make_task(prepared, policy, run) for policy, facts in prepared.plan.rows}
    federation = _federation(prepared.spec)
    scored = None if prepared.plan.scores is None else held_share(prepared.spec)
    expected = {silo.name: _expected_facts(federation, silo, scored) for silo in federation.silos}
    if prepared.spec.policy.by_span:
        expected = {name: {**facts, "knows_spans": True} for name, facts in expected.items()}
    return Flower(grid, tasks, federation.patience, expected, keys, heads=heads or SiloHeads())


def _engine(prepared: PreparedRun, line: Flower) -> Engine:
    """What plays the rounds over the line: each silo's release, or only sums."""
    trust = prepared.plan.trust
    if trust is None:
        return line
    return SecureSums(FlowerSums(line), prepared.plan, trust, prepared.spec.rounds.learning_rate)


def _score_engine(prepared: PreparedRun, line: Flower) -> ScoreEngine:
    """What asks for private scores over the line: each silo's, or only their sum."""
    plan, trust = prepared.plan.scores, prepared.plan.trust
    if plan is None or trust is None:
        return line
    post = FlowerSums(line, MessageType.EVALUATE)
    return ScoreSums(plan, SecureSums(post, prepared.plan, trust, prepared.spec.rounds.learning_rate))


def _expected_facts(
    federation: FederationSpec, silo: SiloFacts, scored: float | None
) -> dict[str, int | float | str | None]:
    """What a silo must say of itself, for the plan to be about it."""
    return {
        "items": silo.items,
        "subjects": silo.subjects,
        "items_per_subject": silo.items_per_subject,
        "features": math.prod(federation.shape),
        **federation.task.stated(),
        **({} if scored is None else {"held_out": scored}),
    }


def _play(prepared: PreparedRun, folder: RunFolder, start: StartState | None, line: Flower) -> RunResult:
    roll = RollCall(line, _fewest(prepared))
    roll.wait_for_all(line.tasks, line.patience)
    if line.misfits:
        silo, why = next(iter(line.misfits.items()))
        raise RunError(f"Silo '{silo}' is not what the spec says: {why}. Nothing was asked of any silo; mend the spec.")
    for silo in sorted(set(line.tasks) - set(line.connected(set())) - set(line.put_back)):
        log.warning("silo '%s' is not connected", silo)
    with open_guard(prepared, folder.run, folder.path, create=False) as guard:
        engine, scores = _engine(prepared, line), _score_engine(prepared, line)
        gate = RoundGate(guard, roll)

        def record(done: RoundRecord, state: State) -> None:
            every = prepared.spec.rounds.checkpoint_every
            platform_faults.again_and_again(lambda: folder.add_round(done, state, every))
            gate.note(done)

        return execute(
            prepared,
            guard,
            engine=engine,
            start=start,
            record=record,
            observe=_tell,
            score_engine=scores,
            payer=gate,
        )


def _fewest(prepared: PreparedRun) -> int:
    """The fewest silos with which a round can come to something."""
    trust = prepared.plan.trust
    return max(prepared.spec.rounds.fewest_silos, 1 if trust is None else trust.answers)


def _tell(event: SiloAnswer | RoundRecord) -> None:
    if isinstance(event, SiloAnswer):
        return
    for fault in event.faults:
        log.warning("round %d: silo '%s': %s", event.round, fault.silo, fault.reason)
    outcome = "failed" if event.failed else "done"
    log.warning("round %d %s in %.1f s, ε spent %.4g", event.round, outcome, event.seconds, event.epsilon)


def _federation(spec: RunSpec) -> FederationSpec:
    if spec.federation is None:
        raise SpecError("The spec describes no silos: a server needs the section [federation].")
    return spec.federation
