"""Natural mistakes in Python: each gets one sentence that says what is wrong and what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import wholegrain as wg
from visit_tables import FEATURES, data, visits

DATA = data()
GOOD: dict[str, Any] = {"policy": wg.subject_dp(rate=1.0), "epsilon": 4, "rounds": 2, "learning_rate": 1.0}


def train(given: Any = DATA, net: Any = None, **changes: Any) -> wg.Run:
    return wg.train(given, net, **{**GOOD, **changes})


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


def another_net() -> None:
    net, other = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    north = DATA.silo("clinic 0")
    for _ in wg.private_steps(net, north, policy=wg.subject_dp(rate=1.0), epsilon=4, steps=5):
        optimizer.step()


SPACE = {"rounds.learning_rate": [0.1, 1.0]}

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a DataFrame": (lambda: train(visits().to_pandas()), r"wg\.from_frame\(df, subject="),
    "a polars frame": (lambda: train(visits()), r"wg\.from_frame\(df, subject="),
    "a TensorDataset": (
        lambda: train(TensorDataset(torch.zeros(4, 2), torch.zeros(4))),
        r"wg\.from_torch\(dataset, subjects=",
    ),
    "two tensors": (lambda: train((torch.zeros(4, 2), torch.zeros(4))), r"wg\.from_torch\(dataset, subjects="),
    "a path": (lambda: train(Path("visits.csv")), r"wg\.from_frame or wg\.from_torch"),
    "a target's name alone": (lambda: data(target="ill"), r"as in Target\('ill', \['no', 'yes'\]\), not 'ill'"),
    "a slip in a policy": (lambda: train(policy="subject-dp"), "did you mean 'subject_dp'"),
    "a slip in a keyword": (lambda: train(epsilonn=4), "did you mean 'epsilon'"),
    "another library's keyword": (lambda: train(lr=0.1), "here it is called 'learning_rate'"),
    "a loss that is a class": (lambda: train(loss=nn.CrossEntropyLoss), r"give an instance, CrossEntropyLoss\(\)"),
    "a model in double precision": (lambda: train(net=nn.Linear(4, 2).double()), r"float64.*give net\.float\(\)"),
    "a device that nobody has": (lambda: train(device="tpu"), "compute.device"),
    "half precision of a GPU": (lambda: train(precision="float16"), "'float16' is for a GPU"),
    "a rate for train": (lambda: train(rate=0.5), r"subject_dp\(rate=…\)"),
    "no budget": (lambda: train(epsilon=None), "needs epsilon"),
    "a negative budget": (lambda: train(epsilon=-1), "epsilon must be a number above 0, not -1"),
    "a budget in words": (lambda: train(epsilon="4"), r"privacy\.epsilon: it should be a valid number \(it is '4'\)"),
    "a budget that is a truth": (lambda: train(epsilon=True), r"privacy\.epsilon: it should be a valid number"),
    "noise that is a truth": (lambda: train(noise_multiplier=True), r"noise_multiplier: it should be a valid number"),
    "a bound that is a truth": (lambda: train(items_per_subject=True), "items_per_subject: it should be a valid int"),
    "a rate of 2": (lambda: train(policy=wg.subject_dp(rate=2)), "above 0 and at most 1, not 2"),
    "a loss that is a sum": (lambda: train(loss=summed), "'summed' is not a mean over items"),
    "a model with BatchNorm": (lambda: train(net=with_batch_norm()), "use GroupNorm or LayerNorm"),
    "a class for a model": (lambda: train(net=nn.Linear), "give an instance"),
    "a number for a model": (lambda: train(model=3), "or the name of one of the catalogue, not int"),
    "a list for a model": (lambda: train(model=["mlp"]), "or the name of one of the catalogue, not list"),
    "a function for a model": (lambda: train(model=with_batch_norm), "of the catalogue, not function"),
    "a class for the model": (lambda: train(model=nn.Linear), "give an instance"),
    "a number for a model to tune": (
        lambda: wg.tune(DATA, SPACE, trials="poisson(2)", epsilon=4, model=3),
        "or the name of one of the catalogue, not int",
    ),
    "a module to tune": (
        lambda: wg.tune(DATA, SPACE, trials="poisson(2)", epsilon=4, model=nn.Linear(4, 2)),
        "tune makes a model anew for every trial: name one of the catalogue",
    ),
    "a model of tokens": (
        lambda: train(model="stacked_lstm"),
        "The data is numbers, and the model 'stacked_lstm' reads tokens; set model.name to logistic, .* or resnet18",
    ),
    "another output width": (lambda: train(net=nn.Linear(4, 3)), r"shape \[2, 3\] for 2 items; it should be \[2, 2\]"),
    "another input width": (lambda: train(net=nn.Linear(5, 2)), "does not fit the data"),
    "NaN for a feature": (
        lambda: data(visits().with_columns(age=pl.lit(float("nan")))),
        "'age' has 360 missing values.*declare `missing`",
    ),
    "an id that is None": (lambda: data(visits().with_columns(patient=pl.lit(None))), "row without a subject"),
    "no such silo column": (lambda: data(silo="clinics"), "did you mean 'clinic'"),
    "a class that is not declared": (
        lambda: data(target=wg.Target("ill", ["no", "maybe"])),
        "'ill' holds 'yes'.*declared categories",
    ),
    "features without bounds": (lambda: data(features=["age", "sex"]), r"Number\(0, 110\)"),
    "a feature that is the target": (lambda: data(features=FEATURES | {"ill": wg.Category(["no", "yes"])}), "'ill'"),
    "bounds the wrong way round": (lambda: wg.Number(110, 0), "low < high, not 110 and 0"),
    "an id that is the index": (lambda: data(visits().to_pandas().set_index("patient")), r"df\.reset_index\(\)"),
    "a row of pandas": (lambda: data(pd.Series([1, 2])), "DataFrame"),
    "predict without a column": (lambda: train().predict(visits().drop("sex")), "no column 'sex'"),
    "predict for a dict": (lambda: train().predict({"age": [30]}), r"pandas\.DataFrame\(rows\)"),
    "predict on another schema": (lambda: train().predict(visits().with_columns(sex=pl.lit(3))), "'sex' holds '3'"),
    "a folder that is no run": (lambda: wg.load("."), "holds no run"),
    "an optimizer of another net": (another_net, "give the optimizer this net's parameters"),
    "an unknown silo": (lambda: DATA.silo("north"), "Unknown silo 'north'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.usefixtures("coarse_prices")
def test_a_mistake_gets_its_sentence(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, words = MISTAKES[mistake]
    with pytest.raises(wg.WholegrainError, match=words) as refused:
        make()
    said = str(refused.value)
    assert said.count("\n") == 0
    assert said.endswith(".")
    # A net that can be trained may have been tried already: this machine's verdicts on kernels, and their key.
    assert {path.parent.name for path in tmp_path.rglob("*") if path.is_file()} <= {"kernels", "keys"}


@pytest.mark.usefixtures("coarse_prices")
def test_a_folder_that_exists_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(wg.WholegrainError, match="already exists"):
        train(out=tmp_path)
    assert (tmp_path / "mine").read_text() == "kept"
