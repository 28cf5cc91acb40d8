"""Test scores of given clip norms and steps in the benchmark of the field: what a choice of settings hides.

    python benchmarks/field_settings.py --model mlp --data rwm5yr --epsilon 4 --clips 1 4 16 20 --lengths 3 10

Nothing is chosen here, and nothing is kept: each line is one method with one setting, means over the draws of noise of
benchmarks/field.py, by seed.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np

import field
import record
import rivals


def score(test: field.Split, name: str, epsilon: float, pairs: list[tuple[float, float]]) -> list[float]:
    """The mean test score of each pair of clip norm and length."""
    noise, _ = test.noise(name, epsilon)
    columns = [field.Setting(*pair, noise) for pair in pairs for _ in field.TESTS]
    vectors = test.train(name, columns, list(field.TESTS) * len(pairs))
    return np.reshape(test.scores(vectors), (len(pairs), -1)).mean(1).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=list(field.MODELS), default="linear")
    parser.add_argument("--data", choices=field.TABLED, required=True)
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--epsilon", type=field.epsilon_of, default=4.0)
    record.add_names(parser, "--methods", rivals.METHODS, default=["ULDP-SGD-w", "ours, full sum, by share"])
    parser.add_argument("--clips", nargs="+", type=float, required=True)
    parser.add_argument("--lengths", nargs="+", type=float, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    asked = parser.parse_args()
    pairs = list(itertools.product(asked.clips, asked.lengths))
    base = field.on_tables(asked.table, [asked.data])[asked.data]
    tests = [field.Split(asked.data, base, seed, asked.model) for seed in asked.seeds]
    print("| method | clip norm | length | " + " | ".join(f"seed {seed}" for seed in asked.seeds) + " | mean |")
    print("|---|---:|---:|" + "---:|" * (len(asked.seeds) + 1))
    for name in asked.methods:
        found = np.array([score(test, name, asked.epsilon, pairs) for test in tests])
        for (clip, length), row in zip(pairs, found.T, strict=True):
            print(f"| {name} | {clip:g} | {length:g} | " + " | ".join(f"{s:.2f}" for s in [*row, row.mean()]) + " |")


if __name__ == "__main__":
    record.start(main)
