"""Progress of a run: bars on a terminal, a few plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from wholegrain.cli import display
from wholegrain.policies.plan import Plan
from wholegrain.runs.observers import Observer, RoundDone, SiloDone

PLAIN_LINES = 10


@contextmanager
def watching(plan: Plan, label: str, quiet: bool = False) -> Iterator[Observer]:
    """An observer that shows rounds, silos and ε spent so far."""
    if quiet:
        yield lambda event: None
    elif display.err.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=display.err, transient=True) as bars:
            yield _Bars(bars, plan, label)
    else:
        yield _Lines(plan, label)


class _Bars:
    """Two bars: rounds of the run, silos of the round."""

    def __init__(self, bars: Progress, plan: Plan, label: str) -> None:
        self.bars, self.label = bars, label
        self.rounds: TaskID = bars.add_task(label, total=plan.horizon.rounds)
        self.silos: TaskID = bars.add_task("silos", total=plan.horizon.cohort_count)

    def __call__(self, event: SiloDone | RoundDone) -> None:
        if isinstance(event, SiloDone):
            self.bars.advance(self.silos)
        else:
            self.bars.reset(self.silos)
            spent = f"{self.label}: ε spent {display.number(event.epsilon)}"
            self.bars.update(self.rounds, advance=1, description=spent)


class _Lines:
    """About ten lines for a whole run."""

    def __init__(self, plan: Plan, label: str) -> None:
        self.total, self.label = plan.horizon.rounds, label
        self.every = max(1, self.total // PLAIN_LINES)

    def __call__(self, event: SiloDone | RoundDone) -> None:
        if isinstance(event, SiloDone):
            return
        done = event.round + 1
        if done % self.every == 0 or done == self.total:
            scores = ", ".join(f"{name} accuracy {score.accuracy:.4f}" for name, score in event.scores.items())
            display.err.print(
                f"{self.label}: round {done}/{self.total}, ε spent {display.number(event.epsilon)}; {scores}",
                markup=False,
            )
