"""The sections of a spec: their keys, what each means and what it is where a spec leaves it out.

Every default and every `exclude_if` enters the digest of a spec, by which a run knows that it is the same.
"""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from wholegrain.data.declarations import read_features, read_value, write_feature, write_target
from wholegrain.data.schema import Feature, TableLayout, Target
from wholegrain.models.train_choice import TrainChoice
from wholegrain.policies.score_settings import ScoreSettings
from wholegrain.policies.silo_facts import SiloFacts
from wholegrain.runs.section_files import Section

if TYPE_CHECKING:
    from wholegrain.data.tasks import Task

Label = Annotated[str, BeforeValidator(str)]
"""A class, a category or a name; numbers are taken by their digits."""

Value = TypeVar("Value")
Unset = Annotated[Value | None, Field(exclude_if=lambda value: value is None)]
"""A key that earlier versions did not have: left out where it is not set, so that digests stay."""
Labels = Annotated[tuple[Label, ...], Field(exclude_if=lambda labels: not labels)]
"""Names that earlier versions did not ask for: left out where there are none, so that digests stay."""


def _read_target(target: object) -> Target:
    return read_value(Target, "data.table.target", target)


TargetSpec = Annotated[Target, PlainValidator(_read_target), PlainSerializer(write_target)]
"""The column to predict; in a spec, a table with the fields of a `Target`."""

FeatureSpecs = Annotated[
    dict[str, Feature],
    PlainValidator(read_features),
    PlainSerializer(lambda features: {name: write_feature(feature) for name, feature in features.items()}),
]
"""What is publicly known of each column; in a spec, a table with the fields of a `Number`, a `Date` or a `Category`."""


class TableSpec(Section):
    """The user's own table, CSV, Parquet or Excel; a relative path is taken from the spec's folder.

    `silos` names the only silos whose rows are taken; others are left out. `missing_values` are spellings of what is
    not known ("?"). `recode` gives, by column, values that stand for others. `encoding` and `decimal` say how a
    CSV is written, where it is not UTF-8 with decimal points.
    """

    path: str
    subject: str
    target: TargetSpec
    features: FeatureSpecs
    silo: str | None = None
    span: Unset[str] = None
    """The column that says in how many silos a row's subject is; a master patient index knows it."""
    silos: Labels = ()
    missing_values: Labels = ()
    recode: dict[str, dict[str, Label]] = Field(default_factory=dict, exclude_if=lambda recode: not recode)
    encoding: Annotated[str, Field(exclude_if=lambda encoding: encoding == "utf-8")] = "utf-8"
    decimal: Annotated[Literal[".", ","] | None, Field(exclude_if=lambda decimal: decimal is None)] = None

    @property
    def layout(self) -> TableLayout:
        """Which column is what."""
        return TableLayout(
            subject=self.subject,
            silo=self.silo,
            span=self.span,
            silos=self.silos,
            target=self.target,
            features=self.features,
            missing_values=self.missing_values,
            recode=self.recode,
        )


class DataSpec(Section):
    """Which data: a source of the catalogue or `module:function`, with its options; or a table."""

    source: str = "table"
    options: dict[str, Any] = Field(default_factory=dict)
    table: TableSpec | None = None


class SizeSpec(Section):
    """A silo's public size, as its owner declares it: about how many items and subjects it trains on."""

    items: Annotated[int, Field(ge=1)]
    subjects: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.subjects > self.items:
            raise ValueError("a silo has at least as many items as subjects")
        return self


class SilosSpec(Section):
    """How items are spread over silos, and what is public of them.

    K (`items_per_subject`) and M (`span`) are bounds. `sizes` declares how large each silo is, by its name or as "*"
    for all others; a release needs it, a simulation may read sizes off the data.
    """

    partition: Literal["column", "uniform", "power"] = "column"
    count: int | None = None
    alpha: float = 2.0
    items_per_subject: int | None = None
    span: int | None = None
    surplus: Literal["drop", "refuse"] | None = None
    sizes: dict[str, SizeSpec] = Field(default_factory=dict)


