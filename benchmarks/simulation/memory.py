"""What the program would compute again and again in every federation, computed once and remembered.

Every function here is one of the program's own and depends on nothing but its arguments: what a step reveals and costs,
how a task reads, whether a signature is good. Remembering it changes no history. What depends on a ledger, a file or
the time is never remembered.

A few more are done in a faster way that gives the same: indented JSON, and assignments in Flower's records.
"""

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

from flwr.app import Message
from flwr.app.message.typeddict import TypedDict
from pydantic_core import to_json

from wholegrain.deploy import server, silo_service, sum_service
from wholegrain.deploy.certificates import public_line
from wholegrain.engines import wire
from wholegrain.policies import silo_limit
from wholegrain.policies.guarantees import Row, terms
from wholegrain.policies.plan import Plan
from wholegrain.policies.policy_catalog import make_row
from wholegrain.policies.score_plan import add_score_terms
from wholegrain.policies.score_settings import ScoreForm
from wholegrain.privacy import accountants, ledger, statement
from wholegrain.privacy.ledger_entries import Entry, RunOpened, TermsRecord
from wholegrain.privacy.pricing import Price, Spending, Spent, Terms
from wholegrain.runs import accounts, ledger_registry, run_folder
from wholegrain.runs.plan_record import PlanRecord
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.spec import RunSpec

MOST = 4096
"""Of what holds the name of a run or a nonce: no other federation asks for it again."""

Change = tuple[object, str, object]
"""An object, the name of something in it, and what takes its place."""


@contextmanager
def changed(changes: Iterable[Change]) -> Iterator[None]:
    """Put these in place for a while; `mock.patch` does the same, and takes a tenth of a small federation's time."""
    new_ones = list(changes)
    before = [(place, name, vars(place)[name]) for place, name, _ in new_ones]
    for place, name, new in new_ones:
        setattr(place, name, new)
    try:
        yield
    finally:
        for place, name, old in reversed(before):
            setattr(place, name, old)


_BY_IDENTITY: dict[tuple[str, int, Hashable], tuple[object, Any]] = {}
"""What was computed from an object; the object is kept, so that no other can have the same identity."""


def _once(what: str, of: object, compute: Any, more: Hashable = None) -> Any:
    key = (what, id(of), more)
    if key not in _BY_IDENTITY:
        _BY_IDENTITY[key] = of, compute()
    return _BY_IDENTITY[key][1]


# Plans and terms.

PREPARE, SCORER, PLAN_TERMS = server.prepare_server, PreparedRun.scorer, Plan.terms.fget


def _prepared(spec: RunSpec) -> PreparedRun:
    return _once("prepared", spec, lambda: PREPARE(spec))


def _scorer(run: PreparedRun, metrics: Iterable[str] = ()) -> Any:
    names = tuple(metrics)
    return _once("scorer", run, lambda: SCORER(run, names), names)


def _plan_terms(plan: Plan) -> Terms:
    return _once("terms", plan, lambda: PLAN_TERMS(plan))


def _plan_record(plan: Plan) -> PlanRecord:
    return _once("plan", plan, lambda: PlanRecord.of(plan))


def _record(priced: Terms) -> TermsRecord:
    return _once("record", priced, lambda: _with_terms(TermsRecord.of(priced), None))


@cache
def _terms(text: str) -> Terms:
    return TermsRecord.model_validate_json(text).terms


def _with_terms(record: TermsRecord, text: str | None) -> TermsRecord:
    """A record whose terms are the same object as those of every record that says the same."""
    vars(record)["terms"] = _terms(record.model_dump_json() if text is None else text)
    return record


@cache
def _terms_of_rows(rows: tuple[Row, ...], span: int) -> Terms:
    return terms(rows, span)


@cache
def _score_terms(trained: int, rows: tuple[Row, ...], form: ScoreForm, span: int, own_coins: bool) -> Terms:
    kept, _ = _BY_IDENTITY["trained", trained, None]
    return add_score_terms(kept, list(rows), form, span, own_coins=own_coins)  # type: ignore[arg-type]


def _add_score_terms(trained: Terms, rows: list[Row], form: ScoreForm, span: int, *, own_coins: bool) -> Terms:
    _once("trained", trained, lambda: None)
    return _score_terms(id(trained), tuple(rows), form, span, own_coins)


