"""An accountant that remembers its answers on disk, for the command line, where each call is a new process.

The store is a cache and nothing else: an answer that is missing or damaged is computed again, and a store that cannot
be opened is done without. It never holds data, only events (public facts) and their ε.
"""

import contextlib
import hashlib
import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dp_accounting import DpEvent

from wholegrain._places import cache_folder
from wholegrain.privacy.accountants import Accountant


def default_store() -> Path:
    """Where the command line keeps answers: the user's cache folder, or `WHOLEGRAIN_CACHE`."""
    return cache_folder() / "accounting.sqlite"


@dataclass(frozen=True)
class RememberingAccountant:
    """Asks `inner` once for each event and δ, and the store ever after."""

    inner: Accountant
    store: Path

    @property
    def name(self) -> str:
        """The inner accountant's name: the answers are its own."""
        return self.inner.name

    @property
    def version(self) -> str:
        """The inner accountant's version."""
        return self.inner.version

    def epsilon(self, event: DpEvent, delta: float) -> float:
        """The stored answer, or the inner accountant's, then stored."""
        key = hashlib.sha256(f"{self.version}|{delta!r}|{event!r}".encode()).hexdigest()
        stored = self._read(key)
        if stored is not None:
            return stored
        epsilon = self.inner.epsilon(event, delta)
        self._write(key, epsilon)
        return epsilon

    def _read(self, key: str) -> float | None:
        with contextlib.suppress(sqlite3.Error, OSError), self._open() as database:
            row = database.execute("SELECT epsilon FROM answers WHERE key = ?", [key]).fetchone()
            if row and isinstance(row[0], float) and row[0] >= 0 and not math.isnan(row[0]):
                return row[0]
        return None

    def _write(self, key: str, epsilon: float) -> None:
        with contextlib.suppress(sqlite3.Error, OSError), self._open() as database:
            database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", [key, epsilon])

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.store.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.store, timeout=5)
        try:
            database.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, epsilon REAL)")
            yield database
            database.commit()
        finally:
            database.close()
