"""Where the compiled program comes from, and what is said where it cannot be had."""

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilers import require_compiler
from wholegrain.errors import SpecError
from wholegrain.silo import c_library
from wholegrain.silo.c_library import load_library

WHOLE = c_library.PROGRAM


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache for this test alone, and a program that is compiled in no time."""
    monkeypatch.setenv("WHOLEGRAIN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "small.c").write_text("int wholegrain_try(void) { return 0; }")
    monkeypatch.setattr(c_library, "PROGRAM", tmp_path / "program")
    load_library.cache_clear()
    yield tmp_path / "cache" / "compiled"
    load_library.cache_clear()


def write_compiler(folder: Path, lines: str) -> str:
    path = folder / "own-cc"
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_compiler_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match=r"needs a C compiler, and this machine has none \(cc, gcc, clang\): install"):
        load_library()
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SpecError, match=r"what CC names \('no-such-compiler'\)"):
        load_library()


def test_what_a_compiler_says_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_cache: Path) -> None:
    monkeypatch.setenv("CC", write_compiler(tmp_path, "echo 'x.c:1: error: no room' >&2; exit 1"))
    with pytest.raises(SpecError, match=r"says: x\.c:1: error: no room; mend that, or leave out compute\.compiled\.$"):
        load_library()
    assert not list(own_cache.iterdir())


def test_what_fails_on_this_machine_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_cache: Path
) -> None:
    """As a program does that was made for instructions which the machine only claims to have."""
    require_compiler()
    (tmp_path / "other.c").write_text("int wholegrain_try(void) { __builtin_trap(); }")
    load_library.cache_clear()
    monkeypatch.setattr(c_library, "PROGRAM", tmp_path)
    before = set(own_cache.iterdir())
    with pytest.raises(SpecError, match="fails on this machine"):
        load_library()
    assert set(own_cache.iterdir()) == before


def test_it_is_compiled_once_and_only_its_owner_can_touch_it(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_compiler()
    (kept,) = own_cache.iterdir()
    assert stat.S_IMODE(own_cache.stat().st_mode) == 0o700
    assert not kept.stat().st_mode & 0o077
    load_library.cache_clear()
    monkeypatch.setattr(c_library, "_build", lambda *given: pytest.fail("it was there"))
    assert load_library()._name == str(kept)


def test_another_program_compiler_or_processor_is_another_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_compiler()
    compiler = c_library._find_compiler()
    found = {c_library._identity(compiler)}
    found.add(c_library._identity(write_compiler(tmp_path, "echo version 2")))
    monkeypatch.setattr(c_library, "_processor", lambda: ["another"])
    found.add(c_library._identity(compiler))
    monkeypatch.setattr(c_library, "FLAGS", (*c_library.FLAGS, "-O2"))
    found.add(c_library._identity(compiler))
    monkeypatch.setattr(c_library, "PROGRAM", tmp_path)
    for name in ("other.c", "other.h"):
        (tmp_path / name).write_text("int nothing;")
        found.add(c_library._identity(compiler))
    assert len(found) == 6


def test_a_folder_that_others_can_write_in_is_not_trusted(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_compiler()
    load_library.cache_clear()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(SpecError, match="others than this user can write in"):
        load_library()


@pytest.mark.parametrize("opened", ["folder", "file", "folder above"])
def test_what_others_could_have_put_there_is_not_loaded(own_cache: Path, opened: str) -> None:
    """Closing a folder that was open does not make what lies in it one's own."""
    require_compiler()
    (kept,) = own_cache.iterdir()
    {"folder": own_cache, "file": kept, "folder above": own_cache.parent}[opened].chmod(0o777)
    load_library.cache_clear()
    for _ in range(2):
        with pytest.raises(SpecError, match="others than this user can write in"):
            load_library()


@pytest.mark.parametrize(
    ("mode", "members", "trusted"), [(0o775, [], True), (0o775, ["eve"], False), (0o1777, [], True)]
)
def test_a_folder_above_may_be_open_to_a_group_of_ones_own(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, mode: int, members: list[str], trusted: bool
) -> None:
    """A member of another group could exchange the folder while the program is compiled, and have it run."""
    require_compiler()
    user = pwd.getpwuid(os.getuid())
    own_cache.parent.chmod(mode)
    group = grp.struct_group((user.pw_name, "x", own_cache.parent.stat().st_gid, members))
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    load_library.cache_clear()
    with contextlib.nullcontext() if trusted else pytest.raises(SpecError, match="others than this user can write in"):
        load_library()


def test_a_link_to_a_program_is_not_loaded(own_cache: Path, tmp_path: Path) -> None:
    require_compiler()
    (kept,) = own_cache.iterdir()
    kept.symlink_to(kept.rename(tmp_path / "elsewhere.so"))
    load_library.cache_clear()
    with pytest.raises(SpecError, match="others than this user can write in"):
        load_library()


@pytest.mark.parametrize("flag", ["-ffast-math", "-ffinite-math-only", "-funsafe-math-optimizations"])
def test_a_compiler_that_adds_flags_of_its_own_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flag: str
) -> None:
    require_compiler()
    load_library.cache_clear()
    monkeypatch.setattr(c_library, "PROGRAM", WHOLE)
    monkeypatch.setattr(c_library, "PROCESSORS", ((),))
    # What is refused is refused before anything is optimised.
    monkeypatch.setattr(c_library, "FLAGS", tuple("-O0" if each == "-O3" else each for each in c_library.FLAGS))
    monkeypatch.setenv("CC", write_compiler(tmp_path, f'exec {c_library._find_compiler()} "$@" {flag}'))
    with pytest.raises(SpecError, match="operations must be done as they are written"):
        load_library()
