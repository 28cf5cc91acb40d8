"""One rank of a group, for tests: `python ranks.py`, with RANK and the like in its environment.

Rank 0 plays rounds and prints what it saw as JSON; the others serve. Silos are named by letters, and train by
adding their place in the alphabet; whose letter is large fails.
"""

import json
from dataclasses import dataclass

import torch

from wholegrain.engines.distributed import Distributed, RankAssignment, join_process_group, serve
from wholegrain.engines.processes import rank, world_size
from wholegrain.federation.messages import Engine, RoundTask, SiloFault, SiloUpdate

SILOS = ("a", "B", "c", "d", "E", "f", "g")
SIZES = (5, 1_000_003)
"""Of parameters: a handful, and more than one packet."""

Seen = list[list[list[str]]]
"""What was answered, by round and silo."""


@dataclass(frozen=True)
class Letters:
    """Trains letters, but only those that its rank has."""

    owned: tuple[str, ...]

    def answer(self, silo: str, task: RoundTask) -> SiloUpdate | SiloFault:
        if silo not in self.owned:
            raise AssertionError(f"rank {rank()} was asked for '{silo}'")
        if silo.isupper():
            return SiloFault(silo, f"ValueError: silo {silo} broke in round {task.round}, σ → ∞")
        return SiloUpdate(silo, task.vector * task.steps + ord(silo) + task.round)


def start(size: int) -> torch.Tensor:
    return torch.linspace(-1, 1, size).sin_()


def cohorts(engine: Engine, size: int) -> Seen:
    """Cohorts in all sorts of order, round after round."""
    seen = []
    for round, silos in enumerate([SILOS, SILOS[::-1], ("g",), ("B",), ("d", "a"), (), ("E", "B"), SILOS]):
        answers = engine.run(RoundTask(round, silos, round + 1, start(size)))
        seen.append([_told(answer) for answer in answers])
    return seen


def _told(answer: SiloUpdate | SiloFault) -> list[str]:
    if isinstance(answer, SiloFault):
        return [answer.silo, answer.reason]
    return [answer.silo, answer.vector.numpy().tobytes().hex() if answer.vector.numel() < 100 else _sum(answer.vector)]


def _sum(vector: torch.Tensor) -> str:
    return f"{vector.numel()} {vector.double().sum().item()!r} {vector[-1].item()!r}"


def main() -> None:
    spread = RankAssignment(SILOS, world_size())
    local = Letters(spread.silos_of(rank() or 0))
    seen = []
    with join_process_group():
        for size in SIZES:
            if rank():
                serve(local, spread, torch.zeros(size))  # type: ignore[arg-type]
                continue
            engine = Distributed(local, spread)  # type: ignore[arg-type]
            seen.append(cohorts(engine, size))
            engine.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
