"""Where a run's ledger is; which ledger keeps the account of which data on this machine, and how far it had come.

A budget is worth what its ledger is. Deleting the file, putting back an older copy or pointing a spec at another path
would open a fresh budget on data that has already paid. So the state folder remembers, for every data name that a
release was ever made from, the identity and the last head of its ledger, and anything else is refused until its owner
says so (`wholegrain ledger adopt`, `wholegrain ledger forget`).

What this finds: mistakes, restored copies, moved folders. It cannot find somebody who may write the state folder too,
or a copy of ledger and state folder together; `ledger_counter` finds that, where an operator keeps one.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wholegrain import _check
from wholegrain._files import locked, private_folder, write_whole
from wholegrain._places import state_folder
from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger import Head, Ledger
from wholegrain.runs.ledger_counter import LedgerCounter
from wholegrain.runs.spec import RunSpec

LEDGER = "ledger.sqlite"
FILE = "ledgers.json"


def ledger_path(spec: RunSpec, folder: Path | None) -> Path | None:
    """Where the ledger is; None for one in memory.

    A simulation ends with its folder. A release does not: its account must outlive the folder, or a second run would
    not know of the first.
    """
    if spec.ledger.path is not None:
        return Path(spec.ledger.path)
    if spec.privacy.noise == "secure":
        return state_folder() / LEDGER
    return None if folder is None else folder / LEDGER


@dataclass(frozen=True)
class KnownLedger:
    """A ledger as this machine last saw it."""

    identity: str
    path: str
    number: int
    hash: str


@dataclass(frozen=True)
class LedgerRegistry:
    """The file in the state folder, its owner's alone."""

    folder: Path

    @staticmethod
    def here() -> "LedgerRegistry":
        """The one of this machine and user."""
        return LedgerRegistry(state_folder())

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / FILE

    def find(self, data: str) -> KnownLedger | None:
        """The ledger of this data, if any release was ever made from it here."""
        with self._explaining():
            found = self._read().get(data)
            return None if found is None else KnownLedger(**found)

    def require_there(self, data: str, path: Path) -> None:
        """Refuse to begin a new ledger for data that has one."""
        known = self.find(data)
        if known is not None and not path.exists():
            raise LedgerError(
                f"There is no ledger '{path}', and this machine keeps the account of the data '{data}' in"
                f" '{known.path}'; put that one back, or name it in ledger.path ({_ways(data)})."
            )

    def require_same(self, data: str, ledger: Ledger) -> None:
        """Refuse a ledger that is not the data's, or that knows less than it did."""
        known = self.find(data)
        if known is None:
            return
        if ledger.state.identity != known.identity:
            raise LedgerError(
                f"The ledger '{ledger.path}' is not the one in which this machine keeps the account of the data"
                f" '{data}', which is '{known.path}'; name that one in ledger.path ({_ways(data)})."
            )
        if ledger.hash_of(known.number) != known.hash:
            raise LedgerError(
                f"The ledger '{ledger.path}' was put back to an earlier state: it ends at entry {ledger.head.number},"
                f" and this machine has seen entry {known.number}; get the later one ({_ways(data)})."
            )

    def note(self, data: str, ledger: Ledger, head: Head) -> None:
        """Remember how far the data's ledger has come; it never goes back."""
        path = os.path.abspath(ledger.path or "")
        seen = KnownLedger(str(ledger.state_as_read.identity), path, head.number, head.hash)
        with self._writing() as all_known:
            before = all_known.get(data)
            if before is None or before["identity"] != seen.identity or before["number"] < seen.number:
                all_known[data] = asdict(seen)

    def adopt(self, data: str, ledger: Ledger) -> None:
        """From now on this ledger keeps the account of the data, whichever did before."""
        if all(account.data != data for account in ledger.state.budgets):
            raise LedgerError(f"The ledger '{ledger.path}' holds no budget of the data '{data}'.")
        head = ledger.head
        LedgerCounter.here().replace(data, head)
        with self._writing() as all_known:
            path = os.path.abspath(ledger.path or "")
            all_known[data] = asdict(KnownLedger(str(ledger.state.identity), path, head.number, head.hash))

    def forget(self, data: str) -> KnownLedger:
        """Begin anew: what was spent of the data is not known here any more."""
        counter = LedgerCounter.here()
        counted = counter.find(data)
        known = self.find(data)
        if known is None and counted is not None:
            known = KnownLedger("", "a folder that is gone", counted.number, counted.hash)
        if known is None:
            raise LedgerError(f"This machine knows of no ledger of the data '{data}'.")
        counter.replace(data, None)
        with self._writing() as all_known:
            all_known.pop(data, None)
        return known

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        content = json.loads(self.path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no sections")
        return content

    @contextlib.contextmanager
    def _writing(self) -> Iterator[dict[str, Any]]:
        """The content, for one process at a time; it is written when the block ends."""
        with self._explaining():
            private_folder(self.folder)
            with locked(self.path):
                content = self._read()
                before = dict(content)
                yield content
                if content != before:
                    write_whole(self.path, json.dumps(content, indent=1, ensure_ascii=False).encode(), private=True)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, TypeError) as error:
            raise LedgerError(
                f"The list of ledgers '{self.path}' cannot be used: {_check.reason(error)}; put it back from a copy."
            ) from error


@contextlib.contextmanager
def open_known_ledger(data: str, ledger: Ledger) -> Iterator[Ledger]:
    """The ledger of this data, if it is the one; whatever is written in it from now on is remembered."""
    registry, counter = LedgerRegistry.here(), LedgerCounter.here()

    def note(head: Head) -> None:
        if _pays_for(ledger, data):
            registry.note(data, ledger, head)
            counter.note(data, head)

    registry.require_same(data, ledger)
    counter.require_same(data, ledger)
    note(ledger.head)
    ledger.notice = note
    yield ledger


def _pays_for(ledger: Ledger, data: str) -> bool:
    return ledger.path is not None and any(account.data == data for account in ledger.state_as_read.budgets)


def _ways(data: str) -> str:
    return f"or, knowing what that does, `wholegrain ledger adopt PLACE --data '{data}'` or `ledger forget '{data}'`"
