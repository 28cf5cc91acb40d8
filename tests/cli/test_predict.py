"""From a spec to predictions, on the command line."""

import re
import tomllib
from pathlib import Path

import polars as pl

from command import Command
from wholegrain.data.schema import Target
from wholegrain.data.tasks import NextToken

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text("utf-8")
HEAD = "patient,clinic,age,sex,stay\n"
SPEC = """
[data.table]
path = "visits.csv"
subject = "patient"
silo = "clinic"
target = { column = "stay", low = 0, high = 30 }
[data.table.features]
age = { low = 0, high = 110 }
sex = { categories = ["f", "m"] }
[policy]
rate = 1.0
[privacy]
epsilon = 8.0
[rounds]
count = 2
"""


def test_a_number_is_predicted_within_its_bounds(wholegrain: Command, tmp_path: Path) -> None:
    rows = [f"p{k},{'ab'[k % 2]},{20 + k},{'fm'[k % 2]},{k % 40}" for k in range(50)]
    (tmp_path / "visits.csv").write_text(HEAD + "\n".join(rows) + "\n")
    (tmp_path / "spec.toml").write_text(SPEC)
    run = wholegrain("run", tmp_path / "spec.toml", "--out", tmp_path / "run", "--quiet")
    assert run.code == 0, run.err
    assert "constant answer" in run.out
    assert "mae" in run.out
    (tmp_path / "new.csv").write_text("age,sex\n30,f\n200,m\n")
    for out in (tmp_path / "found.csv", tmp_path / "found.parquet"):
        done = wholegrain("predict", tmp_path / "run", tmp_path / "new.csv", "--out", out)
        assert done.code == 0, done.err
        found = pl.read_csv(out) if out.suffix == ".csv" else pl.read_parquet(out)
        assert found.columns == ["prediction"]
        assert found.height == 2
        assert found["prediction"].is_between(0, 30).all()
    (tmp_path / "ids.csv").write_text("id;age;sex\n007;30,5;f\n7,5;40;m\n")
    told = wholegrain(
        *("predict", tmp_path / "run", tmp_path / "ids.csv", "--out", tmp_path / "ids-found.csv"),
        *("--keep", "id", "--keep", "age"),
    )
    assert told.out.startswith("2 rows: id, age, prediction\n"), told.err
    kept = pl.read_csv(tmp_path / "ids-found.csv", infer_schema=False)
    assert kept["id"].to_list() == ["007", "7,5"]  # as it was written
    assert kept["age"].to_list() == ["30.5", "40"]
    (tmp_path / "twice.csv").write_text("prediction,age,sex\n1,30,f\n")
    for table, column, words in (("ids", "patient", "no column 'patient'"), ("twice", "prediction", "rename it")):
        refused = wholegrain(
            *("predict", tmp_path / "run", tmp_path / f"{table}.csv"),
            *("--out", tmp_path / "none.csv", "--keep", column),
        )
        assert (refused.code, refused.err.count("\n"), words in refused.err) == (2, 1, True)
    (tmp_path / "old.csv").write_bytes("age\tsex\tOrt\n30,0\tf\tKöln\n30,5\tm\tUlm\n".encode("latin-1"))
    told = ("predict", tmp_path / "run", tmp_path / "old.csv", "--out", tmp_path / "old.parquet")
    assert "--encoding" in wholegrain(*told).err
    assert wholegrain(*told, "--encoding", "latin-1", "--decimal", "x").code == 2
    assert wholegrain(*told, "--encoding", "latin-1", "--decimal", ",").code == 0
    before = (tmp_path / "old.parquet").read_bytes()
    again = wholegrain(*told, "--encoding", "latin-1", "--decimal", ",")
    assert again.code == 2
    assert "already exists; remove it, or name another file with --out" in again.err.replace("\n", " ")
    assert (tmp_path / "old.parquet").read_bytes() == before


def test_mistakes_get_one_sentence(wholegrain: Command, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age,sex\n30,f\n")
    for arguments in (
        (tmp_path / "nothing", tmp_path / "new.csv", "--out", tmp_path / "a.csv"),
        (tmp_path, tmp_path / "new.csv", "--out", tmp_path / "a.csv"),
        (tmp_path, tmp_path / "new.csv", "--out", tmp_path / "a.txt"),
    ):
        done = wholegrain("predict", *arguments)
        assert done.code == 2
        assert done.err.count("\n") == 1
        assert not list(tmp_path.glob("a.*"))


def test_the_page_declares_targets_that_exist() -> None:
    shown = re.findall(r"`(target = \{.*?\})`", PAGE)
    assert len(shown) == 6
    for line in shown:
        target = Target(**tomllib.loads(line)["target"])
        loss = NextToken.loss if target.next_token else target.task.loss  # the tokenizer knows the task of a text
        assert f"`{loss}`" in PAGE
