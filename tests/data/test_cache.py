"""A kept file is used only if it is whole and of the files that are there; otherwise it is made again, silently."""

import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholegrain.data import cache
from wholegrain.data.cache import Arrays, CacheOrigin, load_cached

ARRAYS = {
    "images": np.arange(600, dtype=np.uint8).reshape(3, 200),
    "targets": np.array([1, 2, 3]),
    "none": np.empty((0, 4), np.int8),
    "unknown": np.array(7),
}


class Parser:
    """Counts how often it is asked."""

    def __init__(self, arrays: Arrays = ARRAYS) -> None:
        self.arrays, self.asked = arrays, 0

    def __call__(self) -> Arrays:
        self.asked += 1
        return self.arrays


@pytest.fixture
def origin(tmp_path: Path) -> CacheOrigin:
    files = (tmp_path / "a.json", tmp_path / "b.json")
    for file in files:
        file.write_text("source")
    return CacheOrigin("reader-v1", tmp_path, files)


def assert_same(arrays: Arrays) -> None:
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert arrays[name].tolist() == array.tolist()


def test_the_second_time_nothing_is_parsed(origin: CacheOrigin) -> None:
    parser = Parser()
    assert_same(load_cached(origin, parser))
    assert_same(load_cached(origin, parser))
    assert parser.asked == 1
    assert all(array.flags.writeable for array in load_cached(origin, parser).values())


@pytest.mark.parametrize("mask", [0, 0o022])
def test_raw_items_are_closed_to_others_whatever_the_umask(origin: CacheOrigin, mask: int) -> None:
    before = os.umask(mask)
    try:
        load_cached(origin, Parser())
    finally:
        os.umask(before)
    assert stat.S_IMODE(origin.place.stat().st_mode) == 0o600
    assert stat.S_IMODE(origin.place.parent.stat().st_mode) == 0o700


def test_it_is_kept_in_the_cache_folder_for_its_owner_alone(origin: CacheOrigin, tmp_path: Path) -> None:
    load_cached(origin, Parser())
    kept = list((tmp_path / "cache" / "data").iterdir())
    assert kept == [origin.place]
    assert stat.S_IMODE(kept[0].stat().st_mode) == 0o600


def change_content(origin: CacheOrigin) -> None:
    origin.files[0].write_text("another source")


def change_date(origin: CacheOrigin) -> None:
    os.utime(origin.files[1], ns=(0, 0))


def change_all_but_the_date(origin: CacheOrigin) -> None:
    before = origin.files[0].stat()
    origin.files[0].unlink()
    origin.files[0].write_text("SOURCE")
    os.utime(origin.files[0], ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [change_content, change_date, change_all_but_the_date])
def test_changed_files_are_parsed_again_and_replace_the_old(
    origin: CacheOrigin, change: Callable[[CacheOrigin], None]
) -> None:
    load_cached(origin, Parser({"old": np.zeros(3)}))
    change(origin)
    parser = Parser()
    assert_same(load_cached(origin, parser))
    assert_same(load_cached(origin, parser))
    assert parser.asked == 1
    assert len(list(origin.place.parent.iterdir())) == 1


def test_a_file_more_is_another_origin(origin: CacheOrigin, tmp_path: Path) -> None:
    load_cached(origin, Parser({"old": np.zeros(3)}))
    (tmp_path / "c.json").write_text("more")
    more = CacheOrigin(origin.reader, origin.root, (*origin.files, tmp_path / "c.json"))
    assert_same(load_cached(more, Parser()))


def test_another_reader_has_a_place_of_its_own(origin: CacheOrigin) -> None:
    load_cached(origin, Parser({"old": np.zeros(3)}))
    assert_same(load_cached(CacheOrigin("reader-v2", origin.root, origin.files), Parser()))


def test_another_format_is_not_read(origin: CacheOrigin, monkeypatch: pytest.MonkeyPatch) -> None:
    load_cached(origin, Parser({"old": np.zeros(3)}))
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    assert_same(load_cached(origin, Parser()))


