"""The eight calls of Flower's fleet API that a silo makes, each answered by Flower's own handler.

Flower puts a web framework around its handlers, with three layers of middleware and a change of threads for each. For
the short calls of a round that took two thirds of the server's time, so the handlers are called directly here.
"""

import logging
from collections.abc import Callable
from typing import Any

from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.error import FlowerError
from flwr.supercore.error.catalog import API_ERROR_MAP
from flwr.superlink.servicer.fleet import fleet_handlers as flower
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

log = logging.getLogger("wholegrain.server")

Handler = Callable[[Any, LinkState], Message]

CALLS: dict[str, tuple[type[Message], Handler]] = {
    "activate-node": (ActivateNodeRequest, flower.activate_node),
    "deactivate-node": (DeactivateNodeRequest, flower.deactivate_node),
    "send-node-heartbeat": (SendNodeHeartbeatRequest, flower.send_node_heartbeat),
    "pull-messages": (PullMessagesRequest, lambda asked, state: flower.pull_messages(asked, state, state.object_store)),
    "push-messages": (PushMessagesRequest, flower.push_messages),
    "pull-object": (PullObjectRequest, flower.pull_object),
    "push-object": (PushObjectRequest, flower.push_object),
    "confirm-message-received": (
        ConfirmMessageReceivedRequest,
        lambda asked, state: flower.confirm_message_received(asked, state, state.object_store),
    ),
}

DONE, UNREADABLE, NOT_OWN, FAILED = 200, 400, 401, 500


def answer_call(call: str, key: bytes, body: bytes, state: LinkState) -> tuple[int, bytes]:
    """The status and body of the response to a call by whoever holds a key: that is the doorkeeper's to find out."""
    form, handle = CALLS[call]
    asked = form()
    try:
        asked.ParseFromString(body)
    except DecodeError:
        return UNREADABLE, b""
    if not _is_own(asked, key, state):
        return NOT_OWN, b""
    try:
        return DONE, handle(asked, state).SerializeToString()
    except FlowerError as error:
        status = API_ERROR_MAP[error.code].http_status_code
        log.warning("a call of '%s' was refused (status %d)", call, status)
        return status, b""
    except Exception:  # a silo's call must not end the server
        log.exception("a call of '%s' failed", call)
        return FAILED, b""


def _is_own(asked: Any, key: bytes, state: LinkState) -> bool:
    """Whether a call is about the node of the key that it was signed with."""
    if isinstance(asked, ActivateNodeRequest):
        return bool(asked.public_key == key)
    node = asked.node_id if isinstance(asked, DeactivateNodeRequest) else asked.node.node_id
    return bool(state.get_node_id_by_public_key(key) == node)
