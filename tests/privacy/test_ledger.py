"""The account book lasts, is written by one at a time, and says what is wrong with it, whatever was done to it.

An attack goes at the file with SQL of its own, triggers dropped first; every one must be found when the ledger is
opened again.
"""

import hashlib
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts import budget, opening, released, reserved
from wholegrain.errors import LedgerError
from wholegrain.privacy import ledger as ledger_module
from wholegrain.privacy.ledger import START, Head, Ledger
from wholegrain.privacy.ledger_entries import Reserved
from wholegrain.privacy.ledger_state import LedgerState

ENTRIES = 7
"""Of the ledger that `filled` makes, its own first entry included."""
COLUMNS = ("written", "body", "hash")
Row = tuple[int, str, str, str]


def write(ledger: Ledger, *entries: object) -> None:
    with ledger.writing() as transaction:
        transaction.add(*entries)


def fill(path: Path) -> Path:
    """Four pages: an account with a run, two rounds, and the word that the first was released."""
    with Ledger.open(path) as ledger:
        write(ledger, budget(10.0), opening())
        write(ledger, reserved(0, "north"), reserved(0, "south"))
        write(ledger, released(reserved(0, "north")))
        write(ledger, reserved(1, "north"))
        assert ledger.head.number == ENTRIES
    return path


def witness_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.heads")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger to copy, never to touch."""
    return fill(tmp_path_factory.mktemp("original") / "ledger.sqlite")


def copied(original: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file in (original, witness_of(original)):
        shutil.copy(file, folder)
    return folder / original.name


@pytest.fixture
def filled(original: Path, tmp_path: Path) -> Path:
    return copied(original, tmp_path)


def attack(path: Path, *statements: tuple[str, list]) -> None:
    """What somebody does who may write the file and knows SQL."""
    with sqlite3.connect(path) as database:
        database.execute("DROP TRIGGER no_change")
        database.execute("DROP TRIGGER no_removal")
        for statement, values in statements:
            database.execute(statement, values)
    database.close()


def rows_of(path: Path) -> list[Row]:
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT number, written, body, hash FROM entries ORDER BY number").fetchall()
    database.close()
    return rows


def rewrite(path: Path, rows: list[Row]) -> None:
    inserts = [("INSERT INTO entries VALUES (?, ?, ?, ?)", list(row)) for row in rows]
    attack(path, ("DELETE FROM entries", []), *inserts)


def chained(rows: list[Row]) -> list[Row]:
    """The rows with numbers and hashes as they should be: a second opinion on what the chain is."""
    made, last = [], "0" * 64
    for number, (_, written, body, _) in enumerate(rows, start=1):
        last = hashlib.sha256(f"{last}\n{written}\n{body}".encode()).hexdigest()
        made.append((number, written, body, last))
    return made


def assert_refused(path: Path, *words: str) -> None:
    for create in (True, False):
        with pytest.raises(LedgerError) as refusal:
            Ledger.open(path, create=create)
        message = str(refusal.value)
        assert message.startswith(f"The ledger '{path}' cannot be")
        assert message.endswith(".")
        for word in words:
            assert word in message


# It lasts.


def test_what_was_written_is_there_when_the_ledger_is_opened_again(filled: Path) -> None:
    with Ledger.open(filled, create=False) as ledger:
        run = ledger.state.runs["first"]
        assert (run.reserved, run.released) == ({"north": 4, "south": 2}, {"north": 2})
        assert ledger.state.budgets[run.opening.account] == budget(10.0)
        assert run.opening == opening()
        assert ledger.head.number == ENTRIES
        write(ledger, released(reserved(1, "north")))
    with Ledger.open(filled) as ledger:
        assert ledger.state.runs["first"].released == {"north": 4}


def test_a_book_read_again_is_the_book_that_was_kept(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger, Ledger.open(tmp_path / "ledger") as other:
        for entries in ([budget(10.0), opening()], [reserved(0)], [released(reserved(0))], [opening("second")]):
            write(ledger, *entries)
            with Ledger.open(tmp_path / "ledger") as afresh:
                assert afresh.state == ledger.state == other.state
                assert afresh.head == ledger.head == other.head


def test_a_ledger_has_an_identity_of_its_own(tmp_path: Path) -> None:
    identities = set()
    for name in ("one", "other", "one"):
        with Ledger.open(tmp_path / name) as ledger:
            identities.add(ledger.state.identity)
    with Ledger.in_memory() as ledger:
        identities.add(ledger.state.identity)
    assert len(identities) == 3


def test_a_ledger_in_memory_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Ledger.in_memory() as ledger:
        write(ledger, budget(1.0), opening(), reserved())
        assert ledger.state.runs["first"].reserved == {"north": 2}
    assert list(tmp_path.iterdir()) == []


def test_reading_writes_nothing(filled: Path) -> None:
    before = {path: path.read_bytes() for path in filled.parent.iterdir()}
    with Ledger.open(filled, create=False) as ledger:
        assert ledger.state.runs
    assert {path: path.read_bytes() for path in filled.parent.iterdir()} == before


def test_anybody_can_check_the_chain(filled: Path) -> None:
    """Hash of the last entry's hash, the time and the body, each on a line of its own, from 64 zeros on."""
    assert chained(rows_of(filled)) == rows_of(filled)
    heads = [line.split() for line in witness_of(filled).read_text().splitlines()]
    rows = {number: digest for number, _, _, digest in rows_of(filled)}
    assert sorted({int(number) for number, _ in heads}) == [1, 3, 5, 6, 7]
    assert all(rows[int(number)] == digest for number, digest in heads)


def test_the_hash_of_any_entry_can_be_asked_for(filled: Path) -> None:
    with Ledger.open(filled) as ledger:
        assert [ledger.hash_of(number) for number, *_ in rows_of(filled)] == [row[-1] for row in rows_of(filled)]
        assert ledger.hash_of(ENTRIES + 1) is None
        assert str(ledger.head) == f"{ENTRIES} {rows_of(filled)[-1][-1]}"
    assert START.next("now", "{}") == Head(1, hashlib.sha256(f"{'0' * 64}\nnow\n{{}}".encode()).hexdigest())


def write_and_close(ledger: Ledger) -> None:
    write(ledger, reserved())
    ledger.close()


class Killed(BaseException):
    """The process is gone at this moment."""


@pytest.mark.parametrize(
    ("moment", "entries"),
    [("_insert", 3), ("_bear_witness", 4), ("close", 4)],
    ids=["before it is committed", "before it is witnessed", "after it"],
)
def test_a_page_is_there_whole_or_not_at_all_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, entries: int
) -> None:
    """Whoever is killed leaves the files as they are, a journal included: they are copied before anything is undone."""
    live, left = tmp_path / "live", tmp_path / "left"
    live.mkdir()
    ledger = Ledger.open(live / "ledger")
    write(ledger, budget(10.0), opening())
    act = getattr(Ledger, moment)

    def killed(*arguments: object) -> None:
        if moment == "_insert":
            act(*arguments)
        shutil.copytree(live, left)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, moment, killed)
        with pytest.raises(Killed):
            write_and_close(ledger)
    ledger.close()
    with Ledger.open(left / "ledger", create=False) as found:
        assert found.head.number == entries
        write(found, reserved(1))
    with Ledger.open(left / "ledger", create=False) as found:
        assert found.head.number == entries + 1


