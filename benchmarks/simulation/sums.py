"""Secure sums in a simulation: what must hold of them, and a server that lies in the middle of one.

The oracle sees every message that leaves a silo. Whatever a server does: a silo masks a round once, signs one list of
survivors, and gives shares once, for that list; shares are of survivors' own masks and of masks shared with silos that
are not in the sum, and of nothing else; no two lists of a round find enough helpers; and what a server opens is the sum
of parts that were paid for.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message

from simulation.oracle import require
from wholegrain.engines import sum_wire, wire
from wholegrain.engines.secure_sum_engine import ConsentRequest
from wholegrain.federation.masks import to_numbers
from wholegrain.federation.secure_sum import Consent, MaskedPart, OpenHelp, OpenRequest
from wholegrain.privacy.trust import SecureSum

Place = tuple[str, int]
"""A run and a round."""

Names = tuple[str, ...]


@dataclass(eq=False)
class SumOracle:
    """What silos were seen to send in the sums of one federation."""

    rules: SecureSum
    members: dict[tuple[str, Place], set[str]] = field(default_factory=dict)
    """With whom a silo has masked a round."""
    signed: dict[tuple[str, Place], Names] = field(default_factory=dict)
    helped: dict[tuple[str, Place], Names] = field(default_factory=dict)
    parts: dict[tuple[str, Place], Any] = field(default_factory=dict)
    """What a silo has added to a sum, before it was masked."""

    def on_part(self, silo: str, place: Place, part: Any) -> None:
        """A silo has computed its part of a sum."""
        require((silo, place) not in self.parts, f"{silo} computes its part of round {place[1]} a second time")
        self.parts[silo, place] = part

    def on_reply(self, silo: str, place: Place, question: Message, reply: Message) -> None:
        """A silo has answered a message of a sum."""
        kind = question.metadata.message_type.partition(".")[2]
        asked = sum_wire.read_request(
            kind, place[1], wire.read_sum_task(question).request,
            wire.read_vector(question) if wire.has_vector(question) else None,
        )  # fmt: skip
        text = wire.read_answer(reply)["reply"]
        said = sum_wire.read_reply(kind, place[1], text, wire.read_masked(reply))
        if isinstance(said, MaskedPart):
            self._on_mask(silo, place, {each.silo for each in asked.keys}, to_numbers(said.words, asked.bits))
        elif isinstance(said, Consent):
            self._on_list(self.signed, silo, place, asked.survivors)
        elif isinstance(said, OpenHelp):
            self._on_help(silo, place, asked.survivors, said)

    def _on_mask(self, silo: str, place: Place, members: set[str], masked: Any) -> None:
        require((silo, place) not in self.members, f"{silo} sends its part of round {place[1]} a second time")
        require(not np.array_equal(masked, self.parts[silo, place]), f"{silo} sends a part without masks")
        self.members[silo, place] = members

    def _on_list(self, lists: dict[tuple[str, Place], Names], silo: str, place: Place, survivors: Names) -> None:
        require(
            lists.get((silo, place), survivors) == survivors, f"{silo} signs or opens two lists of round {place[1]}"
        )
        require((silo, place) in self.members, f"{silo} signs a list of round {place[1]}, which it has not masked")
        enough = len(survivors) >= self.rules.answers
        require(enough and silo in survivors, f"{silo} agrees to open a sum over {', '.join(survivors)}")
        lists[silo, place] = survivors

    def _on_help(self, silo: str, place: Place, survivors: Names, said: OpenHelp) -> None:
        require((silo, place) not in self.helped, f"{silo} gives shares of round {place[1]} twice")
        self._on_list(self.signed, silo, place, survivors)
        self._on_list(self.helped, silo, place, survivors)
        lost = self.members[silo, place] - set(survivors)
        for owner, about in said.shares:
            fits = owner in survivors and (about == owner or about in lost)
            require(fits, f"{silo} gives its share of the mask between {owner} and {about} of round {place[1]}")
        helpers: dict[Names, set[str]] = defaultdict(set)
        for (helper, where), names in self.helped.items():
            if where == place:
                helpers[names].add(helper)
        opened = [names for names, some in helpers.items() if len(some) >= self.rules.threshold]
        require(len(opened) <= 1, f"two sums of round {place[1]} can be opened")

    def on_opened(self, survivors: Names, round: int, total: Any) -> None:
        """A server has opened a sum: it is that of these silos' parts, in some run."""
        runs = {run for _, (run, number) in self.parts if number == round}
        sums = [
            sum(self.parts[silo, (run, round)] for silo in survivors)
            for run in runs
            if all((silo, (run, round)) in self.members for silo in survivors)
        ]
        require(any(np.array_equal(each, total) for each in sums), f"what is opened of round {round} is not the sum")


def lies(message: Message, rules: SecureSum, roster: Names, draws: random.Random) -> Iterator[Message]:
    """Other messages that a lying server sends beside this one: other lists of survivors, and the same round again."""
    kind = message.metadata.message_type.partition(".")[2]
    asked = wire.read_sum_task(message)
    vector = wire.read_vector(message) if wire.has_vector(message) else None
    request = sum_wire.read_request(kind, asked.task.round, asked.request, vector)
    if isinstance(request, ConsentRequest | OpenRequest):
        request = _other_list(request, rules, roster, draws)
    yield _sent(message, wire.packed_sum_task(asked.task, sum_wire.write_request(request), vector))


def _other_list(
    request: ConsentRequest | OpenRequest, rules: SecureSum, roster: Names, draws: random.Random
) -> ConsentRequest | OpenRequest:
    chosen = set(draws.sample(roster, draws.randint(rules.answers, len(roster))))
    survivors = tuple(name for name in roster if name in chosen)
    if isinstance(request, ConsentRequest):
        return ConsentRequest(request.round, survivors)
    if draws.random() < 0.5:
        survivors = request.survivors  # the very same list again
    return OpenRequest(request.round, survivors, request.consents, request.shares)


def _sent(like: Message, content: Any) -> Message:
    told = like.metadata
    return Message(
        content, dst_node_id=told.dst_node_id, message_type=told.message_type, group_id=told.group_id, ttl=told.ttl
    )
