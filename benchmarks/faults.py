"""Thousands of simulated federations with faults: is anything ever released that was not paid for?

Run: python benchmarks/faults.py --federations 10000
     python benchmarks/faults.py --plant all          (does the simulation find mistakes?)
     python benchmarks/faults.py --first 4711 --federations 1    (one seed again)

Server, silos, ledgers and messages are in one process with a virtual clock (benchmarks/simulation). The round loop, the
server's engine, the silo's service, guards, ledgers, the list of ledgers, run folders and checkpoints are the
program's own; training is not. Some federations release updates, others parts of secure sums, or private scores beside
updates. Faults are drawn from the seed: messages lost, doubled, late and out of order; kills and power cuts at any
write; restarts; two servers at once; two processes on one silo's ledger; ledgers put back to an older copy; clocks that
are set back; servers that lie about who is in a sum. After every event an oracle, whose prices, hashes and SQL are its
own, checks: every update that leaves a silo was paid for, on disk, before; no silo spends beyond its charter's ε; no
noise is used twice; nobody helps to open two sums of one round; no server asks for a round that it has not reserved;
ledgers lose and change nothing; and when faults are over, the run comes to its end. Any violation is printed with its
seed, and the exit code is 1.
"""

import argparse
import gc
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator

import torch

from simulation.federation import Outcome, play
from simulation.planted import MISTAKES
from wholegrain.deploy.public_reasons import FAILED

CHUNK = 20


def prepare() -> None:
    """One thread, and no search for garbage among all that was imported: it would take a third of the time."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def outcomes(seeds: range, workers: int) -> Iterator[Outcome]:
    """What each seed leads to, in the order of the seeds."""
    if workers == 1:
        yield from map(play, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers, prepare) as pool:
        yield from pool.imap(play, seeds, chunksize=CHUNK)
        pool.close()
        pool.join()  # their time counts when they have ended


def report(seeds: range, workers: int) -> int:
    """Play all, and print what happened."""
    happened: Counter[str] = Counter()
    began, computed, violations = time.perf_counter(), cpu_seconds(), 0
    for played, outcome in enumerate(outcomes(seeds, workers), start=1):
        happened += outcome.happened
        if outcome.violation:
            violations += 1
            print(f"VIOLATION with seed {outcome.seed}: {outcome.violation}", flush=True)
        if played % 1000 == 0:
            print(f"{played} federations, violations so far: {violations}", flush=True)
    seconds, computed = time.perf_counter() - began, cpu_seconds() - computed
    print(f"Seeds {seeds.start} to {seeds.stop - 1}: {len(seeds)} federations in {seconds:.0f} s", end="")
    print(f" ({60 * len(seeds) / seconds:.0f} a minute, {workers} processes;", end="")
    print(f" {60 * len(seeds) / computed:.0f} for each minute of processor time)")
    for name, count in sorted(happened.items()):
        print(f"{count:>9,} {name}")
    print(f"Violations: {violations}")
    return int(violations > 0)


def cpu_seconds() -> float:
    """Processor time of this process and of those that it has waited for: it says more on a busy machine."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def hunt(mistakes: list[str], seeds: range) -> int:
    """How many federations it takes to find each mistake."""
    missed = 0
    for mistake in mistakes:
        with MISTAKES[mistake]():
            found = next((each for each in map(play, seeds) if each.violation), None)
        if found is not None and FAILED in str(found.violation):
            missed += 1
            print(f"{mistake}: NOT MADE, since the program fails with it: it fits another version", flush=True)
        elif found is None:
            missed += 1
            print(f"{mistake}: NOT FOUND in {len(seeds)} federations", flush=True)
        else:
            print(f"{mistake}: found with seed {found.seed}: {found.violation}", flush=True)
    return int(missed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, help="how many; 10000, or 1000 with --plant")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plant", choices=["all", *MISTAKES], help="make this mistake, and look for it")
    chosen = parser.parse_args()
    prepare()
    count = chosen.federations or (1000 if chosen.plant else 10_000)
    seeds = range(chosen.first, chosen.first + count)
    if chosen.plant is None:
        return report(seeds, chosen.workers)
    return hunt(list(MISTAKES) if chosen.plant == "all" else [chosen.plant], seeds)


if __name__ == "__main__":
    sys.exit(main())
