"""The one gate between a plan and its training: a round that the budget cannot pay for does not start."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wholegrain.errors import BudgetError
from wholegrain.privacy.ledger import Entry, Ledger
from wholegrain.privacy.units import Budget


@dataclass(frozen=True)
class Guard:
    """Prices what the ledger holds plus what is asked, and only then reserves it.

    Guarantee: after `reserve` returns, `price(ledger.releases()) <= budget.epsilon`, whatever was asked in whatever
    order. Without a budget (a run that promises nothing, or one with its noise given) it only keeps the account.
    """

    ledger: Ledger
    price: Callable[[Mapping[str, int]], float]
    budget: Budget | None

    def reserve(self, entries: tuple[Entry, ...]) -> float:
        """Reserve the entries and return ε spent with them, or refuse and leave the ledger as it was."""
        asked: Counter[str] = Counter(self.ledger.releases())
        for entry in entries:
            asked[entry.silo] += entry.steps
        epsilon = self.price(asked)
        # Not `epsilon > budget`: a price that is not a number must not pass.
        if self.budget is not None and not epsilon <= self.budget.epsilon:
            spent = self.price(self.ledger.releases())
            raise BudgetError(
                f"Round {entries[0].round} would bring ε to {epsilon:.4g}; {spent:.4g} of"
                f" {self.budget.epsilon:g} is spent, so it is refused before any silo trains."
            )
        self.ledger.reserve(entries)
        return epsilon
