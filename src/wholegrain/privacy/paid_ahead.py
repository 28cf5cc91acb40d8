"""Payments that need no price of their own: they are part of what was priced, and found within the budget, before."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from wholegrain.privacy.ledger_state import RunAccount
from wholegrain.privacy.pricing import Releases


@dataclass
class PaidAhead:
    """The most that an account's runs may release without being priced again; `run` is planned to release `horizon`.

    Guarantee: whatever it covers costs the budget at most. Each run has released no more steps and scores of any silo
    than in what was priced, no run is new, and nothing was played again since; what was released is then part of
    releases that keep to the budget, and to leave some of them out reveals nothing more. By each of the theorems in
    `filters`, steps that are fewer cost no more.
    """

    run: str
    steps: Releases
    scores: Releases
    _most: dict[str, RunAccount] = field(default_factory=dict)
    _hopeless: bool = False

    def covers(self, runs: Iterable[RunAccount]) -> bool:
        """Whether these accounts are part of what was priced."""
        return all(not run.has_spent or _is_part(run, self._most.get(run.opening.run)) for run in runs)

    def keep(self, runs: Iterable[RunAccount]) -> None:
        """Remember accounts that are within the budget."""
        self._most = {run.opening.run: run for run in runs}

    def with_plan(self, runs: list[RunAccount]) -> list[RunAccount] | None:
        """These accounts and all that the plan is still to release; None where that is too much already."""
        if self._hopeless:
            return None
        return [self._to_its_end(run) if run.opening.run == self.run else run for run in runs]

    def give_up(self) -> None:
        """The rest of the plan does not fit beside what was spent, which never becomes less."""
        self._hopeless = True

    def _to_its_end(self, run: RunAccount) -> RunAccount:
        return replace(run, reserved=_larger(run.reserved, self.steps), scored=_larger(run.scored, self.scores))


def _is_part(run: RunAccount, most: RunAccount | None) -> bool:
    if run is most:
        return True
    if most is None or run.replayed > most.replayed:
        return False
    return _is_within(run.reserved, most.reserved) and _is_within(run.scored, most.scored)


def _is_within(counts: Releases, most: Releases) -> bool:
    return all(count <= most.get(silo, 0) for silo, count in counts.items())


def _larger(counts: Releases, other: Releases) -> Releases:
    return {silo: max(counts.get(silo, 0), other.get(silo, 0)) for silo in {**counts, **other}}
