"""Messages of a secure sum as JSON and one buffer, and back. A message of any other form is refused."""

import base64
import binascii
import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError

from wholegrain.engines.secure_sum_engine import ConsentRequest, KeysRequest, MaskRequest, SumReply, SumRequest
from wholegrain.errors import RefusalError
from wholegrain.federation.masks import pack, unpack
from wholegrain.federation.secure_sum import Consent, MaskedPart, OpenHelp, OpenRequest, SessionKeys
from wholegrain.privacy.trust import MOST_SILOS

KINDS: Mapping[type[SumRequest], str] = {
    KeysRequest: "keys",
    MaskRequest: "mask",
    ConsentRequest: "survivors",
    OpenRequest: "open",
}
"""How messages of each kind are called."""


def _decode(value: Any) -> bytes:
    """Bytes from base64 alone, so that equal bytes have one text."""
    if not isinstance(value, str):
        raise ValueError("bytes are written in base64")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError("bytes are written in base64") from error


Name = Annotated[str, Field(min_length=1, max_length=200)]
Bytes = Annotated[bytes, BeforeValidator(_decode), PlainSerializer(lambda value: base64.b64encode(value).decode())]
Short = Annotated[Bytes, Field(max_length=200)]
Key = Annotated[Bytes, Field(min_length=32, max_length=32)]
Bits = Annotated[int, Field(ge=8, le=64, multiple_of=8)]
Names = Annotated[tuple[Name, ...], Field(max_length=MOST_SILOS)]
Shares = Annotated[dict[Name, Bytes], Field(max_length=MOST_SILOS)]


class _SumForm(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Form = TypeVar("Form", bound=_SumForm)


class _Keys(_SumForm):
    silo: Name
    terms: Annotated[str, Field(max_length=200)]
    statement: Annotated[str, Field(max_length=2000)]
    masks: Key
    shares: Key
    signature: Short


class _Mask(_SumForm):
    keys: Annotated[tuple[_Keys, ...], Field(max_length=MOST_SILOS)]
    bits: Bits


class _Survivors(_SumForm):
    survivors: Names


class _Open(_SumForm):
    survivors: Names
    consents: Annotated[dict[Name, Short], Field(max_length=MOST_SILOS)]
    shares: Shares


class _Part(_SumForm):
    silo: Name
    bits: Bits
    shares: Shares


class _Consent(_SumForm):
    silo: Name
    signature: Short


class _Help(_SumForm):
    silo: Name
    shares: Annotated[dict[Name, Shares], Field(max_length=MOST_SILOS)]


def write_request(request: SumRequest) -> str:
    """A request as text; the parameters of a mask request travel beside it."""
    if isinstance(request, KeysRequest):
        return "{}"
    if isinstance(request, ConsentRequest):
        return _Survivors(survivors=request.survivors).model_dump_json()
    if isinstance(request, MaskRequest):
        return _dump({"keys": [_key_fields(each) for each in request.keys], "bits": request.bits})
    return _dump({"survivors": request.survivors, "consents": request.consents, "shares": request.shares})


def read_request(kind: str, round: int, text: str, vector: torch.Tensor | None) -> SumRequest:
    """The request of this kind that `write_request` wrote."""
    if kind == KINDS[KeysRequest]:
        return KeysRequest(round)
    if kind == KINDS[ConsentRequest]:
        return ConsentRequest(round, _read(_Survivors, text).survivors)
    if kind == KINDS[OpenRequest]:
        opened = _read(_Open, text)
        return OpenRequest(round, opened.survivors, opened.consents, opened.shares)
    if kind == KINDS[MaskRequest] and vector is not None:
        masked = _read(_Mask, text)
        return MaskRequest(round, tuple(SessionKeys(**dict(each)) for each in masked.keys), vector, masked.bits)
    raise RefusalError("message", f"a message of the kind '{kind}' is not known, or is not whole")


def write_reply(reply: SumReply, bits: int = 64) -> tuple[str, bytes]:
    """A reply as text, and its masked numbers where it has any."""
    if isinstance(reply, SessionKeys):
        return _dump(_key_fields(reply)), b""
    if isinstance(reply, Consent):
        return _dump({"silo": reply.silo, "signature": reply.signature}), b""
    if isinstance(reply, MaskedPart):
        return _dump({"silo": reply.silo, "bits": bits, "shares": reply.shares}), pack(reply.words, bits)
    shares: dict[str, dict[str, bytes]] = {}
    for (owner, about), share in reply.shares.items():
        shares.setdefault(owner, {})[about] = share
    return _dump({"silo": reply.silo, "shares": shares}), b""


def read_reply(kind: str, round: int, text: str, content: bytes) -> SumReply:
    """The reply to a request of this kind that `write_reply` wrote."""
    if kind == KINDS[KeysRequest]:
        return SessionKeys(**dict(_read(_Keys, text)))
    if kind == KINDS[ConsentRequest]:
        return Consent(**dict(_read(_Consent, text)))
    if kind == KINDS[OpenRequest]:
        help = _read(_Help, text)
        return OpenHelp(help.silo, {(o, a): share for o, held in help.shares.items() for a, share in held.items()})
    part = _read(_Part, text)
    if len(content) % (part.bits // 8):
        raise RefusalError("message", "the masked numbers are not whole")
    return MaskedPart(part.silo, round, unpack(content, part.bits), part.shares)


def as_buffer(content: bytes) -> torch.Tensor:
    """Bytes as a tensor, which other processes can be sent."""
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _key_fields(keys: SessionKeys) -> dict[str, Any]:
    return {name: getattr(keys, name) for name in _Keys.model_fields}


def _dump(value: Any) -> str:
    return json.dumps(value, default=_encode)


def _encode(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no place in a message")


@cache
def _adapter(form: type[Form]) -> TypeAdapter[Form]:
    return TypeAdapter(form)


def _read(form: type[Form], text: str) -> Form:
    try:
        found: Form = _adapter(form).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise RefusalError("message", f"a message of a secure sum is not of the agreed form: {place}") from error
    return found
