"""Paid tuning: random trials, each trained and scored privately, of which the best alone is kept.

What is proved is proved of the best trial's releases, and of nothing else. So in a release:

- It is paid for, as one release, before the first trial begins.
- How many trials there are is drawn by the operating system, and is written nowhere that lasts: whoever knows the
  number knows more than was priced. How long the tuning took hints at it; keep that to yourself as well.
- Trials are kept in a folder that only this user can read, so that an interrupted tuning can go on, and that folder is
  removed when the best is chosen. A trial that was interrupted is made anew: nobody has seen anything of it. This
  assumes that whoever interrupts does not look into the folder.
- Every trial has noise of its own. Nothing is scored that is not paid for.

A simulation keeps the trials, to look at; it protects nobody anyway.
"""

import contextlib
import json
import math
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from wholegrain._files import private_folder, write_whole
from wholegrain._random import Purpose, derive, generator
from wholegrain.errors import RunError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.privacy.definitions import Guarantee
from wholegrain.privacy.ledger import Ledger
from wholegrain.runs.accounts import Bill, guard_run, open_ledger, release_ledger
from wholegrain.runs.ledger_registry import LEDGER, ledger_path
from wholegrain.runs.run_folder import PaidRun, RunFolder, new_run, require_free
from wholegrain.runs.run_result import PlayedRounds, RunResult, make_result
from wholegrain.runs.runner import prepare
from wholegrain.runs.tuning_plan import TRIALS
from wholegrain.runs.tuning_setup import PreparedTuning
from wholegrain.runs.tuning_space import Settings
from wholegrain.runs.tuning_trials import Trial, TrialJob, loaded_data, play_trials, read_trial, trial_file

STATE = "tuning.json"


@dataclass(frozen=True, eq=False)
class TuningResult:
    """What a tuning gave: the chosen run, or None where the number of trials was 0 or all of them failed.

    Private: `trials`, of which a release has none.
    """

    guarantees: tuple[Guarantee, ...]
    chosen: RunResult | None
    settings: Settings
    folder: Path | None
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class _State:
    """What an interrupted tuning goes on with. Private: how many trials there are, and what is drawn from."""

    run: str
    digest: str
    trials: int
    seed: int


def tune(
    prepared: PreparedTuning, out: Path | None = None, processes: int = 1, tell: Callable[[Trial], None] | None = None
) -> TuningResult:
    """Pay, make all trials, and keep the best.

    With `out`, the chosen run has its folder there, and a tuning that was interrupted goes on. In a release nobody is
    told of a trial.
    """
    if out is None:
        with contextlib.ExitStack() as stack:
            work = Path(stack.enter_context(_private_work()))
            return _tune_in(prepared, work, None, processes, tell)
    require_free(out)
    work = out.absolute().with_name(f".{out.name}.tuning")
    private_folder(work)
    result = _tune_in(prepared, work, out, processes, tell)
    shutil.rmtree(work)
    return result


@contextlib.contextmanager
def _private_work() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="wholegrain-tuning-") as folder:
        yield folder


def _tune_in(
    prepared: PreparedTuning, work: Path, out: Path | None, processes: int, tell: Callable[[Trial], None] | None
) -> TuningResult:
    state = _begin(prepared, work)
    with _paid_ledger(prepared, state.run, work) as ledger:
        done = _make_trials(prepared, work, state, processes, None if prepared.is_release else tell)
        best = max((trial for trial in done if math.isfinite(trial.score)), key=lambda each: each.score, default=None)
        if best is None:
            return TuningResult(prepared.guarantees, None, {}, None, _shown(prepared, done))
        chosen = _read_chosen(prepared, work, best, ledger, state.run)
        if out is not None:
            _keep(prepared, chosen, best, out, PaidRun(state.run, _own_ledger(prepared, work)))
        return TuningResult(chosen.guarantees, chosen, best.settings, out, _shown(prepared, done))


def _shown(prepared: PreparedTuning, done: Sequence[Trial]) -> tuple[Trial, ...]:
    return () if prepared.is_release else tuple(done)