class ModelSpec(Section):
    """A model of the catalogue or `module:factory`, with its options.

    `start` names a backbone that was trained on public data (`wholegrain pretrain`); a relative path is taken from the
    spec's folder. `train` says what is trained from there: all of it, its head (the last layer), the head with updates
    of rank `rank` beside the other layers, the head with all biases, the head with a `prefix` of so many keys and
    values in every attention layer, or, as a list, parameters whose names match patterns ("blocks.3.*"). `loss` is one
    of the catalogue or `module:function`: of outputs and targets, a mean over items; without it, the usual one of what
    is to be predicted.
    """

    name: str = "logistic"
    options: dict[str, Any] = Field(default_factory=dict)
    start: str | None = None
    train: TrainChoice = "all"
    rank: Annotated[int, Field(ge=1, le=4096)] = 4
    prefix: Annotated[int, Field(ge=1, le=4096, exclude_if=lambda prefix: prefix == 8)] = 8
    loss: Annotated[str | None, Field(exclude_if=lambda loss: loss in (None, "cross_entropy"))] = None

    @property
    def used_rank(self) -> int | None:
        """The rank, where there are low-rank updates."""
        return self.rank if self.train == "low_rank" else None

    @property
    def used_prefix(self) -> int | None:
        """The length of the prefix, where there is one."""
        return self.prefix if self.train == "prefix" else None

    @property
    def written_train(self) -> str:
        """What is trained, as TOML writes it."""
        return json.dumps(self.train, ensure_ascii=False)


class PolicySpec(Section):
    """Which algorithm, of the catalogue or `module:function`, with its public settings.

    `by_span` (of `subject_dp` with rate 1): a subject in m silos counts 1/√m in each, and M costs nothing. Under a
    secure sum it is for every policy and rate, and the subject counts 1/m. Silos must
    know m of each of their subjects; it is a private fact, and stays with them. `by_share` (beside it, with rate 1, in
    a simulation): the subject counts in each silo by its share of items there.
    `pool` (of `subject_dp`): a subject's gradients are averaged or added up before they are clipped as one.
    `local_steps` and `local_rate` (of `uldp_avg`): how many steps each subject takes on its own items, and their
    learning rate.
    """

    name: str = "subject_dp"
    rate: float | None = None
    batch_size: int | None = None
    clip_norm: float = 1.0
    group_cap: int | None = None
    items_per_step: int | None = None
    by_span: bool = False
    by_share: Annotated[bool, Field(exclude_if=lambda by_share: not by_share)] = False
    local_steps: Unset[int] = None
    local_rate: Unset[float] = None
    pool: Annotated[Literal["mean", "sum"], Field(exclude_if=lambda pool: pool == "mean")] = "mean"
    as_printed: bool = False
    composition: Literal["fewer_rounds", "more_lots"] = "fewer_rounds"


