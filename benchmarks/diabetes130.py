"""What a table allows without any privacy: the constant answer and scikit-learn's logistic regression.

    python benchmarks/diabetes130.py examples/diabetes130.toml --set data.table.path=PATH

The people are those of the spec's run: the same hold-out, the same K, the same features, all silos in one place.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from wholegrain.runs.datasets import load_dataset, split_dataset
from wholegrain.runs.spec import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--set", dest="changes", action="append", default=[])
    asked = parser.parse_args()
    spec = load(asked.spec, tuple(asked.changes))
    parts = split_dataset(load_dataset(spec), spec)
    silos = [silo.data for silo in parts.silos.values()]
    inputs, targets = np.concatenate([s.inputs for s in silos]), np.concatenate([s.targets for s in silos])
    test = parts.held_out["test"]
    share = targets.mean()
    constant = np.full(len(test.targets), share)
    model = LogisticRegression(max_iter=2000).fit(inputs, targets)
    print(f"{len(silos)} silos, {len(targets)} items to train on, {len(test.targets)} to test on")
    print(f"{'':22}{'accuracy':>10}{'loss':>8}{'AUC':>8}")
    for name, scores in {"constant": constant, "logistic regression": model.predict_proba(test.inputs)[:, 1]}.items():
        accuracy = accuracy_score(test.targets, scores > 0.5)
        auc = roc_auc_score(test.targets, scores)
        print(f"{name:22}{accuracy:10.4f}{log_loss(test.targets, scores):8.4f}{auc:8.3f}")


if __name__ == "__main__":
    main()