OWN_TERMS, ROW, MAKE_ROW = sum_service.own_terms, sum_service._row, cache(make_row)


_ROWS: dict[Hashable, Row] = {}


def _row(task: Any, keys: Any) -> Row:
    key = (task.policy, task.settings, task.noise_multiplier, keys.silo, keys.statement)
    if key not in _ROWS:
        _ROWS[key] = ROW(task, keys)
    return _ROWS[key]


@cache
def _own_terms(rows: tuple[Row, ...], silo: str, span: int, scores: ScoreForm | None) -> Terms:
    return OWN_TERMS(list(rows), silo, span, scores)


# Prices.

PRICE = cache(accountants.PldAccountant.epsilon)
PRICE_WITH_METHOD, KINDS = statement.price_with_method, statement._kinds
_PRICES: dict[Hashable, Price] = {}


def _price(spent: Iterable[Spent], unit: Any, accountant: Any, delta: float) -> Price:
    found = [Spending(*each) for each in spent]
    key = (tuple(map(_spending_key, found)), unit, accountant, delta)
    if key not in _PRICES:
        _PRICES[key] = PRICE_WITH_METHOD(found, unit, accountant, delta)
    return _PRICES[key]


def _spending_key(spent: Spending) -> Hashable:
    _once("spent", spent.terms, lambda: None)
    return id(spent.terms), _counts(spent.steps), _counts(spent.scores)


def _counts(releases: Mapping[str, int]) -> Hashable:
    return tuple(sorted(releases.items()))


# What is read, and who has signed.

READ, READ_FORM, VERIFY = ledger._read, wire._read_form, sum_service._verify


@lru_cache(maxsize=MOST)
def _entry(number: int, body: str) -> Entry:
    entry = READ(number, body)
    if isinstance(entry, RunOpened):
        _with_terms(entry.terms, body.partition('"terms":')[2][:-1])
    return entry


@lru_cache(maxsize=MOST)
def _form(form: Any, text: str) -> Any:
    return form.model_validate_json(text)


def _read_form(message: Message, form: Any) -> Any:
    try:
        return _form(form, wire._text(message, wire.TASK))
    except Exception:
        return READ_FORM(message, form)  # which says what is wrong with it


@lru_cache(maxsize=MOST)
def _signed(line: str, text: bytes, signature: bytes) -> list[bool]:
    return []


def _verify(host: Any, silo: str, text: bytes, signature: bytes) -> bool:
    line = sum_service._keys(host).get(silo)
    known = _signed(line or "", text, signature)
    if not known:
        known.append(VERIFY(host, silo, text, signature))
    return known[0]


# The same, faster.


def _dumps(content: object, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    return json.dumps(content) if indent is None else to_json(content, indent=indent).decode()


JSON = SimpleNamespace(dumps=_dumps, loads=json.loads)


def _set_item(record: Any, key: Any, value: Any) -> None:
    inside = record.__dict__
    inside["_check_key_fn"](key)
    inside["_check_value_fn"](value)
    inside["_data"][key] = value


REMEMBERED: tuple[Change, ...] = (
    (server, "prepare_server", _prepared),
    (PreparedRun, "scorer", _scorer),
    (Plan, "terms", property(_plan_terms)),
    (run_folder, "PlanRecord", SimpleNamespace(of=_plan_record, read=PlanRecord.read)),
    (silo_service, "TermsRecord", SimpleNamespace(of=_record)),
    (accounts, "TermsRecord", SimpleNamespace(of=_record)),
    (silo_limit, "terms", lambda rows, span: _terms_of_rows(tuple(rows), span)),
    (silo_limit, "add_score_terms", _add_score_terms),
    (silo_service, "make_row", MAKE_ROW),
    (sum_service, "make_row", MAKE_ROW),
    (sum_service, "own_terms", lambda rows, *more: _own_terms(tuple(rows), *more)),
    (sum_service, "_row", _row),
    (sum_service, "public_line", cache(public_line)),
    (sum_service, "_verify", _verify),
    (accountants.PldAccountant, "epsilon", lambda self, event, delta: PRICE(self, event, delta)),
    (statement, "price_with_method", _price),
    (ledger, "_read", lambda number, body: _entry(number, str(body))),
    (wire, "_read_form", _read_form),
    (run_folder, "json", JSON),
    (ledger_registry, "json", JSON),
    (TypedDict, "__setitem__", _set_item),
)
