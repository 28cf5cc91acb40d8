"""Progress of a run: bars on a terminal, a few plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from wholegrain.api.progress_bars import show_bars
from wholegrain.cli import display
from wholegrain.federation.round_record import RoundRecord, Score
from wholegrain.policies.plan import Plan
from wholegrain.runs.observers import Observer, SiloAnswer

PLAIN_LINES = 10


@contextmanager
def show_rounds(plan: Plan, label: str, quiet: bool = False) -> Iterator[Observer]:
    """An observer that shows rounds, silos and ε spent so far."""
    if quiet:
        yield lambda event: None
    elif display.err.is_terminal:
        with show_bars(plan, label, display.err) as observe:
            yield observe
    else:
        yield _Lines(plan, label)


class _Lines:
    """About ten lines for a whole run."""

    def __init__(self, plan: Plan, label: str) -> None:
        self.total, self.label = plan.horizon.rounds, label
        self.every = max(1, self.total // PLAIN_LINES)

    def __call__(self, event: SiloAnswer | RoundRecord) -> None:
        if isinstance(event, SiloAnswer):
            return
        done = event.round + 1
        if done % self.every == 0 or done == self.total:
            scores = ", ".join(f"{part} {_headline(score)}" for part, score in event.scores.items())
            display.err.print(
                f"{self.label}: round {done}/{self.total}, ε spent {display.number(event.epsilon)}; {scores}",
                markup=False,
            )


def _headline(score: Score) -> str:
    name, value = score.headline
    return f"{name} {value:.4f}"
