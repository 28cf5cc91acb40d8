"""Which private scores a run releases, and what they reveal of the people who are held out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dp_accounting import DpEvent, NonPrivateDpEvent

from wholegrain.policies.score_settings import ScoreForm
from wholegrain.privacy import events
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.pricing import Exposure, Releases


@dataclass(frozen=True, kw_only=True)
class ScorePlan:
    """The form of every score, after which rounds there is one, and how many people each silo holds out.

    `sizes` are public: expected from declared sizes, or in a simulation counted. `counted` says which.
    """

    form: ScoreForm
    every: int | None
    part: str
    sizes: Mapping[str, int]
    counted: bool = False

    def is_due(self, round: int, rounds: int) -> bool:
        """Whether parameters are scored after this round, the last of which has the number `rounds` − 1."""
        return round + 1 == rounds or (self.every is not None and (round + 1) % self.every == 0)

    def count(self, rounds: int) -> int:
        """Scores of a whole run of so many rounds.

        >>> form = ScoreForm(noise_multiplier=5.0, measures=("accuracy",))
        >>> ScorePlan(form=form, every=5, part="test", sizes={}).count(12)
        3
        """
        return 1 if self.every is None else -(-rounds // self.every)

    def releases(self, rounds: int) -> Releases:
        """Scores that each silo releases over a whole run."""
        return dict.fromkeys(self.sizes, self.count(rounds))

    def exposures(self, span: int) -> dict[Unit, Exposure]:
        """What one score of each silo reveals."""
        return score_exposures(self.form, self.sizes, span)


def score_exposures(form: ScoreForm, silos: Iterable[str], span: int) -> dict[Unit, Exposure]:
    """What one score of each of these silos reveals: a person pays in up to `span` of them, an item in one.

    Nothing bounds what a whole silo adds to its score.
    """
    silos, alone = tuple(silos), events.gaussian(form.noise_multiplier)
    by_unit: dict[Unit, tuple[int, DpEvent]] = {
        Unit.SUBJECT: (span, alone),
        Unit.ITEM: (1, alone),
        Unit.SILO: (1, NonPrivateDpEvent()),
    }
    return {unit: Exposure(reach, dict.fromkeys(silos, step), step) for unit, (reach, step) in by_unit.items()}
