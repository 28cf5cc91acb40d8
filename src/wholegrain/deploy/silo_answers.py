"""How a silo answers a server's messages: one signed answer for each, with nothing private in it."""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict

from wholegrain import _check
from wholegrain._files import open_private
from wholegrain.deploy.activity_log import FILE, ActivityLog
from wholegrain.deploy.certificates import load_private_key, load_public_key, public_line
from wholegrain.deploy.charter import Charter
from wholegrain.deploy.peer_heads import SUFFIX, PeerHeads
from wholegrain.deploy.public_reasons import FAILED, public_reason
from wholegrain.deploy.score_service import release_score
from wholegrain.deploy.silo_monitor import PEER_ALARM, REFUSED, SiloMonitor
from wholegrain.deploy.silo_service import SiloService, public_facts, spent_by_silo
from wholegrain.deploy.sum_service import answer_sum
from wholegrain.engines import sum_wire, wire
from wholegrain.engines.ledger_heads import put_head, put_heard, read_heads, state_head
from wholegrain.engines.secure_sum_engine import MaskRequest
from wholegrain.engines.signatures import sign_answer
from wholegrain.errors import LedgerError, RefusalError, SpecError, WholegrainError
from wholegrain.privacy.accountants import accountant
from wholegrain.runs.accounts import release_ledger
from wholegrain.silo.noise_sources import noise_source

log = logging.getLogger("wholegrain.silo")

MOST_SAID = 1000
"""Characters of a server's own words that go on record: a message may be megabytes, and a disk is not."""


@contextmanager
def open_silo(charter: Charter) -> Iterator[SiloService]:
    """The silo of a charter, with its data read and its ledger open."""
    assert charter.ledger.path is not None
    pricing = accountant(charter.limit.accountant)
    key = _signing_key(charter)
    with release_ledger(Path(charter.ledger.path), charter.data_name) as ledger:
        source = partial(noise_source, charter.limit.noise, charter.seed, charter.compute.compiled)
        host = SiloService.open(charter, ledger, pricing, source)
        yield replace(host, key=key, peers=_peers(charter))


def watch_silo(host: SiloService) -> tuple[SiloService, SiloMonitor]:
    """The silo, with somebody who counts what it does and writes it down beside its ledger."""
    assert host.charter.ledger.path is not None
    activity = ActivityLog(Path(host.charter.ledger.path).with_name(FILE), host.key)
    monitor = SiloMonitor(host.charter.silo, host.charter.limit.epsilon, activity)
    monitor.observe_spent(spent_by_silo(host).epsilon)
    if host.peers is not None:
        monitor.peer_alarms |= host.peers.alarms
    return replace(host, note=monitor.note), monitor


def answer(message: Message, host: SiloService) -> Message:
    """The silo's answer to any message at all; nothing that a server sends makes it fail."""
    try:
        content = _content(message, host)
    except WholegrainError as error:
        _note(host, message, str(error))
        content = wire.packed_answer({"silo": host.charter.silo, "refused": public_reason(error)})
    except Exception as error:  # a fault of ours: what it says stays here
        log.exception("a task failed")
        _note(host, message, f"{type(error).__name__}: {_check.reason(error)}")
        content = wire.packed_answer({"silo": host.charter.silo, "refused": FAILED})
    if host.key is not None and message.has_content():
        _state_head(content, host, host.key)
        sign_answer(host.key, message, content)
    return Message(content, reply_to=message)


def _content(message: Message, host: SiloService) -> RecordDict:
    kind, _, action = message.metadata.message_type.partition(".")
    if kind == "query":
        return wire.packed_answer(public_facts(host))
    _compare_heads(message, host)
    if kind in ("train", "evaluate") and action in sum_wire.KINDS.values():
        return _answer_sum(message, host, action, scores=kind == "evaluate")
    task = wire.read_task(message)
    vector = wire.read_vector(message)
    if not host.asked.add(wire.read_nonce(message)):
        raise RefusalError("message", "this very message was answered before")
    if kind == "train":
        return wire.packed_answer({"silo": host.charter.silo}, host.answer(task, vector))
    if kind == "evaluate" and task.scores is not None:
        return wire.packed_answer({"silo": host.charter.silo}, release_score(host, task, vector))
    if kind == "evaluate":
        return wire.packed_answer({"silo": host.charter.silo, "scores": dict(host.scores(task, vector))})
    raise RefusalError("message", f"a message of the type '{kind}' is not known")


