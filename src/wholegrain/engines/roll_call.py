"""Who is there: a round is worth paying for when enough silos are connected and have answered lately.

That a silo is connected says little. One that was killed counts as connected for half a minute, and one that is still
at work on an earlier round takes no other task. A silo that has answered the last round is there; any other is asked
who it is, which costs nothing and which it answers as soon as it is free.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from wholegrain.engines.flower import Flower
from wholegrain.federation.round_record import RoundRecord

log = logging.getLogger("wholegrain.server")

FRESH = 10.0
"""Seconds for which an answer shows that a silo is there."""

PATIENCE = 5.0
"""Seconds that a silo has to say who it is; then it is asked again."""

LOOK = 0.5
"""Seconds between two looks."""

FIRST_WORD, NEXT_WORD = 3.0, 20.0
"""Seconds until an operator is told whom the server waits for, and between two times."""


@dataclass(eq=False)
class RollCall:
    """Waits for silos, and says for whom; a round takes `fewest` of them, or all that it is for."""

    line: Flower
    fewest: int
    _heard: dict[str, float] = field(default_factory=dict)
    """When silos were last heard, by those that did what they were asked."""

    def note(self, done: RoundRecord) -> None:
        """Learn from a round who answers."""
        failed = {fault.silo for fault in done.faults}
        now = time.monotonic()
        for silo in done.cohort:
            self._heard.pop(silo, None)
            if silo not in failed:
                self._heard[silo] = now

    def wait_for_all(self, silos: Iterable[str], patience: float) -> None:
        """Wait until all silos are connected, and no longer than the patience allows."""
        wanted, end = set(silos), time.monotonic() + patience
        word = time.monotonic() + FIRST_WORD
        while missing := wanted - self.line.wait_for(wanted, min(LOOK, patience)) - self._useless():
            now = time.monotonic()
            if now >= end:
                return
            if now >= word:
                word = now + NEXT_WORD
                log.warning("waiting for %s (%.0f s more)", _names(missing), end - now)

    def wait_for_enough(self, silos: Iterable[str], what: str) -> None:
        """Wait, for as long as it takes, until a round in these silos is worth paying for."""
        wanted = set(silos)
        needed = min(self.fewest, len(wanted))
        word = time.monotonic() + FIRST_WORD
        while len(found := self._present(wanted, needed)) < needed:
            if time.monotonic() >= word:
                word = time.monotonic() + NEXT_WORD
                log.warning(
                    "%s waits: it takes %d silos that answer, and there are %d; waiting for %s",
                    what, needed, len(found), _names(wanted - found),
                )  # fmt: skip
            time.sleep(LOOK)

    def _useless(self) -> set[str]:
        """Silos that are there and are not asked: they are not what the plan is for, or their ledgers were put back."""
        return {*self.line.misfits, *self.line.put_back}

    def _present(self, wanted: set[str], needed: int) -> set[str]:
        """Silos that are connected and were heard lately; where they are too few, the others are asked."""
        connected = wanted & set(self.line.connected(wanted))
        now = time.monotonic()
        found = {silo for silo in connected if silo in self._heard and now - self._heard[silo] < FRESH}
        if len(found) >= needed or len(connected) < needed:
            return found
        for silo in self.line.call_roll(connected - found, PATIENCE):
            self._heard[silo] = time.monotonic()
            found.add(silo)
            if len(found) == needed:
                break
        return found


def _names(silos: set[str]) -> str:
    return ", ".join(f"'{silo}'" for silo in sorted(silos))
