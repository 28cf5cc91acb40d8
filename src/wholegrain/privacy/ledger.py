"""What was spent: one entry for each release, written before the release is made, never taken back.

This ledger lives in memory, for runs inside one process; what it promises is the order (reserve, then train) and the
count, which is what a guard prices.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Entry:
    """`steps` noisy releases by one silo in one round."""

    round: int
    silo: str
    steps: int


class Ledger(Protocol):
    """An append-only account of releases."""

    def reserve(self, entries: tuple[Entry, ...]) -> None:
        """Write the entries down; on return they count as spent, whatever happens next."""
        ...

    def releases(self) -> Mapping[str, int]:
        """Steps spent by each silo so far."""
        ...


@dataclass
class MemoryLedger:
    """A ledger for simulations: it ends with the process.

    >>> ledger = MemoryLedger()
    >>> ledger.reserve((Entry(0, "north", 5), Entry(1, "north", 5)))
    >>> dict(ledger.releases())
    {'north': 10}
    """

    entries: list[Entry] = field(default_factory=list)

    def reserve(self, entries: tuple[Entry, ...]) -> None:
        """Append the entries."""
        self.entries.extend(entries)

    def releases(self) -> Mapping[str, int]:
        """Steps by silo."""
        steps: Counter[str] = Counter()
        for entry in self.entries:
            steps[entry.silo] += entry.steps
        return steps
