"""What was tried of this machine's kernels, kept on disk.

A verdict lies under everything that decides it: the build of torch, the processor, this package's code, and what was
tried. It carries a code that only this machine's key can make; one that was changed or damaged is not believed, and
tried again.
"""

import hashlib
import hmac
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from wholegrain._files import private_folder, write_whole
from wholegrain._places import cache_folder
from wholegrain._secrets import secret_key
from wholegrain.errors import RunError

CODE = 32
"""Bytes of a verdict's code."""
LIBRARIES = ("MKL_", "ONEDNN_", "DNNL_", "ATEN_")
"""How variables of the environment begin by which torch's libraries choose instructions."""


_found: dict[str, bool] = {}
"""What this process has found, or read."""


def remembered(question: str, ask: Callable[[], bool]) -> bool:
    """The verdict on disk; where there is none that can be believed, what is found now, which is kept."""
    if question not in _found:
        kept = _read(question)
        _found[question] = ask() if kept is None else kept
        if kept is None:
            with suppress(OSError, RunError):
                _write(question, _found[question])
    return _found[question]


@cache
def machine() -> str:
    """The build of torch, the kind of processor, what libraries are told and this package's code: all that decides."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines()
        kinds = ("vendor_id", "cpu family", "model", "stepping", "microcode", "flags")
        model = "\n".join(line for line in lines if line.partition(":")[0].strip() in kinds)
    set_by_user = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(LIBRARIES))
    own = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()
    capability = torch.backends.cpu.get_cpu_capability()
    return "\n".join((torch.__config__.show(), capability, model, platform.platform(), *set_by_user, own))


def _place(question: str) -> tuple[Path, bytes]:
    name = hashlib.sha256(f"{machine()}\n{question}".encode()).digest()
    return cache_folder() / "kernels" / name.hex(), name


def _code(name: bytes, found: bool) -> bytes:
    return hmac.new(secret_key("kernel verdicts"), name + bytes([found]), hashlib.sha256).digest()


def _read(question: str) -> bool | None:
    with suppress(OSError, RunError):
        path, name = _place(question)
        kept = path.read_bytes()
        for found in (True, False):
            if hmac.compare_digest(kept, _code(name, found)):
                return found
    return None


def _write(question: str, found: bool) -> None:
    path, name = _place(question)
    private_folder(path.parent)
    write_whole(path, _code(name, found), private=True)
