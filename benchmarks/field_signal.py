"""How far the first step's sum goes in the benchmark of the field, by method, at the same noise.

Run: python benchmarks/field_signal.py [--only digits --digits FOLDER --starts recipes]

All methods below have noise for a move of C, so that the length of a sum over C says how well it is heard. The clip
norm is short: nearly everybody is clipped. Beside it stands what part of C a person may say in the silo of a record,
the mean over records: by 1/m, by the share of the person's records, and by that share as the library rounds it.
"""

import argparse
from pathlib import Path

import numpy as np

import field
import record
from rivals import METHODS

SHOWN = ("central", "ours, full sum, pooled", "ours, full sum, by share", "ULDP-SGD-w", "ULDP-SGD")


def signal(split: field.Split, name: str, clip: float) -> float:
    """The length of the first sum of contributions over C."""
    start = split.model.start(split.records.inputs.shape[1], split.seed)[:, None]
    found = split.model.total(METHODS[name], split.records, split.bounds, start, np.array([clip]))
    return float(np.linalg.norm(found)) / (clip * split.model.noise)


def parts(split: field.Split) -> list[float]:
    """The part of C in the silo of a record, by 1/m, by shares, and by shares as the library rounds them."""
    pairs = split.records.owners["pair"]
    rounded = METHODS["ours, full sum, by share"].weight(pairs, split.bounds)
    return [float(np.average(each, weights=pairs.count)) for each in (1 / pairs.span, pairs.share, rounded)]


def show(asked: argparse.Namespace) -> None:
    """One line for each data set, as Markdown."""
    tables, starts = field.problems(asked.table), field.from_starts(asked)
    found = {**tables, **starts}
    bases = field.chosen(asked.only or [name for name in field.SCORES if name in found], found, asked.table)
    titles = ("part of C by 1/m", "by shares", "rounded", *asked.methods)
    print("| | " + " | ".join(titles) + " |\n|---|" + "---:|" * len(titles))
    for data in bases:
        model = "linear" if data in tables else field.HEAD
        split = field.Split(data, bases[data], asked.seed, model)
        cells = [f"{each:.3f}" for each in parts(split)]
        cells += [f"{signal(split, name, split.grid.clips[0]):.1f}" for name in asked.methods]
        print(f"| {data} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=list(field.SCORES), help="by default all that are there")
    record.add_names(parser, "--methods", METHODS, default=SHOWN)
    parser.add_argument("--table", type=Path, default=Path("diabetes130.csv.gz"))
    parser.add_argument("--digits", type=Path, help="the folder of MNIST by writer")
    parser.add_argument("--plays", type=Path, help="the archive of plays")
    parser.add_argument("--starts", type=Path, default=record.ROOT / "recipes", help="the folder of public starts")
    parser.add_argument("--seed", type=int, default=0)
    show(parser.parse_args())


if __name__ == "__main__":
    record.start(main)
