"""MNIST by writer, more than the last layer: a FedAvg that is tuned, and private training from the public start.

    python benchmarks/whole_digits.py --data FOLDER --backbone handwriting.safetensors [--only NAME …]
    python benchmarks/whole_digits.py --draw

FedAvg is plain torch: in a round each of 16 silos makes one pass over its images, and the models are averaged by
images. Its learning rate is the one with the best accuracy on a fifth of the *training* writers after a few rounds, and
its rounds are the best along that way; then it is trained on all training writers. Private runs are the library's. With
one image of a writer in a silo (K = 1) their learning rate is chosen by the same fifth; with every image it is the
shorter of the same two, which all runs with K = 1 chose. In training an image is seen once, in a score in 13 shifts.
Results are kept line by line in benchmarks/whole_digits.jsonl (`--out FILE` keeps them elsewhere).
"""

import argparse
import copy
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import public_starts
import record
import trust_cases
from utility import Tree, merged
from wholegrain.data.dataset import Dataset
from wholegrain.data.subjects import SubjectData
from wholegrain.models import model_catalog
from wholegrain.models.backbone import Backbone
from wholegrain.models.images import one_view
from wholegrain.models.model_inputs import values
from wholegrain.models.trainable_part import train_part
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.datasets import load_dataset, split_dataset
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec

RESULTS = record.ROOT / "benchmarks" / "whole_digits.jsonl"
PLAIN: Tree = {"channels": 8, "hidden": 128}
"""Of `leaf_cnn`, the plain CNN: two convolutions of 5 × 5 with 8 and 16 channels, and 128 units; 105,194 parameters."""
BATCH, MOMENTUM, SHARE, RANK = 32, 0.9, 0.2, 4


@dataclass(frozen=True)
class Free:
    """FedAvg: what is trained of which model, and what is tried."""

    train: str | None
    """None: the plain CNN from nothing."""
    rates: Sequence[float]
    look: int
    """Rounds after which a learning rate is chosen."""
    most: int
    """Rounds at most."""
    falling: bool = False
    """Whether the rate falls, linearly, to nothing after the last round."""

    def rates_of(self, rate: float) -> list[float]:
        """The learning rate of each round."""
        return [rate * (1 - each / self.most) if self.falling else rate for each in range(self.most)]


@dataclass(frozen=True)
class Private:
    """The library's `subject_dp` by a secure sum, from the public start; C times each learning rate is tried.

    A step is divided by pairs of writer and silo, each of which is clipped to C/16: a length of 16 is a step of 1
    where everybody is clipped and points the same way.
    """

    train: str
    epsilon: float
    lengths: Sequence[float]
    rounds: int
    items: int | None = 1
    """K: images of a writer in a silo, at most; None for every image."""


METHODS: Mapping[str, Free | Private] = {
    "FedAvg, plain CNN from nothing": Free(None, (0.01, 0.03, 0.1), look=2, most=8),
    "FedAvg, whole model from the start": Free("all", (0.003, 0.01, 0.03), look=1, most=4),
    "FedAvg, plain CNN, falling rate": Free(None, (0.03, 0.06), look=1, most=12, falling=True),
    "FedAvg, whole model, falling rate": Free("all", (0.03, 0.06), look=1, most=8, falling=True),
    "FedAvg, whole model, longer and more steps": Free("all", (0.06, 0.12, 0.24), look=1, most=12, falling=True),
    "ε = 4, last layer": Private("head", 4.0, (16.0, 80.0), 6),
    "ε = 1, last layer": Private("head", 1.0, (16.0, 80.0), 6),
    "ε = 4, low rank": Private("low_rank", 4.0, (16.0, 80.0), 6),
    "ε = 1, low rank": Private("low_rank", 1.0, (16.0, 80.0), 6),
    "ε = 4, whole model": Private("all", 4.0, (16.0, 80.0), 6),
    "ε = 1, whole model": Private("all", 1.0, (16.0, 80.0), 6),
    "ε = 4, low rank, every image": Private("low_rank", 4.0, (16.0,), 12, items=None),
    "ε = 4, whole model, every image": Private("all", 4.0, (16.0,), 12, items=None),
    "ε = 1, low rank, every image": Private("low_rank", 1.0, (16.0,), 12, items=None),
    "ε = 1, whole model, every image": Private("all", 1.0, (16.0,), 12, items=None),
}


