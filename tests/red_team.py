"""A server that lies: one method for each attack, and the way by which its messages really reach a silo.

The attacker knows everybody's rows, chooses every byte of a message, and asks as often as it likes. What it does not
have is a silo's private key and a silo's noise.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesResponse
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from torch import Tensor

from deployment import PARAMETERS, message, task
from wholegrain.clipping.parameters import Layout
from wholegrain.deploy.certificates import silo_key
from wholegrain.deploy.fleet_link import FleetLine, longest
from wholegrain.deploy.silo_answers import answer
from wholegrain.deploy.silo_service import SiloService
from wholegrain.engines import wire
from wholegrain.engines.signatures import sign_answer
from wholegrain.engines.wire import SiloTask
from wholegrain.policies.policy_catalog import PolicySettings
from wholegrain.privacy.trust import SecureSum

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import clip_fuzz

Line = Callable[[Sequence[Message]], list[Message]]
"""Hands messages to a silo, all at once, and gives back its answers."""


class Post:
    """The fleet API as a silo's line calls it, with a server behind it that has sent these messages."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.waiting = list(messages)
        self.parts: dict[str, bytes] = {}
        self.replies: list[Message] = []

    def PullMessages(self, request: Any) -> PullMessagesResponse:  # noqa: N802
        """The next message, without its content."""
        sent = self.waiting.pop(0)
        with no_object_id_recompute():
            sent.metadata.__dict__["_message_id"] = sent.object_id
            parts, tree = get_all_nested_objects(sent), get_object_tree(sent)
            self.parts |= {id: part.deflate() for id, part in parts.items()}
            envelope = message_to_proto(remove_content_from_message(sent))
        return PullMessagesResponse(messages_list=[envelope], message_object_trees=[tree])

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        """A part of a message."""
        return PullObjectResponse(
            object_found=True, object_available=True, object_content=self.parts[request.object_id]
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        """Nothing is thrown away."""

    def PushMessages(self, request: Any) -> PushMessagesResponse:  # noqa: N802
        """Ask for every part of an answer."""
        self.tree = request.message_object_trees[0]
        self.parts = {}
        return PushMessagesResponse(objects_to_push=_ids(self.tree))

    def PushObject(self, request: Any) -> None:  # noqa: N802
        """Take a part of an answer; the last one makes it whole."""
        self.parts[request.object_id] = request.object_content
        if len(self.parts) == len(set(_ids(self.tree))):
            found = inflate_object_from_contents(self.tree.object_id, dict(self.parts))
            assert isinstance(found, Message)
            self.replies.append(found)


def _ids(tree: Any) -> list[str]:
    return [tree.object_id, *(id for child in tree.children for id in _ids(child))]


def line_to(host: SiloService) -> Line:
    """The message path of `wholegrain silo`, without TLS: packed, pulled part by part, answered, pushed back."""

    def send(messages: Sequence[Message]) -> list[Message]:
        post = Post(messages)
        line = FleetLine(post, Node(node_id=2), longest(host))  # type: ignore[arg-type]
        for _ in messages:
            found = line.next_message()
            assert found is not None
            line.send(answer(found, host))
        return post.replies

    return send


@dataclass(frozen=True)
class Loot:
    """What a server got for one message."""

    asked: Message
    reply: Message

    @property
    def rule(self) -> str:
        """The rule by which it was refused; empty where it was not."""
        told = wire.read_answer(self.reply).get("refused", "")
        return str(told).partition("]")[0].lstrip("[")

    @property
    def vector(self) -> Tensor | None:
        """The parameters that left the silo."""
        return wire.read_vector(self.reply) if self.reply.content.array_records else None


class MaliciousServer:
    """Attacks on one silo, whose charter agrees to `model` with `size` parameters."""

    def __init__(self, line: Line, model: str = "logistic", size: int = PARAMETERS, run: str = "run-1") -> None:
        self.line, self.model, self.size, self.run = line, model, size, run

    # What is refused.

    def lowers_noise(self) -> list[Loot]:
        """Noise below the charter's least, down to next to none."""
        return [self.ask(noise_multiplier=noise) for noise in (0.999, 1e-300)]

    def raises_clip(self) -> list[Loot]:
        """A clip norm above the charter's largest."""
        return [self.ask(**_settings(clip_norm=clip)) for clip in (1.001, 1e60)]

    def underflows_clip(self) -> list[Loot]:
        """A clip norm that float32 cannot hold, or none."""
        return [self.ask(**_settings(clip_norm=clip)) for clip in (1e-40, 0.0, -1.0)]

    def asks_huge_rates(self) -> list[Loot]:
        """A learning rate that carries noise beyond all bounds, and a sampling rate above 1."""
        changed = [{"learning_rate": 1.1e6}, {"learning_rate": 1e300}, {"settings": {"rate": 2.0}}]
        return [self.sends_text(each) for each in changed]

    def asks_many_steps(self) -> list[Loot]:
        """More steps in a round than the charter allows."""
        return [self.ask(steps=steps) for steps in (10**3, 10**6)]

    def swaps_policy(self) -> list[Loot]:
        """A policy that protects less, one without noise, and one that does not exist."""
        return [self.ask(policy=name) for name in ("local_item_dp", "fedavg", "nothing")]

    def swaps_model(self) -> list[Loot]:
        """Other models and options than the charter names, one of them a function of the server's choosing."""
        swaps = ({"model": "mlp"}, {"model": "os:system"}, {"options": {"hidden": [9]}}, {"loss": "multi_margin"})
        return [self.ask(**swap) for swap in swaps]

    def sends_wrong_sizes(self) -> list[Loot]:
        """Too few parameters, too many, and none."""
        return [self.ask(start=torch.zeros(size)) for size in (self.size - 1, self.size + 1, 0)]

    def sends_no_numbers(self) -> list[Loot]:
        """Parameters that are not all finite."""
        return [self.ask(start=torch.full((self.size,), value)) for value in (float("nan"), float("inf"))]

    def counts_on_others_noise(self) -> list[Loot]:
        """Settings that price a silo's own release as if a hundred silos had added their noise to it."""
        return [self.ask(**_settings(trust=SecureSum.over(100)))]

    def asks_scores(self) -> list[Loot]:
        """Scores, which are not private, where the charter allows none."""
        return [self.ask(kind="evaluate")]

    def sends_oversized(self, floats: int = 2**20) -> list[Loot]:
        """A message that is longer than any that the charter's models need."""
        return [self.ask(start=torch.zeros(floats))]

    def sends_no_nonce(self) -> list[Loot]:
        """A task that nobody can tell from a copy of it."""
        content = wire.packed_task(self.task(), torch.zeros(self.size))
        del content.config_records[wire.TASK][wire.NONCE]
        return [self.send(content)]

    # What is answered, and paid for.

    def chooses_parameters(self, start: Tensor, clip: float, rate: float, round: int) -> Loot:
        """One step from parameters, a clip norm and a learning rate of the server's choosing."""
        settings = PolicySettings(rate=1.0, clip_norm=clip)
        return self.ask(start=start, steps=1, settings=settings, noise_multiplier=4.0, learning_rate=rate, round=round)

    def replays(self, copies: int) -> list[Loot]:
        """One message, sent again and again."""
        content = wire.packed_task(self.task(), torch.zeros(self.size))
        return [self.send(content) for _ in range(copies)]

    def floods(self, copies: int) -> list[Loot]:
        """Copies of one message, all sent before the first is answered."""
        content = wire.packed_task(self.task(), torch.zeros(self.size))
        messages = [message(content, group_id=str(copy)) for copy in range(copies)]
        return [Loot(asked, reply) for asked, reply in zip(messages, self.line(messages), strict=True)]

    def asks_again(self, times: int) -> list[Loot]:
        """The same round of the same run, asked anew each time, to average the noise away."""
        return [self.ask() for _ in range(times)]

    def drains(self, most: int = 1000) -> list[Loot]:
        """Rounds for as long as the silo answers."""
        taken: list[Loot] = []
        for round in range(most):
            taken.append(self.ask(round=round))
            if taken[-1].rule:
                break
        return taken

    # What it tells others.

    def forges(self, loot: Loot) -> Message:
        """Another answer in the silo's name, signed with a key of the server's own."""
        content = wire.packed_answer(wire.read_answer(loot.reply), torch.ones(self.size))
        sign_answer(silo_key(), loot.asked, content)
        return Message(content, reply_to=loot.asked)

    def alters(self, loot: Loot) -> Message:
        """The silo's answer with its signature, and other parameters."""
        content = RecordDict({wire.ANSWER: loot.reply.content.config_records[wire.ANSWER]})
        content[wire.PARAMETERS] = wire.packed_vector(torch.ones(self.size))
        return Message(content, reply_to=loot.asked)

    # How it speaks.

    def task(self, **changes: Any) -> SiloTask:
        """What a server with good manners would ask for, but for these changes."""
        return task(**{"run": self.run, "model": self.model, **changes})

    def ask(self, start: Tensor | None = None, kind: str = "train", **changes: Any) -> Loot:
        """One task in a message of its own."""
        return self.send(
            wire.packed_task(self.task(**changes), torch.zeros(self.size) if start is None else start), kind
        )

    def sends_text(self, changes: dict[str, Any]) -> Loot:
        """A task whose form no honest program would make."""
        tree = self.task().model_dump(mode="json")
        for name, change in changes.items():
            tree[name] = {**tree[name], **change} if isinstance(change, dict) else change
        content = wire.packed_task(self.task(), torch.zeros(self.size))
        content.config_records[wire.TASK]["json"] = json.dumps(tree)
        return self.send(content)

    def send(self, content: RecordDict, kind: str = "train") -> Loot:
        """One message and the answer to it."""
        asked = message(content, kind)
        (reply,) = self.line([asked])
        return Loot(asked, reply)


def _settings(**changes: Any) -> dict[str, Any]:
    return {"settings": PolicySettings(**{"rate": 0.5, **changes})}


def chosen_parameters(host: SiloService, kind: str) -> Tensor:
    """What a server may send: any finite numbers."""
    layout = Layout.of(host.agreed[0].learner.model)
    start = torch.zeros(layout.size)
    if kind.startswith("underflow"):  # huge activations, and a softmax so sure that squares of its gradients underflow
        views = list(layout.views(start).values())
        views[1].fill_(1e18)
        views[-1][int(kind[-1])] = 52.0
        return start
    draws = np.random.default_rng(int(kind))
    start.normal_(generator=torch.Generator().manual_seed(int(kind)))
    return clip_fuzz.extreme_parameters(layout, start, draws)
