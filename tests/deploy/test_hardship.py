"""What befalls a federation of real processes from outside: connections that say nothing, machines that restart."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from loopback import NAMES, Federation, rounds_of, running

pytestmark = [pytest.mark.slow, pytest.mark.exact_prices, pytest.mark.timeout(3600)]

IDLE = 2000


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process holds the other ends; the server has what a system gives it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * IDLE)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def start_server(federation: Federation, folder: Path):  # type: ignore[no-untyped-def]
    """With the limit that a login has by default."""
    limited = ("sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh")
    return federation.start(folder / "server.log", *limited, *federation.server_command(folder))


def test_idle_connections_end_no_run(tmp_path: Path, many_files: None) -> None:
    with running(tmp_path, noise="secure") as federation, contextlib.ExitStack() as stack:
        folder = federation.write_server("open", rounds=40, patience=30.0)
        process = start_server(federation, folder)
        federation.wait_until(lambda: rounds_of(folder / "run"), process)
        for _ in range(IDLE):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", federation.port), timeout=60))
            line.setblocking(False)
        federation.stop(federation.silos["south"])
        federation.start_silo("south")
        began = time.monotonic()
        federation.wait_until(lambda: federation.connections("south") >= 2, process)
        assert time.monotonic() - began < 60
        assert process.wait(1200) == 0, federation.logs()
        assert "Too many open files" not in federation.logs()
        assert not any("ended" in line for line in (folder / "server.log").read_text().splitlines())


def test_silos_that_are_all_restarted_cost_one_round_at_most(tmp_path: Path) -> None:
    with running(tmp_path, noise="secure") as federation:
        folder = federation.write_server("open", rounds=60, patience=60.0)
        process = federation.start_server(folder)
        federation.wait_until(lambda: len(rounds_of(folder / "run")) >= 3, process)
        for name in NAMES:
            federation.stop(federation.silos[name])
        time.sleep(10)
        for name in NAMES:
            federation.start_silo(name)
        assert process.wait(1200) == 0, federation.logs()
        done = rounds_of(folder / "run")
        assert len(done) == 60
        assert [each["failed"] for each in done].count(True) <= 1
