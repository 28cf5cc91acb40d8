"""Plain text: documents as subjects, and what cannot be read."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from wholegrain.data.characters import VOCABULARY
from wholegrain.data.documents import documents
from wholegrain.errors import DataError

TEXT = "Fellow citizens of\nthe  Senate,\fShort.\fand of the House of Representatives:"


def test_documents_are_subjects_and_white_space_is_one_space(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    data = documents(path=tmp_path / "a.txt", window=10, stride=10).data
    read = ["".join(VOCABULARY[number] for number in window) for window in data.inputs]
    assert read[:3] == ["Fellow cit", "izens of t", "and of the"]
    assert "".join(VOCABULARY[number] for number in data.targets[:3]) == "ih "
    assert data.subject_count == 2


def test_a_document_is_the_same_subject_wherever_it_stands(tmp_path: Path) -> None:
    first, _, last = TEXT.split("\f")
    (tmp_path / "a.txt").write_text(f"{first}\f{last}")
    (tmp_path / "b.txt").write_text(last)
    both, one = (documents(path=tmp_path / name, window=10).data for name in ("a.txt", "b.txt"))
    assert set(one.subjects) < set(both.subjects)


def test_gzip_reads_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    plain, packed = (documents(path=tmp_path / name, window=5).data for name in ("a.txt", "a.txt.gz"))
    np.testing.assert_array_equal(plain.inputs, packed.inputs)
    np.testing.assert_array_equal(plain.subjects, packed.subjects)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"too short", "No document in"),
        ("a.txt", b"\xff\xfe" * 50, r"not text in UTF-8 \(byte 0\)"),
        ("a.txt.gz", b"no gzip", "cannot be read"),
        ("a.txt.gz", gzip.compress(TEXT.encode(), mtime=0)[:-12], "cannot be read"),
    ],
    ids=["short", "not UTF-8", "not gzip", "cut off"],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        documents(path=tmp_path / name)


def test_windows_that_fill_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    monkeypatch.setattr("wholegrain.data.plays.MOST", 459)  # 20 and 26 windows of 10 bytes
    with pytest.raises(DataError, match=r"would take 460 bytes; raise data\.options\.stride"):
        documents(path=tmp_path / "a.txt", window=10, stride=1)
