"""Silos that tell each other the heads of their ledgers: a ledger that was put back is noticed by the others.

Messages take the server's own engine and the silo's own answers; only the network between is a function.
"""

import json
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict

from deployment import ask, task, vector, write_charter
from grids import FakeGrid, within_a_server_app
from wholegrain.deploy.certificates import private_text, public_line, silo_key
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.peer_heads import PeerHeads
from wholegrain.deploy.silo_answers import answer, open_silo, watch_silo
from wholegrain.deploy.silo_monitor import SiloMonitor, serve_figures
from wholegrain.deploy.silo_service import SiloService
from wholegrain.engines.flower import Flower
from wholegrain.engines.ledger_heads import HEADS, SentHead, put_heads, read_heads, state_head
from wholegrain.engines.silo_heads import SiloHeads
from wholegrain.errors import LedgerError, RefusalError, RunError, SpecError
from wholegrain.federation.messages import RoundTask, SiloUpdate
from wholegrain.privacy.ledger import Head, Ledger

NAMES = ("north", "south")
KEYS = {name: silo_key() for name in NAMES}


class Silos:
    """Two silos on machines of their own, and the server that asks them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **link: Any) -> None:
        self.folder, self.patch, self.link = folder, monkeypatch, link
        self.contexts: dict[str, ExitStack] = {}
        self.hosts: dict[str, SiloService] = {}
        self.monitors: dict[str, SiloMonitor] = {}
        for name in NAMES:
            write_charter(
                folder / name, silo=name, limit={"epsilon": 40.0}, link={"address": "here:1", "key": "key", **link}
            )
            (folder / name / "key").write_bytes(private_text(KEYS[name]))
            self.start(name)
        nodes = {number: self._node(name) for number, name in enumerate(NAMES, start=11)}
        self.keys = {name: key.public_key() for name, key in KEYS.items()}
        self.grid = FakeGrid(nodes)
        self.start_server()

    def _node(self, name: str) -> Any:
        return lambda message: answer(message, self.hosts[name]).content

    def start_server(self) -> None:
        """A server's process; what it must not forget is in its folder."""
        heads = SiloHeads.open(self.folder / "heads.json")
        self.engine = Flower(self.grid, {name: task() for name in NAMES}, 5, keys=self.keys, heads=heads)

    def start(self, name: str) -> None:
        """Open a silo; its machine's state is in its folder."""
        self.patch.setenv("WHOLEGRAIN_STATE", str(self.folder / name / "state"))
        self.contexts[name] = ExitStack()
        opened = self.contexts[name].enter_context(open_silo(load_charter(self.folder / name / "silo.toml")))
        self.hosts[name], self.monitors[name] = watch_silo(opened)

    def stop(self) -> None:
        for context in self.contexts.values():
            context.close()

    def copy(self, name: str) -> Path:
        """Everything that a silo keeps, as a backup of its whole machine would."""
        return Path(shutil.copytree(self.folder / name, self.folder / f"copy of {name}"))

    def put_back(self, name: str) -> None:
        """Replace a silo's machine by its copy, while it is off."""
        self.contexts[name].close()
        shutil.rmtree(self.folder / name)
        shutil.copytree(self.folder / f"copy of {name}", self.folder / name)
        self.start(name)

    def play(self, round: int) -> dict[str, str]:
        """A round; what each silo gave."""
        answers = list(self.engine.run(RoundTask(round, NAMES, 2, vector())))
        return {each.silo: "update" if isinstance(each, SiloUpdate) else each.reason for each in answers}

    def log(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name / "activity.jsonl").read_text().splitlines()]


@pytest.fixture
def silos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Silos]:
    within_a_server_app(monkeypatch)
    made = Silos(tmp_path, monkeypatch)
    yield made
    made.stop()


def test_a_silo_that_was_put_back_is_noticed_by_the_other_and_by_itself(
    silos: Silos, caplog: pytest.LogCaptureFixture
) -> None:
    assert silos.play(0) == dict.fromkeys(NAMES, "update")
    silos.copy("south")
    for round in (1, 2):
        assert silos.play(round) == dict.fromkeys(NAMES, "update")
    north = silos.monitors["north"]
    assert north.health() == "up\n"
    assert 'wholegrain_silo_peer_alarms{silo="north"} 0' in north.metrics()
    before = silos.engine.heads.highest["south"].count
    silos.put_back("south")

    assert silos.play(3)["south"].startswith("it refuses: [ledger]"), "it is shown what it has signed"
    assert silos.play(4)["north"] == "update", "the other goes on"
    after = silos.engine.heads.said["south"].count
    assert after < before
    said = f"it had {before} entries, and has {after}"
    assert f"silo 'south' may have lost entries of its ledger: {said}" in caplog.text
    (line,) = [line for line in silos.log("north") if line["event"] == "peer_alarm"]
    assert (line["peer"], line["wrong"]) == ("south", said)
    assert north.peer_alarms == {"south": said}
    assert 'wholegrain_silo_peer_alarms{silo="north"} 1' in north.metrics()
    assert said in north.health()
    assert silos.play(5)["south"].startswith("it refuses: [ledger]"), "until its newest ledger is back"
    assert silos.monitors["south"].health() != "up\n"


