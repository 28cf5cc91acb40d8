"""Heads of ledgers, which silos tell each other through the server: a ledger that was put back is noticed by others.

A silo signs, with its own key, the number of entries in its ledger and the hash of the last one. The server hands the
newest statement of every silo on with the next task, and shows each silo the highest of its own. It can leave
statements out, but it can make none. A ledger only grows: whoever remembers a higher count than is stated now knows
that entries were lost, whatever the dates of the two statements.

What a head tells: the chain of a ledger begins with 128 random bits, so that its hashes say nothing about entries to
whoever has not read them. The number of entries follows from the tasks that were granted and answered, of all runs that
the ledger pays for, and not from what is in the data.
"""

import json
import time
from collections.abc import Iterable
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wholegrain.engines import wire
from wholegrain.engines.signatures import ALGORITHM
from wholegrain.privacy.ledger import Head

PURPOSE = b"wholegrain: the head of a silo's ledger\n"
HEAD, HEADS, HEARD = "head", "heads", "heard"
"""Where heads are: a silo's own in an answer, others' in a task, and in an answer those that somebody contradicted."""

MOST_AHEAD = 600 * 10**9
"""Nanoseconds that a statement may be ahead of the reader's clock: silos' clocks differ by minutes at most."""

LONGEST = 2**19
"""Characters of all heads in one message; more are not read."""


class LedgerHead(BaseModel):
    """What a silo says of its ledger; `at` is its own clock in nanoseconds."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    silo: wire.Name
    count: Annotated[int, Field(ge=0, lt=2**63)]
    head: Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
    at: Annotated[int, Field(ge=0, lt=2**63)]
    signature: Annotated[str, Field(max_length=400)] = ""

    def is_signed(self, key: ec.EllipticCurvePublicKey) -> bool:
        """Whether the owner of this key said so."""
        try:
            key.verify(bytes.fromhex(self.signature), _said(self), ALGORITHM)
        except (InvalidSignature, ValueError):
            return False
        return True

    @property
    def is_ahead(self) -> bool:
        """Whether it was made in the future, by the clock of this machine; such a statement is believed by nobody."""
        return self.at > time.time_ns() + MOST_AHEAD


class SentHead(LedgerHead):
    """A silo's statement, and the key that the server's roster has for it."""

    key: Annotated[str, Field(max_length=1000)]


def state_head(key: ec.EllipticCurvePrivateKey, silo: str, head: Head, at: int) -> LedgerHead:
    """A silo's signed statement."""
    stated = LedgerHead(silo=silo, count=head.number, head=head.hash, at=at)
    return stated.model_copy(update={"signature": key.sign(_said(stated), ALGORITHM).hex()})


def put_head(answer: RecordDict, stated: LedgerHead) -> None:
    """Put the statement into an answer."""
    answer.config_records[wire.ANSWER][HEAD] = stated.model_dump_json()


def read_head(reply: Message, silo: str, key: ec.EllipticCurvePublicKey) -> SentHead | None:
    """The statement in a silo's answer, ready to be sent on; None where there is none that is this silo's own."""
    text = wire.settings_of(reply, wire.ANSWER).get(HEAD)
    try:
        stated = LedgerHead.model_validate_json(text if isinstance(text, str) else "")
    except ValidationError:
        return None
    if stated.silo != silo or stated.is_ahead or not stated.is_signed(key):
        return None
    return SentHead(**stated.model_dump(), key=key_line(key))


def contradiction(before: LedgerHead, now: LedgerHead) -> str:
    """How a statement contradicts the highest one; empty where it does not."""
    if now.count < before.count:
        return f"it had {before.count} entries, and has {now.count}"
    if now.count == before.count and now.head != before.head:
        return f"its entry {now.count} is another one than before"
    return ""


def put_heads(task: RecordDict, heads: Iterable[SentHead]) -> None:
    """Put what silos said into a task; a task without it is as good."""
    text = _written(heads)
    if text:
        task[HEADS] = ConfigRecord({"json": text})


def read_heads(message: Message) -> list[SentHead]:
    """The statements that came with a task; what is not of the agreed form is left out."""
    return _all_read(wire.settings_of(message, HEADS).get("json"))


def put_heard(answer: RecordDict, heads: Iterable[SentHead]) -> None:
    """Put into an answer what other silos once stated, and contradict by now."""
    text = _written(heads)
    if text:
        answer.config_records[wire.ANSWER][HEARD] = text


def read_heard(reply: Message) -> list[SentHead]:
    """The statements that a silo holds against others; their signatures are still to be checked."""
    return _all_read(wire.settings_of(reply, wire.ANSWER).get(HEARD))


def _written(heads: Iterable[SentHead]) -> str:
    found = [each.model_dump() for each in heads]
    return json.dumps(found) if found else ""


def _all_read(text: object) -> list[SentHead]:
    if not isinstance(text, str) or len(text) > LONGEST:
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [head for each in found if (head := _read(each))] if isinstance(found, list) else []


def key_line(key: ec.EllipticCurvePublicKey) -> str:
    """A public key as one line."""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def _read(value: object) -> SentHead | None:
    try:
        return SentHead.model_validate(value)
    except ValidationError:
        return None


def _said(stated: LedgerHead) -> bytes:
    return PURPOSE + json.dumps([stated.silo, stated.count, stated.head, stated.at]).encode()