def _begin(prepared: PreparedTuning, work: Path) -> _State:
    """What was drawn when this tuning began, or now: the number of trials, and the seed of their settings."""
    digest = json.dumps([prepared.spec.digest, prepared.space.facts(), str(prepared.selection.count)])
    path = work / STATE
    if path.exists():
        state = _State(**json.loads(path.read_text(encoding="utf-8")))
        if state.digest != digest:
            raise RunError(f"'{work}' holds a tuning of another spec or space; remove it, or choose another --out.")
        return state
    if prepared.is_release:
        uniform, seed = (secrets.randbits(53) + 0.5) * 2.0**-53, secrets.randbits(128)
    else:
        uniform = float(generator(prepared.spec.seed, Purpose.TUNING, "count").uniform())
        seed = derive(prepared.spec.seed, Purpose.TUNING, "trials")
    state = _State(new_run(), digest, prepared.selection.count.count_at(uniform), seed)
    write_whole(path, json.dumps(asdict(state)).encode(), private=True)
    return state


@contextlib.contextmanager
def _paid_ledger(prepared: PreparedTuning, run: str, work: Path) -> Iterator[Ledger]:
    """The ledger, in which the best trial is paid for."""
    base, spec = prepared.base, prepared.spec
    own = _own_ledger(prepared, work)
    path = own or ledger_path(spec, None)
    if prepared.is_release and path is not None:
        opened: contextlib.AbstractContextManager[Ledger] = release_ledger(path, spec.ledger.data or base.data)
    else:
        opened = open_ledger(path)
    selection = prepared.selection
    bill = Bill(selection.terms, {TRIALS: 1}, {}, f"best of {selection.count} trials of {base.plan.policy}")
    plan = replace(base.plan, budget=prepared.budget, guarantees=prepared.guarantees)
    with opened as ledger:
        guard = guard_run(ledger, run, spec, base.data, plan, base.noise, bill)
        if not ledger.state.runs[run].has_spent:
            guard.confirm(guard.reserve(0, {TRIALS: 1}, "the best of all trials"), [TRIALS])
        yield ledger


def _own_ledger(prepared: PreparedTuning, work: Path) -> Path | None:
    """Where a simulation that names no ledger keeps its own; None where the spec, or the machine, has one."""
    return None if prepared.is_release or prepared.spec.ledger.path is not None else work / LEDGER


def _make_trials(
    prepared: PreparedTuning, work: Path, state: _State, processes: int, tell: Callable[[Trial], None] | None
) -> list[Trial]:
    """All trials, those that are there already and those that are still to be made."""
    done = [trial for number in range(state.trials) if (trial := read_trial(work, number)) is not None]
    left = sorted(set(range(state.trials)) - {trial.number for trial in done})
    jobs = [TrialJob(work, state.seed, number) for number in left]
    for trial in play_trials(prepared, jobs, processes):
        done.append(trial)
        if tell is not None:
            tell(trial)
    return sorted(done, key=lambda each: each.number)


def _read_chosen(prepared: PreparedTuning, work: Path, best: Trial, ledger: Ledger, run: str) -> RunResult:
    """The chosen trial as a finished run, with the guarantee of the best of all trials."""
    base = prepare(prepared.trial_spec(best.settings), dataset=prepared.dataset or loaded_data(prepared))
    lines = trial_file(work, best.number, "jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    rounds = tuple(RoundRecord.read(line) for line in lines)
    vector = torch.from_numpy(np.frombuffer(trial_file(work, best.number, "vector").read_bytes(), "<f4").copy())
    plan = replace(base.plan, guarantees=prepared.guarantees)
    return make_result(replace(base, plan=plan), PlayedRounds(rounds, vector), ledger, run)


def _keep(prepared: PreparedTuning, chosen: RunResult, best: Trial, out: Path, paid: PaidRun) -> None:
    """The chosen run in its folder, whole or not at all."""
    run = prepare(chosen.spec, dataset=prepared.dataset or loaded_data(prepared))
    folder = RunFolder.create(out, replace(run, plan=chosen.plan, origins=prepared.origins), paid)
    with folder.lock():
        folder.add_earlier_rounds(chosen.rounds)
        folder.finish(chosen)
