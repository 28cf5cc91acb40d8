"""`tune`: settings chosen by private scores, and paid for, from data in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from wholegrain.api.arguments import Settings, read_keywords
from wholegrain.api.finished_run import Run, finished_run
from wholegrain.api.policy_values import PolicyMaker
from wholegrain.api.train import name_account, require_data, require_model
from wholegrain.data.dataset import Dataset
from wholegrain.errors import ModelError
from wholegrain.privacy.definitions import Guarantee, Unit
from wholegrain.privacy.trial_count import TrialCount
from wholegrain.report.model_card import write_card
from wholegrain.runs.spec_sections import PolicySpec
from wholegrain.runs.tuning import tune as make_trials
from wholegrain.runs.tuning_setup import prepare_tuning
from wholegrain.runs.tuning_space import SearchSpace
from wholegrain.runs.tuning_trials import Trial


@dataclass(frozen=True, eq=False)
class TunedRun:
    """What a tuning gave: the chosen settings, their run (None where no trial came to its end), and the guarantee.

    `trials` are shown by a simulation alone; they are no part of what the guarantee covers.
    """

    run: Run | None
    settings: Mapping[str, Any]
    guarantees: tuple[Guarantee, ...]
    trials: tuple[Trial, ...]

    @property
    def guarantee(self) -> Guarantee:
        """What is proved for a subject."""
        return next(each for each in self.guarantees if each.unit is Unit.SUBJECT)


def tune(
    data: Dataset,
    space: Mapping[str, Any],
    *,
    trials: str = "poisson(10)",
    policy: str | PolicySpec | PolicyMaker | Mapping[str, Any] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rounds: int | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    processes: int = 1,
    **settings: Unpack[Settings],
) -> TunedRun:
    """Draw settings from the space, train and score privately with each, and keep the best: one ε pays for all of it.

    `space` has, by place in a spec, a list of choices or a range: {"rounds.learning_rate": {"low": 0.1, "high": 10,
    "scale": "log"}}. `trials` is the law of their number, which stays hidden. All other keywords are those of `train`.

    >>> import wholegrain as wg
    >>> tuned = wg.tune(
    ...     wg.clinics(patients=200, clinics=3), {"rounds.learning_rate": [0.1, 1.0]}, trials="poisson(2)",
    ...     policy=wg.subject_dp(rate=0.5), epsilon=4, rounds=2)
    >>> tuned.guarantee.standing, tuned.guarantee.epsilon <= 4
    (<Standing.PROVED: 'PROVED'>, True)
    """
    dataset = require_data(data)
    keywords: dict[str, Any] = {"policy": policy, "epsilon": epsilon, "delta": delta, "rounds": rounds, **settings}
    if require_model(None, keywords) is not None:
        raise ModelError(
            "tune makes a model anew for every trial: name one of the catalogue, or your own as module:factory, in the"
            " place of a module."
        )
    spec = read_keywords("tune", keywords, dataset.layout)
    if spec.privacy.noise == "secure":
        spec = name_account(spec, dataset)
    prepared = prepare_tuning(spec, SearchSpace.of(space), TrialCount.parse(trials), dataset)
    found = make_trials(prepared, None if out is None else Path(out), processes)
    if found.folder is not None and found.chosen is not None:
        write_card(found.folder)
    run = None if found.chosen is None else finished_run(prepared.base, found.chosen, data.layout, found.folder)
    return TunedRun(run, found.settings, found.guarantees, found.trials)
