"""The account of everything that was released: append-only, durable, and chained by hashes.

An entry is on disk before the release that it pays for is made, and is never taken back: a crash at any point costs
budget, never privacy. Each entry carries a hash over itself and the entry before it. After every write, the number and
hash of the last entry are also appended to a witness file beside the database, so that entries which were cut off are
missed.

What this finds: damage, edited, exchanged or missing entries, a database put back to an earlier state. What it cannot
find: somebody who may write both files and makes them anew; note a head elsewhere, and compare it.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from wholegrain._files import open_private, sync_folder
from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger_entries import ENTRY, Entry, Opened
from wholegrain.privacy.ledger_state import LedgerState

APPLICATION = 0x57474C31  # "WGL1", so that no other program's database is taken for a ledger
PATIENCE = 120.0
"""Seconds to wait for others who are writing; each of them may be pricing a round."""

LONGEST_LINE = 4096
"""More than any line of a witness file has."""

MOST_DIGITS = 18
"""Digits of a number that SQLite can look for."""

EMPTIED = "it is empty, and its witness file knows of entries that are gone"

SCHEMA = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, written TEXT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER no_change BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END",
    "CREATE TRIGGER no_removal BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END",
    f"PRAGMA application_id = {APPLICATION}",
)


@dataclass(frozen=True)
class Head:
    """The last entry: its number and its hash."""

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number} {self.hash}"

    def next(self, written: str, body: str) -> "Head":
        """The head after one more entry."""
        return Head(self.number + 1, hashlib.sha256("\n".join([self.hash, written, body]).encode()).hexdigest())


START = Head(0, "0" * 64)


@dataclass
class Transaction:
    """The ledger's state while it is locked, and the entries to append: all of them, or none."""

    state: LedgerState
    entries: list[Entry] = field(default_factory=list)

    def add(self, *entries: Entry) -> None:
        """Add entries; they are durable once the transaction is closed."""
        self.entries.extend(entries)


