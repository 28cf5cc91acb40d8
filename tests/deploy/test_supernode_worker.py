"""The process beside a SuperNode: it takes tasks and answers them, and nothing that goes wrong on the way ends it."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.proto.message_pb2 import Message as Proto
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from deployment import ask, task, vector, write_charter
from wholegrain.deploy import supernode, supernode_worker
from wholegrain.deploy.charter import LinkSpec, load_charter
from wholegrain.deploy.client import open_silo
from wholegrain.deploy.silo_service import SiloService
from wholegrain.engines import wire
from wholegrain.errors import RunError, SpecError

LINK = LinkSpec(address="fl.example.org:8443", certificates="/silo/ca.crt", key="/silo/key", port=9401)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SiloService]:
    with open_silo(load_charter(write_charter(tmp_path / "north"))) as found:
        yield found


class Fake:
    """Flower's side of a task: what was handed over, and what it says to a heartbeat."""

    def __init__(self, message: Message | Exception) -> None:
        self.message = message
        self.pushed: list[Message] = []
        self.finished: list[str] = []
        self.beats = 0
        self.closed = False
        self.fails: Exception | None = None

    def pull(self, client: object) -> tuple[Message, Context, object, object]:
        if isinstance(self.message, Exception):
            raise self.message
        return self.message, Context(7, 2, {}, RecordDict(), {}), object(), object()

    def push(self, client: object, message: Message, context: Context) -> None:
        if self.fails is not None:
            raise self.fails
        self.pushed.append(message)

    def finish(self, *, sub_status: str, **_: Any) -> None:
        self.finished.append(sub_status)

    def SendTaskHeartbeat(self, request: object) -> object:  # noqa: N802 (Flower's name)
        self.beats += 1
        if self.fails is not None:
            raise self.fails
        return type("Response", (), {"success": False})()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(ask(task()))
    monkeypatch.setattr(supernode_worker, "_client", lambda *_: made)
    monkeypatch.setattr(supernode_worker, "pull_task_input", made.pull)
    monkeypatch.setattr(supernode_worker, "push_message", made.push)
    monkeypatch.setattr(supernode_worker, "push_task_output", made.finish)
    return made


def work(host: SiloService) -> None:
    """One task, from its token to its answer, as far as it gets."""
    taken: queue.SimpleQueue[supernode_worker._Task] = queue.SimpleQueue()
    supernode_worker._take(LINK, "token", taken)
    if not taken.empty():
        supernode_worker._work(taken.get(), host)


def test_a_task_is_answered_and_handed_over(fake: Fake, host: SiloService) -> None:
    work(host)
    (reply,) = fake.pushed
    assert wire.read_vector(reply).shape == vector().shape
    assert fake.finished == ["completed"]
    assert fake.closed


@pytest.mark.parametrize(
    "error", [ValueError("no such object"), RuntimeError("No messages received"), httpx.ReadTimeout("late"), KeyError()]
)
def test_a_task_that_cannot_be_unpacked_is_left_alone(fake: Fake, host: SiloService, error: Exception) -> None:
    fake.message = error
    work(host)
    assert not fake.pushed
    assert not fake.finished, "the SuperNode would wait for an answer for ever"
    assert fake.closed
    fake.message = ask(task())
    work(host)
    assert len(fake.pushed) == 1