def _answer_sum(message: Message, host: SiloService, action: str, *, scores: bool) -> RecordDict:
    """The answer to a message of a secure sum."""
    asked = wire.read_sum_task(message)
    vector = wire.read_vector(message) if wire.has_vector(message) else None
    request = sum_wire.read_request(action, asked.task.round, asked.request, vector)
    if not host.asked.add(wire.read_nonce(message)):
        raise RefusalError("message", "this very message was answered before")
    reply = answer_sum(host, asked.task, request, scores=scores)
    bits = request.bits if isinstance(request, MaskRequest) else 64
    text, content = sum_wire.write_reply(reply, bits)
    answer = wire.packed_answer({"silo": host.charter.silo, "reply": text})
    if content:
        answer[wire.PARAMETERS] = wire.packed_masked(content)
    return answer


def _compare_heads(message: Message, host: SiloService) -> None:
    """Hold what came with a task to what other silos, and this one, said before of their ledgers."""
    if host.peers is None or host.key is None:
        return
    heads = read_heads(message)
    for peer, wrong in host.peers.observe(heads).items():
        host.note(PEER_ALARM, {"peer": peer, "wrong": wrong})
    try:
        host.peers.require_own(host.ledger, public_line(host.key), heads)
    except RefusalError as error:
        host.note(PEER_ALARM, {"peer": host.charter.silo, "wrong": str(error)})
        raise


def _state_head(content: RecordDict, host: SiloService, key: ec.EllipticCurvePrivateKey) -> None:
    """Say where the ledger stands, and whose alarms there are; a ledger that cannot be read says nothing.

    What others have written in it counts.
    """
    with suppress(LedgerError):
        _ = host.ledger.state
        put_head(content, state_head(key, host.charter.silo, host.ledger.head, time.time_ns()))
    if host.peers is not None:
        put_heard(content, host.peers.contradicted)


def _peers(charter: Charter) -> PeerHeads | None:
    """The memory of a silo that reaches a server; a key in the charter that cannot be read is told now."""
    if charter.link is None:
        return None
    assert charter.ledger.path is not None
    for name, line in charter.link.peers.items():
        load_public_key(line, f"'{name}' in the charter's link.peers")
    path = Path(charter.ledger.path)
    return PeerHeads(path.with_name(path.name + SUFFIX), charter.silo, charter.link.address, charter.link.peers)


def _signing_key(charter: Charter) -> ec.EllipticCurvePrivateKey | None:
    """The silo's key; a silo that reaches no server, or one without keys, has none."""
    path = None if charter.link is None else charter.link.key
    if path is None:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise SpecError(f"The charter's link.key '{path}' cannot be read: {error.strerror}.") from error
    return load_private_key(text, path)


def _note(host: SiloService, message: Message, why: str) -> None:
    """Log a refusal, and append it to a file beside the ledger; where that fails, the log must do."""
    why = _check.quoted(why, MOST_SAID)  # the words may be the server's
    log.warning("refused: %s", why)
    charter = host.charter
    assert charter.ledger.path is not None
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "message": _check.quoted(message.metadata.message_type, MOST_SAID),
        "run": message.metadata.run_id,
        "round": _check.quoted(message.metadata.group_id, MOST_SAID),
        "refused": why,
    }
    host.note(REFUSED, {name: value for name, value in line.items() if name != "at"})
    path = Path(charter.ledger.path).with_name("refusals.jsonl")
    try:
        handle = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with open(handle, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        log.warning("'%s' cannot be written: %s", path, error.strerror)
