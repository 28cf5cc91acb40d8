"""Rounds and learning rate of every method in benchmarks/trust.py, chosen without a look at test people.

Run: python benchmarks/trust_settings.py [--only nlswork diabetes130] [--table diabetes130.csv.gz] [--seeds 0 1 2]
Check: python benchmarks/trust_settings.py --check

One rule for all methods, ε and data sets: every pair of ROUNDS and LENGTHS is tried, DRAWS times with other noise, on a
fifth of the *training* people of the seed, who are left out of training meanwhile. The best mean score wins. Nobody
pays for this choice (docs/paid-choices.md), which is alike for all methods.

Thousands of runs are tried, so they are emulated (trust_emulator.py). `--check` holds emulated runs against the
library's, with hardly any noise. Choices are kept in trust_settings.jsonl.
"""

import argparse
import itertools
from dataclasses import asdict
from pathlib import Path

import numpy as np

import trust_cases
from trust_cases import CHOSEN, METHODS, SCORES, Cell, by_cell, cells, key
from trust_emulator import Emulator
from utility import Tree

ROUNDS = (5, 10, 20, 40, 80)
LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Learning rates times the clip norm: how far a step goes if everybody is clipped."""
DRAWS = 4


def choose(emulator: Emulator, cell: Cell) -> Tree:
    """The best of all settings, as a row."""
    tried = []
    for rounds in ROUNDS:
        noise = emulator.noise(cell, rounds)
        draws = range(DRAWS if noise else 1)
        pairs = list(itertools.product([length / emulator.clip for length in LENGTHS], draws))
        rates, numbers = zip(*pairs, strict=True)
        found = emulator.scores(emulator.train(cell.method, noise, rounds, rates, numbers))
        means = np.reshape(found, (len(LENGTHS), len(draws))).mean(1)
        best = int(means.argmax())
        tried.append((float(means[best]), {"rounds": rounds, "learning_rate": LENGTHS[best] / emulator.clip}))
    score, setting = max(tried, key=lambda found: found[0])
    return {**asdict(cell), **setting, "validation": score}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=list(SCORES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    known = {name: tree for name, tree in trust_cases.problems(asked.table).items() if name in asked.only}
    for data, seed in itertools.product(known, asked.seeds[:1] if asked.check else asked.seeds):
        emulator = Emulator(data, known[data], seed)
        for method in asked.methods if asked.check else ():
            print(f"{data}, {method}: off by {emulator.check(method):.1e} of the way")
        for cell in [] if asked.check else cells([data], asked.methods, [seed]):
            if key(cell) not in by_cell(trust_cases.read(CHOSEN)):
                trust_cases.keep(CHOSEN, choose(emulator, cell))


if __name__ == "__main__":
    main()
