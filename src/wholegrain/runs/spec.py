"""What a run is asked to do: one frozen tree of sections, read from TOML, in which an unknown key is an error."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from wholegrain import _check
from wholegrain.errors import SpecError
from wholegrain.federation.server_settings import ServerSettings
from wholegrain.runs.roster import read_roster
from wholegrain.runs.section_files import (
    Section,
    change_tree,
    explain_fault,
    read_tree,
    refuse_blanks,
    resolve,
    resolve_tokenizers,
)
from wholegrain.runs.spec_sections import (
    AboutSpec,
    ComputeSpec,
    DataSpec,
    EvaluationSpec,
    FederationSpec,
    LedgerSpec,
    ModelSpec,
    PolicySpec,
    PrivacySpec,
    RoundsSpec,
    SilosSpec,
    TrustSpec,
)

TABLES = (".csv", ".tsv", ".gz", ".zip", ".parquet", ".xlsx")
"""Endings of files that are mistaken for a spec."""

GIVEN = "given in Python"
"""What stands for data, a model or a loss that a call was given as a value: no spec can name it."""


OriginWord = Literal["given", "public", "planned", "paid", "unpaid"]
OriginSpec = OriginWord | dict[str, OriginWord]
"""Of a whole section, or of its keys."""


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
    origin: Annotated[Mapping[str, OriginSpec], Field(exclude_if=lambda origin: not origin)] = Field(
        default_factory=dict
    )
    """How settings were chosen, by section and key; see `setting_origins`."""
    about: Annotated[AboutSpec, Field(exclude_if=lambda about: not about.model_dump())] = AboutSpec()

    @staticmethod
    def of(tree: Mapping[str, Any]) -> "RunSpec":
        """A spec from nested mappings, or an error that names the first key at fault."""
        try:
            return RunSpec.model_validate(tree)
        except ValidationError as error:
            raise SpecError(explain_fault(error, RunSpec)) from error

    @property
    def digest(self) -> str:
        """What tells this spec from any other."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def load(path: Path, changes: tuple[str, ...] = ()) -> RunSpec:
    """Read a spec (TOML, or the JSON that a run keeps), with `a.b=value` changes applied on top.

    A relative path of a table, of a source's files or of a backbone is taken from the spec's folder; one in a change,
    from the working directory.
    """
    if path.suffix.lower() in TABLES:
        raise SpecError(f"'{path}' is a table and not a spec; begin one with wholegrain data init {path}.")
    return apply_changes(read_tree(path), changes, path)


def apply_changes(tree: dict[str, Any], changes: tuple[str, ...], path: Path) -> RunSpec:
    """The spec of a tree that stands at `path`, with `a.b=value` changes applied."""
    change_tree(tree, changes, path, _resolve_paths)
    refuse_blanks(tree, path)
    if "public" in tree:
        raise SpecError(
            f"The spec '{path}' has `public`, as only those of wholegrain pretrain have; give it to that command, or"
            " leave `public` out."
        )
    _read_silos(tree.get("federation"), path)
    _refuse_unwritable(tree, path)
    return RunSpec.of(tree)


def _resolve_paths(tree: Mapping[str, Any], folder: Path) -> None:
    """Take relative paths of data, ledger, backbone and roster from this folder."""
    data = tree.get("data")
    inside = [data.get(name) for name in ("table", "options")] if isinstance(data, dict) else []
    others = (tree.get("model"), "start"), (tree.get("federation"), "roster")
    for section, key in (*((each, "path") for each in (*inside, tree.get("ledger"))), *others):
        if isinstance(section, dict) and section.get(key) != GIVEN:
            resolve(section, key, folder)
    resolve_tokenizers(inside[0] if inside else None, folder)


def _read_silos(federation: Any, path: Path) -> None:
    """Put the silos of a roster in the place of its name."""
    if not isinstance(federation, dict) or "roster" not in federation:
        return
    if "silos" in federation:
        raise SpecError(f"The spec '{path}' has both federation.roster and federation.silos; one of them is enough.")
    place = Path(str(federation.pop("roster")))
    roster = read_roster(place)
    refuse_blanks({"silos": roster.silos}, place, "roster")
    federation["silos"] = roster.facts()


def _refuse_unwritable(tree: Mapping[str, Any], path: Path) -> None:
    """Refuse half a character (JSON can escape one, an argument of the command can hold one): a run keeps its spec."""
    try:
        json.dumps(tree, ensure_ascii=False, default=str).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise SpecError(f"The spec '{path}' cannot be kept as text: {_check.reason(error)}.") from error