def test_a_silo_that_is_put_back_again_and_again_is_refused_each_time(silos: Silos) -> None:
    """The first refusal states a low count, and the copy that is put back knows nothing of that refusal."""
    silos.play(0)
    silos.copy("south")
    for round in (1, 2):
        assert silos.play(round)["south"] == "update"
    for round in (3, 4, 5):
        silos.put_back("south")
        answers = silos.play(round)
        assert answers["north"] == "update"
        assert answers["south"].startswith("it refuses: [ledger]"), round


def test_a_silo_with_a_counter_elsewhere_does_not_start_from_a_copy(
    silos: Silos, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither server nor peers are needed to notice it."""
    monkeypatch.setenv("WHOLEGRAIN_COUNTER", str(tmp_path / "counter"))
    (tmp_path / "counter").touch()
    silos.contexts["south"].close()
    silos.start("south")
    silos.play(0)
    silos.copy("south")
    silos.play(1)
    with pytest.raises(LedgerError, match="which the counter"):
        silos.put_back("south")


def test_a_server_that_was_started_again_knows_what_its_silos_have_signed(silos: Silos) -> None:
    silos.play(0)
    silos.copy("south")
    silos.play(1)
    silos.put_back("south")
    silos.start_server()
    assert silos.play(2)["south"].startswith("it refuses: [ledger]")
    assert stat.S_IMODE((silos.folder / "heads.json").stat().st_mode) == 0o600


def test_a_new_key_does_not_make_a_server_forget(silos: Silos, monkeypatch: pytest.MonkeyPatch) -> None:
    """The silo cannot know what a former key of its own has signed; the server and its peers do."""
    silos.play(0)
    early = silos.hosts["south"].ledger.head.number
    silos.copy("south")
    for round in (1, 2):
        silos.play(round)
    before = silos.engine.heads.highest["south"].count
    renewed = silo_key()
    silos.put_back("south")
    silos.contexts["south"].close()
    (silos.folder / "south" / "key").write_bytes(private_text(renewed))
    silos.start("south")
    silos.keys["south"] = renewed.public_key()
    silos.start_server()
    for round in (3, 4):
        said = silos.play(round)["south"]
        assert said == f"its ledger was put back: it had {before} entries, and has {early}", "it released nothing"
    assert silos.engine.heads.highest["south"].count == before
    assert "south" in silos.monitors["north"].peer_alarms


def test_a_server_that_lost_its_memory_hears_the_alarms_of_peers(
    silos: Silos, caplog: pytest.LogCaptureFixture
) -> None:
    silos.play(0)
    silos.copy("south")
    for round in (1, 2, 3, 4):
        silos.play(round)
    peers = silos.hosts["north"].peers
    assert peers is not None
    known = peers.read()["south"].highest.count
    silos.put_back("south")
    (silos.folder / "heads.json").unlink()
    silos.start_server()
    silos.play(5)
    silos.play(6)  # now the other silo is told of the lower count, and answers with the higher one
    assert silos.engine.heads.highest["south"].count == known
    assert f"silo 'north' says that 'south' may have lost entries of its ledger: it was at entry {known}" in caplog.text
    assert silos.play(7)["south"].startswith("it refuses: [ledger]")


def test_what_a_silo_holds_against_another_is_believed_if_the_other_has_signed_it() -> None:
    heads, public = SiloHeads(), {name: key.public_key() for name, key in KEYS.items()}
    forged = stated(9, key="north").model_copy(update={"silo": "south"})
    heads.hear("north", [forged, stated(9, at=2**63 - 1), stated(9, silo="nobody", key="north")], public)
    assert not heads.highest
    heads.hear("north", [stated(9), stated(4)], public)
    assert heads.highest["south"].count == 9
    assert heads.observe(stated(8, at=2)) == "its ledger was put back: it had 9 entries, and has 8"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"south": 3}'])
def test_a_servers_memory_that_cannot_be_read_is_told_before_anything_is_asked(tmp_path: Path, text: str) -> None:
    path = tmp_path / "heads.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"What the silos said of their ledgers, '.*', cannot be read"):
        SiloHeads.open(path)


def test_a_servers_memory_that_cannot_be_written_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    heads = SiloHeads.open(tmp_path / "nowhere" / "heads.json")
    with pytest.raises(RunError, match=r"cannot be kept in '.*': No such file or directory\."):
        heads.save()


def test_rounds_without_faults_raise_no_alarm_and_the_memory_is_the_owners_alone(silos: Silos) -> None:
    for round in range(3):
        assert silos.play(round) == dict.fromkeys(NAMES, "update")
    for name in NAMES:
        assert silos.monitors[name].health() == "up\n"
        path = silos.folder / name / "ledger.sqlite.peers"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    peers = silos.hosts["north"].peers
    assert peers is not None
    assert set(peers.read()) == {"south"}


def test_a_silo_whose_newest_ledger_is_back_answers_again(silos: Silos) -> None:
    silos.play(0)
    silos.copy("south")
    silos.play(1)
    newest = shutil.copytree(silos.folder / "south", silos.folder / "newest")
    silos.put_back("south")
    assert silos.play(2)["south"].startswith("it refuses: [ledger]")
    silos.contexts["south"].close()
    for name in ("ledger.sqlite", "ledger.sqlite.heads"):
        shutil.copy(newest / name, silos.folder / "south" / name)
    shutil.copytree(newest / "state", silos.folder / "south" / "state", dirs_exist_ok=True)
    silos.start("south")
    assert silos.play(3)["south"] == "update"


def test_an_alarm_outlasts_a_restart(silos: Silos) -> None:
    silos.play(0)
    silos.copy("south")
    silos.play(1)
    silos.play(2)
    silos.put_back("south")
    silos.play(3)
    silos.play(4)
    silos.contexts["north"].close()
    silos.start("north")
    assert "south" in silos.monitors["north"].peer_alarms


def test_the_health_page_fails_while_there_is_an_alarm(silos: Silos) -> None:
    import http.client

    monitor = silos.monitors["north"]
    with serve_figures(monitor, 0) as port:
        for status in (200, 503):
            line = http.client.HTTPConnection("127.0.0.1", port)
            line.request("GET", "/health")
            assert line.getresponse().status == status
            line.close()
            monitor.note("peer_alarm", {"peer": "south", "wrong": "it had 5 entries, and has 2"})


# What a statement is, and who is believed.


def stated(count: int, mark: str = "a", at: int = 1, silo: str = "south", key: str = "south") -> SentHead:
    found = state_head(KEYS[key], silo, Head(count, mark * 64), at)
    return SentHead(**found.model_dump(), key=public_line(KEYS[key]))


@pytest.fixture
def peers(tmp_path: Path) -> PeerHeads:
    return PeerHeads(tmp_path / "ledger.sqlite.peers", "north", "here:1")


@pytest.mark.parametrize(
    ("later", "wrong"),
    [
        (stated(6, "b", at=2), ""),
        (stated(5, "a", at=2), ""),
        (stated(5, "b", at=2), "its entry 5 is another one than before"),
        (stated(4, "b", at=2), "it had 5 entries, and has 4"),
        (stated(4, "b", at=1), "it had 5 entries, and has 4"),
        (stated(9, "b", at=2**63 - 1), ""),
        (stated(4, "b", at=2**63 - 1), ""),
        (stated(4, "b", at=2).model_copy(update={"at": 3}), ""),
        (stated(6, "b", at=2).model_copy(update={"count": 4}), ""),
    ],
    ids=[
        "more",
        "the same",
        "another",
        "fewer",
        "an old date",
        "the future",
        "fewer in the future",
        "a changed time",
        "a changed count",
    ],
)
def test_a_later_statement_that_contradicts_an_earlier_one_is_an_alarm(
    peers: PeerHeads, later: SentHead, wrong: str
) -> None:
    assert peers.observe([stated(5)]) == {}
    assert peers.observe([later]) == ({"south": wrong} if wrong else {})
    assert peers.alarms == ({"south": wrong} if wrong else {})


def test_nothing_that_a_silo_signs_once_makes_a_lower_count_pass_later(
    peers: PeerHeads, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a date far ahead, nor a lower count, nor another key."""
    peers.observe([stated(62)])
    peers.observe([stated(63, at=2**63 - 1)])
    assert "dated in the future" in caplog.text
    assert peers.observe([stated(6, "b", at=3)]) == {"south": "it had 62 entries, and has 6"}
    assert peers.observe([stated(6, "b", at=4)]) == {}, "one alarm for one fault"
    assert peers.observe([stated(9, "b", at=5, key="north")]) == {"south": "it had 62 entries, and has 9"}
    assert [head.count for head in peers.contradicted] == [62]


def test_a_date_far_ahead_that_an_earlier_version_took_blinds_nobody(peers: PeerHeads) -> None:
    far = stated(5, at=2**63 - 1)
    peers.path.write_text(json.dumps({"north at here:1": {"south": {"last": far.model_dump(), "alarm": ""}}}))
    assert peers.observe([stated(4, at=2)]) == {"south": "it had 5 entries, and has 4"}


def test_a_key_in_the_charter_is_believed_and_no_other(peers: PeerHeads) -> None:
    peers.pinned = {"south": public_line(KEYS["south"])}
    peers.observe([stated(5)])
    assert peers.observe([stated(1, "b", at=2, key="north")]) == {}
    assert peers.observe([stated(1, "b", at=2)]) == {"south": "it had 5 entries, and has 1"}


def test_a_new_key_is_taken_with_a_warning_and_the_count_goes_on(
    peers: PeerHeads, caplog: pytest.LogCaptureFixture
) -> None:
    peers.observe([stated(5)])
    assert peers.observe([stated(4, "b", at=2, key="north")]) == {"south": "it had 5 entries, and has 4"}
    assert "has another key than before" in caplog.text


def test_silos_of_one_machine_share_a_file_and_lose_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in a trial on one machine, where of two writers at once one put the other's half-written file in place."""
    names = ("east", "north", "west")
    peers = {name: PeerHeads(tmp_path / "ledger.sqlite.peers", name, "here:1") for name in names}
    sent = [stated(number, at=number) for number in range(1, 21)]

    def listen(name: str) -> None:
        for head in sent:
            assert peers[name].observe([head]) == {}

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(listen, names))
    assert [peers[name].read()["south"].highest.count for name in names] == [20, 20, 20]
    assert not caplog.records
    assert set(peers["east"].observe([stated(3, at=21)])) == {"south"}
    assert set(peers["west"].observe([stated(3, at=21)])) == {"south"}  # what another was told is news to this one


