"""The C program of this package (the folder `program`), compiled on this machine when it is first asked for, and kept.

It is compiled by the machine's own C compiler, for its own processor, and kept in the user's cache folder, which only
the user may enter: one that was found open to others is not trusted, and neither is a file that somebody else made. The
file's name is a digest of all that it was made from: the program's files, the compiler, its flags and the processor. A
new file is tried in a process of its own first: a virtual machine may claim instructions that it does not have, and
these would end a run.

The flags ask for arithmetic as it is written, so that noise has the same bits as in numpy (`counter_noise`): nothing
fused that is not written as one operation, no other order, and numbers below 2⁻¹²⁶ as they are.
"""

import contextlib
import ctypes
import grp
import hashlib
import json
import os
import platform
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from wholegrain import _check
from wholegrain._files import close_to_others, private_folder
from wholegrain._places import cache_folder
from wholegrain.errors import SpecError

PROGRAM = Path(__file__).with_name("program")
"""Every `*.c` in it is compiled, all into one library; `*.h` are what they include."""
COMPILERS = ("cc", "gcc", "clang")
ARITHMETIC = ("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math")
"""As written; the last two only say that nobody asks for error numbers or floating-point exceptions."""
FLAGS = ("-std=gnu11", "-O3", *ARITHMETIC, "-fno-strict-aliasing", "-Wno-psabi", "-shared", "-fPIC")
PROCESSORS = (("-march=native",), ("-mcpu=native",), ())
"""How compilers are told to use all that this processor has, as far as they know how."""
TRY = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).wholegrain_try())"
LIMIT = 300
"""Seconds after which a compiler, or a first try, is taken to hang."""
REMEDY = "mend that, or leave out compute.compiled"


@cache
def load_library() -> ctypes.CDLL:
    """The compiled program; where it cannot be had, one sentence says why."""
    compiler = _find_compiler()
    try:
        place = _place_for(compiler)
        if not place.exists():
            _build(compiler, place)
        return _load(place)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        raise SpecError(
            f"compute.compiled = true, and the C program cannot be compiled and kept in '{cache_folder()}':"
            f" {_check.reason(error)}; {REMEDY}."
        ) from error


@cache
def kept_library() -> ctypes.CDLL | None:
    """The program if it was compiled before: for what is only faster with it. Nothing is compiled or refused."""
    if load_library.cache_info().currsize:
        return load_library()
    try:
        if not (cache_folder() / "compiled").is_dir():
            return None
        place = _place_for(_find_compiler())
        return _load(place) if place.exists() else None
    except (OSError, RuntimeError, SpecError, subprocess.TimeoutExpired):
        return None


def _place_for(compiler: str) -> Path:
    """Where what this compiler makes is kept."""
    return _own_folder() / f"wholegrain-{_identity(compiler)}.so"


def _load(place: Path) -> ctypes.CDLL:
    _require_own(place)
    return ctypes.CDLL(str(place))


def _find_compiler() -> str:
    """The path of the C compiler: what `CC` names, or the usual ones."""
    wanted = os.environ.get("CC")
    for name in (wanted,) if wanted else COMPILERS:
        if (found := shutil.which(name)) is not None:
            return found
    looked = f"what CC names ('{wanted}')" if wanted else ", ".join(COMPILERS)
    raise SpecError(
        f"compute.compiled = true needs a C compiler, and this machine has none ({looked}): install one (the package"
        " gcc), or leave out compute.compiled."
    )


def _own_folder() -> Path:
    """Where compiled programs are kept, if nobody but this user (and root) can put one there, or move the folder."""
    kept = cache_folder() / "compiled"
    if not kept.is_dir():
        private_folder(kept)
    folder = kept.resolve()
    _require_own(folder)
    for above in folder.parents:
        if _lets_others_write(above.stat()):
            raise PermissionError(f"others than this user can write in '{above}'")
    return folder


def _lets_others_write(status: os.stat_result) -> bool:
    """Whether others can exchange what lies in this folder: in one with the sticky bit, only its owner can."""
    if status.st_uid not in (os.getuid(), 0):
        return True
    if status.st_mode & stat.S_ISVTX:
        return False
    return bool(status.st_mode & stat.S_IWOTH) or bool(status.st_mode & stat.S_IWGRP and _has_others(status.st_gid))


def _has_others(group: int) -> bool:
    """Whether anybody but this user and root may be in a group; not in root's, and in one that is the user's own.

    Many systems give each user a group of the same name. Not every system can list whose first group another one is.
    """
    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return True
    own = group == 0 or (group == user.pw_gid and found.gr_name == user.pw_name)
    return not own or not set(found.gr_mem) <= {user.pw_name, "root"}


def _require_own(place: Path) -> None:
    """Refuse what others can write, or have written: it could be somebody else's program. A link is refused, too."""
    status = place.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"others than this user can write in '{place}'")


def _identity(compiler: str) -> str:
    """A digest of all that a compiled program depends on."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False
    ).stdout
    facts = [_sources(), os.path.realpath(compiler), version, FLAGS, PROCESSORS, _processor()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _sources() -> dict[str, str]:
    """The text of each file of the program."""
    return {place.name: place.read_text() for place in sorted(PROGRAM.glob("*.[ch]"))}


def _processor() -> list[str]:
    """What tells this processor from others: a cache may be shared by machines."""
    names = ("model name", "flags", "Features", "CPU part")
    lines: list[str] = []
    with contextlib.suppress(OSError):
        described = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        lines = sorted({line for line in described if line.startswith(names)})
    return [platform.machine(), platform.processor(), *lines]


def _build(compiler: str, place: Path) -> None:
    """Compile, try, and put in place as a whole; of two processes at once, either's file is as good."""
    handle, partial = tempfile.mkstemp(dir=place.parent, prefix=".partial-", suffix=".so")
    os.close(handle)
    try:
        _compile(compiler, partial)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())  # a file that was cut short would end every run
        tried = subprocess.run([sys.executable, "-I", "-c", TRY, partial], timeout=LIMIT, check=False)
        if tried.returncode:
            raise RuntimeError(f"what '{compiler}' made of it fails on this machine (code {tried.returncode})")
        close_to_others(Path(partial))
        os.replace(partial, place)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


def _compile(compiler: str, place: str) -> None:
    files = [str(PROGRAM / name) for name in _sources() if name.endswith(".c")]
    for processor in PROCESSORS:
        command = [compiler, *FLAGS, *processor, "-o", place, *files, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False)
        if done.returncode == 0:
            return
    said = [line for line in done.stderr.splitlines() if "error" in line] or [f"code {done.returncode}"]
    raise RuntimeError(f"'{compiler}' says: {said[0]}")
