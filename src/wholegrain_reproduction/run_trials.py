"""Runs of an experiment: each in a folder of its own, not done again once finished, gone on with where it stopped.

One run that fails does not lose the others. Every process has one thread, so that results do not depend on how many
processes there are.
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
from wholegrain.federation.rounds import State
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.observers import RoundDone
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.runner import Prepared, execute, guarded, prepare
from wholegrain.runs.spec import DataSpec, RunSpec
from wholegrain_reproduction.subject_epsilon import Worth, worth_of_run
from wholegrain_reproduction.trials import OF_PAPER, Trial


@dataclass(frozen=True)
class Outcome:
    """What became of a trial: a word, and where it failed the reason in one sentence."""

    trial: Trial
    done: str
    error: str = ""


Told = Callable[[Outcome], None]


def play_all(trials: Sequence[Trial], out: Path, processes: int, tell: Told) -> list[Outcome]:
    """Play all trials; those that are put beside a printed run come after it."""
    first = [trial for trial in trials if trial.beside is None]
    then = [trial for trial in trials if trial.beside is not None]
    return [outcome for part in (first, then) for outcome in _play_part(part, out, processes, tell)]


def play(trial: Trial, out: Path) -> Outcome:
    """Play one trial to its end, whatever is already there."""
    try:
        with _timed(out / trial.key):
            return Outcome(trial, _play(trial, out / trial.key, out))
    except WholegrainError as error:
        return Outcome(trial, "failed", str(error))
    except Exception as error:  # whatever it is, the other runs go on
        return Outcome(trial, "failed", f"{type(error).__name__}: {_check.reason(error)}.")


def worth_file(folder: Path) -> Path:
    """Where what a printed run is worth stands: beside its folder."""
    return folder.with_name(f"{folder.name}.worth.json")


def time_file(folder: Path) -> Path:
    """Where it stands how long a processor was at a run: beside its folder."""
    return folder.with_name(f"{folder.name}.time.json")


def read_seconds(folder: Path) -> float:
    """How long a processor was at the run in this folder, over all calls that went on with it."""
    try:
        return float(json.loads(time_file(folder).read_text(encoding="utf-8"))["processor_seconds"])
    except (OSError, ValueError, TypeError, KeyError):  # nothing but a page's figure hangs on it
        return 0.0


def read_worth(folder: Path) -> Worth | None:
    """What the run in this folder is worth, where that is known."""
    try:
        return Worth.of(json.loads(worth_file(folder).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RunError(f"'{worth_file(folder)}' cannot be read: {_check.reason(error)}; remove it.") from error


def _play_part(trials: list[Trial], out: Path, processes: int, tell: Told) -> list[Outcome]:
    if processes == 1 or len(trials) < 2:
        with _one_thread():
            return [_told(play(trial, out), tell) for trial in trials]
    outcomes: dict[str, Outcome] = {}
    for _ in range(2):  # a process that is killed breaks the pool; what it left is tried once more
        for outcome in _pooled([trial for trial in trials if trial.key not in outcomes], out, processes):
            outcomes[outcome.trial.key] = _told(outcome, tell)
    lost = "a process ended in the middle of a run; call the command again to go on."
    missing = [trial for trial in trials if trial.key not in outcomes]
    return [*outcomes.values(), *(_told(Outcome(trial, "failed", lost), tell) for trial in missing)]


def _pooled(trials: list[Trial], out: Path, processes: int) -> Iterator[Outcome]:
    """The outcomes as they come; none for what a broken pool has lost."""
    if not trials:
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(processes, len(trials)), mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        futures: list[Future[Outcome]] = [pool.submit(play, trial, out) for trial in trials]
        for future in as_completed(futures):
            with contextlib.suppress(BrokenProcessPool):
                yield future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()  # whatever it was at can be gone on with
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
def _timed(folder: Path) -> Iterator[None]:
    """Add what this takes to what earlier calls took, unless the run is finished already."""
    finished, before = (folder / "summary.json").exists(), time.process_time()
    try:
        yield
    finally:
        if folder.exists() and not finished:
            seconds = read_seconds(folder) + time.process_time() - before
            write_whole(time_file(folder), (json.dumps({"processor_seconds": round(seconds, 3)}) + "\n").encode())


def _told(outcome: Outcome, tell: Told) -> Outcome:
    tell(outcome)
    return outcome


def _play(trial: Trial, folder: Path, out: Path) -> str:
    if (folder / "run.json").exists():
        return _go_on(trial, RunFolder.open(folder))
    spec = trial.spec
    if trial.beside is not None:
        epsilon = _epsilon_beside(trial, out)
        if math.isinf(epsilon):  # what is worth nothing has no sound counterpart
            return "skipped"
        spec = _with_epsilon(spec, _rounded_down(epsilon))
    prepared = _prepare(spec)
    _keep_worth(trial, prepared, folder)
    run = RunFolder.create(folder, prepared)
    with run.held():
        _execute(prepared, run)
    return "done"


def _go_on(trial: Trial, run: RunFolder) -> str:
    kept = run.spec
    if kept != (trial.spec if trial.beside is None else _with_epsilon(trial.spec, kept.privacy.epsilon)):
        raise RunError(f"The run in '{run.path}' was made with other settings; choose another --out, or remove it.")
    known = trial.kind not in OF_PAPER or worth_file(run.path).exists()
    if run.finished and known:
        return "already done"
    with run.held():
        prepared = _prepare(kept)
        _keep_worth(trial, prepared, run.path)
        if not run.finished:
            _execute(prepared, run)
    return "gone on with"


def _execute(prepared: Prepared, folder: RunFolder) -> None:
    def record(done: RoundDone, state: State) -> None:
        folder.add_round(done, state, prepared.spec.rounds.checkpoint_every)

    with guarded(prepared, folder.run, folder.path, create=False) as guard:
        folder.finish(execute(prepared, guard, start=folder.start(prepared), record=record))


def _prepare(spec: RunSpec) -> Prepared:
    return prepare(spec, dataset=_dataset(spec.data.model_dump_json()))


@lru_cache(maxsize=1)
def _dataset(data: str) -> Dataset:
    """Runs of one process mostly share their data."""
    return load_dataset(RunSpec(data=DataSpec.model_validate_json(data)))


def _keep_worth(trial: Trial, prepared: Prepared, folder: Path) -> None:
    if trial.kind not in OF_PAPER or worth_file(folder).exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_whole(worth_file(folder), (json.dumps(worth_of_run(prepared, trial.bound).facts()) + "\n").encode())


def _epsilon_beside(trial: Trial, out: Path) -> float:
    found = read_worth(out / str(trial.beside))
    if found is None:
        raise RunError(f"What '{trial.beside}' is worth is not known, because that run has not been made.")
    return found.epsilon(Unit(trial.spec.privacy.unit))


def _with_epsilon(spec: RunSpec, epsilon: float | None) -> RunSpec:
    return spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"epsilon": epsilon})})


def _rounded_down(epsilon: float) -> float:
    """To four digits.

    >>> _rounded_down(8.25599)
    8.255
    """
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return float(f"{math.floor(epsilon / unit) * unit:.10g}")
