"""The federation's server as a Flower ServerApp: the same rounds, plan, ledger and run folder, and no data.

`flwr run` starts it with two settings: `spec`, the server's spec, and `out`, the run's folder. A folder that is already
there is resumed.
"""

import logging
import math
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from wholegrain.engines.flower import Flower
from wholegrain.engines.wire import SiloTask, start_task
from wholegrain.errors import RunError, SpecError, WholegrainError
from wholegrain.federation.rounds import State
from wholegrain.gradients.engine import BookKeeping
from wholegrain.gradients.losses import find_loss
from wholegrain.gradients.parameters import flatten
from wholegrain.policies.policy import FixedNoise, Policy
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.runs.observers import RoundDone, SiloDone
from wholegrain.runs.planning import plan_federation, policy_settings, server_of
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import PreparedRun, Run, StartState, execute, open_guard
from wholegrain.runs.spec import FederationSpec, RunSpec, SiloFactsSpec, load
from wholegrain.runs.trained_model import federation_model
from wholegrain.silo.noise_sources import noise_source

log = logging.getLogger("wholegrain.server")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the federation's rounds, from its first or from where they stopped."""
    torch.set_num_threads(1)
    spec, out = context.run_config.get("spec"), context.run_config.get("out")
    if not isinstance(spec, str) or not isinstance(out, str):
        raise SpecError("The app's configuration names no spec or no out: set both in its pyproject.toml.")
    try:
        serve(load(Path(spec)), Path(out), grid)
    except WholegrainError as error:
        log.error("%s", error)
        # Flower shows what led to an exception; of one that is meant for people, the sentence is enough.
        raise error.with_traceback(None) from None


def serve(spec: RunSpec, out: Path, grid: Grid) -> Run:
    """The whole run, recorded in the folder `out`."""
    prepared = prepare_server(spec)
    resumed = (out / "run.json").exists()
    folder = RunFolder.open(out) if resumed else RunFolder.create(out, prepared)
    if resumed and folder.spec.digest != spec.digest:
        raise RunError(f"The run in '{out}' was started with another spec; put it back, or choose another folder.")
    with folder.held():
        start = folder.start(prepared) if resumed else None
        run = _play(prepared, folder, start, _engine(prepared, folder.run, grid))
        folder.finish(run)
    return run


def prepare_server(spec: RunSpec, pricing: Accountant | None = None) -> PreparedRun:
    """A run without data: planned from the public facts of the silos."""
    federation = _federation(spec)
    pricing = pricing or accountant(spec.privacy.accountant)
    plan = plan_federation(spec, federation, pricing)
    learner, loss = federation_model(spec, federation), find_loss(spec.model.loss)
    return PreparedRun(
        spec=spec,
        data="federation",
        plan=plan,
        silos={},
        scored={},
        learner=learner,
        first=flatten(learner.model),
        loss=loss,
        clipped_sum=BookKeeping(learner.trained, loss),
        noise=noise_source(spec.privacy.noise, spec.seed),
        server=server_of(spec),
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
        settings=policy_settings(spec),
        noise_multiplier=policy.noise.multiplier,
        learning_rate=spec.rounds.learning_rate,
        model=spec.model.name,
        options=spec.model.options,
        start=start_task(prepared.public),
        loss=spec.model.loss,
    )


def _engine(prepared: PreparedRun, run: str, grid: Grid) -> Flower:
    tasks = {facts.name: make_task(prepared, policy, run) for policy, facts in prepared.plan.rows}
    federation = _federation(prepared.spec)
    return Flower(
        grid, tasks, federation.patience, {silo.name: _expected_facts(federation, silo) for silo in federation.silos}
    )


def _expected_facts(federation: FederationSpec, silo: SiloFactsSpec) -> dict[str, int | None]:
    """What a silo must say of itself, for the plan to be about it."""
    return {
        "items": silo.items,
        "subjects": silo.subjects,
        "items_per_subject": silo.items_per_subject,
        "features": math.prod(federation.shape),
        "classes": federation.classes,
    }


def _play(prepared: PreparedRun, folder: RunFolder, start: StartState | None, engine: Flower) -> Run:
    def record(done: RoundDone, state: State) -> None:
        folder.add_round(done, state, prepared.spec.rounds.checkpoint_every)

    missing = set(engine.tasks) - engine.wait_for(set(engine.tasks), engine.patience)
    if engine.misfits:
        silo, why = next(iter(engine.misfits.items()))
        raise RunError(f"Silo '{silo}' is not what the spec says: {why}. Nothing was asked of any silo; mend the spec.")
    for silo in sorted(missing):
        log.warning("silo '%s' is not connected", silo)
    with open_guard(prepared, folder.run, folder.path, create=False) as guard:
        return execute(prepared, guard, engine=engine, start=start, record=record, observe=_tell)


def _tell(event: SiloDone | RoundDone) -> None:
    if isinstance(event, SiloDone):
        return
    for fault in event.faults:
        log.warning("round %d: silo '%s': %s", event.round, fault.silo, fault.reason)
    outcome = "failed" if event.failed else "done"
    log.warning("round %d %s in %.1f s, ε spent %.4g", event.round, outcome, event.seconds, event.epsilon)


def _federation(spec: RunSpec) -> FederationSpec:
    if spec.federation is None:
        raise SpecError("The spec describes no silos: a server needs the section [federation].")
    return spec.federation