def started(backbone: Backbone, train: str, seed: int) -> nn.Module:
    """The model of the public start with what is trained of it."""
    facts = backbone.facts
    model = model_catalog.build(facts["model"], facts["features"], facts["classes"], seed, facts["options"])
    backbone.load_into(model, facts["model"])
    return train_part(model, train, RANK, 0, seed)


def accuracy(model: nn.Module, part: SubjectData) -> float:
    """Of a part's images."""
    with torch.no_grad():
        found = [model(values(torch.from_numpy(some))).argmax(1).numpy() for some in np.array_split(part.inputs, 40)]
    return float((np.concatenate(found) == part.targets).mean())


def local_pass(model: nn.Module, silo: SubjectData, rate: float, draws: torch.Generator) -> None:
    """One pass over a silo's images."""
    steps = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate, momentum=MOMENTUM)
    inputs, targets = torch.from_numpy(silo.inputs), torch.from_numpy(silo.targets).long()
    for batch in torch.randperm(silo.items, generator=draws).split(BATCH):
        steps.zero_grad()
        cross_entropy(model(values(inputs[batch])), targets[batch]).backward()  # type: ignore[no-untyped-call]
        steps.step()


def averages(model: nn.Module, silos: Sequence[SubjectData], rates: Sequence[float], seed: int) -> Iterator[nn.Module]:
    """FedAvg: the model after each round."""
    draws, shares = torch.Generator().manual_seed(seed), np.array([silo.items for silo in silos], np.float64)
    for rate in rates:
        sums: dict[str, Tensor] = {}
        for silo, share in zip(silos, shares / shares.sum(), strict=True):
            own = copy.deepcopy(model)
            with one_view(own):
                local_pass(own, silo, rate, draws)
            for name, value in own.state_dict().items():
                sums[name] = sums.get(name, 0) + value * float(share)
        model = copy.deepcopy(model)
        model.load_state_dict(sums)
        yield model


def play_free(method: Free, model: nn.Module, tree: Tree, dataset: Dataset, seed: int) -> Tree:
    """Learning rate and rounds by the writers held out; then the same way with all training writers."""
    fewer = split_dataset(dataset, RunSpec.of(merged(tree, {"evaluation": {"validation": SHARE}})))
    silos, held = [silo.data for silo in fewer.silos.values()], fewer.held_out["validation"]
    ways = {rate: averages(model, silos, method.rates_of(rate), seed) for rate in method.rates}
    looks = {rate: [accuracy(each, held) for each in itertools.islice(ways[rate], method.look)] for rate in ways}
    rate = max(looks, key=lambda each: looks[each][-1])
    along = looks[rate] + [accuracy(each, held) for each in itertools.islice(ways[rate], method.most - method.look)]
    rounds = int(np.argmax(along)) + 1
    whole = split_dataset(dataset, RunSpec.of(tree))
    rates = method.rates_of(rate)[:rounds]
    *_, last = averages(model, [silo.data for silo in whole.silos.values()], rates, seed)
    held_out = {"looks": looks, "along": along}
    return {"rate": rate, "rounds": rounds, "accuracy": accuracy(last, whole.held_out["test"]), "held out": held_out}


def private_tree(method: Private, tree: Tree, length: float) -> Tree:
    """The recipe's spec with this method's settings."""
    clip = tree["policy"]["clip_norm"]
    return merged(
        {name: section for name, section in tree.items() if name != "model"},
        {"silos": {"items_per_subject": method.items} if method.items else {}},
        {"privacy": {"epsilon": method.epsilon}, "trust": {"model": "secure_sum"}, "compute": {"compiled": True}},
        {"rounds": {"count": method.rounds, "learning_rate": length / clip, "checkpoint_every": 10**6}},
        {"policy": {"by_span": True}},
    )


