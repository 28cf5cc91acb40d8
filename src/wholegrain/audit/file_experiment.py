"""Removes one subject from the file and checks that nothing else changes."""

from collections.abc import Iterator
from dataclasses import dataclass

from wholegrain.audit.findings import Check
from wholegrain.audit.neighbours import File, Neighbours, build_file, neighbours
from wholegrain.audit.removal import Move, moves, widest_pair
from wholegrain.clipping.rounding import SLACK
from wholegrain.data.dataset import Dataset
from wholegrain.policies.guarantees import missing_bound, obstacles
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.prepared_run import PreparedRun


@dataclass(frozen=True, eq=False)
class FileExperiment:
    """The file, neighbours of it, and how far their silos' sums are apart."""

    prepared: PreparedRun
    file: File
    pairs: list[Neighbours]
    moves: list[Move]

    @staticmethod
    def of(prepared: PreparedRun, dataset: Dataset, seed: int) -> "FileExperiment":
        """Load the file with one subject and without it, for subjects of several kinds."""
        file = build_file(prepared, dataset, seed)
        pairs = neighbours(file, seed)
        return FileExperiment(prepared, file, pairs, list(moves(prepared, file, pairs)))

    @property
    def telling(self) -> Neighbours | None:
        """The pair to attack."""
        return widest_pair(self.moves)

    def checks(self) -> Iterator[Check]:
        """Whether anything else leaves the file with a subject."""
        yield self._others()
        policy = self.prepared.plan.rows[0][0]
        if not obstacles(policy, Unit.SUBJECT) and missing_bound(self.prepared.plan.rows, Unit.SUBJECT) is None:
            yield self._sums()
        yield self._facts()

    def _others(self) -> Check:
        count = len(set(self.file.subjects[: self.file.real].tolist())) - 1
        most = max((len(pair.moved_subjects(self.file)) for pair in self.pairs), default=0)
        seen = f"{most} of {count} are put elsewhere, or lose other items" if most else "nobody changes"
        return Check("one subject leaves the file: others", seen, most == 0)

    def _sums(self) -> Check:
        name = "one subject leaves the file: sums"
        # Of those that are alike in all digits that are shown, the first: the last bits are the processor's.
        worst = max(self.moves, key=lambda move: round(move.ratio, 4), default=None)
        if worst is None:
            return Check(name, "no silo trains on any of them", True)
        if worst.allowed == 0:
            seen = f"{worst.clip_norms:.4f} clip norms, in a silo that {worst.pair.who} is not in"
        else:
            seen = f"{worst.ratio:.4f} of what is allowed ({worst.pair.who})"
        return Check(name, seen, all(move.clip_norms <= move.allowed * (1 + SLACK) for move in self.moves))

    def _facts(self) -> Check:
        name = "one subject leaves the file: public facts"
        changed = [facts for pair in self.pairs for facts in pair.changed_facts()]
        if not changed:
            return Check(name, "the same", True)
        with_it, without = changed[0]
        silo = (with_it or without).name  # type: ignore[union-attr]
        sizes = " and ".join("none" if each is None else f"{each.items}/{each.subjects}" for each in (with_it, without))
        seen = f"'{silo}' has {sizes} items/subjects, with it and without"
        if any(facts.declared for pair in changed for facts in pair if facts) or not self.prepared.noise.repeats:
            return Check(name, seen, False)
        return Check(name, f"{seen}: a simulation reads sizes off the data", True)
