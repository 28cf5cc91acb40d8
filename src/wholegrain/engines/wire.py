"""What a server says to a silo and what the silo answers, as Flower's records: JSON and raw little-endian floats.

Nothing here is executed or unpickled on arrival, and nothing is believed: a message that is not exactly of the expected
form is refused with a sentence.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from wholegrain.errors import RefusalError, SpecError
from wholegrain.models.backbone import PublicStart
from wholegrain.models.train_choice import TrainChoice
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.policies.score_settings import ScoreForm

TASK, ANSWER, PARAMETERS, VECTOR = "task", "answer", "parameters", "vector"
RAW = "wholegrain.float32"
"""Flower's name for how an array is packed: ours is raw float32, little-endian."""

MASKED = "wholegrain.masked"
"""The same for masked whole numbers of a secure sum."""

NONCE, SIGNATURE = "nonce", "signature"
"""Keys of the records above: what makes every question a new one, and what binds an answer to its question and silo."""

NO_START = "no backbone"
USUAL_LOSS = "cross_entropy"


def _printable(name: str) -> str:
    """A name goes on record, and from there to terminals: nothing in it may steer one."""
    if not name.isprintable():
        raise ValueError("it has characters that cannot be printed")
    return name


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]


class _Form(BaseModel):
    """A part of a message that has exactly these fields, of exactly these types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Form = TypeVar("Form", bound=_Form)


class StartTask(_Form):
    """Public parameters to start from, by their digest alone, and what is trained from there.

    `rank` is that of low-rank updates, and `prefix` the length of a prefix; None where there are none.
    """

    digest: Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
    train: TrainChoice
    rank: Annotated[int, Field(ge=1, le=4096)] | None = None
    prefix: Annotated[int | None, Field(ge=1, le=4096, exclude_if=lambda prefix: prefix is None)] = None

    def __str__(self) -> str:
        train = f"'{self.train}'" if isinstance(self.train, str) else f"what is called {' or '.join(self.train)}"
        rank = "" if self.rank is None else f", rank {self.rank}"
        prefix = "" if self.prefix is None else f", prefix {self.prefix}"
        return f"the backbone {self.digest} (train {train}{rank}{prefix})"


class ModelTask(_Form):
    """Which model is trained, from which start, on which loss (not said where it is the usual one)."""

    model: Name
    options: dict[str, Any] = {}
    start: StartTask | None = None
    loss: Annotated[Name, Field(exclude_if=lambda loss: loss == USUAL_LOSS)] = USUAL_LOSS

    def __str__(self) -> str:
        return f"the model '{self.model}' from {self.start or NO_START}"


class SiloTask(ModelTask):
    """What the server asks one silo to do in one round. All of it is public, and none of it is trusted."""

    run: Name
    spec: Name
    round: Annotated[int, Field(ge=0, le=10**9)]
    steps: Annotated[int, Field(ge=1, le=10**6)]
    policy: Name
    settings: PolicySettings
    noise_multiplier: Annotated[float, Field(gt=0)]
    learning_rate: Annotated[float, Field(gt=0, le=1e6)]
    scores: Annotated[ScoreForm | None, Field(exclude_if=lambda scores: scores is None)] = None
    """The private scores of the run, if there are any: they are part of what it is priced for."""


class SumTask(_Form):
    """A message of a secure sum: the task that the sum is for, and what is asked (`sum_wire` reads it)."""

    task: SiloTask
    request: str


def start_task(public: PublicStart | None) -> StartTask | None:
    """What a task says of a public start."""
    if public is None:
        return None
    said = {"digest": public.digest, "train": public.train, "rank": public.rank, "prefix": public.prefix}
    return StartTask.model_validate(said)


def packed_query() -> RecordDict:
    """The question which silo a node is."""
    return RecordDict({TASK: ConfigRecord({NONCE: secrets.token_hex(16)})})


def packed_task(task: SiloTask, vector: Tensor) -> RecordDict:
    """The task and the parameters to start from."""
    record = ConfigRecord({"json": task.model_dump_json(), NONCE: secrets.token_hex(16)})
    return RecordDict({TASK: record, PARAMETERS: packed_vector(vector)})


def packed_sum_task(task: SiloTask, request: str, vector: Tensor | None) -> RecordDict:
    """A message of a secure sum, with the parameters where they belong to it."""
    text = SumTask(task=task, request=request).model_dump_json()
    content = RecordDict({TASK: ConfigRecord({"json": text, NONCE: secrets.token_hex(16)})})
    if vector is not None:
        content[PARAMETERS] = packed_vector(vector)
    return content


def packed_masked(content: bytes) -> ArrayRecord:
    """Masked numbers as one flat buffer."""
    return ArrayRecord({VECTOR: Array("uint8", (len(content),), MASKED, content)})


def packed_answer(facts: Mapping[str, Any], vector: Tensor | None = None) -> RecordDict:
    """What a silo says of itself, and its update where there is one."""
    content = RecordDict({ANSWER: ConfigRecord({"json": json.dumps(facts, ensure_ascii=False)})})
    if vector is not None:
        content[PARAMETERS] = packed_vector(vector)
    return content


def packed_vector(vector: Tensor) -> ArrayRecord:
    """Parameters as one flat buffer."""
    values = vector.detach().cpu().numpy().astype("<f4", copy=False)
    return ArrayRecord({VECTOR: Array("float32", (len(values),), RAW, values.tobytes())})


def read_task(message: Message) -> SiloTask:
    """The task of a message, or a refusal."""
    return _read_form(message, SiloTask)


def read_sum_task(message: Message) -> SumTask:
    """What a message of a secure sum asks, or a refusal."""
    return _read_form(message, SumTask)


def _read_form(message: Message, form: type[Form]) -> Form:
    try:
        return form.model_validate_json(_text(message, TASK))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise RefusalError("message", f"the task is not of the agreed form: {place}: {first['msg']}") from error
    except SpecError as error:  # of the settings, which have their own way to refuse a number
        raise RefusalError("message", f"the task is not of the agreed form: {error}") from error


def read_nonce(message: Message) -> str:
    """What tells this question from every other; a message without one is refused."""
    found = settings_of(message, TASK).get(NONCE)
    if not isinstance(found, str) or not 16 <= len(found) <= 64:
        raise RefusalError("message", "it has no nonce")
    return found


def request_digest(message: Message) -> bytes:
    """What a silo was asked, to the last bit: the message's type, its nonce, its task and its parameters."""
    record = settings_of(message, TASK)
    kind, nonce, task = message.metadata.message_type, record.get(NONCE, ""), record.get("json", "")
    return _digest(kind.encode(), str(nonce).encode(), str(task).encode(), _raw_vector(message.content))


