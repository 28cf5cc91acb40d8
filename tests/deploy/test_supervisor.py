"""A process that is started again after a crash, handed on when it ends by itself, and ended with its supervisor."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wholegrain.deploy import supervisor
from wholegrain.deploy.supervisor import supervise


def command(text: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", text, *map(str, arguments)]


@pytest.mark.parametrize("code", [0, 2, 130])
def test_an_exit_code_is_handed_on(code: int) -> None:
    assert supervise(command(f"raise SystemExit({code})")) == code


CRASHES = """
import os, signal, sys
path = sys.argv[1]
lives = open(path, "a"); lives.write("x"); lives.close()
if len(open(path).read()) < int(sys.argv[2]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_is_followed_by_another_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "AGAIN", 0.0)
    assert supervise(command(CRASHES, tmp_path / "lives", 3)) == 0
    assert (tmp_path / "lives").read_text() == "xxx"


def test_what_crashes_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "AGAIN", 0.0)
    assert supervise(command(CRASHES, tmp_path / "lives", 99)) == 2
    assert len((tmp_path / "lives").read_text()) == supervisor.MOST_CRASHES + 1


PARENT = """
import sys
from wholegrain.deploy.supervisor import supervise
sys.exit(supervise([sys.executable, "-c", sys.argv[1], sys.argv[2]]))
"""
CHILD = """
import os, subprocess, sys, time
from pathlib import Path
from wholegrain.deploy.supervisor import end_with_parent
end_with_parent()
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(sys.argv[1]).write_text(f"{os.getpid()} {left.pid}")
time.sleep(600)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_ends_with_its_supervisor(tmp_path: Path, number: signal.Signals) -> None:
    place = tmp_path / "pids"
    with subprocess.Popen(command(PARENT, CHILD, place)) as parent:
        pids: list[int] = []
        try:
            while len(pids) < 2:
                assert parent.poll() is None
                time.sleep(0.02)
                pids = list(map(int, place.read_text().split())) if place.exists() else []
            parent.send_signal(number)
            assert parent.wait(600) != 0
            watched = pids if number == signal.SIGTERM else pids[:1]
            while not all(map(gone, watched)):
                time.sleep(0.02)
        finally:
            for pid in [parent.pid, *pids]:
                if not gone(pid):
                    os.kill(pid, signal.SIGKILL)
