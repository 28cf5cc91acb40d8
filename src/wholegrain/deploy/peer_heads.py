"""What a silo remembers of the other silos' ledgers, and how it notices that one of them was put back.

Statements are the silos' own, signed (`engines.ledger_heads`). The server passes them on. Of each peer the highest one
is kept. A statement with fewer entries, or with another last entry at the same count, raises an alarm, whatever its
date: nothing that a peer can sign makes a lower count pass later on. A server can raise a false alarm with a statement
of earlier days; that costs a call, and the silo goes on answering, since its own budget is not touched. What the silo
itself has signed must be in its own ledger: else that ledger has forgotten releases, and nothing more is released from
it.
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from wholegrain._files import locked, write_whole
from wholegrain.deploy.certificates import load_public_key
from wholegrain.engines.ledger_heads import SentHead, contradiction
from wholegrain.errors import RefusalError, SpecError
from wholegrain.privacy.ledger import Ledger

log = logging.getLogger("wholegrain.silo")

SUFFIX = ".peers"
MOST_PEERS = 1000


class PeerRecord(BaseModel):
    """What is known of one peer's ledger: its highest statement, and what was wrong, which only an operator clears."""

    model_config = ConfigDict(frozen=True)

    # Earlier versions kept the last one.
    highest: SentHead = Field(validation_alias=AliasChoices("highest", "last"))
    alarm: str = ""


@dataclass(eq=False)
class PeerHeads:
    """The peers of one silo in one federation; the file beside the ledger is its owner's alone.

    Silos of one machine share the file, as they share a ledger, and each has its own part of it.
    `pinned` are keys that the charter names. The key of any other peer is the one that the server's roster had when the
    peer was first heard of; a new key is taken, with a warning, and the count goes on under it.
    """

    path: Path
    silo: str
    federation: str
    pinned: Mapping[str, str] = field(default_factory=dict)

    def observe(self, heads: Sequence[SentHead]) -> dict[str, str]:
        """Compare statements with what is remembered, and remember them; what is wrong, by peer."""
        with self._changing() as found:
            return self._compare(found, heads)

    def _compare(self, found: dict[str, PeerRecord], heads: Sequence[SentHead]) -> dict[str, str]:
        alarms: dict[str, str] = {}
        for sent in heads:
            head = sent.model_copy(update={"key": self.pinned.get(sent.silo, sent.key)})
            before = found.get(head.silo)
            if head.silo == self.silo or not _is_believed(head):
                continue
            if before is None:
                if len(found) < MOST_PEERS:
                    found[head.silo] = PeerRecord(highest=head)
                continue
            wrong = contradiction(before.highest, head)
            if wrong and wrong != before.alarm:
                alarms[head.silo] = wrong
                log.error("silo %r may have lost entries of its ledger: %s", head.silo, wrong)
            found[head.silo] = _after(before, head, wrong)
        return alarms

    def require_own(self, ledger: Ledger, line: str, heads: Sequence[SentHead]) -> None:
        """Refuse to go on where this silo has signed, with this key, a head that is not in its ledger.

        Such a head is remembered: the refusal ends when a ledger that holds it is back in its place.
        """
        known = self.read()
        own = [known[self.silo].highest] if self.silo in known else []
        key = load_public_key(line, f"silo '{self.silo}'")
        for head in [*own, *(each for each in heads if each.silo == self.silo and each.is_signed(key))]:
            if ledger.hash_of(head.count) != head.head:
                wrong = f"it has signed for entry {head.count}, which its ledger does not hold"
                with self._changing() as found:
                    found[self.silo] = PeerRecord(highest=head, alarm=wrong)
                raise RefusalError("ledger", f"{wrong}: an older copy was put in place. Put the newest one back")

    def read(self) -> dict[str, PeerRecord]:
        """What is remembered, by peer."""
        tree = self._tree()
        # Earlier versions kept one part for all silos of a machine.
        peers = tree.get(self._part) or tree.get(self.federation)
        try:
            return {name: PeerRecord.model_validate(each) for name, each in (peers or {}).items()}
        except (ValidationError, AttributeError):
            log.warning("'%s' cannot be read: heads of other silos are remembered anew", self.path)
            return {}

    @property
    def alarms(self) -> dict[str, str]:
        """Peers that once contradicted themselves, and how."""
        return {name: each.alarm for name, each in self.read().items() if each.alarm}

    @property
    def contradicted(self) -> list[SentHead]:
        """The highest statements of those silos: what the server needs to know of their alarms."""
        return [each.highest for each in self.read().values() if each.alarm]

    def _tree(self) -> dict[str, dict[str, object]]:
        try:
            tree = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            log.warning("'%s' cannot be read: heads of other silos are remembered anew", self.path)
            return {}
        return tree if isinstance(tree, dict) else {}

    @property
    def _part(self) -> str:
        return f"{self.silo} at {self.federation}"

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, PeerRecord]]:
        """What is remembered, to be changed while no other process does; what cannot be written is told in the log."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path))
            except OSError as error:  # no room for a lock: heads are compared all the same
                self._warn(error)
            known = self.read()
            found = dict(known)
            yield found
            if found != known:
                self._write(found)

    def _write(self, peers: Mapping[str, PeerRecord]) -> None:
        tree = {**self._tree(), self._part: {name: each.model_dump() for name, each in peers.items()}}
        try:
            write_whole(self.path, json.dumps(tree, indent=1).encode(), private=True)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        log.warning("'%s' cannot be written: %s", self.path, error.strerror)


def _is_believed(head: SentHead) -> bool:
    """Whether a statement is signed with its key, and not of the future."""
    if head.is_ahead:
        log.warning("what silo %r says of its ledger is dated in the future, and left out; compare clocks", head.silo)
        return False
    try:
        return head.is_signed(load_public_key(head.key, f"silo {head.silo!r}"))
    except SpecError:
        return False


def _after(before: PeerRecord, head: SentHead, wrong: str) -> PeerRecord:
    """What is remembered of a peer after one more statement: its key may be a new one, its count never goes down."""
    renewed = head.key != before.highest.key
    kept = before.highest if wrong or not (renewed or head.count > before.highest.count) else head
    record = PeerRecord(highest=kept, alarm=wrong or before.alarm)
    if renewed and record != before:
        log.warning("silo %r has another key than before; ask its operator whether it was renewed", head.silo)
    return record
