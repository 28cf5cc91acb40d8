"""What a server remembers of its silos' ledgers, so that an answer from one that was put back is not counted.

The highest head that each silo has signed is kept in a file, which outlasts the server's process and its runs. A silo
is shown it with every task, and refuses if its ledger does not hold it. An answer that states a lower head is not
counted, whichever key it is signed with. Peers that were told of a higher one than the server knows hand it back.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import TypeAdapter, ValidationError

from wholegrain import _check
from wholegrain._files import write_whole
from wholegrain.engines.ledger_heads import SentHead, contradiction, key_line
from wholegrain.errors import RunError

log = logging.getLogger("wholegrain.server")

HEADS = TypeAdapter(dict[str, SentHead])


@dataclass(eq=False)
class SiloHeads:
    """The highest head of each silo, in a file or for as long as the process lasts; and what each said last in it."""

    path: Path | None = None
    highest: dict[str, SentHead] = field(default_factory=dict)
    said: dict[str, SentHead] = field(default_factory=dict)
    _told: set[tuple[str, str]] = field(default_factory=set)
    _alarms: dict[str, str] = field(default_factory=dict)
    _saved: dict[str, SentHead] | None = None

    @staticmethod
    def open(path: Path) -> "SiloHeads":
        """What is in this file; nothing is known where there is none."""
        try:
            known = HEADS.validate_json(path.read_bytes())
        except FileNotFoundError:
            return SiloHeads(path)
        except (OSError, ValidationError) as error:
            raise RunError(
                f"What the silos said of their ledgers, '{path}', cannot be read ({_check.reason(error)}); put it back"
                " from a copy, or delete it, knowing that a ledger that was put back may then pass for a round."
            ) from error
        return SiloHeads(path, known, _saved=dict(known))

    def observe(self, head: SentHead) -> str:
        """Remember what a silo says with an answer; how it contradicts what was stated before, if it does."""
        self.said[head.silo] = head
        known = self.highest.get(head.silo)
        wrong = "" if known is None else contradiction(known, head)
        if not wrong:
            self.highest[head.silo] = head
            self._alarms.pop(head.silo, None)
            return ""
        if self._alarms.get(head.silo) != wrong:  # once, however often it is asked
            self._alarms[head.silo] = wrong
            log.error("silo '%s': its ledger was put back: %s", head.silo, wrong)
        return f"its ledger was put back: {wrong}"

    def hear(self, teller: str, heads: Iterable[SentHead], keys: Mapping[str, ec.EllipticCurvePublicKey]) -> None:
        """Take note of a silo's alarms. What others once signed is believed, and a silo's word alone is only logged."""
        for head in heads:
            key = keys.get(head.silo)
            if key is None:
                continue
            if teller != head.silo and (teller, head.silo) not in self._told:
                self._told.add((teller, head.silo))
                log.error(
                    "silo '%s' says that '%s' may have lost entries of its ledger: it was at entry %d",
                    teller,
                    head.silo,
                    head.count,
                )
            known = self.highest.get(head.silo)
            if (known is None or head.count > known.count) and not head.is_ahead and head.is_signed(key):
                self.highest[head.silo] = head.model_copy(update={"key": key_line(key)})

    def shown_to(self, silo: str, others: Iterable[str]) -> list[SentHead]:
        """What goes with a task: what others said last, and the highest that this silo ever said."""
        found = [self.said[name] for name in others if name in self.said and name != silo]
        return [*found, self.highest[silo]] if silo in self.highest else found

    def save(self) -> None:
        """Make what is known last."""
        if self.path is None or self.highest == self._saved:
            return
        content = {name: head.model_dump() for name, head in self.highest.items()}
        try:
            write_whole(self.path, json.dumps(content, indent=1).encode(), private=True)
        except OSError as error:
            raise RunError(
                f"What the silos said of their ledgers cannot be kept in '{self.path}': {error.strerror}."
            ) from error
        self._saved = dict(self.highest)
