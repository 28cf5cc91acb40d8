"""Before a server's round is paid for: enough silos are there, the round before did not just fail, the ledger works.

A round that was paid for and in which nobody trains is budget for nothing. None of this decides what a round costs, or
whether it may be paid for: that is the guard's, which is asked last.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wholegrain._machine_faults import is_passing
from wholegrain.engines import platform_faults
from wholegrain.engines.roll_call import RollCall
from wholegrain.federation.round_record import RoundRecord
from wholegrain.privacy.guard import Guard, Reservation

log = logging.getLogger("wholegrain.server")

FIRST_REST, LONGER = 15.0, 4
"""Seconds of rest after a failed round, and how many times as long it is after one more."""


@dataclass(eq=False)
class RoundGate:
    """A run's guard, asked when a round is worth it."""

    guard: Guard
    roll: RollCall
    _failures: int = 0
    _rest: float = 0.0

    def reserve(self, round: int, steps: Mapping[str, int], start: str) -> Reservation:
        """Pay for a round, once there is somebody to train."""
        self._wait(f"round {round}", steps)
        while True:
            try:
                return self.guard.reserve(round, steps, start)
            except Exception as error:
                self._outlast(error)

    def reserve_scores(self, round: int, silos: Iterable[str], start: str) -> Reservation:
        """Pay for the private scores of a round, once there is somebody to score."""
        silos = tuple(silos)
        self._wait(f"the score of round {round}", silos)
        while True:
            try:
                return self.guard.reserve_scores(round, silos, start)
            except Exception as error:
                self._outlast(error)

    def confirm(self, reservation: Reservation, silos: Iterable[str]) -> None:
        """Note releases; a ledger that cannot be written now will be later."""
        arrived = tuple(silos)
        platform_faults.again_and_again(lambda: self.guard.confirm(reservation, arrived))

    def note(self, done: RoundRecord) -> None:
        """Learn from a round: who is there, and whether to rest before the next one."""
        self.roll.note(done)
        self._failures = self._failures + 1 if done.failed else 0
        self._rest = FIRST_REST * LONGER ** (self._failures - 1) if done.failed else 0.0

    def _wait(self, what: str, silos: Iterable[str]) -> None:
        if self._rest:
            log.warning("%s begins in %.0f s, since the one before has failed", what, self._rest)
            time.sleep(self._rest)
            self._rest = 0.0
        self.roll.wait_for_enough(silos, what)

    def _outlast(self, error: Exception) -> None:
        """Wait until the ledger works again, witness file and all: a payment that half failed may stand in it."""
        if not is_passing(error):
            raise error
        platform_faults.say_fault(error, platform_faults.FIRST)
        time.sleep(platform_faults.FIRST)
        platform_faults.again_and_again(self._touch_ledger)

    def _touch_ledger(self) -> None:
        with self.guard.ledger.writing():
            pass