def test_what_an_earlier_version_remembered_still_counts(peers: PeerHeads) -> None:
    peers.observe([stated(5)])
    tree = json.loads(peers.path.read_text())
    peers.path.write_text(json.dumps({"here:1": next(iter(tree.values()))}))
    assert set(peers.observe([stated(4, at=2)])) == {"south"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"north at here:1": 3}', '{"here:1": 3}', '{"here:1": {"south": {}}}']
)
def test_a_memory_that_cannot_be_read_begins_anew(peers: PeerHeads, text: str) -> None:
    peers.path.write_text(text)
    assert peers.observe([stated(5)]) == {}
    assert set(peers.read()) == {"south"}


def test_a_ledger_that_grew_another_way_is_refused_by_what_its_silo_has_signed(peers: PeerHeads) -> None:
    """Its count may be higher than before, so that no other silo could tell."""
    line, head = public_line(KEYS["north"]), stated(1, silo="north", key="north")
    with Ledger.in_memory() as book:
        signed = state_head(KEYS["north"], "north", book.head, 1)
        peers.require_own(book, line, [SentHead(**signed.model_dump(), key=line)])
        peers.require_own(book, line, [stated(1, silo="north", key="south")])  # somebody else's word
        for heads in ([head], []):  # it is remembered
            with pytest.raises(RefusalError, match="does not hold"):
                peers.require_own(book, line, heads)


def test_two_federations_are_remembered_apart(peers: PeerHeads) -> None:
    peers.observe([stated(5)])
    other = PeerHeads(peers.path, "north", "there:1")
    assert other.observe([stated(2, at=2)]) == {}
    assert peers.observe([stated(6, at=3)]) == {}


def with_heads(text: str) -> Message:
    asked = ask(task())
    asked.content[HEADS] = ConfigRecord({"json": text})
    return asked


@pytest.mark.parametrize("text", ["", "{", "3", "[3]", '[{"silo": "south"}]', "[" * 99_999, "[" + "1," * 2**19 + "1]"])
def test_heads_that_cannot_be_read_are_left_out_and_the_task_is_answered(silos: Silos, text: str) -> None:
    assert read_heads(with_heads(text)) == []
    reply = answer(with_heads(text), silos.hosts["north"])
    assert reply.content.array_records


def test_a_task_without_heads_is_as_good(silos: Silos) -> None:
    content = RecordDict()
    put_heads(content, [])
    assert not content
    assert answer(ask(task()), silos.hosts["north"]).content.array_records


def test_a_charters_key_that_is_none_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"'south' in the charter's link\.peers"):
        Silos(tmp_path, monkeypatch, peers={"south": "no key"})