def test_files_that_change_while_they_are_read_are_not_kept(origin: CacheOrigin) -> None:
    def parse() -> Arrays:
        change_content(origin)
        return ARRAYS

    assert_same(load_cached(origin, parse))
    assert not origin.place.exists()


def kept_bytes(origin: CacheOrigin) -> bytes:
    load_cached(origin, Parser())
    return origin.place.read_bytes()


def assert_made_again(origin: CacheOrigin) -> None:
    parser = Parser()
    assert_same(load_cached(origin, parser))
    assert parser.asked == 1
    assert_same(load_cached(origin, parser))
    assert parser.asked == 1


def test_a_file_cut_anywhere_is_made_again(origin: CacheOrigin) -> None:
    whole = kept_bytes(origin)
    for length in range(0, len(whole), 97):
        origin.place.write_bytes(whole[:length])
        assert_made_again(origin)


@pytest.mark.parametrize("name", ["images", "targets", "unknown", "digest", "identity"])
def test_a_changed_array_is_noticed_even_if_the_archive_is_sound(origin: CacheOrigin, name: str) -> None:
    kept_bytes(origin)
    with np.load(origin.place) as kept:
        arrays = {key: kept[key] for key in kept.files}
    arrays[name] = np.array("x") if arrays[name].dtype.kind == "U" else arrays[name] + 1
    np.savez(origin.place, **arrays)
    assert_made_again(origin)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY", b"not an archive", b"\x80\x04cos\nsystem\n"])
def test_a_file_of_somebody_else_is_replaced(origin: CacheOrigin, content: bytes) -> None:
    origin.place.parent.mkdir(parents=True)
    origin.place.write_bytes(content)
    assert_made_again(origin)


def test_an_archive_of_somebody_else_is_replaced(origin: CacheOrigin) -> None:
    origin.place.parent.mkdir(parents=True)
    with zipfile.ZipFile(origin.place, "w") as archive:
        archive.writestr("identity", origin.identity())
    assert_made_again(origin)


def test_a_pickle_is_never_loaded(origin: CacheOrigin) -> None:
    origin.place.parent.mkdir(parents=True)
    np.savez(origin.place, identity=np.array(origin.identity()), digest=np.array([print], dtype=object))
    assert_made_again(origin)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_is_harmless(tmp_path_factory: pytest.TempPathFactory, place: int, flip: int) -> None:
    """It is noticed, or it lies where the archive keeps nothing of the data (dates, say)."""
    folder = tmp_path_factory.mktemp("origin")
    (folder / "a").write_text("source")
    origin = CacheOrigin("reader-v1", folder, (folder / "a",))
    content = bytearray(kept_bytes(origin))
    content[place % len(content)] ^= flip
    origin.place.write_bytes(content)
    assert_same(load_cached(origin, Parser()))


def test_a_folder_that_cannot_be_written_is_done_without(origin: CacheOrigin, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    parser = Parser()
    assert_same(load_cached(origin, parser))
    assert_same(load_cached(origin, parser))
    assert parser.asked == 2


def test_a_place_that_is_taken_by_a_folder_is_done_without(origin: CacheOrigin) -> None:
    origin.place.mkdir(parents=True)
    assert_same(load_cached(origin, Parser()))
    assert list(origin.place.parent.iterdir()) == [origin.place]


def test_nothing_half_written_stays(origin: CacheOrigin, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object, **arrays: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert_same(load_cached(origin, Parser()))
    assert list(origin.place.parent.iterdir()) == []


def test_errors_of_the_parser_come_through(origin: CacheOrigin) -> None:
    def parse() -> Arrays:
        raise ValueError("broken source")

    with pytest.raises(ValueError, match="broken source"):
        load_cached(origin, parse)
    assert not origin.place.exists()


def test_a_file_that_is_gone_is_the_parsers_to_tell(origin: CacheOrigin) -> None:
    origin.files[0].unlink()
    parser = Parser()
    load_cached(origin, parser)
    assert parser.asked == 1
