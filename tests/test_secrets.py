import os
import stat
from pathlib import Path

import pytest

from wholegrain._files import open_private, private_folder, write_whole
from wholegrain._secrets import secret_key
from wholegrain.errors import RunError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_drawn_once_for_each_name(tmp_path: Path) -> None:
    first = secret_key("run a", tmp_path / "keys")
    assert secret_key("run a", tmp_path / "keys") == first
    assert secret_key("run b", tmp_path / "keys") != first
    assert len(first) == 32


def test_keys_and_their_folder_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        secret_key("run", tmp_path / "state" / "keys")
    finally:
        os.umask(before)
    (key,) = (tmp_path / "state" / "keys").iterdir()
    assert mode(key) == 0o600
    assert mode(key.parent) == 0o700
    assert mode(key.parent.parent) == 0o700


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    secret_key("run", tmp_path)
    (key,) = tmp_path.iterdir()
    key.write_bytes(b"short")
    with pytest.raises(RunError, match="damaged"):
        secret_key("run", tmp_path)


def test_private_files_are_closed_to_others_even_if_they_were_open(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    (tmp_path / "old").chmod(0o644)
    os.close(open_private(tmp_path / "old", os.O_RDWR | os.O_CREAT))
    assert mode(tmp_path / "old") == 0o600
    write_whole(tmp_path / "new", b"x", private=True)
    assert mode(tmp_path / "new") == 0o600
    (tmp_path / "folder").mkdir(mode=0o755)
    assert mode(private_folder(tmp_path / "folder")) == 0o700
