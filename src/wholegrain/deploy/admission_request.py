"""A silo's request to be admitted: its name, its public key and its declared sizes, signed with its private key.

The request travels; the private key never does. A request for a new key is signed with the former key, too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from wholegrain.deploy.certificates import load_public_key, public_line
from wholegrain.errors import SpecError

ALGORITHM = ec.ECDSA(hashes.SHA384())
PURPOSE = b"wholegrain: a silo's request\n"
MOST = 2**53
"""The largest size that a request may declare."""


@dataclass(frozen=True)
class AdmissionRequest:
    """What a silo asks to be known by."""

    silo: str
    key: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    signature: bytes = b""
    former: bytes = b""
    """The signature with the key that the roster has so far."""

    @staticmethod
    def make(
        silo: str,
        key: ec.EllipticCurvePrivateKey,
        sizes: Mapping[str, Any],
        former: ec.EllipticCurvePrivateKey | None = None,
    ) -> "AdmissionRequest":
        """A request, signed by whoever holds the key."""
        draft = AdmissionRequest(silo, public_line(key), sizes)
        before = b"" if former is None else former.sign(draft.said, ALGORITHM)
        return AdmissionRequest(silo, draft.key, sizes, key.sign(draft.said, ALGORITHM), before)

    @property
    def said(self) -> bytes:
        """What is signed."""
        text = json.dumps({"silo": self.silo, "key": self.key, "sizes": dict(self.sizes)}, sort_keys=True)
        return PURPOSE + text.encode()

    def as_json(self) -> str:
        """The file's text."""
        content = {"silo": self.silo, "key": self.key, "sizes": dict(self.sizes)}
        signatures = {"signature": self.signature.hex(), "former": self.former.hex()}
        return json.dumps({**content, **signatures}, indent=2) + "\n"

    def is_signed_by(self, public: str) -> bool:
        """Whether the owner of a key has signed the request, as its new key or as its former one."""
        key = load_public_key(public, f"silo '{self.silo}'")
        return any(_is_valid(key, signature, self.said) for signature in (self.signature, self.former))


def read_request(path: Path) -> AdmissionRequest:
    """Read a request; one that its own key has not signed is refused."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        signatures = bytes.fromhex(content["signature"]), bytes.fromhex(content["former"])
        silo, key, sizes = str(content["silo"]), str(content["key"]), dict(content["sizes"])
    except OSError as error:
        raise SpecError(f"The request '{path}' cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SpecError(f"'{path}' is no request: `wholegrain federation join` writes one.") from error
    if not silo.isprintable() or not all(type(size) is int and 0 < size <= MOST for size in sizes.values()):
        raise SpecError(f"The request '{path}' has a name or a size that cannot be meant: sizes are whole numbers.")
    request = AdmissionRequest(silo, key, sizes, *signatures)
    if not _is_valid(load_public_key(key, f"the request '{path}'"), request.signature, request.said):
        raise SpecError(f"The request '{path}' is not signed with its own key: it was changed on its way.")
    return request


def _is_valid(key: ec.EllipticCurvePublicKey, signature: bytes, said: bytes) -> bool:
    try:
        key.verify(signature, said, ALGORITHM)
    except InvalidSignature:
        return False
    return True