def answer_digest(content: RecordDict) -> bytes:
    """What a silo answered, to the last bit."""
    return _digest(str(_config(content, ANSWER).get("json", "")).encode(), _raw_vector(content))


def read_answer(message: Message) -> dict[str, Any]:
    """What a silo said of itself."""
    try:
        facts = json.loads(_text(message, ANSWER))
    except (ValueError, RecursionError) as error:
        raise RefusalError("message", "the answer is not JSON") from error
    if not isinstance(facts, dict):
        raise RefusalError("message", "the answer is not of the agreed form")
    return facts


def read_vector(message: Message) -> Tensor:
    """The parameters of a message, whatever their number."""
    array = _array(message.content) if message.has_content() else None
    if array is None or (array.dtype, array.stype) != ("float32", RAW) or not _is_flat(array):
        raise RefusalError("message", "the parameters are not one flat buffer of float32")
    return torch.from_numpy(np.frombuffer(array.data, "<f4").astype(np.float32))


def has_vector(message: Message) -> bool:
    """Whether parameters came with a message."""
    return message.has_content() and isinstance(message.content.get(PARAMETERS), ArrayRecord)


def read_masked(message: Message) -> bytes:
    """The masked numbers of a message, empty where it has none."""
    array = _array(message.content) if message.has_content() else None
    return array.data if array is not None and array.stype == MASKED else b""


def _is_flat(array: Array) -> bool:
    return len(array.data) % 4 == 0 and tuple(array.shape) == (len(array.data) // 4,)


def _digest(*parts: bytes) -> bytes:
    """One hash of several parts, none of which can pass for a piece of another."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.digest()


def _raw_vector(content: RecordDict) -> bytes:
    array = _array(content)
    return b"" if array is None else array.data


def settings_of(message: Message, name: str) -> ConfigRecord:
    """A message's record of this name, empty where there is none."""
    return _config(message.content, name) if message.has_content() else ConfigRecord()


def _array(content: RecordDict) -> Array | None:
    """The array of a message; None where there is none."""
    record = content.get(PARAMETERS)
    return record.get(VECTOR) if isinstance(record, ArrayRecord) else None


def _config(content: RecordDict, name: str) -> ConfigRecord:
    """A record of settings, empty where there is none. (`content.config_records` would copy and check all of them.)"""
    record = content.get(name)
    return record if isinstance(record, ConfigRecord) else ConfigRecord()


def _text(message: Message, record: str) -> str:
    text = settings_of(message, record).get("json")
    if not isinstance(text, str):
        raise RefusalError("message", f"it has no {record}")
    return text
