"""How a silo answers Flower's messages, and the ClientApp for those who run a plain `flower-supernode`.

The ClientApp finds its charter in the node's own configuration (`--node-config 'charter="silo.toml"'`) and never in a
message. Flower takes the app from the bundle that the server sends: docs/operate-a-federation.md says what that means.
`wholegrain silo` runs nothing that a server sends.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from wholegrain import _check
from wholegrain._files import open_private
from wholegrain.deploy.charter import Charter, load_charter
from wholegrain.deploy.silo_service import SiloService, public_facts
from wholegrain.engines import wire
from wholegrain.errors import RefusalError, WholegrainError
from wholegrain.privacy.accountants import accountant
from wholegrain.runs.accounts import release_ledger
from wholegrain.silo.noise_sources import noise_source

log = logging.getLogger("wholegrain.silo")

FAILED = "[silo] the task failed; the silo's own log says why"
"""What a server is told of an unforeseen error, whose text might hold private values."""


@contextmanager
def open_silo(charter: Charter) -> Iterator[SiloService]:
    """The silo of a charter, with its data read and its ledger open."""
    assert charter.ledger.path is not None
    pricing = accountant(charter.limit.accountant)
    with release_ledger(Path(charter.ledger.path), charter.data_name) as ledger:
        yield SiloService.open(charter, ledger, pricing, lambda: noise_source(charter.limit.noise, charter.seed))


def answer(message: Message, host: SiloService) -> Message:
    """The silo's answer to any message at all; nothing that a server sends makes it fail."""
    try:
        content = _content(message, host)
    except WholegrainError as error:
        _note(host.charter, message, str(error))
        content = wire.packed_answer({"silo": host.charter.silo, "refused": _public_reason(error)})
    except Exception as error:  # a fault of ours: what it says stays here
        log.exception("a task failed")
        _note(host.charter, message, f"{type(error).__name__}: {_check.reason(error)}")
        content = wire.packed_answer({"silo": host.charter.silo, "refused": FAILED})
    return Message(content, reply_to=message)


def _content(message: Message, host: SiloService) -> Any:
    kind = message.metadata.message_type.partition(".")[0]
    if kind == "query":
        return wire.packed_answer(public_facts(host))
    task = wire.read_task(message)
    vector = wire.read_vector(message)
    if kind == "train":
        return wire.packed_answer({"silo": host.charter.silo}, host.answer(task, vector))
    if kind == "evaluate":
        return wire.packed_answer({"silo": host.charter.silo, "scores": dict(host.scores(task, vector))})
    raise RefusalError("message", f"a message of the type '{kind}' is not known")


def _public_reason(error: WholegrainError) -> str:
    """A refusal names its rule; any other error might hold private values, and is told in general words."""
    return str(error) if isinstance(error, RefusalError) else FAILED


def _note(charter: Charter, message: Message, why: str) -> None:
    """Log a refusal, and append it to a file beside the ledger; where that fails, the log must do."""
    # The words may be the server's: no line of its own in the log, and nothing that a terminal would obey.
    log.warning("refused: %s", "".join(letter if letter.isprintable() else " " for letter in why))
    assert charter.ledger.path is not None
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "message": message.metadata.message_type,
        "run": message.metadata.run_id,
        "round": message.metadata.group_id,
        "refused": why,
    }
    path = Path(charter.ledger.path).with_name("refusals.jsonl")
    try:
        handle = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with open(handle, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    except OSError as error:
        log.warning("'%s' cannot be written: %s", path, error.strerror)


app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def _answer(message: Message, context: Context) -> Message:
    try:
        with open_silo(load_charter(Path(str(context.node_config["charter"])))) as host:
            return answer(message, host)
    except Exception:  # Flower would tell the server what it says, and it may say what is in the data
        log.exception("the silo cannot be opened")
        return Message(wire.packed_answer({"refused": FAILED}), reply_to=message)
