"""What an operator sees of a silo: a chained log, figures on loopback, and an alarm before the budget is gone."""

import contextlib
import http.client
import json
import logging
import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec

from command import Command
from deployment import ask, task, write_charter
from wholegrain import _loopback
from wholegrain.deploy import activity_log
from wholegrain.deploy.activity_log import ActivityLog, verify_log
from wholegrain.deploy.certificates import public_line, silo_key
from wholegrain.deploy.charter import load_charter
from wholegrain.deploy.silo_answers import answer, open_silo, watch_silo
from wholegrain.deploy.silo_monitor import SiloMonitor, serve_figures
from wholegrain.errors import LedgerError, RunError


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_grant_release_and_refusal_is_in_the_log(tmp_path: Path, wholegrain: Command) -> None:
    with open_silo(load_charter(write_charter(tmp_path))) as opened:
        host, monitor = watch_silo(opened)
        answer(ask(task()), host)
        answer(ask(task(noise_multiplier=0.1, round=1)), host)
        found = lines(tmp_path / "activity.jsonl")
        assert [line["event"] for line in found] == ["granted", "released", "refused"]
        assert found[0]["epsilon_spent"] == monitor.spent > 0
        assert "smallest_noise" in found[2]["refused"]
        assert 'wholegrain_silo_refusals_total{silo="north"} 1' in monitor.metrics()
    assert "3 lines" in wholegrain("ledger", "verify-log", tmp_path).out


@pytest.mark.parametrize("damage", ["change", "remove", "swap"])
def test_a_changed_log_is_noticed(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "activity.jsonl"
    for number in range(4):
        ActivityLog(path).add("granted", {"round": number})
    assert verify_log(path)[0] == 4
    rows = path.read_text().splitlines()
    if damage == "change":
        rows[1] = rows[1].replace('"round": 1', '"round": 7')
    elif damage == "remove":
        del rows[1]
    else:
        rows[1], rows[2] = rows[2], rows[1]
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(LedgerError, match="not whole"):
        verify_log(path)


def test_a_line_that_was_cut_short_is_dropped_and_the_log_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "activity.jsonl"
    ActivityLog(path).add("granted", {"round": 0})
    with path.open("a") as file:
        file.write('{"number": 1, "at"')
    ActivityLog(path).add("granted", {"round": 1})
    assert verify_log(path)[0] == 2


def test_lines_are_signed_with_the_silos_key_and_with_no_other(tmp_path: Path, wholegrain: Command) -> None:
    key, other, path = silo_key(), silo_key(), tmp_path / "activity.jsonl"
    ActivityLog(path, key).add("granted", {"round": 0})
    assert verify_log(path, key.public_key())[0] == 1
    for signer, code in ((key, 0), (other, 2)):
        (tmp_path / "key.pub").write_text(public_line(signer))
        assert wholegrain("ledger", "verify-log", path, "--key", tmp_path / "key.pub").code == code
    assert isinstance(other, ec.EllipticCurvePrivateKey)


def test_an_operator_is_told_once_at_80_and_once_at_95_percent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = SiloMonitor("north", 4.0, ActivityLog(tmp_path / "activity.jsonl"))
    with caplog.at_level(logging.WARNING):
        for spent in (1.0, 3.1, 3.2, 3.3, 3.8, 3.9):
            monitor.observe_spent(spent)
    assert [line["share"] for line in lines(tmp_path / "activity.jsonl")] == [0.8, 0.95]
    assert ["80 %" in caplog.messages[0], "95 %" in caplog.messages[1]] == [True, True]
    assert 'wholegrain_silo_budget_alarm{silo="north"} 0.95' in monitor.metrics()


def test_figures_are_for_this_machine_under_its_own_name(tmp_path: Path) -> None:
    monitor = SiloMonitor("north", 4.0, ActivityLog(tmp_path / "activity.jsonl"), spent=1.5)
    with serve_figures(monitor, 0) as port:
        for host, page, status in (
            (f"127.0.0.1:{port}", "/health", 200),
            (f"localhost:{port}", "/metrics", 200),
            ("evil.example", "/metrics", 403),
            (f"127.0.0.1:{port}", "/ledger.sqlite", 404),
        ):
            line = http.client.HTTPConnection("127.0.0.1", port)
            line.request("GET", page, headers={"Host": host})
            reply = line.getresponse()
            body = reply.read().decode()
            line.close()
            assert reply.status == status
            assert ("epsilon_left" in body) == (status == 200 and page == "/metrics")


def test_idle_connections_take_no_descriptors_from_the_ledger(tmp_path: Path) -> None:
    monitor = SiloMonitor("north", 4.0, ActivityLog(tmp_path / "activity.jsonl"))
    with serve_figures(monitor, 0) as port, contextlib.ExitStack() as stack:
        before = len(os.listdir("/proc/self/fd"))
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(200)]
        assert idle[0].recv(1) == b"", "the oldest were closed"
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        line.request("GET", "/health")
        assert line.getresponse().read() == b"up\n"
        line.close()
        assert len(os.listdir("/proc/self/fd")) - before - len(idle) <= 2 * _loopback.MOST_OPEN


def test_a_port_that_is_taken_is_told_in_a_sentence(tmp_path: Path) -> None:
    monitor = SiloMonitor("north", 1.0, ActivityLog(tmp_path / "log"))
    with (
        serve_figures(monitor, 0) as port,
        pytest.raises(RunError, match=f"cannot be served on 127.0.0.1:{port}"),
        serve_figures(monitor, port),
    ):
        pass


def test_a_log_is_continued_from_its_last_line_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "activity.jsonl"
    for block in (7, 300, 10**6):
        monkeypatch.setattr(activity_log, "BLOCK", block)
        for number in range(5):
            ActivityLog(path).add("granted", {"round": number, "words": "x" * 40 * number})
        with path.open("ab") as file:
            file.write(b'{"number": 9')  # a crash
    assert verify_log(path)[0] == 15
    assert [line["number"] for line in lines_before_crash(path)] == list(range(15))


def lines_before_crash(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
