"""Messages of a secure sum, carried by torch.distributed to silos in other processes.

Rank 0 has the server's part and its own silos. Every other rank answers for its silos: it waits for a request, which
comes as text and, where parameters belong to it, as one flat buffer. Nothing is pickled.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from wholegrain.engines import sum_wire
from wholegrain.engines.distributed import RankAssignment, explain_lost_connection
from wholegrain.engines.secure_sum_engine import MaskRequest, SumReply, SumRequest
from wholegrain.engines.simulated_sum import SumSilos
from wholegrain.federation.messages import SiloFault

STOP, ASK = 0, 1
REPLY, FAULT = 0, 1
KINDS = tuple(sum_wire.KINDS.values())


@dataclass(frozen=True, eq=False)
class DistributedSums:
    """Asks silos in all processes, from rank 0."""

    local: SumSilos
    spread: RankAssignment

    def connected(self, silos: tuple[str, ...]) -> Mapping[str, object]:
        """All of them: a process that is lost ends the run."""
        return dict.fromkeys(silos)

    def ask(self, requests: Mapping[str, SumRequest]) -> Iterator[tuple[str, SumReply | SiloFault]]:
        """Send all requests out, answer for the silos that are here, and take what the others say.

        All answers are taken before the first is handed on: what nobody waits for would be read as the next answer.
        """
        others = [silo for silo in requests if self.spread.owner(silo)]
        with explain_lost_connection(None):
            for silo in others:
                _send_request(self.spread, silo, requests[silo])
        answers = list(self.local.ask({silo: each for silo, each in requests.items() if silo not in others}))
        with explain_lost_connection(None):
            answers += [(silo, _receive_reply(self.spread, silo, requests[silo])) for silo in others]
        yield from answers

    def stop(self) -> None:
        """Let the other ranks with silos go."""
        for rank in range(1, self.spread.leaders):
            dist.send(torch.tensor([STOP, 0, 0, 0, 0]), dst=rank)


def serve_sums(local: SumSilos, spread: RankAssignment, like: Tensor) -> None:
    """Answer for this process' silos until rank 0 says stop; `like` has the shape of the parameters."""
    sent: list[dist.Work] = []
    with explain_lost_connection(None):
        while (asked := _receive_request(spread, like)) is not None:
            silo, request = asked
            ((_, reply),) = local.ask({silo: request})
            for work in sent:
                work.wait()
            sent = _send_reply(reply, request)
        for work in sent:
            work.wait()


def _send_request(spread: RankAssignment, silo: str, request: SumRequest) -> None:
    owner, text = spread.owner(silo), sum_wire.as_buffer(sum_wire.write_request(request).encode())
    kind = KINDS.index(sum_wire.KINDS[type(request)])
    dist.send(torch.tensor([ASK, spread.silos.index(silo), kind, request.round, len(text)]), dst=owner)
    dist.send(text, dst=owner)
    if isinstance(request, MaskRequest):
        dist.send(request.vector, dst=owner)


def _receive_request(spread: RankAssignment, like: Tensor) -> tuple[str, SumRequest] | None:
    header = torch.zeros(5, dtype=torch.int64)
    dist.recv(header, src=0)
    command, silo, kind, round, length = header.tolist()
    if command == STOP:
        return None
    text, vector = torch.empty(length, dtype=torch.uint8), None
    dist.recv(text, src=0)
    if KINDS[kind] == sum_wire.KINDS[MaskRequest]:
        vector = torch.empty_like(like)
        dist.recv(vector, src=0)
    return spread.silos[silo], sum_wire.read_request(KINDS[kind], round, text.numpy().tobytes().decode(), vector)


def _send_reply(reply: SumReply | SiloFault, request: SumRequest) -> list[dist.Work]:
    status, content = FAULT, b""
    if isinstance(reply, SiloFault):
        text = reply.reason
    else:
        status = REPLY
        text, content = sum_wire.write_reply(reply, request.bits if isinstance(request, MaskRequest) else 64)
    parts = [sum_wire.as_buffer(text.encode()), sum_wire.as_buffer(content)]
    header = torch.tensor([status, *map(len, parts)])
    works = [dist.isend(part, dst=0) for part in (header, *parts) if len(part)]
    return [work for work in works if work is not None]


def _receive_reply(spread: RankAssignment, silo: str, request: SumRequest) -> SumReply | SiloFault:
    owner, header = spread.owner(silo), torch.zeros(3, dtype=torch.int64)
    dist.recv(header, src=owner)
    status, *lengths = header.tolist()
    parts = [torch.empty(length, dtype=torch.uint8) for length in lengths]
    for part in parts:
        if len(part):
            dist.recv(part, src=owner)
    text, content = (part.numpy().tobytes() for part in parts)
    if status == FAULT:
        return SiloFault(silo, text.decode(errors="replace"))
    return sum_wire.read_reply(sum_wire.KINDS[type(request)], request.round, text.decode(), content)
