"""Bars that show how far a run is, on a terminal and in a notebook."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from wholegrain.errors import SpecError
from wholegrain.federation.round_record import RoundRecord
from wholegrain.policies.plan import Plan
from wholegrain.runs.observers import Observer, SiloAnswer, ignore


@contextmanager
def show_bars(plan: Plan, label: str, console: Console) -> Iterator[Observer]:
    """An observer that draws two bars while the run goes on, and takes them away in the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        yield _Bars(bars, plan, label)


@contextmanager
def show_progress(plan: Plan, asked: bool | None) -> Iterator[Observer]:
    """Bars if they are asked for, or if nobody says and somebody can see them: on a terminal, or in a notebook."""
    console = Console(stderr=True)
    if asked is False or (asked is None and not (console.is_terminal or console.is_jupyter)):
        yield ignore
        return
    with show_bars(plan, plan.policy, console) as observe:
        yield observe


class _Bars:
    """Rounds of the run, silos of the round."""

    def __init__(self, bars: Progress, plan: Plan, label: str) -> None:
        self.bars, self.label = bars, label
        self.rounds: TaskID = bars.add_task(label, total=plan.horizon.rounds)
        self.silos: TaskID = bars.add_task("silos", total=plan.horizon.cohort_count)

    def __call__(self, event: SiloAnswer | RoundRecord) -> None:
        if isinstance(event, SiloAnswer):
            self.bars.advance(self.silos)
        else:
            self.bars.reset(self.silos)
            spent = "∞" if event.epsilon == float("inf") else f"{event.epsilon:.4g}"
            self.bars.update(self.rounds, advance=1, description=f"{self.label}: ε spent {spent}")


def read_callbacks(callbacks: Any) -> Observer:
    """One observer of one or several callbacks: functions of an event, or objects with `on_round` or `on_silo`."""
    if callbacks is None:
        return ignore
    several = callbacks if isinstance(callbacks, Iterable) else [callbacks]
    observers = [_read_callback(each) for each in several]

    def tell(event: SiloAnswer | RoundRecord) -> None:
        for observe in observers:
            observe(event)

    return tell


def _read_callback(callback: Any) -> Observer:
    on_round, on_silo = getattr(callback, "on_round", None), getattr(callback, "on_silo", None)
    if on_round is None and on_silo is None:
        if not callable(callback):
            raise SpecError(f"A callback is a function, or an object with on_round or on_silo, not {callback!r}.")
        return callback  # type: ignore[no-any-return]

    def tell(event: SiloAnswer | RoundRecord) -> None:
        told: Callable[[Any], None] | None = on_round if isinstance(event, RoundRecord) else on_silo
        if told is not None:
            told(event)

    return tell
