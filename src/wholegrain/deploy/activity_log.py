"""What a silo did, line by line, for its operator: every grant, release and refusal, and budgets that run low.

Lines are JSON. Each carries the SHA-256 of the line before it, so that a changed, exchanged or missing line is found. A
silo with a key signs its lines (ECDSA over P-384, SHA-384). Lines cut off the end leave a whole log: compare the last
hash with one that was noted elsewhere. The ledger, not this log, decides what may be spent.
"""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from wholegrain._files import open_private
from wholegrain.errors import LedgerError

log = logging.getLogger("wholegrain.silo")

FILE = "activity.jsonl"
START = "0" * 64
BLOCK = 2**16
"""Bytes that are read at once from a log's end."""

PURPOSE = b"wholegrain: a line of a silo's log\n"
ALGORITHM = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True)
class ActivityLog:
    """The log at a path; several processes may write in it."""

    path: Path
    key: ec.EllipticCurvePrivateKey | None = None

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Append a line and make it durable; where that fails, the silo goes on, and its console says so."""
        try:
            self._append(event, facts)
        except OSError as error:
            log.warning("'%s' cannot be written: %s", self.path, error.strerror)

    def _append(self, event: str, facts: Mapping[str, Any]) -> None:
        handle = open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last, end = _last_line(file)
            file.truncate(end)  # what follows was cut short by a crash
            number, before = (_read(last).get("number", 0) + 1, _digest(last)) if last else (0, START)
            written = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(self._line({"number": number, "at": written, "event": event, **facts, "previous": before}))
            file.flush()
            os.fsync(file.fileno())

    def _line(self, content: dict[str, Any]) -> bytes:
        if self.key is not None:
            content["signature"] = self.key.sign(PURPOSE + _dump(content), ALGORITHM).hex()
        return _dump(content) + b"\n"


def verify_log(path: Path, key: ec.EllipticCurvePublicKey | None = None) -> tuple[int, str]:
    """How many lines a log has, and the hash of the last; one that was changed, or not signed with the key, is refused.

    What follows the last newline was cut short by a crash, and does not count.
    """
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise LedgerError(f"The log '{path}' cannot be read: {error.strerror}.") from error
    before = START
    for number, line in enumerate(lines):
        content = _read(line)
        if content.get("previous") != before or content.get("number") != number:
            raise LedgerError(f"The log '{path}' is not whole: line {number + 1}, or one before it, was changed.")
        if key is not None and not _is_signed(content, key):
            raise LedgerError(f"Line {number + 1} of the log '{path}' is not signed with this key.")
        before = _digest(line)
    return len(lines), before


def _last_line(file: BinaryIO) -> tuple[bytes, int]:
    """The last whole line of a log, and where it ends; a log that has grown for years is not read for it."""
    start = file.seek(0, os.SEEK_END)
    tail = b""
    while start > 0 and tail.count(b"\n") < 2:
        start = max(start - BLOCK, 0)
        file.seek(start)
        tail = file.read()
    *lines, cut = tail.split(b"\n")
    return (lines[-1] if lines else b""), start + len(tail) - len(cut)


def _read(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_signed(content: dict[str, Any], key: ec.EllipticCurvePublicKey) -> bool:
    said = {name: value for name, value in content.items() if name != "signature"}
    try:
        key.verify(bytes.fromhex(str(content.get("signature", ""))), PURPOSE + _dump(said), ALGORITHM)
    except (InvalidSignature, ValueError):
        return False
    return True


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=True).encode()


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
