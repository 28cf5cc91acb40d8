"""Verdicts on kernels: kept for this machine, and asked for again where they cannot be believed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from wholegrain import _secrets
from wholegrain.clipping import verdicts
from wholegrain.clipping.verdicts import remembered


class Asked:
    """Answers, and counts how often it was asked."""

    def __init__(self, answer: bool) -> None:
        self.answer, self.times = answer, 0

    def __call__(self) -> bool:
        self.times += 1
        return self.answer


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As a new process: only what is on disk is known."""
    return lambda: monkeypatch.setattr(verdicts, "_found", {})


@pytest.fixture
def kept(tmp_path: Path, forget: Callable[[], None]) -> Callable[[], list[Path]]:
    forget()
    return lambda: list((tmp_path / "cache" / "kernels").glob("*"))


@pytest.mark.parametrize("answer", [True, False])
def test_a_verdict_is_kept(answer: bool, kept: Callable[[], list[Path]], forget: Callable[[], None]) -> None:
    ask = Asked(answer)
    for _ in range(2):
        for _ in range(2):
            assert remembered("pass 64", ask) is answer
        forget()
    assert ask.times == 1
    assert len(kept()) == 1
    assert remembered("pass 96", Asked(not answer)) is not answer


@pytest.mark.parametrize("place", [0, 17, 31])
def test_a_changed_byte_is_tried_again_and_mended(
    place: int, kept: Callable[[], list[Path]], forget: Callable[[], None]
) -> None:
    remembered("pass 64", Asked(False))
    (path,) = kept()
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    forget()
    ask = Asked(False)
    assert not remembered("pass 64", ask)
    assert ask.times == 1
    assert path.read_bytes() == whole


def test_the_verdict_of_another_question_is_not_believed(
    kept: Callable[[], list[Path]], forget: Callable[[], None]
) -> None:
    remembered("one", Asked(True))
    (one,) = kept()
    remembered("two", Asked(False))
    (two,) = set(kept()) - {one}
    two.write_bytes(one.read_bytes())
    forget()
    assert not remembered("two", Asked(False))


def test_another_machine_asks_for_itself(
    kept: Callable[[], list[Path]], forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered("pass 64", Asked(True))
    forget()
    monkeypatch.setattr(verdicts, "machine", lambda: "another processor")
    assert not remembered("pass 64", Asked(False))
    assert len(kept()) == 2


def test_a_verdict_by_another_key_is_not_believed(
    kept: Callable[[], list[Path]], forget: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder that was copied from elsewhere, with a verdict of somebody else's."""
    remembered("pass 64", Asked(True))
    forget()
    monkeypatch.setenv("WHOLEGRAIN_STATE", str(tmp_path / "other"))
    assert not remembered("pass 64", Asked(False))


def test_where_nothing_can_be_written_verdicts_are_for_the_process(tmp_path: Path, forget: Callable[[], None]) -> None:
    (tmp_path / "cache").write_text("no folder")
    forget()
    ask = Asked(True)
    assert remembered("pass 64", ask)
    assert remembered("pass 64", ask)
    assert ask.times == 1
    forget()
    assert remembered("pass 64", ask)
    assert ask.times == 2


def test_a_damaged_key_keeps_nobody_from_trying(
    kept: Callable[[], list[Path]], forget: Callable[[], None], tmp_path: Path
) -> None:
    remembered("pass 64", Asked(True))
    (key,) = (tmp_path / "state" / "keys").glob("*.key")
    key.write_bytes(b"short")
    assert len(key.read_bytes()) != _secrets.SIZE
    forget()
    assert not remembered("pass 64", Asked(False))


def test_a_machine_is_told_by_its_build_and_by_our_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    told = verdicts.machine.__wrapped__()
    assert told == verdicts.machine.__wrapped__()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == "products.py"))
    assert verdicts.machine.__wrapped__() != told
