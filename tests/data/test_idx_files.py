"""The idx format: what is written is read; heads are checked before their sizes are believed."""

import gzip
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from data_files import write_idx
from wholegrain.data.idx_files import find_idx, read_idx
from wholegrain.errors import DataError


@given(arrays.arrays(st.sampled_from([np.uint8, np.int32]), arrays.array_shapes(max_dims=3)), st.booleans())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, packed: bool) -> None:
    path = write_idx(tmp_path_factory.mktemp("idx") / ("a.gz" if packed else "a"), array)
    found = read_idx(path, array.dtype.type, array.shape[1:])
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()
    assert found.flags.writeable


def head(code: int, *shape: int) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "starts with nothing where"),
        (b"\x00\x00", "starts with 0000 where"),
        (b"\x89PNG" + bytes(40), "starts with 89504e47 where an idx file of this kind starts with 00000803"),
        (head(0x0C, 2, 28, 28) + bytes(1568), "starts with 00000c03"),
        (head(0x08, 2, 784) + bytes(1568), "starts with 00000802"),
        (head(0x08, 2, 28, 28)[:9], "starts with 00000803"),
        (head(0x08, 2, 32, 32) + bytes(2048), "declares the shape [2, 32, 32]"),
        (head(0x08, 0, 28, 28), "declares the shape [0, 28, 28]"),
        (head(0x08, 2**32 - 1, 28, 28), "declares the shape [4294967295, 28, 28]"),
        (head(0x08, 2, 28, 28) + bytes(1567), "should hold 1,568 bytes of values and has only 1,567"),
        (head(0x08, 2, 28, 28) + bytes(1569), "should hold 1,568 bytes of values and has more"),
    ],
)
@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_a_wrong_file_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        read_idx(path, np.uint8, (28, 28))
    assert str(path) in str(caught.value)


def test_packed_files_cut_or_damaged_anywhere_are_refused(tmp_path: Path) -> None:
    path = write_idx(tmp_path / "a.gz", np.arange(60, dtype=np.uint8).reshape(15, 2, 2))
    content = path.read_bytes()
    for length in range(len(content) - 8):  # the last eight bytes are only looked at by those who read past the end
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"a\.gz"):
            read_idx(path, np.uint8, (2, 2))
    path.write_bytes(b"not packed at all")
    with pytest.raises(DataError, match="Not a gzipped file"):
        read_idx(path, np.uint8, (2, 2))


@given(st.binary(max_size=64))
def test_any_bytes_give_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    for name in ("a", "a.gz"):
        path = tmp_path_factory.mktemp("idx") / name
        path.write_bytes(content)
        with pytest.raises(DataError):
            read_idx(path, np.uint8, (28, 28))


def test_a_plain_file_comes_before_a_packed_one(tmp_path: Path) -> None:
    assert find_idx(tmp_path, "a") is None
    packed = write_idx(tmp_path / "a.gz", np.zeros(1, np.uint8))
    assert find_idx(tmp_path, "a") == packed
    plain = write_idx(tmp_path / "a", np.zeros(1, np.uint8))
    assert find_idx(tmp_path, "a") == plain
