"""Silos on other machines, reached through Flower's message API. The server holds no data.

A silo is asked once who it is and then by its node. One that is not connected, does not answer in time, refuses, or
sends something unreadable is a fault of the round; the round loop decides what that means. What is not signed with the
key that the roster has for a silo's name is not that silo's: neither its introduction nor any of its answers.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from wholegrain import _check
from wholegrain.engines import platform_faults, wire
from wholegrain.engines.ledger_heads import put_heads, read_head, read_heard
from wholegrain.engines.signatures import is_signed
from wholegrain.engines.silo_heads import SiloHeads
from wholegrain.errors import RefusalError
from wholegrain.federation.messages import RoundTask, ScoreTask, SiloFault, SiloScore, SiloUpdate

log = logging.getLogger("wholegrain.server")

PAUSE = 0.02
"""Seconds between two looks for answers."""

LOOK = 2.0
"""Seconds between two looks for nodes that have left."""

INTRODUCTION = 30.0
"""Seconds in which a node has to say which silo it is; one that hangs must not cost every round its whole patience."""

LEFT = "it has left in the middle of the round"
NOT_CONNECTED = "it is not connected"
NOT_SENT = "the task could not be sent to it"
SILENT = "it did not answer in time"
UNREADABLE = "its answer cannot be read"
HEADLESS = "its answer does not say where its ledger stands, or says it of the future"
FORGED = "its answer is not signed with the key that the roster has for its name"


@dataclass(frozen=True)
class _Question:
    """A message that was sent: its id, and the digest that an answer to it must be signed with."""

    id: str
    digest: bytes


@dataclass(eq=False)
class Flower:
    """The engine of a server.

    `tasks` says what each silo is asked, but for the round; `expected`, what it must say of itself. One that says
    otherwise is not asked for anything: a plan that was made for other facts promises nothing about it. `keys` are the
    roster's; without them whoever connects is believed, which is for trials within one process alone.
    """

    grid: Grid
    tasks: Mapping[str, wire.SiloTask]
    patience: float
    expected: Mapping[str, Mapping[str, int | float | str | None]] = field(default_factory=dict)
    keys: Mapping[str, ec.EllipticCurvePublicKey] | None = None
    nodes: dict[int, str] = field(default_factory=dict)
    misfits: dict[str, str] = field(default_factory=dict)
    """Silos that said otherwise, and what."""
    impostors: set[int] = field(default_factory=set)
    """Nodes that took a name for which they have no key; they are not asked again."""
    heads: SiloHeads = field(default_factory=SiloHeads)
    """What silos said of their ledgers."""
    put_back: dict[str, str] = field(default_factory=dict)
    """Silos whose ledgers have lost entries that they signed with a former key: they would not notice, and answer."""
    inputs: dict[str, str] = field(default_factory=dict)
    """By silo, the digest of the features that its charter declares."""

    def run(self, task: RoundTask) -> Iterator[SiloUpdate | SiloFault]:
        """Send the task out, and hand the answers on in the order of the cohort."""
        found: dict[str, SiloUpdate | SiloFault] = {}
        waiting = iter(task.silos)
        due = next(waiting, None)
        for silo, reply in self.ask(task.silos, lambda silo: self._content(silo, task), MessageType.TRAIN, task.round):
            found[silo] = reply if isinstance(reply, SiloFault) else _update(silo, reply)
            while due is not None and due in found:
                yield found.pop(due)
                due = next(waiting, None)
        while due is not None:
            yield found.pop(due, SiloFault(due, SILENT))
            due = next(waiting, None)

    def score(self, task: ScoreTask) -> Iterator[SiloScore | SiloFault]:
        """Send parameters out, and hand on each silo's noisy score as it comes. No raw score ever leaves a silo."""
        awaited = set(task.silos)

        def content(silo: str) -> RecordDict:
            return wire.packed_task(self.tasks[silo].model_copy(update={"round": task.round}), task.vector)

        for silo, reply in self.ask(task.silos, content, MessageType.EVALUATE, task.round):
            found = reply if isinstance(reply, SiloFault) else _update(silo, reply)
            awaited.discard(silo)
            yield found if isinstance(found, SiloFault) else SiloScore(silo, found.vector.double().numpy())
        yield from (SiloFault(silo, SILENT) for silo in sorted(awaited))

    def ask(
        self, silos: Iterable[str], content: Callable[[str], RecordDict], kind: str, round: int
    ) -> Iterator[tuple[str, Message | SiloFault]]:
        """Send a message to each silo, and hand on what each answers in its own name, as it comes."""
        silos = list(silos)
        connected = self.connected(set(silos))
        asked = [silo for silo in silos if silo in connected]
        tried = {
            silo: self._push(connected[silo], kind, self._with_heads(silo, content(silo)), str(round)) for silo in asked
        }
        sent = {silo: message for silo, message in tried.items() if message is not None}
        for silo in silos:
            if silo not in sent:
                why = {**self.put_back, **self.misfits}.get(silo, NOT_CONNECTED)
                yield silo, SiloFault(silo, NOT_SENT if silo in tried else why)
        try:
            for silo, reply in self._replies(sent, self.patience, connected):
                yield silo, SiloFault(silo, LEFT) if reply is None else self._own_answer(silo, sent[silo], reply)
        finally:
            platform_faults.again_and_again(self.heads.save)

    def wait_for(self, silos: set[str], patience: float) -> set[str]:
        """The silos that are connected, once all of these are or the patience is at its end."""
        end = time.monotonic() + patience
        while not silos <= (found := set(self.connected(silos))) | {*self.misfits, *self.put_back}:
            if time.monotonic() >= end:
                break
            time.sleep(PAUSE)
        return found

    def call_roll(self, silos: Iterable[str], patience: float) -> Iterator[str]:
        """Ask silos who they are, which costs nothing; those that answer in their own name, as they do.

        One whose ledger was put back is not among them: no answer of its own would count.
        """
        connected = self.connected(set(silos))
        asked = {silo: connected[silo] for silo in silos if silo in connected}
        tried = {silo: self._push(asked[silo], MessageType.QUERY, wire.packed_query(), "") for silo in asked}
        sent = {silo: message for silo, message in tried.items() if message is not None}
        for silo, reply in self._replies(sent, min(patience, self.patience), asked):
            if reply is None or reply.has_error() or not self._is_from(silo, sent[silo], reply):
                continue
            if not self._observe_head(silo, reply):
                yield silo

    def connected(self, wanted: set[str]) -> dict[str, int]:
        """Node by silo, for those that are connected now."""
        online = list(self.grid.get_node_ids())
        unknown = {f"node {node}": node for node in online if node not in self.nodes and node not in self.impostors}
        if unknown and not wanted <= {self.nodes[node] for node in online if node in self.nodes}:
            asked = {node: self._push(unknown[node], MessageType.QUERY, wire.packed_query(), "") for node in unknown}
            sent = {name: message for name, message in asked.items() if message is not None}
            for name, reply in self._replies(sent, min(self.patience, INTRODUCTION), unknown):
                if reply is not None:
                    self._introduce(unknown[name], sent[name], reply)
        return {self.nodes[node]: node for node in online if node in self.nodes}

    def _introduce(self, node: int, asked: _Question, reply: Message) -> None:
        try:
            facts = wire.read_answer(reply)
        except RefusalError as error:
            why = _check.quoted(reply.error.reason if reply.has_error() else error)
            log.warning("node %d does not say which silo it is: %s", node, why)
            return
        name = str(facts.get("silo", ""))
        if not self._is_from(name, asked, reply):
            self.impostors.add(node)
            log.warning("node %d calls itself '%s' without that silo's key: it is refused", node, _check.quoted(name))
            return
        misfit = _misfit(facts, self.expected.get(name, {})) or _disagreement(facts, self.tasks.get(name))
        if misfit:
            if self.misfits.get(name) != misfit:  # once, however often it is asked
                log.warning("silo '%s' is not what the plan was made for: %s", name, misfit)
            self.misfits[name] = misfit
        elif name in self.tasks:
            self.misfits.pop(name, None)
            self._compare_inputs(name, facts.get("inputs"))
            self._forget_node(name)  # a silo that comes back may be a new node; the newest one speaks for it
            self._observe_head(name, reply)
            if name not in self.put_back:
                self.nodes[node] = name

    def _forget_node(self, silo: str) -> None:
        self.nodes = {node: name for node, name in self.nodes.items() if name != silo}

    def _compare_inputs(self, silo: str, stated: object) -> None:
        """Warn of silos whose features differ: rounds would be paid for, and the model would fit none of them."""
        if not isinstance(stated, str):
            return
        self.inputs[silo] = stated
        other = next((name for name, inputs in self.inputs.items() if inputs != stated), None)
        if other is not None:
            log.warning(
                "silo '%s' declares other features than '%s', or in another order; compare data.table.features in their"
                " charters before they spend more",
                silo,
                other,
            )

    def _is_from(self, silo: str, asked: _Question, reply: Message) -> bool:
        """Whether a reply is signed with the roster's key of this name."""
        if self.keys is None:
            return True
        return silo in self.keys and is_signed(self.keys[silo], asked.digest, reply)

    def _own_answer(self, silo: str, asked: _Question, reply: Message) -> Message | SiloFault:
        """A silo's reply, where it is its own and no refusal."""
        if reply.has_error():
            return SiloFault(silo, f"it failed: {_check.quoted(reply.error.reason)}")
        if not self._is_from(silo, asked, reply):
            log.warning("silo '%s': %s", silo, FORGED)
            return SiloFault(silo, FORGED)
        wrong = self._observe_head(silo, reply)
        try:
            facts = wire.read_answer(reply)
        except RefusalError as error:
            return SiloFault(silo, f"{UNREADABLE}: {_check.quoted(error)}")
        if "refused" in facts:
            return SiloFault(silo, f"it refuses: {_check.quoted(facts['refused'])}")
        return SiloFault(silo, wrong) if wrong else reply

    def _content(self, silo: str, task: RoundTask) -> RecordDict:
        asked = self.tasks[silo].model_copy(update={"round": task.round, "steps": task.steps})
        return wire.packed_task(asked, task.vector)

    def _with_heads(self, silo: str, content: RecordDict) -> RecordDict:
        put_heads(content, self.heads.shown_to(silo, self.keys or {}))
        return content

    def _observe_head(self, silo: str, reply: Message) -> str:
        """Remember what a silo says of its ledger and of others'; why its answer is not counted, if it is not."""
        if self.keys is None:
            return ""
        self.heads.hear(silo, read_heard(reply), self.keys)
        key = self.keys.get(silo)
        head = None if key is None else read_head(reply, silo, key)
        if head is None:
            return HEADLESS
        wrong = self.heads.observe(head)
        if wrong and self.heads.highest[silo].key != head.key:
            self.put_back[silo] = wrong
            self._forget_node(silo)  # it is asked who it is, and where its ledger stands, before it is asked anything
        else:
            self.put_back.pop(silo, None)
        return wrong

    def _push(self, node: int, kind: str, content: RecordDict, group: str) -> _Question | None:
        """What was sent; None where the SuperLink would not have it."""
        message = Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=self.patience)
        digest = wire.request_digest(message)
        id = next(iter(self.grid.push_messages([message])), None)
        return _Question(id, digest) if id else None

    def _replies(
        self, sent: Mapping[str, _Question], patience: float, nodes: Mapping[str, int]
    ) -> Iterator[tuple[str, Message | None]]:
        """Replies as they come, by whom they were asked of, until all are there or the patience is at its end.

        None is the reply of a node that was seen to be gone: it would not answer when it is back, either.
        """
        waiting = {question.id: name for name, question in sent.items()}
        now = time.monotonic()
        end, next_look = now + patience, now + LOOK
        while waiting and (now := time.monotonic()) < end:
            for reply in self.grid.pull_messages(list(waiting)):
                name = waiting.pop(reply.metadata.reply_to_message_id, None)
                if name is not None:
                    yield name, reply
            if waiting and now >= next_look:
                next_look, online = now + LOOK, set(self.grid.get_node_ids())
                for message, name in list(waiting.items()):
                    if nodes[name] not in online:
                        del waiting[message]
                        yield name, None
            if waiting:
                time.sleep(PAUSE)


def _update(silo: str, reply: Message) -> SiloUpdate | SiloFault:
    try:
        return SiloUpdate(silo, wire.read_vector(reply))
    except RefusalError as error:
        return SiloFault(silo, f"{UNREADABLE}: {_check.quoted(error)}")


def _misfit(facts: Mapping[str, object], expected: Mapping[str, int | float | str | None]) -> str:
    """In what a silo is not as expected; empty where it is."""
    for name, value in expected.items():
        if name in facts and facts[name] != value:
            return f"it has {name} = {_check.quoted(facts[name])}, and the plan was made for {value}"
    return ""


def _disagreement(facts: Mapping[str, object], task: wire.SiloTask | None) -> str:
    """Which model a silo would refuse to train; empty where it says that it would not, or does not say."""
    agreed = facts.get("models")
    if task is None or not isinstance(agreed, list):
        return ""
    asked = task.model_dump(mode="json", include=set(wire.ModelTask.model_fields))
    return "" if asked in agreed else f"its charter does not agree to {task}"
