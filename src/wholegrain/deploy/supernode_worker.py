"""`wholegrain silo`: a Flower SuperNode whose tasks are answered by this process, from its own installation.

Flower would install the bundle that a server sends and run the code in it. Here the SuperNode is started in its process
isolation, in which it only hands tasks out; this process takes them and answers with `answer`. The bundle is neither
installed nor imported; the SuperNode looks up settings in its pyproject.toml, which nobody here asks for. Only who
knows the secret that both processes share can take a task.

The SuperNode ends with this process. One that loses its server may end, too, and is started again. What a server sends
may be refused, but it ends neither.
"""

import contextlib
import logging
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Context, Message
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from wholegrain.deploy.charter import Charter, LinkSpec, require_files
from wholegrain.deploy.client import answer, open_silo
from wholegrain.deploy.silo_service import SiloService
from wholegrain.errors import RunError, SpecError

log = logging.getLogger("wholegrain.silo")

LOOPBACK = "127.0.0.1"
PAUSE = 0.1
"""Seconds between two looks for a task."""

PARTING = 10.0
"""Seconds that the SuperNode has to end by itself."""

SETTLED = 30.0
"""Seconds after which a SuperNode is taken to be connected; one that is turned away ends sooner."""

AGAIN = 5.0
"""Seconds before a SuperNode is started again."""

GRACE = 180.0
"""Seconds in which a lost link has to be up again: a server may take a minute to see that a silo was gone."""

STORING = 30.0
"""Seconds that the SuperNode has to store the message of a task that it has handed out."""

SUPERNODE = Path(__file__).with_name("supernode.py")
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""The SuperNode talks to its server and to nobody else."""

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


class _Runtime(RuntimeHttpClient):
    """The SuperNode's side for this process.

    It creates a task before it stores the task's message. Who is quick finds none, and who then gives up leaves the
    SuperNode waiting for an answer for ever.
    """

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802 (Flower's name)
        """The task's message, once it is there."""
        end = time.monotonic() + STORING
        while not (found := super().PullMessages(request)).messages_list and time.monotonic() < end:
            time.sleep(PAUSE)
        return found


def run_silo(charter: Charter) -> None:
    """Answer the server's tasks until the process is stopped, by Ctrl-C or SIGTERM."""
    if charter.link is None:
        raise SpecError("The charter says nothing of the server: it needs the section [link].")
    require_files(charter.link)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with open_silo(charter) as host:
        log.warning("silo '%s' is ready", charter.silo)
        connected: float | None = None
        while True:
            began = time.monotonic()
            code = _answer_tasks(charter.link, host)
            ended = time.monotonic()
            connected = ended if ended - began >= SETTLED else connected
            said = f"The SuperNode of silo '{charter.silo}' ended with exit code {code}"
            if connected is None or ended - connected > GRACE:
                raise RunError(f"{said}; its log says why (a server turns away whose key is not registered with it).")
            log.warning("%s; it is started again", said)
            time.sleep(AGAIN)


def _answer_tasks(link: LinkSpec, host: SiloService) -> int:
    """Answer the tasks of one SuperNode until it ends; its exit code."""
    secret = secrets.token_bytes(32)
    interceptor = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE)
    with _supernode(link, secret) as supernode, _client(link, interceptor) as tasks:
        taken: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        while supernode.poll() is None:
            token = _acquire(tasks)
            if token is not None:
                threading.Thread(target=_take, args=(link, token, taken), daemon=True).start()
            with contextlib.suppress(queue.Empty):
                _work(taken.get(timeout=PAUSE), host)
    return supernode.returncode


@contextlib.contextmanager
def _supernode(link: LinkSpec, secret: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """Flower's SuperNode beside this process; it ends with it."""
    with tempfile.TemporaryDirectory(prefix="wholegrain-") as folder:
        path = Path(folder, "secret")
        path.touch(mode=0o600)
        path.write_bytes(secret)
        environment = {**os.environ, **QUIET}
        with subprocess.Popen(_command(link, path), env=environment, stdin=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PARTING)
                process.kill()


def _command(link: LinkSpec, secret: Path) -> list[str]:
    command = [sys.executable, "-P", str(SUPERNODE), "--superlink", link.address, "--isolation", "process"]
    command += ["--superexec-auth-secret-file", str(secret), "--host", LOOPBACK, "--port", str(link.port)]
    if link.insecure:
        return [*command, "--insecure"]
    if link.certificates is None or link.key is None:
        raise SpecError("The charter's [link] needs certificates and key (or insecure = true, for a trial).")
    return [*command, "--root-certificates", link.certificates, "--auth-supernode-private-key", link.key]


def _client(link: LinkSpec, *interceptors: ProtobufClientInterceptor) -> RuntimeHttpClient:
    return _Runtime.from_server_address(
        server_address=f"{LOOPBACK}:{link.port}",
        insecure=True,  # loopback, within this machine; the link to the server is another matter
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="wholegrain"), *interceptors],
        retry_invoker=None,  # Flower's would try for ever where the SuperNode is gone, and end this process at a 401
    )


def _acquire(tasks: RuntimeHttpClient) -> str | None:
    """The token of a task that waits, if one does."""
    try:
        found = tasks.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
    except httpx.HTTPError:  # the SuperNode is not up yet, or ending
        return None
    return found.token or None


@dataclass(frozen=True, eq=False)
class _Task:
    """A task that was taken, with its message, and the line to the SuperNode that waits for its answer."""

    client: RuntimeHttpClient
    heartbeat: HeartbeatSender
    message: Message
    context: Context

    def leave(self) -> None:
        """The SuperNode is not told of this task any more."""
        self.heartbeat.stop()
        self.client.close()


def _take(link: LinkSpec, token: str, taken: "queue.SimpleQueue[_Task]") -> None:
    """Take one task. The bundle that comes with it is dropped unread.

    In a thread of its own: of a run that ended while its message was on the way, a SuperNode hands out the task and
    never has the message's content, and whoever waits for that would answer nothing else. A task that cannot be taken
    is left alone: the SuperNode misses its heartbeat, tells the server, and goes on.
    """
    client = _client(link, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(lambda: _beat(client))
    heartbeat.start()
    try:
        message, context, _, _ = pull_task_input(client)
    except Exception:  # Flower unpacks what the server sent, and says in many ways that it cannot
        log.exception("a task could not be taken")
        heartbeat.stop()
        client.close()
        return
    taken.put(_Task(client, heartbeat, message, context))


def _work(task: _Task, host: SiloService) -> None:
    """Answer a task, and hand the answer over, if that can be done."""
    try:
        push_message(task.client, answer(task.message, host), task.context)
        push_task_output(client=task.client, context=task.context, sub_status=SubStatus.COMPLETED, details="")
    except Exception:  # the SuperNode is gone, or has given the task up
        log.exception("an answer could not be handed over")
    finally:
        task.leave()


def _beat(client: RuntimeHttpClient) -> bool:
    """Tell the SuperNode that its task is at work; Flower's own would end this process where the task has expired."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True
