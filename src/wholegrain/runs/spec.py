"""What a run is asked to do: one frozen tree of sections, read from TOML, in which an unknown key is an error."""

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)

from wholegrain import _check
from wholegrain.data.schema import Feature, TableLayout, Target, read_features, read_value, write_feature, write_target
from wholegrain.errors import SpecError
from wholegrain.federation.server_settings import ServerSettings
from wholegrain.policies.silo_facts import SiloFacts
from wholegrain.runs.roster import Roster, parse_roster

if TYPE_CHECKING:
    from wholegrain.data.tasks import Task

Label = Annotated[str, BeforeValidator(str)]
"""A class, a category or a name; numbers are taken by their digits."""

Value = TypeVar("Value")
Unset = Annotated[Value | None, Field(exclude_if=lambda value: value is None)]
"""A key that earlier versions did not have: left out where it is not set, so that digests stay."""
Labels = Annotated[tuple[Label, ...], Field(exclude_if=lambda labels: not labels)]
"""Names that earlier versions did not ask for: left out where there are none, so that digests stay."""

TABLES = (".csv", ".tsv", ".gz", ".zip", ".parquet", ".xlsx")
"""Endings of files that are mistaken for a spec."""

BLANK = "FILL IN"
"""What stands in an unfinished spec where somebody's knowledge is needed."""


GIVEN = "given in Python"
"""What stands for data, a model or a loss that a call was given as a value: no spec can name it."""


class Section(BaseModel):
    """A frozen part of a spec that refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
    silos: Labels = ()
    missing_values: Labels = ()
    recode: Annotated[dict[str, dict[str, Label]], Field(exclude_if=lambda recode: not recode)] = {}
    encoding: Annotated[str, Field(exclude_if=lambda encoding: encoding == "utf-8")] = "utf-8"
    decimal: Annotated[Literal[".", ","] | None, Field(exclude_if=lambda decimal: decimal is None)] = None

    @property
    def layout(self) -> TableLayout:
        """Which column is what."""
        return TableLayout(
            subject=self.subject,
            silo=self.silo,
            silos=self.silos,
            target=self.target,
            features=self.features,
            missing_values=self.missing_values,
            recode=self.recode,
        )


class DataSpec(Section):
    """Which data: a source of the catalogue or `module:function`, with its options; or a table."""

    source: str = "table"
    options: dict[str, Any] = {}
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
    sizes: dict[str, SizeSpec] = {}


class ModelSpec(Section):
    """A model of the catalogue or `module:factory`, with its options.

    `start` names a backbone that was trained on public data (`wholegrain pretrain`); a relative path is taken from the
    spec's folder. `train` says what is trained from there: all of it, its head (the last layer), the head with updates
    of rank `rank` beside the other layers, or the head with all biases. `loss` is one of the catalogue or
    `module:function`: of outputs and targets, a mean over items; without it, the usual one of what is to be predicted.
    """

    name: str = "logistic"
    options: dict[str, Any] = {}
    start: str | None = None
    train: Literal["all", "head", "low_rank", "biases"] = "all"
    rank: Annotated[int, Field(ge=1, le=4096)] = 4
    loss: Annotated[str | None, Field(exclude_if=lambda loss: loss in (None, "cross_entropy"))] = None


class PolicySpec(Section):
    """Which algorithm, of the catalogue or `module:function`, with its public settings.

    `by_span` (of `subject_dp` with rate 1): a subject in m silos counts 1/√m in each, and M costs nothing. Under a
    secure sum it is for every policy and rate, and the subject counts 1/m. Silos must
    know m of each of their subjects; it is a private fact, and stays with them. `pool` (of
    `subject_dp`): a subject's gradients are averaged or added up before they are clipped as one.
    """

    name: str = "subject_dp"
    rate: float | None = None
    batch_size: int | None = None
    clip_norm: float = 1.0
    group_cap: int | None = None
    items_per_step: int | None = None
    by_span: bool = False
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
    """

    test: Annotated[float, Field(ge=0, lt=1)] | None = None
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    by: Literal["subject", "item"] = "subject"
    train: bool = False
    metrics: Annotated[tuple[str, ...], Field(exclude_if=lambda metrics: not metrics)] = ()


class ComputeSpec(Section):
    """What a silo's step may use: batches whose activations need more memory are computed in pieces."""

    memory_gib: float = 0.25


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


