"""A silo's answers: whatever a server sends is answered, and nothing is said that might be private."""

import json
import logging
import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from deployment import ask, message, task, text_message, vector, write_charter
from wholegrain.deploy.certificates import private_text, silo_key
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.public_reasons import FAILED, SENTENCES, public_reason
from wholegrain.deploy.silo_answers import answer, open_silo
from wholegrain.deploy.silo_service import SiloService
from wholegrain.engines import wire
from wholegrain.engines.signatures import is_signed
from wholegrain.errors import DataError, RefusalError
from wholegrain.privacy.ledger import Ledger
from wholegrain.silo.training import Trainer

SECRET = "p007 has the value 3.1415"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SiloService]:
    with open_silo(load_charter(write_charter(tmp_path / "north"))) as found:
        yield found


def said(reply: Message) -> dict[str, Any]:
    return wire.read_answer(reply)


def refusals(host: SiloService) -> list[dict[str, Any]]:
    assert host.ledger.path is not None
    path = host.ledger.path.with_name("refusals.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def dying(error: BaseException) -> Any:
    def die(*_: Any) -> None:
        raise error

    return die


@pytest.mark.parametrize("mask", [0, 0o022])
def test_refusals_and_ledger_are_closed_to_others_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    """What a refusal quotes, and what was released from the data, are their owner's alone."""
    before = os.umask(mask)
    try:
        with open_silo(load_charter(write_charter(tmp_path / "north"))) as host:
            answer(ask(task(model="mlp")), host)
            answer(ask(task()), host)
    finally:
        os.umask(before)
    for name in ("refusals.jsonl", "ledger.sqlite", "ledger.sqlite.heads"):
        assert stat.S_IMODE((tmp_path / "north" / name).stat().st_mode) == 0o600


def test_a_query_is_answered_with_name_and_public_sizes(host: SiloService) -> None:
    reply = answer(message(kind="query"), host)
    facts = said(reply)
    assert re.fullmatch("[0-9a-f]{64}", facts.pop("inputs"))
    assert facts == {
        "silo": "north",
        "items": 100,
        "subjects": 40,
        "items_per_subject": 4,
        "features": 3,
        "classes": 2,
        "knows_spans": False,
        "models": [{"model": "logistic", "options": {}, "start": None}],
    }
    assert not reply.content.array_records


def test_what_is_said_of_the_inputs_tells_features_in_another_order_apart(host: SiloService) -> None:
    layout = host.dataset.layout
    assert layout is not None
    turned = replace(layout, features=dict(reversed(layout.features.items())))
    other = replace(host, dataset=replace(host.dataset, layout=turned))
    first, again, second = (said(answer(message(kind="query"), each))["inputs"] for each in (host, host, other))
    assert first == again != second


def test_a_task_is_answered_with_the_update_and_nothing_else(host: SiloService) -> None:
    reply = answer(ask(task(), vector(0.5)), host)
    assert said(reply) == {"silo": "north"}
    assert set(reply.content) == {wire.ANSWER, wire.PARAMETERS}
    update = wire.read_vector(reply)
    assert update.shape == (8,)
    assert not torch.equal(update, vector(0.5))
    assert not refusals(host)


def test_a_reply_goes_to_whom_asked(host: SiloService) -> None:
    asked = ask(task())
    reply = answer(asked, host)
    assert reply.metadata.reply_to_message_id == "message-1"
    assert (reply.metadata.src_node_id, reply.metadata.dst_node_id) == (2, 1)
    assert reply.metadata.run_id == 7


def test_a_message_type_with_an_action_is_the_same_message(host: SiloService) -> None:
    assert "refused" not in said(answer(message(kind="query.who"), host))
    assert "refused" not in said(answer(ask(task(), kind="train.now"), host))


def test_a_refusal_is_told_by_its_rule_and_kept_by_the_silo(host: SiloService) -> None:
    reply = answer(ask(task(noise_multiplier=0.5)), host)
    told = "[limit.smallest_noise] the noise multiplier is smaller than the charter allows"
    assert said(reply) == {"silo": "north", "refused": told}
    assert set(reply.content) == {wire.ANSWER}
    (line,) = refusals(host)
    assert line["refused"] == "[limit.smallest_noise] a noise multiplier of 0.5 is too small"
    assert (line["message"], line["run"], line["round"]) == ("train", 7, "0")
    start = wire.StartTask(digest="0" * 64, train="head")
    reply = answer(ask(task(start=start)), host)
    assert said(reply)["refused"] == f"[allow.models] {SENTENCES['allow.models']}"
    kept = f"[allow.models] the model 'logistic' is agreed to from no backbone, not from {start}"
    assert [line["refused"] for line in refusals(host)[1:]] == [kept]


def test_a_refusal_tells_neither_what_others_spent_nor_what_the_data_is_called(host: SiloService) -> None:
    while "refused" not in (told := said(answer(ask(task(steps=5, noise_multiplier=1.0)), host))):
        pass
    assert told["refused"] == "[limit.epsilon] the silo's budget does not allow this release"
    kept = refusals(host)[-1]["refused"]
    assert "visits of north" in kept, "the silo's own log says more"
    assert not any(letter.isdigit() for letter in told["refused"])


def test_every_rule_has_its_public_sentence() -> None:
    source = "".join(path.read_text() for path in Path(public_reason.__code__.co_filename).parents[1].rglob("*.py"))
    rules = set(re.findall(r'RefusalError\(\s*"([a-z_.]+)"', source))
    assert rules <= set(SENTENCES)
    assert public_reason(RefusalError("a.new.rule", SECRET)) == "[a.new.rule] the charter forbids it"
    assert public_reason(DataError(SECRET)) == FAILED


def test_a_copy_of_a_message_is_not_answered_again(host: SiloService) -> None:
    asked = ask(task())
    assert "refused" not in said(answer(asked, host))
    head = host.ledger.head
    for _ in range(12):
        assert said(answer(asked, host))["refused"].startswith("[message]")
    assert host.ledger.head == head
    assert "refused" not in said(answer(ask(task()), host)), "the same task, asked anew, is paid for anew"


def test_a_message_without_a_nonce_is_refused(host: SiloService) -> None:
    content = RecordDict({wire.TASK: ConfigRecord({"json": task().model_dump_json()})})
    content[wire.PARAMETERS] = wire.packed_vector(vector())
    assert said(answer(message(content), host))["refused"].startswith("[message]")
    assert refusals(host)[0]["refused"] == "[message] it has no nonce"


def test_an_answer_is_signed_for_its_question_and_for_no_other(tmp_path: Path) -> None:
    key = silo_key()
    link = {"address": "here:1", "certificates": "ca.crt", "key": "key"}
    path = write_charter(tmp_path / "north", link=link)
    (tmp_path / "north" / "key").write_bytes(private_text(key))
    with open_silo(load_charter(path)) as host:
        query, asked, again = message(wire.packed_query(), "query"), ask(task()), ask(task())
        reply, greeting, refusal = answer(asked, host), answer(query, host), answer(asked, host)
    public = key.public_key()
    assert is_signed(public, wire.request_digest(asked), reply)
    assert is_signed(public, wire.request_digest(query), greeting)
    assert is_signed(public, wire.request_digest(asked), refusal)
    assert not is_signed(silo_key().public_key(), wire.request_digest(asked), reply)
    assert not is_signed(public, wire.request_digest(again), reply)
    reply.content[wire.PARAMETERS] = wire.packed_vector(vector(1.0))
    assert not is_signed(public, wire.request_digest(asked), reply)


@pytest.mark.parametrize("error", [ValueError(SECRET), DataError(SECRET), MemoryError(SECRET), RecursionError(SECRET)])
def test_an_error_that_was_not_foreseen_is_told_in_general_words_only(
    host: SiloService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(Trainer, "train", dying(error))
    with caplog.at_level(logging.WARNING):
        reply = answer(ask(task()), host)
    assert said(reply) == {"silo": "north", "refused": FAILED}
    assert SECRET not in str(reply)
    assert SECRET in refusals(host)[0]["refused"]
    assert SECRET in caplog.text


def test_the_silo_goes_on_after_an_error(host: SiloService, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", dying(ValueError(SECRET)))
        answer(ask(task()), host)
    assert "refused" not in said(answer(ask(task()), host))


def test_a_ledger_that_cannot_be_trusted_is_told_in_general_words_only(host: SiloService) -> None:
    assert host.ledger.path is not None
    with sqlite3.connect(host.ledger.path) as database:
        database.execute("INSERT INTO entries VALUES (2, 'now', '{}', 'no hash')")
    reply = answer(ask(task()), host)
    assert said(reply) == {"silo": "north", "refused": FAILED}
    assert "cannot be trusted" in refusals(host)[0]["refused"]


def test_refusals_that_cannot_be_written_down_are_refusals_all_the_same(
    host: SiloService, caplog: pytest.LogCaptureFixture
) -> None:
    assert host.ledger.path is not None
    host.ledger.path.with_name("refusals.jsonl").mkdir()
    assert said(answer(ask(task(model="mlp")), host))["refused"].startswith("[allow.models]")
    assert "refusals.jsonl' cannot be written" in caplog.text


def test_a_server_writes_no_line_of_its_own_into_the_log(host: SiloService, caplog: pytest.LogCaptureFixture) -> None:
    forged = "x\n2030-01-01 wholegrain.silo: all is well\x1b[2J"
    answer(ask(task().model_copy(update={"policy": forged})), host)
    answer(message(RecordDict(), group_id=forged * 10**5), host)
    answer(ask(task().model_copy(update={"policy": forged * 10**4})), host)
    assert len(caplog.records) == 3
    assert all(len(record.getMessage()) < 1100 for record in caplog.records)
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert host.ledger.path is not None
    written = host.ledger.path.with_name("refusals.jsonl").read_text()
    assert all(line.isprintable() for line in written.splitlines())
    assert len(written) < 10**4


@pytest.mark.parametrize("field", ["run", "spec", "policy", "model", "loss"])
@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\u202eabc", "\x9b", "\x00", ""])
def test_a_name_that_could_steer_a_terminal_never_reaches_the_ledger(host: SiloService, field: str, name: str) -> None:
    head = host.ledger.head
    told = said(answer(ask(task().model_copy(update={field: name})), host))
    assert told["refused"] == f"[message] {SENTENCES['message']}"
    assert host.ledger.head == head


def test_a_full_disk_refuses_the_task_and_the_silo_goes_on(host: SiloService, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Ledger, entries: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    read: list[object] = []
    monkeypatch.setattr(Trainer, "train", lambda *asked: read.append(asked))
    with monkeypatch.context() as disk:
        disk.setattr(Ledger, "_insert", full)
        assert said(answer(ask(task()), host))["refused"] == FAILED
    assert read == [], "nothing is computed that was not paid for"
    monkeypatch.undo()
    assert "refused" not in said(answer(ask(task()), host))


def test_scores_leave_only_where_the_charter_lets_them(host: SiloService, tmp_path: Path) -> None:
    assert said(answer(ask(task(), kind="evaluate"), host))["refused"].startswith("[allow.scores]")
    generous = write_charter(tmp_path / "open", held_out=0.5, allow={"scores": ["accuracy"]})
    with open_silo(load_charter(generous)) as other:
        head = other.ledger.head
        reply = answer(ask(task(), kind="evaluate"), other)
        assert list(said(reply)["scores"]) == ["accuracy"]
        assert set(reply.content) == {wire.ANSWER}
        assert other.ledger.head == head


def respelled(before: str, after: str) -> Message:
    """A whole task in which one number is written otherwise; no number of Python's need stand for it."""
    asked = ask(task())
    record = asked.content.config_records[wire.TASK]
    assert before in str(record["json"])
    record["json"] = str(record["json"]).replace(before, after)
    return asked


GARBAGE = {
    "nothing": message(),
    "an error": message(Error(1, "an error")),
    "another type": message(kind="get_properties"),
    "no JSON": text_message(wire.TASK, "{"),
    "no parameters": text_message(wire.TASK, task().model_dump_json()),
    "no task": message(RecordDict({wire.PARAMETERS: wire.packed_vector(vector())})),
    "numbers": message(RecordDict({wire.TASK: MetricRecord({"json": 1})})),
    "another array": message(
        RecordDict(
            {
                wire.TASK: ConfigRecord({"json": task().model_dump_json()}),
                wire.PARAMETERS: ArrayRecord({wire.VECTOR: Array(torch.zeros(8))}),
            }
        )
    ),
    "NaN": ask(task(), torch.full((8,), float("nan"))),
    "lines": ask(task().model_copy(update={"model": 'x\n{"refused": ""}\n', "policy": "\x1b[2J"})),
    "infinity": ask(task(), torch.full((8,), float("-inf"))),
    "no steps": ask(task().model_copy(update={"steps": 0})),
    "steps back": ask(task().model_copy(update={"steps": -2})),
    "a round before the first": ask(task().model_copy(update={"round": -1})),
    "noise that is no number": respelled("2.0", "NaN"),
    "noise without end": respelled("2.0", "1e999"),
    "a way back": ask(task().model_copy(update={"learning_rate": -0.5})),
    "a negative rate": respelled('"rate":0.5', '"rate":-0.5'),
    "a rate above one": respelled('"rate":0.5', '"rate":1.5'),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_answered_with_a_refusal_and_costs_nothing(host: SiloService, kind: str) -> None:
    head = host.ledger.head
    told = said(answer(GARBAGE[kind], host))
    assert told["refused"].startswith("[")
    assert told["refused"] != FAILED
    assert host.ledger.head == head
    assert len(refusals(host)) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from([wire.TASK, wire.PARAMETERS, wire.ANSWER, "charter"]),
        st.dictionaries(st.text(min_size=1), st.text() | st.integers(-(2**60), 2**60) | st.binary() | st.booleans()),
    ),
    st.sampled_from(["train", "evaluate", "train.x"]),
)
def test_no_message_makes_a_silo_fail_or_pay(host: SiloService, records: dict[str, dict[str, Any]], kind: str) -> None:
    head = host.ledger.head
    content = RecordDict({name: ConfigRecord(values) for name, values in records.items()})
    assert said(answer(message(content, kind), host))["refused"].startswith("[message]")
    assert host.ledger.head == head