class Ledger:
    """Everything that was released, in a file or (for a run that keeps nothing) in memory.

    >>> with Ledger.in_memory() as ledger:
    ...     ledger.head.number
    1
    """

    def __init__(self, path: Path | None, database: sqlite3.Connection) -> None:
        self.path = path
        self.notice: Callable[[Head], None] = _ignore
        """Told of every head that is durable."""
        self._database = database
        self._state, self._head = LedgerState(), START

    @staticmethod
    def in_memory() -> "Ledger":
        """A ledger that ends with the process."""
        ledger = Ledger(None, sqlite3.connect(":memory:", isolation_level=None))
        ledger._begin()
        return ledger

    @staticmethod
    def open(path: Path, *, create: bool = True) -> "Ledger":
        """The ledger in this file, whole and verified; a new one where there is none and `create` allows it."""
        if not create and not os.path.exists(path):
            raise LedgerError(f"There is no ledger '{path}'.")
        ledger = Ledger(path, _connect(path))
        try:
            with ledger._explaining():
                ledger._begin(create)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @property
    def state(self) -> LedgerState:
        """What all entries add up to now, others' included."""
        with self._explaining():
            self._catch_up()
        return self._state

    @property
    def state_as_read(self) -> LedgerState:
        """What the entries that were read so far add up to."""
        return self._state

    @property
    def head(self) -> Head:
        """The last entry that was read."""
        return self._head

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Lock the ledger; entries of the transaction are durable when the block ends without an error.

        Guarantee: what is read from the transaction's state still holds when its entries are written.
        """
        with self._explaining():
            self._database.execute("BEGIN IMMEDIATE")
        try:
            with self._explaining():
                self._catch_up()
                if self._head.number == 1:
                    self._bear_witness()  # whoever wrote the first entry may have been killed before
            transaction = Transaction(self._state)
            yield transaction
            with self._explaining():
                self._write(transaction.entries)
        finally:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        with self._explaining():
            self._bear_witness()
        self.notice(self._head)

    def hash_of(self, number: int) -> str | None:
        """The hash of an entry, or None where there is no such entry."""
        with self._explaining():
            return self._hash_of(number)

    def times_of(self, run: str) -> tuple[datetime, datetime] | None:
        """When the first and the last entry of a run were written; None where there is none."""
        query = "SELECT min(written), max(written) FROM entries WHERE json_extract(body, '$.run') = ?"
        with self._explaining():
            first, last = self._database.execute(query, [run]).fetchone()
            return None if first is None else (datetime.fromisoformat(first), datetime.fromisoformat(last))

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin(self, create: bool = True) -> None:
        """Read what is there, or write the first entry."""
        self._database.execute("PRAGMA synchronous = EXTRA")
        if self._is_empty():
            if not create:
                raise LedgerError(EMPTIED if self._witness_heads() else "it is empty")
            self._write_first()
        if self._application() != APPLICATION:
            raise LedgerError("it is the database of another program")
        self._catch_up()
        self._question_witness()

    def _is_empty(self) -> bool:
        """Whether nobody has written here yet; a database without our table may be another program's."""
        tables = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return not tables and not self._application()

    def _application(self) -> int:
        return int(self._database.execute("PRAGMA application_id").fetchone()[0])

    def _write_first(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            if self._is_empty():  # another process may have been faster, and have its witness already
                if self._witness_heads():
                    raise LedgerError(EMPTIED)
                for statement in SCHEMA:
                    self._database.execute(statement)
                self._insert([Opened(identity=secrets.token_hex(16))])
            self._database.execute("COMMIT")
        finally:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        self._catch_up()
        self._bear_witness()

    def _write(self, entries: list[Entry]) -> None:
        """Add entries, all or none: they are read back first, so that none is ever there that nobody could read."""
        try:
            self._insert(entries)
            self._catch_up()
            self._database.execute("COMMIT")
        except BaseException:
            self._state, self._head = LedgerState(), START  # what is in memory may not be in the file: read it again
            raise

    def _insert(self, entries: list[Entry]) -> None:
        head, written = self._head, datetime.now(UTC).isoformat(timespec="seconds")
        for entry in entries:
            body = entry.model_dump_json()
            head = head.next(written, body)
            row = (head.number, written, body, head.hash)
            self._database.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)

    def _catch_up(self) -> None:
        """Read the entries that are new to us, each against the hash of the one before."""
        query = "SELECT number, written, body, hash FROM entries WHERE number > ? ORDER BY number"
        for number, written, body, digest in self._database.execute(query, [self._head.number]):
            expected = self._head.next(str(written), str(body))
            if number != expected.number:
                raise LedgerError(f"entry {expected.number} is missing")
            if digest != expected.hash:
                raise LedgerError(f"entry {number} was changed, or another one before it was")
            self._state.add(_read(number, body))
            self._head = expected

    def _hash_of(self, number: int) -> str | None:
        row = self._database.execute("SELECT hash FROM entries WHERE number = ?", [number]).fetchone()
        return None if row is None else str(row[0])

    def _bear_witness(self) -> None:
        if self.path is None:
            return
        handle = open_private(self._witness, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # nobody takes another's line for one that was cut short
            _drop_cut_line(handle)
            _append(handle, f"{self._head}\n".encode())
        finally:
            os.close(handle)
        if self._head.number == 1:
            sync_folder(self._witness.parent)

    def _question_witness(self) -> None:
        """Every head that was ever noted must still be in the chain."""
        if self.path is None:
            return
        witnessed = self._witness_heads()
        if not witnessed and self._head.number > 1:
            raise LedgerError(
                f"its witness file '{self._witness.name}' is gone, so that nobody knows whether entries were cut off;"
                " put both files back from the same copy"
            )
        for head in witnessed:
            found = self._hash_of(head.number)
            if found is None:
                raise LedgerError(f"it ends at entry {self._head.number}, and its witness file knows {head.number}")
            if found != head.hash:
                raise LedgerError(f"entry {head.number} is not the one that its witness file knows")

    def _witness_heads(self) -> list[Head]:
        """The heads in the witness file; a last line that was cut short by a crash does not count."""
        if self.path is None or not self._witness.exists():
            return []
        *lines, _ = self._witness.read_text(encoding="utf-8", errors="replace").split("\n")
        return [_head(line) for line in lines]

    @cached_property
    def _witness(self) -> Path:
        assert self.path is not None
        return self.path.with_name(f"{self.path.name}.heads")

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Whatever goes wrong with the file is told as one sentence about the ledger."""
        try:
            yield
        except LedgerError as error:
            raise LedgerError(f"The ledger {self._place} cannot be trusted: {error}.") from error
        except (sqlite3.Error, OSError, ValueError) as error:
            raise LedgerError(f"The ledger {self._place} cannot be used: {error}.") from error

    @property
    def _place(self) -> str:
        return "in memory" if self.path is None else f"'{self.path}'"


def _ignore(head: Head) -> None:
    """Nobody asked to be told."""


def _connect(path: Path) -> sqlite3.Connection:
    """SQLite makes its journal with the rights of the database, so that it is enough to close that to others."""
    with contextlib.suppress(OSError, ValueError):  # SQLite says what is wrong
        os.close(open_private(path, os.O_RDWR | os.O_CREAT))
    try:
        return sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    except (sqlite3.Error, ValueError) as error:  # ValueError: a character that no path can have
        raise LedgerError(f"The ledger '{path}' cannot be opened: {error}.") from error


def _read(number: int, body: object) -> Entry:
    try:
        return ENTRY.validate_json(str(body))
    except ValidationError as error:
        raise LedgerError(f"entry {number} is none that this version knows") from error


def _drop_cut_line(handle: int) -> None:
    """Remove what follows the last newline: a crash cut it short, and the next line must not be written behind it."""
    size = os.fstat(handle).st_size
    tail = os.pread(handle, LONGEST_LINE, max(0, size - LONGEST_LINE))
    cut = len(tail) - tail.rfind(b"\n") - 1
    if cut:
        os.ftruncate(handle, size - cut)


def _append(handle: int, line: bytes) -> None:
    if os.write(handle, line) < len(line):  # the disk was full in the middle of it
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(handle)


def _head(line: str) -> Head:
    number, _, digest = line.partition(" ")
    if not number.isdecimal() or len(number) > MOST_DIGITS or len(digest) != len(START.hash):
        raise LedgerError(f"its witness file holds the line '{line[:40]}'")
    return Head(int(number), digest)
