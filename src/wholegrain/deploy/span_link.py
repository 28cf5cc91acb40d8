"""`wholegrain link`: how silos learn in how many of them each of their subjects is, without showing anybody an id.

    key      one silo makes a key with the rules by which ids are written, and gives it to the other silos
    tokens   each silo writes HMAC-SHA256(key, id) of its subjects, in an order that says nothing
    count    whoever does not have the key counts equal tokens over silos
    keep     each silo takes its counts back, and keeps them beside its ledger

Who counts learns how many people any set of silos shares, and not who they are. Who has the key and a token file can
try ids: the key belongs to the silos alone, tokens are not kept, and a silo that works with whoever counts tells it who
is where. A silo that lies, and writes tokens of people whom it does not have, learns in how many silos they are. Who
counts must be trusted to count rightly: a count that is too small would give a subject more weight than was priced. A
column of spans does without that trust.
"""

import hashlib
import hmac
import json
import secrets
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from wholegrain import _check
from wholegrain._files import write_whole
from wholegrain.data.dataset import Dataset
from wholegrain.data.labels import plain_id
from wholegrain.data.subjects import subject_codes
from wholegrain.data.table import subject_ids
from wholegrain.deploy.charter import Charter
from wholegrain.errors import DataError, RunError, SpecError
from wholegrain.runs.accounts import make_ledger_folder
from wholegrain.runs.datasets import read_table

SUFFIX = ".spans"
COLUMN = "column"
"""What stands for the link of spans that a column of the table says."""
Hex = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]

RULES: Mapping[str, Callable[[str], str]] = {
    "strip": str.strip,
    "casefold": str.casefold,
    "unaccent": lambda text: "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)),
    "alphanumeric": lambda text: "".join(c for c in text if c.isalnum()),
    "no_leading_zeros": lambda text: text.lstrip("0"),
}
"""How ids can be written alike before they are compared, in the order in which a key names them."""


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LinkKey(_File):
    """What the silos share and nobody else has."""

    key: Hex
    rules: tuple[str, ...]

    def token(self, id: str) -> str:
        """What stands for an id."""
        id = plain_id(id)
        for rule in self.rules:
            id = RULES[rule](id)
        return hmac.new(bytes.fromhex(self.key), id.encode(), hashlib.sha256).hexdigest()


def _plain_name(name: str) -> str:
    """A silo's name, which a silo writes itself and which becomes that of a file here, and a word on the terminal."""
    if name != Path(name).name or not name.isprintable():
        raise ValueError("it is no name of a file")
    return name


class Tokens(_File):
    """A silo's subjects, as tokens."""

    silo: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_plain_name)]
    tokens: tuple[Hex, ...]


class SpanCounts(_File):
    """What a silo gets back: in how many of these silos each of its tokens is.

    `link` tells one count from another, and is random: it says nothing about what was counted.
    """

    silo: str
    link: Hex
    silos: tuple[str, ...]
    counts: dict[Hex, Annotated[int, Field(ge=1)]]


class KnownSpans(_File):
    """What a silo keeps: spans by subject code. Private."""

    link: Hex
    spans: dict[str, Annotated[int, Field(ge=1)]]


File = TypeVar("File", bound=_File)


def make_key(rules: Sequence[str], path: Path) -> None:
    """Draw a key, in a file of its owner's alone."""
    for rule in rules:
        if rule not in RULES:
            raise SpecError(f"'{rule}' is no rule for ids; there are {', '.join(RULES)}.")
    if path.exists():
        raise RunError(f"'{path}' already exists; silos that share it would lose their link.")
    _write(path, LinkKey(key=secrets.token_hex(32), rules=tuple(rules)))


def write_tokens(charter: Charter, key: Path, path: Path) -> int:
    """Write the tokens of a silo's subjects; how many there are. Private: the file, to whoever has the key."""
    tokens = sorted(_tokens(charter, _read(LinkKey, key)).values())
    _write(path, Tokens(silo=charter.silo, tokens=tuple(tokens)))
    return len(tokens)