# Pages.


def fail(ledger: Ledger, error: type[BaseException]) -> None:
    with ledger.writing() as transaction:
        transaction.add(reserved(2))
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, LedgerError])
def test_a_page_that_raises_leaves_no_trace(filled: Path, error: type[BaseException]) -> None:
    before, witness = rows_of(filled), witness_of(filled).read_bytes()
    with Ledger.open(filled) as ledger:
        with pytest.raises(error):
            fail(ledger, error)
        assert ledger.state.runs["first"].reserved == {"north": 4, "south": 2}
        assert rows_of(filled) == before
        assert witness_of(filled).read_bytes() == witness
        write(ledger, reserved(2))
        assert ledger.head.number == ENTRIES + 1


CONTRADICTIONS = {
    "second opening": [opening()],
    "unknown run": [reserved(run="second")],
    "paid twice": [reserved(1, "north")],
    "paid twice in one transaction": [reserved(5), reserved(5)],
    "fine, then wrong": [reserved(5), released(reserved(6))],
}


@pytest.mark.parametrize("entries", CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_a_page_that_contradicts_the_book_is_refused_and_leaves_no_trace(filled: Path, entries: list) -> None:
    """Otherwise one wrong call would make the whole account unreadable for good."""
    before = rows_of(filled)
    with Ledger.open(filled) as ledger:
        with pytest.raises(LedgerError):
            write(ledger, *entries)
        assert rows_of(filled) == before
        write(ledger, reserved(2))
    with Ledger.open(filled) as ledger:
        assert ledger.head.number == ENTRIES + 1
        assert ledger.state.runs["first"].reserved == {"north": 6, "south": 2}


def test_a_page_that_does_not_fit_on_the_disk_leaves_no_trace(filled: Path) -> None:
    before = rows_of(filled)
    with Ledger.open(filled) as ledger:
        pages = ledger._database.execute("PRAGMA page_count").fetchone()[0]
        ledger._database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LedgerError, match="cannot be used: database or disk is full"):
            write(ledger, *(reserved(number) for number in range(2, 200)))
        assert rows_of(filled) == before
        assert ledger.state.runs["first"].reserved == {"north": 4, "south": 2}
        write(ledger, reserved(2))
    with Ledger.open(filled) as ledger:
        assert ledger.head.number == ENTRIES + 1


