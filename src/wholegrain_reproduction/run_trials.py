"""Run the trials of an experiment, each in its own folder.

A finished run is not repeated, an interrupted one resumes, and one that fails does not stop the others. Every process
has one thread, so that results do not depend on the number of processes.
"""

import contextlib
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from wholegrain import _check
from wholegrain._files import write_whole
from wholegrain.data.dataset import Dataset
from wholegrain.errors import RunError, WholegrainError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.federation.rounds import State
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec_sections import DataSpec
from wholegrain_reproduction.subject_epsilon import TrueEpsilon, price_printed_run
from wholegrain_reproduction.trials import JUDGED_KINDS, PAPER_KINDS, PaperTrial


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: its status in a word or two and, if it failed, the reason in one sentence."""

    trial: PaperTrial
    status: str
    error: str = ""


OnOutcome = Callable[[Outcome], None]
"""Called with each outcome as it comes."""


def run_all(trials: Sequence[PaperTrial], out: Path, processes: int, tell: OnOutcome) -> list[Outcome]:
    """Run all trials: first those from which claims are judged, last those that take their ε from a printed run."""
    first = [trial for trial in trials if trial.counterpart is None]
    first.sort(key=lambda trial: trial.kind not in JUDGED_KINDS)  # a call that is stopped early has judged the most
    then = [trial for trial in trials if trial.counterpart is not None]
    return [outcome for part in (first, then) for outcome in _run_part(part, out, processes, tell)]


def run_trial(trial: PaperTrial, out: Path) -> Outcome:
    """Run one trial to its end, from wherever an earlier call left it."""
    try:
        with _add_time(out / trial.key):
            return Outcome(trial, _run(trial, out / trial.key, out))
    except WholegrainError as error:
        return Outcome(trial, "failed", str(error))
    except Exception as error:  # whatever it is, the other runs go on
        return Outcome(trial, "failed", f"{type(error).__name__}: {_check.reason(error)}.")


def true_epsilon_file(folder: Path) -> Path:
    """The file with the true ε of a printed run: beside its folder."""
    return folder.with_name(f"{folder.name}.worth.json")


def time_file(folder: Path) -> Path:
    """The file with the processor time of a run: beside its folder."""
    return folder.with_name(f"{folder.name}.time.json")


def read_seconds(folder: Path) -> float:
    """Processor time of the run in this folder, summed over all calls that worked on it."""
    try:
        return float(json.loads(time_file(folder).read_text(encoding="utf-8"))["processor_seconds"])
    except (OSError, ValueError, TypeError, KeyError):  # only a figure on the page depends on it
        return 0.0


def read_true_epsilon(folder: Path) -> TrueEpsilon | None:
    """The true ε of the run in this folder, or None if it has not been computed."""
    try:
        return TrueEpsilon.of(json.loads(true_epsilon_file(folder).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RunError(f"'{true_epsilon_file(folder)}' cannot be read: {_check.reason(error)}; remove it.") from error


def _run_part(trials: list[PaperTrial], out: Path, processes: int, tell: OnOutcome) -> list[Outcome]:
    if processes == 1 or len(trials) < 2:
        with _one_thread():
            return [_tell(run_trial(trial, out), tell) for trial in trials]
    outcomes: dict[str, Outcome] = {}
    for _ in range(2):  # a killed process breaks the pool; what it left undone is tried once more
        for outcome in _run_in_pool([trial for trial in trials if trial.key not in outcomes], out, processes):
            outcomes[outcome.trial.key] = _tell(outcome, tell)
    lost = "a process ended in the middle of a run; call the command again to go on."
    missing = [trial for trial in trials if trial.key not in outcomes]
    return [*outcomes.values(), *(_tell(Outcome(trial, "failed", lost), tell) for trial in missing)]


def _run_in_pool(trials: list[PaperTrial], out: Path, processes: int) -> Iterator[Outcome]:
    """The outcomes as they come; none for trials that a broken pool has lost."""
    if not trials:
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(processes, len(trials)), mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        futures: list[Future[Outcome]] = [pool.submit(run_trial, trial, out) for trial in trials]
        for future in as_completed(futures):
            with contextlib.suppress(BrokenProcessPool):
                yield future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()  # its run can be resumed
        raise
    pool.shutdown()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _add_time(folder: Path) -> Iterator[None]:
    """Add the processor time of this block to that of earlier calls, unless the run is finished already."""
    finished = RunFolder.holds_run(folder) and RunFolder.open(folder).finished
    before = time.process_time()
    try:
        yield
    finally:
        if folder.exists() and not finished:
            seconds = read_seconds(folder) + time.process_time() - before
            write_whole(time_file(folder), (json.dumps({"processor_seconds": round(seconds, 3)}) + "\n").encode())


def _tell(outcome: Outcome, tell: OnOutcome) -> Outcome:
    tell(outcome)
    return outcome


def _run(trial: PaperTrial, folder: Path, out: Path) -> str:
    if RunFolder.holds_run(folder):
        return _resume(trial, RunFolder.open(folder))
    spec = trial.spec
    if trial.counterpart is not None:
        epsilon = _counterpart_epsilon(trial, out)
        if math.isinf(epsilon):  # no sound policy has an infinite ε
            return "skipped"
        spec = _set_epsilon(spec, _round_down(epsilon))
    prepared = _prepare(spec)
    _keep_true_epsilon(trial, prepared, folder)
    run = RunFolder.create(folder, prepared)
    with run.lock():
        _execute(prepared, run)
    return "done"


def _resume(trial: PaperTrial, run: RunFolder) -> str:
    kept = run.spec
    if kept != (trial.spec if trial.counterpart is None else _set_epsilon(trial.spec, kept.privacy.epsilon)):
        raise RunError(f"The run in '{run.path}' was made with other settings; choose another --out, or remove it.")
    known = trial.kind not in PAPER_KINDS or true_epsilon_file(run.path).exists()
    if run.finished and known:
        return "already done"
    with run.lock():
        prepared = _prepare(kept)
        _keep_true_epsilon(trial, prepared, run.path)
        if not run.finished:
            _execute(prepared, run)
    return "gone on with"


def _execute(prepared: PreparedRun, folder: RunFolder) -> None:
    def record(done: RoundRecord, state: State) -> None:
        folder.add_round(done, state, prepared.spec.rounds.checkpoint_every)

    with open_guard(prepared, folder.run, folder.path, create=False) as guard:
        folder.finish(execute(prepared, guard, start=folder.start(prepared), record=record))


def _prepare(spec: RunSpec) -> PreparedRun:
    return prepare(spec, dataset=_dataset(spec.data.model_dump_json()))


@lru_cache(maxsize=1)
def _dataset(data: str) -> Dataset:
    """Most runs of one process share their data."""
    return load_dataset(RunSpec(data=DataSpec.model_validate_json(data)))


def _keep_true_epsilon(trial: PaperTrial, prepared: PreparedRun, folder: Path) -> None:
    if trial.kind not in PAPER_KINDS or true_epsilon_file(folder).exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    facts = price_printed_run(prepared, trial.bound).facts()
    write_whole(true_epsilon_file(folder), (json.dumps(facts) + "\n").encode())


def _counterpart_epsilon(trial: PaperTrial, out: Path) -> float:
    found = read_true_epsilon(out / str(trial.counterpart))
    if found is None:
        raise RunError(f"What '{trial.counterpart}' is worth is not known, because that run has not been made.")
    return found.epsilon(Unit(trial.spec.privacy.unit))


def _set_epsilon(spec: RunSpec, epsilon: float | None) -> RunSpec:
    return spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"epsilon": epsilon})})


def _round_down(epsilon: float) -> float:
    """To four digits.

    >>> _round_down(8.25599)
    8.255
    """
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return float(f"{math.floor(epsilon / unit) * unit:.10g}")
