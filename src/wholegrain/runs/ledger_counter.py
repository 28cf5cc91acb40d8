"""How far ledgers have come, in a small file kept elsewhere: on another disk, or on a share.

State folder and run folder that are put back together, from one copy, agree with each other: from inside nobody can see
that releases were forgotten. So an operator may name a file (`WHOLEGRAIN_COUNTER`) that no copy of this machine puts
back. For every data name it holds the number and the hash of the last entry, on disk before a release is made. A ledger
that does not hold that entry is refused.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, TypeAdapter

from wholegrain import _check
from wholegrain._files import locked, write_whole
from wholegrain._places import COUNTER, counter_file
from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger import MOST_DIGITS, Head, Ledger


def _as_counted(head: Head) -> Head:
    if not 0 < head.number < 10**MOST_DIGITS:
        raise ValueError(f"no ledger ends at entry {head.number}")
    return head


CONTENT = TypeAdapter(dict[str, Annotated[Head, AfterValidator(_as_counted)]])


@dataclass(frozen=True)
class LedgerCounter:
    """The file, or none: then nothing is asked and nothing is kept."""

    path: Path | None

    @staticmethod
    def here() -> "LedgerCounter":
        """The one that this process's environment names."""
        return LedgerCounter(counter_file())

    def require_there(self, data: str, path: Path) -> None:
        """Refuse to begin a new ledger for data that the counter knows."""
        known = self.find(data)
        if known is not None and not path.exists():
            raise LedgerError(
                f"There is no ledger '{path}', and the counter '{self.path}' has seen entry {known.number} of that of"
                f" the data '{data}'; put the ledger back ({_way(data)})."
            )

    def require_same(self, data: str, ledger: Ledger) -> None:
        """Refuse a ledger without the entry that the counter has seen."""
        known = self.find(data)
        if known is not None and ledger.hash_of(known.number) != known.hash:
            raise LedgerError(
                f"The ledger '{ledger.path}' ends at entry {ledger.head.number} and does not hold entry {known.number}"
                f" of the data '{data}', which the counter '{self.path}' has seen: it was put back with all that this"
                f" machine knows of it; get the later one ({_way(data)})."
            )

    def note(self, data: str, head: Head) -> None:
        """Remember how far the data's ledger has come; it never goes back."""
        with self._writing() as heads:
            if data not in heads or heads[data].number < head.number:
                heads[data] = head

    def replace(self, data: str, head: Head | None) -> None:
        """From now on this head counts, or none: the owner's decision."""
        with self._writing() as heads:
            heads.pop(data, None)
            if head is not None:
                heads[data] = head

    def find(self, data: str) -> Head | None:
        """The last entry of the ledger of this data, as far as the counter has seen it."""
        with self._explaining():
            return self._read().get(data)

    def _read(self) -> dict[str, Head]:
        if self.path is None:
            return {}
        text = self.path.read_bytes()
        return CONTENT.validate_json(text) if text.strip() else {}

    @contextlib.contextmanager
    def _writing(self) -> Iterator[dict[str, Head]]:
        """The content, for one process at a time; what is changed in it is on disk when the block has ended."""
        if self.path is None:
            yield {}
            return
        with self._explaining(), locked(self.path):
            before = self._read()
            heads = dict(before)
            yield heads
            if heads != before:
                write_whole(self.path, CONTENT.dump_json(heads, indent=1), private=True)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise LedgerError(
                f"The counter '{self.path}' ({COUNTER}) is not there; mount its disk, or make an empty file if there"
                " has never been one."
            ) from error
        except (OSError, ValueError) as error:
            raise LedgerError(
                f"The counter '{self.path}' ({COUNTER}) cannot be used: {_check.reason(error)}; mend that before"
                " anything is released."
            ) from error


def _way(data: str) -> str:
    return f"or, knowing what that does, `wholegrain ledger adopt PLACE --data '{data}'` or `ledger forget '{data}'`"
