"""Messages between a server and its silos: lost, doubled, late, out of order, or not at all while faults last."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from simulation.world import World

RUN, SERVER_NODE = 7, 1


@dataclass(eq=False)
class Weather:
    """How likely each fault is; `calm` ends them all."""

    drop: float = 0.0
    double: float = 0.0
    slow: float = 0.0
    refuse: float = 0.0

    def calm(self) -> None:
        """From now on messages arrive, once and soon."""
        self.drop = self.double = self.slow = self.refuse = 0.0


@dataclass(eq=False)
class Network:
    """Who is connected under which node, and what is on the way."""

    world: World
    weather: Weather
    nodes: dict[int, Callable[[Message], None]] = field(default_factory=dict)
    replies: dict[str, list[Message]] = field(default_factory=dict)
    last_node: int = 10

    def connect(self, deliver: Callable[[Message], None], node: int | None = None) -> int:
        """A node for whoever answers there: an old one, or a new one."""
        if node is None:
            self.last_node += 1
            node = self.last_node
        self.nodes[node] = deliver
        return node

    def send(self, message: Message) -> None:
        """To a silo; one that has left meanwhile never has it."""
        for _ in range(self._copies()):
            node = message.metadata.dst_node_id
            self.world.later(self._delay(), lambda node=node: self.nodes.get(node, _nobody)(message))

    def reply(self, message: Message) -> None:
        """To whichever server asked."""
        for _ in range(self._copies()):
            found = self.replies.setdefault(message.metadata.reply_to_message_id, [])
            self.world.later(self._delay(), lambda found=found: found.append(message))

    def _copies(self) -> int:
        draw = self.world.draws.random()
        if draw < self.weather.drop:
            self.world.happened["messages lost"] += 1
            return 0
        if draw < self.weather.drop + self.weather.double:
            self.world.happened["messages doubled"] += 1
            return 2
        return 1

    def _delay(self) -> float:
        if self.world.draws.random() < self.weather.slow:
            self.world.happened["messages late"] += 1
            return self.world.draws.expovariate(1 / 6.0)
        return self.world.draws.random() * 0.2


def _nobody(message: Message) -> None:
    """A node that has left."""


class SimulatedGrid(Grid):
    """What a ServerApp is given: its own view of the network."""

    def __init__(self, network: Network, asked: Callable[[Message], None]) -> None:
        self.network, self.asked = network, asked
        self.sent = 0

    def get_node_ids(self) -> Iterable[int]:
        """Those that are connected now."""
        return list(self.network.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send them; an empty id where the SuperLink would not have one."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        world = self.network.world
        if world.draws.random() < self.network.weather.refuse:
            world.happened["messages refused"] += 1
            return ""
        number = f"{world.draws.getrandbits(64):016x}"
        message.metadata.__dict__["_message_id"] = number
        self.asked(message)
        self.network.send(message)
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Every reply that has come, doubles and all."""
        return [reply for number in message_ids for reply in self.network.replies.pop(number, [])]

    def set_run(self, run: Run) -> None: ...

    run = property(lambda self: None)

    def create_message(self, *arguments: object, **more: object) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *arguments: object, **more: object) -> Iterable[Message]:
        raise NotImplementedError