def test_a_task_whose_content_never_comes_does_not_keep_the_silo_from_others(
    host: SiloService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SuperNodes hand them out, of a run that ended while its message was on the way."""
    stale, fresh = threading.Event(), Fake(ask(task()))
    tokens = ["stale", "fresh"]

    def pull(client: Fake) -> tuple[Message, Context, object, object]:
        if client is not fresh:
            stale.wait(600)
            raise RuntimeError("the content never came")
        return fresh.pull(client)

    class Process:
        returncode = 0

        def poll(self) -> int | None:
            return 0 if fresh.finished else None

    class Tasks(Fake):
        def __enter__(self) -> "Tasks":
            return self

        def __exit__(self, *_: object) -> None: ...

    def client(link: LinkSpec, *interceptors: object) -> Fake:
        own = [each for each in interceptors if isinstance(each, RuntimeTokenHttpInterceptor)]
        return (fresh if own[0]._token == "fresh" else Fake(ask(task()))) if own else Tasks(ask(task()))

    monkeypatch.setattr(supernode_worker, "_client", client)
    monkeypatch.setattr(supernode_worker, "_supernode", lambda *_: contextlib.nullcontext(Process()))
    monkeypatch.setattr(supernode_worker, "_acquire", lambda _: tokens.pop(0) if tokens else None)
    monkeypatch.setattr(supernode_worker, "pull_task_input", pull)
    monkeypatch.setattr(supernode_worker, "push_message", fresh.push)
    monkeypatch.setattr(supernode_worker, "push_task_output", fresh.finish)
    assert supernode_worker._answer_tasks(LINK, host) == 0
    assert len(fresh.pushed) == 1
    stale.set()


def test_an_answer_that_cannot_be_handed_over_does_not_end_the_silo(fake: Fake, host: SiloService) -> None:
    fake.fails = httpx.ConnectError("refused")
    work(host)
    assert not fake.finished


def test_a_task_that_has_expired_does_not_end_the_silo(fake: Fake, host: SiloService) -> None:
    """Flower's own heartbeat would raise SIGINT in this process."""
    work(host)
    assert fake.beats
    assert supernode_worker._beat(fake)  # type: ignore[arg-type]
    unauthorised = httpx.HTTPStatusError("401", request=httpx.Request("POST", "http://x"), response=httpx.Response(401))
    fake.fails = unauthorised
    assert not supernode_worker._beat(fake)  # type: ignore[arg-type]
    work(host)


def test_a_message_that_is_stored_after_its_task_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [PullAppMessagesResponse(), PullAppMessagesResponse(), PullAppMessagesResponse(messages_list=[Proto()])]
    monkeypatch.setattr(RuntimeHttpClient, "PullMessages", lambda *_: answers.pop(0))
    with supernode_worker._client(LINK) as client:
        assert len(client.PullMessages(PullAppMessagesRequest()).messages_list) == 1
    assert not answers


def test_a_message_that_is_never_stored_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RuntimeHttpClient, "PullMessages", lambda *_: PullAppMessagesResponse())
    monkeypatch.setattr(supernode_worker, "STORING", 0.2)
    with supernode_worker._client(LINK) as client:
        assert not client.PullMessages(PullAppMessagesRequest()).messages_list


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How long each SuperNode is to last, before it ends with exit code 9; the clock goes as fast as they do."""
    lasting: list[float] = []
    clock = [0.0]

    def last(*_: object) -> int:
        clock[0] += lasting.pop(0)
        return 9

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(supernode_worker, "_answer_tasks", last)
    monkeypatch.setattr(supernode_worker, "time", type("Clock", (), {"monotonic": lambda: clock[0], "sleep": sleep}))
    before = signal.getsignal(signal.SIGTERM)
    yield lasting
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("lasting", "left"),
    [
        pytest.param([3.0, 900.0], 1, id="it never got in"),
        pytest.param([900.0, 3.0, 3.0, 900.0, *[3.0] * 24], 1, id="a lost link is tried again, but not for ever"),
        pytest.param([900.0, 170.0, 170.0, *[3.0] * 24], 1, id="whoever stays for a while is connected"),
    ],
)
def test_a_supernode_that_was_connected_is_started_again(
    ends: list[float], lasting: list[float], left: int, tmp_path: Path
) -> None:
    ends += lasting
    link = {"address": "127.0.0.1:1", "insecure": True}
    with pytest.raises(RunError, match="The SuperNode of silo 'north' ended with exit code 9"):
        supernode_worker.run_silo(load_charter(write_charter(tmp_path, link=link)))
    assert len(ends) == left


@pytest.mark.parametrize("error", [httpx.ConnectError("no"), httpx.ReadTimeout("late")])
def test_a_supernode_that_is_not_there_has_no_task(error: Exception) -> None:
    class Gone:
        def AcquireTask(self, request: object) -> object:  # noqa: N802 (Flower's name)
            raise error

    assert supernode_worker._acquire(Gone()) is None  # type: ignore[arg-type]


def test_nobody_is_waited_for_at_a_port_where_nobody_listens() -> None:
    assert supernode_worker._acquire(supernode_worker._client(LINK.model_copy(update={"port": 9}))) is None


def test_the_supernode_only_hands_out_tasks_and_only_on_this_machine() -> None:
    command = " ".join(supernode_worker._command(LINK, Path("/tmp/secret")))
    assert "--isolation process" in command
    assert "--host 127.0.0.1 --port 9401" in command
    assert "--superexec-auth-secret-file /tmp/secret" in command
    assert "--root-certificates /silo/ca.crt --auth-supernode-private-key /silo/key" in command
    assert "--insecure" not in command
    assert "dependency" not in command


@pytest.mark.parametrize("missing", ["certificates", "key"])
def test_a_link_without_certificates_or_key_is_refused(missing: str) -> None:
    with pytest.raises(SpecError, match="needs certificates and key"):
        supernode_worker._command(LINK.model_copy(update={missing: None}), Path("/tmp/secret"))
    command = supernode_worker._command(LinkSpec(address="here:1", insecure=True), Path("/tmp/secret"))
    assert command[-1] == "--insecure"


def test_a_charter_without_a_server_is_no_reason_to_start_anything(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"it needs the section \[link\]"):
        supernode_worker.run_silo(load_charter(write_charter(tmp_path)))


def test_the_secret_is_the_owners_alone_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def command(link: LinkSpec, secret: Path) -> list[str]:
        seen.append(secret)
        return [sys.executable, "-c", "import sys; sys.stdin.read()"]

    monkeypatch.setattr(supernode_worker, "_command", command)
    with supernode_worker._supernode(LINK, b"x" * 32) as process:
        assert seen[0].stat().st_mode & 0o777 == 0o600
        assert seen[0].read_bytes() == b"x" * 32
        assert process.poll() is None
    assert process.poll() is not None
    assert not seen[0].exists()


CHILD = """
import importlib.util, signal, sys, types
module = types.ModuleType("flwr.supernode.cli.flower_supernode")
def flower_supernode():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print("up", flush=True)
    while True:
        signal.pause()
module.flower_supernode = flower_supernode
sys.modules["flwr.supernode.cli.flower_supernode"] = module
spec = importlib.util.spec_from_file_location("child", sys.argv[1])
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
child.main()
"""


@pytest.mark.parametrize("signalled", [False, True], ids=["the silo ends", "it is told to"])
def test_a_supernode_ends_with_its_silo_and_in_good_order(signalled: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, supernode.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"up\n"
        if signalled:
            os.kill(process.pid, signal.SIGTERM)
        else:
            process.stdin.close()
        assert process.wait(600) == 7
        assert process.stderr.read() == b""
