"""What can go wrong, as a tree; every message is one sentence that says what, where and what to do.

    WholegrainError
    ├── SpecError         a spec or an argument asks for something impossible or unknown
    ├── DataError         a table or data set cannot be used as it is
    ├── ModelError        a model whose gradients cannot be told apart item by item
    ├── AccountingError   an event that the chosen accountant cannot price
    ├── BudgetError       a budget that cannot be met, or that would be overspent
    ├── RefusalError      a silo will not do what the server asks; it names the rule
    ├── LedgerError       a ledger that cannot be trusted, read or written
    └── RunError          a run directory that cannot be written or read, or a run that cannot go on
        └── LostProcessError  another process of a run is gone

The command line turns each of them into one line and exit code 2. Nothing else is raised on purpose.
"""


class WholegrainError(Exception):
    """The root: catch it to catch every error that wholegrain raises on purpose."""


class SpecError(WholegrainError):
    """A spec or an argument asks for something impossible or unknown."""


class DataError(WholegrainError):
    """A table or data set cannot be used as it is."""


class ModelError(WholegrainError):
    """A model whose gradients cannot be told apart item by item, or that does not fit the data."""


class AccountingError(WholegrainError):
    """An event that the chosen accountant cannot price."""


class BudgetError(WholegrainError):
    """A budget that cannot be met, or that a round would overspend."""


class RefusalError(WholegrainError):
    """A silo will not do what the server asks: which of its rules forbids it, and why."""

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(f"[{rule}] {why}")
        self.rule = rule


class LedgerError(WholegrainError):
    """A ledger that cannot be trusted, read or written; without it nothing is released."""


class RunError(WholegrainError):
    """A run directory that cannot be written or read, or a run that cannot go on."""


class LostProcessError(RunError):
    """Another process of the run is gone: no fault of a silo, and the end of the run."""
