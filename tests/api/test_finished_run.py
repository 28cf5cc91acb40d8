"""A run is the same from `train` and from its folder, and its model can be used on new tables."""

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import nn

import wholegrain as wg
from command import Command
from visit_tables import data, visits
from wholegrain.errors import DataError, ModelError, RunError, SpecError

pytestmark = pytest.mark.usefixtures("coarse_prices")

EASY: dict[str, Any] = {"policy": wg.subject_dp(rate=1.0), "epsilon": 50, "rounds": 20, "learning_rate": 3.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "a"


@pytest.fixture(scope="module")
def run(folder: Path) -> wg.Run:
    return wg.train(data(), **EASY, out=folder)


def test_a_run_from_its_folder_is_the_run(run: wg.Run, folder: Path) -> None:
    again = wg.load(folder)
    assert again.guarantees == tuple(map(_as_kept, run.guarantees))
    assert again.rounds[-1].epsilon == run.rounds[-1].epsilon
    assert again.spec.digest == run.spec.digest
    assert torch.equal(again.vector, run.vector)
    assert again.predict(visits(9)).equals(run.predict(visits(9)))
    assert repr(again) == repr(run)


def _as_kept(guarantee: wg.Guarantee) -> wg.Guarantee:
    """A file keeps no event."""
    return wg.Guarantee(**{**vars(guarantee), "event": None})


def test_predictions_are_a_table_of_the_same_library(run: wg.Run) -> None:
    rows = visits(40, seed=1)
    found = run.predict(rows)
    assert found.columns == ["prediction", "probability: no", "probability: yes"]
    assert (found["prediction"] == rows["ill"]).mean() > 0.8
    frame = rows.to_pandas().set_index("patient")
    given = run.predict(frame)
    assert isinstance(given, pd.DataFrame)
    assert given.index.equals(frame.index)
    assert given["prediction"].tolist() == found["prediction"].to_list()
    table = run.predict(pa.table({name: rows[name].to_list() for name in rows.columns}))
    assert isinstance(table, pa.Table)
    assert table["prediction"].to_pylist() == found["prediction"].to_list()


def test_only_features_are_needed_to_predict(run: wg.Run) -> None:
    rows = visits(5).select("sex", "age", "pressure")
    assert run.predict(rows).height == 15


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (visits(5).drop("age"), "no column 'age'"),
        (visits(5).with_columns(sex=pl.lit("x")), "'sex' holds 'x' in row 1"),
        (visits(5).with_columns(age=pl.lit(None)), "'age' has 15 missing"),
        (torch.zeros(3, 7), r"inputs of shape \[3, 7\]"),
        ([[0, 0, 0, 1]], "type int64"),
        (torch.zeros(3, 4, dtype=torch.complex64), "complex64"),
    ],
    ids=["a column is missing", "another schema", "no values", "another width", "whole numbers", "no numbers"],
)
def test_rows_that_cannot_be_predicted_are_refused(run: wg.Run, rows: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        run.predict(rows)


def test_the_report_is_a_page(run: wg.Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.report() == folder / "report.html"
    assert "PROVED" in (folder / "report.html").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    in_memory = wg.train(data(), **EASY | {"rounds": 2})
    page = in_memory.report()
    assert page == Path("report.html")
    assert "kept in memory" in page.read_text("utf-8")


def test_a_folder_that_exists_is_kept(run: wg.Run, folder: Path) -> None:
    with pytest.raises(RunError, match="already exists"):
        wg.train(data(), **EASY, out=folder)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match="holds no run"):
            wg.load(place)


def test_a_net_of_ones_own_is_loaded_into_the_same_net(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 2))
    run = wg.train(data(), net, **EASY | {"rounds": 2}, out=tmp_path / "a")
    with pytest.raises(RunError, match="given in Python"):
        _ = wg.load(tmp_path / "a").model
    other = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 2))
    again = wg.load(tmp_path / "a", other)
    assert again.model is other
    assert again.predict(visits(5)).equals(run.predict(visits(5)))
    with pytest.raises(ModelError, match="do not fit the model"):
        wg.load(tmp_path / "a", nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 2)))
    with pytest.raises(ModelError, match="of another model"):
        wg.load(tmp_path / "a", nn.Linear(4, 2))


def test_a_run_on_tensors_is_loaded_with_the_model_of_the_catalogue(tmp_path: Path) -> None:
    inputs, targets = torch.randn(60, 3), torch.arange(60) % 2
    tensors = wg.from_torch((inputs, targets), subjects=[k // 2 for k in range(60)], silos=["a"] * 60)
    run = wg.train(tensors, **EASY | {"rounds": 2}, out=tmp_path / "a")
    again = wg.load(tmp_path / "a")
    assert again.layout is None
    assert again.predict(inputs).equals(run.predict(inputs))


def test_a_run_of_the_command_line_is_loaded(tmp_path: Path, wholegrain: Command) -> None:
    visits(60).write_csv(tmp_path / "visits.csv")
    (tmp_path / "s.toml").write_text(
        '[data.table]\npath = "visits.csv"\nsubject = "patient"\nsilo = "clinic"\n'
        'target = { column = "ill", classes = ["no", "yes"] }\n'
        "[data.table.features]\nage = { low = 0, high = 100 }\n"
        "[policy]\nrate = 1.0\n[privacy]\nepsilon = 4.0\n[rounds]\ncount = 2\nlearning_rate = 1.0\n"
    )
    assert wholegrain("run", tmp_path / "s.toml", "--out", tmp_path / "a", "--quiet").code == 0
    run = wg.load(str(tmp_path / "a"))
    assert run.guarantee.epsilon <= 4
    assert run.predict(visits(5)).height == 15


def test_the_command_line_says_that_data_of_a_program_cannot_be_resumed(
    folder: Path, run: wg.Run, wholegrain: Command
) -> None:
    (folder / "summary.json").rename(folder / "summary.kept")
    try:
        with pytest.raises(RunError, match="not at its end"):
            wg.load(folder)
        refused = wholegrain("resume", folder)
        assert refused.code == 2
        assert "given in Python" in refused.err
    finally:
        (folder / "summary.kept").rename(folder / "summary.json")


def test_data_without_a_name_is_not_released() -> None:
    with pytest.raises(SpecError, match=r"from_frame\(…, name=…\)"):
        wg.train(data(), **EASY, noise="secure")