def test_an_empty_page_adds_nothing(filled: Path) -> None:
    with Ledger.open(filled) as ledger:
        write(ledger)
        assert ledger.head.number == ENTRIES
    assert len(rows_of(filled)) == ENTRIES


@pytest.mark.parametrize("statement", ["UPDATE entries SET body = '{}'", "DELETE FROM entries WHERE number = 7"])
def test_the_database_itself_refuses_changes(filled: Path, statement: str) -> None:
    with sqlite3.connect(filled) as database, pytest.raises(sqlite3.IntegrityError, match="entries are never"):
        database.execute(statement)
    database.close()


# Several at a time.


def test_two_connections_see_each_others_entries(filled: Path) -> None:
    with Ledger.open(filled) as one, Ledger.open(filled) as other:
        write(one, reserved(2, "north"))
        assert other.state.runs["first"].reserved == {"north": 6, "south": 2}
        write(other, reserved(2, "south"))
        with one.writing() as transaction:
            assert transaction.state.runs["first"].reserved == {"north": 6, "south": 4}
        assert one.head == other.head


def test_a_second_writer_waits_for_the_first(filled: Path) -> None:
    """What the first reads in its transaction still holds when it writes."""
    told: list[str] = []

    def second() -> None:
        with Ledger.open(filled) as ledger:
            ready.set()
            with ledger.writing() as transaction:
                told.append(f"second sees {transaction.state.runs['first'].reserved['north']}")

    ready = threading.Event()
    waiting = threading.Thread(target=second)
    with Ledger.open(filled) as ledger:
        with ledger.writing() as transaction:
            waiting.start()
            assert ready.wait(600)
            time.sleep(0.2)
            told.append("first")
            transaction.add(reserved(2, "north"))
        waiting.join(600)
    assert told == ["first", "second sees 6"]


