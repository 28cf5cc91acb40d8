"""A model file knows its own pipeline: from a folder and a table to predictions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from torch import nn

import wholegrain as wg
from wholegrain.data.table import encode_features
from wholegrain.errors import DataError, ModelError, RunError, WholegrainError
from wholegrain.runs.model_file import Predictor, read_layout

FEATURES = {"age": wg.Number(0, 110, missing=40), "sex": wg.Category(["f", "m"])}
TARGETS: Mapping[str, wg.Target] = {
    "classes": wg.Target("ill", ["no", "yes"]),
    "at least": wg.Target("stars", at_least=3),
    "above": wg.Target("stars", above=3),
    "number": wg.Target("stars", low=0, high=5),
    "labels": wg.Target(columns=["cough", "fever"]),
}


def visits(rows: int = 60) -> pl.DataFrame:
    draws = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "patient": [f"p{k // 2}" for k in range(rows)],
            "clinic": [["north", "south"][k % 2] for k in range(rows)],
            "age": draws.integers(0, 110, rows),
            "sex": draws.choice(["f", "m"], rows),
            "ill": draws.choice(["no", "yes"], rows),
            "stars": draws.integers(0, 6, rows),
            "cough": draws.integers(0, 2, rows),
            "fever": draws.integers(0, 2, rows),
        }
    )


def trained(folder: Path, target: wg.Target, net: nn.Module | None = None) -> wg.Run:
    data = wg.from_frame(visits(), subject="patient", silo="clinic", target=target, features=FEATURES)
    return wg.train(data, net, policy=wg.subject_dp(rate=1.0), epsilon=8, rounds=2, out=folder)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_predictions_are_those_of_the_model(target: wg.Target, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", target)
    found = Predictor.open(tmp_path / "run")
    assert found.task == run.task == target.task
    inputs = encode_features(visits(), read_layout(found.facts["table"]))
    with torch.no_grad():
        expected = run.task.predictions(run.model(torch.from_numpy(inputs)).numpy())
    made = found.predict(visits().drop("patient", "clinic", "ill", "stars", "cough", "fever"))
    assert made.columns == list(expected)
    for name, column in expected.items():
        assert (
            made[name].to_list() == pytest.approx(column.tolist(), abs=1e-6)
            if column.dtype.kind == "f"
            else (made[name].to_list() == column.tolist())
        )
    assert Predictor.open(tmp_path / "run" / "model.safetensors").predict(visits()).equals(made)


def test_a_threshold_says_on_which_side_it_lies() -> None:
    data = {
        name: wg.from_frame(visits(), subject="patient", target=TARGETS[name], features=FEATURES)
        for name in ("at least", "above")
    }
    stars = visits()["stars"].to_numpy()
    assert (data["at least"].data.targets == (stars >= 3)).all()
    assert (data["above"].data.targets == (stars > 3)).all()
    assert data["at least"].task.facts()["classes"] == ("below 3", "at least 3")


def test_the_file_says_what_it_promises_and_holds_no_row(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", TARGETS["classes"])
    with safe_open(tmp_path / "run" / "model.safetensors", framework="pt") as content:
        text = content.metadata()["wholegrain"]
    facts = json.loads(text)
    assert facts["simulation"]
    assert facts["guarantees"][0]["epsilon"] == pytest.approx(run.guarantee.epsilon)
    assert facts["table"]["features"]["age"]["high"] == 110
    assert "p1" not in text
    assert "north" not in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.drop("sex"), "no column 'sex'"),
        (lambda frame: frame.with_columns(sex=pl.lit("x")), "'x' in row 1"),
        (lambda frame: frame.with_columns(sex=pl.lit(None, pl.String)), "missing values"),
        (lambda frame: frame.head(0), "no rows"),
    ],
)
def test_a_table_that_does_not_fit_gets_a_sentence(change: Any, words: str, tmp_path: Path) -> None:
    trained(tmp_path / "run", TARGETS["classes"])
    with pytest.raises(DataError, match=words):
        Predictor.open(tmp_path / "run").predict(change(visits()))


def test_a_model_of_ones_own_is_given_again(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", TARGETS["classes"], nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(ModelError, match="own code"):
        Predictor.open(tmp_path / "run")
    found = Predictor.open(tmp_path / "run", nn.Sequential(nn.Linear(3, 2)))
    assert torch.equal(found.model[0].weight, run.model[0].weight)
    with pytest.raises(ModelError, match="does not fit"):
        Predictor.open(tmp_path / "run", nn.Sequential(nn.Linear(4, 2)))


@pytest.mark.parametrize("content", [None, b"", b"junk" * 9])
def test_what_is_no_model_gets_a_sentence(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((RunError, WholegrainError)):
        Predictor.open(path)
