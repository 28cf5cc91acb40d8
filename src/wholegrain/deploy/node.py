"""`wholegrain silo`: a Flower SuperNode whose tasks are answered by this process, from its own installation.

Flower would install the bundle that a server sends and run the code in it. Here the SuperNode is started in its process
isolation, in which it only hands tasks out; this process takes them and answers with `reply_to`. The bundle is neither
installed nor imported; the SuperNode looks up settings in its pyproject.toml, which nobody here asks for. Only who
knows the secret that both processes share can take a task.

Both processes end together. What a server sends may be refused, but it does not end them.
"""

import contextlib
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
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

from wholegrain.deploy.charter import Charter, LinkSpec
from wholegrain.deploy.client import hosted, reply_to
from wholegrain.deploy.host import Host
from wholegrain.errors import RunError, SpecError

log = logging.getLogger("wholegrain.silo")

LOOPBACK = "127.0.0.1"
PAUSE = 0.1
"""Seconds between two looks for a task."""

PARTING = 10.0
"""Seconds that the SuperNode has to end by itself."""

SUPERNODE = Path(__file__).with_name("supernode.py")
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""The SuperNode talks to its server and to nobody else."""

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def run_silo(charter: Charter) -> None:
    """Answer the server's tasks until the process is stopped, by Ctrl-C or SIGTERM."""
    if charter.link is None:
        raise SpecError("The charter says nothing of the server: it needs the section [link].")
    secret = secrets.token_bytes(32)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with hosted(charter) as host, _supernode(charter.link, secret) as supernode:
        interceptor = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE)
        tasks = _client(charter.link, interceptor)
        log.warning("silo '%s' is ready", charter.silo)
        while supernode.poll() is None:
            token = _acquire(tasks)
            if token is None:
                time.sleep(PAUSE)
            else:
                _work(charter.link, token, host)
    raise RunError(f"The SuperNode of silo '{charter.silo}' ended with exit code {supernode.returncode}.")


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
    return RuntimeHttpClient.from_server_address(
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


def _work(link: LinkSpec, token: str, host: Host) -> None:
    """Take one task, answer it, and hand the answer over. The bundle that comes with it is dropped unread.

    A task that cannot be taken or handed over is left alone: the SuperNode misses its heartbeat, tells the server, and
    goes on.
    """
    client = _client(link, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(lambda: _beat(client))
    heartbeat.start()
    try:
        message, context, _, _ = pull_task_input(client)
        push_message(client, reply_to(message, host), context)
        push_task_output(client=client, context=context, sub_status=SubStatus.COMPLETED, details="")
    except Exception:  # Flower unpacks what the server sent, and says in many ways that it cannot
        log.exception("a task could not be taken, or its answer not handed over")
    finally:
        heartbeat.stop()
        client.close()


def _beat(client: RuntimeHttpClient) -> bool:
    """Tell the SuperNode that its task is at work; Flower's own would end this process where the task has expired."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True