def count_tokens(paths: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Count equal tokens over silos, and write what each silo gets back; the files by silo."""
    found = [_read(Tokens, path) for path in paths]
    names = [each.silo for each in found]
    if len(found) < 2 or len(set(names)) < len(names):
        raise SpecError("Counting takes the token files of at least two different silos, one of each.")
    counts = Counter(token for each in found for token in set(each.tokens))
    # Servers see what it goes into, so it is no digest of tokens: who has a silo's key could try people against it.
    link = secrets.token_hex(32)
    written = {}
    for each in found:
        own = {token: counts[token] for token in sorted(each.tokens)}
        written[each.silo] = folder / f"{each.silo}.counts"
        folder.mkdir(parents=True, exist_ok=True)
        _write(written[each.silo], SpanCounts(silo=each.silo, link=link, silos=tuple(sorted(names)), counts=own))
    return written


def keep_counts(charter: Charter, key: Path, path: Path) -> Mapping[int, int]:
    """Take counts back and keep them beside the ledger; how many subjects have each span. Private: the result."""
    counted = _read(SpanCounts, path)
    ours = {charter.silo, *(charter.link.peers if charter.link else ())}
    if counted.silo != charter.silo:
        raise SpecError(
            f"The counts '{path}' are those of the silo '{_check.quoted(counted.silo)}', not of '{charter.silo}'."
        )
    if len(ours) > 1 and set(counted.silos) != ours:
        raise SpecError(
            f"The counts '{path}' are over {_check.quoted(', '.join(counted.silos))}, and the charter's silos are"
            f" {', '.join(sorted(ours))}; a silo that was not counted would make spans too small."
        )
    tokens = _tokens(charter, _read(LinkKey, key))
    if set(tokens.values()) != set(counted.counts):
        raise DataError(f"The counts '{path}' are not those of the subjects that are in the data now; link again.")
    if max(counted.counts.values(), default=1) > len(counted.silos):
        raise SpecError(f"The counts '{path}' have spans of more silos than were counted.")
    codes = subject_codes(tokens)
    spans = {str(code): counted.counts[token] for code, token in zip(codes.tolist(), tokens.values(), strict=True)}
    make_ledger_folder(spans_path(charter))  # a silo may be linked before it has a ledger
    _write(spans_path(charter), KnownSpans(link=counted.link, spans=spans))
    return Counter(spans.values())


def read_spans(charter: Charter) -> KnownSpans | None:
    """The spans that the silo keeps, if it was linked."""
    path = spans_path(charter)
    return _read(KnownSpans, path) if path.exists() else None


def link_spans(charter: Charter, dataset: Dataset) -> tuple[Dataset, str]:
    """The silo's data with the spans that it knows, and what tells these spans from others.

    A column of the table goes before what was linked. A subject that was not linked is refused, and so nobody's span is
    too small unless another silo's data has changed since: then that silo is refused, and all have to link again.
    """
    if dataset.spans is not None:
        return dataset, COLUMN
    known = read_spans(charter)
    if known is None:
        return dataset, ""
    codes = dataset.data.subjects.tolist()
    if {str(code) for code in codes} != set(known.spans):
        raise DataError("The subjects of the data have changed since they were linked; let all silos link again.")
    return replace(dataset, spans=np.array([known.spans[str(code)] for code in codes], np.int64)), known.link


def spans_path(charter: Charter) -> Path:
    """Where a silo keeps its spans: beside its ledger, readable by its owner alone."""
    assert charter.ledger.path is not None
    path = Path(charter.ledger.path)
    name = hashlib.sha256(f"{charter.data_name} in {charter.silo}".encode()).hexdigest()[:16]
    return path.with_name(f"{path.name}.{name}{SUFFIX}")


def _tokens(charter: Charter, key: LinkKey) -> dict[str, str]:
    """A token for each id of the silo's table; two ids of one person are refused."""
    table = charter.data.table
    if table is None:
        raise SpecError("Only a table has ids that can be linked: describe it in data.table.")
    tokens = {id: key.token(id) for id in subject_ids(read_table(table), table.layout).unique().sort().to_list()}
    twice = len(tokens) - len(set(tokens.values()))
    if twice:
        raise DataError(
            f"{twice} subjects of the table have two ids that the key's rules write alike; to the guarantee they are"
            " two people. Write each person's id in one way, or make a key with fewer rules."
        )
    return tokens


def _read(form: type[File], path: Path) -> File:
    try:
        return form.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SpecError(f"'{path}' cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise SpecError(f"'{path}' is not what `wholegrain link` writes for this ({form.__name__}).") from error


def _write(path: Path, content: _File) -> None:
    text: Any = json.dumps(content.model_dump(mode="json"))
    try:
        write_whole(path, text.encode(), private=True)
    except OSError as error:
        raise RunError(f"'{path}' cannot be written: {error.strerror}.") from error
