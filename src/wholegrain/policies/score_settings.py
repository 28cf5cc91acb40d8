"""What a private score is asked for: the measures, their bounds and how much noise. All of it is public.

A score is one vector, the sum over the people who are held out of a silo. Each of them adds a number or a histogram for
each measure, and no measure moves by more than 1 in length when somebody leaves:

    a number x in [0, 1]     adds 2x − 1, which lies in [−1, 1]. It is the person's mean over own items: of right
                             answers, of the loss up to a declared bound, of the absolute error in its declared range
    a histogram              adds a mass of 1, spread over cells as the person's items are: each cell is a range of the
                             predicted probability and what was true. Its length is at most 1

So with m measures the whole vector moves by at most √m, and has Gaussian noise of standard deviation σ·√m in every
value: a Gaussian mechanism of noise multiplier σ, for all measures together. One item more or less moves every measure
by at most 1, too: of a person's n > 1 items it changes a mean by 1/n at most.

In a secure sum over silos a person's parts add up. By span, a person in s silos counts 1/s in each of them, so that the
whole still moves by √m at most. How many people that makes is then no public number, and one more value is added up,
1/s of each person, as one more measure.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from wholegrain._strict_numbers import StrictNumbers

Measure = Literal["accuracy", "loss", "mae", "histogram"]
"""What is scored; auc and calibration error follow from the histogram."""

MOST_BINS = 200


class ScoreSettings(StrictNumbers):
    """Private scores of people who are not trained on.

    With `noise_multiplier`, each score has so much noise; with `share`, all scores of the run together cost a person
    who is held out that share of the budget's ε (all of it, where neither is given: nobody pays for training and for
    scores, so that the run's ε stays what it is). Parameters are scored after every so many rounds, and at the end;
    without `every`, at the end alone. `part` says which people: those of the test part, or of validation. `measures`
    are accuracy (or mae, where a number is predicted), loss up to `loss_bound`, and histogram, with so many `bins`, for
    auc and calibration error; without them, the first alone, which has the least noise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    noise_multiplier: Annotated[float | None, Field(gt=0, le=1e6)] = None
    share: Annotated[float | None, Field(gt=0, le=1)] = None
    every: Annotated[int | None, Field(ge=1, le=10**6)] = None
    part: Literal["test", "validation"] = "test"
    measures: tuple[Measure, ...] = ()
    bins: Annotated[int, Field(ge=2, le=MOST_BINS)] = 10
    loss_bound: Annotated[float | None, Field(gt=0, le=1e6)] = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.noise_multiplier is not None and self.share is not None:
            raise ValueError("give noise_multiplier or share, not both")
        if len(set(self.measures)) < len(self.measures):
            raise ValueError("a measure is named twice")
        if "loss" in self.measures and self.loss_bound is None:
            raise ValueError("the measure 'loss' needs loss_bound, up to which a loss counts: 3.0, for example")
        return self


class ScoreForm(BaseModel):
    """One private score, with nothing left open: what a silo is asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    noise_multiplier: Annotated[float, Field(gt=0, le=1e6)]
    measures: Annotated[tuple[Measure, ...], Field(min_length=1, max_length=4)]
    bins: Annotated[int, Field(ge=2, le=MOST_BINS)] = 10
    loss_bound: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    by_span: Annotated[bool, Field(exclude_if=lambda by_span: not by_span)] = False
    """Whether a person in s silos counts 1/s in each; then the last value says how many people that makes."""

    @property
    def width(self) -> int:
        """Values of the vector."""
        return sum(2 * self.bins if measure == "histogram" else 1 for measure in self.measures) + self.by_span

    @property
    def places(self) -> dict[str, slice]:
        """Where each measure's values are in the vector."""
        found: dict[str, slice] = {}
        start = 0
        for measure in self.measures:
            size = 2 * self.bins if measure == "histogram" else 1
            found[measure] = slice(start, start + size)
            start += size
        return found

    @property
    def reach(self) -> float:
        """√m: how far one person moves the vector at most."""
        return float((len(self.measures) + self.by_span) ** 0.5)