class PrivacySpec(Section):
    """The budget and how it is priced. With a noise multiplier given, ε is a limit to be met.

    `noise` is seeded for a simulation that can be repeated, or secure for a release.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    unit: Literal["subject", "item", "silo"] = "subject"
    noise_multiplier: float | None = None
    accountant: str = "pld"
    noise: Literal["seeded", "secure"] = "seeded"


class TrustSpec(Section):
    """Who sees what: `local`, every silo's release; or `secure_sum`, only sums over silos.

    A secure sum is opened with at least `answers` silos (by default five sixths of them), of which `colluding` may work
    with whoever sees it.
    """

    model: Literal["local", "secure_sum"] = "local"
    answers: Annotated[int, Field(ge=1)] | None = None
    colluding: Annotated[int, Field(ge=0)] = 1

    @model_validator(mode="after")
    def _is_a_sum(self) -> Self:
        if self.model == "local" and self.model_fields_set - {"model"}:
            raise ValueError("answers and colluding are for model = 'secure_sum'")
        return self


class LedgerSpec(Section):
    """Whose account pays: the budget named `budget` of the data named `data`, in the ledger at `path`.

    A relative path is taken from the spec's folder. Without one, a simulation keeps its ledger in its own folder, and a
    run with secure noise in the user's, where it lasts. `epsilon` is what all runs on the account may spend, by a
    filter; without it the limit is the run's own, and the account is for this run alone.
    """

    path: str | None = None
    data: str | None = None
    budget: Label = "main"
    epsilon: float | None = None


class RoundsSpec(Section):
    """How long to train, who takes part, and how parameters move.

    A round with fewer usable updates than `fewest_silos` fails: it is paid for, and the parameters stay.
    """

    count: int = 10
    steps: int = 1
    cohort: int | None = None
    learning_rate: float = 1.0
    averaging: Literal["plain", "items", "subjects"] = "plain"
    fewest_silos: int = 1
    checkpoint_every: int = 1


class EvaluationSpec(Section):
    """Shares held out for validation and test, and whether training items are scored too.

    Whole subjects are held out, or with `by = "item"` items of every subject, whose other items are trained on. Without
    `test`, the data's own test part is scored, or where it has none a fifth is held out; 0 scores no test part at all.
    Loss and accuracy are always told; `metrics` names others of the catalogue, or your own as `module:function`.
    `groups` scores the final model by group as well: by "silo", or by columns with categories.
    With `scored_items`, at most so many items of each subject in a part that is held out are scored, drawn by
    coins; the others are not used at all. That saves memory where items overlap, as windows of text do. Private scores
    then protect subjects, and no single items.
    These scores are not private. Those of `private` are: they have noise, and are paid for.
    """

    test: Annotated[float, Field(ge=0, lt=1)] | None = None
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    by: Literal["subject", "item"] = "subject"
    train: bool = False
    scored_items: Unset[Annotated[int, Field(ge=1)]] = None
    metrics: Annotated[tuple[str, ...], Field(exclude_if=lambda metrics: not metrics)] = ()
    groups: Annotated[tuple[str, ...], Field(exclude_if=lambda groups: not groups)] = ()
    private: Unset[ScoreSettings] = None


class ComputeSpec(Section):
    """Where a silo's step is computed and what it may use.

    On the CPU in float32, batches whose activations need more memory than `memory_gib` are computed in pieces. With
    another `device` or `precision`, every unit (subject or item) has passes of its own, of a few items each.
    `precision` is that of products in forward and backward passes; clipped gradients are summed in float64 in any case.

    With `compiled`, seeded noise and batches are drawn by a program in C, whose numbers are others than without. The
    machine's C compiler makes the program when it is first asked for.

    So many as `ranks_per_silo` processes can share a silo's step (`--engine distributed`): its sum is made in so many
    parts, on however many processes they are computed.
    """

    memory_gib: float = 0.25
    device: Annotated[Literal["cpu", "cuda", "mps"], Field(exclude_if=lambda device: device == "cpu")] = "cpu"
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"], Field(exclude_if=lambda precision: precision == "float32")
    ] = "float32"
    compiled: Annotated[bool, Field(exclude_if=lambda compiled: not compiled)] = False
    ranks_per_silo: Annotated[int, Field(ge=1, le=1024, exclude_if=lambda ranks: ranks == 1)] = 1


Words = Annotated[str | None, Field(exclude_if=lambda words: words is None, min_length=1, max_length=600)]
"""A sentence or two of somebody who answers for them."""


class AboutSpec(Section):
    """Who trains and what for: words for reports, model cards and impact assessments. They change nothing else.

    `license` is what the trained model is published under. The words are public, and kept with the run.
    """

    author: Words = None
    contact: Words = None
    purpose: Words = None
    controller: Words = None
    recipients: Words = None
    retention: Words = None
    legal_basis: Words = None
    license: Words = None


PublishedFacts = Annotated[SiloFacts, AfterValidator(lambda silo: replace(silo, declared=True))]
"""What a silo that keeps its data to itself has published of it; whoever publishes sizes declares them."""


class FederationSpec(Section):
    """A federation whose server holds no data: the shape of an input, what is predicted, and public facts of the silos.

    What is predicted is one of so many `classes`, a number from `low` to `high`, or several `labels`. A silo has
    `patience` seconds to answer in a round. In a file, `roster` may stand in the place of `silos`: it names the file
    that has their sizes, and their keys beside them.
    """

    shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    classes: Annotated[int | None, Field(ge=2, le=10**6)] = None
    low: Unset[float] = None
    high: Unset[float] = None
    labels: Labels = ()
    silos: tuple[PublishedFacts, ...]
    patience: float = 600.0

    @model_validator(mode="after")
    def _predict_one_thing(self) -> Self:
        if [self.classes is not None, self.low is not None, bool(self.labels)].count(True) != 1:
            raise ValueError("say what is predicted: classes, or low and high of a number, or labels")
        if (self.low is None) != (self.high is None):
            raise ValueError("a number has two bounds, low and high")
        return self

    @property
    def task(self) -> "Task":
        """What the silos' models predict."""
        from wholegrain.data.tasks import Classification, MultiLabel, Regression  # not for whoever only reads a spec

        if self.low is not None and self.high is not None:
            return Regression(self.low, self.high)
        return MultiLabel(self.labels) if self.labels else Classification.of(self.classes or 0)
