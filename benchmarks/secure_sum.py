"""What a secure sum costs: masking in a silo and opening at the server, beside a step and beside Flower's SecAgg+.

Run: taskset --cpu-list 0 python benchmarks/secure_sum.py --clock cpu [--size 6600000] [--silos 16]

Everything takes turns in one process with one thread; each figure is the median over rounds, and each ratio the median
of ratios within a round. The step is the clipped sum per item of the LEAF CNN with 128 items. Of SecAgg+ the masks of
one client are timed, with its own functions: quantisation, one mask for each neighbour and one of its own. Its masks
come from 32-bit seeds of numpy's generator and its sums from 22 bits of each value, so that it is no equal.
"""

import argparse
import statistics
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

import record
from contestants import CONTESTANTS
from wholegrain.engines.sum_wire import write_reply, write_request
from wholegrain.federation.secure_sum import Member
from wholegrain.federation.sum_opening import SumOpening
from wholegrain.privacy.trust import SecureSum
from workloads import CASES

BITS = 40
FLOWER_RANGE, FLOWER_CLIP, FLOWER_MODULUS = 1 << 22, 8.0, 1 << 32
"""The defaults of Flower's SecAgg+ workflow."""


class Session:
    """Silos that share keys, and whose signatures are not timed."""

    def __init__(self, silos: int) -> None:
        self.roster = tuple(f"silo-{number:02}" for number in range(silos))
        self.rules = SecureSum.over(silos)
        self.identities = {name: Ed25519PrivateKey.generate() for name in self.roster}
        self.members = {name: Member(name, "benchmark", self.rules, self.roster) for name in self.roster}
        keys = [member.keys(self.identities[name].sign) for name, member in self.members.items()]
        for member in self.members.values():
            member.accept(keys, lambda *said: True)

    def play(self, round: int, numbers: np.ndarray, clock: Callable[[], float]) -> dict[str, float]:
        """Seconds of masking in one silo, of its help, and of opening with one silo lost; bytes that it sends."""
        opening = SumOpening(self.rules, self.roster, frozenset(self.roster), round, len(numbers))
        first, lost = self.roster[0], self.roster[-1]
        found: dict[str, float] = {}
        for name in self.roster[:-1]:
            started = clock()
            part = self.members[name].mask(round, numbers)
            if name == first:
                found["mask"] = clock() - started
                text, content = write_reply(part, BITS)
                found["bytes"] = len(text) + len(content)
            opening.add(part)
        self.members[lost].mask(round, numbers[:1])
        for name in opening.survivors:
            sign = self.identities[name].sign
            opening.add_consent(self.members[name].sign_survivors(round, opening.survivors, sign))
        for name in opening.survivors:
            request = opening.request_for(name)
            started = clock()
            help = self.members[name].help_open(request, lambda *said: True)
            if name == first:
                found["help"] = clock() - started
                found["bytes"] += len(write_reply(help)[0])
                found["bytes received"] = len(write_request(request))
            opening.add_help(help)
        started = clock()
        opening.open(BITS)
        found["open"] = clock() - started
        return found


def flower(values: np.ndarray, silos: int, clock: Callable[[], float]) -> float:
    """Seconds in which SecAgg+ masks one client's vector among as many neighbours."""
    started = clock()
    (masked,) = quantize([values], FLOWER_CLIP, FLOWER_RANGE)
    masked = masked.astype(np.int64)
    for number in range(silos):
        (mask,) = pseudo_rand_gen(number.to_bytes(32), FLOWER_MODULUS, [values.shape])
        masked = (masked + mask) % FLOWER_MODULUS
    return clock() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=record.CLOCKS, default="wall")
    parser.add_argument("--size", type=int, default=6_600_000)
    parser.add_argument("--silos", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    clock, session = record.CLOCKS[asked.clock], Session(asked.silos)
    draws = np.random.default_rng(0)
    numbers = draws.integers(-(2**30), 2**30, asked.size)
    values = draws.normal(size=asked.size)
    step = CONTESTANTS["ours"].build(CASES["cnn128"].workload())
    step.gradient()
    rows: list[dict[str, float]] = []
    for round in range(asked.rounds):
        own = session.play(round, numbers, clock)
        own["SecAgg+ mask"] = flower(values, asked.silos, clock)
        started = clock()
        step.gradient()
        own["step"] = clock() - started
        rows.append(own)
    print(record.told(record.circumstances(asked.clock)))
    for name in ("mask", "help", "open", "SecAgg+ mask", "step"):
        print(f"{name:14}{statistics.median(row[name] for row in rows):9.3f} s")
    for name in ("step", "SecAgg+ mask"):
        ratio = statistics.median(row["mask"] / row[name] for row in rows)
        print(f"mask / {name:14}{ratio:7.2f}")
    print(f"sent by a silo in a round: {rows[0]['bytes'] / 1e6:.1f} MB")
    print(f"shares received by it: {rows[0]['bytes received'] / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