class RunSpec(Section):
    """A whole run.

    >>> RunSpec.of({"policy": {"name": "fedavg", "rate": 0.1}}).policy.name
    'fedavg'
    """

    seed: int = 0
    data: DataSpec = DataSpec()
    silos: SilosSpec = SilosSpec()
    model: ModelSpec = ModelSpec()
    policy: PolicySpec = PolicySpec()
    privacy: PrivacySpec = PrivacySpec()
    trust: Annotated[TrustSpec, Field(exclude_if=lambda trust: trust.model == "local")] = TrustSpec()
    ledger: LedgerSpec = LedgerSpec()
    rounds: RoundsSpec = RoundsSpec()
    server: ServerSettings = ServerSettings()
    evaluation: EvaluationSpec = EvaluationSpec()
    compute: ComputeSpec = ComputeSpec()
    federation: FederationSpec | None = None

    @staticmethod
    def of(tree: Mapping[str, Any]) -> "RunSpec":
        """A spec from nested mappings, or an error that names the first key at fault."""
        try:
            return RunSpec.model_validate(tree)
        except ValidationError as error:
            raise SpecError(sentence(error, RunSpec)) from error

    @property
    def digest(self) -> str:
        """What tells this spec from any other."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def load(path: Path, changes: tuple[str, ...] = ()) -> RunSpec:
    """Read a spec (TOML, or the JSON that a run keeps), with `a.b=value` changes applied on top.

    A relative path of a table, of a source's files or of a backbone is taken from the spec's folder.
    """
    if path.suffix.lower() in TABLES:
        raise SpecError(f"'{path}' is a table and not a spec; begin one with wholegrain data init {path}.")
    return apply_changes(read_tree(path), changes, path)


def apply_changes(tree: dict[str, Any], changes: tuple[str, ...], path: Path) -> RunSpec:
    """The spec of a tree that stands at `path`, with `a.b=value` changes applied."""
    for change in changes:
        apply(tree, change)
    refuse_blanks(tree, path)
    _read_silos(tree.get("federation"), path)
    _refuse_unwritable(tree, path)
    data = tree.get("data")
    inner = [data.get(name) for name in ("table", "options")] if isinstance(data, dict) else []
    for section in (*inner, tree.get("ledger")):
        resolve(section, "path", path)
    resolve(tree.get("model"), "start", path)
    return RunSpec.of(tree)


def _read_silos(federation: Any, path: Path) -> None:
    """Put the silos of a roster in the place of its name."""
    if not isinstance(federation, dict) or "roster" not in federation:
        return
    if "silos" in federation:
        raise SpecError(f"The spec '{path}' has both federation.roster and federation.silos; one of them is enough.")
    place = path.parent / str(federation.pop("roster"))
    roster = read_roster(place)
    refuse_blanks({"silos": roster.silos}, place, "roster")
    federation["silos"] = roster.facts()


def read_roster(path: Path) -> Roster:
    """Read a roster.toml."""
    return parse_roster(read_tree(path, "roster"), path)


def resolve(section: Any, key: str, path: Path) -> None:
    """Take a relative path in a section from the folder of the file that it stands in."""
    if isinstance(section, dict) and isinstance(section.get(key), str) and section[key] != GIVEN:
        section[key] = os.path.abspath(path.parent / section[key])


def read_tree(path: Path, what: str = "spec") -> dict[str, Any]:
    """The sections of a TOML file, or of a JSON file; errors say `what` it should have been."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError as error:
        raise SpecError(f"There is no {what} '{path}'.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"The {what} '{path}' cannot be read: {error}.") from error
    except (ValueError, RecursionError) as error:  # ValueError: no TOML or JSON, or a number with thousands of digits
        raise SpecError(f"The {what} '{path}' is not valid: {_check.reason(error)}.") from error
    if not isinstance(tree, dict):
        raise SpecError(f"The {what} '{path}' holds no sections.")
    return tree


def refuse_blanks(tree: Mapping[str, Any], path: Path, what: str = "spec") -> None:
    """Refuse a file in which somebody's knowledge is still missing."""
    blanks = list(_blanks(tree))
    if blanks:
        others = f" (and {len(blanks) - 1} more)" if len(blanks) > 1 else ""
        raise SpecError(
            f"The {what} '{path}' is unfinished: {blanks[0]} still says '{BLANK}'{others}; fill it in from knowledge,"
            " not from the data."
        )


def _refuse_unwritable(tree: Mapping[str, Any], path: Path) -> None:
    """Refuse half a character (JSON can escape one, an argument of the command can hold one): a run keeps its spec."""
    try:
        json.dumps(tree, ensure_ascii=False, default=str).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise SpecError(f"The spec '{path}' cannot be kept as text: {_check.reason(error)}.") from error


def _blanks(value: Any, place: str = "") -> Iterator[str]:
    """Where blanks are left, in the order of the file."""
    if value == BLANK:
        yield place
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _blanks(inner, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _blanks(inner, place)


def apply(tree: dict[str, Any], change: str) -> None:
    """Make one `a.b=value` change to a tree of sections."""
    key, equals, text = change.partition("=")
    *sections, last = key.strip().split(".")
    if not equals or not last:
        raise SpecError(f"A change is written section.key=value, not '{change}'.")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise SpecError(f"'{section}' in the change '{change}' is a value, not a section.")
    tree[last] = _literal(text.strip())


def _literal(text: str) -> Any:
    """A TOML value where it is one, otherwise the text itself, so that names need no quotes.

    TOML has no value for what is not set; `null` stands for it.

    >>> _literal("4.0"), _literal("subject_dp"), _literal("null")
    (4.0, 'subject_dp', None)
    """
    if text == "null":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def sentence(error: ValidationError, root: type[Section], what: str = "the spec") -> str:
    """The first fault of a tree, with the key at fault and what is known there."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"In {what}, {place}: {first['msg']} (it is {first['input']!r})."
    options = _keys(_type_at(first["loc"][:-1], root))
    near = _check.suggestion(str(first["loc"][-1]), options)
    return f"In {what}, unknown key '{place}'{near}; known here: {', '.join(options)}."


def _type_at(place: tuple[int | str, ...], root: type[Section]) -> Any:
    """What the tree has at this place: the type of a section, or an annotation that names one."""
    found: Any = root
    for part in place:
        section = _section_in(found)
        if get_origin(found) in (dict, tuple):  # the part is a key or a number, of a value that has this type
            found = section
        else:
            found = get_type_hints(section).get(str(part)) if section else None
    return found


def _section_in(annotation: Any) -> Any:
    """The section inside an annotation such as `TableSpec | None` or `tuple[SiloFacts, ...]`."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    return next((found for each in get_args(annotation) if (found := _section_in(each))), None)


def _keys(annotation: Any) -> list[str]:
    """The keys of the section in an annotation, those that a file does not hold left out."""
    section = _section_in(annotation)
    if section is None or is_dataclass(section):
        return [field.name for field in fields(section) if field.name != "declared"] if section else []
    return list(section.model_fields)
