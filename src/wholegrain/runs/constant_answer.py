"""Compares a run's scores with those of the best constant answer, and says so where the model is no better."""

import math
from collections.abc import Iterator, Mapping

from wholegrain.federation.round_record import Score
from wholegrain.runs.metrics import LESS_IS_BETTER

NOT_LEARNT = "raise ε, train on more subjects, or look at features and rounds.learning_rate"


def warn(scores: Mapping[str, Score], constant: Mapping[str, Score]) -> tuple[str, ...]:
    """A sentence for each held-out part on which the model is no better than the best constant answer."""
    parts = [part for part in scores if part in constant and "/" not in part]
    return tuple(sentence for part in parts for sentence in _sentences(part, scores[part], constant[part]))


def _sentences(part: str, score: Score, constant: Score) -> Iterator[str]:
    name, value = score.headline
    limit = constant.metrics[name]
    if not math.isfinite(score.loss):
        yield (
            f"The training has diverged: the loss on '{part}' is not finite; lower rounds.learning_rate (a constant"
            f" answer has a loss of {constant.loss:.4f})."
        )
    elif not is_better(name, value, limit):
        told = f"its {name} on '{part}' is {value:.4f}, and {limit:.4f} for the best constant answer"
        if score.loss < constant.loss:
            yield (
                f"The model decides no better than a constant answer: {told}. Its loss is lower"
                f" ({score.loss:.4f} beside {constant.loss:.4f}), so it has learnt something: {_other_judge(score)}."
            )
        else:
            yield f"THE MODEL IS NO BETTER THAN A CONSTANT ANSWER: {told}; {NOT_LEARNT}."
    elif score.loss > constant.loss:
        yield (
            f"The loss on '{part}' is {score.loss:.4f}, above the {constant.loss:.4f} of a constant answer, although"
            f" {name} is better: its probabilities mislead, or training diverges; lower rounds.learning_rate, or set"
            ' server.average = "tail".'
        )


def _other_judge(score: Score) -> str:
    """What tells more than the headline metric, for the task that these metrics are of."""
    if "perplexity" in score.metrics:
        return "judge it by perplexity"
    if "rmse" in score.metrics:
        return "judge it by rmse or r2"
    return "judge it by auc or brier, or choose another threshold on its probabilities"


def is_better(name: str, value: float, limit: float) -> bool:
    """Whether a score is better than a constant answer's; a value that is not a number is not."""
    return value < limit if name in LESS_IS_BETTER else value > limit
