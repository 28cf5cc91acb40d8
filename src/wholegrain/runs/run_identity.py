"""Which run a folder holds: its name, and digests of the spec, the data and the public start."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

import wholegrain
from wholegrain import _check
from wholegrain._secrets import secret_key
from wholegrain.errors import RunError
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.silo.training import Silo

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """Which run a folder holds, of which spec and data, and which version wrote it."""

    format: int = FORMAT
    run: str
    spec: str
    """The digest of the spec."""
    data: str | None = None
    """The digest of the data, with a key."""
    key: Literal["machine", "run"] | None = None
    """What the data's digest is keyed with. Runs of 0.1.0 name no key: theirs was the run's own name."""
    start: str | None = None
    """The digest of the backbone that the run starts from."""
    wholegrain: str | None = None
    compute: str | None = None
    """Where gradients are computed, and in which precision; a server computes none."""

    @staticmethod
    def of(run: str, prepared: PreparedRun) -> "RunIdentity":
        """Of a run that begins with this version."""
        return RunIdentity(
            run=run,
            spec=prepared.spec.digest,
            data=data_digest(prepared.silos, data_key(run, prepared)),
            key="machine" if is_release(prepared) else "run",
            start=None if prepared.public is None else prepared.public.digest,
            wholegrain=wholegrain.__version__,
            compute=str(prepared.compute) if prepared.silos else None,
        )

    @staticmethod
    def read(path: Path) -> "RunIdentity":
        """Which run a folder holds; one of another format is refused."""
        facts = read_json(path)
        if not {"format", "run", "spec"} <= set(facts):
            raise RunError(f"'{path}' is damaged: it does not say which run this is; put it back, or start anew.")
        if facts["format"] != FORMAT or not re.fullmatch("[0-9a-f]{16}", str(facts["run"])):
            raise RunError(
                f"'{path.parent}' was written by another version of wholegrain; use that one, or start anew."
            )
        return RunIdentity(**{field.name: facts[field.name] for field in fields(RunIdentity) if field.name in facts})


def data_key(run: str, prepared: PreparedRun) -> bytes:
    """What the data's digest is keyed with.

    Private: without the key, whoever reads run.json could try guesses of the data against its digest. The key of a
    release is drawn by the operating system, and stays on this machine, outside the folder.
    """
    secret = secret_key("digests of data") if is_release(prepared) else b""
    return secret + run.encode()


def is_release(prepared: PreparedRun) -> bool:
    """Whether private data is released from here: a server has none, a simulation protects nobody."""
    return prepared.spec.privacy.noise == "secure" and bool(prepared.silos)


def data_digest(silos: Mapping[str, Silo], key: bytes) -> str:
    """What tells the silos' data from any other, for whoever knows the key."""
    digest = hashlib.blake2b(key=key, digest_size=32)
    for name, silo in silos.items():
        digest.update(name.encode())
        for array in (silo.data.inputs, silo.data.targets, silo.data.subjects):
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """The sections that a file of a run holds."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"'{path.parent}' holds no run: there is no {path.name} in it.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"'{path}' cannot be read: {_check.reason(error)}.") from error
    if not isinstance(content, dict):
        raise RunError(f"'{path}' cannot be read: it holds no sections.")
    return content
