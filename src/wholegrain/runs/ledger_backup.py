"""Copies of a ledger that can be put back: the database, its witness file, and what the machine remembers of it.

A copy is older than the ledger as soon as something more is released. So a copy is put back only if it holds the last
head that this machine remembers for its data; an older one would forget releases that were made.
"""

import shutil
import sqlite3
from pathlib import Path

from wholegrain._files import PRIVATE_FILE, private_folder, sync_folder
from wholegrain.errors import LedgerError
from wholegrain.privacy.ledger import Head, Ledger
from wholegrain.runs.ledger_counter import LedgerCounter
from wholegrain.runs.ledger_registry import FILE, LEDGER, LedgerRegistry


def back_up(path: Path, folder: Path) -> Head:
    """Copy a ledger into a new folder, as of one instant, while others may go on writing; the head of the copy."""
    if folder.exists():
        raise LedgerError(f"'{folder}' already exists; name a new folder for the copy.")
    with Ledger.open(path, create=False) as ledger:
        copy = private_folder(folder) / LEDGER
        try:
            with ledger.writing():  # nobody adds an entry between the two files
                source, target = sqlite3.connect(path), sqlite3.connect(copy)
                try:
                    source.backup(target)
                finally:
                    source.close()
                    target.close()
                shutil.copyfile(_witness(path), _witness(copy))
            known = LedgerRegistry.here().path
            if known.exists():
                shutil.copyfile(known, folder / FILE)
            for file in folder.iterdir():
                file.chmod(PRIVATE_FILE)
            sync_folder(folder)
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"The ledger '{path}' cannot be copied to '{folder}': {error}.") from error
    with Ledger.open(copy, create=False) as copied:
        return copied.head


def restore(folder: Path, path: Path) -> Head:
    """Put a copy in the place of a ledger; one that knows less than this machine remembers is refused."""
    with Ledger.open(folder / LEDGER, create=False) as copy:
        registry = LedgerRegistry.here()
        for data in {account.data for account in copy.state.budgets}:
            registry.require_same(data, copy)
            LedgerCounter.here().require_same(data, copy)
        _require_not_older(copy, path)
        head = copy.head
    try:
        private_folder(path.parent)
        shutil.copyfile(folder / LEDGER, path)
        shutil.copyfile(_witness(folder / LEDGER), _witness(path))
        for file in (path, _witness(path)):
            file.chmod(PRIVATE_FILE)
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise LedgerError(f"The copy '{folder}' cannot be put in the place of '{path}': {error.strerror}.") from error
    return head


def _require_not_older(copy: Ledger, path: Path) -> None:
    """The ledger that is there, if it can be read, must not know more than the copy."""
    if not path.exists():
        return
    try:
        with Ledger.open(path, create=False) as now:
            head = now.head
    except LedgerError:
        return  # damaged: that is what copies are for
    if copy.hash_of(head.number) != head.hash:
        raise LedgerError(
            f"The ledger '{path}' holds entries that the copy does not ({head.number}, and {copy.head.number} in the"
            " copy); putting the copy back would forget releases. Move the ledger away first if that is really meant,"
            " and then `wholegrain ledger adopt`."
        )


def _witness(path: Path) -> Path:
    return path.with_name(f"{path.name}.heads")
