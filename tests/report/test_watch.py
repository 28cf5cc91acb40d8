"""`watch`: the page of a run that goes on, or of one that is still to come."""

import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import Command
from wholegrain.cli import report_commands
from wholegrain.report import live_page


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """What was served, each time until Ctrl-C."""
    seen: list[list[Path]] = []

    def serve(folders: list[Path], port: int) -> None:
        seen.append(folders)
        raise KeyboardInterrupt

    monkeypatch.setattr(report_commands, "_serve", serve)
    return seen


@pytest.mark.parametrize("empty", [False, True], ids=["no folder", "an empty folder"])
def test_a_run_that_is_to_come_is_served_before_it_begins(
    wholegrain: Command, proved: Path, tmp_path: Path, served: list[Any], empty: bool
) -> None:
    folder = tmp_path / "later"
    if empty:
        folder.mkdir()
    told = wholegrain("watch", proved, folder)
    assert told.code == 0
    assert told.err == f"No run has begun in '{folder}' yet: the page waits for it.\n"
    assert served == [[proved, folder]]


def test_a_folder_of_other_things_is_not_waited_for(wholegrain: Command, tmp_path: Path, served: list[Any]) -> None:
    (tmp_path / "mine").touch()
    told = wholegrain("watch", tmp_path)
    assert told.code == 2
    assert told.err == f"error: '{tmp_path}' holds no run: there is no run.json in it.\n"
    assert not served


@pytest.fixture
def live(tmp_path: Path) -> Iterator[int]:
    """The port of a page that is served."""
    with live_page.server([tmp_path], 0) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield serving.server_port
        serving.shutdown()
        thread.join()


def ask(port: int, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.putrequest("GET", "/stamp", skip_host=True)
    if host:
        connection.putheader("Host", host)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def test_only_its_own_name_is_answered(live: int) -> None:
    """A page of elsewhere whose name leads here, by DNS rebinding, sees nothing."""
    for host in (f"127.0.0.1:{live}", f"localhost:{live}"):
        assert ask(live, host) == 200
    for host in ("evil.example.org", f"evil.example.org:{live}", "127.0.0.1", f"127.0.0.1:{live + 1}", ""):
        assert ask(live, host) == 403


def test_a_browser_that_hangs_up_is_no_traceback(live: int, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", live)) as caller:
            caller.sendall(f"GET /stamp HTTP/1.1\r\nHost: 127.0.0.1:{live}\r\n\r\n".encode())
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    assert ask(live, f"127.0.0.1:{live}") == 200
    assert "Traceback" not in capfd.readouterr().err


def test_whatever_goes_wrong_is_a_sentence_and_no_traceback(
    live: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folders: list[Path]) -> str:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(live_page, "stamp", fail)
    connection = http.client.HTTPConnection("127.0.0.1", live, timeout=600)
    connection.request("GET", "/stamp", headers={"Host": f"127.0.0.1:{live}"})
    answer = connection.getresponse()
    assert (answer.status, answer.read().decode()) == (500, "The page cannot be made now: by nothing.")
    connection.close()
    assert "Traceback" not in capfd.readouterr().err