def play_private(method: Private, model: nn.Module, tree: Tree, dataset: Dataset) -> Tree:
    """The learning rate by the writers held out; then a run with all training writers."""
    looks = {}
    for length in method.lengths if len(method.lengths) > 1 else ():
        looks[length], _ = _trained(private_tree(method, tree, length), model, dataset, "validation")
    length = max(looks, key=lambda each: looks[each], default=method.lengths[0])
    score, promised = _trained(private_tree(method, tree, length), model, dataset, "test")
    return {"length": length, "rounds": method.rounds, "accuracy": score, "held out": looks, **promised}


def _trained(tree: Tree, model: nn.Module, dataset: Dataset, part: str) -> tuple[float, Tree]:
    """Accuracy after a run of the library, and what is proved of it; only the last model is scored."""
    shares = {"evaluation": {"test": 0.0, "validation": 0.0}}
    if part == "validation":
        whole = split_dataset(dataset, RunSpec.of(merged(tree, {"evaluation": {"validation": SHARE}})))
        held = whole.held_out["validation"]
        dataset = _without(dataset, held)
    else:
        assert dataset.test is not None
        held = dataset.test
    own = copy.deepcopy(model)
    with one_view(own):
        made = prepare(RunSpec.of(merged(tree, shares)), dataset=dataset, model=own, pricing=accountant("pld"))
        with open_guard(made, "whole digits") as guard:
            promised = execute(made, guard).plan.guarantee(Unit.SUBJECT)
    return accuracy(made.model, held), {"proved": promised.epsilon, "standing": str(promised.standing)}


def _without(dataset: Dataset, held: SubjectData) -> Dataset:
    """The data without some people."""
    kept = np.flatnonzero(~np.isin(dataset.data.subjects, held.subjects))
    return replace(dataset, data=dataset.data.take(kept))


def run(asked: argparse.Namespace) -> None:
    """Play what was not played yet."""
    tree = public_starts.recipe("digits", asked.data, asked.backbone)
    backbone = public_starts.start_of(asked.backbone, tree)
    dataset = load_dataset(RunSpec.of({"data": tree["data"]}))
    assert dataset.test is not None
    before = len(trust_cases.read(asked.out))
    base = merged({name: tree[name] for name in tree if name != "model"}, {"seed": asked.seed})
    for name in asked.only or METHODS:
        if any((row["name"], row["seed"]) == (name, asked.seed) for row in trust_cases.read(asked.out)):
            continue
        method, begun = METHODS[name], time.process_time()
        if method.train is None:
            model = model_catalog.build("leaf_cnn", dataset.features, dataset.task.outputs, asked.seed, PLAIN)
        else:
            model = started(backbone, method.train, asked.seed)
        row = {"name": name, "seed": asked.seed, "start": accuracy(model, dataset.test)}
        row["trained"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
        if isinstance(method, Free):
            row |= play_free(method, model, base, dataset, asked.seed)
        else:
            row |= play_private(method, model, base, dataset)
        row["seconds"] = round(time.process_time() - begun)
        command = f"python benchmarks/whole_digits.py --only '{name}' --seed {asked.seed}"
        trust_cases.keep(asked.out, {**row, "commit": record._commit(), "command": command})
    record.say_if_done(before, len(trust_cases.read(asked.out)))


def show(results: Path) -> None:
    """What is on record, as Markdown."""
    rows = trust_cases.kept(results)
    print("| | trained | rounds | accuracy, % | above its beginning | seconds |\n|---|---:|---:|---:|---:|---:|")
    for row in rows:
        gain, after = 100 * (row["accuracy"] - row["start"]), 100 * row["accuracy"]
        print(f"| {row['name']} | {row['trained']:,} | {row['rounds']} | {after:.2f} | {gain:.2f} | {row['seconds']} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="the folder of MNIST by writer")
    parser.add_argument("--backbone", type=Path, help="what `wholegrain pretrain` has made")
    record.add_names(parser, "--only", METHODS)
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
