import sqlite3
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from wholegrain.privacy.accountants import Accountant, PldAccountant, RdpAccountant
from wholegrain.privacy.events import gaussian, repeat
from wholegrain.privacy.memory import RememberingAccountant, default_store

EVENT = repeat(gaussian(5.0), 10)


@dataclass
class Counting:
    """Counts what reaches the inner accountant."""

    inner: Accountant = field(default_factory=RdpAccountant)
    asked: int = 0

    name = property(lambda self: self.inner.name)
    version = property(lambda self: self.inner.version)

    def epsilon(self, event, delta):
        self.asked += 1
        return self.inner.epsilon(event, delta)


@pytest.fixture
def store(tmp_path):
    return tmp_path / "cache" / "accounting.sqlite"


def overwrite(store, value):
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("UPDATE answers SET epsilon = ?", [value])


def test_answers_outlive_the_object(store):
    first = RememberingAccountant(Counting(), store).epsilon(EVENT, 1e-5)
    later = Counting()
    assert RememberingAccountant(later, store).epsilon(EVENT, 1e-5) == first == RdpAccountant().epsilon(EVENT, 1e-5)
    assert later.asked == 0


def test_infinity_is_an_answer_too(store):
    counting = Counting()
    remembering = RememberingAccountant(counting, store)
    assert remembering.epsilon(gaussian(0.0), 1e-5) == remembering.epsilon(gaussian(0.0), 1e-5) == float("inf")
    assert counting.asked == 1


def test_it_passes_for_the_inner_accountant(store):
    inner = PldAccountant(grid=1e-3)
    remembering = RememberingAccountant(inner, store)
    assert (remembering.name, remembering.version) == (inner.name, inner.version)


@pytest.mark.parametrize(
    ("accountant", "event", "delta"),
    [
        (RdpAccountant(), EVENT, 1e-6),
        (RdpAccountant(), repeat(gaussian(5.0), 11), 1e-5),
        (RdpAccountant(), repeat(gaussian(5.0 * (1 + 1e-15)), 10), 1e-5),
        (PldAccountant(), EVENT, 1e-5),
        (PldAccountant(grid=1e-2), EVENT, 1e-5),
    ],
)
def test_other_questions_have_other_answers(store, accountant, event, delta):
    asked_before = RememberingAccountant(RdpAccountant(), store)
    asked_before.epsilon(EVENT, 1e-5)
    overwrite(store, 123.0)
    assert asked_before.epsilon(EVENT, 1e-5) == 123.0
    assert RememberingAccountant(accountant, store).epsilon(event, delta) == accountant.epsilon(event, delta)


def test_two_grids_do_not_share_answers(store):
    coarse, fine = PldAccountant(grid=1e-1), PldAccountant(grid=1e-3)
    assert coarse.epsilon(EVENT, 1e-5) != fine.epsilon(EVENT, 1e-5)
    for inner in (coarse, fine, coarse):
        assert RememberingAccountant(inner, store).epsilon(EVENT, 1e-5) == inner.epsilon(EVENT, 1e-5)


@pytest.mark.parametrize("damage", ["not a number", -1.0, None, float("nan"), b"\x00"])
def test_damaged_answer_is_computed_again_and_mended(store, damage):
    right = RememberingAccountant(Counting(), store).epsilon(EVENT, 1e-5)
    overwrite(store, damage)
    counting = Counting()
    remembering = RememberingAccountant(counting, store)
    assert [remembering.epsilon(EVENT, 1e-5) for _ in range(3)] == [right] * 3
    assert counting.asked == 1


@pytest.mark.parametrize("content", [b"", b"this is no database at all, whatever its name says" * 40])
def test_damaged_file_is_done_without(store, content):
    store.parent.mkdir()
    store.write_bytes(content)
    assert RememberingAccountant(Counting(), store).epsilon(EVENT, 1e-5) == RdpAccountant().epsilon(EVENT, 1e-5)


def test_truncated_file_is_done_without(store):
    right = RememberingAccountant(Counting(), store).epsilon(EVENT, 1e-5)
    store.write_bytes(store.read_bytes()[:3000])
    counting = Counting()
    assert RememberingAccountant(counting, store).epsilon(EVENT, 1e-5) == right
    assert counting.asked == 1


def test_folder_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("in the way")
    counting = Counting()
    remembering = RememberingAccountant(counting, tmp_path / "file" / "accounting.sqlite")
    assert remembering.epsilon(EVENT, 1e-5) == remembering.epsilon(EVENT, 1e-5) == RdpAccountant().epsilon(EVENT, 1e-5)
    assert counting.asked == 2


def test_errors_of_the_inner_accountant_come_through(store):
    with pytest.raises(Exception, match="delta"):
        RememberingAccountant(RdpAccountant(), store).epsilon(EVENT, 2.0)


def test_store_is_in_the_cache_folder_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("WHOLEGRAIN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_store() == tmp_path / "xdg" / "wholegrain" / "accounting.sqlite"
    monkeypatch.setenv("WHOLEGRAIN_CACHE", str(tmp_path / "own"))
    assert default_store() == tmp_path / "own" / "accounting.sqlite"
