"""Flower's grid without Flower's processes: nodes are functions, and a server runs where it is called."""

from collections.abc import Callable, Iterable

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from wholegrain.deploy import round_gate
from wholegrain.engines import flower, platform_faults, roll_call

Node = Callable[[Message], RecordDict | Error | None]
"""What a node answers; None for silence."""


class Clock:
    """Time that passes only while somebody sleeps, however busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def within_a_server_app(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """As Flower would have it when it calls a ServerApp; the engine's pauses take no time but the clock's."""
    clock = Clock()
    for module in (flower, roll_call, round_gate, platform_faults):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(flower, "PAUSE", 0.01)
    for name, value in (("_run_id", 7), ("_node_id", 1), ("_task_id", 3)):
        monkeypatch.setattr(TaskIdentity, name, value)
    return clock


class FakeGrid(Grid):
    """Nodes by number. Replies come back in the order in which `slow` puts them: a node's number of empty looks."""

    def __init__(self, nodes: dict[int, Node], slow: dict[int, int] | None = None) -> None:
        self.nodes, self.slow = nodes, slow or {}
        self.sent: list[Message] = []
        self.refuses: Callable[[Message], list[str]] | None = None
        self._replies: dict[str, tuple[int, Message]] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.sent.append(message)
            if self.refuses is not None and message.metadata.message_type == "train":
                return self.refuses(message)
            ids.append(self._deliver(message))
        return ids

    def _deliver(self, message: Message) -> str:
        number, node = f"message-{len(self.sent)}", message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = number
        answer = self.nodes[node](message)
        if answer is not None:
            self._replies[number] = (self.slow.get(node, 0), Message(answer, reply_to=message))
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for number in message_ids:
            left, reply = self._replies.get(number, (None, None))
            if reply is not None and left is not None:
                self._replies[number] = (left - 1, reply)
                if left <= 0:
                    found.append(self._replies.pop(number)[1])
        return found

    def asked(self, kind: str) -> list[int]:
        return [message.metadata.dst_node_id for message in self.sent if message.metadata.message_type == kind]

    def set_run(self, run: Run) -> None: ...

    run = property(lambda self: None)

    def create_message(self, *arguments: object, **more: object) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *arguments: object, **more: object) -> Iterable[Message]:
        raise NotImplementedError
