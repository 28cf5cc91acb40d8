"""Messages of a secure sum, carried by Flower to silos on machines of their own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flwr.app import Message, MessageType, RecordDict

from wholegrain import _check
from wholegrain.engines import sum_wire, wire
from wholegrain.engines.flower import UNREADABLE, Flower
from wholegrain.engines.secure_sum_engine import MaskRequest, SumReply, SumRequest
from wholegrain.errors import RefusalError
from wholegrain.federation.messages import SiloFault


@dataclass(frozen=True, eq=False)
class FlowerSums:
    """Asks silos for their parts of a secure sum, by the line to them that `flower` has.

    Messages of the type `train` are about sums of updates, those of the type `evaluate` about sums of scores.
    """

    flower: Flower
    purpose: str = MessageType.TRAIN

    def connected(self, silos: tuple[str, ...]) -> Mapping[str, object]:
        """Silos that are connected, and the node of each."""
        return {silo: node for silo, node in self.flower.connected(set(silos)).items() if silo in silos}

    def ask(self, requests: Mapping[str, SumRequest]) -> Iterator[tuple[str, SumReply | SiloFault]]:
        """Ask silos, all with one kind of request; answers as they come, and who stops listening does not wait."""
        for request in requests.values():
            kind, round = sum_wire.KINDS[type(request)], request.round
            asked = self.flower.ask(
                requests, lambda silo: self._content(silo, requests[silo]), f"{self.purpose}.{kind}", round
            )
            for silo, reply in asked:
                yield silo, reply if isinstance(reply, SiloFault) else _read(silo, kind, round, reply)
            return

    def _content(self, silo: str, request: SumRequest) -> RecordDict:
        task = self.flower.tasks[silo].model_copy(update={"round": request.round})
        vector = request.vector if isinstance(request, MaskRequest) else None
        return wire.packed_sum_task(task, sum_wire.write_request(request), vector)


def _read(silo: str, kind: str, round: int, reply: Message) -> SumReply | SiloFault:
    try:
        text = wire.read_answer(reply).get("reply")
        found = sum_wire.read_reply(kind, round, text if isinstance(text, str) else "", wire.read_masked(reply))
    except RefusalError as error:
        return SiloFault(silo, f"{UNREADABLE}: {_check.quoted(error)}")
    return found if found.silo == silo else SiloFault(silo, f"it answers for '{_check.quoted(found.silo)}'")
