"""What a run is asked to do: one frozen tree of sections, read from TOML, in which an unknown key is an error."""

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from wholegrain import _check
from wholegrain.errors import SpecError

Label = Annotated[str, BeforeValidator(str)]
"""A class, a category or a name; numbers are taken by their digits."""

Options = Annotated[dict[str, Any], Field(exclude_if=lambda options: not options)]
"""Options of a section that had none in earlier versions: left out where there are none, so that digests stay."""

BLANK = "FILL IN"
"""What stands in an unfinished spec where somebody's knowledge is needed."""


class Section(BaseModel):
    """A frozen part of a spec that refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FeatureSpec(Section):
    """A column's public knowledge: bounds of a number, or the categories of a name (`centred`: less 1/k each)."""

    low: float | None = None
    high: float | None = None
    categories: tuple[Label, ...] | None = None
    centred: bool = False
    missing: float | bool | None = None


class TargetSpec(Section):
    """The column to predict: its classes, or a public threshold for a number."""

    column: str
    classes: tuple[Label, ...] = ()
    threshold: float | None = None


class TableSpec(Section):
    """The user's own table, CSV or Parquet; a relative path is taken from the spec's folder."""

    path: str
    subject: str
    target: TargetSpec
    features: dict[str, FeatureSpec]
    silo: str | None = None


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
    spec's folder. `train` says what is trained from there: all of it, its head (the last layer), or updates of rank
    `rank` beside its layers, and the head. `loss` is one of the catalogue or `module:function`: of outputs and targets,
    a mean over items.
    """

    name: str = "logistic"
    options: dict[str, Any] = {}
    start: str | None = None
    train: Literal["all", "head", "low_rank"] = "all"
    rank: Annotated[int, Field(ge=1, le=4096)] = 4
    loss: Annotated[str, Field(exclude_if=lambda loss: loss == "cross_entropy")] = "cross_entropy"


class PolicySpec(Section):
    """Which algorithm, of the catalogue or `module:function`, with its public settings.

    `by_span` (of `subject_dp` with rate 1): a subject in m silos counts 1/√m in each, and M costs nothing. Silos must
    know m of each of their subjects; it is a private fact, and stays with them.
    """

    name: str = "subject_dp"
    rate: float | None = None
    batch_size: int | None = None
    clip_norm: float = 1.0
    group_cap: int | None = None
    items_per_step: int | None = None
    by_span: bool = False
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


class ServerSpec(Section):
    """What the server makes of each round's mean. Silos have added their noise by then, so nothing here costs privacy.

    `step` is an optimiser of the catalogue (plain, momentum, adam) or your own as `module:name`, with its `options`.
    `learning_rate` is how far the parameters go towards the mean (with `adam`, how far each goes in a round), along
    `schedule` over the rounds. `average` shows and keeps a mean of parameters over rounds: over the last share `tail`,
    or with each earlier round counting `decay` times the next.
    """

    step: str = "plain"
    options: Options = {}
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    average: Literal["none", "tail", "exponential"] = "none"
    tail: Annotated[float, Field(gt=0, le=1)] = 0.5
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.9


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


class SiloFactsSpec(Section):
    """What is public of a silo that keeps its data to itself."""

    name: str
    items: int
    subjects: int
    items_per_subject: int | None = None
    drops_surplus: bool = True
    knows_spans: bool = False
    """Whether it knows, of each of its subjects, in how many silos that subject is."""


class FederationSpec(Section):
    """A federation whose server holds no data: the shape of an input, the classes, and public facts of the silos.

    A silo has `patience` seconds to answer in a round.
    """

    shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    classes: Annotated[int, Field(ge=2, le=10**6)]
    silos: tuple[SiloFactsSpec, ...]
    patience: float = 600.0


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
    ledger: LedgerSpec = LedgerSpec()
    rounds: RoundsSpec = RoundsSpec()
    server: ServerSpec = ServerSpec()
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
    return apply_changes(read_tree(path), changes, path)


def apply_changes(tree: dict[str, Any], changes: tuple[str, ...], path: Path) -> RunSpec:
    """The spec of a tree that stands at `path`, with `a.b=value` changes applied."""
    for change in changes:
        apply(tree, change)
    refuse_blanks(tree, path)
    _refuse_unwritable(tree, path)
    data = tree.get("data")
    inner = [data.get(name) for name in ("table", "options")] if isinstance(data, dict) else []
    for section in (*inner, tree.get("ledger")):
        resolve(section, "path", path)
    resolve(tree.get("model"), "start", path)
    return RunSpec.of(tree)


def resolve(section: Any, key: str, path: Path) -> None:
    """Take a relative path in a section from the folder of the file that it stands in."""
    if isinstance(section, dict) and isinstance(section.get(key), str):
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
    if first["type"] != "extra_forbidden":
        return f"In {what}, {place}: {first['msg']} (it is {first['input']!r})."
    section = _section(first["loc"][:-1], root)
    options = list(section.model_fields) if section else []
    near = _check.suggestion(str(first["loc"][-1]), options)
    return f"In {what}, unknown key '{place}'{near}; known here: {', '.join(options)}."


def _section(place: tuple[int | str, ...], root: type[Section]) -> type[Section] | None:
    """The section class at this place of the tree."""
    section: Any = root
    within: Any = None
    """The section of each value, where the place is within a mapping."""
    for part in place:
        if within is not None:
            section, within = within, None
            continue
        if section is None or part not in getattr(section, "model_fields", {}):
            return None
        annotation = section.model_fields[part].annotation
        section = _section_in(annotation)
        if getattr(annotation, "__origin__", None) is dict:
            section, within = None, section
    return section if isinstance(section, type) and issubclass(section, Section) else None


def _section_in(annotation: Any) -> Any:
    """The section class inside an annotation such as `TableSpec | None` or `dict[str, FeatureSpec]`."""
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None
