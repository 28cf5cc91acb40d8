"""Mistakes that a simulation must find: each is one that a change to the program could make."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor

from simulation import pieces
from wholegrain.deploy import sum_service
from wholegrain.deploy.silo_service import SiloService
from wholegrain.federation import rounds
from wholegrain.federation.secure_sum import Member
from wholegrain.privacy import guard
from wholegrain.privacy.guard import Guard, Reservation
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import Reserved
from wholegrain.privacy.ledger_state import LedgerState, _place
from wholegrain.runs.ledger_registry import LedgerRegistry


def reserve_after_training() -> Any:
    """The silo trains and answers, and pays as the last thing that it does."""
    reserve, confirm = Guard.reserve, Guard.confirm

    owed: dict[int, tuple[Any, ...]] = {}

    def postponed(self: Guard, round: int, steps: Mapping[str, int], start: str) -> Reservation:
        given = Reservation(self._reservations(round, steps, start, "training"), 0.0, 0.0)
        owed[id(given)] = (round, steps, start)
        return given

    def pay_now(self: Guard, given: Reservation, silos: Any) -> None:
        confirm(self, reserve(self, *owed.pop(id(given))), silos)

    return _both((SiloService, "answer", _answer_with(postponed, pay_now)))


def _answer_with(reserve: Callable[..., Any], confirm: Callable[..., Any]) -> Callable[..., Tensor]:
    answer = SiloService.answer

    def answering(self: SiloService, task: Any, vector: Tensor) -> Tensor:
        with mock.patch.object(Guard, "reserve", reserve), mock.patch.object(Guard, "confirm", confirm):
            return answer(self, task, vector)

    return answering


def reservation_in_memory() -> Any:
    """A reservation is held back, and written together with the next entries."""
    write = Ledger._write

    def lazy(self: Ledger, entries: list[Any]) -> None:
        held = self.__dict__.setdefault("held", [])
        if any(isinstance(entry, Reserved) for entry in entries):
            held.extend(entries)
            return write(self, [])
        self.__dict__["held"] = []
        return write(self, held + entries)

    return _both((Ledger, "_write", lazy))


def witness_before_commit() -> Any:
    """The witness file is told of entries that may never come."""
    write = Ledger._write

    def hasty(self: Ledger, entries: list[Any]) -> None:
        self._insert(entries)
        self._catch_up()
        self._bear_witness()
        write(self, [])

    return _both((Ledger, "_write", hasty))


def price_before_lock() -> Any:
    """The price is computed from the state that was read before the ledger's lock was taken."""
    reserve = Guard.reserve

    def racing(
        self: Guard, round: int, steps: Mapping[str, int], start: str, once_among: str | None = None
    ) -> Reservation:
        if once_among is not None:
            return reserve(self, round, steps, start, once_among)
        asked = self._reservations(round, steps, start, "training")
        with self.ledger.writing() as transaction:
            opened = guard._budget(transaction.state, self.run)
            fresh = tuple(release for release in asked if not transaction.state.holds(release))
            before, after = transaction.state.runs_of(opened.account), transaction.state.runs_of(opened.account, fresh)
            found = guard._require_paid(opened, before, after, "Round", self.accountant)
        with self.ledger.writing() as transaction:
            transaction.add(*(release for release in asked if not transaction.state.holds(release)))
        return Reservation(asked, found.epsilon, found.epsilon)

    return _both((Guard, "reserve", racing))


def replay_for_nothing() -> Any:
    """A round that was paid for once is not paid for again, although its noise is new."""
    return _both((LedgerState, "holds", lambda self, release: _place(release) in self._played))


def same_noise_again() -> Any:
    """A silo keeps one source of noise for all of its tasks."""

    def host(*arguments: Any) -> Any:
        *others, fresh = arguments
        kept = fresh()
        return real(*others, lambda: kept)

    real = pieces.host
    return _both((pieces, "host", host))


def older_ledger_taken() -> Any:
    """Nobody asks whether a ledger is the one that was there before."""
    return _both((LedgerRegistry, "require_same", lambda *_: None), (Ledger, "_question_witness", lambda *_: None))


def server_asks_first() -> Any:
    """The server sends its tasks, and reserves the round when answers come."""
    real = rounds.rounds

    def hasty(state: Any, horizon: Any, engine: Any, payer: Any, averaged: Any) -> Any:
        class Late:
            def reserve(self, *asked: Any) -> Any:
                self.asked = asked
                return Reservation((), 0.0)

            def confirm(self, reservation: Any, silos: Any) -> None:
                payer.confirm(payer.reserve(*self.asked), silos)

        return real(state, horizon, engine, Late(), averaged)

    from wholegrain.runs import runner

    return _both((runner, "rounds", hasty))


def sum_round_again() -> Any:
    """A silo that has lost its session takes part in a round a second time."""
    return _both((LedgerState, "was_played", lambda *_: False))


def two_lists_signed() -> Any:
    """A silo forgets which list of survivors it has signed."""
    require_survivors = Member._require_survivors

    def forgetful(self: Member, round: int, survivors: tuple[str, ...]) -> None:
        self._signed.clear()
        require_survivors(self, round, survivors)

    return _both((Member, "_require_survivors", forgetful))


def shares_given_again() -> Any:
    """A silo that is asked twice to open a sum gives its shares twice."""
    help_open = Member.help_open

    def generous(self: Member, request: Any, verify: Any) -> Any:
        held = dict(self._held)
        try:
            return help_open(self, request, verify)
        finally:
            self._held.update(held)

    return _both((Member, "help_open", generous))


def mask_before_paying() -> Any:
    """The masked part of a sum is computed first, and paid for as the last thing."""
    reserve, confirm = Guard.reserve, Guard.confirm
    masking = sum_service.mask_part
    owed: dict[int, tuple[Any, ...]] = {}

    def postponed(self: Guard, round: int, steps: Any, start: str, once_among: str | None = None) -> Reservation:
        given = Reservation(self._reservations(round, steps, start, "training"), 0.0, 0.0)
        owed[id(given)] = (round, steps, start, once_among)
        return given

    def pay_now(self: Guard, given: Reservation, silos: Any) -> None:
        confirm(self, reserve(self, *owed.pop(id(given))), silos)

    def mask_part(*asked: Any) -> Any:
        with mock.patch.object(Guard, "reserve", postponed), mock.patch.object(Guard, "confirm", pay_now):
            return masking(*asked)

    return _both((sum_service, "mask_part", mask_part))


def scores_for_nothing() -> Any:
    """Nobody pays for a private score."""

    def free(self: Guard, round: int, silos: Any, start: str) -> Reservation:
        return Reservation(self._reservations(round, dict.fromkeys(silos, 1), start, "scores"), 0.0, 0.0)

    return _both((Guard, "reserve_scores", free), (Guard, "confirm", lambda *_: None))


@contextmanager
def _both(*changes: tuple[object, str, object]) -> Iterator[None]:
    patches = [mock.patch.object(*change) for change in changes]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


MISTAKES = {
    made.__name__.replace("_", "-"): made
    for made in (
        reserve_after_training, reservation_in_memory, witness_before_commit, price_before_lock, replay_for_nothing,
        same_noise_again, older_ledger_taken, server_asks_first, sum_round_again, two_lists_signed, shares_given_again,
        mask_before_paying, scores_for_nothing,
    )
}  # fmt: skip
