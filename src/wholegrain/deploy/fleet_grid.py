"""A server's grid without Flower's processes between: messages go straight into the state behind the open port.

Flower's own server program would be a bundle of code that a SuperLink starts in a process of its own, and that talks
to the SuperLink over HTTP. Here the round loop and the fleet API share one process and one state, held in memory: what
must outlast it is in the run's folder and the ledger.
"""

import logging
from collections.abc import Iterable

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.serverapp import Grid
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from wholegrain import _check

log = logging.getLogger("wholegrain.server")


class FleetGrid(Grid):
    """Sends messages to nodes and finds their replies in a SuperLink's state."""

    def __init__(self, state: InMemoryLinkState) -> None:
        self.state = state
        self.run_id = state.create_run(
            fab_id=None,
            fab_version=None,
            fab_hash=None,
            override_config={},
            federation_id=NOOP_FEDERATION_ID,
            federation_config=None,
            flwr_aid=NOOP_FLWR_AID,
            primary_task_type=TaskType.SERVER_APP,
        )
        task = self.run.primary_task_id
        assert task is not None
        self.task_id = task
        state.claim_task(task)
        state.activate_task(task)
        # Flower takes the sender of a message from here.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run_id, SUPERLINK_NODE_ID, task

    def beat(self) -> None:
        """Say that the run goes on; Flower ends one that says nothing for a minute."""
        self.state.acknowledge_task_heartbeat(self.task_id)

    @property
    def run(self) -> Run:
        """Flower's run, under which messages travel; it has no bundle of code."""
        return self.state.get_run_info(run_ids=[self.run_id])[0]

    def set_run(self, run: Run) -> None:
        """There is one run for as long as the grid lives."""
        raise NotImplementedError

    def create_message(self, *arguments: object, **more: object) -> Message:
        """Flower's older way to make a message, which nobody here uses."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected now."""
        return self.state.get_nodes(self.run_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Put messages where their nodes look for them; the id of each, empty where it was not taken."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            parts, tree = get_all_nested_objects(message), get_object_tree(message)
            session = self.state.start_session(self.run_id)
            envelope = remove_content_from_message(message)
            stored, missing = self.state.store_message_and_object_tree(envelope, tree, session)
            for id in missing:
                self.state.store_object(self.run_id, session, id, parts[id].deflate())
        return message.metadata.message_id if stored else ""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages that have arrived whole."""
        # A reply that began to arrive between the look and the taking would be taken, and deleted, without its parts.
        with self.state.lock:
            ready = {id for id in message_ids if self._is_whole(id)}
            replies = self.state.get_message_res(message_ids=ready, run_id=self.run_id) if ready else []
            self.state.delete_messages({reply.metadata.reply_to_message_id for reply in replies})
        return [message for message in map(self._unpack, replies) if message is not None]

    def _is_whole(self, message_id: str) -> bool:
        """Whether a reply is there with all of its parts, or never will be."""
        reply = self.state.message_ins_id_to_message_res_id.get(message_id)
        if reply is None:
            return True  # whatever Flower says of it: no reply yet, or an error
        return all(self._contents(reply).values())

    def _unpack(self, reply: Message) -> Message | None:
        """A reply with its content; None where it cannot be unpacked, as if it had never come."""
        if reply.has_error():
            return reply
        id = reply.metadata.message_id
        try:
            found = inflate_object_from_contents(id, self._contents(id))
        except Exception as error:  # Flower unpacks what a node sent, and says in many ways that it cannot
            log.warning("a reply could not be read: %s", _check.quoted(repr(error)))
            return None
        self.state.object_store.delete(id)
        if not isinstance(found, Message):
            return None
        found.metadata.__dict__["_message_id"] = id
        return found

    def _contents(self, message_id: str) -> dict[str, bytes]:
        """The parts of a reply, empty where one has not come yet, or was taken away."""
        try:
            tree = self.state.object_store.get_object_tree(message_id)
        except NoObjectInStoreError:
            return {message_id: b""}
        ids = [part.object_id for part in iterate_object_tree(tree)]
        return {id: self.state.get_object(self.run_id, id) or b"" for id in ids}

    def send_and_receive(self, *arguments: object, **more: object) -> Iterable[Message]:
        """Flower's way to wait for all replies at once, which nobody here uses."""
        raise NotImplementedError
