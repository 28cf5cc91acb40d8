"""silo.toml: what a silo's operator agrees to. It is the only authority over the silo's data; no message changes it.

The data has a name that stays (`ledger.data`), and its account lies in the machine's state folder unless `ledger.path`
says otherwise: neither a renamed file nor a copied charter opens a fresh budget.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from wholegrain._places import state_folder
from wholegrain.errors import SpecError
from wholegrain.runs.ledger_registry import LEDGER
from wholegrain.runs.planning import require_one_rank
from wholegrain.runs.section_files import Section, explain_fault, read_tree, refuse_blanks, resolve_tokenizers
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec_sections import ComputeSpec, DataSpec, LedgerSpec, ModelSpec, SizeSpec

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LimitSpec(Section):
    """What may be spent from this silo's data, and the least that each step must do for it.

    ε and δ are what one subject may lose by all that this silo ever releases from this data.
    """

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    unit: Literal["subject", "item", "silo"] = "subject"
    items_per_subject: Count
    span: Count | None = None
    """Under secure sums: the most silos that hold one of this silo's subjects; without it, all of them may."""
    most_colluding: Annotated[int, Field(ge=0)] = 1
    """Under secure sums: so many other silos, at least, may work with the server without harm to this one's people."""
    surplus: Literal["drop", "refuse"] = "drop"
    smallest_noise: Positive
    largest_clip: Positive
    most_steps: Count = 100
    noise: Literal["seeded", "secure"] = "secure"
    accountant: Literal["pld", "rdp"] = "pld"


class AllowSpec(Section):
    """What the server may ask for: policies and models by name, and scores that may leave the silo.

    `trust` says what may be seen: this silo's releases (`local`), or sums over silos alone (`secure_sum`). Scores that
    are named leave as they are, and nothing pays for them. With "private" they have noise, and are paid for as every
    release is; no other score leaves the silo then.
    """

    policies: tuple[str, ...] = ("subject_dp",)
    trust: Annotated[tuple[Literal["local", "secure_sum"], ...], Field(min_length=1)] = ("local",)
    models: tuple[ModelSpec, ...]
    scores: tuple[Literal["accuracy", "loss", "mae"], ...] | Literal["private"] = ()


class LinkSpec(Section):
    """How the silo reaches the server: paths are taken from the charter's folder.

    `peers` are public keys of other silos by name, as their operators gave them: what those silos say of their ledgers
    is held to these keys, and not to those that the server names. A secure sum is over this silo and all of its peers.
    """

    address: str
    certificates: str | None = None
    key: str | None = None
    peers: dict[str, str] = Field(default_factory=dict)


class Charter(Section):
    """A whole silo.toml."""

    silo: Annotated[str, Field(min_length=1)]
    seed: int = 0
    data: DataSpec
    limit: LimitSpec
    sizes: SizeSpec | None = None
    """About how many items and subjects are trained on: public, and declared here instead of counted."""
    allow: AllowSpec
    ledger: LedgerSpec = LedgerSpec()
    compute: ComputeSpec = ComputeSpec()
    link: LinkSpec | None = None
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of subjects that is never trained on, for scores."""

    @property
    def data_name(self) -> str:
        """The name under which the account of the data is kept, whatever its file is called."""
        assert self.ledger.data is not None
        return self.ledger.data

    def as_run(self) -> RunSpec:
        """The part of a run's spec that says how data is read and capped."""
        require_sizes(self)
        return RunSpec.of(
            {
                "seed": self.seed,
                "data": self.data.model_dump(),
                "silos": {
                    "items_per_subject": self.limit.items_per_subject,
                    "surplus": self.limit.surplus,
                    "sizes": {self.silo: self.sizes},
                },
                "privacy": {"noise": self.limit.noise},
                "evaluation": {"test": self.held_out},
            }
        )


def require_sizes(charter: Charter) -> None:
    """Refuse a charter without sizes: they go into every plan and message, and counts would tell who is there."""
    if charter.sizes is None:
        raise SpecError(
            f"The charter of silo '{charter.silo}' declares no sizes, which are public and therefore not read off the"
            " data: write the lines [sizes], items = 4000 and subjects = 900 (about what is trained on; round numbers"
            " will do)."
        )


def require_files(link: LinkSpec) -> None:
    """Refuse a link whose certificates or key are not where the charter says."""
    for name, path in (("certificates", link.certificates), ("key", link.key)):
        if path is not None and not Path(path).is_file():
            raise SpecError(f"The charter's link.{name} names '{path}', which is no file.")


def load_charter(path: Path) -> Charter:
    """Read a silo.toml; relative paths in it are taken from its folder."""
    tree = read_tree(path, "charter")
    refuse_blanks(tree, path, "charter")
    for section, key in (("ledger", "path"), ("link", "certificates"), ("link", "key")):
        _resolve(tree.get(section), key, path)
    data = tree.get("data")
    if isinstance(data, dict):
        _resolve(data.get("table"), "path", path)
        resolve_tokenizers(data.get("table"), path.parent)
        _resolve(data.get("options"), "path", path)
    allow = tree.get("allow")
    for model in _as_list(allow.get("models")) if isinstance(allow, dict) else ():
        _resolve(model, "start", path)
    try:
        charter = Charter.model_validate(tree)
    except ValidationError as error:
        raise SpecError(explain_fault(error, Charter, f"the charter '{path}'")) from error
    require_sizes(charter)
    require_one_rank(charter.compute)
    if charter.ledger.data is None:
        raise SpecError(
            f"The charter '{path}' gives its data no name: add a section [ledger] with data = \"a name that stays\","
            " under which this machine keeps the account of all that is ever released from it."
        )
    if charter.ledger.path is None:
        place = charter.ledger.model_copy(update={"path": str((state_folder() / LEDGER).absolute())})
        charter = charter.model_copy(update={"ledger": place})
    return charter


def _resolve(section: Any, key: str, path: Path) -> None:
    if isinstance(section, dict) and isinstance(section.get(key), str):
        section[key] = str((path.parent / section[key]).resolve())


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