def test_a_writer_whose_patience_ends_is_told_why(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PATIENCE", 0.05)
    with Ledger.open(filled) as one, Ledger.open(filled) as other:
        with one.writing(), pytest.raises(LedgerError, match="cannot be used: database is locked"), other.writing():
            pass
        write(other, reserved(2))


def test_many_writers_make_one_chain(filled: Path) -> None:
    def work(number: int) -> None:
        with Ledger.open(filled) as ledger:
            for round in range(8):
                write(ledger, reserved(round, stream=f"writer {number}"))

    writers = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with Ledger.open(filled) as ledger:
        assert ledger.head.number == ENTRIES + 4 * 8
        assert ledger.state.runs["first"].reserved["north"] == 4 + 4 * 8 * 2
    assert chained(rows_of(filled)) == rows_of(filled)


def test_two_may_begin_a_ledger_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds no ledger, and one is there, witness and all, before it gets to write."""
    path, look = tmp_path / "ledger", Ledger._is_empty

    def overtaken(self: Ledger) -> bool:
        found = look(self)
        monkeypatch.setattr(Ledger, "_is_empty", look)
        Ledger.open(path).close()
        return found

    monkeypatch.setattr(Ledger, "_is_empty", overtaken)
    with Ledger.open(path) as late, Ledger.open(path) as other:
        assert late.head == other.head == Head(1, rows_of(path)[0][-1])


# Attacks on entries.


@given(data=st.data())
def test_any_changed_character_of_any_entry_is_found(
    original: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = copied(original, tmp_path_factory.mktemp("changed"))
    number = data.draw(st.integers(1, ENTRIES), label="entry")
    column = data.draw(st.sampled_from(COLUMNS), label="column")
    text = rows_of(path)[number - 1][1 + COLUMNS.index(column)]
    at = data.draw(st.integers(0, len(text) - 1), label="position")
    other = data.draw(st.characters(codec="utf-8", exclude_characters=text[at]), label="instead")
    attack(path, (f"UPDATE entries SET {column} = ? WHERE number = ?", [text[:at] + other + text[at + 1 :], number]))
    assert_refused(path, f"entry {number} was changed, or another one before it was")


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", ["", 0, 1.5, b"bytes"], ids=["empty", "number", "fraction", "bytes"])
@pytest.mark.parametrize("number", [1, 4, ENTRIES])
def test_a_value_of_another_kind_is_found(filled: Path, column: str, value: object, number: int) -> None:
    attack(filled, (f"UPDATE entries SET {column} = ? WHERE number = ?", [value, number]))
    assert_refused(filled, f"entry {number} was changed")


def test_the_same_characters_as_bytes_are_found(filled: Path) -> None:
    attack(filled, ("UPDATE entries SET body = CAST(body AS BLOB) WHERE number = 4", []))
    assert_refused(filled, "entry 4 was changed")


def test_characters_that_are_none_are_found(filled: Path) -> None:
    attack(filled, ("UPDATE entries SET body = CAST(x'ff00ff' AS TEXT) WHERE number = 4", []))
    assert_refused(filled, "decode")


@pytest.mark.parametrize("number", range(1, ENTRIES))
def test_a_removed_entry_is_found(filled: Path, number: int) -> None:
    attack(filled, ("DELETE FROM entries WHERE number = ?", [number]))
    assert_refused(filled, f"entry {number} is missing")


@pytest.mark.parametrize("kept", range(ENTRIES))
def test_entries_that_were_cut_off_are_found(filled: Path, kept: int) -> None:
    attack(filled, ("DELETE FROM entries WHERE number > ?", [kept]))
    first_gone = min(number for number in (1, 3, 5, 6, 7) if number > kept)
    assert_refused(filled, f"it ends at entry {kept}, and its witness file knows {first_gone}")


@pytest.mark.parametrize("number", range(1, ENTRIES))
def test_an_entry_removed_without_a_gap_is_found(filled: Path, number: int) -> None:
    rows = rows_of(filled)
    rewrite(filled, [(min(n, number) if n <= number else n - 1, *row) for n, *row in rows if n != number])
    assert_refused(filled, f"entry {number} was changed")


@pytest.mark.parametrize(("one", "other"), [(1, 2), (3, 4), (4, 5), (2, 7), (6, 7)])
def test_entries_that_changed_places_are_found(filled: Path, one: int, other: int) -> None:
    rows = rows_of(filled)
    rows[one - 1], rows[other - 1] = (one, *rows[other - 1][1:]), (other, *rows[one - 1][1:])
    rewrite(filled, rows)
    assert_refused(filled, f"entry {one} was changed")


@pytest.mark.parametrize("digest", ["f" * 64, "0" * 64, "", "the last one's"])
def test_a_forged_entry_without_its_hash_is_found(filled: Path, digest: str) -> None:
    _, written, _, last = rows_of(filled)[-1]
    forged = [ENTRIES + 1, written, reserved(9).model_dump_json(), last if digest == "the last one's" else digest]
    attack(filled, ("INSERT INTO entries VALUES (?, ?, ?, ?)", forged))
    assert_refused(filled, f"entry {ENTRIES + 1} was changed")


def test_a_forged_entry_further_on_is_found(filled: Path) -> None:
    _, written, body, digest = rows_of(filled)[-1]
    attack(filled, ("INSERT INTO entries VALUES (?, ?, ?, ?)", [ENTRIES + 2, written, body, digest]))
    assert_refused(filled, f"entry {ENTRIES + 1} is missing")


@pytest.mark.parametrize("number", range(1, ENTRIES + 1))
def test_a_changed_entry_with_all_hashes_made_anew_is_found_by_the_witness(filled: Path, number: int) -> None:
    """Whoever knows how the chain is made can make another, but not with the heads that were noted."""
    rows = rows_of(filled)
    rows[number - 1] = (number, "1970-01-01T00:00:00+00:00", *rows[number - 1][2:])
    rewrite(filled, chained(rows))
    first_known = min(head for head in (1, 3, 5, 6, 7) if head >= number)
    assert_refused(filled, f"entry {first_known} is not the one that its witness file knows")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"kind":"refund","steps":2}', "is none that this version knows"),
        ("not even JSON", "is none that this version knows"),
        (reserved(1, "north").model_dump_json(), "round 1 of 'north' is paid for twice"),
        (released(reserved(5)).model_dump_json(), "round 5 of 'north' is released and was never paid for"),
    ],
    ids=["unknown kind", "garbage", "twice", "never paid"],
)
def test_a_well_chained_entry_must_still_make_sense(filled: Path, body: str, words: str) -> None:
    rows = rows_of(filled)
    rewrite(filled, chained([*rows, (0, rows[-1][1], body, "")]))
    assert_refused(filled, words)


def test_a_ledger_made_anew_with_its_witness_is_found_by_a_head_that_was_noted_elsewhere(filled: Path) -> None:
    """What the two files cannot tell by themselves, as the module says."""
    with Ledger.open(filled) as ledger:
        noted = ledger.head
    rows = rows_of(filled)
    cheaper = rows[3][2].replace('"steps":2', '"steps":1')
    assert cheaper != rows[3][2]
    rows[3] = (4, rows[3][1], cheaper, "")
    rewrite(filled, chained(rows))
    witness_of(filled).write_text("".join(f"{number} {digest}\n" for number, _, _, digest in rows_of(filled)))
    with Ledger.open(filled) as ledger:
        assert ledger.head.number == noted.number
        assert ledger.hash_of(noted.number) != noted.hash


def test_an_attack_while_the_ledger_is_open_is_found_by_whoever_opens_it_next(filled: Path) -> None:
    with Ledger.open(filled) as ledger:
        attack(filled, ("DELETE FROM entries WHERE number = ?", [ENTRIES]))
        write(ledger, reserved(2))
    assert_refused(filled, f"entry {ENTRIES} is missing")


# Attacks on the file.


def opened(path: Path) -> tuple[LedgerState, Head] | None:
    """What a ledger holds, or None where it is refused."""
    try:
        with Ledger.open(path) as ledger:
            return ledger.state, ledger.head
    except LedgerError:
        return None


@given(data=st.data())
def test_damage_anywhere_in_the_file_is_found_or_harmless(
    original: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = copied(original, tmp_path_factory.mktemp("damaged"))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4), label="bytes")):
        content[data.draw(st.integers(0, len(content) - 1), label="at")] = data.draw(st.integers(0, 255), label="value")
    path.write_bytes(content)
    assert opened(path) in (None, opened(original))


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_database_is_found(original: Path, tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    path = copied(original, tmp_path_factory.mktemp("cut"))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert_refused(path)


def test_an_emptied_database_is_found(filled: Path) -> None:
    filled.write_bytes(b"")
    assert_refused(filled, "it is empty, and its witness file knows of entries that are gone")


def test_a_deleted_database_is_found(filled: Path) -> None:
    filled.unlink()
    with pytest.raises(LedgerError, match=f"There is no ledger '{filled}'"):
        Ledger.open(filled, create=False)
    assert not filled.exists()
    with pytest.raises(LedgerError, match="it is empty, and its witness file knows of entries that are gone"):
        Ledger.open(filled)


@pytest.mark.parametrize("statement", ["DROP TABLE entries", "DELETE FROM entries", "ALTER TABLE entries RENAME TO e"])
def test_a_table_that_is_gone_is_found(filled: Path, statement: str) -> None:
    attack(filled, (statement, []))
    assert_refused(filled)


def test_an_older_copy_put_back_is_found(filled: Path, tmp_path: Path) -> None:
    older = filled.read_bytes()
    with Ledger.open(filled) as ledger:
        write(ledger, reserved(2), reserved(3))
    filled.write_bytes(older)
    assert_refused(filled, f"it ends at entry {ENTRIES}, and its witness file knows {ENTRIES + 2}")


def test_an_older_copy_that_went_on_by_itself_is_found(filled: Path, tmp_path: Path) -> None:
    """Both are whole, and each has spent what the other does not know of."""
    older = copied(filled, tmp_path / "older")
    for path, silo in ((filled, "north"), (older, "south")):
        with Ledger.open(path) as ledger:
            write(ledger, reserved(2, silo))
    shutil.copy(older, filled)
    assert_refused(filled, f"entry {ENTRIES + 1} is not the one that its witness file knows")


# Attacks on the witness.


def test_a_witness_that_is_gone_is_missed(filled: Path) -> None:
    witness_of(filled).unlink()
    assert_refused(filled, "its witness file 'ledger.sqlite.heads' is gone", "put both files back")


def test_an_emptied_witness_is_missed(filled: Path) -> None:
    witness_of(filled).write_text("")
    assert_refused(filled, "its witness file 'ledger.sqlite.heads' is gone")


@given(data=st.data())
def test_any_changed_character_of_the_witness_is_found(
    original: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = copied(original, tmp_path_factory.mktemp("witness"))
    text = witness_of(path).read_text()
    at = data.draw(st.integers(0, len(text) - 2), label="position")  # the last newline is what a crash may leave out
    other = data.draw(st.characters(codec="utf-8", exclude_characters=text[at] + "\r"), label="instead")
    witness_of(path).write_text(text[:at] + other + text[at + 1 :], encoding="utf-8")
    assert_refused(path, "its witness file")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"99 {'0' * 64}", f"it ends at entry {ENTRIES}, and its witness file knows 99"),
        (f"{10**30} {'0' * 64}", "its witness file holds the line '1000"),
        (f"{'9' * 5000} {'0' * 64}", "its witness file holds the line '9999"),
        ("", "its witness file holds the line ''"),
        ("no head at all", "its witness file holds the line 'no head at all'"),
        (f"-1 {'0' * 64}", "its witness file holds the line '-1 000"),
        (f"2 {'0' * 64}", "entry 2 is not the one that its witness file knows"),
    ],
    ids=["unknown", "beyond integers", "beyond text", "empty", "words", "negative", "other"],
)
def test_a_line_that_is_no_head_of_ours_is_found(filled: Path, line: str, words: str) -> None:
    with witness_of(filled).open("a") as file:
        file.write(f"{line}\n")
    assert_refused(filled, words)


def test_a_witness_in_bytes_that_are_no_text_is_found(filled: Path) -> None:
    witness_of(filled).write_bytes(witness_of(filled).read_bytes() + b"\xff\xfe\n")
    assert_refused(filled, "its witness file holds the line")


def cut_last_line(path: Path, left: int) -> None:
    """As a crash leaves it: the last line ends after so many characters."""
    *whole, _ = witness_of(path).read_text().splitlines(keepends=True)
    last = witness_of(path).read_text().splitlines()[-1]
    witness_of(path).write_text("".join(whole) + last[:left])


@pytest.mark.parametrize("left", [0, 1, 2, 30, 66])
def test_a_last_line_that_a_crash_cut_short_is_tolerated(filled: Path, left: int) -> None:
    cut_last_line(filled, left)
    with Ledger.open(filled) as ledger:
        assert ledger.head.number == ENTRIES


@pytest.mark.parametrize("left", [1, 2, 30, 66])
def test_a_ledger_goes_on_after_a_crash_that_cut_the_last_line_short(filled: Path, left: int) -> None:
    """The next head must not be written on what is left of that line."""
    cut_last_line(filled, left)
    with Ledger.open(filled) as ledger:
        write(ledger, reserved(2))
    with Ledger.open(filled) as ledger:
        assert ledger.head.number == ENTRIES + 1
    attack(filled, ("DELETE FROM entries WHERE number = ?", [ENTRIES + 1]))
    assert_refused(filled, f"it ends at entry {ENTRIES}, and its witness file knows {ENTRIES + 1}")


# What is no ledger.


def other_program(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()


@pytest.mark.parametrize("table", ["answers", "entries"])
def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path, table: str) -> None:
    path = tmp_path / "other.sqlite"
    other_program(path, f"CREATE TABLE {table} (number INTEGER PRIMARY KEY, written TEXT, body TEXT, hash TEXT)")
    before = path.read_bytes()
    assert_refused(path, "it is the database of another program")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content", [b"a page of text\n" * 100, b"\x00" * 4096, b"SQLite format 3\x00" + b"\xff" * 4000]
)
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    assert_refused(path, "cannot be used")
    assert path.read_bytes() == content


@pytest.mark.parametrize("place", [lambda folder: folder, lambda folder: folder / "gone" / "ledger"])
def test_a_place_where_no_ledger_can_be_is_refused(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    with pytest.raises(LedgerError, match="cannot be opened: unable to open database file"):
        Ledger.open(place(tmp_path))


def test_nothing_is_made_where_nothing_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="There is no ledger"):
        Ledger.open(tmp_path / "ledger", create=False)
    assert list(tmp_path.iterdir()) == []


def test_entries_are_what_was_asked_and_nothing_of_the_data(filled: Path) -> None:
    """Public facts only: names, numbers of steps, terms."""
    *_, last = (body for _, _, body, _ in rows_of(filled))
    assert Reserved.model_validate_json(last) == reserved(1, "north")
