"""Several processes for one silo: parts of its clipped sums are computed by its helpers, by torch.distributed.

The rank that has a silo leads: it draws batches, hands parts of them out, adds up what comes back, and adds the noise.
A helper holds no data. It is sent the parameters and the items of its part as flat buffers, never as a pickle, and
sends back a sum without noise. Both are private: all ranks of a silo belong to whoever holds its data.
"""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from wholegrain import _check
from wholegrain.clipping.clip_units import Buckets
from wholegrain.clipping.clipping import Clip, ClippedTotal, ClipPer, Pool
from wholegrain.clipping.parted_sum import ComputePart, SumPart, compute_part
from wholegrain.clipping.reference import ClippedSum
from wholegrain.clipping.subject_updates import LocalUpdate
from wholegrain.engines.distributed import explain_lost_connection

STOP, COMPUTE = 0, 1
TOTAL, FAULT = 0, 1

SPELL = timedelta(days=365)
"""How long a helper waits for work: its silo may not train for many rounds. A dead leader is noticed at once."""

Sent = list[tuple[dist.Work | None, Tensor]]
"""What is on its way, with the memory that must stay until it has arrived."""


class PartFault(Exception):  # noqa: N818 (its name goes on record as the reason of a silo's fault)
    """A helper could not compute its part."""


@dataclass(frozen=True)
class HelperRanks:
    """Computes parts here and at the helpers of this process: part k at member k, k + n, … of the n that there are."""

    ranks: tuple[int, ...]

    def __call__(self, parts: Sequence[SumPart | None], compute: ComputePart) -> list[ClippedTotal]:
        """The sums of all parts, in their order."""
        asked = {place: part for place, part in enumerate(parts) if part is not None}
        away = {place: rank for place in asked if (rank := self._rank_of(place)) is not None}
        with explain_lost_connection(None):
            sent = [each for place, rank in away.items() for each in _send_part(rank, asked[place])]
        found: dict[int, ClippedTotal | str] = {}
        try:
            found |= {place: compute(part) for place, part in asked.items() if place not in away}
        finally:
            # Also where this process fails: what nobody waits for would be read as the next answer.
            with explain_lost_connection(None):
                found |= {place: _receive_answer(rank) for place, rank in away.items()}
                _finish(sent)
        return [_require_total(found[place]) for place in asked]

    def _rank_of(self, place: int) -> int | None:
        """Who computes the part at this place: a helper, or this process."""
        member = place % (1 + len(self.ranks))
        return self.ranks[member - 1] if member else None


def serve_parts(leader: int, gradients: ClippedSum) -> None:
    """Compute parts for the rank that leads, until it says stop."""
    sent: Sent = []
    with explain_lost_connection(None):
        while (part := _receive_part(leader)) is not None:
            answer = _answer(gradients, part)
            _finish(sent)
            sent = _send_answer(leader, answer)
        _finish(sent)


def stop_helpers(ranks: Sequence[int]) -> None:
    """Let the helpers of this process go."""
    with contextlib.suppress(RuntimeError):
        for rank in ranks:
            dist.send(torch.tensor([STOP, 0]), dst=rank)


def _require_total(answer: ClippedTotal | str) -> ClippedTotal:
    if isinstance(answer, str):
        raise PartFault(answer)
    return answer


def _answer(gradients: ClippedSum, part: SumPart) -> ClippedTotal | str:
    """A part's sum, or why there is none."""
    try:
        return compute_part(gradients, part)
    except Exception as error:  # whatever a silo dies of
        return f"{type(error).__name__}: {_check.reason(error)}"


def _send_part(rank: int, part: SumPart) -> Sent:
    """A header, the public facts as text, and the tensors one after the other."""
    buckets = part.buckets
    assert buckets is not None
    tensors = (part.vector, part.inputs, part.targets, part.groups, torch.from_numpy(buckets.numbers))
    facts = {
        "tensors": [(str(each.dtype).removeprefix("torch."), list(each.shape)) for each in tensors],
        "clip": (part.clip.per.value, part.clip.pool.value, part.clip.norm),
        "sizes": (buckets.expected_subjects, buckets.expected_items, buckets.largest),
        "local": None if part.local is None else asdict(part.local),
        "key": part.key,
    }
    text = _as_bytes(json.dumps(facts).encode())
    return [_send(rank, each) for each in (torch.tensor([COMPUTE, len(text)]), text, *map(_flat, tensors))]


def _receive_part(leader: int) -> SumPart | None:
    header = torch.zeros(2, dtype=torch.int64)
    waiting = dist.irecv(header, src=leader)
    assert waiting is not None
    waiting.wait(SPELL)
    command, length = header.tolist()
    if command == STOP:
        return None
    facts = json.loads(_receive_bytes(leader, length).numpy().tobytes())
    tensors = [_receive_tensor(leader, kind, shape) for kind, shape in facts["tensors"]]
    vector, inputs, targets, groups, numbers = tensors
    per, pool, norm = facts["clip"]
    local = None if facts["local"] is None else LocalUpdate(**facts["local"])
    buckets = Buckets(numbers.numpy(), np.arange(len(numbers)), *facts["sizes"])
    clip = Clip(ClipPer(per), Pool(pool), norm)
    return SumPart(vector, inputs, targets, groups, clip, buckets, local, facts["key"])


def _send_answer(leader: int, answer: ClippedTotal | str) -> Sent:
    """A header (what follows, how long it is), then the sum or the reason why there is none."""
    if isinstance(answer, str):
        content = _as_bytes(answer.encode())
        header = torch.tensor([FAULT, len(content), 0, 0])
    else:
        content = _flat(answer.total)
        header = torch.tensor([TOTAL, len(content), answer.total.itemsize, answer.zeroed])
    return [_send(leader, each) for each in (header, content)]


def _receive_answer(rank: int) -> ClippedTotal | str:
    header = torch.zeros(4, dtype=torch.int64)
    dist.recv(header, src=rank)
    status, length, width, zeroed = header.tolist()
    content = _receive_bytes(rank, length)
    if status == FAULT:
        return content.numpy().tobytes().decode(errors="replace")
    return ClippedTotal(content.view(torch.float64 if width == 8 else torch.float32), zeroed)


def _send(rank: int, content: Tensor) -> tuple[dist.Work | None, Tensor]:
    return dist.isend(content, dst=rank), content


def _finish(sent: Sent) -> None:
    """Wait until everything has arrived."""
    for work, _ in sent:
        if work is not None:
            work.wait()


def _receive_tensor(rank: int, kind: str, shape: list[int]) -> Tensor:
    dtype: torch.dtype = getattr(torch, kind)
    return _receive_bytes(rank, math.prod(shape) * dtype.itemsize).view(dtype).view(shape)


def _receive_bytes(rank: int, length: int) -> Tensor:
    content = torch.empty(length, dtype=torch.uint8)
    dist.recv(content, src=rank)
    return content


def _flat(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, whatever kind of numbers it has."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _as_bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
