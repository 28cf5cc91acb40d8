"""Settings that a spec leaves out, chosen from public facts alone; `run`, `plan` and `train` all take them from here.

What is given stays. Clip norm, pooling and the server's step go together with the learning rate: where that is given,
the others keep the fixed values that the spec's sections show. Everything is a function of the spec, of public sizes
(declared, or in a simulation counted) and of declared bounds: no data is read, and no ε is spent.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent

from wholegrain.data.dataset import Dataset
from wholegrain.data.feature_scale import FeatureScale, scale_of_numbers, scale_of_table
from wholegrain.data.tasks import Task
from wholegrain.data.text_feature import Text
from wholegrain.data.tokenization import find_tokenizer
from wholegrain.errors import WholegrainError
from wholegrain.federation.server_optimiser import has_momentum
from wholegrain.models.model_catalog import require_reader
from wholegrain.models.model_inputs import are_tokens
from wholegrain.policies.guarantees import Row, federation_event, missing_bound, obstacles
from wholegrain.policies.horizon import Horizon
from wholegrain.policies.pace import FASTEST, LOSSES, Forecast, Steepness, forecast
from wholegrain.policies.plan import Federation
from wholegrain.policies.policy import Policy, PublicDivisor, SiloFacts
from wholegrain.policies.policy_catalog import find, make_row
from wholegrain.policies.search import one_step
from wholegrain.privacy.calibration import first_guess
from wholegrain.privacy.definitions import Budget, Unit
from wholegrain.runs.planning import policy_settings
from wholegrain.runs.spec import RunSpec

MOMENTUM = 0.9
FEWEST_ROUNDS, MOST_ROUNDS = 20, 150
OTHER_ROUNDS = 40
"""Rounds of a model that is not linear, of which no best time is known."""
UNPRIVATE_ROUNDS, UNPRIVATE_MOMENTUM = 200, 0.95
OTHER_RATE = 0.1
"""The learning rate of a model that is not linear, of which no curvature is known."""
LINEAR = "logistic"


@dataclass(frozen=True)
class PublicFacts:
    """What is public of the data: the silos' sizes, how inputs are scaled, and what is predicted.

    `own_model`: the caller's own module is trained, whatever the spec names. `text` is how a table's text is cut.
    `tokens` says whether inputs are tokens or numbers, where that is known.
    """

    silos: tuple[SiloFacts, ...]
    scale: FeatureScale
    task: Task
    own_model: bool = False
    text: Text | None = None
    tokens: bool | None = None


@dataclass(frozen=True)
class FilledSpec:
    """A spec with nothing left out, and why each setting was chosen, by its place (`rounds.count`)."""

    spec: RunSpec
    reasons: Mapping[str, str]
    forecast: Forecast | None = None


def facts_of(dataset: Dataset, silos: tuple[SiloFacts, ...], own_model: bool = False) -> PublicFacts:
    """What is public of a data set in these silos."""
    scale = scale_of_numbers(dataset.features) if dataset.layout is None else scale_of_table(dataset.layout)
    text = None if dataset.layout is None else dataset.layout.text
    return PublicFacts(silos, scale, dataset.task, own_model, text, are_tokens(dataset.data.inputs.dtype))


def fill_rate(spec: RunSpec) -> RunSpec:
    """The spec with a sampling rate: everybody in every step, where it does not say."""
    if spec.policy.rate is not None or spec.policy.batch_size is not None:
        return spec
    return _update(spec, {"policy.rate": 1.0})


def fill_settings(spec: RunSpec, facts: PublicFacts) -> FilledSpec:
    """The spec with all that it leaves out of how to sample, clip and step."""
    filled, reasons = _fill_tokens(spec, facts)
    if fill_rate(filled) is not filled:
        filled, reasons["policy.rate"] = fill_rate(filled), "everybody in every step: least noise for a budget"
    if spec.policy.as_printed or "learning_rate" in spec.rounds.model_fields_set:
        return FilledSpec(filled, reasons)
    steepness = _steepness(spec, facts)
    found = _Draft(filled, reasons)
    if adds_no_noise(filled, facts):
        _fill_unprivate(found, steepness)
        return FilledSpec(found.spec, found.reasons)
    _fill_clip(found, facts, steepness)
    best = _fill_pace(found, facts, steepness)
    return FilledSpec(found.spec, found.reasons, best)


def _fill_tokens(spec: RunSpec, facts: PublicFacts) -> tuple[RunSpec, dict[str, str]]:
    """What a model of the catalogue must know of tokens: how many there are, and which is the padding."""
    if facts.own_model:
        return spec, {}
    if facts.tokens is not None:
        require_reader(spec.model.name, facts.tokens)
    if facts.text is None or ":" in spec.model.name:
        return spec, {}
    tokenizer = find_tokenizer(facts.text)
    known = {"vocabulary": len(tokenizer.tokens), "padding": tokenizer.padding}
    if set(known) <= set(spec.model.options):
        return spec, {}
    filled = _update(spec, {"model.options": known | spec.model.options})
    return filled, {"model.options": "vocabulary and padding are the tokenizer's"}


def _steepness(spec: RunSpec, facts: PublicFacts) -> Steepness | None:
    """What is known of the curvature: something where a linear model is trained by a loss of the catalogue."""
    model, loss = spec.model, spec.model.loss or facts.task.loss
    if model.name != LINEAR or model.start is not None or facts.own_model or loss not in LOSSES:
        return None
    return Steepness(facts.scale, facts.task.outputs, loss)


class _Draft:
    """A spec on its way: what was given is never changed."""

    def __init__(self, spec: RunSpec, reasons: Mapping[str, str]) -> None:
        self.spec, self.reasons = spec, dict(reasons)

    def given(self, place: str) -> bool:
        section, key = place.split(".")
        return key in getattr(self.spec, section).model_fields_set and place not in self.reasons

    def set(self, place: str, value: Any, why: str) -> None:
        if not self.given(place):
            self.spec = _update(self.spec, {place: value})
            self.reasons[place] = why


def _update(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    for place, value in changes.items():
        section, key = place.split(".")
        inner = getattr(spec, section).model_copy(update={key: value})
        spec = spec.model_copy(update={section: inner})
    return spec


def adds_no_noise(spec: RunSpec, facts: PublicFacts) -> bool:
    """Whether the policy adds no noise, as FedAvg."""
    return _rows(spec, facts)[0][0].noise is not None


def _fill_unprivate(found: _Draft, steepness: Steepness | None) -> None:
    found.set("rounds.count", UNPRIVATE_ROUNDS, "without noise nothing but time speaks against more rounds")
    found.set("server.step", "momentum", "goes further in flat directions")
    if has_momentum(found.spec.server.step):  # a user's own step may have none
        found.set("server.momentum", UNPRIVATE_MOMENTUM, "goes further in flat directions")
    found.set("rounds.averaging", "items", "the mean over all records, wherever they are")
    rate, why = OTHER_RATE, "a cautious rate for a model of unknown curvature"
    if steepness is not None:
        rate = _digits(FASTEST / steepness.curvature)
        why = f"{FASTEST:g}/L, which momentum bears: declared bounds allow a curvature of L = {steepness.curvature:.3g}"
    found.set("rounds.learning_rate", rate, why)


def _fill_clip(found: _Draft, facts: PublicFacts, steepness: Steepness | None) -> None:
    if steepness is None:
        found.set("rounds.averaging", "subjects", "silos count by their public sizes")
        return
    reads_pool = "pool" in find(found.spec.policy.name).reads
    if reads_pool:
        found.set("policy.pool", "sum", "a subject counts by its records, as it does when the model is used")
    norm, why = steepness.first_gradient, "a record's longest gradient at the start: later, only mistakes are clipped"
    if found.spec.policy.pool == "sum" and reads_pool:
        typical = sum(silo.items for silo in facts.silos) / sum(silo.subjects for silo in facts.silos)
        records = 1.5 + typical / 4
        norm, why = records * norm, f"as long as {records:.2g} records' gradients at the start are"
    found.set("policy.clip_norm", _digits(norm), why)
    by_items = found.spec.policy.pool == "sum" or not _pools_subjects(found.spec, facts)
    found.set("rounds.averaging", "items" if by_items else "subjects", "silos count by their public sizes")


def _pools_subjects(spec: RunSpec, facts: PublicFacts) -> bool:
    """Whether a subject counts once, however many items it has."""
    return _rows(spec, facts)[0][0].clip.pool == "mean"


def _fill_pace(found: _Draft, facts: PublicFacts, steepness: Steepness | None) -> Forecast | None:
    found.set("server.step", "momentum", "goes further in flat directions, and averages noise")
    found.set("server.momentum", MOMENTUM, "goes further in flat directions, and averages noise")
    found.set("server.schedule", "linear", "the last steps average the noise of the others")
    gain = 1 / (1 - found.spec.server.momentum) if found.spec.server.step == "momentum" else 1.0
    gain *= found.spec.server.learning_rate
    if steepness is None:
        found.set("rounds.count", OTHER_ROUNDS, "long enough for a small learning rate")
        rate = OTHER_RATE * 10 / gain
        found.set("rounds.learning_rate", _digits(rate), "a cautious rate for a model of unknown curvature")
        return None
    most = MOST_ROUNDS if not found.given("rounds.count") else found.spec.rounds.count
    longest = most * FASTEST * gain
    best = forecast(steepness, _variance(found.spec, facts), longest)
    rounds = min(max(math.ceil(best.time / (FASTEST * gain) / 10) * 10, FEWEST_ROUNDS), MOST_ROUNDS)
    found.set("rounds.count", rounds, f"enough steps for a time of {best.time:.3g}/L, the best for this noise")
    steps = found.spec.rounds.count * found.spec.rounds.steps
    rate = best.time / steepness.curvature / steps / gain
    rate = min(rate, FASTEST / steepness.curvature / found.spec.rounds.steps)
    rate *= max(1.0, steepness.first_gradient / found.spec.policy.clip_norm)  # what is clipped short goes as far
    why = f"a time of {best.time:.3g}/L, where L = {steepness.curvature:.3g} is the most that declared bounds allow"
    found.set("rounds.learning_rate", _digits(rate), why)
    return best


def _rows(spec: RunSpec, facts: PublicFacts) -> list[Row]:
    settings = policy_settings(spec, len(facts.silos))
    return [(make_row(spec.policy.name, settings, silo), silo) for silo in facts.silos]


def _variance(spec: RunSpec, facts: PublicFacts) -> float:
    """s²/T: the variance of one value of a step's noise in the silos' weighted mean, for a step of T; 0 if unknown."""
    try:
        rows = [
            (make_row(spec.policy.name, policy_settings(spec, len(facts.silos)), silo), silo) for silo in facts.silos
        ]
        steps = MOST_ROUNDS
        noise = spec.privacy.noise_multiplier or _noise(spec, rows, steps)
    except WholegrainError:  # the plan says better than this could why there is none
        return 0.0
    sizes = [silo.subjects if spec.rounds.averaging == "subjects" else silo.items for _, silo in rows]
    if spec.rounds.averaging == "plain":
        sizes = [1 for _ in rows]
    variance = 0.0
    for (policy, silo), size in zip(rows, sizes, strict=True):
        divisor = policy.divisor.value if isinstance(policy.divisor, PublicDivisor) else 1.0
        variance += (size / sum(sizes) * noise * policy.clip.norm / divisor / _counted_share(policy, silo)) ** 2
    return variance / steps


def _counted_share(policy: Policy, silo: SiloFacts) -> float:
    """The share of the drawn items that a cap within the batch lets count: the signal shrinks by it, noise does not."""
    cap = getattr(policy.sampling, "most_per_subject", None)
    rate = getattr(policy.sampling, "rate", 1.0)
    return 1.0 if cap is None else min(1.0, cap * silo.subjects / (rate * silo.items))


def leaves_out_records(spec: RunSpec, facts: PublicFacts) -> bool:
    """Whether subjects with many records count for less than these: they are averaged, or a cap leaves some out."""
    return _pools_subjects(spec, facts) or any(_counted_share(policy, silo) < 1 for policy, silo in _rows(spec, facts))


def predicted_noise(spec: RunSpec, facts: PublicFacts, parameters: int) -> tuple[float, float]:
    """Nearly the noise multiplier of a filled spec, and signal to noise of all its steps together."""
    rows = _rows(spec, facts)
    steps = spec.rounds.count * spec.rounds.steps
    noise = _noise(spec, rows, steps)
    reach = Federation(silos=facts.silos, span=spec.silos.span).reach
    signal, spread = one_step(rows, noise, parameters, reach)
    return noise, math.sqrt(steps) * signal / spread


def _noise(spec: RunSpec, rows: list[Row], steps: int) -> float:
    """Nearly the noise multiplier that the budget needs for so many steps."""
    unit, epsilon = Unit(spec.privacy.unit), spec.privacy.epsilon
    if epsilon is None or obstacles(rows[0][0], unit) or missing_bound(rows, unit):
        return 0.0
    reach = Federation(silos=tuple(silo for _, silo in rows), span=spec.silos.span).reach
    horizon = Horizon(silos=tuple(silo.name for _, silo in rows), rounds=steps, steps=1)

    def event_of(noise: float) -> DpEvent:
        noisy: list[Row] = [(policy.with_visible_noise(noise), silo) for policy, silo in rows]
        return federation_event(noisy, horizon.releases(), unit, reach)

    return first_guess(event_of, Budget(epsilon, spec.privacy.delta))


def _digits(value: float) -> float:
    """Three digits, so that what is shown gives the very same run."""
    return float(f"{value:.3g}")
